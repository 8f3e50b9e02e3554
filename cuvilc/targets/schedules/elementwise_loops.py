"""The innermost loop of every schedule over rows: unrolled vectors, single vectors, the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from cuvilc.dialect.types import item_bytes
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region
from cuvilc.targets.tir import const


@dataclass(frozen=True)
class Place:
    """Where in the unrolled body an element lies: number of the vector, and lane."""

    unrolled: Any = 0
    lane: Any = 0


Element = Callable[[Any, Place], None]


def vector_width(region: Region, chip: Chip) -> int:
    """Elements of a vector: they fill a register of the narrowest buffer, 4 of the widest."""
    sizes = [item_bytes(t.dtype) for t in region.types()]
    widest, narrowest = max(sizes, default=4), min(sizes, default=4)
    return max(
        1, min(chip.lanes * 4 // narrowest, chip.lanes * 16 // max(widest, 4), 4 * chip.lanes)
    )


def sweep(
    emitter: Emitter, start: Any, extent: Any, width: int, unroll: int, element: Element
) -> None:
    """element(i, place) for `extent` i's from start: unrolled vectors, vectors, the rest."""
    b = emitter.builder
    if width == 1:
        with b.loop(extent) as i:
            element(_plus(start, i), Place())
    elif isinstance(extent, int):
        _static_sweep(b, start, extent, width, unroll, element)
    else:
        _symbolic_sweep(b, start, extent, width, unroll, element)


def _symbolic_sweep(
    b: Any, start: Any, extent: Any, width: int, unroll: int, element: Element
) -> None:
    done: Any = 0
    if unroll > 1:
        count = b.let(tirx.floordiv(extent, const(width * unroll)))
        _vectors(b, _plus(start, 0), count, width, unroll, element)
        done = b.let(count * (width * unroll))
    count = b.let(tirx.floordiv(extent - done, const(width)))
    _vectors(b, _plus(start, done), count, width, 1, element)
    done = b.let(count * width + done)
    with b.loop(b.let(extent - done)) as i:
        element(_plus(_plus(start, done), i), Place())


def _static_sweep(
    b: Any, start: Any, extent: int, width: int, unroll: int, element: Element
) -> None:
    while width * unroll > extent and unroll > 1:
        unroll //= 2
    done = extent // (width * unroll) * (width * unroll)
    _vectors(b, start, extent // (width * unroll), width, unroll, element)
    while done < extent:
        while width > extent - done:
            width //= 2
        _vectors(b, _plus(start, done), 1, width, 1, element)
        done += width


def _vectors(b: Any, start: Any, count: Any, width: int, unroll: int, element: Element) -> None:
    """`count` times `unroll` vectors of `width`."""
    if isinstance(count, int) and count == 0:
        return
    if isinstance(count, int) and count == 1 and unroll == 1:
        _vector(b, start, width, 0, element)
        return
    with b.loop(count) as i:
        if unroll == 1:
            _vector(b, _plus(start, i * width), width, 0, element)
            return
        with b.loop(unroll, "unrolled") as u:
            _vector(b, _plus(start, (i * unroll + u) * width), width, u, element)


def _vector(b: Any, start: Any, width: int, u: Any, element: Element) -> None:
    if width == 1:
        element(_plus(start, const(0)), Place(u))
        return
    with b.loop(width, "vectorized") as lane:
        element(_plus(start, lane), Place(u, lane))


def _plus(start: Any, i: Any) -> Any:
    if isinstance(start, int) and start == 0:
        return i
    return start if isinstance(i, int) and i == 0 else start + i
