"""Into floats of 8 bits and fewer (`ai.cast` leads out of them); the same bits as another dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.narrow import NARROW, NARROW_FLOATS, ROUNDINGS, bits_of, round_to
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import need, need_word
from cuvilc.dialect.ops.elementwise import ELEMENTWISE
from cuvilc.dialect.types import DTYPES, item_bytes, numpy_dtype

_EDGES = np.array([0, -0.0, 0.07, -3.3, 449, 6e4, -6e4, np.inf, -np.inf, np.nan], np.float32)


@op("ai.narrow", traits=ELEMENTWISE)
class Narrow:
    """x rounded to a narrow float by the rules of ONNX's Cast: to nearest, ties to even.

    `saturate`: what lies beyond the largest number, infinities too, becomes that; else infinity or
    NaN, whichever the format has first. float64 and integers are rounded to float32 before.
    float8_e8m0fnu takes the exponent of |x|; `rounding` says what becomes of the rest ("nearest":
    ties up), infinities become NaN and 0 becomes 2⁻¹²⁷ (onnx.numpy_helper.to_float8e8m0).
    """

    x: Tensor
    dtype: str
    saturate: bool = True
    rounding: str = "nearest"

    def shape(x, *, dtype, saturate, rounding):
        need_word(dtype, NARROW_FLOATS, "dtype")
        need_word(rounding, ROUNDINGS, "rounding")
        return x.with_(dtype=dtype)

    def reference(x, *, dtype, saturate, rounding):
        return round_to(x, dtype, saturate, rounding)

    def element(k, i, x, *, dtype, saturate, rounding):
        return k.narrow(k.widen(x[i], x.type.dtype), dtype, saturate, rounding)

    samples = (
        sample(_EDGES, dtype="float8_e4m3fn"),
        sample(_EDGES, dtype="float8_e4m3fn", saturate=False),
        sample(_EDGES, dtype="float8_e4m3fnuz", saturate=False),
        sample(_EDGES.astype(np.float16), dtype="float8_e5m2", saturate=False),
        sample(_EDGES, dtype="float8_e5m2fnuz"),
        sample(_EDGES, dtype="float4_e2m1fn"),
        sample(_EDGES, dtype="float6_e2m3fn"),
        sample("bfloat16[3,37]", dtype="float6_e3m2fn", low=-40, high=40),
        sample(_EDGES, dtype="float8_e8m0fnu", rounding="up"),
        sample(_EDGES, dtype="float8_e8m0fnu", rounding="nearest", saturate=False),
        sample("float64[2,9]", dtype="float8_e8m0fnu", rounding="down"),
        sample("int32[40]", dtype="float8_e5m2", low=-70000, high=70000),
        sample(_EDGES.astype(ml_dtypes.float8_e5m2), dtype="float8_e4m3fn"),
        sample("bool[2,0]", dtype="float8_e4m3fn"),
    )


def _width(dtype: str) -> int:
    """Bits of an element."""
    return bits_of(dtype) if dtype in NARROW else 8 * item_bytes(dtype)


def _view(interpreter, operation, operands):
    """NumPy's view of the bits. Operands come as they are: a NaN must keep its payload."""
    (x,) = operands
    x = x.astype(numpy_dtype(ir.type_of(operation.operands[0]).dtype), order="C")
    return (BitCast.reference(x, **ir.attrs(operation)),)


@op("ai.bitcast")
class BitCast:
    """The bits of x, read as a dtype of the same width: costs nothing, as both share memory.

    int4 and int2 are not taken, since their bytes carry the sign beyond the element's own bits.
    """

    x: Tensor
    dtype: str

    def shape(x, *, dtype):
        need_word(dtype, DTYPES, "dtype")
        same = _width(x.dtype) == _width(dtype)
        need(same, f"{x.dtype} has {_width(x.dtype)} bits, {dtype} has {_width(dtype)}")
        need(not {x.dtype, dtype} & {"int4", "int2"}, f"cast {x.dtype} to its unsigned kin first")
        return x.with_(dtype=dtype)

    def reference(x, *, dtype):
        return x.view(numpy_dtype(dtype))

    interpret = _view

    samples = (
        sample(np.array([[1.0, -0.0, np.nan], [np.inf, -2.5, 0.0]], np.float32), dtype="int32"),
        sample("int32[3,5]", dtype="float32", low=0, high=2**30),
        sample("uint8[7]", dtype="float8_e5m2", low=0, high=255),
        sample("uint4[3]", dtype="float4_e2m1fn", low=0, high=15),
        sample("float16[2,0]", dtype="uint16"),
        sample("bool[]", dtype="int8"),
    )
