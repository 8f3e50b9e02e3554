"""Every operation on every sample: it verifies, survives its text, and keeps its type's word."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from one_op import all_samples, build, comparable, operand_arrays, operand_types, run

from cuvilc.dialect.ir import Program
from cuvilc.dialect.op import OPS
from cuvilc.dialect.types import TensorType, dtype_name

SAMPLES = all_samples()
IDS = [f"{name}-{n}" for name, n, _ in SAMPLES]
FACETS = {"element", "domain", "term", "finish", "interpret"}
# these hold a program together; they have no meaning on their own to sample
HOLDING = ("cuvilc.dialect.ops.structure", "cuvilc.dialect.ops.launch")


@pytest.mark.parametrize(("name", "n", "sample"), SAMPLES, ids=IDS)
def test_sample(name, n, sample):
    program = build(name, operand_types(sample), sample.attrs)
    program.verify()
    text = program.text()
    again = Program.parse(text)
    assert again.text() == text
    arrays = operand_arrays(name, sample)
    results = run(program, arrays)
    with program:
        declared = OPS[name]
        types = declared.result_types(operand_types(sample), declared.complete(sample.attrs))
    for array, t in zip(results, types, strict=True):
        assert TensorType(array.shape, dtype_name(array.dtype)) == t.with_(layout="")
    for before, after in zip(results, run(again, arrays), strict=True):
        np.testing.assert_array_equal(comparable(before), comparable(after))


@pytest.mark.parametrize("declared", OPS.values(), ids=OPS)
def test_declaration(declared):
    assert declared.doc, f"{declared.name} has no docstring"
    assert set(declared.facets) <= FACETS
    if declared.shape.__module__ not in HOLDING:
        assert declared.reference is not None
        assert len(declared.samples) >= 2, f"{declared.name} needs samples"
    if "elementwise" in declared.traits or "injective" in declared.traits:
        assert "element" in declared.facets
    if "term" in declared.facets:
        assert "domain" in declared.facets
        assert declared.combine in ("sum", "max", "min", "prod")
        assert "element" not in declared.facets


@pytest.mark.parametrize("declared", OPS.values(), ids=OPS)
def test_facets_take_the_declared_operands(declared):
    """A facet's parameters are the declaration's, in its order, after the notation's own."""
    operands = [n for n, _ in declared.operands]
    leading = {"element": 2, "domain": 1, "term": 3, "finish": 3, "reference": 0, "shape": 0}
    functions = {**declared.facets, "shape": declared.shape}
    if declared.reference is not None:
        functions["reference"] = declared.reference
    functions.pop("interpret", None)
    for facet, function in functions.items():
        parameters = inspect.signature(function).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
        assert positional[leading[facet] :] == operands, facet
        assert keywords <= set(declared.attrs), facet
        assert rest or keywords == set(declared.attrs), facet


@pytest.mark.parametrize("name", [n for n, d in OPS.items() if "elementwise" in d.traits])
def test_elementwise_operations_keep_the_layout(name):
    for sample in OPS[name].samples:
        types = operand_types(sample)
        if any(t.rank != 4 for t in types):
            types = [TensorType((1, 19, 2, 3), t.dtype) for t in types]
            if name.endswith(("quantize_linear", "fake_quantize")):
                types[1:] = [TensorType((), t.dtype) for t in types[1:]]
        attrs = {**OPS[name].complete(sample.attrs)}
        if "block" in attrs:
            attrs["block"] = 0
        blocked = [types[0].with_(layout="NCHW16c"), *types[1:]]
        (result,) = OPS[name].result_types(blocked, attrs)
        assert result.layout == "NCHW16c"
