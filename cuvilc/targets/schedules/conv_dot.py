"""Convolutions on groups of narrow numbers: pixels × output channels kept in registers.

A task is some output rows of some units of output channels of one image. It first lays the input
rows that it needs into scratch memory, channels innermost, with what lies beyond the edge around
them. So there are no edges left, and the taps along a row are one reduction over neighbouring
bytes; float32 becomes bfloat16 on the way. Copying costs an element for every (taps · output
channels) multiplications.

A convolution of one tap and no padding reads blocks of channels where they lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv
from cuvilc.dialect.dot_layout import dot_parts
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.conv_plan import check_places
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_taps import Taps, over_row
from cuvilc.targets.schedules.conv_window import BLOCK, Axis, axes_of
from cuvilc.targets.schedules.dot_tile import (
    BYTES,
    GROUP_BYTES,
    Dots,
    DotTile,
    dot_rows,
    load_group,
)
from cuvilc.targets.schedules.gemm_dot import kind_of
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import (
    anchor_of,
    first_of,
    greater,
    lesser,
    opaque,
    split,
    unrolled_steps,
)

_TASK_FLOPS = 8e6  # about 20 us
_SLACK = 32  # bytes after a row: a vector's end, a group's end
_USUAL_WIDTH = 56
_MOST_UNROLLED = 16


@dataclass
class Plan:
    """Sizes and decisions; a unit is the output channels of a register tile."""

    anchor: Any
    dots: Dots
    images: Dim
    height: Axis
    width: Axis
    channels: int  # input channels of a group
    outputs: int
    groups: int
    blocked_input: bool
    unit_blocks: int
    pixels: int  # of the largest tile
    tile_rows: int = 1  # output rows in a tile
    rows: int = 1  # in a task
    units: int = 1  # in a task

    @property
    def blocks(self) -> int:
        return -(-self.outputs // BLOCK)

    @property
    def unit_count(self) -> int:
        return -(-self.blocks // self.unit_blocks)

    @property
    def unit_groups(self) -> int:
        return -(-self.unit_count // self.units)

    @property
    def row_groups(self) -> Dim:
        return ceildiv(self.height.count, self.rows)

    @property
    def tasks(self) -> Dim:
        return self.images * self.unit_groups * self.row_groups

    @property
    def flops(self) -> Dim:
        taps = self.height.kernel * self.width.kernel
        count = self.height.count * self.width.count
        return count * (2 * self.outputs * self.channels * taps) * self.images

    @property
    def runs(self) -> tuple[int, int]:
        """(runs of neighbouring bytes that a window's row is, groups in each)."""
        if self.width.dilation == 1:
            return 1, -(-self.width.kernel * self.channels // self.dots.group)
        return self.width.kernel, self.channels // self.dots.group

    @property
    def direct(self) -> bool:
        """Whether input is read where it lies."""
        one = all((a.kernel, a.pad) == (1, 0) and a.all_inside for a in (self.height, self.width))
        whole = self.channels % self.dots.group == 0 and self.dots is BYTES
        return one and self.blocked_input and whole

    @property
    def columns(self) -> Dim:
        """Input columns that windows reach, padding included."""
        return _reach(self.width, self.width.count)


def _reach(axis: Axis, count: Dim) -> Dim:
    return (count - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv_integer that is not centred, or ai.conv_mixed, in one or two dimensions, with an
    epilogue.
    """
    plan = plan_of(region, chip)
    return vectorized(lambda vector: _Conv(region, chip, name, plan, vector).build())


def plan_of(region: Region, chip: Chip) -> Plan:
    """Decide everything that needs no code. Raises Miss."""
    dots = kind_of(region)
    anchor = anchor_of(region, dots.conv)
    attrs = ir.attrs(anchor)
    x, w = (ir.type_of(v) for v in anchor.operands[:2])
    result = ir.type_of(anchor.results[0])
    fits = (x.dtype, w.dtype) in ((dots.left, dots.right), ("float32", dots.right))
    if attrs.get("centred") or not fits:
        raise Miss(f"not plain sums of {dots.left} and {dots.right}")
    check_places(region, anchor, x, w, result)
    groups, outputs, channels = attrs["groups"], w.shape[0], w.shape[1]
    if not (isinstance(outputs, int) and isinstance(channels, int)):
        raise Miss("channels known only at run time")
    if not w.layout.startswith("dot") or dot_parts(w.layout) != (0, PANEL, dots.group):
        raise Miss(f"weights in layout {w.layout or 'row-major'}")
    if groups > 1 and (channels % BLOCK or (outputs // groups) % PANEL):
        raise Miss(f"{groups} groups of {channels} channels")
    height, width = axes_of(x.shape, result.shape, w.shape[2:], attrs)
    if width.dilation != 1 and channels % dots.group:
        raise Miss("dilated taps of channels that are not whole groups")
    unit_blocks = 2 if outputs > BLOCK and chip.lanes * 2 >= PANEL else 1
    plan = Plan(
        anchor, dots, x.shape[0], height, width, channels, outputs, groups, bool(x.layout),
        unit_blocks, dot_rows(chip, dots, unit_blocks * BLOCK),
    )  # fmt: skip
    _group(plan)
    return plan


def _group(plan: Plan) -> None:
    """Rows for tiles of short rows, then rows for tasks, then units."""
    count = plan.width.count
    if isinstance(count, int) and isinstance(plan.height.count, int) and count:
        plan.tile_rows = max(1, min(plan.pixels // count, plan.height.count))
    taps = plan.height.kernel * plan.width.kernel
    known = count if isinstance(count, int) else _USUAL_WIDTH
    unit_flops = max(2 * known * plan.unit_blocks * BLOCK * plan.channels * taps, 1)
    per_group = plan.unit_count // plan.groups if plan.groups > 1 else plan.unit_count
    rows = max(1, round(_TASK_FLOPS / unit_flops))
    plan.units = max(1, min(per_group, rows // 4))
    while per_group % plan.units and plan.groups > 1:
        plan.units -= 1
    rows = max(1, -(-rows // plan.units))
    rows = -(-rows // plan.tile_rows) * plan.tile_rows
    if isinstance(plan.height.count, int) and plan.height.count:
        groups = -(-plan.height.count // rows)
        even = -(-plan.height.count // groups)
        plan.rows = min(-(-even // plan.tile_rows) * plan.tile_rows, plan.height.count)
    else:
        plan.rows = min(rows, 8)


class _Conv:
    def __init__(self, region: Region, chip: Chip, name: str, plan: Plan, vectorize: bool) -> None:
        self.chip, self.plan = chip, plan
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        x, w, *more = plan.anchor.operands
        outside = more if plan.dots is BYTES else []
        self.x, self.w = self.emitter.argument(x), self.emitter.argument(w)
        runs, groups = plan.runs
        self.steps = plan.height.kernel * runs * groups  # of a block of weights
        self.store = ChannelStore(
            self.emitter, plan.anchor, plan.outputs, vectorize, self.steps * plan.dots.group
        )
        self.input: _Patch | _Blocks
        if plan.direct:
            self.input = _Blocks(self.emitter, plan, self.x)
        else:
            self.input = _Patch(self.emitter, plan, self.x, outside[0] if outside else None)

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
        sets = DotTile.sets_for(self.chip, rows * width, blocks * BLOCK)
        tile = DotTile(b, self.chip, self.plan.dots, rows * width, blocks * BLOCK, sets)
        down, across = self.input.steps
        places = [r * down + p * across for r in range(rows) for p in range(width)]
        start = b.let(self.input.start(low, oh, ow))
        self.input.runs(start, weights, lambda *run: self._run(tile, places, *run))
        tile.gather_sets()

        def place(p: Any) -> tuple[Any, ...]:
            if rows == 1:
                return pixels(p)
            line = self.k.floordiv(p, width)
            return oh + line, ow + (p - line * width)

        pixels = self.store.pixels(oh, ow)
        self.store.tile(tile, image, block, blocks, place)

    def _run(self, tile: DotTile, places: list[Any], at: Any, panel: Any, groups: int) -> None:
        """So many neighbouring groups from byte `at` of each pixel on."""
        b = self.b

        def step(g: Any, s: int) -> None:
            scalars = [load_group(b, self.input.buffer, at + p + g * GROUP_BYTES) for p in places]
            tile.step(scalars, lambda lane: (self.w, panel + (g * PANEL + lane) * GROUP_BYTES), s)

        steps = unrolled_steps(self.chip, tile.rows, tile.width, tile.sets)
        turns: Any = groups // steps
        if groups <= _MOST_UNROLLED:  # LLVM would unroll the loop, and then spill the sums
            turns = opaque(b, turns)
        with b.loop(turns, name="g") as i:
            for s in range(steps):
                step(i * steps + s, s % tile.sets)
        for s in range(groups % steps):
            step(groups - groups % steps + s, s % tile.sets)


class _Blocks:
    """Input read where it lies: `runs` are blocks of channels. Offsets are bytes."""

    def __init__(self, emitter: Emitter, plan: Plan, x: Any) -> None:
        self.plan, self.buffer = plan, x
        self.b, self.k = emitter.builder, emitter.k
        line = self.b.scalar(plan.width.size) * BLOCK
        self._plane = self.b.scalar(plan.height.size * plan.width.size) * BLOCK
        self.steps = (plan.height.stride * line, plan.width.stride * BLOCK)
        self.width = plan.width
        self._task: Any = 0

    def begin_task(self, image: Any, group: Any, low: Any, high: Any) -> None:
        blocks = -(-self.plan.channels // BLOCK)
        first = image * (-(-self.plan.channels * self.plan.groups // BLOCK)) + group * blocks
        self._task = self.b.let(first * self._plane)

    def start(self, low: Any, oh: Any, ow: Any) -> Any:
        return self._task + oh * self.steps[0] + ow * self.steps[1]

    def runs(self, start: Any, weights: Any, run: Callable[[Any, Any, int], None]) -> None:
        """`run(where the input begins, where weights begin, groups)` for each block."""
        b, groups = self.b, BLOCK // BYTES.group
        whole, left = divmod(self.plan.channels, BLOCK)

        def block(c: Any, groups: int) -> None:
            at = opaque(b, start + c * self._plane)
            run(at, opaque(b, weights + c * (BLOCK * PANEL)), groups)

        with b.loop(whole, name="c") as c:
            block(c, groups)
        if left:
            block(whole, left // BYTES.group)


class _Patch:
    """The input rows of a task in scratch memory: [rows, columns, channels], padding included.

    Vectors of 16 elements are stored in the order of addresses, so that what one writes too much
    the next overwrites.
    """

    def __init__(self, emitter: Emitter, plan: Plan, x: Any, outside: Any) -> None:
        self.emitter, self.plan, self.x = emitter, plan, x
        self.b, self.k = emitter.builder, emitter.k
        self._outside = emitter.accessor(outside) if outside is not None else None
        row = plan.columns * plan.channels + _SLACK
        rows = _reach(plan.height, plan.rows)
        self.stride = self.b.scalar((row + 15) // 16 * 16)
        self.dtype, item = plan.dots.left, plan.dots.item
        self.buffer = self.b.scratch(rows * ((row + 15) // 16 * 16), self.dtype)
        self.steps = (
            plan.height.stride * self.stride * item, plan.width.stride * plan.channels * item,
        )  # fmt: skip
        axis = plan.width
        self.width = Axis(plan.columns, axis.count, axis.kernel, axis.stride, 0, axis.dilation)

    def start(self, low: Any, oh: Any, ow: Any) -> Any:
        return (oh - low) * self.steps[0] + ow * self.steps[1]

    def runs(self, start: Any, weights: Any, run: Callable[[Any, Any, int], None]) -> None:
        """`run(where the input begins, where weights begin, groups)` for each row of taps; where
        they are dilated for each tap.
        """
        plan, b = self.plan, self.b
        count, groups = plan.runs
        item = plan.dots.item
        down = plan.height.dilation * self.stride * item
        with b.loop(plan.height.kernel, name="kh") as kh, b.loop(count, name="kw") as kw:
            tap = kw * (plan.width.dilation * plan.channels * item) if count > 1 else 0
            at = opaque(b, start + kh * down + tap)
            run(at, opaque(b, weights + (kh * count + kw) * (groups * PANEL * GROUP_BYTES)), groups)

    def begin_task(self, image: Any, group: Any, low: Any, high: Any) -> None:
        """Copy what the output rows [low, high) of an image read."""
        plan, b = self.plan, self.b
        height = plan.height
        first = b.let(low * height.stride - height.pad)
        count = (high - 1 - low) * height.stride + ((height.kernel - 1) * height.dilation + 1)
        if self._outside is None:
            outside: Any = self.k.const(0, self.dtype)
        else:
            outside = b.let(self._outside[(0,) * len(self._outside.shape)])
        with b.loop(b.let(count), name="r") as r:
            ih = b.let(first + r)
            to = b.let(r * self.stride)
            size = b.scalar(height.size)
            inside = self.k.both(self.k.ge(ih, 0), self.k.lt(ih, size))
            columns = b.scalar(plan.columns)
            certain = height.pad == 0 and height.all_inside
            cases: list[tuple[Any, Callable[[], None]]] = [
                (
                    None if certain else inside,
                    lambda: self._row(image, group, ih, to, outside),
                ),
                (None, lambda: self._fill(to, columns, outside)),
            ]
            first_of(b, cases)

    def _row(self, image: Any, group: Any, ih: Any, to: Any, outside: Any) -> None:
        plan, b = self.plan, self.b
        pad, size = plan.width.pad, b.scalar(plan.width.size)
        columns = b.scalar(plan.columns)
        inner = lesser(size, columns - pad)
        if not isinstance(inner, int):
            inner = b.let(greater(inner, 0))
        if pad:
            self._fill(to, lesser(pad, columns), outside)
        start = b.let(to + pad * plan.channels)
        if plan.blocked_input:
            self._blocks(image, group, ih, start, inner)
        else:
            self._plain(image, group, ih, start, inner)
        right = columns - pad - inner
        right = greater(right, 0)
        if not (isinstance(right, int) and right == 0):
            self._fill(b.let(start + inner * plan.channels), right, outside)

    def _fill(self, to: Any, columns: Any, outside: Any) -> None:
        b = self.b
        vectors = self.k.floordiv(columns * self.plan.channels + 15, 16)
        with b.loop(vectors, name="f") as i, b.loop(16, "vectorized") as lane:
            self.k.store(self.buffer, to + i * 16 + lane, outside, self.dtype)

    def _blocks(self, image: Any, group: Any, ih: Any, to: Any, count: Any) -> None:
        """From blocks of 16 channels."""
        plan, b = self.plan, self.b
        plane = b.scalar(plan.height.size * plan.width.size) * BLOCK
        blocks = -(-plan.channels // BLOCK)
        first = image * (-(-plan.channels * plan.groups // BLOCK))
        if plan.groups > 1:
            first = first + group * blocks
        source = b.let(first * plane + ih * (b.scalar(plan.width.size) * BLOCK))
        with b.loop(count, name="w") as w, b.loop(blocks, name="c") as c:
            at = b.let(source + c * plane + w * BLOCK)
            into = b.let(to + w * plan.channels + c * BLOCK)
            with b.loop(BLOCK, "vectorized") as lane:
                value = b.load(self.x, at + lane)
                self.k.store(self.buffer, into + lane, value, self.dtype)

    def _plain(self, image: Any, group: Any, ih: Any, to: Any, count: Any) -> None:
        """From row-major channels."""
        plan, b = self.plan, self.b
        plane = b.scalar(plan.height.size * plan.width.size)
        first = image * (plan.channels * plan.groups)
        if plan.groups > 1:
            first = first + group * plan.channels
        source = b.let(first * plane + ih * b.scalar(plan.width.size))
        with b.loop(count, name="w") as w, b.loop(plan.channels, name="c") as c:
            value = b.load(self.x, source + c * plane + w)
            self.k.store(self.buffer, to + w * plan.channels + c, value, self.dtype)
