"""Between floats and 8- or 16-bit integers: q = round(x / scale) + zero point.

scale is one number (rank 0 or [1]), one per index of `axis` ([n]), or, with block > 0, one per
`block` indices of it (x's shape with ⌈n/block⌉ there). The zero point has scale's shape.
"""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import ceildiv
from cuvilc.dialect.op import ShapeError, Tensor, op, sample
from cuvilc.dialect.ops._index import put
from cuvilc.dialect.ops._rules import (
    need,
    need_axis,
    need_dtype,
    need_equal,
    need_float,
    need_shape,
    replaced,
    spell,
)
from cuvilc.dialect.types import FLOATS, TensorType

QUANTISED = ("int8", "uint8", "int16", "uint16")


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


@op("ai.quantize_linear", traits=("elementwise",))
class QuantizeLinear:
    """round(x / scale) + zero_point, saturated to zero_point's dtype.    (Jacob et al. 2018, eq. 1)

    The quotient is a float32 and rounds half to even, which every target obeys bit by bit.
    """

    x: Tensor
    scale: Tensor
    zero_point: Tensor
    axis: int = 1
    block: int = 0

    def shape(x, scale, zero_point, *, axis, block):
        need_dtype(x, (*FLOATS, "int32"), "x")
        need_float(scale, "scale")
        need_dtype(zero_point, QUANTISED, "zero_point")
        _check_scale(x, scale, zero_point, axis, block)
        return x.with_(dtype=zero_point.dtype)

    def reference(x, scale, zero_point, *, axis, block):
        scale = _spread(scale, x, axis, block).astype(np.float32)
        zero = _spread(zero_point, x, axis, block).astype(np.float64)
        limits = np.iinfo(zero_point.dtype)
        return np.clip(np.rint(x.astype(np.float32) / scale) + zero, limits.min, limits.max)

    def element(k, i, x, scale, zero_point, *, axis, block):
        by = k.cast(_at(k, scale, i, axis, block), "float32")
        zero = k.cast(_at(k, zero_point, i, axis, block), "float32")
        limits = np.iinfo(zero_point.dtype)
        low, high = (k.const(int(v), "float32") for v in (limits.min, limits.max))
        level = k.round_even(k.div(k.cast(x[i], "float32"), by)) + zero
        return k.cast(k.min(k.max(level, low), high), zero_point.dtype)

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
    )


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
            level = level - _spread(zero_point, x, axis, block)
        return level * _spread(scale, x, axis, block)

    def element(k, i, x, scale, zero_point, *, axis, block):
        level = k.cast(x[i], "int32")
        if zero_point is not None:
            level = level - k.cast(_at(k, zero_point, i, axis, block), "int32")
        return k.cast(level, scale.dtype) * _at(k, scale, i, axis, block)

    samples = (
        sample("uint8[3,5]", np.float32(0.02), np.array(128, np.uint8), low=0, high=255),
        sample("int8[2,3,4]", "float32[3]", "int8[3]", low=-99, high=99),
        sample("int32[3,2]", np.array([0.001], np.float32), low=-9999, high=9999),
        sample("int8[2,5]", "float32[2,3]", "int8[2,3]", block=2, low=-99, high=99),
        sample("uint16[4]", np.float16(0.01), low=0, high=999),
    )
