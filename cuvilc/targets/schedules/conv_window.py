"""Sliding windows over [N, C, H, W]: which taps lie inside the input, and tiles of pixels along a
row.

No input is padded: taps that fall outside are left out, along H by loop bounds, along W by making a
tile's code for the pattern of taps that its pixels have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuvilc.dialect.dims import Dim
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.microkernel import (
    balanced,
    first_of,
    greater,
    lesser,
    opaque,
)

BLOCK = 16  # channels in a block of NCHW16c
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
        from cuvilc.dialect.dims import floordiv  # noqa: PLC0415

        fit = floordiv(self.size - self.dilation * (self.kernel - 1) - 1, self.stride) + 1
        return bool(fit == self.count)

    def tap_count(self) -> Dim:
        """Taps of all windows that lie inside; an upper bound while the size is unknown."""
        if not self.is_static:
            return self.count * self.kernel
        assert isinstance(self.count, int)
        return sum(len(self.taps(w)) for w in range(self.count))


def axes_of(shape: Any, out: Any, kernel: Any, attrs: dict[str, Any]) -> list[Axis]:
    """The axes of a two-dimensional window; one dimension is a height of 1."""
    numbers = zip(
        shape[2:], out[2:], kernel, attrs["strides"], attrs["pads_begin"], attrs["dilations"],
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


@dataclass(frozen=True)
class Run:
    """`tiles` tiles side by side from pixel `start`, alike in width and in the taps that are
    inside.

    inside[tap] are the pixels of a tile that have the tap.
    """

    start: int
    tiles: int
    width: int
    inside: tuple[tuple[int, ...], ...]


def runs_of(axis: Axis, most: int) -> list[Run]:
    """Tiles of at most `most` pixels that cover a row of known width."""
    assert isinstance(axis.count, int)
    runs: list[Run] = []
    start = 0
    for width in tile_widths(axis.count, most):
        taps = [axis.taps(start + p) for p in range(width)]
        inside = tuple(tuple(p for p in range(width) if j in taps[p]) for j in range(axis.kernel))
        if runs and (runs[-1].width, runs[-1].inside) == (width, inside):
            last = runs.pop()
            runs.append(Run(last.start, last.tiles + 1, width, inside))
        else:
            runs.append(Run(start, 1, width, inside))
        start += width
    return runs


def tile_widths(count: int, most: int) -> list[int]:
    """Equal widths if a good one divides the row: fewer variants of code."""
    for width in range(most, int(_EVEN_SHARE * most), -1):
        if count % width == 0:
            return [width] * (count // width)
    return balanced(count, most)


def interior(emitter: Emitter, axis: Axis) -> tuple[Any, Any]:
    """[first, end) of the windows along W with all taps inside, for a size known at run time."""
    b, k = emitter.builder, emitter.k
    first = -(-axis.pad // axis.stride)
    count = b.scalar(axis.count)
    room = b.scalar(axis.size) + axis.pad - (axis.kernel - 1) * axis.dilation - 1
    fit = k.floordiv(greater(room + axis.stride, 0), axis.stride)
    begin = b.let(lesser(first, count))
    return begin, b.let(greater(begin, lesser(fit, count)))


def over_taps(
    emitter: Emitter, rows: int, inside: Any, emit: Callable[[Any, tuple[int, ...]], None]
) -> None:
    """`emit(tap, pixels)` for the taps along W: those that all pixels have in a loop, others one by
    one.

    LLVM must not see that taps read the same input elements: it would keep them in registers and
    spill sums.
    """
    b = emitter.builder
    whole = [kw for kw, pixels in enumerate(inside) if len(pixels) == rows]
    if len(whole) > 1:
        with b.loop(opaque(b, whole[-1] + 1) - whole[0], start=whole[0], name="kw") as kw:
            emit(kw, inside[whole[0]])
    for tap, pixels in enumerate(inside):
        if pixels and (len(whole) == 1 or tap not in whole):
            emit(tap if len(inside) == 1 else opaque(b, tap), pixels)


def over_row(
    emitter: Emitter, axis: Axis, most: int,
    tile: Callable[[Any, int, Any], None], pixel: Callable[[Any], None],
) -> None:  # fmt: skip
    """Emit `tile(first pixel, width, inside)` over a row, and `pixel(at)` where taps are known at
    run time.
    """
    b = emitter.builder
    if axis.is_static:
        for run in runs_of(axis, most):
            if run.tiles == 1:
                tile(run.start, run.width, run.inside)
                continue
            with b.loop(run.tiles, name="w") as i:
                tile(b.let(i * run.width + run.start), run.width, run.inside)
        return
    begin, end = interior(emitter, axis)
    with b.loop(begin, name="w") as at:
        pixel(at)
    cases: list[Any] = []
    for width in sorted({most, -(-most // 3)} - {1}, reverse=True):
        cases.append((end - begin >= width, _overlapping(emitter, axis, width, begin, end, tile)))

    def singly() -> None:
        with b.loop(end - begin, start=begin, name="w") as at:
            pixel(at)

    first_of(b, [*cases, (None, singly)])
    with b.loop(b.scalar(axis.count) - end, start=end, name="w") as at:
        pixel(at)


def _overlapping(
    emitter: Emitter, axis: Axis, width: int, begin: Any, end: Any,
    tile: Callable[[Any, int, Any], None],
) -> Callable[[], None]:  # fmt: skip
    """Tiles of `width` over [begin, end), the last one moved back to end there."""

    def body() -> None:
        b, k = emitter.builder, emitter.k
        tiles = b.let(k.floordiv(end - begin + (width - 1), width))
        with b.loop(tiles, name="w") as i:
            at = b.let(lesser(begin + i * width, end - width))
            tile(at, width, (tuple(range(width)),) * axis.kernel)

    return body
