"""ai.lora_merge as register tiles: a panel of outputs is a task, its rows go by in tiles.

A weight is read once and written once, so memory decides; the products are kept at the machine's
peak so that they hide behind it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv
from cuvilc.dialect.types import PANEL
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules.microkernel import (
    RegisterTile,
    anchor_of,
    balanced,
    first_of,
    powers_of_two,
    tile_rows,
)


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.lora_merge of a weight in panels of its outputs, or with its outputs last."""
    anchor = anchor_of(region, "ai.lora_merge")
    if len(region.operations) > 1:
        raise Miss("something is fused to the merge")
    t, axis = ir.type_of(anchor.operands[0]), ir.attrs(anchor)["out_axis"]
    packed = t.layout == f"pack{axis}_{PANEL}"
    if not packed and (t.layout or axis != t.rank - 1):
        raise Miss(f"outputs along axis {axis} of a weight in layout {t.layout!r}")
    return _Merge(region, chip, name, anchor, packed).build()


class _Merge:
    def __init__(self, region: Region, chip: Chip, name: str, anchor: Any, packed: bool) -> None:
        self.chip, self.packed = chip, packed
        t, axis = ir.type_of(anchor.operands[0]), ir.attrs(anchor)["out_axis"]
        self.outputs = t.static_shape[axis]
        self.rows = prod(d for i, d in enumerate(t.static_shape) if i != axis)
        self.rank: Dim = ir.type_of(anchor.operands[1]).shape[0]
        self.panels = ceildiv(self.outputs, PANEL)
        self.emitter = Emitter(region, name)
        self.b = self.emitter.builder
        self.w, self.a, self.factor, self.gain = (self.emitter.argument(v) for v in anchor.operands)
        self.out = self.b.buffer(len(region.arguments), "float32")

    def build(self) -> Scheduled:
        b = self.b
        rank = b.scalar(self.rank)
        sizes = balanced(self.rows, tile_rows(self.chip, PANEL))
        with b.tasks() as panel:
            factor = b.let(panel * (rank * PANEL))
            done = 0
            for size in dict.fromkeys(sizes):
                count = sizes.count(size)
                with b.loop(count, name="m") as i:
                    row = b.let(i * size + done)
                    self._tile(panel, factor, row, size, rank)
                done += count * size
        flops = self.panels * PANEL * self.rows * self.rank * 2
        return self.emitter.finish("lora-merge", self.panels, flops)

    def _tile(self, panel: Any, factor: Any, row: Any, size: int, rank: Any) -> None:
        b = self.b
        tile = RegisterTile(b, size, PANEL)
        with b.loop(rank, name="r") as r:
            at = b.let(r * self.rows + row)
            scalars = [b.load(self.a, at + i) for i in range(size)]
            tile.step(scalars, lambda lane: b.load(self.factor, factor + r * PANEL + lane))
        if self.packed or self.outputs % PANEL == 0:
            self._store(tile, panel, row, [(0, PANEL)])
            return
        some = powers_of_two(self.outputs % PANEL)
        cases = [
            (panel < self.panels - 1, lambda: self._store(tile, panel, row, [(0, PANEL)])),
            (None, lambda: self._store(tile, panel, row, some)),
        ]
        first_of(b, cases)

    def _store(
        self, tile: RegisterTile, panel: Any, row: Any, pieces: list[tuple[int, int]]
    ) -> None:
        b = self.b
        for i in range(tile.rows):
            start = b.let(
                (panel * self.rows + row + i) * PANEL
                if self.packed
                else (row + i) * self.outputs + panel * PANEL
            )
            for offset, width in pieces:
                with b.loop(width, "vectorized") as lane:
                    gain = b.load(self.gain, panel * PANEL + offset + lane)
                    w = b.load(self.w, start + offset + lane)
                    b.store(self.out, start + offset + lane, w * gain + tile.at(i, offset + lane))
