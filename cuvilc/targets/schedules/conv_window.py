"""Sliding windows over [N, C, H, W]: which taps lie inside the input, and tiles of pixels along a
row.

No input is padded: taps that fall outside are left out along H by loop bounds. Along W a tile has
two loops over taps: one over those that all its pixels have, and one over the others, in which the
pixels that may lie at an edge are checked. So one tile's code serves a whole row of any width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import Any

from tvm import tirx

from cuvilc.dialect.dims import Dim, floordiv
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.microkernel import (
    balanced,
    first_of,
    greater,
    lesser,
    opaque,
    select,
)
from cuvilc.targets.tir import KernelBuilder, const

BLOCK = 16  # channels in a block of NCHW16c
# A row too short for the widest tiles is cut into tiles of about this share of the widest.
_NARROW_SHARE = 3
# Tiles at least this share of the widest are preferred if all tiles of a row can then have one
# width.
_EVEN_SHARE = 0.7


@dataclass(frozen=True)
class Axis:
    """One spatial axis: input size, window count, and the window's numbers."""

    size: Dim
    count: Dim
    kernel: int
    stride: int
    pad: int
    dilation: int
    pad_end: int = 0  # at least what windows reach beyond the end

    def taps(self, window: int) -> tuple[int, ...]:
        """Taps of a window that lie inside the input; only for a static size."""
        assert isinstance(self.size, int)
        start = window * self.stride - self.pad
        return tuple(j for j in range(self.kernel) if 0 <= start + j * self.dilation < self.size)

    @property
    def is_static(self) -> bool:
        return isinstance(self.size, int) and isinstance(self.count, int)

    @property
    def all_inside(self) -> bool:
        """Whether it is certain that every tap of every window lies inside."""
        if self.pad == 0 and self.kernel == 1 and self.is_static:
            return True
        if not self.is_static:
            return self.pad == 0 and self._ends_inside()
        return all(len(self.taps(w)) == self.kernel for w in self._edge_windows())

    def _edge_windows(self) -> tuple[int, ...]:
        assert isinstance(self.count, int)
        return (0, self.count - 1) if self.count else ()

    def _ends_inside(self) -> bool:
        fit = floordiv(self.size - self.dilation * (self.kernel - 1) - 1, self.stride) + 1
        return bool(fit == self.count)

    def tap_count(self) -> Dim:
        """Taps of all windows that lie inside; an upper bound while the size is unknown."""
        if not (isinstance(self.size, int) and isinstance(self.count, int)):
            return self.count * self.kernel
        total = 0
        for tap in range(self.kernel):
            ahead = self.pad - tap * self.dilation  # windows at or after this / stride have the tap
            first = max(-(-ahead // self.stride), 0)
            total += max(min((self.size - 1 + ahead) // self.stride + 1, self.count) - first, 0)
        return total


def axes_of(shape: Any, out: Any, kernel: Any, attrs: dict[str, Any]) -> list[Axis]:
    """The axes of a two-dimensional window; one dimension is a height of 1."""
    strides, ceil_mode = attrs["strides"], attrs.get("ceil_mode", False)
    ends = [p + (s - 1) * bool(ceil_mode) for p, s in zip(attrs["pads_end"], strides, strict=True)]
    numbers = zip(
        shape[2:], out[2:], kernel, strides, attrs["pads_begin"], attrs["dilations"], ends,
        strict=True,
    )  # fmt: skip
    axes = [Axis(*row) for row in numbers]
    return axes if len(axes) == 2 else [Axis(1, 1, 1, 1, 0, 1), *axes]


def dynamic_taps(emitter: Emitter, axis: Axis, window: Any) -> tuple[Any, Any]:
    """[first, last) tap of `window` that lies inside."""
    if axis.all_inside:
        return 0, axis.kernel
    b, k, d = emitter.builder, emitter.k, axis.dilation
    start = b.let(window * axis.stride - axis.pad)  # of the window, may be negative
    ahead = greater(d - 1 - start, 0)
    room = greater(b.scalar(axis.size) - start + (d - 1), 0)
    first = lesser(k.floordiv(ahead, d), axis.kernel)
    last = lesser(k.floordiv(room, d), axis.kernel)
    first, last = b.let(first), b.let(last)
    return first, b.let(greater(first, last))


# More taps than this that only some pixels of a tile have are not unrolled but checked.
_MOST_PARTIAL = 8
_Partial = tuple[Any, int, tuple[int, ...]]


@dataclass(frozen=True)
class Taps:
    """Which taps along W the pixels of a tile have.

    All have those in [first, last). `partial` are others, where they are known: (condition, tap,
    pixels that have it). Where not, they are [begin, first) and [last, end), and the pixels in
    `edge` must be checked.
    """

    b: KernelBuilder
    width: int
    first: Any
    last: Any
    partial: tuple[_Partial, ...] = ()
    begin: Any = 0
    end: Any = 0
    edge: frozenset[int] = frozenset()

    def over(self, nest: Callable[[Callable[[Step], None]], None]) -> None:
        """`nest(inner)` makes the loops around the taps along W and calls `inner(step)` in them."""
        nest(self._known)
        if not self.edge:
            return
        b = self.b
        others = b.let((self.first - self.begin) + greater(self.end - self.last, 0))

        def checked(step: Step) -> None:
            with b.loop(others, name="kw") as i:
                tap = self.begin + i
                gap = self.last - self.first
                step(b.let(tap + select(tap >= self.first, gap, 0)), self._all, self.edge)

        with b.when(others > 0):
            nest(checked)

    def _known(self, step: Step) -> None:
        """LLVM must not see that taps read the same input elements: it would keep them in registers
        and spill sums. In order, for the prefetcher's sake.
        """
        b, count = self.b, self.last - self.first
        middle = self.first if isinstance(self.first, int) else 0
        self._some([p for p in self.partial if p[1] < middle], step)
        if isinstance(count, int) and count == 1:
            step(self.first, self._all, frozenset())
        elif not (isinstance(count, int) and count < 1):
            last = opaque(b, self.last) if isinstance(self.last, int) else self.last
            with b.loop(last - self.first, start=self.first, name="kw") as kw:
                step(kw, self._all, frozenset())
        self._some([p for p in self.partial if p[1] >= middle], step)

    def _some(self, taps: Sequence[_Partial], step: Step) -> None:
        for condition, tap, pixels in taps:
            first_of(self.b, [(condition, partial(step, tap, pixels, frozenset()))])

    @property
    def _all(self) -> tuple[int, ...]:
        return tuple(range(self.width))


Step = Callable[[Any, tuple[int, ...], frozenset[int]], None]


def taps_of(emitter: Emitter, axis: Axis, at: Any, width: int, starts: Sequence[int] = ()) -> Taps:
    """Taps of the tile of `width` pixels at window `at`, which is one of `starts` if those are
    known.
    """
    b = emitter.builder
    if axis.all_inside or width == 1:
        return Taps(b, width, *dynamic_taps(emitter, axis, at))
    known = _partial_taps(axis, at, width, starts) if starts else None
    if known is not None:
        return Taps(b, width, *_whole_taps(b, axis, at, width, starts), known)
    first, end = dynamic_taps(emitter, axis, at)
    begin, last = dynamic_taps(emitter, axis, at + (width - 1))
    last = b.let(greater(first, last))
    left, right = -(-axis.pad // axis.stride), -(-axis.pad_end // axis.stride)
    edge = frozenset(p for p in range(width) if p < left or p >= width - right)
    return Taps(b, width, first, last, (), begin, end, edge)


def _partial_taps(
    axis: Axis, at: Any, width: int, starts: Sequence[int]
) -> tuple[_Partial, ...] | None:
    """The taps that only some pixels of tiles at `starts` have; None if they are too many."""
    if not isinstance(axis.size, int):
        return None
    found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    left, right = -(-axis.pad // axis.stride), starts[-1] + width - -(-axis.pad_end // axis.stride)
    for start in starts:
        if left <= start and start + width <= right:
            continue
        if axis.kernel > 4 * _MOST_PARTIAL:
            return None
        taps = [axis.taps(start + p) for p in range(width)]
        for tap in range(axis.kernel):
            pixels = tuple(p for p in range(width) if tap in taps[p])
            if 0 < len(pixels) < width:
                found.setdefault((tap, pixels), []).append(start)
    if len(found) > _MOST_PARTIAL:
        return None
    return tuple(
        (_one_of(at, some, len(some) == len(starts)), *key) for key, some in sorted(found.items())
    )


def _whole_taps(
    b: KernelBuilder, axis: Axis, at: Any, width: int, starts: Sequence[int]
) -> tuple[Any, Any]:
    """[first, last) tap that all pixels of a tile have, which begins at one of `starts`."""
    found: dict[tuple[int, int], list[int]] = {}
    for start in starts:
        begin, end = axis.taps(start), axis.taps(start + width - 1)
        low = begin[0] if begin else axis.kernel
        found.setdefault((low, max(end[-1] + 1 if end else 0, low)), []).append(start)
    (usual, _), *rest = sorted(found.items(), key=lambda item: -len(item[1]))
    first, last = usual
    for (low, high), some in rest:
        here = _one_of(at, some, False)
        first, last = select(here, low, first), select(here, high, last)
    return b.let(first), b.let(last)


def _one_of(at: Any, starts: list[int], always: bool) -> Any:
    """The condition that `at` is among `starts`; None if it surely is."""
    if isinstance(at, int):
        return None
    condition = tirx.EQ(at, const(starts[0]))
    for start in starts[1:]:
        condition = tirx.Or(condition, tirx.EQ(at, const(start)))
    return condition


def column(emitter: Emitter, axis: Axis, window: Any, kw: Any) -> tuple[Any, Any]:
    """(the input column of a tap or the nearest one inside, whether the tap is inside)."""
    b = emitter.builder
    at = b.let(window * axis.stride - axis.pad + kw * axis.dilation)
    near = b.let(greater(lesser(at, b.scalar(axis.size) - 1), 0))
    return near, emitter.k.eq(at, near)


def over_row(
    emitter: Emitter, axis: Axis, most: int, tile: Callable[[Any, int, Taps], None],
    alike: bool = False,
) -> None:  # fmt: skip
    """Emit `tile(first pixel, width, taps)` over a row; `alike`: make a tile's code again for every
    set of taps, where they are known.
    """
    b, k = emitter.builder, emitter.k
    if isinstance(axis.count, int):
        for width, starts in _groups(axis, most, alike):
            with b.loop(len(starts), name="w") as i:
                at = starts[0] if len(starts) == 1 else b.let(i * width + starts[0])
                tile(at, width, taps_of(emitter, axis, at, width, starts))
        return
    count = b.scalar(axis.count)

    def tiles(width: int) -> Callable[[], None]:
        def body() -> None:
            with b.loop(b.let(k.floordiv(count + (width - 1), width)), name="w") as i:
                # The last one is moved back to end with the row.
                at = i if width == 1 else b.let(lesser(i * width, count - width))
                tile(at, width, taps_of(emitter, axis, at, width))

        return body

    widths = sorted({most, -(-most // _NARROW_SHARE), 1}, reverse=True)
    first_of(b, [(count >= w if w > 1 else None, tiles(w)) for w in widths])


def tile_widths(count: int, most: int) -> list[int]:
    """Equal widths if a good one divides the row: fewer variants of code."""
    for width in range(most, int(_EVEN_SHARE * most), -1):
        if count % width == 0:
            return [width] * (count // width)
    return balanced(count, most)


def _groups(axis: Axis, most: int, alike: bool) -> list[tuple[int, list[int]]]:
    """(width, first pixels) of tiles that share code."""
    assert isinstance(axis.count, int)
    widths = tile_widths(axis.count, most)
    tiles = list(zip(accumulate(widths, initial=0), widths, strict=False))
    alike = alike and isinstance(axis.size, int) and axis.kernel <= 2 * _MOST_PARTIAL

    def kind(tile: tuple[int, int]) -> Any:
        start, width = tile
        return width, [axis.taps(start + p) for p in range(width)] if alike else ()

    return [(width, [start for start, _ in same]) for (width, _), same in groupby(tiles, kind)]
