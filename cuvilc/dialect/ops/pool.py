"""Pools over windows of [N, C, spatial...], and normalisation across channels; layout stays."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect.dims import less
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import all_of, flatten, guarded
from cuvilc.dialect.ops._rules import (
    need,
    need_float,
    need_length,
    need_number,
    need_positive,
    need_true,
    spell,
)
from cuvilc.dialect.ops._windows import (
    cells_inside,
    need_spatial,
    need_windows,
    window_counts,
    window_index,
    windows,
)
from cuvilc.dialect.ops.reduce import least
from cuvilc.dialect.types import TensorType, numpy_dtype


def _pooled_type(
    x: TensorType, kernel, strides, pads_begin, pads_end, dilations, ceil_mode
) -> TensorType:
    spatial = need_spatial(x)
    need_length(kernel, spatial, "kernel")
    need_positive(kernel, "kernel")
    need_windows(spatial, strides, pads_begin, pads_end, dilations)
    counts = window_counts(x.shape[2:], kernel, strides, pads_begin, pads_end, dilations, ceil_mode)
    return x.with_(shape=(*x.shape[:2], *counts))


def _counts(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode):
    return window_counts(x.shape[2:], kernel, strides, pads_begin, pads_end, dilations, ceil_mode)


def _cell(k, i, r, x, strides, pads_begin, pads_end, dilations, ceil_mode, fill):
    """The element of x at place r of the window at output index i, `fill` beyond the edge."""
    where, conditions = window_index(
        k, i[2:], r, x.shape[2:], strides, pads_begin, pads_end, dilations, ceil_mode
    )
    return guarded(k, conditions, lambda: x[(*i[:2], *where)], k.const(fill, x.dtype))


_PLAIN: dict[str, Any] = {
    "strides": (1, 1),
    "pads_begin": (0, 0),
    "pads_end": (0, 0),
    "dilations": (1, 1),
}
_SAMPLES = (
    sample(
        "float32[1,3,7,8]", kernel=(3, 2), strides=(2, 2), pads_begin=(1, 0), pads_end=(1, 1),
        dilations=(1, 1),
    ),
    sample("float16[2,1,5,5]", kernel=(2, 2), **_PLAIN),
    sample(
        "float32[1,2,10]", kernel=(3,), strides=(3,), pads_begin=(1,), pads_end=(1,),
        dilations=(1,), ceil_mode=True,
    ),
    sample(
        "float32[1,1,4,5,4]", kernel=(2, 1, 2), strides=(1, 2, 1), pads_begin=(0, 0, 1),
        pads_end=(0, 0, 0), dilations=(1, 1, 2),
    ),
    sample("float32[0,2,3,3]", kernel=(2, 2), **_PLAIN),
)  # fmt: skip


@op("ai.max_pool")
class MaxPool:
    """The greatest element of each window; cells beyond the edge never win, NaN always does."""

    x: Tensor
    kernel: tuple
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple
    ceil_mode: bool = False

    def shape(x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode):
        need_number(x)
        return _pooled_type(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode)

    def reference(x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode):
        counts = _counts(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode)
        y = np.full((*x.shape[:2], *counts), least(x.dtype), x.dtype)
        fill = least(x.dtype)
        for _, cells in windows(x, counts, kernel, strides, pads_begin, dilations, fill):
            y = np.maximum(y, cells)
        return y

    def domain(k, x, *, kernel, **attrs):
        return kernel

    def term(k, i, r, x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode):
        fill = least(numpy_dtype(x.dtype))
        return _cell(k, i, r, x, strides, pads_begin, pads_end, dilations, ceil_mode, fill)

    combine = "max"
    samples = (
        *_SAMPLES,
        sample("int8[1,2,4,4]", kernel=(2, 2), low=-128, high=-1, **_PLAIN),
    )


@op("ai.max_pool_index", traits=("injective", "costly", "rereads"))
class MaxPoolIndex:
    """Where in x the greatest element of each window lies: of equal ones the first; int64.

    x [N, C, n..]; the number counts x's elements in row-major order, by_columns with the first
    spatial axis fastest within each image. NaN is greater than all numbers.
    """

    x: Tensor
    kernel: tuple
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple
    ceil_mode: bool = False
    by_columns: bool = False

    def shape(x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode, by_columns):
        need_number(x)
        pooled = _pooled_type(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode)
        for n in x.shape[2:]:
            need_true(less(0, n), f"no element of {spell(x.shape)} is the greatest")
        return TensorType(pooled.shape, "int64")

    def reference(x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode, by_columns):
        counts = _counts(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode)
        places = np.arange(x.size).reshape(x.shape)
        if by_columns:
            turned = (*x.shape[:2], *x.shape[:1:-1])
            places = places.reshape(turned).transpose(0, 1, *range(x.ndim - 1, 1, -1))
        least_of = least(x.dtype)
        cells = windows(x, counts, kernel, strides, pads_begin, dilations, least_of)
        numbers = windows(places, counts, kernel, strides, pads_begin, dilations, -1)
        best = np.full((*x.shape[:2], *counts), least_of, x.dtype)
        y = np.full(best.shape, -1)
        for (_, value), (_, number) in zip(cells, numbers, strict=True):
            nan = (value != value) & (best == best)
            better = (number >= 0) & ((y < 0) | (value > best) | nan)
            best, y = np.where(better, value, best), np.where(better, number, y)
        return y

    def element(
        k, i, x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode, by_columns
    ):
        fill, nothing = k.const(least(numpy_dtype(x.dtype)), x.dtype), k.const(-1, "int64")
        order = list(range(2, len(x.shape)))
        order = [0, 1, *(reversed(order) if by_columns else order)]

        def step(r, best, number):
            where, conditions = window_index(
                k, i[2:], r, x.shape[2:], strides, pads_begin, pads_end, dilations, ceil_mode
            )
            index = (*i[:2], *where)
            inside = all_of(k, conditions)
            if inside is None:
                value = k.let(x[index])
            else:  # no branch, which would be one for each lane of a vector
                near = (k.clamp_index(j, n) for j, n in zip(where, x.shape[2:], strict=True))
                value = k.let(k.select(inside, x[(*i[:2], *near)], fill))
            better = k.either(k.gt(value, best), k.eq(number, nothing))
            if x.dtype.startswith("float"):
                better = k.either(better, k.both(k.isnan(value), k.invert(k.isnan(best))))
            better = better if inside is None else k.both(better, inside)
            better = k.let(better)
            here = flatten([index[a] for a in order], [x.shape[a] for a in order])
            here = k.value_of_index(here, "int64")
            return k.select(better, value, best), k.select(better, here, number)

        return k.fold(kernel, (fill, nothing), step)[1]

    samples = (
        *_SAMPLES,
        sample("float32[1,2,4,5]", kernel=(2, 3), by_columns=True, **_PLAIN),
        sample(
            np.array([[[1, np.nan, 3, 2, 2, -np.inf, -np.inf]]], np.float32), kernel=(2,),
            strides=(1,), pads_begin=(1,), pads_end=(1,), dilations=(1,),
        ),
        sample("int8[1,1,4,4]", kernel=(2, 2), low=-2, high=1, **_PLAIN),
    )  # fmt: skip


@op("ai.avg_pool")
class AvgPool:
    """The mean of each window, over its cells inside x, or inside the padded x if so asked."""

    x: Tensor
    kernel: tuple
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple
    ceil_mode: bool = False
    count_include_pad: bool = False

    def shape(x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode, count_include_pad):
        need_float(x)
        return _pooled_type(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode)

    def reference(
        x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode, count_include_pad
    ):
        counts = _counts(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode)
        ones = np.ones((1, 1, *x.shape[2:]))
        begin = pads_begin
        if count_include_pad:
            pads = [(0, 0), (0, 0), *zip(pads_begin, pads_end, strict=True)]
            ones, begin = np.pad(ones, pads, constant_values=1), (0,) * len(kernel)
        cells = windows(x, counts, kernel, strides, pads_begin, dilations, 0)
        inside = windows(ones, counts, kernel, strides, begin, dilations, 0)
        return sum(c for _, c in cells) / sum(c for _, c in inside)

    def domain(k, x, *, kernel, **attrs):
        return kernel

    def term(
        k, i, r, x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode,
        count_include_pad,
    ):  # fmt: skip
        return _cell(k, i, r, x, strides, pads_begin, pads_end, dilations, ceil_mode, 0)

    def finish(
        k, i, total, x, *, kernel, strides, pads_begin, pads_end, dilations, ceil_mode,
        count_include_pad,
    ):  # fmt: skip
        count = 1
        axes = zip(
            i[2:], x.shape[2:], kernel, strides, pads_begin, pads_end, dilations, strict=True
        )
        for j, n, size, s, p, q, d in axes:
            if (p, q) == (0, 0) or count_include_pad:
                p, q, n = 0, 0, n + p + q  # every cell up to the far edge counts
            if (p, q) == (0, 0) and not ceil_mode:
                count = count * size
            else:
                count = count * cells_inside(k, j * s, size, d, p, n + p)
        return k.div(total, k.value_of_index(count, x.dtype))

    combine = "sum"
    samples = (
        *_SAMPLES,
        sample(
            "float32[1,2,7,9]", kernel=(3, 4), strides=(2, 3), pads_begin=(1, 2),
            pads_end=(1, 0), dilations=(1, 1), ceil_mode=True, count_include_pad=True,
        ),
        sample(
            "float32[1,2,7,9]", kernel=(2, 3), strides=(2, 2), pads_begin=(1, 2),
            pads_end=(1, 1), dilations=(2, 1), count_include_pad=False,
        ),
    )  # fmt: skip


@op("ai.lp_pool")
class LpPool:
    """(Σ |x|^p)^(1/p) over each window; cells beyond the edge are 0."""

    x: Tensor
    p: int
    kernel: tuple
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple
    ceil_mode: bool = False

    def shape(x, *, p, kernel, strides, pads_begin, pads_end, dilations, ceil_mode):
        need_float(x)
        need_positive((p,), "p")
        return _pooled_type(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode)

    def reference(x, *, p, kernel, strides, pads_begin, pads_end, dilations, ceil_mode):
        counts = _counts(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode)
        cells = windows(x, counts, kernel, strides, pads_begin, dilations, 0)
        return sum(np.abs(c) ** p for _, c in cells) ** (1 / p)

    def domain(k, x, *, kernel, **attrs):
        return kernel

    def term(k, i, r, x, *, p, kernel, strides, pads_begin, pads_end, dilations, ceil_mode):
        value = _cell(k, i, r, x, strides, pads_begin, pads_end, dilations, ceil_mode, 0)
        size = power = k.abs(value)
        for _ in range(p - 1):
            power = power * size
        return power

    def finish(k, i, total, x, *, p, **attrs):
        if p <= 2:
            return total if p == 1 else k.sqrt(total)
        return k.pow(total, k.const(1 / p, x.dtype))

    combine = "sum"
    samples = (
        sample("float32[1,2,5,6]", p=2, kernel=(2, 3), **_PLAIN),
        sample(
            "float32[1,2,7]", p=1, kernel=(3,), strides=(2,), pads_begin=(1,), pads_end=(1,),
            dilations=(1,),
        ),
        sample("float32[1,1,4,4]", p=3, kernel=(2, 2), **_PLAIN),
    )  # fmt: skip


@op("ai.lrn")
class LRN:
    """x / (bias + α/size · Σ x²)^β, the sum over `size` channels.    (Krizhevsky et al. 2012, §3.3)

    The channels summed are c - ⌊(size - 1)/2⌋ … c + ⌈(size - 1)/2⌉, those that exist.
    """

    x: Tensor
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def shape(x, *, size, alpha, beta, bias):
        need_float(x)
        need_positive((size,), "size")
        need(x.rank >= 2, "x must be [N, C, ...]")
        return x

    def reference(x, *, size, alpha, beta, bias):
        total = np.zeros_like(x)
        channels = x.shape[1]
        for c in range(channels):
            first, last = max(0, c - (size - 1) // 2), min(channels, c + size // 2 + 1)
            total[:, c] = np.sum(x[:, first:last] ** 2, axis=1)
        return x / (bias + alpha / size * total) ** beta

    def domain(k, x, *, size, **attrs):
        return (size,)

    def term(k, i, r, x, *, size, alpha, beta, bias):
        batch, c, *rest = i
        back = (size - 1) // 2
        inside = k.both(k.ge(c + r[0], back), k.lt(c + r[0] - back, x.shape[1]))
        where = (batch, c + r[0] - back, *rest)
        value = k.guard(inside, lambda: x[where], k.const(0, x.dtype))
        return value * value

    def finish(k, i, total, x, *, size, alpha, beta, bias):
        base = k.const(bias, x.dtype) + k.const(alpha / size, x.dtype) * total
        return k.div(x[i], k.pow(base, k.const(beta, x.dtype)))

    combine = "sum"
    samples = (
        sample("float32[2,7,3,3]", size=3),
        sample("float32[5,5,2]", size=4, alpha=0.5, beta=0.5, bias=2.0),
        sample("float32[1,2,3,1]", size=5, alpha=0.1),
    )
