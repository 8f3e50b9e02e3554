"""Matrix products whose rows have adapters of their own: ai.lora_matmul.

The product is gemm.py's. While a tile's sums are in registers, its reduction goes on for as many
steps as the adapter has rank, with t for the left operand and a panel of b for the right: the width
of an adapter costs what as many more columns of x would. A tile of rows that do not share an
adapter does so row by row. A run without adapters, and a tile without, costs a test.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import floordiv
from cuvilc.dialect.ops.lora_batch import BIAS, GAIN, RANK, B, Share, shares
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.gemm import Gemm
from cuvilc.targets.schedules.gemm_plan import PANEL, Plan, plan_of
from cuvilc.targets.schedules.lora_rows import Adapters, moved_bytes
from cuvilc.targets.schedules.microkernel import RegisterTile, opaque
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
        self.shares = shares(ir.attrs(plan.anchor)["parts"])
        columns = ir.type_of(t).shape[-1]
        self.stride = self.b.scalar(columns)
        self.rank = self.b.scalar(floordiv(columns, max(len(self.shares), 1)))

    def build(self) -> Scheduled:
        made = super().build()
        moved = moved_bytes(self.emitter.region, self.plan.anchor.operands[5])
        return replace(made, facts=replace(made.facts, bytes=moved))

    def spill(self, tile: RegisterTile, row: Any, panel: Any) -> Any:
        b, adapters = self.b, self.adapters
        share = PANEL // self.plan.width
        whole = b.let(self.emitter.k.floordiv(panel, share))
        within = b.let((panel - whole * share) * self.plan.width) if share > 1 else 0
        place = whole, within
        if tile.rows == 1:
            with b.when(as_expr(self.rank) > 0):
                self._adapt(tile, row, place, adapters.slot(row))
            return tile.spill()
        mixed = b.variable(const(0))
        with b.when(as_expr(self.rank) > 0):
            mixed.set(adapters.others(row, tile.rows))
            with b.when(tirx.EQ(mixed.get(), const(0))):
                self._adapt(tile, row, place, adapters.slot(row))
        memory = tile.spill()
        with b.when(tirx.NE(mixed.get(), const(0))), b.loop(opaque(b, tile.rows), name="r") as r:
            self._adapt_in(memory, tile.width, r, b.let(row + r), place)
        return memory

    def _adapt_in(self, memory: Any, width: int, r: Any, row: Any, place: Any) -> None:
        """One row of a tile in memory."""
        b = self.b
        slot = self.adapters.slot(row)
        with b.when(slot > 0):
            tile = RegisterTile(b, 1, width)
            with b.loop(width, "vectorized") as lane:
                tile.put(0, lane, b.load(memory, r * width + lane))
            self._adapt(tile, row, place, slot)
            with b.loop(width, "vectorized") as lane:
                b.store(memory, r * width + lane, tile.at(0, lane))

    def _adapt(self, tile: RegisterTile, row: Any, place: Any, slot: Any) -> None:
        """gain · sums + t · b + bias, for every part that has a share of the panel."""
        b = self.b
        with b.when(slot > 0):
            for number, share in enumerate(self.shares):
                first, last = share.first, share.first + share.panels
                whole = last * PANEL >= self.plan.n if isinstance(self.plan.n, int) else False
                if first == 0 and whole:
                    self._adapt_part(tile, row, place, slot, number, share)
                    continue
                with b.when(tirx.And(place[0] >= first, place[0] < last)):
                    self._adapt_part(tile, row, place, slot, number, share)

    def _adapt_part(
        self, tile: RegisterTile, row: Any, place: Any, slot: Any, number: int, share: Share
    ) -> None:
        b, adapters, pool = self.b, self.adapters, self.adapters.pool
        panel, within = place[0] - share.first, place[1]
        entry = adapters.entry(number, slot)
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
