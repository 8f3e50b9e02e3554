"""Elementwise arithmetic: one output element from the elements at the same (broadcast) index."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import broadcast
from cuvilc.dialect.op import ShapeError, Tensor, op, sample
from cuvilc.dialect.types import TensorType


def broadcast_type(*operands: TensorType, dtype: str | None = None) -> TensorType:
    """The type of an elementwise result: NumPy broadcasting, one dtype for all operands, their layout."""
    first = operands[0]
    shape = first.shape
    for other in operands[1:]:
        try:
            shape = broadcast(shape, other.shape)
        except ValueError as error:
            raise ShapeError(f"shapes of {first} and {other} do not broadcast: {error}") from None
        if dtype is None and other.dtype != first.dtype:
            raise ShapeError(f"dtypes {first.dtype} and {other.dtype} differ")
    layouts = {t.layout for t in operands if t.layout}
    if len(layouts) > 1:
        raise ShapeError(f"layouts {sorted(layouts)} differ")
    return TensorType(shape, dtype or first.dtype, layouts.pop() if layouts else "")


@op("ai.elemwise_add", traits=("elementwise",))
class ElemwiseAdd:
    """lhs + rhs.

    `broadcast = false` demands equal shapes. `rounding`: "rtne" to nearest, ties to even (IEEE 754), or
    "rtz" toward zero; every target obeys it.
    """

    lhs: Tensor
    rhs: Tensor
    broadcast: bool = True
    rounding: str = "rtne"

    def shape(lhs, rhs, *, broadcast, rounding):
        if rounding not in ("rtne", "rtz"):
            raise ShapeError(f"rounding must be 'rtne' or 'rtz', not {rounding!r}")
        if not broadcast and lhs.shape != rhs.shape:
            raise ShapeError(f"broadcast = false, but {lhs} and {rhs} differ in shape")
        return broadcast_type(lhs, rhs)

    def reference(lhs, rhs, *, broadcast, rounding):
        return lhs + rhs

    def element(k, i, lhs, rhs, *, broadcast, rounding):
        return k.add(lhs.at(i), rhs.at(i), rounding)

    samples = (sample("float32[2,3]", "float32[3]"), sample("int32[4]", "int32[4]"), sample("float32[3,4]", "float32[3,4]", rounding="rtz"))


@op("ai.relu", traits=("elementwise",))
class Relu:
    """max(x, 0); NaN stays NaN."""

    x: Tensor

    def shape(x):
        return x

    def reference(x):
        return np.maximum(x, 0)

    def element(k, i, x):
        return k.max(x[i], k.const(0, x.dtype))

    samples = (sample("float32[5,7]"), sample("float32[0,3]"))
