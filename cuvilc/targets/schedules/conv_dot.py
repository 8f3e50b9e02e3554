"""Convolutions on groups of narrow numbers: pixels × output channels kept in registers.

A task is some output rows of some units of output channels of one image. It first lays the input
rows that it needs into scratch memory, channels innermost, with what lies beyond the edge around
them. So there are no edges left, and the taps along a row are one reduction over neighbouring
bytes; float32 becomes bfloat16 on the way, and bytes int16 where those are multiplied. Copying
costs an element for every (taps · output channels) multiplications.

A convolution of one tap and no padding whose input needs no such change reads blocks of channels
where they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import GROUP_BYTES
from cuvilc.targets.region import Emitter, Region, Scheduled, vectorized
from cuvilc.targets.schedules.conv_dot_input import Blocks, Patch
from cuvilc.targets.schedules.conv_dot_plan import Plan, plan_of
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_taps import Taps, over_row
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.dot_rounding import Rounding
from cuvilc.targets.schedules.dot_tile import dot_tile, fetch_ahead, load_group, streams
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import (
    first_of,
    lesser,
    opaque,
    split,
    unrolled_steps,
)

_MOST_UNROLLED = 16


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv_integer that is not centred, or ai.conv_mixed, in one or two dimensions, with an
    epilogue.
    """
    plan = plan_of(region, chip)
    return vectorized(lambda vector: _Conv(region, chip, name, plan, vector).build())


class _Conv:
    """The kernel's loops: task, unit, rows, tile."""

    def __init__(self, region: Region, chip: Chip, name: str, plan: Plan, vectorize: bool) -> None:
        self.chip, self.plan = chip, plan
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        x, w, *more = plan.anchor.operands
        outside = more if plan.dots.sums == "int32" else []
        self.x, self.w = self.emitter.argument(x), self.emitter.argument(w)
        runs, groups = plan.runs
        self.steps = plan.height.kernel * runs * groups  # of a block of weights
        self.store = ChannelStore(
            self.emitter, plan.anchor, plan.outputs, vectorize, self.steps * plan.dots.group, chip
        )
        self.input: Patch | Blocks
        if plan.direct:
            self.input = Blocks(self.emitter, plan, self.x)
        else:
            rounding = Rounding(self.emitter, chip, plan.dots)
            self.input = Patch(
                self.emitter, plan, self.x, outside[0] if outside else None, rounding
            )

    def build(self) -> Scheduled:
        plan, b = self.plan, self.b
        with b.tasks() as t:
            row_group, rest = split(self.emitter, t, b.scalar(plan.row_groups))
            image, unit_group = split(self.emitter, rest, b.scalar(plan.images))
            low = b.let(row_group * plan.rows)
            high = b.let(lesser(low + plan.rows, b.scalar(plan.height.count)))
            first = b.let(unit_group * plan.units)
            last = b.let(lesser(first + plan.units, plan.unit_count))
            self.input.begin_task(image, self._group_of(first), low, high)
            with b.loop(last - first, start=first, name="u") as unit:
                self._unit(image, unit, low, high)
        return self.emitter.finish(f"conv-{plan.dots.label}", plan.tasks, plan.flops)

    def _group_of(self, unit: Any) -> Any:
        plan = self.plan
        per_group = plan.outputs // plan.groups
        return (
            0 if plan.groups == 1 else self.k.floordiv(unit * (plan.unit_blocks * BLOCK), per_group)
        )

    def _unit(self, image: Any, unit: Any, low: Any, high: Any) -> None:
        plan = self.plan

        def blocks(count: int) -> Callable[[], None]:
            return lambda: self._rows(image, unit, count, low, high)

        if plan.blocks % plan.unit_blocks == 0:
            blocks(plan.unit_blocks)()
            return
        cases = [(unit < plan.unit_count - 1, blocks(plan.unit_blocks)), (None, blocks(1))]
        first_of(self.b, cases)

    def _rows(self, image: Any, unit: Any, blocks: int, low: Any, high: Any) -> None:
        plan, b, k = self.plan, self.b, self.k
        block = b.let(unit * plan.unit_blocks)
        panel = k.floordiv(block, PANEL // BLOCK)
        half = (block - panel * (PANEL // BLOCK)) * BLOCK
        weights = b.let((panel * (self.steps * PANEL) + half) * GROUP_BYTES)

        def lines(rows: int, first: Any, count: Any) -> None:
            with b.loop(count, name="h") as i:
                oh = first + i * rows

                def tile(ow: Any, width: int, taps: Taps | None) -> None:
                    self._tile(image, block, blocks, weights, low, oh, ow, rows, width)

                if plan.tile_rows > 1:
                    assert isinstance(plan.width.count, int)
                    tile(0, plan.width.count, None)
                else:
                    over_row(self.emitter, self.input.width, plan.pixels, tile)

        if plan.tile_rows == 1:
            lines(1, low, high - low)
            return
        whole = b.let(k.floordiv(high - low, plan.tile_rows))
        lines(plan.tile_rows, low, whole)
        done = b.let(low + whole * plan.tile_rows)
        lines(1, done, high - done)

    def _tile(
        self, image: Any, block: Any, blocks: int, weights: Any, low: Any, oh: Any, ow: Any,
        rows: int, width: int,
    ) -> None:  # fmt: skip
        """rows × width pixels from (oh, ow)."""
        b = self.b
        tile = dot_tile(b, self.chip, self.plan.dots, rows * width, blocks * BLOCK)
        if (terms := self.store.terms(block)) is not None:
            tile.begin(terms)
        down, across = self.input.steps
        places = [r * down + p * across for r in range(rows) for p in range(width)]
        start = b.let(self.input.start(low, oh, ow))
        for part in tile.parts():
            self.input.runs(start, weights, partial(self._run, part, places))
        tile.gather_sets()

        place = self.store.pixels(oh, ow, width if rows > 1 else 0)
        if self.plan.turned:
            self.store.tile(tile, image, block, blocks, lambda p: place(p)[::-1])
        else:
            self.store.tile(tile, image, block, blocks, place)

    def _run(self, part: Any, places: list[Any], at: Any, panel: Any, groups: int) -> None:
        """So many neighbouring groups from byte `at` of each pixel on."""
        b, dots = self.b, self.plan.dots
        size = dots.group_bytes
        ahead = streams(part.rows, part.width)
        first = b.let(self.k.floordiv(panel, GROUP_BYTES)) if ahead else 0

        def step(g: Any, s: int) -> None:
            if ahead:
                fetch_ahead(b, self.w, first + g * PANEL)
            scalars = [load_group(b, self.input.buffer, at + p + g * size, dots) for p in places]
            part.step(scalars, lambda lane: (self.w, panel + (g * PANEL + lane) * GROUP_BYTES), s)

        steps = unrolled_steps(self.chip, part.rows, part.width, part.sets)
        turns: Any = groups // steps
        if groups <= _MOST_UNROLLED:  # LLVM would unroll the loop, and then spill the sums
            turns = opaque(b, turns)
        with b.loop(turns, name="g") as i:
            for s in range(steps):
                step(i * steps + s, s % part.sets)
        for s in range(groups % steps):
            step(groups - groups % steps + s, s % part.sets)
