"""Between floats and integers of 2 to 16 bits or narrow floats: q = round(x / scale + zero point).

scale is one number (rank 0 or [1]), one per index of `axis` ([n]), or, with block > 0, one per
`block` indices of it (x's shape with ⌈n/block⌉ there). The zero point has scale's shape.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from cuvilc.dialect.dims import ceildiv
from cuvilc.dialect.narrow import FORMATS, NARROW_INTEGERS, round_to
from cuvilc.dialect.op import ShapeError, Tensor, op, sample
from cuvilc.dialect.ops._index import put
from cuvilc.dialect.ops._rules import (
    need,
    need_axis,
    need_dtype,
    need_equal,
    need_float,
    need_shape,
    need_word,
    replaced,
    spell,
)
from cuvilc.dialect.types import FLOATS, TensorType, numpy_dtype

QUANTISED = ("int8", "uint8", "int16", "uint16", *NARROW_INTEGERS, *FORMATS)
PRECISIONS = ("float32", "float16", "bfloat16")


def _is_scalar(t) -> bool:
    return tuple(t.shape) in ((), (1,))


def _check_scale(x: TensorType, scale: TensorType, zero_point, axis: int, block: int) -> None:
    need(block >= 0, f"block must not be negative: {block}")
    if zero_point is not None:
        need_shape(zero_point, scale.shape, "zero_point")
    if _is_scalar(scale) and not block:
        return
    need_axis(axis, x.rank)
    n = x.shape[axis]
    if block:
        need_shape(scale, replaced(x.shape, axis, ceildiv(n, block)), "scale")
    elif scale.rank == 1:
        need_equal(scale.shape[0], n, f"scale and axis {axis} of x")
    else:
        raise ShapeError(f"scale {spell(scale.shape)} must be one number or one per index")


def _spread(t: np.ndarray, x: np.ndarray, axis: int, block: int) -> np.ndarray:
    """A scale or zero point as it broadcasts to x."""
    if block:
        return np.take(np.repeat(t, block, axis), np.arange(x.shape[axis]), axis)
    if _is_scalar(t):
        return t.reshape(())
    line = [1] * x.ndim
    line[axis] = -1
    return t.reshape(line)


def _at(k, t, i, axis, block):
    """The scale or zero point for output index i."""
    if block:
        return t[put(i, axis, k.floordiv(i[axis], block))]
    if _is_scalar(t):
        return t[(0,) * len(t.shape)]
    return t[i[axis]]


def _limits(dtype: str) -> tuple[int, int]:
    """The least and the greatest integer of a quantised dtype."""
    limits = ml_dtypes.iinfo(numpy_dtype(dtype))
    return int(limits.min), int(limits.max)


def _saturated(k, quotient, zero, dtype: str):
    """The quotient within the limits less the zero point: before rounding that needs fewer
    instructions, and the levels are the same.
    """
    low, high = (k.let(k.const(v, "float32") - zero) for v in _limits(dtype))
    quotient = k.let(quotient)
    return k.min(k.select(k.gt(quotient, low), quotient, low), high)


def _adds_zero(dtype: str) -> bool:
    """Whether 0 is added as a zero point. onnx's reference adds none to a float8: -0 stays."""
    return not dtype.startswith("float8")


@op("ai.quantize_linear", traits=("elementwise",))
class QuantizeLinear:
    """round(x / scale) + zero_point, saturated to zero_point's dtype.    (Jacob et al. 2018, eq. 1)

    The quotient is a float32, rounded to `precision`, and rounds half to even, which every target
    obeys bit by bit; NaN becomes the least level, as onnxruntime has it. To a narrow float:
    x / scale + zero_point, rounded as `ai.narrow` does.
    """

    x: Tensor
    scale: Tensor
    zero_point: Tensor
    axis: int = 1
    block: int = 0
    precision: str = "float32"
    saturate: bool = True

    def shape(x, scale, zero_point, *, axis, block, precision, saturate):
        need_dtype(x, (*FLOATS, "int32"), "x")
        need_float(scale, "scale")
        need_dtype(zero_point, QUANTISED, "zero_point")
        need_word(precision, PRECISIONS, "precision")
        _check_scale(x, scale, zero_point, axis, block)
        return x.with_(dtype=zero_point.dtype)

    def reference(x, scale, zero_point, *, axis, block, precision, saturate):
        dtype = zero_point.dtype.name
        scale = _spread(scale, x, axis, block).astype(np.float32)
        quotient = (x.astype(np.float32) / scale).astype(numpy_dtype(precision))
        zero = _spread(zero_point, x, axis, block).astype(np.float32)
        if dtype in FORMATS:
            level = quotient.astype(np.float32)
            level = np.where((zero == 0) & (not _adds_zero(dtype)), level, level + zero)
            return round_to(level, dtype, saturate, "nearest")
        low, high = _limits(dtype)
        level = np.clip(np.rint(quotient.astype(np.float64)) + zero, low, high)
        return np.where(np.isnan(level), low, level)

    def element(k, i, x, scale, zero_point, *, axis, block, precision, saturate):
        dtype = zero_point.type.dtype
        by = k.cast(_at(k, scale, i, axis, block), "float32")
        zero = k.cast(k.widen(_at(k, zero_point, i, axis, block), dtype), "float32")
        quotient = k.cast(k.div(k.cast(x[i], "float32"), by), precision)
        if dtype in FORMATS:
            level = quotient + zero
            if not _adds_zero(dtype):
                level = k.select(k.eq(zero, k.const(0, "float32")), quotient, level)
            return k.narrow(level, dtype, saturate, "nearest")
        level = _saturated(k, quotient, zero, dtype)
        return k.cast(k.round_small(level) + k.cast(zero, "int32"), dtype)

    samples = (
        sample("float32[3,5]", np.float32(0.02), np.array(128, np.uint8)),
        sample(
            "float32[2,3,4]", np.array([0.5, 0.01, 0.1], np.float32), np.array([0, 5, -7], np.int8)
        ),
        sample("float32[9]", np.array([0.001], np.float32), np.array([-3], np.int16), axis=0),
        sample(
            "float32[2,5]", np.full((2, 3), 0.125, np.float32), np.zeros((2, 3), np.uint8), block=2
        ),
        sample(np.array([0.5, 1.5, 2.5, -0.5], np.float32), np.float32(1), np.int8(0)),
        sample(
            np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.5, 254.5, -3.5], np.float32),
            np.float32(1), np.uint8(3),
        ),
        sample("float32[3,5]", np.float32(0.2), np.array(3, ml_dtypes.uint4), low=-3, high=3),
        sample("float16[2,7]", np.float16(0.3), np.array(0, ml_dtypes.int2), precision="float16"),
        sample(
            "float32[2,5]", np.full((2, 3), 0.03, np.float32), np.zeros((2, 3), ml_dtypes.int4),
            block=2,
        ),
        sample("float32[40]", np.float32(0.003), np.array(0, ml_dtypes.float8_e4m3fn)),
        sample("float32[40]", np.float32(2e-5), np.array(0, ml_dtypes.float8_e5m2), saturate=False),
        sample("float16[3,9]", np.float16(0.2), np.array(0.5, ml_dtypes.float4_e2m1fn)),
    )  # fmt: skip


@op("ai.dequantize_linear", traits=("elementwise",))
class DequantizeLinear:
    """(x - zero_point) · scale, in scale's dtype.    (Jacob et al. 2018, eq. 1)"""

    x: Tensor
    scale: Tensor
    zero_point: Tensor | None
    axis: int = 1
    block: int = 0

    def shape(x, scale, zero_point, *, axis, block):
        need_dtype(x, (*QUANTISED, "int32"), "x")
        need_float(scale, "scale")
        if zero_point is not None:
            need_dtype(zero_point, (x.dtype,), "zero_point")
        _check_scale(x, scale, zero_point, axis, block)
        return x.with_(dtype=scale.dtype)

    def reference(x, scale, zero_point, *, axis, block):
        level = x.astype(np.float64)
        if zero_point is not None:
            level = level - _spread(zero_point, x, axis, block).astype(np.float64)
        return level * _spread(scale, x, axis, block)

    def element(k, i, x, scale, zero_point, *, axis, block):
        dtype = x.type.dtype
        exact = "float32" if dtype in FORMATS else "int32"
        level = k.cast(k.widen(x[i], dtype), exact)
        if zero_point is not None:
            level = level - k.cast(k.widen(_at(k, zero_point, i, axis, block), dtype), exact)
        return k.cast(level, scale.dtype) * _at(k, scale, i, axis, block)

    samples = (
        sample("uint8[3,5]", np.float32(0.02), np.array(128, np.uint8), low=0, high=255),
        sample("int8[2,3,4]", "float32[3]", "int8[3]", low=-99, high=99),
        sample("int32[3,2]", np.array([0.001], np.float32), low=-9999, high=9999),
        sample("int8[2,5]", "float32[2,3]", "int8[2,3]", block=2, low=-99, high=99),
        sample("uint16[4]", np.float16(0.01), low=0, high=999),
        sample("int4[3,5]", np.float32(0.1), np.array(-3, ml_dtypes.int4), low=-8, high=7),
        sample("uint2[2,5]", "float32[2,3]", "uint2[2,3]", block=2, low=0, high=3),
        sample(np.arange(-8, 8).astype(ml_dtypes.float4_e2m1fn), np.float32(0.1)),
        sample("float8_e5m2[2,9]", np.float16(0.1), np.array(0, ml_dtypes.float8_e5m2)),
        sample("float6_e3m2fn[3,9]", np.float32(0.3), np.array(1.5, ml_dtypes.float6_e3m2fn)),
    )


@op("ai.fake_quantize", traits=("elementwise",))
class FakeQuantize:
    """ai.quantize_linear and then ai.dequantize_linear by `y_scale`, as floats; all but x are
    single numbers.

    round(saturated(x / scale)) · y_scale; the zero point, of bytes, only moves the limits. Levels
    are integers: what rounds to -0 is 0.
    """

    x: Tensor
    scale: Tensor
    zero_point: Tensor
    y_scale: Tensor

    def shape(x, scale, zero_point, y_scale):
        need_dtype(zero_point, ("int8", "uint8"), "zero_point")
        for t, what in ((x, "x"), (scale, "scale"), (y_scale, "y_scale")):
            need_dtype(t, ("float32",), what)
        for t in (scale, zero_point, y_scale):
            need(_is_scalar(t), f"not one number: {spell(t.shape)}")
        return x

    def reference(x, scale, zero_point, y_scale):
        zero = float(zero_point.reshape(()))
        low, high = (v - zero for v in _limits(zero_point.dtype.name))
        level = np.rint(x.astype(np.float32) / scale.reshape(()).astype(np.float32)) + 0.0
        return np.where(np.isnan(level), low, np.clip(level, low, high)) * y_scale.reshape(())

    def element(k, i, x, scale, zero_point, y_scale):
        zero = k.cast(_at(k, zero_point, i, 0, 0), "float32")
        quotient = k.div(x[i], _at(k, scale, i, 0, 0))
        level = _saturated(k, quotient, zero, zero_point.type.dtype)
        return k.cast(k.round_small(level), "float32") * _at(k, y_scale, i, 0, 0)

    samples = (
        sample("float32[3,5]", np.float32(0.02), np.array(128, np.uint8), np.float32(0.02)),
        sample(
            np.array([np.nan, np.inf, -np.inf, 0.5, 1.5, -300], np.float32),
            np.array([0.5], np.float32), np.array([-7], np.int8), np.float32(3),
        ),
    )  # fmt: skip
