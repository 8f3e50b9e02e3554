"""Depthwise convolutions of bytes on chips that add the products of four bytes in one instruction.

Four bytes that meet four weights are those of one channel in four input rows: the vectors of 16
channels that lie below each other in one column become one of 16 groups. Each such column serves
all taps along a row, and, where its rows are more than a window has, two output rows or more, whose
weights are 0 in the others' places.
                                                 rows 0 1 2 3 of a column
    3 taps, stride 1: weights of output row 0:        a b c 0
                      weights of output row 1:        0 a b c

Rows beyond the input's edge are read from the nearest one, and their weights are set to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import BYTES
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.conv_plan import check_places
from cuvilc.targets.schedules.conv_rows import cut_rows
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_taps import columns_of, tile_groups
from cuvilc.targets.schedules.conv_window import BLOCK, Axis, axes_of
from cuvilc.targets.schedules.dot_tile import (
    LaneTile,
    column_of,
    dot_lanes,
    lanes_of,
    store_lanes,
)
from cuvilc.targets.schedules.microkernel import anchor_of, greater, lesser, split
from cuvilc.targets.tir import const

_GROUP = BYTES.group
_MOST_TAPS = 49
_MOST_ROWS = 4  # of output that share columns
_MOST_PIXELS = 12  # of a tile; beyond, it only grows the code
_RESERVED = 3  # registers for a column that is being made
_KEPT = 9  # more weights than this are read again for each product
_COLUMN = 5  # instructions that make a column
_BYTES = [const(v, "int32") for v in (0xFF, 0xFF << 8, 0xFF << 16, -(1 << 24))]


@dataclass(frozen=True)
class _Plan:
    anchor: Any
    images: Dim
    channels: int
    height: Axis
    width: Axis

    def span(self, rows: int) -> int:
        """Input rows of so many output rows."""
        return (rows - 1) * self.height.stride + self.height.kernel

    def groups(self, rows: int) -> int:
        """Groups of neighbouring input rows."""
        return -(-self.span(rows) // _GROUP)

    def taps(self, row: int, group: int) -> list[int]:
        """For the places of a group the tap of an output row that is there; those outside the
        window have none.
        """
        first = group * _GROUP - row * self.height.stride
        return list(range(first, first + _GROUP))

    def weights(self, rows: int) -> list[tuple[int, int, int]]:
        """(group, output row, tap along W) of all groups of weights that are not 0."""
        inside = range(self.height.kernel)
        return [
            (group, row, tap)
            for group in range(self.groups(rows))
            for row in range(rows)
            if any(t in inside for t in self.taps(row, group))
            for tap in range(self.width.kernel)
        ]

    def cost(self, rows: int) -> float:
        """Instructions of a pixel, about."""
        columns = self.groups(rows) * _COLUMN * self.width.stride
        return (len(self.weights(rows)) + columns) / rows

    @property
    def rows(self) -> int:
        """Output rows that share columns."""
        count = self.height.count
        assert isinstance(count, int), "of known sizes"
        return min(range(1, min(_MOST_ROWS, count) + 1), key=self.cost)

    def pixels(self, chip: Chip) -> int:
        """Of the widest tile."""
        kept = len(self.weights(self.rows))
        free = chip.registers - _RESERVED - (kept if kept <= _KEPT else 0)
        return min(free // self.rows, _MOST_PIXELS)


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv_integer of uint8 and int8 with as many groups as channels, centred, no weights' zero
    point, of known sizes, with an epilogue.
    """
    if BYTES.function not in chip.fast_dots or chip.lanes != BLOCK:
        raise Miss("no instruction for products of 16 groups")
    plan = _plan_of(region)
    return vectorized(lambda vector: _DotDepthwise(region, chip, name, plan, vector).build())


def _plan_of(region: Region) -> _Plan:
    anchor = anchor_of(region, BYTES.conv)
    attrs = ir.attrs(anchor)
    x, w = (ir.type_of(v) for v in anchor.operands[:2])
    result = ir.type_of(anchor.results[0])
    channels = w.shape[0]
    if w.shape[1] != 1 or attrs["groups"] != channels or not isinstance(channels, int):
        raise Miss("not one input and one output channel a group")
    if (x.dtype, w.dtype) != (BYTES.left, BYTES.right) or not attrs["centred"]:
        raise Miss(f"not {BYTES.left} and {BYTES.right}, or not centred")
    if w.layout != f"pack0_{BLOCK}" or not x.layout:
        raise Miss("weights or input in row-major order")
    check_places(region, anchor, x, w, result)
    height, width = axes_of(x.shape, result.shape, w.shape[2:], attrs)
    static = all(axis.is_static and axis.count and axis.size for axis in (height, width))
    if not static or height.dilation != 1:
        raise Miss("sizes known only at run time, or rows of taps that are no neighbours")
    if height.kernel * width.kernel > _MOST_TAPS or width.kernel > 2 * _GROUP:
        raise Miss("a large window")
    if len(anchor.operands) > 3:
        raise Miss("zero points of weights")
    return _Plan(anchor, x.shape[0], channels, height, width)


class _DotDepthwise:
    """The kernel's loops: task, block of channels, rows, tile."""

    def __init__(self, region: Region, chip: Chip, name: str, plan: _Plan, vectorize: bool) -> None:
        self.plan, self.chip = plan, chip
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.x, self.w = (self.emitter.argument(v) for v in plan.anchor.operands[:2])
        taps = plan.height.kernel * plan.width.kernel
        self.store = ChannelStore(self.emitter, plan.anchor, plan.channels, vectorize, taps, chip)
        self.rows, self.weights = plan.rows, plan.weights(plan.rows)
        self.zero = self._zero()
        self.cut = self._cut(taps)
        self.line = self.b.scalar(plan.width.size) * BLOCK  # bytes of an input row

    def _zero(self) -> Any:
        """x's zero point in each byte of a group; None where it is 0."""
        if len(self.plan.anchor.operands) < 3:
            return None
        zero = self.emitter.accessor(self.plan.anchor.operands[2])
        level = self.b.simplify(self.k.cast(zero[(0,) * len(zero.shape)], "int32"))
        if isinstance(level, tirx.IntImm) and level.value == 0:
            return None
        return self.b.let(level * const(0x01010101, "int32"))

    def _cut(self, taps: int) -> tuple[int, int]:
        """(rows, blocks) in a task: whole groups of rows, unless there is but one task of them."""
        height, width = self.plan.height.count, self.plan.width.count
        rows, blocks = cut_rows(height, width, taps, self.chip, self.plan.channels)
        return -(-rows // self.rows) * self.rows, blocks

    def build(self) -> Scheduled:
        plan, b, (rows, together) = self.plan, self.b, self.cut
        count, blocks = plan.height.count, -(-plan.channels // BLOCK)
        row_groups, block_groups = ceildiv(count, rows), -(-blocks // together)
        plane = b.scalar(plan.height.size) * self.line
        with b.tasks() as t:
            group, rest = split(self.emitter, t, b.scalar(row_groups))
            some, image = split(self.emitter, rest, block_groups)
            low = b.let(group * rows)
            high = b.let(lesser(low + rows, b.scalar(count)))
            first = b.let(some * together)
            last = lesser(first + together, blocks)
            with b.loop(last - first, start=first, name="c") as block:
                table = self._table(block)
                start = b.let((image * blocks + block) * plane)
                whole = b.let(self.k.floordiv(high - low, self.rows))
                with b.loop(whole, name="h") as i:
                    self._lines(image, block, start, table, low + i * self.rows, self.rows)
                if not (isinstance(count, int) and count % self.rows == 0):
                    done = b.let(low + whole * self.rows)
                    with b.loop(high - done, start=done, name="h") as oh:
                        self._lines(image, block, start, table, oh, 1)
        tasks = plan.images * block_groups * row_groups
        flops = plan.height.tap_count() * plan.width.tap_count() * (2 * plan.channels)
        return self.emitter.finish("depthwise-int8", tasks, flops * plan.images)

    def _table(self, block: Any) -> Any:
        """All groups of weights of a block."""
        b, plan = self.b, self.plan
        table = b.local(len(self.weights) * BLOCK, "int32")
        kernel, across = range(plan.height.kernel), plan.width.kernel
        for n, (group, row, kw) in enumerate(self.weights):
            places = [
                (block * len(kernel) * across + t * across + kw) * BLOCK if t in kernel else None
                for t in plan.taps(row, group)
            ]
            store_lanes(b, table, n, column_of(b, self.chip, self.w, places))
        return table

    def _lines(self, image: Any, block: Any, start: Any, table: Any, oh: Any, rows: int) -> None:
        """So many output rows from `oh` on."""
        plan, b, height = self.plan, self.b, self.plan.height
        oh = b.let(oh)
        inputs, masks = [], [const(0, "int32")] * plan.groups(rows)
        for i in range(plan.span(rows)):
            row = b.let(oh * height.stride + (i - height.pad))
            if not height.all_inside:
                near = b.let(greater(lesser(row, b.scalar(height.size) - 1), 0))
                byte = self.k.select(self.k.eq(row, near), _BYTES[i % _GROUP], const(0, "int32"))
                masks[i // _GROUP] = b.let(masks[i // _GROUP] | byte)
                row = near
            inputs.append(b.let(start + row * self.line))
        weights = table if height.all_inside else self._inside(table, masks, rows)
        sums = self._start(block, weights, rows)
        for width, starts in tile_groups(plan.width, plan.pixels(self.chip), True):
            with b.loop(len(starts), name="w") as i:
                ow = starts[0] if len(starts) == 1 else b.let(i * width + starts[0])
                tile = self._tile(inputs, weights, sums, ow, starts[0], width, rows)
                self._store(tile, image, block, oh, ow, width, rows)

    def _inside(self, table: Any, masks: list[Any], rows: int) -> Any:
        """The weights, 0 for rows beyond the edge."""
        b = self.b
        kept = b.local(len(self.weights) * BLOCK, "int32")
        for n, (group, row, _) in enumerate(self.weights):
            if row < rows:
                mask = tirx.Broadcast(masks[group], BLOCK)
                store_lanes(b, kept, n, lanes_of(table, n) & mask)
        return kept

    def _start(self, block: Any, weights: Any, rows: int) -> Any:
        """What sums of each output row begin with, if not with 0: the terms of the epilogue less
        what the zero point adds.
        """
        b, terms = self.b, self.store.terms(block)
        if terms is None and self.zero is None:
            return None
        sums = b.local(rows * BLOCK, "int32")
        with b.loop(BLOCK, "vectorized") as lane:
            first = const(0, "int32") if terms is None else b.let(terms(lane))
            for row in range(rows):
                b.store(sums, row * BLOCK + lane, first)
        nothing = tirx.Broadcast(const(0, "int32"), BLOCK)
        for row in range(rows if self.zero is not None else 0):
            total: Any = nothing
            for n, (_, mine, _) in enumerate(self.weights):
                if mine == row:
                    total = dot_lanes(b, self.chip, total, self._splat(), lanes_of(weights, n))
            store_lanes(b, sums, row, lanes_of(sums, row) - total)
        return sums

    def _splat(self) -> Any:
        """A column of zero points."""
        return tirx.Broadcast(self.zero, BLOCK)

    def _tile(
        self, inputs: list[Any], weights: Any, sums: Any, ow: Any, first: int, width: int, rows: int
    ) -> LaneTile:  # fmt: skip
        """rows × width sums from column `ow` on, whose taps lie inside as those from `first` do."""
        plan, b, axis = self.plan, self.b, self.plan.width
        assert isinstance(axis.size, int), "of known sizes"
        tile = LaneTile(b, self.chip, rows * width)
        if sums is not None:
            for p in range(rows * width):
                store_lanes(b, tile.memory, p, lanes_of(sums, p // width))
        begin = b.let(ow * (axis.stride * BLOCK) - axis.pad * BLOCK)
        for place, uses in columns_of(axis, first, width, self.zero is not None):
            inside = 0 <= first * axis.stride - axis.pad + place < axis.size
            for group in range(plan.groups(rows)):
                column = self._column(inputs, group, begin + place * BLOCK) if inside else None
                for n, (mine, row, kw) in enumerate(self.weights):
                    if mine == group and row < rows and kw in uses:
                        a = self._splat() if column is None else lanes_of(column, 0)
                        tile.add_products(row * width + uses[kw], a, lanes_of(weights, n))
        return tile

    def _column(self, inputs: list[Any], group: int, at: Any) -> Any:
        rows = inputs[group * _GROUP : (group + 1) * _GROUP]
        column = self.b.local(BLOCK, "int32")
        places = [row + at for row in rows]
        store_lanes(self.b, column, 0, column_of(self.b, self.chip, self.x, places))
        return column

    def _store(
        self, tile: LaneTile, image: Any, block: Any, oh: Any, ow: Any, width: int, rows: int
    ) -> None:
        place = self.store.pixels(oh, ow, width if rows > 1 else 0)
        self.store.tile(tile, image, block, 1, place, line=width)
