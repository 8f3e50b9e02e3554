"""Convolutions by Winograd's filtering, on channel-blocked activations: one kernel a layer.

A task is some tiles of the result times some output channels. It transforms the inputs that the
tiles see into scratch, multiplies them for each of the n² points with that point's weights, and
transforms the products back, unit of output channels by unit, at whose store the epilogue follows.
Tasks of one call that differ only in output channels share the transformed inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from cuvilc.dialect.winograd import MATRICES
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region, Scheduled, vectorized
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import (
    RegisterTile,
    balanced,
    first_of,
    greater,
    lesser,
    opaque,
    split,
    unrolled_steps,
)
from cuvilc.targets.schedules.winograd_plan import Plan, plan_of
from cuvilc.targets.schedules.winograd_transforms import combine
from cuvilc.targets.tir import Buffer, const


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
        self.lanes = "vectorized" if vectorize else "serial"
        # Scratch of [blocks of channels, n², rows, BLOCK]; an odd number of rows keeps the points
        # of a tile, which are written and read together, in different sets of the L1 cache.
        self.point_stride = (plan.room | 1) * BLOCK
        self.block_stride = plan.points**2 * self.point_stride
        self.seen = self.b.scratch(plan.channel_blocks * self.block_stride, "float32")
        self.made = self.b.scratch(plan.unit_blocks * self.block_stride, "float32")
        # Between the two halves of a transform; not on the stack, which is aligned to 16 bytes.
        self.half = self.b.scratch(plan.points**2 * BLOCK, "float32")
        self.matrices = MATRICES[plan.tile, plan.stride]

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

    # ---- the inputs

    def _see_all(self, rows: _Rows) -> None:
        with self.b.loop(self.plan.channel_blocks, name="c") as block:
            rows.each(partial(self._see, block))

    def _see(self, block: Any, row: Any, place: Any) -> None:
        """Transform a block of channels of what tile number `row` sees to row `place` of the
        scratch.
        """
        plan, b, k = self.plan, self.b, self.k
        image, down, across = self.position(row)
        top, left = (
            b.let(at * plan.step - pad) for at, pad in zip((down, across), plan.pads, strict=True)
        )
        height, width = b.scalar(plan.height), b.scalar(plan.width)
        inside = [k.ge(top, 0), k.ge(left, 0)]
        inside += [k.le(top + plan.points, height), k.le(left + plan.points, width)]
        known = [b.decide(c) for c in inside]
        open_ones = [c for c, d in zip(inside, known, strict=True) if d is not True]
        condition: Any = None
        for c in open_ones:
            condition = c if condition is None else k.both(condition, c)
        plane = b.let((image * plan.channel_blocks + block) * height * width)
        start = b.let((plane + top * width + left) * BLOCK)  # may lie before the input
        to = b.let(block * self.block_stride + place * BLOCK)

        def whole() -> None:
            with self._turns("j") as j:
                self._see_column(j, start + j * BLOCK, lambda i, load: load())

        def partly() -> None:
            lines = [self._inside(top + i, height) for i in range(plan.points)]

            def load_or_zero(i: int, load: Callable[[], Any]) -> Any:
                return b.pick(lines[i], load, const(0.0, "float32"))

            with self._turns("j") as j:
                with b.when(self._inside(left + j, width)):
                    self._see_column(j, start + j * BLOCK, load_or_zero)
                with b.otherwise():
                    at = opaque(b, j * BLOCK)
                    with b.loop(BLOCK, self.lanes) as lane:
                        for i in range(plan.points):
                            zero = const(0.0, "float32")
                            b.store(self.half, at + i * plan.points * BLOCK + lane, zero)

        if condition is None:
            whole()
        elif any(d is False for d in known):
            partly()
        else:
            first_of(b, [(condition, whole), (None, partly)])
        self._see_lines(to)

    def _inside(self, at: Any, size: Any) -> Any:
        """Whether an index lies in [0, size)."""
        at = self.b.let(at)
        return self.b.let(self.k.both(self.k.ge(at, 0), self.k.lt(at, size)))

    def _see_column(
        self, j: Any, start: Any, value: Callable[[int, Callable[[], Any]], Any]
    ) -> None:
        """Transform column j, from `start` on, down; value(i, load) is load() or what is there
        instead in line i.
        """
        b, n = self.b, self.plan.points
        line = b.scalar(self.plan.width) * BLOCK
        start, to = opaque(b, start), opaque(b, j * BLOCK)
        with b.loop(BLOCK, self.lanes) as lane:
            values = [
                self.k.let(value(i, partial(b.load, self.x, start + i * line + lane)))
                for i in range(n)
            ]
            for i, made in enumerate(combine(self.k, self.matrices.input, values)):
                b.store(self.half, to + i * n * BLOCK + lane, made)

    def _see_lines(self, to: Any) -> None:
        """Transform the columns' results along lines, into the scratch."""
        b, n = self.b, self.plan.points
        with self._turns("i") as i:
            start, place = opaque(b, i * n * BLOCK), opaque(b, to + i * n * self.point_stride)
            with b.loop(BLOCK, self.lanes) as lane:
                values = [self.k.let(b.load(self.half, start + j * BLOCK + lane)) for j in range(n)]
                for j, made in enumerate(combine(self.k, self.matrices.input, values)):
                    b.store(self.seen, place + j * self.point_stride + lane, made)

    # ---- the products

    def _multiply(self, rows: _Rows, block: Any, blocks: int) -> None:
        """The products of all points for `blocks` blocks of output channels."""
        plan, b, k = self.plan, self.b, self.k
        n = plan.points
        share = PANEL // BLOCK
        panel = k.floordiv(block, share)
        of_point = plan.channels * PANEL
        of_panel = plan.weight_points**2 * of_point
        weights = b.let(panel * of_panel + (block - panel * share) * BLOCK)
        with b.loop(n * n, name="e") as point:
            base = b.let(weights + self._weight(point) * of_point)
            start = b.let(point * self.point_stride)
            rows.tiles(lambda place, size: self._tile(size, blocks, start + place * BLOCK, base))

    def _weight(self, point: Any) -> Any:
        """The number of the weight that a product takes."""
        n, k = self.plan.points, self.plan.weight_points
        if n == k:
            return point
        across, down = split(self.emitter, point, n)
        return lesser(down, k - 1) * k + lesser(across, k - 1)

    def _tile(self, size: int, blocks: int, source: Any, weights: Any) -> None:
        plan, b = self.plan, self.b
        width = blocks * BLOCK
        sets = RegisterTile.sets_for(self.chip, size, width)
        steps = unrolled_steps(self.chip, size, width, sets)
        tile = RegisterTile(b, size, width, sets)
        source, weights = b.let(source), b.let(weights)

        def step(row: Any, column: Any, s: int) -> None:
            scalars = [b.load(self.seen, row + r * BLOCK) for r in range(size)]
            tile.step(scalars, lambda lane: b.load(self.u, column + lane), s)

        def over(channels: int, row: Any, column: Any) -> None:
            whole = channels // steps
            with b.loop(whole, name="k") as turn:
                at = opaque(b, row + turn * steps)
                down = opaque(b, column + turn * (steps * PANEL))
                for s in range(steps):
                    step(at + s, down + s * PANEL, s % sets)
            for s in range(whole * steps, channels):
                step(row + s, column + s * PANEL, 0)

        full, rest = divmod(plan.channels, BLOCK)
        with b.loop(full, name="c") as c:
            row = b.let(source + c * self.block_stride)
            over(BLOCK, row, b.let(weights + c * (BLOCK * PANEL)))
        if rest:
            row = b.let(source + full * self.block_stride)
            over(rest, row, b.let(weights + full * (BLOCK * PANEL)))
        tile.gather_sets()
        for h in range(blocks):
            with b.loop(BLOCK, self.lanes) as lane:
                for r in range(size):
                    at = source + (h * self.block_stride + r * BLOCK)
                    b.store(self.made, at + lane, tile.at(r, lane + h * BLOCK))

    # ---- the results

    def _finish(self, block: Any, blocks: int, row: Any, place: Any) -> None:
        """Transform the products of tile number `row` back, and store them."""
        plan, b, n, m = self.plan, self.b, self.plan.points, self.plan.tile
        image, down, across = self.position(row)
        top, left = b.let(down * m), b.let(across * m)
        lines = self._count(top, plan.out_height)
        columns = self._count(left, plan.out_width)
        with b.loop(blocks, name="h") as h:
            source = b.let(h * self.block_stride + place * BLOCK)
            with self._turns("j") as j:
                start, to = opaque(b, source + j * self.point_stride), opaque(b, j * BLOCK)
                with b.loop(BLOCK, self.lanes) as lane:
                    step = n * self.point_stride
                    values = [
                        self.k.let(b.load(self.made, start + i * step + lane)) for i in range(n)
                    ]
                    for i, value in enumerate(combine(self.k, self.matrices.output, values)):
                        b.store(self.half, to + i * n * BLOCK + lane, value)
            with b.loop(opaque(b, lines), name="i") as i:
                pixels = _Pixels(self, i)
                where = self.store.pixels(top + i, left)
                self.store.tile(pixels, image, b.let(block + h), 1, where, columns)

    def _count(self, start: Any, size: Any) -> Any:
        """Elements of a tile that begins at `start` along an axis."""
        m = self.plan.tile
        if isinstance(size, int) and size % m == 0:
            return m
        return self.b.let(lesser(self.b.scalar(size) - start, m))

    def _turns(self, name: str) -> AbstractContextManager[Any]:
        """A loop over the points along an axis. LLVM shall not unroll it: that would take it 50 ms
        and gain nothing.
        """
        return self.b.loop(opaque(self.b, self.plan.points), name=name)

    def position(self, row: Any) -> tuple[Any, Any, Any]:
        """(image, tile along H, tile along W) of a tile number."""
        across, rest = split(self.emitter, row, self.b.scalar(self.plan.tiles_across))
        down, image = split(self.emitter, rest, self.b.scalar(self.plan.tiles_down))
        return image, down, across


class _Pixels:
    """A line of a tile's results as what ChannelStore takes: `at(p, lane)` is pixel p."""

    def __init__(self, owner: _Winograd, line: Any) -> None:
        self.owner, self.b = owner, owner.b
        self.start = opaque(self.b, line * owner.plan.points * BLOCK)
        self.rows, self.width = owner.plan.tile, BLOCK
        self._values: Sequence[Any] = ()

    def at(self, p: int, lane: Any) -> Any:
        if p == 0:
            self._values = self._compute(lane)
        return self._values[p]

    def _compute(self, lane: Any) -> list[Any]:
        k, half = self.owner.k, self.owner.half
        places = (self.start + j * BLOCK + lane for j in range(self.owner.plan.points))
        values = [k.let(self.b.load(half, at)) for at in places]
        return combine(k, self.owner.matrices.output, values)

    def spill(self) -> Buffer:
        b = self.b
        memory = b.local(self.rows * BLOCK, "float32")
        with b.loop(BLOCK, self.owner.lanes) as lane:
            for p, value in enumerate(self._compute(lane)):
                b.store(memory, const(p * BLOCK) + lane, value)
        return memory


class _Rows:
    """The tiles of a task: those of row tiles [low, high)."""

    def __init__(self, owner: _Winograd, low: Any, high: Any) -> None:
        self.b, plan = owner.b, owner.plan
        self.low, self.high = low, high
        b, total = self.b, plan.total
        if isinstance(total, int):  # row tiles of two sizes that differ by one, larger ones first
            sizes = balanced(total, plan.rows)
            self.size = sizes[0] if sizes else 1
            self.many = sizes.count(self.size)
            self.first, self.last = b.let(self.row_of(low)), b.let(self.row_of(high))
            self.even = self.many == len(sizes)
        else:  # the last one may hold less
            self.size, self.many, self.even = plan.rows, 0, True
            self.first = b.let(low * plan.rows)
            self.last = b.let(lesser(high * plan.rows, b.scalar(total)))

    def row_of(self, tile: Any) -> Any:
        return tile * self.size - greater(tile - self.many, 0)

    def each(self, body: Callable[[Any, Any], None]) -> None:
        """body(tile number, its place in the scratch) of every tile."""
        with self.b.loop(self.last - self.first, start=self.first, name="r") as row:
            body(row, self.b.let(row - self.first))

    def tiles(self, body: Callable[[Any, int], None]) -> None:
        """body(place in the scratch, size) of every row tile."""
        b = self.b
        if self.even:
            with b.loop(self.high - self.low, name="m") as i:
                body(b.let(i * self.size), self.size)
            return
        middle = b.let(lesser(self.high, greater(self.low, self.many)))
        with b.loop(middle - self.low, name="m") as i:
            body(b.let(i * self.size), self.size)
        with b.loop(self.high - middle, start=middle, name="m") as i:
            body(b.let(self.row_of(i) - self.first), self.size - 1)
