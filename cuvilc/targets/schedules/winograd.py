"""Convolutions by Winograd's filtering, on channel-blocked activations: one kernel a layer.

A task is some tiles of the result times some output channels. It transforms the inputs that the
tiles see into scratch, multiplies them for each of the n² points with that point's weights, and
transforms the products back, unit of output channels by unit, at whose store the epilogue follows.
Tasks of one call that differ only in output channels share the transformed inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region, Scheduled, vectorized
from cuvilc.targets.schedules import winograd_parts as parts
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import (
    balanced,
    first_of,
    greater,
    lesser,
    opaque,
    split,
)
from cuvilc.targets.schedules.winograd_plan import Plan, plan_of


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv_winograd with an elementwise epilogue."""
    plan = plan_of(region, chip)
    return vectorized(lambda vector: _Winograd(region, chip, name, plan, vector).build())


class _Winograd:
    def __init__(self, region: Region, chip: Chip, name: str, plan: Plan, vectorize: bool) -> None:
        self.chip, self.plan = chip, plan
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.x, self.u = (self.emitter.argument(v) for v in plan.anchor.operands[:2])
        self.store = ChannelStore(self.emitter, plan.anchor, plan.outputs, vectorize)
        # Scratch of [blocks of channels, n², rows, BLOCK]; an odd number of rows keeps the points
        # of a tile, which are written and read together, in different sets of the L1 cache.
        self.point_stride = (plan.room | 1) * BLOCK
        self.block_stride = plan.points**2 * self.point_stride
        self.seen = self.b.scratch(plan.channel_blocks * self.block_stride, "float32")
        self.made = self.b.scratch(plan.unit_blocks * self.block_stride, "float32")
        # Between the two halves of a transform; not on the stack, which is aligned to 16 bytes.
        self.half = self.b.scratch(plan.points**2 * BLOCK, "float32")

    def build(self) -> Scheduled:
        plan, b = self.plan, self.b
        with b.tasks() as t:
            unit_group, group = split(self.emitter, t, plan.unit_groups)
            low = b.let(group * plan.row_tiles)
            high = b.let(lesser(low + plan.row_tiles, b.scalar(plan.row_tile_count)))
            rows = _Rows(self, low, high)
            first = b.let(unit_group * plan.units)
            last = b.let(lesser(first + plan.units, plan.unit_count))
            if plan.unit_groups == 1:
                self._see_all(rows)
            else:
                with b.when(self.k.either(self.k.eq(t, b.begin), self.k.eq(unit_group, 0))):
                    self._see_all(rows)
            with b.loop(last - first, start=first, name="u") as unit:
                self._unit(rows, unit)
        return self.emitter.finish("winograd", plan.tasks, plan.flops)

    def _unit(self, rows: _Rows, unit: Any) -> None:
        plan = self.plan

        def of(blocks: int) -> None:
            block = self.b.let(unit * plan.unit_blocks)
            self._multiply(rows, block, blocks)
            rows.each(partial(self._finish, block, blocks))

        odd = plan.blocks % plan.unit_blocks
        cases: list[tuple[Any, Callable[[], None]]] = [(None, lambda: of(plan.unit_blocks))]
        if odd:
            cases[0] = (unit < plan.unit_count - 1, cases[0][1])
            cases.append((None, lambda: of(odd)))
        first_of(self.b, cases if plan.unit_count > 1 else cases[-1:])

    def _see_all(self, rows: _Rows) -> None:
        """Transform all inputs that the rows see."""
        plan, scalar = self.plan, self.b.scalar
        shape = (scalar(plan.tiles_down), scalar(plan.tiles_across), plan.channel_blocks)
        sizes = (scalar(plan.height), scalar(plan.width), *plan.pads)
        self.emitter.call(
            parts.inputs(self.chip, plan.tile, plan.stride), (self.x, self.seen, self.half),
            (rows.first, rows.last, *shape, *sizes, self.point_stride, self.block_stride),
        )  # fmt: skip

    def _multiply(self, rows: _Rows, block: Any, blocks: int) -> None:
        """The products of all points for `blocks` blocks of output channels."""
        plan, share = self.plan, PANEL // BLOCK
        panel = self.k.floordiv(block, share)
        of_panel = plan.weight_points**2 * plan.channels * PANEL
        weights = self.b.let(panel * of_panel + (block - panel * share) * BLOCK)
        self.emitter.call(
            parts.products(self.chip, rows.size, rows.spread, blocks, plan.channels % BLOCK),
            (self.seen, self.u, self.made),
            (plan.points, plan.weight_points, *rows.range, rows.many, weights,
             plan.channels, self.point_stride, self.block_stride),
        )  # fmt: skip

    # ---- the results

    def _finish(self, block: Any, blocks: int, row: Any, place: Any) -> None:
        """Transform the products of tile number `row` back, and store them."""
        plan, b, m = self.plan, self.b, self.plan.tile
        part = parts.results(self.chip, plan.tile, plan.stride)
        image, down, across = self.position(row)
        top, left = b.let(down * m), b.let(across * m)
        lines = self._count(top, plan.out_height)
        columns = self._count(left, plan.out_width)
        with b.loop(opaque(b, blocks), name="h") as h:
            source = b.let(h * self.block_stride + place * BLOCK)
            self.emitter.call(part, (self.made, self.half), (source, self.point_stride))
            channels = b.let(block + h)
            # LLVM shall unroll neither loop: what follows would be as often in the code.
            with b.loop(opaque(b, lines), name="i") as i, b.loop(opaque(b, columns), name="p") as p:
                at = b.let((i * plan.points + p) * BLOCK)
                self.store.pixel(self.half, at, image, channels, (top + i, left + p))

    def _count(self, start: Any, size: Any) -> Any:
        """Elements of a tile that begins at `start` along an axis."""
        m = self.plan.tile
        if isinstance(size, int) and size % m == 0:
            return m
        return self.b.let(lesser(self.b.scalar(size) - start, m))

    def position(self, row: Any) -> tuple[Any, Any, Any]:
        """(image, tile along H, tile along W) of a tile number."""
        across, rest = split(self.emitter, row, self.b.scalar(self.plan.tiles_across))
        down, image = split(self.emitter, rest, self.b.scalar(self.plan.tiles_down))
        return image, down, across


class _Rows:
    """The tiles of a task: those of row tiles [low, high)."""

    def __init__(self, owner: _Winograd, low: Any, high: Any) -> None:
        self.b, plan = owner.b, owner.plan
        b, total = self.b, plan.total
        if isinstance(total, int):  # row tiles of two sizes that differ by one, larger ones first
            sizes = balanced(total, plan.rows)
            self.size = sizes[0] if sizes else 1
            self.many = sizes.count(self.size)
            self.first, self.last = b.let(self.row_of(low)), b.let(self.row_of(high))
            self.spread = "even" if self.many == len(sizes) else "uneven"
            self.range = low, high
        else:
            self.size, self.many, self.spread = plan.rows, 0, "open"
            self.first = b.let(low * plan.rows)
            self.last = b.let(lesser(high * plan.rows, b.scalar(total)))
            self.range = self.first, self.last

    def row_of(self, tile: Any) -> Any:
        return tile * self.size - greater(tile - self.many, 0)

    def each(self, body: Callable[[Any, Any], None]) -> None:
        """body(tile number, its place in the scratch) of every tile."""
        with self.b.loop(self.last - self.first, start=self.first, name="r") as row:
            body(row, self.b.let(row - self.first))
