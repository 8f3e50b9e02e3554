"""Regions whose every result element follows from the operands' elements, in one pass over memory.

The loops are the digits that elementwise_access finds: as few as the accesses allow, the innermost
vectorised. Where conditions (of concat, pad, slices) depend on a digit, its range is cut at their
limits: for an outer digit into pieces with tasks of their own, for the innermost into consecutive
loops. A task is about 16 KiB of output. A result whose innermost axis is strided in an operand goes
through tiles (transpose.py), or where that axis is short through shuffles
(elementwise_interleave.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv, product
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules import elementwise_interleave, transpose
from cuvilc.targets.schedules.elementwise_access import (
    Define,
    Digit,
    Report,
    logical_index,
    merged,
    probe,
    split,
)
from cuvilc.targets.schedules.elementwise_loops import Place, sweep, vector_width
from cuvilc.targets.tir import KernelBuilder, as_expr, const, var

TASK_ELEMENTS = 4096
_MOST_PIECES = 8


@dataclass
class Piece:
    """A box of the iteration space: its digits (loops are those with an extent other than 1)."""

    digits: list[Digit]
    report: Report
    terms: Dim = 1
    movable: bool = True  # no value was defined by hand: tiles may evaluate elements again

    @property
    def loops(self) -> list[int]:
        return [n for n, d in enumerate(self.digits) if d.extent != 1]

    @property
    def elements(self) -> Dim:
        return product([d.extent for d in self.digits])

    @property
    def work(self) -> int:
        """Of an element, in that of moving it; of an open number of terms as of 64."""
        return max(1, self.report.work // 8) * (self.terms if isinstance(self.terms, int) else 64)


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Loops over the results, which have one shape and layout."""
    region.need_elements()
    return schedule_with(region, chip, name, "elementwise")


def schedule_with(
    region: Region, chip: Chip, name: str, label: str, define: Define | None = None, terms: Dim = 1
) -> Scheduled:
    """The same loops for regions where `define` gives the values of operations without `element`.

    terms: about how many operations an element of the results takes.
    """
    types = [ir.type_of(v) for v in region.results]
    if len({(t.shape, t.layout) for t in types}) != 1:
        raise Miss("results differ in shape or layout")
    elements = product(types[0].physical_shape)
    empty = isinstance(elements, int) and elements == 0
    pieces = [] if empty else _pieces(region, define)
    for piece in pieces:
        piece.terms, piece.movable = terms, define is None

    def build(vector: bool) -> Scheduled:
        emitter = Emitter(region, name, transpose.TileBuilder(name))
        if define:
            define(emitter)
        tasks = _emit(emitter, pieces, chip, vector)
        return emitter.finish(label, tasks, elements * max(len(region.operations), 1) * terms)

    return vectorized(build)


def _pieces(region: Region, define: Define | None) -> list[Piece]:
    digits, report = split(region, start_digits(region), define)
    parts = _uneven(region, digits, report, define)
    if parts:
        return [piece for part in parts for piece in _cut(region, *part, define)]
    return _cut(region, digits, report, define)


def _uneven(
    region: Region, digits: list[Digit], report: Report, define: Define | None
) -> list[tuple[list[Digit], Report]]:
    """Of channels that blocks do not divide: the whole blocks, and the rest; else nothing."""
    found: list[tuple[int, int, int]] = []
    for n, by in report.splits.items():
        extent = digits[n].extent
        if isinstance(extent, int) and extent > by and extent % by:
            found.append((n, extent // by * by, extent % by))
    if len(found) != 1:
        return []
    ((n, whole, rest),) = found
    parts = []
    for part in ((0, whole), (whole, rest)):
        box, _ = split(region, _narrowed(digits, n, part), define)
        lanes = len(box) - len(digits) + n  # the digit within a block, where blocks are whole
        if ir.type_of(region.results[0]).layout and digits[n].axis == 1:
            box.append(box.pop(lanes))
        parts.append((box, probe(region, box, define)))
    return parts


def _cut(region: Region, digits: list[Digit], report: Report, define: Define | None) -> list[Piece]:
    """One piece, or several where conditions depend on an outer digit."""
    boxes = [digits]
    # The innermost loop is cut by _emit_row, unless its chunks are tasks.
    chunked = [n for n, d in enumerate(digits) if d.extent != 1] == [_last(digits)]
    outer = [n for n in report.limits if (n != _last(digits) or chunked) and digits[n].extent != 1]
    if len(outer) == 1:
        ranges = cuts(report.limits[outer[0]], digits[outer[0]])
        if 1 < len(ranges) <= _MOST_PIECES:
            boxes = [_narrowed(digits, outer[0], r) for r in ranges]
    return [Piece(*merged(region, box, define)) for box in boxes]


def start_digits(region: Region) -> list[Digit]:
    """One digit an axis of the result; blocked channels as block and lane, padding too."""
    t = ir.type_of(region.results[0])
    digits = [Digit(axis, d) for axis, d in enumerate(t.shape)]
    if not t.layout:
        return digits
    block, blocks = t.physical_shape[-1], t.physical_shape[1]
    exact = t.shape[1] == blocks * block
    if not (exact or _keeps_channels(region, t.layout)):
        return digits
    return [digits[0], Digit(1, blocks, block), *digits[2:], Digit(1, block)]


def _keeps_channels(region: Region, layout: str) -> bool:
    """Whether all that a channel of padding reads is such a channel too: no operand ends before."""
    if any(ir.type_of(v).layout != layout for v in region.arguments):
        return False
    for operation in region.operations:
        declared = ir.definition(operation)
        same = operation.name in ("ai.relayout", *ir.CONSTANTS)
        # Blocked values are joined at whole blocks only.
        same |= operation.name == "ai.concat" and bool(ir.type_of(operation.results[0]).layout)
        if not (same or (declared and "elementwise" in declared.traits)):
            return False
    return True


def _last(digits: Sequence[Digit]) -> int:
    return max((n for n, d in enumerate(digits) if d.extent != 1), default=0)


def cuts(limits: Sequence[Dim], digit: Digit) -> list[tuple[Dim, Dim]]:
    """(start, extent) of the parts of the digit's loop, which counts from 0, between the limits;
    the whole if their order is unknown.
    """
    if isinstance(digit.extent, int) and all(isinstance(v, int) for v in limits):
        static = [v for v in limits if isinstance(v, int)]
        inside: list[Dim] = [*sorted({v for v in static if 0 < v < digit.extent})]
    else:
        inside = [v for v in dict.fromkeys(limits) if v not in (0, digit.extent)]
        inside = _ascending(inside)
    edges = [0, *inside, digit.extent]
    return [(a, b - a) for a, b in pairwise(edges)]


def _ascending(limits: list[Dim]) -> list[Dim]:
    """Symbolic limits in order, if each minus the one before has no negative term; else none."""
    if not limits:
        return []
    ordered = sorted(limits, key=lambda d: len(d.terms) if not isinstance(d, int) else 0)
    for a, b in pairwise([0, *ordered]):
        step = b - a
        terms = [step] if isinstance(step, int) else [c for _, c in step.terms]
        if any(c < 0 for c in terms):
            return []
    return ordered


def _narrowed(digits: list[Digit], n: int, part: tuple[Dim, Dim]) -> list[Digit]:
    """With the part (start, extent) of a digit's loop."""
    made = list(digits)
    made[n] = replace(made[n], start=made[n].start + part[0], extent=part[1])
    return made


def _emit(emitter: Emitter, pieces: list[Piece], chip: Chip, vector: bool) -> Dim:
    """All pieces, each when its tasks come; returns the number of tasks."""
    b = emitter.builder
    total: Dim = 0
    counts = [_tasks(p, emitter.region, chip) for p in pieces]
    with b.tasks() as t:
        for piece, count in zip(pieces, counts, strict=True):
            first = b.scalar(total)
            if len(pieces) == 1:
                _emit_piece(emitter, piece, t, chip, vector)
            else:
                last = b.scalar(total + count)
                with b.when(tirx.And(t >= as_expr(first), t < as_expr(last))):
                    _emit_piece(emitter, piece, t - first, chip, vector)
            total = total + count
    return total


def _rows_a_task(piece: Piece) -> tuple[Dim, int, int]:
    """(rows, rows of a task, elements of a chunk): one of the latter is trivial (1, or 0)."""
    loops = piece.loops
    if not loops:
        return 1, 1, 0
    grain = max(TASK_ELEMENTS // max(piece.work, 1), 64)
    inner = piece.digits[loops[-1]].extent
    rows = product([piece.digits[n].extent for n in loops[:-1]])
    if len(loops) == 1 or (isinstance(inner, int) and inner >= 2 * grain):
        return rows, 1, grain
    return rows, max(1, grain // max(inner, 1)) if isinstance(inner, int) else 1, 0


def _tasks(piece: Piece, region: Region, chip: Chip) -> Dim:
    if transpose.suits(piece):
        return transpose.tasks(piece, chip)
    if elementwise_interleave.suits(piece):
        return elementwise_interleave.tasks(piece, region, chip)
    rows, together, chunk = _rows_a_task(piece)
    if chunk:
        return rows * ceildiv(piece.digits[piece.loops[-1]].extent, chunk)
    return ceildiv(rows, together)


def _emit_piece(emitter: Emitter, piece: Piece, t: Any, chip: Chip, vector: bool) -> None:
    if transpose.suits(piece):
        transpose.emit(emitter, piece, t, chip, vector, outer_values)
        return
    if elementwise_interleave.suits(piece):
        elementwise_interleave.emit(emitter, piece, t, chip, vector, outer_values)
        return
    b = emitter.builder
    rows, together, chunk = _rows_a_task(piece)
    if not piece.loops:
        _store(emitter, piece, {})
        return
    extent = b.scalar(piece.digits[piece.loops[-1]].extent)
    if chunk:
        chunks = b.scalar(ceildiv(piece.digits[piece.loops[-1]].extent, chunk))
        row, part = (
            (0, t)
            if isinstance(rows, int) and rows == 1
            else (emitter.k.floordiv(t, chunks), emitter.k.mod(t, chunks))
        )
        start = b.let(part * chunk)
        length = b.let(tirx.min(as_expr(extent) - start, const(chunk)))
        if isinstance(extent, int) and extent % chunk == 0:
            length = chunk
        _emit_row(emitter, piece, row, start, length, chip, vector)
        return
    if together == 1:
        _emit_row(emitter, piece, t, 0, extent, chip, vector)
        return
    count = b.scalar(rows)
    with b.loop(b.let(tirx.min(as_expr(count) - t * together, const(together)))) as r:
        _emit_row(emitter, piece, t * together + r, 0, extent, chip, vector)


def _emit_row(
    emitter: Emitter, piece: Piece, row: Any, start: Any, length: Any, chip: Chip, vector: bool
) -> None:
    """The innermost loop: from `start`, `length` elements of row number `row`."""
    asks = bool(piece.report.decisions)
    values = outer_values(emitter, piece.digits, piece.loops[:-1], row, bounded=asks)
    inner = piece.loops[-1]
    parts = [(start, length)]
    limits = piece.report.limits.get(inner)
    if limits and isinstance(start, int):
        found = cuts(limits, piece.digits[inner])
        if len(found) <= 2 * _MOST_PIECES:
            scalar = emitter.builder.scalar
            parts = [(scalar(a), scalar(n)) for a, n in found]

    # What is known of a chunk's bounds may not do for what holds in the whole piece.
    b, repeats = emitter.builder, asks and piece.movable and not isinstance(start, int)
    assert isinstance(b, transpose.TileBuilder)

    def element(i: Any, place: Place) -> None:
        if repeats:
            b.decide_again(piece.report.decisions)
        _store(emitter, piece, {**values, inner: i})

    width = vector_width(emitter.region, chip) if vector else 1
    unroll = 4 if piece.report.work < 8 else 2 if piece.report.work < 24 else 1
    for first, extent in parts:
        sweep(emitter, first, extent, width, unroll, element)
    if repeats:
        b.decide_again(None)


def outer_values(
    emitter: Emitter, digits: list[Digit], loops: Sequence[int], row: Any, bounded: bool = False
) -> dict[int, Any]:
    """Values of the outer loops' digits from their row-major number.

    bounded: conditions ask for them, which what is known of their bounds may decide.
    """
    b, k = emitter.builder, emitter.k
    values: dict[int, Any] = {}
    for place, n in enumerate(reversed(loops)):
        extent = b.scalar(digits[n].extent)
        if place == len(loops) - 1:
            values[n] = row
        else:
            values[n] = b.let(k.mod(row, extent))
            row = b.let(k.floordiv(row, extent))
        if bounded:
            values[n] = _bounded(b, values[n], extent)
    return values


def _bounded(b: KernelBuilder, value: Any, extent: Any) -> Any:
    """The index, of which simplification knows that it is in [0, extent).

    By a `Bind`, other than `let`: simplifiers see the value behind it.
    """
    made = var("d")
    b.bind(made, extent)
    b.emit(tirx.Bind(made, as_expr(value)))
    return made


def _store(emitter: Emitter, piece: Piece, values: dict[int, Any]) -> None:
    digits = piece.digits
    emitter.store_all(
        logical_index(emitter, digits, [values.get(n, 0) for n in range(len(digits))])
    )
