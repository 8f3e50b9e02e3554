"""Matrix products as register tiles over packed panels of B; any number of rows, known or not.

A task is a group of row tiles times a group of panels. Consecutive tasks share panels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuvilc.dialect.dims import Dim
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region, Scheduled, vectorized
from cuvilc.targets.schedules.gemm_operands import Left, Right
from cuvilc.targets.schedules.gemm_plan import Plan, at_dtype, plan_of
from cuvilc.targets.schedules.microkernel import (
    Epilogue,
    RegisterTile,
    balanced,
    cut_tiles,
    first_of,
    greater,
    lesser,
    opaque,
    powers_of_two,
    split,
    unrolled_steps,
)


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.matmul with an injective prologue of either operand and an elementwise epilogue."""
    plan = plan_of(region, chip)
    return vectorized(lambda vector: Gemm(region, chip, name, plan, vector).build())


class Gemm:
    """Builds the kernel of a plan; a schedule with other operands or results replaces `left`,
    `spill` or `finish`.
    """

    kind = "gemm"

    def __init__(self, region: Region, chip: Chip, name: str, plan: Plan, vectorize: bool) -> None:
        self.chip, self.plan = at_dtype(chip, plan.dtype), plan
        self.lanes = "vectorized" if vectorize else "serial"
        self.emitter = Emitter(region, name)
        self.b = self.emitter.builder
        self.left = self.make_left()
        self.right = self.make_right()
        self.n, self.m, self.k = (self._size(d) for d in (plan.n, plan.m, self.steps()))
        self.batch: list[Any] = []

    def make_left(self) -> Any:
        self.epilogue = Epilogue(self.emitter, self.plan.anchor, self.plan.k)
        return Left(self.emitter, self.plan, self.lanes)

    def make_right(self) -> Any:
        return Right(self.emitter, self.plan, self.lanes)

    def make_tile(self, rows: int, width: int, sets: int) -> RegisterTile:
        return RegisterTile(self.b, rows, width, sets, dtype=self.plan.dtype)

    def steps(self) -> Dim:
        """Of the reduction."""
        return self.plan.k

    def _size(self, d: Dim) -> Any:
        return self.b.scalar(d)

    def build(self) -> Scheduled:
        plan, b = self.plan, self.b
        row_groups, panel_groups = self._size(plan.row_groups), self._size(plan.panel_groups)
        panels = self._size(plan.panels)
        with b.tasks() as t:
            group, rest = split(self.emitter, t, row_groups)
            panel_group, rest = split(self.emitter, rest, panel_groups)
            self.batch = self._digits(rest, plan.batch)
            first = b.let(panel_group * plan.panel_group)
            last = b.let(lesser(first + plan.panel_group, panels))
            self.left.begin_task(self.batch)
            self.right.begin_task(self.batch)
            if isinstance(plan.m, int):
                self._static_rows(group, first, last)
            else:
                self._symbolic_rows(group, first, last)
        return self.emitter.finish(self.kind, plan.tasks, plan.flops)

    def _digits(self, flat: Any, extents: Any) -> list[Any]:
        """Indices along `extents` of a flat number."""
        digits: list[Any] = []
        for d in reversed(extents[1:]):
            digit, flat = split(self.emitter, flat, self._size(d))
            digits.append(digit)
        return [flat, *reversed(digits)] if extents else []

    # ---- rows

    def _static_rows(self, group: Any, first: Any, last: Any) -> None:
        """Row tiles of two sizes that differ by one: the larger ones come first."""
        plan, b = self.plan, self.b
        assert isinstance(plan.m, int)
        sizes = balanced(plan.m, plan.rows)
        if not sizes:
            return
        large, many = sizes[0], sizes.count(sizes[0])
        low = group * plan.tile_group if not isinstance(group, int) else 0
        high = b.let(lesser(low + plan.tile_group, len(sizes)))
        low = b.let(low)

        def row_of(tile: Any) -> Any:
            return tile * large - greater(tile - many, 0) if many < len(sizes) else tile * large

        base, end = b.let(row_of(low)), b.let(row_of(high))
        self.left.pack_rows(base, end)

        def rows_of_panel(panel: Any, width: int) -> None:
            self._tiles(low, lesser(high, many), large, row_of, panel, width)
            if many < len(sizes):
                self._tiles(b.let(greater(low, many)), high, large - 1, row_of, panel, width)

        self._panels(first, last, rows_of_panel)

    def _symbolic_rows(self, group: Any, first: Any, last: Any) -> None:
        """As many of the largest tiles as fit, then smaller ones; or one tile more of a size, moved
        back over rows that are computed already, where that costs less: rows of this task, for a
        tile of another size may round otherwise than that of the task whose rows they were.
        """
        plan, b = self.plan, self.b
        low = b.let(group * (plan.tile_group * plan.rows))
        high = b.let(lesser(low + plan.tile_group * plan.rows, self.m))
        pieces = cut_tiles(b, b.let(high - low), plan.sizes, fits=True)

        def rows_of_panel(panel: Any, width: int) -> None:
            for size, start, count in pieces:
                row_of = self._row_of(low + start, size)
                self._tiles(0, count, size, row_of, panel, width)

        self.left.pack_rows(low, high)
        self._panels(first, last, rows_of_panel)

    def _row_of(self, start: Any, size: int) -> Callable[[Any], Any]:
        """The first row of tile i of those from row `start` on."""
        return lambda i: lesser(start + i * size, self.m - size)

    def _panels(self, first: Any, last: Any, body: Callable[[Any, int], None]) -> None:
        plan = self.plan
        with self.b.loop(last - first, start=first, name="p") as panel:
            if plan.last_width == plan.width:
                self._panel(panel, plan.width, body)
                return
            whole = self._size(plan.panels) - 1
            first_of(
                self.b,
                [
                    (panel < whole, lambda: self._panel(panel, plan.width, body)),
                    (None, lambda: self._panel(panel, plan.last_width, body)),
                ],
            )

    def _panel(self, panel: Any, width: int, body: Callable[[Any, int], None]) -> None:
        self.right.begin_panel(panel, width)
        body(panel, width)

    def _tiles(self, low: Any, high: Any, rows: int, row_of: Any, panel: Any, width: int) -> None:
        sets = RegisterTile.sets_for(self.chip, rows, self._summed_as(width))
        if isinstance(self.k, int) and self.k < 2 * sets:
            sets = 1
        with self.b.loop(high - low, start=low, name="m") as i:
            row = self.b.let(row_of(i))
            tile = self.make_tile(rows, width, sets)
            self.begin_tile(rows, row, panel)
            self.right.begin_tile(i, rows)
            self._reduce(tile, sets)
            tile.gather_sets()
            self.finish(tile, row, panel)

    def _summed_as(self, width: int) -> int:
        """The width whose order of sums a tile has. Where panels overlap it is the full tile's: two
        tasks may write the same columns, and shall write the same bits.
        """
        return self.plan.width if self.plan.overlaps else width

    def begin_tile(self, rows: int, row: Any, panel: Any) -> None:
        """The tile of `rows` rows from `row` on is next."""
        self.left.begin_tile(row)

    def _reduce(self, tile: RegisterTile, sets: int) -> None:
        def step(k: Any, s: int) -> None:
            self.left.begin_step(k)
            self.right.begin_step(k)
            scalars = [self.left.at(r, k) for r in range(tile.rows)]
            tile.step(scalars, lambda lane: self.right.at(k, lane), s)

        steps = unrolled_steps(self.chip, tile.rows, self._summed_as(tile.width), sets)
        if isinstance(self.k, int) and self.k < 2 * steps:
            steps = sets
        turns = self.emitter.k.floordiv(self.k, steps)
        turns = turns if isinstance(turns, int) else self.b.let(turns)

        def turn(i: Any) -> None:
            for s in range(steps):
                step(i * steps + s, s % sets)

        self.each_turn(tile.rows, turns, turn)
        if steps > 1 and not (isinstance(self.k, int) and self.k % steps == 0):
            with self.b.loop(self.k - turns * steps, start=turns * steps, name="k") as i:
                step(i, 0)

    def each_turn(self, rows: int, turns: Any, turn: Callable[[Any], None]) -> None:
        """turn(i) for every i < turns."""
        with self.b.loop(turns, name="k") as i:
            turn(i)

    # ---- epilogue

    def finish(self, tile: RegisterTile, row: Any, panel: Any) -> None:
        """Store a tile whose sums are complete."""
        plan, b, width = self.plan, self.b, tile.width
        column = b.let(self.right.column(panel))
        tail = plan.n % width if isinstance(plan.n, int) else None
        whole = tail == 0 or plan.overlaps
        if whole and self.epilogue.unrolls:
            with b.loop(width, self.lanes) as lane:
                for r in range(tile.rows):
                    self._store(row + r, column + lane, tile.at(r, lane))
            return
        memory = self.spill(tile, row, panel)

        def over_rows(pieces: list[tuple[int, Any, str]]) -> None:
            rows = opaque(b, tile.rows) if tile.rows > 1 else 1  # LLVM shall not unroll it
            with b.loop(rows, name="r") as r:
                for offset, lanes, kind in pieces:
                    with b.loop(lanes, kind) as lane:
                        value = b.load(memory, r * width + offset + lane)
                        self._store(row + r, column + offset + lane, value)

        full: list[tuple[int, Any, str]] = [(0, width, self.lanes)]
        left = self.n - column
        some = [(o, w, self.lanes) for o, w in powers_of_two(tail or 0)]
        if whole:
            over_rows(full)
        elif tail is not None and (width != plan.width or plan.panels == 1):
            over_rows(some)
        else:
            some = some if tail is not None else [(0, left, "serial")]
            cases = [(left >= width, lambda: over_rows(full)), (None, lambda: over_rows(some))]
            first_of(b, cases)

    def spill(self, tile: RegisterTile, row: Any, panel: Any) -> Any:
        """The complete sums in memory, for an epilogue that goes over the rows in a loop."""
        return tile.spill()

    def _store(self, row: Any, column: Any, value: Any) -> None:
        index = (*self.batch, *self.plan.row_index(self.emitter, row), column)
        self.epilogue.store(index, value)
