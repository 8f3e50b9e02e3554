"""Reads of images at computed, fractional places: grids, deformed windows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from cuvilc.dialect.dims import equal, less
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import all_of
from cuvilc.dialect.ops._rules import (
    need,
    need_equal,
    need_float,
    need_length,
    need_number,
    need_positive,
    need_same_dtype,
    need_shape,
    need_true,
    need_word,
    spell,
)
from cuvilc.dialect.ops._windows import need_spatial, need_windows, window_counts
from cuvilc.dialect.ops.resize import MODES, keys_weights
from cuvilc.dialect.types import TensorType

PADDINGS = ("zeros", "border", "reflection")
_CUBIC_A = -0.75
# An element takes much work, and reads elements that others read too.
TRAITS = ("injective", "costly", "rereads")


@op("ai.grid_sample", traits=TRAITS)
class GridSample:
    """x at the places that `grid` names.    (Jaderberg et al. 2015, §3.3; ONNX GridSample)

    x [N, C, n..], grid [N, m.., r] → [N, C, m..]; grid's last axis holds a coordinate per spatial
    axis, the last axis first: -1 and 1 are the outer edges of the first and last element, with
    align_corners their centres. mode: nearest (ties to even), linear, cubic (Keys' kernel, a = -¾).
    padding beyond x: zeros; border, the nearest element; reflection at the edges (at the centres
    with align_corners). Coordinates are computed in grid's dtype, float32 at least.
    """

    x: Tensor
    grid: Tensor
    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False

    def shape(x, grid, *, mode, padding, align_corners):
        spatial = need_spatial(x)
        need_float(grid, "grid")
        need(grid.rank == x.rank, f"grid {spell(grid.shape)} must have x's {x.rank} dimensions")
        need_true(equal(grid.shape[-1], spatial), f"grid must hold {spatial} coordinates a place")
        need_equal(x.shape[0], grid.shape[0], "batch sizes of x and grid")
        need_word(mode, MODES, "mode")
        need_word(padding, PADDINGS, "padding")
        if mode != "nearest":
            need_number(x)
        for n in x.shape[2:]:
            need_true(less(0, n), f"x {spell(x.shape)} is empty: nothing to sample")
        return TensorType((*x.shape[:2], *grid.shape[1:-1]), x.dtype)

    def reference(x, grid, *, mode, padding, align_corners):
        axes = []
        for axis, n in enumerate(x.shape[2:]):
            low, high = (0, n - 1) if align_corners else (-0.5, n - 0.5)
            g = grid[..., x.ndim - 3 - axis]
            c = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
            c = np.rint(c) if mode == "nearest" else c
            outside = (c < low) | (c > high)
            c = np.where(outside, _pad_array(c, n, padding, low, high), c)
            axes.append([
                (_pad_array(at, n, padding, low, high), w) for at, w in _tap_arrays(c, mode)
            ])  # fmt: skip
        return _gather_taps(x, axes, mode == "nearest")

    def element(k, i, x, grid, *, mode, padding, align_corners):
        axes = grid_taps(k, i[0], i[2:], x, grid, mode, padding, align_corners)
        return weighed(k, x, i[:2], axes, grid.dtype)

    samples = (
        sample("float32[2,3,4,5]", "float32[2,3,4,2]", low=-1.6, high=1.6),
        sample("float32[1,2,4,3]", "float32[1,2,9,2]", mode="cubic", padding="border"),
        sample(
            "float32[1,2,5,4]", "float32[1,2,7,2]", mode="cubic", padding="reflection",
            align_corners=True, low=-2.5, high=2.5,
        ),
        sample("float32[1,1,3,4,5]", "float32[1,2,3,4,3]", padding="reflection", low=-3, high=3),
        sample("float32[1,1,3,4]", "float32[1,2,5,2]", padding="border", align_corners=True),
        sample("uint8[1,2,3,4]", "float32[1,2,5,2]", mode="nearest", padding="zeros"),
        sample(
            "float16[1,1,1,4]", "float32[1,2,5,2]", padding="reflection", align_corners=True,
        ),
        sample("float64[1,2,6]", "float64[1,8,1]", mode="cubic"),
    )  # fmt: skip


def grid_taps(
    k: Any, image: Any, place: Any, x: Any, grid: Any, mode: str, padding: str, align_corners: bool
) -> list[Any]:
    """Of each spatial axis what the grid's place lies between, as _Edges.taps has it."""
    axes = []
    for axis, n in enumerate(x.shape[2:]):
        edges = _Edges(k, n, grid.dtype, padding, align_corners)
        g = grid[(image, *place, len(x.shape) - 3 - axis)]
        axes.append(edges.taps(edges.place(g, mode), mode))
    return axes


def _pad_array(c: Any, n: int, padding: str, low: float, high: float) -> Any:
    """Coordinates with what lies beyond the edges brought inside, as `padding` says."""
    if padding == "border":
        return np.clip(c, 0, n - 1)
    if padding == "zeros" or n == 1:
        return c if padding == "zeros" else np.zeros_like(c)
    span = high - low
    way = np.where(c < low, low - c, c - high)
    turns = np.trunc(way / span)
    rest = way - turns * span
    from_low = (turns % 2 == 0) == (c < low)
    return np.where((c < low) | (c > high), np.where(from_low, low + rest, high - rest), c)


def _tap_arrays(c: Any, mode: str) -> list[tuple[Any, Any]]:
    """(coordinate, weight) of the elements that a place is made of."""
    if mode == "nearest":
        return [(c, 1.0)]
    low = np.floor(c)
    if mode == "linear":
        return [(low, 1 - (c - low)), (low + 1, c - low)]
    weights = keys_weights(float, c - low, _CUBIC_A)
    return [(low + offset, w) for offset, w in zip((-1, 0, 1, 2), weights, strict=True)]


def _gather_taps(x: np.ndarray, axes: list[Any], plain: bool) -> np.ndarray:
    """Σ over all choices of a tap an axis: x there, times the weights; 0 outside."""
    total: Any = 0
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * (axes[0][0][0].ndim - 1))
    for choice in product(*axes):
        inside = np.logical_and.reduce([
            (at >= 0) & (at <= n - 1) for (at, _), n in zip(choice, x.shape[2:], strict=True)
        ])  # fmt: skip
        where = tuple(
            np.clip(np.nan_to_num(at), 0, n - 1).astype(np.int64)
            for (at, _), n in zip(choice, x.shape[2:], strict=True)
        )
        value = np.moveaxis(x[(batch, slice(None), *where)], -1, 1)
        value = np.where(inside[:, None], value, np.zeros((), x.dtype))
        if plain:
            return value
        weight: Any = 1.0
        for _, w in choice:
            weight = weight * w
        total = total + value * weight[:, None]
    return total


class _Edges:
    """One spatial axis of n elements in index notation, and what lies beyond its edges."""

    def __init__(self, k: Any, n: Any, dtype: str, padding: str, align_corners: bool) -> None:
        self.k, self.n, self.dtype, self.padding = k, n, dtype, padding
        self.align_corners = align_corners
        self.size = k.value_of_index(n, dtype)
        self.one, self.half, self.zero = (self.real(v) for v in (1.0, 0.5, 0.0))
        self.last = self.size - self.one
        self.low = self.zero if align_corners else self.real(-0.5)
        self.high = self.last if align_corners else self.size - self.half

    def real(self, value: float) -> Any:
        return self.k.const(value, self.dtype)

    def place(self, g: Any, mode: str) -> Any:
        """Where coordinate g of [-1, 1] lies among the elements, brought inside."""
        if self.align_corners:
            c = (g + self.one) * self.half * self.last
        else:
            c = ((g + self.one) * self.size - self.one) * self.half
        c = self.k.let(self.k.round_even(c) if mode == "nearest" else c)
        if self.padding == "border":
            outside = self.k.either(self.k.lt(c, self.low), self.k.gt(c, self.high))
            return self.k.select(outside, self.inside(c), c)
        return self.k.let(self.inside(c))

    def inside(self, c: Any) -> Any:
        """A coordinate beyond the edges brought inside, as the padding says."""
        k = self.k
        if self.padding == "zeros":
            return c
        if self.padding == "border":
            return k.min(k.max(c, self.zero), self.last)
        span = k.max(self.high - self.low, self.one)  # 0 only where it does not matter
        below = k.lt(c, self.low)
        way = k.let(k.select(below, self.low - c, c - self.high))
        turns = k.let(k.trunc(k.div(way, span)))
        rest = k.let(way - turns * span)
        even = k.eq(turns - k.floor(turns * self.half) * self.real(2.0), self.zero)
        up, down = self.low + rest, self.high - rest
        folded = k.select(below, k.select(even, up, down), k.select(even, down, up))
        folded = k.select(k.either(below, k.gt(c, self.high)), folded, c)
        return k.let(k.select(k.gt(self.size, self.one), folded, self.zero))

    def taps(self, c: Any, mode: str) -> list[tuple[Any, Any, Any]]:
        """(index, weight, condition of being inside) of the elements that place c is made of.

        A weight None is 1, a condition None holds.
        """
        k = self.k
        if mode == "nearest":
            return [self._tap(c, None)]
        low = k.let(k.floor(c))
        part = k.let(c - low)
        if mode == "linear":
            return [self._tap(low, self.one - part), self._tap(low + self.one, part)]
        weights = map(k.let, keys_weights(self.real, part, _CUBIC_A))
        return [
            self._tap(low + self.real(float(offset)), w)
            for offset, w in zip((-1, 0, 1, 2), weights, strict=True)
        ]

    def _tap(self, at: Any, weight: Any) -> tuple[Any, Any, Any]:
        k = self.k
        condition, at = None, k.let(at)
        if self.padding == "zeros":
            condition = k.both(k.ge(at, self.zero), k.le(at, self.last))
        else:
            at = self.inside(at)
        return k.let(k.clamp_index(k.index(at), self.n)), weight, condition


def weighed(k: Any, x: Any, lead: Any, axes: list[Any], dtype: str) -> Any:
    """Σ over all choices of a tap an axis: x[lead, taps] times the weights; 0 outside."""
    compute = "float64" if "float64" in (x.dtype, dtype) else "float32"
    total = None
    for choice in product(*axes):
        value = x[(*lead, *(at for at, _, _ in choice))]
        condition = all_of(k, [c for _, _, c in choice if c is not None])
        if condition is not None:
            value = k.select(condition, value, k.const(0, x.dtype))
        weights = [w for _, w, _ in choice if w is not None]
        if not weights:
            return value
        value = k.cast(value, compute)
        for w in weights:
            value = value * k.cast(w, compute)
        total = value if total is None else total + value
    return k.cast(total, x.dtype)


@op("ai.deform_columns", traits=TRAITS)
class DeformColumns:
    """The windows of a deformable convolution as columns.    (Dai et al. 2017, eq. 2; v2: eq. 1)

    x [N, C, n..], offset [N, G·K·r, m..], mask [N, G·K, m..] → [N, C, K, m..]: element κ of the
    window at j is x, linearly interpolated, zero outside, at j·s - p + κ·d + offset[.., g, κ, :, j]
    times mask[.., g, κ, j]; K = Π kernel places in row-major order, g the channel's group of C/G.
    """

    x: Tensor
    offset: Tensor
    mask: Tensor | None
    kernel: tuple
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple
    groups: int = 1

    def shape(x, offset, mask, *, kernel, strides, pads_begin, pads_end, dilations, groups):
        spatial = need_spatial(x)
        need_float(x)
        need_length(kernel, spatial, "kernel")
        need_positive((*kernel, groups), "kernel and groups")
        need_windows(spatial, strides, pads_begin, pads_end, dilations)
        counts = window_counts(x.shape[2:], kernel, strides, pads_begin, pads_end, dilations)
        need_true(equal(x.shape[1] % groups, 0), f"{x.shape[1]} channels in {groups} offset groups")
        places = int(np.prod(kernel))
        need_same_dtype(x, offset)
        need_shape(offset, (x.shape[0], groups * places * spatial, *counts), "offset")
        if mask is not None:
            need_same_dtype(x, mask)
            need_shape(mask, (x.shape[0], groups * places, *counts), "mask")
        return TensorType((*x.shape[:2], places, *counts), x.dtype)

    def reference(x, offset, mask, *, kernel, strides, pads_begin, pads_end, dilations, groups):
        batch, channels = x.shape[:2]
        counts, places = offset.shape[2:], list(np.ndindex(*kernel))
        offset = offset.reshape(batch, groups, len(places), len(kernel), *counts)
        columns = np.zeros((batch, groups, channels // groups, len(places), *counts))
        parts = x.reshape(batch, groups, channels // groups, *x.shape[2:])
        for g, (n, place) in product(range(groups), enumerate(places)):
            axes = []
            for axis, at in enumerate(place):
                line = [1] * len(counts)
                line[axis] = counts[axis]
                start = np.arange(counts[axis]).reshape(line) * strides[axis] - pads_begin[axis]
                c = start + at * dilations[axis] + offset[:, g, n, axis]
                axes.append(_tap_arrays(c, "linear"))
            columns[:, g, :, n] = _gather_taps(parts[:, g], axes, plain=False)
        if mask is not None:
            columns *= mask.reshape(batch, groups, 1, len(places), *counts)
        return columns.reshape(batch, channels, len(places), *counts)

    def element(k, i, x, offset, mask, *, kernel, strides, pads_begin, pads_end, dilations, groups):
        batch, channel, place, *out = i
        group = k.floordiv(channel, k.floordiv(x.shape[1], groups)) if groups > 1 else 0
        column = group * int(np.prod(kernel)) + place
        axes, rest = [], place
        for axis in reversed(range(len(kernel))):
            at, rest = k.mod(rest, kernel[axis]), k.floordiv(rest, kernel[axis])
            start = out[axis] * strides[axis] + at * dilations[axis] - pads_begin[axis]
            c = k.value_of_index(start, x.dtype)
            c = k.let(c + offset[(batch, column * len(kernel) + axis, *out)])
            axes.append(_Edges(k, x.shape[2 + axis], x.dtype, "zeros", True).taps(c, "linear"))
        value = weighed(k, x, (batch, channel), axes[::-1], x.dtype)
        return value if mask is None else value * mask[(batch, column, *out)]

    samples = (
        sample(
            "float32[1,2,4,5]", "float32[1,8,3,4]", kernel=(2, 2), strides=(1, 1),
            pads_begin=(0, 0), pads_end=(0, 0), dilations=(1, 1), low=-1.4, high=1.4,
        ),
        sample(
            "float32[2,4,5,6]", "float32[2,24,2,3]", "float32[2,12,2,3]", kernel=(3, 2),
            strides=(2, 2), pads_begin=(0, 1), pads_end=(1, 1), dilations=(1, 2), groups=2,
        ),
        sample(
            "float32[1,1,5]", "float32[1,3,5]", kernel=(3,), strides=(1,), pads_begin=(1,),
            pads_end=(1,), dilations=(1,),
        ),
    )  # fmt: skip
