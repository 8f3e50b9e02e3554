"""Direct convolutions on channel-blocked activations: pixels × output channels kept in registers.

A task is some output rows, or a part of a long one where there are few, of some units of output
channels of one image; consecutive tasks share weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region, Scheduled, vectorized
from cuvilc.targets.schedules import conv_pointwise
from cuvilc.targets.schedules.conv_plan import Plan, plan_of, unit_cases
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_taps import Step, Taps, over_row
from cuvilc.targets.schedules.conv_window import BLOCK, column, dynamic_taps
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import (
    RegisterTile,
    first_of,
    lesser,
    named,
    opaque,
    select,
    split,
)


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv in one or two dimensions with an elementwise epilogue."""
    plan = plan_of(region, chip)
    if conv_pointwise.fits(plan):
        return conv_pointwise.schedule(region, chip, name, plan)
    return vectorized(lambda vector: _Conv(region, chip, name, plan, vector).build())


class _Conv:
    def __init__(self, region: Region, chip: Chip, name: str, plan: Plan, vectorize: bool) -> None:
        self.chip, self.plan = chip, plan
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        x, w = plan.anchor.operands[:2]
        self.w_dtype = ir.type_of(w).dtype
        self.x = self.emitter.argument(x)
        self.w = self.emitter.argument(w)
        steps = plan.channels * plan.height.kernel * plan.width.kernel
        self.store = ChannelStore(self.emitter, plan.anchor, plan.outputs, vectorize, steps)
        self.pixel = BLOCK if plan.blocked_input else 1  # distance of neighbouring pixels
        self.row = self.b.scalar(plan.width.size) * self.pixel
        self.plane = self.b.scalar(plan.height.size * plan.width.size) * self.pixel

    def build(self) -> Scheduled:
        plan, b = self.plan, self.b
        with b.tasks() as t:
            row_group, rest = split(self.emitter, t, b.scalar(plan.row_groups))
            part, rest = split(self.emitter, rest, b.scalar(plan.parts))
            image, unit_group = split(self.emitter, rest, b.scalar(plan.images))
            self.part = self._part(part)
            first_row = b.let(row_group * plan.rows)
            last_row = b.let(lesser(first_row + plan.rows, b.scalar(plan.height.count)))
            first = b.let(unit_group * plan.units)
            last = b.let(lesser(first + plan.units, plan.unit_count))
            with b.loop(last - first, start=first, name="u") as unit:
                self._unit(image, unit, first_row, last_row)
        return self.emitter.finish("conv", plan.tasks, plan.flops)

    def _part(self, part: Any) -> tuple[Any, Any] | None:
        """The tiles of a row that the task has."""
        plan, b = self.plan, self.b
        if not plan.part_tiles:
            return None
        first, tiles = b.let(part * plan.part_tiles), b.scalar(plan.row_tiles)
        last = part >= b.scalar(plan.parts) - 1
        return first, b.let(select(last, tiles, first + plan.part_tiles))

    def _unit(self, image: Any, unit: Any, first_row: Any, last_row: Any) -> None:
        plan = self.plan

        def of(width: int, channels: int | None) -> Callable[[], None]:
            return lambda: self._rows(image, unit, width, channels, first_row, last_row)

        first_of(self.b, unit_cases(plan, unit, of))

    def _rows(
        self, image: Any, unit: Any, width: int, exist: int | None, first_row: Any, last_row: Any
    ) -> None:
        plan, b, k = self.plan, self.b, self.k
        block = b.let(unit * plan.unit_blocks)
        panel = k.floordiv(block, PANEL // BLOCK)
        taps = plan.height.kernel * plan.width.kernel
        half = (block - panel * (PANEL // BLOCK)) * BLOCK
        weights = b.let(panel * (plan.channels * taps * PANEL) + half)
        start = image * plan.image_planes
        if plan.groups > 1:
            group = k.floordiv(block * BLOCK, plan.outputs // plan.groups)
            start = start + group * (plan.channels // self.pixel)
        plane = b.let(start * self.plane)
        with b.loop(last_row - first_row, start=first_row, name="h") as oh:
            first_tap, last_tap = dynamic_taps(self.emitter, plan.height, oh)
            at = (oh * plan.height.stride - plan.height.pad) * self.row
            tile = _Tile(
                self, image, block, (width, exist), weights, oh, first_tap, last_tap,
                b.let(plane + at),
            )  # fmt: skip
            over_row(self.emitter, plan.width, plan.pixels, tile.emit, part=self.part)


class _Tile:
    """Emits register tiles of one output row."""

    def __init__(
        self, conv: _Conv, image: Any, block: Any, channels: tuple[int, int | None], weights: Any,
        oh: Any, first_tap: Any, last_tap: Any, row: Any,
    ) -> None:  # fmt: skip
        """`channels`: (those of the tile, how many of them exist, if known)."""
        self.conv, self.image, self.block, (self.width, self.exist) = conv, image, block, channels
        self.weights, self.oh, self.row = weights, oh, row
        self.first_tap, self.last_tap = first_tap, last_tap
        self._down = conv.plan.height.dilation * conv.row

    def emit(self, ow: Any, width: int, taps: Taps) -> None:
        """`width` pixels from `ow`."""
        conv, plan = self.conv, self.conv.plan
        b = conv.b
        channels = self.width
        sets = RegisterTile.sets_for(conv.chip, width, channels) if width == 1 else 1
        sets = sets if plan.channels % sets == 0 else 1
        tile = RegisterTile(b, width, channels, sets)
        start = b.let(self.row + (ow * plan.width.stride - plan.width.pad) * conv.pixel)

        def nest(inner: Callable[[Step], None]) -> None:
            with b.loop(plan.channels // sets, name="c") as turn, self._tap_rows() as kh:
                places = [
                    (
                        opaque(b, start + self._channel(channel) + kh * self._down),
                        opaque(b, self._weights(channel, kh)),
                    )
                    for channel in (turn * sets + s for s in range(sets))
                ]

                def step(kw: Any, pixels: tuple[int, ...], edge: frozenset[int]) -> None:
                    for s, (at, weights) in enumerate(places):
                        scalars = self._scalars(ow, kw, at, edge)
                        place = named(b, weights + kw * PANEL, kw)
                        row = [scalars(p) if p in pixels else None for p in range(width)]
                        tile.step(row, partial(self._weight, place), s)

                inner(step)

        taps.over(nest)
        tile.gather_sets()
        pixels = conv.store.pixels(self.oh, ow)
        blocks = -(-channels // BLOCK)
        conv.store.tile(tile, self.image, self.block, blocks, pixels, exist=self.exist)

    def _scalars(self, ow: Any, kw: Any, at: Any, edge: frozenset[int]) -> Callable[[int], Any]:
        """The input element at tap `kw` of a pixel of the tile, whose first window begins at `at`;
        0 outside.
        """
        conv, axis = self.conv, self.conv.plan.width
        start = named(conv.b, at + kw * (axis.dilation * conv.pixel), kw)

        def scalar(p: int) -> Any:
            if p not in edge:
                return conv.b.load(conv.x, start + p * (axis.stride * conv.pixel))
            near, inside = column(conv.emitter, axis, ow + p, kw)
            away = near - (ow * axis.stride - axis.pad)
            x = conv.b.load(conv.x, at + away * conv.pixel)
            return conv.b.let(conv.k.select(inside, x, conv.k.const(0, "float32")))

        return scalar

    def _tap_rows(self) -> Any:
        return self.conv.b.loop(self.last_tap - self.first_tap, start=self.first_tap, name="kh")

    def _channel(self, channel: Any) -> Any:
        """Offset of an input channel."""
        conv = self.conv
        if not conv.plan.blocked_input:
            return channel * conv.plane
        block = conv.k.floordiv(channel, BLOCK)
        return block * conv.plane + (channel - block * BLOCK)

    def _weights(self, channel: Any, kh: Any) -> Any:
        height, width = self.conv.plan.height.kernel, self.conv.plan.width.kernel
        return self.weights + ((channel * height + kh) * width) * PANEL

    def _weight(self, start: Any, lane: Any) -> Any:
        return self.conv.k.load(self.conv.w, start + lane, self.conv.w_dtype)
