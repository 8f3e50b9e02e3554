"""Weighed sums of neighbours along an axis, by tables that are made when a model is imported."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import less
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import put
from cuvilc.dialect.ops._rules import (
    need_axis,
    need_dtype,
    need_float,
    need_rank,
    need_shape,
    need_true,
    replaced,
    spell,
)


@op("ai.resample")
class Resample:
    """y[.., i, ..] = Σ_t weights[i, t] · x[.., start[i] + t, ..] along `axis`.

    weights [m, T] float32 or x's dtype, start [m] int64; all start[i] + t lie in x.
    """

    x: Tensor
    weights: Tensor
    start: Tensor
    axis: int

    def shape(x, weights, start, *, axis):
        need_float(x)
        need_axis(axis, x.rank)
        need_rank(weights, 2, "weights")
        need_dtype(weights, ("float32", x.dtype), "weights")
        need_dtype(start, ("int64",), "start")
        need_shape(start, weights.shape[:1], "start")
        need_true(less(0, x.shape[axis]), f"axis {axis} of {spell(x.shape)} is empty")
        return x.with_(shape=replaced(x.shape, axis, weights.shape[0]))

    def reference(x, weights, start, *, axis):
        y = 0
        line = replaced((1,) * x.ndim, axis, len(start))
        for t in range(weights.shape[1]):
            y = y + weights[:, t].reshape(line) * np.take(x, start + t, axis)
        return y

    def domain(k, x, weights, start, *, axis):
        return (weights.shape[1],)

    def term(k, i, r, x, weights, start, *, axis):
        place = k.clamp_index(k.index(start[i[axis]]) + r[0], x.shape[axis])
        return k.cast(weights[i[axis], r[0]], x.dtype) * x[put(i, axis, place)]

    combine = "sum"
    samples = (
        sample("float32[2,5,3]", "float32[4,2]", np.array([0, 1, 3, 3]), axis=1),
        sample("float16[3,6]", "float32[2,3]", np.array([3, 0]), axis=1),
        sample("float64[4]", "float64[5,1]", np.array([3, 0, 2, 2, 1]), axis=0),
    )
