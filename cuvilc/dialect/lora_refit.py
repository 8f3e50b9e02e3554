"""Quantised weights with adapters: scales, and zero points, fitted anew, then quantised once.

A weight is q with w = (q - zero) · scale, one scale and zero point per group: all of it, an index
of one axis, or a block of such indices. Per group the candidates are the base's own pair, pairs
that span the merged values (some of them less than all, as clipping few large values may be
better), and for the best of these the least-squares scale of its levels. The one with the least
squared error is kept, the base's where nothing is better: groups that no adapter changes keep
every bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import ml_dtypes
import numpy as np

from .lora_values import Array, Loss, Part, Sums, Target, changed_range
from .narrow import FORMATS, numpy_dtype, round_to, widened

# Of the range of the values, what a candidate's levels span.
_SPANS = (1.0, 0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6)
_FEW_BITS = 16  # levels; with more of them clipping never pays by much
_REFINEMENTS = 2
_CHUNK_ELEMENTS = 1 << 21


@dataclass(frozen=True)
class Quantised:
    """A quantised weight as `ai.dequantize_linear` takes it. zero None: 0."""

    levels: Array
    scale: Array
    zero: Array | None
    axis: int
    block: int

    @property
    def dtype(self) -> str:
        return str(self.levels.dtype.name)


def refit(weight: Quantised, out_axis: int, parts: Sequence[Part]) -> tuple[Quantised, Loss]:
    """The weight with all parts added, quantised anew in the same groups, and what that lost."""
    shape = weight.levels.shape
    target = Target(shape, out_axis, parts)
    groups = _Groups(weight)
    whole = _dequantised(weight, groups)
    target.measure(whole.reshape(target.view))
    merged = whole.copy()
    first, last = changed_range(parts)
    for p, n in target.blocks(first, last):
        target.apply(merged.reshape(target.view)[p, n], p, n)
    fitted = _fit_all(weight, groups, groups.split(merged))
    made = groups.join(*fitted)
    return made, _loss(weight, made, groups, (whole, merged), (out_axis, first, last))


def _loss(
    before: Quantised, after: Quantised, groups: _Groups, values: tuple[Array, Array],
    changed: tuple[int, int, int],
) -> Loss:  # fmt: skip
    axis, first, last = changed
    mine = (slice(None),) * axis + (slice(first, last),)
    sums, (whole, merged) = Sums(), values
    sums.add(merged[mine], _dequantised(after, groups)[mine], whole[mine])
    scale = before.scale.astype(np.float64)
    return sums.loss(sqrt(float((scale * scale).mean()) / 12))


class _Groups:
    """A weight's elements as [groups, members], in the order of its scales."""

    def __init__(self, weight: Quantised) -> None:
        self.weight = weight
        shape, axis = weight.levels.shape, weight.axis
        self.one = weight.scale.size == 1 and not weight.block
        self.size = 1 if self.one else shape[axis]
        self.block = weight.block
        # The last block may be short; what fills it up has no weight.
        self.padding = -self.size % self.block if self.block else 0

    def split(self, x: Array) -> Array:
        if self.one:
            return x.reshape(1, -1)
        if not self.block:
            return np.moveaxis(x, self.weight.axis, 0).reshape(self.size, -1)
        moved = np.moveaxis(x, self.weight.axis, -1)
        if self.padding:
            moved = np.pad(moved, [(0, 0)] * (x.ndim - 1) + [(0, self.padding)])
        return moved.reshape(-1, self.block)

    def merged(self, x: Array) -> Array:
        """Inverse of split."""
        shape, axis = self.weight.levels.shape, self.weight.axis
        if self.one:
            return x.reshape(shape)
        others = tuple(n for j, n in enumerate(shape) if j != axis)
        if not self.block:
            return np.moveaxis(x.reshape(self.size, *others), 0, axis)
        moved = x.reshape(*others, self.size + self.padding)[..., : self.size]
        return np.moveaxis(moved, -1, axis)

    def line(self, t: Array) -> Array:
        """Scales or zero points, one for each group."""
        return np.moveaxis(t, self.weight.axis, -1).reshape(-1) if self.block else t.reshape(-1)

    def unline(self, t: Array) -> Array:
        shape = self.weight.scale.shape
        if not self.block:
            return t.reshape(shape)
        axis = self.weight.axis
        others = tuple(n for j, n in enumerate(shape) if j != axis)
        return np.moveaxis(t.reshape(*others, shape[axis]), -1, axis)

    def join(self, levels: Array, scale: Array, zero: Array) -> Quantised:
        w = self.weight
        made = None
        if w.zero is not None:
            made = _stored(np.array(self.unline(zero), order="C"), w.zero.dtype.name)
        q = np.array(self.merged(levels), order="C")
        return Quantised(q, np.array(self.unline(scale), order="C"), made, w.axis, w.block)


def _dequantised(w: Quantised, groups: _Groups) -> Array:
    """w in float64."""
    scale, zero = _lines(w, groups)
    levels = groups.split(widened(w.levels).astype(np.float64))
    levels -= zero[:, None]
    levels *= scale[:, None]
    return np.ascontiguousarray(groups.merged(levels))


def _lines(w: Quantised, groups: _Groups) -> tuple[Array, Array]:
    """Scale and zero point of each group, float64."""
    scale = groups.line(w.scale).astype(np.float64)
    if w.zero is None:
        return scale, np.zeros_like(scale)
    return scale, groups.line(widened(w.zero).astype(np.float64))


def _fit_all(w: Quantised, groups: _Groups, values: Array) -> tuple[Array, Array, Array]:
    """(levels, scale, zero) of all groups; a few at a time, since candidates take memory."""
    scale, zero = _lines(w, groups)
    levels = np.empty(values.shape, w.levels.dtype)
    new_scale, new_zero = scale.astype(w.scale.dtype), zero.copy()
    # Symmetric quantisation stays so: kernels rely on it.
    low, high = _limits(w.dtype)
    fixed = w.zero is None or bool((zero == (0 if low < 0 else (high + 1) / 2)).all())
    signs = (1.0, -1.0) if (scale < 0).any() else (1.0,)
    weights = groups.split(np.ones(w.levels.shape, np.int8)) if groups.padding else None
    step = max(1, _CHUNK_ELEMENTS // max(1, values.shape[1]))
    for i in range(0, len(values), step):
        part = slice(i, i + step)
        fit = _Fit(values[part], None if weights is None else weights[part], w.dtype, w.scale.dtype)
        fit.start(scale[part], zero[part])
        for sign in signs:
            fit.span(sign, zero[part] if fixed else None)
        fit.refine()
        new_scale[part], new_zero[part] = fit.scale, fit.zero
        levels[part] = _stored(fit.levels(), w.dtype)
    return levels, new_scale, new_zero


def _stored(levels: Array, dtype: str) -> Array:
    """Levels, exact in float64, in their dtype."""
    if dtype in FORMATS:
        return levels.astype(np.float32).astype(numpy_dtype(dtype))
    return levels.astype(np.int32).astype(numpy_dtype(dtype))


class _Fit:
    """The best scale and zero point found so far of each group of `values` [groups, members]."""

    def __init__(self, values: Array, weights: Array | None, dtype: str, unit: Any) -> None:
        self.values = values
        self.weights = weights
        self.dtype = dtype
        self.unit = unit
        self.low, self.high = _limits(dtype)
        self.error = np.full(len(values), np.inf)
        self.scale = np.zeros(len(values))
        self.zero = np.zeros(len(values))

    def start(self, scale: Array, zero: Array) -> None:
        """The base's own pairs."""
        self.scale, self.zero = scale.copy(), zero.copy()
        self.error = self._error(scale, zero)

    def span(self, sign: float, zero: Array | None) -> None:
        """Pairs whose levels span the values; with the zero point given, or found too."""
        low, high = self.values.min(1, initial=0.0), self.values.max(1, initial=0.0)
        least, most = (low, high) if sign > 0 else (-high, -low)
        spans = _SPANS if self.high - self.low < _FEW_BITS else _SPANS[:3]
        for span in spans:
            if zero is None:
                scale = span * (most - least) / (self.high - self.low)
                safe = np.where(scale > 0, scale, 1)
                points = np.clip(np.rint(self.low - span * least / safe), self.low, self.high)
            else:
                points = zero
                up, down = self.high - zero, zero - self.low
                with np.errstate(divide="ignore", invalid="ignore"):
                    scale = span * np.fmax(most / up, np.where(down > 0, -least / down, 0))
            self._offer(sign * scale, points)

    def refine(self) -> None:
        """The least-squares scale of the best levels, and the levels of that scale, twice."""
        for _ in range(_REFINEMENTS):
            centred = self.levels() - self.zero[:, None]
            if self.weights is not None:
                centred *= self.weights
            power = (centred * centred).sum(1)
            dot = (centred * self.values).sum(1)
            self._offer(np.where(power > 0, dot / np.where(power > 0, power, 1), 0), self.zero)

    def levels(self) -> Array:
        return self._levels(self.scale, self.zero)

    def _levels(self, scale: Array, zero: Array) -> Array:
        safe = np.where(scale == 0, 1, scale)
        level = self.values / safe[:, None]
        if self.dtype in FORMATS:
            return round_to(level + zero[:, None], self.dtype, True, "nearest").astype(np.float64)
        return np.clip(np.rint(level) + zero[:, None], self.low, self.high)

    def _error(self, scale: Array, zero: Array) -> Array:
        off = (self._levels(scale, zero) - zero[:, None]) * scale[:, None] - self.values
        if self.weights is not None:
            off *= self.weights
        made: Array = np.einsum("ij,ij->i", off, off)
        return made

    def _offer(self, scale: Array, zero: Array) -> None:
        """Take the pairs where they are better."""
        with np.errstate(over="ignore"):
            scale = scale.astype(self.unit).astype(np.float64)  # as it will be stored
        usable = np.isfinite(scale) & (scale != 0)
        scale = np.where(usable, scale, self.scale)
        error = self._error(scale, zero)
        better = usable & (error < self.error)
        self.scale = np.where(better, scale, self.scale)
        self.zero = np.where(better, zero, self.zero)
        self.error = np.where(better, error, self.error)


def _limits(dtype: str) -> tuple[float, float]:
    """The least and the greatest level."""
    if dtype in FORMATS:
        most = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
        return -most, most
    limits = ml_dtypes.iinfo(numpy_dtype(dtype))
    return float(limits.min), float(limits.max)
