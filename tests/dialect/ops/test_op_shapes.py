"""Shape rules: with symbolic sizes they say, at every size, what they say of the static types."""

from __future__ import annotations

import pytest

from cuvilc.dialect.dims import symbol
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.ir import Program
from cuvilc.dialect.op import Sample, ShapeError
from cuvilc.dialect.types import TensorType
from tests.dialect.ops.one_op import (
    all_samples,
    at_sizes,
    build,
    operand_types,
    parse_type,
    result_types,
)

SHAPES = ("shape", "sizes")  # attributes that hold sizes
CHANGES = (lambda n: n, lambda n: n + 1, lambda n: 2 * n, lambda n: 2 * n + 3)
# `hidden`, `targets` and `classes` are attributes that these operations' shapes must equal
STATIC = {
    "ai.lookup", "ai.lstm", "ai.gru", "ai.rnn", "ai.tree_ensemble", "ai.couple_probabilities",
}  # fmt: skip
SAMPLES = [(name, n, s) for name, n, s in all_samples() if name not in STATIC]


def _symbolic(name: str, sample: Sample):
    """The sample's types and attributes with every size above 1 a symbol, equal ones the same."""
    sizes: dict[str, int] = {}

    def named(n):
        if not isinstance(n, int) or n < 2:
            return n
        sizes[f"s{n}"] = n
        return symbol(f"s{n}")

    types = [t.with_(shape=tuple(map(named, t.shape))) for t in operand_types(sample)]
    if name in ("ai.gather_nd", "ai.scatter_nd"):  # the length of an index is a constant
        indices = types[1].shape
        types[1] = types[1].with_(shape=(*indices[:-1], operand_types(sample)[1].shape[-1]))
    attrs = {
        key: tuple(symbol(f"s{n}") if f"s{n}" in sizes else n for n in value)
        if key in SHAPES and isinstance(value, tuple)
        else value
        for key, value in sample.attrs.items()
    }
    return types, attrs, sizes


@pytest.mark.parametrize(
    ("name", "n", "sample"), SAMPLES, ids=[f"{name}-{n}" for name, n, _ in SAMPLES]
)
def test_symbolic_rule_equals_the_static_one(name, n, sample):
    types, attrs, sizes = _symbolic(name, sample)
    results = result_types(name, types, **attrs)
    checked = 0
    for change in CHANGES:
        values = {key: change(size) for key, size in sizes.items()}
        try:
            static = result_types(
                name,
                [at_sizes(t, values) for t in types],
                **{key: at_sizes(value, values) for key, value in attrs.items()},
            )
        except ShapeError:
            continue  # these sizes do not fit the other attributes
        assert tuple(at_sizes(t, values) for t in results) == static
        checked += 1
    assert checked


@pytest.mark.parametrize("name", ["ai.lstm", "ai.gru", "ai.rnn"])
def test_recurrent_layers_take_any_time_and_batch(name):
    gates = {"ai.lstm": 4, "ai.gru": 3, "ai.rnn": 1}[name]
    types = [parse_type(t) for t in (
        "float32[t,b,3]", f"float32[1,{gates * 2},3]", f"float32[1,{gates * 2},2]",
    )]  # fmt: skip
    y, *states = result_types(name, types, hidden=2)
    assert str(y) == "f32[t,1,b,2]"
    assert {str(s) for s in states} == {"f32[1,b,2]"}


@pytest.mark.parametrize(
    ("name", "operands", "attrs", "result"),
    [
        ("ai.matmul", ("float32[b,s,64]", "float32[64,k]"), {}, "f32[b,s,k]"),
        ("ai.concat", ("int64[p,2]", "int64[s,2]"), {"axis": 0}, "i64[p + s,2]"),
        ("ai.reshape", ("float32[b,s,64]",), {"shape": ("b", "s", 4, 16)}, "f32[b,s,4,16]"),
        (
            "ai.slice", ("float32[n]",), {"starts": (1,), "steps": (1,), "sizes": ("n - 1",)},
            "f32[n - 1]",
        ),
        ("ai.pad", ("float32[n]",), {"before": (1,), "after": ("m",)}, "f32[m + n + 1]"),
        ("ai.tile", ("float32[n,2]",), {"repeats": ("m", 3)}, "f32[m*n,6]"),
        ("ai.one_hot", ("int64[n]", "float32[2]"), {"depth": "d", "axis": 0}, "f32[d,n]"),
        ("ai.iota", (), {"shape": ("n",), "axis": 0, "dtype": "int64", "start": "p"}, "i64[n]"),
        ("ai.depth_to_space", ("float32[b,8,h,w]",), {"block": 2}, "f32[b,2,2*h,2*w]"),
        (
            "ai.conv", ("float32[b,3,h,w]", "float32[8,3,3,3]"),
            {"strides": (2, 1), "pads_begin": (1, 1), "pads_end": (1, 1), "dilations": (1, 1)},
            "f32[b,8,floordiv(h + 1, 2),w]",
        ),
    ],
)  # fmt: skip
def test_symbolic_results(name, operands, attrs, result):
    def read(value):
        if isinstance(value, tuple):
            return tuple(parse(v) if isinstance(v, str) else v for v in value)
        return parse(value) if isinstance(value, str) and len(value) == 1 else value

    attrs = {key: read(value) for key, value in attrs.items()}
    types = [parse_type(t) for t in operands]
    (found,) = result_types(name, types, **attrs)
    expected = [str(parse(d)) for d in _dims(result)]
    assert [str(d) for d in found.shape] == expected
    program = build(name, types, attrs)
    program.verify()
    assert Program.parse(program.text()).text() == program.text()


def _dims(spelled: str) -> list[str]:
    """The sizes in `f32[b,floordiv(h, 2)]`."""
    inner, depth, parts = spelled.partition("[")[2][:-1], 0, [""]
    for c in inner:
        depth += {"(": 1, ")": -1}.get(c, 0)
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return parts


BLOCKED = TensorType((1, 20, 8, 8), layout="NCHW16c")
WINDOW = {"strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1), "dilations": (1, 1)}


@pytest.mark.parametrize(
    ("name", "others", "attrs", "layout"),
    [
        ("ai.conv", ["float32[7,20,3,3]"], {**WINDOW, "out_layout": "NCHW8c"}, "NCHW8c"),
        ("ai.conv", ["float32[7,20,3,3]"], WINDOW, ""),
        ("ai.max_pool", [], {**WINDOW, "kernel": (3, 3)}, "NCHW16c"),
        ("ai.avg_pool", [], {**WINDOW, "kernel": (3, 3)}, "NCHW16c"),
        ("ai.lrn", [], {"size": 3}, "NCHW16c"),
        ("ai.resize", [], {"sizes": (1, 20, 16, 16)}, "NCHW16c"),
        ("ai.reduce_mean", [], {"axes": (2, 3), "keepdims": True}, "NCHW16c"),
        ("ai.reduce_mean", [], {"axes": (2, 3), "keepdims": False}, ""),
        ("ai.reduce_max", [], {"axes": (1,), "keepdims": True}, ""),
        ("ai.transpose", [], {"perm": (0, 2, 3, 1)}, ""),
    ],
)
def test_layout_of_the_result(name, others, attrs, layout):
    """Blocked channels stay where channels do; every operation may read them."""
    types = [BLOCKED, *map(parse_type, others)]
    (result,) = result_types(name, types, **attrs)
    assert result.layout == layout
    program = build(name, types, attrs)
    program.verify()
    assert Program.parse(program.text()).text() == program.text()


MOVES = {
    "where", "gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "one_hot",
    "resize", "grid_sample", "reshape", "transpose", "broadcast_to", "slice", "concat", "pad",
    "tile", "trilu", "depth_to_space", "space_to_depth", "relayout",
    "tensor_scatter", "lookup",
}  # fmt: skip
CONVERSIONS = {"cast", "narrow", "bitcast", "quantize_linear", "dequantize_linear"}


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "uint4"])
def test_narrow_dtypes_are_moved_and_converted_and_nothing_else(dtype):
    """An operation that computes would take codes for numbers: a new one must say which it is."""
    taken = set()
    for name, _, case in all_samples():
        types = operand_types(case)
        for old in {t.dtype for t in types}:
            changed = [t.with_(dtype=dtype) if t.dtype == old else t for t in types]
            try:
                result_types(name, changed, **case.attrs)
            except ShapeError:
                continue
            taken.add(name.removeprefix("ai."))
    assert taken <= MOVES | CONVERSIONS, taken - MOVES - CONVERSIONS
    assert taken >= CONVERSIONS
