"""Products of a row-major matrix with a few vectors, along the contiguous axis of both.

A tile of rows keeps a vector of partial sums for each row and each vector; a row's lanes are added
up once, at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from cuvilc.targets.schedules.microkernel import powers_of_two
from cuvilc.targets.tir import KernelBuilder, const

Column = Callable[[Any], Any]  # element k of a vector
Out = Callable[[Any, int, Any], None]  # (row, number of the vector, the dot product)


@dataclass(frozen=True)
class Matrix:
    """load(row, k): an element; `length`: how many k there are, an int or an index expression."""

    load: Callable[[Any, Any], Any]
    length: Any
    dtype: str
    width: int

    @property
    def lanes(self) -> int:
        """Of a vector of partial sums: rows shorter than a register need fewer."""
        if not isinstance(self.length, int):
            return self.width
        return min(self.width, 1 << max(self.length.bit_length() - 1, 0))


def multiply(
    b: KernelBuilder, matrix: Matrix, first: int, rows: int, tile: int,
    columns: Sequence[Column], out: Out,
) -> None:  # fmt: skip
    """out(…) for rows [first, first + rows), in tiles of `tile`."""
    full, rest = divmod(rows, tile)
    if full:
        with b.loop(full) as i:
            _tile(b, matrix, b.let(i * tile + first), tile, columns, out)
    if rest:
        _tile(b, matrix, const(first + full * tile), rest, columns, out)


def _tile(
    b: KernelBuilder, matrix: Matrix, first: Any, rows: int, columns: Sequence[Column], out: Out
) -> None:
    width, count = matrix.lanes, len(columns)
    sums = b.local(rows * count * width, matrix.dtype)

    def step(at: Any, lane: Any) -> None:
        vectors = [b.let(column(at)) for column in columns]
        for r in range(rows):
            weight: Any = b.let(matrix.load(first + r, at))
            for c, vector in enumerate(vectors):
                place = const((r * count + c) * width) + lane
                product = weight * vector
                b.store(sums, place, b.load(sums, place) + product)

    with b.loop(width, "vectorized") as lane:
        for n in range(rows * count):
            b.store(sums, const(n * width) + lane, const(0.0, matrix.dtype))
    _along(b, matrix.length, width, step)
    for r in range(rows):
        for c in range(count):
            out(first + r, c, _total(b, sums, (r * count + c) * width, width, matrix.dtype))


def _along(b: KernelBuilder, length: Any, width: int, step: Callable[[Any, Any], None]) -> None:
    """step(k, lane) over vectors, then over what is left in smaller ones."""
    if not isinstance(length, int):
        vectors = b.let(tirx.floordiv(length, const(width)))
        with b.loop(vectors) as i, b.loop(width, "vectorized") as lane:
            step(i * width + lane, lane)
        with b.loop(b.let(length - vectors * width)) as i:
            step(vectors * width + i, const(0))
        return
    whole = length // width * width
    if whole:
        with b.loop(length // width) as i, b.loop(width, "vectorized") as lane:
            step(i * width + lane, lane)
    for offset, part in powers_of_two(length - whole):
        with b.loop(part, "vectorized") as lane:
            step(lane + (whole + offset), lane)


def _total(b: KernelBuilder, sums: Any, start: int, width: int, dtype: str) -> Any:
    """The sum of the `width` lanes from `start`, by halving."""
    while width > 1:
        half = width // 2
        less = b.local(half, dtype)
        with b.loop(half, "vectorized") as lane:
            low: Any = b.load(sums, lane + start)
            b.store(less, lane, low + b.load(sums, lane + (start + half)))
        sums, start, width = less, 0, half
    return b.load(sums, start)
