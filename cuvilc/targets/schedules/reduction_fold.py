"""Folds in vector accumulators: several independent ones, combined at the end by halving."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from cuvilc.targets.schedules.elementwise_loops import Place
from cuvilc.targets.tir import const

_INFINITE = {"max": float("-inf"), "min": float("inf")}


def identity(dtype: str, how: str) -> Any:
    """What a fold starts from. bool is int8 here."""
    if how in ("sum", "prod"):
        return const(
            float(how == "prod") if dtype.startswith("float") else int(how == "prod"), dtype
        )
    if dtype.startswith("float"):
        return const(_INFINITE[how], dtype)
    limits = np.iinfo(dtype)
    return const(int(limits.min if how == "max" else limits.max), dtype)


def combine(k: Any, how: str, a: Any, b: Any, exact: bool = True) -> Any:
    """One step. exact: max and min are NaN if either is."""
    if how == "sum":
        return a + b
    if how == "prod":
        return a * b
    if exact:
        return k.max(a, b) if how == "max" else k.min(a, b)
    a, b = k.let(a), k.let(b)
    return tirx.Select(a < b if how == "max" else a > b, b, a)


class Fold:
    """Σ, Π, max or min of values that come in vectors of `width`, `unroll` of them side by side."""

    def __init__(
        self, k: Any, how: str, dtype: str, width: int, unroll: int, exact: bool = True
    ) -> None:
        self.k, self.b = k, k.builder
        self.how, self.dtype, self.exact = how, dtype, exact
        self.width, self.unroll = width, unroll
        self.cells = self.b.local(width * unroll, dtype)
        for u in range(unroll):
            self._each(
                width, lambda lane, u=u: (self.cells, u * width + lane, identity(dtype, how))
            )

    def _each(self, width: int, store: Any) -> None:
        if width == 1:
            self.b.store(*store(0))
            return
        with self.b.loop(width, "vectorized") as lane:
            self.b.store(*store(lane))

    def add(self, place: Place, value: Any) -> None:
        """Fold one element (or a vector of them, inside a vectorised loop)."""
        at = place.unrolled * self.width + place.lane
        before = self.b.load(self.cells, at)
        self.b.store(self.cells, at, combine(self.k, self.how, before, value, self.exact))

    def total(self) -> Any:
        """The fold of everything; call once, after the loops."""
        cells, count = self.cells, self.width * self.unroll
        while count > 1:
            half = count // 2
            width = min(half, self.width)
            less = self.b.local(half, self.dtype)
            for start in range(0, half, width):

                def store(
                    lane: Any,
                    start: int = start,
                    cells: Any = cells,
                    half: int = half,
                    less: Any = less,
                ) -> Any:
                    a = self.b.load(cells, lane + start)
                    b = self.b.load(cells, lane + start + half)
                    return less, lane + start, combine(self.k, self.how, a, b, self.exact)

                self._each(width, store)
            cells, count = less, half
        return self.b.let(self.b.load(cells, 0))
