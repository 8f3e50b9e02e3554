"""Programs of a single operation, and inputs for them, made from a declaration's samples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np

import cuvilc.dialect.ops  # noqa: F401  (declares every operation)
from cuvilc.dialect import ir
from cuvilc.dialect.dims import evaluate, is_static
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ir import Program
from cuvilc.dialect.narrow import NARROW_FLOATS
from cuvilc.dialect.op import OPS, Sample
from cuvilc.dialect.types import TensorType, dtype_name, numpy_dtype


def parse_type(spelled: str) -> TensorType:
    """`float32[2,n]` as a TensorType."""
    dtype, dims = re.fullmatch(r"(\w+)\[(.*)\]", spelled).groups()
    return TensorType(tuple(parse(d) for d in dims.split(",")) if dims else (), dtype)


def operand_types(sample: Sample) -> list[TensorType]:
    """Types of the operands that the sample gives (None leaves one out)."""
    found = []
    for operand in sample.operands:
        if isinstance(operand, str):
            found.append(parse_type(operand))
        elif operand is not None:
            array = np.asarray(operand)
            found.append(TensorType(array.shape, dtype_name(array.dtype)))
    return found


def random_array(t: TensorType, low: float, high: float, rng: np.random.Generator) -> np.ndarray:
    """Random elements of a static type in [low, high]."""
    assert is_static(t.shape)
    if t.dtype == "bool":
        return rng.random(t.shape) < 0.5
    dtype = numpy_dtype(t.dtype)
    if t.is_float or t.dtype in NARROW_FLOATS:
        return rng.uniform(low, high, t.shape).astype(dtype)
    limits = ml_dtypes.iinfo(dtype)
    least, most = max(int(low), int(limits.min)), min(int(high), int(limits.max))
    return rng.integers(least, most, t.shape, endpoint=True).astype(dtype)


def comparable(array: np.ndarray) -> np.ndarray:
    """The array, a narrow float's as codes: NumPy does not take two NaNs of those for equal."""
    return array.view(np.uint8) if array.dtype.name in NARROW_FLOATS else array


def operand_arrays(name: str, sample: Sample) -> list[np.ndarray]:
    """The sample's arrays, and random ones where it spells a type; the same on every run."""
    rng = np.random.default_rng(crc32(f"{name}{sample}".encode()))
    given = [o for o in sample.operands if o is not None]
    return [
        random_array(t, sample.low, sample.high, rng) if isinstance(o, str) else np.asarray(o)
        for o, t in zip(given, operand_types(sample), strict=True)
    ]


def build(name: str, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Program:
    """A program whose inputs x0, x1, … go into one operation; its results are y0, y1, …."""
    program = Program.create("one-op")
    names = tuple(f"x{n}" for n in range(len(types)))
    results = OPS[name].results
    with program:
        block = ir.define_function(
            program, "main", types,
            input_names=names, output_names=tuple(f"y{n}" for n in range(results)),
        )  # fmt: skip
        with ir.at_end(block):
            made = ir.build(name, *block.arguments, **attrs)
        ir.finish_function(block, made if isinstance(made, tuple) else (made,))
    return program


def run(program: Program, arrays: Sequence[np.ndarray], exact: bool = False) -> list[np.ndarray]:
    """The program's results on `arrays`."""
    feeds = {f"x{n}": a for n, a in enumerate(arrays)}
    return list(interpret(program, feeds, exact).values())


def result_types(name: str, types: Sequence[TensorType], **attrs: Any) -> tuple[TensorType, ...]:
    """What the shape rule says."""
    declared = OPS[name]
    return declared.result_types(list(types), declared.complete(attrs))


def at_sizes(value: Any, sizes: Mapping[str, int]) -> Any:
    """A type or an attribute value with symbols replaced by numbers."""
    if isinstance(value, TensorType):
        return value.with_(shape=tuple(evaluate(d, sizes) for d in value.shape))
    if isinstance(value, tuple):
        return tuple(at_sizes(v, sizes) for v in value)
    return evaluate(value, sizes) if hasattr(value, "terms") else value


def all_samples() -> list[tuple[str, int, Sample]]:
    """(operation, number, sample) of every declaration."""
    return [(name, n, s) for name, d in OPS.items() for n, s in enumerate(d.samples)]
