"""Conversions from and to narrow dtypes, bit by bit against ml_dtypes and onnx, on every input.

Inputs are all codes, all float16 and bfloat16, and of float32 every upper half with lower halves
around ties: more than every tie of every format, with its neighbours.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from cuvilc.dialect import ir
from cuvilc.dialect.narrow import (
    E8M0,
    FORMATS,
    NARROW,
    NARROW_FLOATS,
    NARROW_INTEGERS,
    STORED,
    bits_of,
    round_to,
)
from cuvilc.dialect.types import TensorType, numpy_dtype
from cuvilc.targets.schedules import elementwise
from tests.targets.kernel_harness import CHIPS, Kernel, program_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # ml_dtypes' casts of NaN


def codes(dtype: str) -> np.ndarray:
    """All 256 bytes; floats without bits beyond their own, which ml_dtypes leaves open."""
    mask = 0xFF if dtype in NARROW_INTEGERS else (1 << bits_of(dtype)) - 1
    return (np.arange(256, dtype=np.uint8) & np.uint8(mask)).view(numpy_dtype(dtype))


def bits(dtype: str) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(dtype))


def singles() -> np.ndarray:
    high = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (high | low).reshape(-1).view(np.float32)


SOURCES = {"float16": bits("float16"), "bfloat16": bits("bfloat16"), "float32": singles()}


def run(name: str, x: np.ndarray, chip: object, **attrs: object) -> np.ndarray:
    """The compiled operation's result on x."""
    t = TensorType(x.shape, x.dtype.name)
    program = program_of([t], lambda value: ir.build(f"ai.{name}", value, **attrs))
    return Kernel(program, chip, elementwise.schedule).run({"x0": x})[0]


def agree(found: np.ndarray, wanted: np.ndarray, x: np.ndarray) -> None:
    """Equal bits; where not, the message shows the first input that differs."""
    assert found.dtype == wanted.dtype
    unsigned = np.dtype(f"u{found.dtype.itemsize}")
    a, b = found.view(unsigned), wanted.view(unsigned)
    at = np.flatnonzero(a != b)
    assert not len(at), [(x[i], hex(a[i]), hex(b[i])) for i in at[:5]]


def oracle(x: np.ndarray, dtype: str, saturate: bool, rounding: str) -> np.ndarray:
    """What onnx's reference evaluator casts x to."""
    if dtype == E8M0:
        return numpy_helper.to_float8e8m0(x.astype(np.float32), saturate, rounding)
    target = numpy_dtype(dtype)
    if saturate and dtype.startswith("float8"):
        return numpy_helper.saturate_cast(x.astype(np.float32), target)
    return x.astype(np.float32).astype(target)


RULES = [
    *itertools.product(FORMATS, (True, False), ("nearest",)),
    *itertools.product((E8M0,), (True, False), ("nearest", "up", "down")),
]


@pytest.mark.parametrize(("dtype", "saturate", "rounding"), RULES)
@pytest.mark.parametrize("source", SOURCES)
def test_rounding_is_that_of_onnx(dtype, saturate, rounding, source):
    x = SOURCES[source]
    wanted = oracle(x, dtype, saturate, rounding)
    agree(round_to(x, dtype, saturate, rounding), wanted, x)
    for chip in CHIPS:
        agree(run("narrow", x, chip, dtype=dtype, saturate=saturate, rounding=rounding), wanted, x)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("target", ["float32", "float64", "float16", "bfloat16"])
def test_every_code_is_the_number_of_ml_dtypes(dtype, target):
    x = codes(dtype)
    single = x.astype(np.float32)
    wanted = single.astype(numpy_dtype(target))
    for chip in CHIPS:
        agree(run("cast", x, chip, dtype=target), wanted, x)


PAIRS = list(itertools.product(NARROW_FLOATS, NARROW_FLOATS))


@pytest.mark.parametrize(("source", "dtype"), PAIRS)
def test_from_one_narrow_float_to_another(source, dtype):
    x = codes(source)
    rounding = "up" if dtype == E8M0 else "nearest"
    wanted = oracle(x.astype(np.float32), dtype, True, rounding)
    agree(run("narrow", x, CHIPS[0], dtype=dtype, saturate=True, rounding=rounding), wanted, x)


@pytest.mark.parametrize("dtype", NARROW_INTEGERS)
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "int8", "uint8", "bool"])
def test_integers_wrap_around(dtype, source):
    if source in SOURCES:
        x = SOURCES[source]
        x = x[np.abs(x.astype(np.float64)) < 2**31]  # beyond, C leaves the result open
    else:
        x = np.arange(-128, 128).astype(source)
    wanted = x.astype(numpy_dtype(dtype)).astype(STORED[dtype])
    for chip in CHIPS:
        agree(run("cast", x, chip, dtype=dtype).view(STORED[dtype]), wanted, x)


@pytest.mark.parametrize("dtype", NARROW_INTEGERS)
@pytest.mark.parametrize("target", ["int8", "uint8", "int64", "bool", "int4", "uint2"])
def test_narrow_integers_as_others(dtype, target):
    x = codes(dtype)
    wanted = x.astype(np.int8).astype(numpy_dtype(target))
    found = run("cast", x, CHIPS[0], dtype=target)
    assert np.array_equal(found.astype(np.int64), wanted.astype(np.int64))


@pytest.mark.parametrize("dtype", NARROW)
def test_moves_keep_every_code(dtype):
    """And drop the bits of a byte that are not its element's, with which a caller may have come."""
    x = np.arange(256, dtype=np.uint8)
    typed = x.view(numpy_dtype(dtype)).reshape(4, 64)
    found = run("transpose", typed, CHIPS[0], perm=(1, 0)).T.reshape(-1)
    own = x & ((1 << bits_of(dtype)) - 1)
    wanted = own.view(numpy_dtype(dtype)).astype(STORED[dtype]) if dtype in NARROW_INTEGERS else own
    assert np.array_equal(found.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("dtype", FORMATS)
def test_formats_are_those_of_ml_dtypes(dtype):
    form, info = FORMATS[dtype], ml_dtypes.finfo(numpy_dtype(dtype))
    assert (form.bits, form.mantissa) == (info.bits, info.nmant)
    assert np.uint8(form.largest).view(numpy_dtype(dtype)) == info.max
    least = np.uint8(1 << form.mantissa).view(numpy_dtype(dtype))
    assert float(least) == float(info.smallest_normal) == 2.0 ** (1 - form.bias)
    assert onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))
