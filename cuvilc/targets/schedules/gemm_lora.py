"""Matrix products whose rows have adapters of their own: ai.lora_matmul.

The product is gemm.py's. While a tile's sums are in registers, its reduction goes on for as many
steps as the adapter has rank, with t for the left operand and a panel of b for the right: the width
of an adapter costs what as many more columns of x would. A tile of rows that do not share an
adapter does so row by row. A run without adapters, and a tile without, costs a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import floordiv
from cuvilc.dialect.ops.lora_batch import BIAS, FIRST, GAIN, PANELS, RANK, B
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.gemm import Gemm
from cuvilc.targets.schedules.gemm_plan import LINE, PANEL, Plan, plan_of
from cuvilc.targets.schedules.lora_rows import Adapters, moved_bytes
from cuvilc.targets.schedules.microkernel import RegisterTile, lesser, opaque
from cuvilc.targets.tir import as_expr, const


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.lora_matmul of packed weights, with an injective prologue and an elementwise epilogue."""
    plan = plan_of(region, chip, "ai.lora_matmul")
    if plan.b_kind != "packed":
        raise Miss("weights that are not packed")
    if any(region.argument(v) is None for v in list(plan.anchor.operands)[2:]):
        raise Miss("what adapters hold is computed in the kernel")
    return vectorized(lambda vector: LoraGemm(region, chip, name, plan, vector).build())


class LoraGemm(Gemm):
    kind = "gemm-lora"

    def __init__(self, region: Region, chip: Chip, name: str, plan: Plan, vectorize: bool) -> None:
        super().__init__(region, chip, name, plan, vectorize)
        self.epilogue.unrolls = False  # sums go through memory: rows may need them there
        x, _, t, *held = plan.anchor.operands
        self.adapters = Adapters(self.emitter, x, held)
        self.t = self.emitter.argument(t)
        self.changes = int(ir.type_of(held[1]).shape[0])  # type: ignore[arg-type]
        columns = ir.type_of(t).shape[-1]
        self.stride = self.b.scalar(columns)
        self.rank = self.b.scalar(floordiv(columns, max(self.changes, 1)))

    def build(self) -> Scheduled:
        made = super().build()
        outputs = ir.type_of(self.plan.anchor.results[0]).shape[-1]
        moved = moved_bytes(self.emitter.region, self.plan.anchor.operands[3:6], outputs)
        return replace(made, facts=replace(made.facts, bytes=moved))

    def begin_tile(self, rows: int, row: Any, panel: Any) -> None:
        super().begin_tile(rows, row, panel)
        b, share = self.b, PANEL // self.plan.width
        whole = b.let(self.emitter.k.floordiv(panel, share))
        within = b.let((panel - whole * share) * self.plan.width) if share > 1 else 0
        self.row, self.place = row, (whole, within)
        self.mixed = b.variable(const(0))
        if rows > 1:
            with b.when(as_expr(self.rank) > 0):
                self.mixed.set(self.adapters.others(row, rows))

    def each_turn(self, rows: int, turns: Any, turn: Callable[[Any], None]) -> None:
        """Where every row has an adapter of its own, memory decides: each row's share of b is
        fetched while the product is at work, one after the other.
        """
        if rows == 1:
            super().each_turn(rows, turns, turn)
            return
        b, k = self.b, self.emitter.k
        mixed = tirx.NE(self.mixed.get(), const(0))
        pieces = b.let(tirx.Select(mixed, const(rows), const(1)))
        each = as_expr(k.floordiv(turns + (rows - 1), rows))
        each = b.let(tirx.Select(mixed, each, as_expr(turns)))
        with b.loop(pieces, name="r") as r:
            with b.when(mixed):
                self._fetch(b.let(self.row + r))
            low = b.let(r * each)
            with b.loop(lesser(low + each, turns) - low, start=low, name="k") as i:
                turn(i)

    def _fetch(self, row: Any) -> None:
        """Fetch what `row` will read of its adapter's b."""
        b, slot = self.b, self.adapters.slot(row)
        with b.when(slot > 0):
            for number in range(self.changes):
                entry = self.adapters.entry(number, slot)
                panel = b.let(self.place[0] - self.adapters.field(entry, FIRST))
                with b.when(self._is_about(entry, panel)):
                    rank, factor = (self.adapters.field(entry, c) for c in (RANK, B))
                    factor = b.let(factor + panel * (rank * PANEL))
                    with b.loop(b.let(rank * (PANEL // LINE)), name="l") as line:
                        self.adapters.prefetch(factor + line * LINE)

    def _is_about(self, entry: Any, panel: Any) -> Any:
        """Whether a change is about its panel of this number."""
        return tirx.And(panel >= 0, panel < self.adapters.field(entry, PANELS))

    def spill(self, tile: RegisterTile, row: Any, panel: Any) -> Any:
        b = self.b
        alike = tirx.And(as_expr(self.rank) > 0, tirx.EQ(self.mixed.get(), const(0)))
        with b.when(alike):
            self._adapt(tile, row, self.adapters.slot(row))
        memory = tile.spill()
        if tile.rows > 1:
            apart = tirx.NE(self.mixed.get(), const(0))
            with b.when(apart), b.loop(opaque(b, tile.rows), name="r") as r:
                self._adapt_in(memory, tile.width, r, b.let(row + r))
        return memory

    def _adapt_in(self, memory: Any, width: int, r: Any, row: Any) -> None:
        """One row of a tile in memory."""
        b = self.b
        slot = self.adapters.slot(row)
        with b.when(slot > 0):
            tile = RegisterTile(b, 1, width)
            with b.loop(width, "vectorized") as lane:
                tile.put(0, lane, b.load(memory, r * width + lane))
            self._adapt(tile, row, slot)
            with b.loop(width, "vectorized") as lane:
                b.store(memory, r * width + lane, tile.at(0, lane))

    def _adapt(self, tile: RegisterTile, row: Any, slot: Any) -> None:
        """gain · sums + t · b + bias, for every change that is about the panel."""
        b = self.b
        with b.when(slot > 0):
            for number in range(self.changes):
                entry = self.adapters.entry(number, slot)
                panel = b.let(self.place[0] - self.adapters.field(entry, FIRST))
                with b.when(self._is_about(entry, panel)):
                    self._change(tile, row, number, entry, panel)

    def _change(self, tile: RegisterTile, row: Any, number: int, entry: Any, panel: Any) -> None:
        b, adapters, pool, within = self.b, self.adapters, self.adapters.pool, self.place[1]
        rank, factor, gain, bias = (adapters.field(entry, c) for c in (RANK, B, GAIN, BIAS))
        column = b.let(panel * PANEL + within)

        def line(start: Any, combine: Any) -> None:
            with b.when(start >= 0), b.loop(tile.width, "vectorized") as lane:
                value = b.let(b.load(pool, start + column + lane))
                for r in range(tile.rows):
                    tile.put(r, lane, combine(tile.at(r, lane), value))

        line(gain, lambda total, value: total * value)
        factor = b.let(factor + panel * (rank * PANEL) + within)
        left = b.let(row * self.stride + number * self.rank)
        with b.loop(rank, name="j") as j:
            scalars = [b.load(self.t, left + r * self.stride + j) for r in range(tile.rows)]
            tile.step(scalars, lambda lane: b.load(pool, factor + j * PANEL + lane))
        line(bias, lambda total, value: total + value)
