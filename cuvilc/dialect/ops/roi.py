"""Pools over regions of interest: boxes that the model computes."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from cuvilc.dialect.dims import equal, less
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import wrapped
from cuvilc.dialect.ops._rules import (
    need,
    need_float,
    need_integer,
    need_length,
    need_positive,
    need_same_dtype,
    need_shape,
    need_true,
    spell,
)
from cuvilc.dialect.ops.sampling import TRAITS
from cuvilc.dialect.types import TensorType


@op("ai.roi_align", traits=TRAITS)
class RoiAlign:
    """Regions of x averaged, or their maxima, over `output` bins.    (He et al. 2017, §3)

    x [N, C, h, w], rois [R, 4] as x₁ y₁ x₂ y₂, batch [R] the image of each → [R, C, *output].
    Coordinates are times `scale`, less ½ with half_pixel; without it a region is 1 long at least.
    A bin has `ratio`² samples, ⌈bin size⌉ an axis with ratio 0, each linearly interpolated; farther
    than 1 outside x it is 0. maximum: the greatest of all the samples' weighed elements, as
    onnxruntime has it; no sample gives 0.
    """

    x: Tensor
    rois: Tensor
    batch: Tensor
    output: tuple
    scale: float = 1.0
    ratio: int = 0
    maximum: bool = False
    half_pixel: bool = True

    def shape(x, rois, batch, *, output, scale, ratio, maximum, half_pixel):
        need(x.rank == 4, f"x must be [N, C, h, w], not {spell(x.shape)}")
        need_float(x)
        need_same_dtype(x, rois)
        need_integer(batch, "batch")
        need(batch.rank == 1, f"batch must have 1 dimension, not {spell(batch.shape)}")
        need_shape(rois, (batch.shape[0], 4), "rois")
        need_length(output, 2, "output")
        need_positive(output, "output")
        need(ratio >= 0, f"ratio must not be negative: {ratio}")
        for n in x.shape[2:]:
            need_true(less(0, n), f"x {spell(x.shape)} is empty: nothing to sample")
        return TensorType((batch.shape[0], x.shape[1], *output), x.dtype)

    def reference(x, rois, batch, *, output, scale, ratio, maximum, half_pixel):
        y = np.zeros((len(rois), x.shape[1], *output))
        for n, (roi, image) in enumerate(zip(rois, batch, strict=True)):
            corners = roi * scale - (0.5 if half_pixel else 0.0)
            start = corners[1::-1]
            extent = corners[3:1:-1] - start
            extent = extent if half_pixel else np.maximum(extent, 1.0)
            bins = extent / output
            counts = [ratio or max(int(np.ceil(b)), 0) for b in bins]
            for place in np.ndindex(*output):
                terms = []
                for at in np.ndindex(*counts):
                    c = start + (place + (np.array(at) + 0.5) / counts) * bins
                    terms.append(_clipped_taps(x[image], c))
                if terms and maximum:
                    y[n, :, *place] = np.max(terms, (0, 1))
                elif terms:
                    y[n, :, *place] = np.sum(terms, (0, 1)) / len(terms)
        return y

    def element(k, i, x, rois, batch, *, output, scale, ratio, maximum, half_pixel):
        region, channel, *place = i
        real = lambda v: k.const(v, x.dtype)  # noqa: E731
        box = Box(k, region, x, rois, batch, output, scale, ratio, half_pixel)

        def step(at, total):
            axes = box.taps(place, at)
            terms = []
            for (p, u, here), (q, v, there) in product(*axes):
                term = u * v * x[box.image, channel, p, q]
                terms.append(k.let(k.select(k.both(here, there), term, real(0.0))))
            if not maximum:
                return (total + (terms[0] + terms[1] + terms[2] + terms[3]),)
            most = k.max(k.max(terms[0], terms[1]), k.max(terms[2], terms[3]))
            first = k.both(k.eq(at[0], 0), k.eq(at[1], 0))
            return (k.select(first, most, k.max(total, most)),)

        (total,) = k.fold(box.counts, (real(0.0),), step)
        return total if maximum else k.div(total, box.samples())

    samples = (
        sample(
            "float32[2,2,6,7]",
            np.array([[0, 0, 4, 3], [1.5, 2, 9, 4], [-3, -2, 1, 1.25]], np.float32),
            np.array([0, 1, 1]), output=(2, 3), ratio=2,
        ),
        sample(
            "float32[1,2,6,7]", np.array([[0, 0, 13, 9], [3, 3, 3, 3]], np.float32),
            np.array([0, 0]), output=(2, 2), scale=0.5, half_pixel=False,
        ),
        sample(
            "float32[1,1,5,5]", np.array([[0, 1, 4, 4.5], [4, 4, 1, 1]], np.float32),
            np.array([0, 0], np.int32), output=(1, 2), maximum=True,
        ),
    )  # fmt: skip


class Box:
    """A region of roi_align in the notation: `image`, `counts` of samples along a bin's axes."""

    def __init__(
        self, k: Any, region: Any, x: Any, rois: Any, batch: Any, output: Any, scale: float,
        ratio: int, half_pixel: bool,
    ) -> None:  # fmt: skip
        self.k, self.sizes, self.dtype = k, x.shape[2:], x.dtype
        self.image = k.let(wrapped(k, batch[region], x.shape[0]))
        self._starts, self._bins = [], []
        self.counts: list[Any] = []
        for axis in (1, 0):
            shift = self._real(0.5 if half_pixel else 0.0)
            first, last = (rois[region, axis + far] * self._real(scale) - shift for far in (0, 2))
            extent = last - first if half_pixel else k.max(last - first, self._real(1.0))
            self._bins.append(k.let(k.div(extent, self._real(float(output[1 - axis])))))
            self._starts.append(k.let(first))
            self.counts.append(ratio or k.let(k.index(k.ceil(self._bins[-1]))))

    def taps(self, place: Any, at: Any) -> list[list[tuple[Any, Any, Any]]]:
        """Of each axis what sample `at` of the bin `place` lies between, as _clipped has it."""
        k, axes = self.k, []
        for axis, n in enumerate(self.sizes):
            part = k.value_of_index(at[axis], self.dtype) + self._real(0.5)
            part = k.div(part, k.value_of_index(self.counts[axis], self.dtype))
            along = k.value_of_index(place[axis], self.dtype) + part
            c = k.let(self._starts[axis] + along * self._bins[axis])
            axes.append(_clipped(k, c, n, self.dtype))
        return axes

    def samples(self) -> Any:
        """How many a bin has, 1 for none: what their sum is divided by."""
        k = self.k
        return k.max(k.value_of_index(self.counts[0] * self.counts[1], self.dtype), self._real(1.0))

    def _real(self, value: float) -> Any:
        return self.k.const(value, self.dtype)


def _clipped_taps(image: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
    """The four weighed elements [C] of an image [C, h, w] that the place c lies between."""
    sizes = image.shape[1:]
    if any(not -1.0 <= v <= n for v, n in zip(c, sizes, strict=True)):
        return [np.zeros(len(image))] * 4
    axes = []
    for v, n in zip(c, sizes, strict=True):
        v = min(max(v, 0.0), n - 1.0)
        low = int(v)
        axes.append([(low, 1 - (v - low)), (min(low + 1, n - 1), v - low)])
    return [image[:, p, q] * u * v for (p, u), (q, v) in product(*axes)]


def _clipped(k: Any, c: Any, n: Any, dtype: str) -> list[tuple[Any, Any, Any]]:
    """(index, weight, condition) of the two elements that place c lies between, as above."""
    zero, one, size = k.const(0.0, dtype), k.const(1.0, dtype), k.value_of_index(n, dtype)
    near = k.both(k.ge(c, k.const(-1.0, dtype)), k.le(c, size))
    c = k.let(k.min(k.max(c, zero), size - one))
    low = k.let(k.floor(c))
    place = k.let(k.index(low))
    part = k.let(c - low)
    return [
        (k.clamp_index(place, n), one - part, near),
        (k.clamp_index(place + 1, n), part, near),
    ]


@op("ai.max_roi_pool", traits=TRAITS)
class MaxRoiPool:
    """The maxima of regions of x over `output` bins.    (Girshick 2015, §2.1)

    x [N, C, h, w], rois [R, 5] as image x₁ y₁ x₂ y₂ → [R, C, *output]. Corners times `scale` are
    rounded (half away from zero); bins overlap where the sizes do not divide; an empty one gives 0.
    """

    x: Tensor
    rois: Tensor
    output: tuple
    scale: float = 1.0

    def shape(x, rois, *, output, scale):
        need(x.rank == 4, f"x must be [N, C, h, w], not {spell(x.shape)}")
        need_float(x)
        need_same_dtype(x, rois)
        need(rois.rank == 2, f"rois must have 2 dimensions, not {spell(rois.shape)}")
        need_true(equal(rois.shape[1], 5), f"rois must have 5 columns: {spell(rois.shape)}")
        need_length(output, 2, "output")
        need_positive(output, "output")
        return TensorType((rois.shape[0], x.shape[1], *output), x.dtype)

    def reference(x, rois, *, output, scale):
        y = np.zeros((len(rois), x.shape[1], *output))
        for n, (image, *corners) in enumerate(rois):
            corners = np.floor(np.abs(corners) * scale + 0.5) * np.sign(corners)
            start, extent = corners[1::-1], np.maximum(corners[3:1:-1] - corners[1::-1] + 1, 1)
            for place in np.ndindex(*output):
                cut = []
                for axis, size in enumerate(x.shape[2:]):
                    step = extent[axis] / output[axis]
                    low = np.floor(place[axis] * step) + start[axis]
                    high = np.ceil((place[axis] + 1) * step) + start[axis]
                    cut.append(slice(*(int(min(max(v, 0), size)) for v in (low, high))))
                part = x[int(image), :, *cut]
                y[n, :, *place] = np.max(part, (1, 2)) if part.size else 0
        return y

    def element(k, i, x, rois, *, output, scale):
        region, channel, *place = i
        dtype = x.dtype
        real = lambda v: k.const(v, dtype)  # noqa: E731
        image = wrapped(k, rois[region, 0], x.shape[0])
        lows, counts = [], []
        for axis, n in enumerate(x.shape[2:]):
            first, last = (
                _rounded(k, rois[region, 2 - axis + far] * real(scale), dtype) for far in (0, 2)
            )
            first = k.let(first)
            step = k.div(k.max(last - first + real(1.0), real(1.0)), real(float(output[axis])))
            at, size = k.value_of_index(place[axis], dtype), k.value_of_index(n, dtype)
            low = k.floor(at * step) + first
            high = k.ceil((at + real(1.0)) * step) + first
            low, high = (k.let(k.index(k.min(k.max(v, real(0.0)), size))) for v in (low, high))
            lows.append(low)
            counts.append(high - low)

        def step_(at, most):
            where = (k.clamp_index(b + j, n) for b, j, n in zip(lows, at, x.shape[2:], strict=True))
            value = x[(image, channel, *where)]
            first = k.both(k.eq(at[0], 0), k.eq(at[1], 0))
            return (k.select(first, value, k.max(most, value)),)

        return k.fold(counts, (real(0.0),), step_)[0]

    samples = (
        sample(
            "float32[2,2,6,7]",
            np.array([[0, 0, 0, 4, 3], [1, 2, 2, 9, 5], [1, 7, 7, 9, 9]], np.float32),
            output=(2, 3),
        ),
        sample(
            "float32[1,1,5,5]", np.array([[0, 0, 1, 7, 8.5]], np.float32), output=(3, 2), scale=0.5,
        ),
    )  # fmt: skip


def _rounded(k: Any, value: Any, dtype: str) -> Any:
    """Half away from zero, as C's round."""
    up = k.floor(k.abs(value) + k.const(0.5, dtype))
    return k.select(k.lt(value, k.const(0.0, dtype)), k.const(0.0, dtype) - up, up)
