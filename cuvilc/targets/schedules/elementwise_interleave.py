"""Innermost loops of a few elements that lie far apart in an operand, as where channels become
neighbouring pixels.

Vectors go along the loop around it, one for each of the few elements; shuffles then lay the
vectors' elements beside each other, and whole vectors are stored. An operand that is strided along
the loop around too, but contiguous along a third, is read in squares (transpose.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuvilc.dialect.dims import Dim, ceildiv, product
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region
from cuvilc.targets.schedules import transpose
from cuvilc.targets.schedules.elementwise_access import logical_index
from cuvilc.targets.schedules.elementwise_loops import vector_width
from cuvilc.targets.schedules.interleave import interleave_vectors
from cuvilc.targets.schedules.microkernel import lesser, powers_of_two, split
from cuvilc.targets.tir import as_expr

_TASK_ELEMENTS = 4096
_MOST = 8  # of the few: more take too many shuffles
_LEAST = 4  # lanes of a vector


@dataclass
class _Plan:
    """The loops, how wide vectors are, and how tasks share the rows of `along` and the few."""

    extent: Dim  # of `along`
    outer: list[int]
    along: int
    few: int
    turn: int | None  # the loop along which a strided operand is contiguous
    strided: list[int]  # which loads are, in order
    width: int
    rows: Dim  # with `turn` of so many strips
    part: int  # places of `along` that a task takes; 0: all
    together: int  # rows that a task takes


def suits(piece: Any) -> bool:
    """Whether the two innermost loops are such ones."""
    return _loops(piece) is not None


def _loops(piece: Any) -> tuple[int | None, list[int]] | None:
    """`turn` and the strided loads; None where nothing is gained."""
    if len(piece.loops) < 2:
        return None
    *outer, along, few = piece.loops
    count = piece.digits[few].extent
    if not isinstance(count, int) or count > _MOST or not _long(piece, along):
        return None
    accesses = piece.report.accesses
    stores, loads = ([a for a in accesses if a.is_store == kind] for kind in (True, False))
    if any((a.steps[along], a.steps[few]) != (count, 1) for a in stores):
        return None
    if not any(_strided(a.steps[loop]) for a in loads for loop in (along, few)):
        return None
    strided = [n for n, a in enumerate(loads) if _strided(a.steps[along])]
    if not strided:
        return None, []
    regular = all(
        isinstance(loads[n].steps[loop], int) and not loads[n].guarded
        for n in strided for loop in (along, few)
    )  # fmt: skip
    if not regular or not piece.movable:
        return None
    for turn in reversed(outer):
        if _long(piece, turn) and all(loads[n].steps[turn] == 1 for n in strided):
            return turn, strided
    return None


def _strided(step: Dim | None) -> bool:
    return step not in (0, 1)


def _long(piece: Any, loop: int) -> bool:
    extent = piece.digits[loop].extent
    return loop not in piece.report.limits and (not isinstance(extent, int) or extent >= _LEAST)


def _plan(piece: Any, region: Region, chip: Chip) -> _Plan:
    found = _loops(piece)
    assert found is not None
    turn, strided = found
    *outer, along, few = piece.loops
    extent, count = piece.digits[along].extent, piece.digits[few].extent
    width = vector_width(region, chip)
    if turn is not None:
        sides = [chip.lanes, extent, piece.digits[turn].extent]
        least = min(side for side in sides if isinstance(side, int))
        width = 1 << least.bit_length() - 1
        outer.remove(turn)
    most = max(_TASK_ELEMENTS // (piece.work * count * (1 if turn is None else width)), 1)
    part = -(-most // width) * width
    rows = product([piece.digits[n].extent for n in outer])
    if turn is not None:
        rows = rows * ceildiv(piece.digits[turn].extent, width)
    short = isinstance(extent, int) and extent < 2 * part
    together = max(1, most // extent) if short else 1
    return _Plan(
        extent, outer, along, few, turn, strided, width, rows, 0 if short else part, together
    )


def tasks(piece: Any, region: Region, chip: Chip) -> Dim:
    """How many there are."""
    plan = _plan(piece, region, chip)
    if plan.part:
        return plan.rows * ceildiv(plan.extent, plan.part)
    return ceildiv(plan.rows, plan.together)


def emit(emitter: Emitter, piece: Any, t: Any, chip: Chip, vector: bool, outer_values: Any) -> None:
    """The loops of one task."""
    b, plan = emitter.builder, _plan(piece, emitter.region, chip)
    extent = b.scalar(plan.extent)

    def row(number: Any, start: Any, length: Any) -> None:
        strip: Any = 0
        if plan.turn is not None:
            strips = b.scalar(ceildiv(piece.digits[plan.turn].extent, plan.width))
            strip, number = split(emitter, number, strips)
        asks = bool(piece.report.decisions)
        values = outer_values(emitter, piece.digits, plan.outer, number, bounded=asks)
        made = _Row(emitter, piece, plan, values, vector)
        if plan.turn is None:
            made.line(start, length)
        else:
            made.strip(b.let(strip * plan.width), start, length)

    if plan.part:
        part, number = split(emitter, t, b.scalar(ceildiv(plan.extent, plan.part)))
        start = b.let(part * plan.part)
        row(number, start, b.let(lesser(as_expr(extent) - start, plan.part)))
        return
    if plan.together == 1:
        row(t, 0, extent)
        return
    first = t * plan.together
    with b.loop(b.let(lesser(b.scalar(plan.rows) - first, plan.together))) as r:
        row(b.let(first + r), 0, extent)


class _Row:
    """All of the few, for some places of the loop around."""

    def __init__(
        self, emitter: Emitter, piece: Any, plan: _Plan, values: dict[int, Any], vector: bool
    ) -> None:
        self.emitter, self.b, self.piece, self.plan = emitter, emitter.builder, piece, plan
        self.values, self.vector = values, vector
        self.count = piece.digits[plan.few].extent

    def _index(self, place: Any, number: Any) -> tuple[Any, ...]:
        at = {**self.values, self.plan.along: place, self.plan.few: number}
        digits = self.piece.digits
        return logical_index(self.emitter, digits, [at.get(n, 0) for n in range(len(digits))])

    def line(self, start: Any, length: Any) -> None:
        """`length` places from `start` on."""
        b, width = self.b, self.plan.width
        if not self.vector:
            self._one_by_one(start, length)
            return
        whole = length // width if isinstance(length, int) else b.let(length // width)
        with b.loop(whole) as n:
            self._vectors(b.let(start + n * width), width)
        done = whole * width
        if not isinstance(length, int):
            self._one_by_one(b.let(start + done), b.let(length - done))
            return
        for offset, some in powers_of_two(length - done):
            if some < _LEAST:
                self._one_by_one(start + (done + offset), length - done - offset)
                return
            self._vectors(start + (done + offset), some)

    def strip(self, first: Any, start: Any, length: Any) -> None:
        """The same for `width` places of `turn` from `first` on, or as many as there are."""
        b, plan, width = self.b, self.plan, self.plan.width
        turn = plan.turn
        assert turn is not None
        extent = as_expr(b.scalar(self.piece.digits[turn].extent))

        def rest(begin: Any, count: Any) -> None:
            self.emitter.forget()
            with b.loop(b.let(lesser(extent - first, width))) as o:
                self.values[turn] = b.let(first + o)
                self._one_by_one(begin, count)
            self.emitter.forget()

        if not self.vector:
            rest(start, length)
            return
        whole = length // width if isinstance(length, int) else b.let(length // width)
        with b.when(first + width <= extent):
            with b.loop(whole) as n:
                self._squares(first, b.let(start + n * width))
            done = whole * width
            left = length - done if isinstance(length, int) else b.let(length - done)
            if not isinstance(left, int) or left:
                rest(b.let(start + done), left)
        with b.otherwise():
            rest(start, length)

    def _one_by_one(self, start: Any, length: Any) -> None:
        with self.b.loop(length) as i:
            for number in range(self.count):
                self.emitter.store_all(self._index(start + i, number))

    def _vectors(self, start: Any, width: int) -> None:
        """All of the few for `width` places."""
        self._beside(start, width, lambda number, lane, store: store())

    def _squares(self, first: Any, start: Any) -> None:
        """The same of the strip's places of `turn`, after what is strided was transposed."""
        b, plan, emitter = self.b, self.plan, self.emitter
        turn = plan.turn
        assert turn is not None and isinstance(b, transpose.TileBuilder)
        loads: list[Callable[[Any, Any], dict[int, Callable[[], Any]]]] = []
        for number in range(self.count):

            def index(o: Any, i: Any, number: int = number) -> tuple[Any, ...]:
                self.values[turn] = o
                return self._index(i, number)

            decisions = self.piece.report.decisions
            loads.append(
                transpose.squares(emitter, plan.width, plan.strided, decisions, index, first, start)
            )

        with b.loop(plan.width) as o:
            self.values[turn] = first + o

            def replaced(number: int, lane: Any, store: Callable[[], None]) -> None:
                emitter.forget()
                b.replace(loads[number](o, lane))
                store()
                b.replace(None)

            self._beside(start, plan.width, replaced)
        emitter.forget()

    def _beside(self, start: Any, width: int, around: Callable[..., None]) -> None:
        emitter, b, k = self.emitter, self.b, self.emitter.k
        region = emitter.region
        types = [region.type_of(v) for v in region.results]
        lines = [b.local(self.count * width, t.dtype) for t in types]
        for number in range(self.count):
            with b.loop(width, "vectorized") as lane:

                def store(number: int = number, lane: Any = lane) -> None:
                    index = self._index(start + lane, number)
                    for value, line, t in zip(region.results, lines, types, strict=True):
                        element = emitter.accessor(value)[index]
                        k.store(line, lane + number * width, element, t.dtype)

                around(number, lane, store)
        for n, (line, t) in enumerate(zip(lines, types, strict=True)):
            target = b.buffer(len(region.arguments) + n, t.dtype)
            at = b.simplify(k.flat_index(t, self._index(start, 0)))
            interleave_vectors(b, self.count, width, line, (target, at))
