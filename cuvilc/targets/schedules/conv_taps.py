"""Tiles of pixels along a row of windows, and the taps that their pixels have.

No input is padded: taps that fall outside are left out along H by loop bounds. Along W a tile has
two loops over taps: one over those that all its pixels have, and one over the others, in which the
pixels that may lie at an edge are checked. So one tile's code serves a whole row of any width.
Where the others are known and few, or one pixel of the tile more has each than the one before, each
has code of its own instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import Any

from tvm import tirx

from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.conv_window import Axis, dynamic_taps
from cuvilc.targets.schedules.microkernel import (
    balanced,
    first_of,
    greater,
    lesser,
    opaque,
    select,
)
from cuvilc.targets.tir import KernelBuilder, const

# A row too short for the widest tiles is cut into tiles of about this share of the widest.
_NARROW_SHARE = 3
# Tiles at least this share of the widest are preferred if all tiles of a row can then have one
# width.
_EVEN_SHARE = 0.7
# More taps than this that only some pixels of a tile have are not unrolled but checked.
_MOST_PARTIAL = 8
# So many of one pixel more each, on both sides of a tile, are.
_MOST_RAMPED = 32
_Partial = tuple[Any, int, tuple[int, ...]]


@dataclass(frozen=True)
class Taps:
    """Which taps along W the pixels of a tile have.

    All have those in [first, last). `before` and `after` are others, where they are known:
    (condition, tap, pixels that have it). Where not, they are [begin, first) and [last, end), and
    the pixels in `edge` must be checked.
    """

    b: KernelBuilder
    width: int
    first: Any
    last: Any
    before: tuple[_Partial, ...] = ()
    after: tuple[_Partial, ...] = ()
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
        self._some(self.before, step)
        if isinstance(count, int) and count == 1:
            step(self.first, self._all, frozenset())
        elif not (isinstance(count, int) and count < 1):
            last = opaque(b, self.last) if isinstance(self.last, int) else self.last
            with b.loop(last - self.first, start=self.first, name="kw") as kw:
                step(kw, self._all, frozenset())
        self._some(self.after, step)

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
        whole = _whole_taps(b, axis, at, width, starts)
        middle = whole[0] if isinstance(whole[0], int) else 0
        before = tuple(p for p in known if p[1] < middle)
        return Taps(b, width, *whole, before, known[len(before) :])
    ramps = _ramp_lengths(axis, width)
    if ramps and _spans(emitter, axis, width) is not False:
        return _ramps(b, axis, at, width, ramps)
    first, end = dynamic_taps(emitter, axis, at)
    begin, last = dynamic_taps(emitter, axis, at + (width - 1))
    last = b.let(greater(first, last))
    left, right = -(-axis.pad // axis.stride), -(-axis.pad_end // axis.stride)
    edge = frozenset(p for p in range(width) if p < left or p >= width - right)
    return Taps(b, width, first, last, (), (), begin, end, edge)


def _ramp_lengths(axis: Axis, width: int) -> tuple[int, int] | None:
    """How many taps _ramps makes before and behind those that all pixels have, if not too many:
    beyond, no tile reaches.
    """
    reach = (width - 1) * axis.stride
    before, after = min(axis.pad, reach), min(axis.pad_end, reach)
    few = before + after <= _MOST_RAMPED and axis.dilation == 1
    return (before, after) if few else None


def _spans(emitter: Emitter, axis: Axis, width: int) -> Any:
    """Whether the input is longer than the way from a tile's first window to its last: then no tap
    lies before the input for one pixel and behind it for another.
    """
    return emitter.builder.scalar(axis.size) > (width - 1) * axis.stride


def _ramps(b: KernelBuilder, axis: Axis, at: Any, width: int, lengths: tuple[int, int]) -> Taps:
    """Before the taps that all pixels have come those that all but the first pixel have, all but
    two, …, as many of each as the stride; behind them likewise the last ones. A window may not
    reach them. For tiles that `_spans` holds of.
    """
    stride, reach = axis.stride, (width - 1) * axis.stride
    first = b.let(axis.pad - at * stride)
    end = b.let(b.scalar(axis.size) + axis.pad - at * stride - reach)

    def inside(tap: Any, pixels: range) -> _Partial:
        tap = opaque(b, tap)
        return b.let(tirx.And(tap >= 0, tap < axis.kernel)), tap, tuple(pixels)

    left, right = lengths
    before = tuple(inside(first - m, range(-(-m // stride), width)) for m in range(left, 0, -1))
    after = tuple(inside(end + m, range(width - 1 - m // stride)) for m in range(right))
    low, high = (b.let(lesser(greater(n, 0), axis.kernel)) for n in (first, end))
    return Taps(b, width, low, high, before, after)


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


def over_row(
    emitter: Emitter, axis: Axis, most: int, tile: Callable[[Any, int, Taps], None],
    alike: bool = False, part: tuple[Any, Any] | None = None,
) -> None:  # fmt: skip
    """Emit `tile(first pixel, width, taps)` over a row; `alike`: make a tile's code again for every
    set of taps, where they are known; `part`: [first, last) of the tiles, else all.
    """
    b, k = emitter.builder, emitter.k
    if isinstance(axis.count, int):
        done = 0
        for width, starts in tile_groups(axis, most, alike):
            low, high = _within(b, part, done, len(starts))
            done += len(starts)
            with b.loop(high - low, start=low, name="w") as i:
                at = starts[0] if len(starts) == 1 else b.let(i * width + starts[0])
                tile(at, width, taps_of(emitter, axis, at, width, starts))
        return
    count = b.scalar(axis.count)

    def tiles(width: int) -> Callable[[], None]:
        def body() -> None:
            low, high = 0, b.let(k.floordiv(count + (width - 1), width))
            # A row too short for this width has one part; of more, each would compute all of it.
            if width == most and part is not None:
                low, high = part
            with b.loop(high - low, start=low, name="w") as i:
                # The last one is moved back to end with the row.
                at = i if width == 1 else b.let(lesser(i * width, count - width))
                tile(at, width, taps_of(emitter, axis, at, width))

        return body

    widths = sorted({most, -(-most // _NARROW_SHARE), 1}, reverse=True)

    def fits(width: int) -> Any:
        if width == 1:
            return None
        enough = count >= width
        return (
            k.both(enough, _spans(emitter, axis, width)) if _ramp_lengths(axis, width) else enough
        )

    first_of(b, [(fits(w), tiles(w)) for w in widths])


def _within(
    b: KernelBuilder, part: tuple[Any, Any] | None, done: int, count: int
) -> tuple[Any, Any]:
    """[first, last) of `count` tiles behind `done` others that lie in a part of the row."""
    if part is None:
        return 0, count
    low = b.let(lesser(greater(part[0] - done, 0), count))
    return low, b.let(greater(lesser(part[1] - done, count), low))


def tile_widths(count: int, most: int) -> list[int]:
    """Equal widths if a good one divides the row: fewer variants of code."""
    for width in range(most, int(_EVEN_SHARE * most), -1):
        if count % width == 0:
            return [width] * (count // width)
    return balanced(count, most)


def tile_groups(axis: Axis, most: int, alike: bool) -> list[tuple[int, list[int]]]:
    """(width, first pixels) of tiles that share code; `alike`: whose taps lie inside alike."""
    assert isinstance(axis.count, int)
    widths = tile_widths(axis.count, most)
    tiles = list(zip(accumulate(widths, initial=0), widths, strict=False))
    alike = alike and isinstance(axis.size, int) and axis.kernel <= 2 * _MOST_PARTIAL

    def kind(tile: tuple[int, int]) -> Any:
        start, width = tile
        return width, [axis.taps(start + p) for p in range(width)] if alike else ()

    return [(width, [start for start, _ in same]) for (width, _), same in groupby(tiles, kind)]


def columns_of(
    axis: Axis, first: int, width: int, outside: bool = False
) -> list[tuple[int, dict[int, int]]]:
    """Input columns of a tile of a known size, [(column, {tap along W: pixel})]: those inside where
    a tile at `first` has them, unless `outside`. Columns count from the tile's first tap.
    """
    assert isinstance(axis.size, int)
    found: dict[int, dict[int, int]] = {}
    start = first * axis.stride - axis.pad
    for p in range(width):
        for tap in range(axis.kernel):
            place = p * axis.stride + tap * axis.dilation
            if outside or 0 <= start + place < axis.size:
                found.setdefault(place, {})[tap] = p
    return sorted(found.items())
