"""1×1 convolutions of bytes, exact with fewer products, where those are of 16 bits.

A chip that must widen bytes to 16 bits anyway (dots.py, WORDS) can multiply sums of them too: the
convolution is a product of matrices, pixels × channels and channels × outputs, and Strassen's
method has 7 products of parts for 8 (conv_strassen_texts.py). A part is every second pixel or block
of 16 channels or outputs, so two beside each other are transformed by themselves. Sums of bytes are
at most 512, and sums of products are right modulo 2³². Small layers are multiplied as they are.

A task is some rows of pixels times a unit of output channels. It transforms its inputs, unless the
task before it had the same, and the unit's weights into scratch, multiplies, and adds the products
up at the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import GROUP_BYTES, PAIRS, WORDS
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules import conv_dot_plan, conv_strassen_texts, conv_words_parts
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_strassen_texts import FORMS
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.dot_tile import dot_rows
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import first_of, lesser, opaque, split
from cuvilc.targets.tir import as_expr

_PADDING = 32  # int16 between points, so that these lie in several sets of a cache
# Of a task's transformed inputs, unless so few pixels would not repay transforming weights.
_MOST_BYTES, _FEW_PIXELS = 384 << 10, 96
# Instructions for 16 numbers without and with fewer products: of inputs, of weights, of results
# with their detour through memory; of a product and its addition.
_INPUT, _WEIGHT, _RESULT = (4, 8), (4, 11), (4, 15)
_PRODUCT = 2


@dataclass(frozen=True)
class _Plan:
    conv: conv_dot_plan.Plan
    depth: int  # 1 where there are fewer products, or 0
    rows: int  # of pixels in a task
    tiles: int  # multiplied together

    @property
    def parts(self) -> int:
        """Blocks of pixels, channels and outputs that are transformed together."""
        return 1 << self.depth

    @property
    def points(self) -> int:
        return FORMS**self.depth

    @property
    def units(self) -> int:
        """Of output channels."""
        return self.conv.blocks // self.parts

    @property
    def columns(self) -> int:
        assert isinstance(self.conv.width.count, int)
        return self.conv.width.count

    @property
    def row_groups(self) -> int:
        assert isinstance(self.conv.height.count, int)
        return -(-self.conv.height.count // self.rows)

    @property
    def tasks(self) -> Dim:
        return self.conv.images * self.row_groups * self.units

    @property
    def channels(self) -> int:
        """Of a tile's input in one point."""
        return self.conv.channels // self.parts

    def row_tiles(self, rows: int) -> int:
        return -(-rows * self.columns // self.parts)

    @property
    def point(self) -> int:
        """Elements of one point of a task's inputs."""
        return self.row_tiles(self.rows) * self.channels + _PADDING

    @property
    def weights_point(self) -> int:
        """Of one point of a unit's weights."""
        return self.channels * BLOCK + _PADDING

    @property
    def made_point(self) -> int:
        """Of one point of a task's products with them."""
        return self.row_tiles(self.rows) * BLOCK + _PADDING // 2

    @property
    def cost(self) -> float:
        """Instructions, as far as this counts them."""
        conv, depth = self.conv, self.depth
        assert isinstance(conv.height.count, int)
        pixels = conv.height.count * self.columns
        numbers = pixels * conv.channels * conv.blocks
        return (
            _PRODUCT * numbers * (FORMS / 8) ** depth
            + pixels * conv.channels // BLOCK * _INPUT[depth]
            + self.row_groups * conv.channels * conv.blocks * _WEIGHT[depth]
            + pixels * conv.blocks * _RESULT[depth]
        )


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv_integer of uint8 and int8 of 1×1 windows without padding, of known sizes, with an
    epilogue.
    """
    plan = _plan_of(region, chip)
    return vectorized(lambda vector: _Conv(region, chip, name, plan, vector).build())


def _plan_of(region: Region, chip: Chip) -> _Plan:
    conv = conv_dot_plan.plan_of(region, chip)
    # With longer vectors the general schedule widens seldom, and stores levels faster: measured, as
    # fast for large layers and faster for small ones.
    if conv.dots is not WORDS or PAIRS.function not in chip.dots or chip.lanes * 2 != BLOCK:
        raise Miss("bytes are not widened to multiply them, or vectors are long")
    axes = (conv.height, conv.width)
    plain = all((a.kernel, a.pad) == (1, 0) and a.all_inside for a in axes)
    if not plain or conv.groups > 1 or conv.turned:
        raise Miss("not 1×1 windows, or groups")
    if not all(a.is_static and a.count for a in axes):
        raise Miss("sizes known only at run time")
    dtype = ir.type_of(conv.anchor.operands[0]).dtype
    if not conv.blocked_input or conv.channels % BLOCK or dtype != "uint8":
        raise Miss("channels that are not whole blocks")
    plans = [p for depth in range(len(_INPUT)) if (p := _of_depth(conv, depth, chip)) is not None]
    if not plans:
        raise Miss("few pixels")
    return min(plans, key=lambda plan: plan.cost)


def _of_depth(conv: conv_dot_plan.Plan, depth: int, chip: Chip) -> _Plan | None:
    height, columns, parts = conv.height.count, conv.width.count, 1 << depth
    assert isinstance(height, int)
    assert isinstance(columns, int)
    blocks = conv.channels // BLOCK
    if blocks % parts or conv.blocks % parts or (depth and conv.outputs % BLOCK):
        return None
    bytes_of_row = columns * conv.channels * PAIRS.item * (FORMS / 4) ** depth
    rows = max(-(-_FEW_PIXELS // columns), int(_MOST_BYTES / bytes_of_row))
    rows = -(-height // -(-height // min(rows, height)))
    last = (height - (-(-height // rows) - 1) * rows) * columns // parts
    whole = -(-rows * columns // parts)
    most = dot_rows(chip, PAIRS, BLOCK)
    tiles = min(-(-whole // -(-whole // most)), last)
    return _Plan(conv, depth, rows, tiles) if tiles >= min(most, 4) else None


class _Conv:
    """The kernel's loops: task, tile."""

    def __init__(self, region: Region, chip: Chip, name: str, plan: _Plan, vectorize: bool) -> None:
        self.chip, self.plan, conv = chip, plan, plan.conv
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.x, self.w = (self.emitter.argument(v) for v in conv.anchor.operands[:2])
        self.store = ChannelStore(self.emitter, conv.anchor, conv.outputs, vectorize)
        self.weigh = conv_words_parts.strassen_weights(chip, plan.depth)
        self.multiply = conv_words_parts.products(chip, plan.tiles)
        b = self.b
        self.seen = b.scratch(plan.points * plan.point, PAIRS.laid)
        self.weights = b.scratch(plan.points * plan.weights_point, PAIRS.laid)
        self.made = b.scratch(plan.points * plan.made_point, PAIRS.sums)
        self.results = b.scratch(plan.parts**2 * BLOCK, PAIRS.sums)

    def build(self) -> Scheduled:
        plan, b, height = self.plan, self.b, self.plan.conv.height.count
        with b.tasks() as t:
            unit, rest = split(self.emitter, t, plan.units)
            row_group, image = split(self.emitter, rest, plan.row_groups)
            low = b.let(row_group * plan.rows)
            pixels = b.let(lesser(height - low, plan.rows) * plan.columns)
            tiles = b.let(self.k.floordiv(pixels + (plan.parts - 1), plan.parts))
            first = self.k.either(self.k.eq(t, b.begin), self.k.eq(unit, 0))
            alone = plan.units == 1
            see = (None if alone else first, lambda: self._see(image, low, pixels, tiles))
            first_of(b, [see])
            self._transform_weights(unit)
            self.emitter.call(
                self.multiply, (self.seen, self.weights, self.made),
                (plan.points, tiles, plan.channels, plan.point, plan.weights_point,
                 plan.made_point),
            )  # fmt: skip
            self._finish(image, unit, low, pixels, tiles)
        return self.emitter.finish("conv-int8-1x1", plan.tasks, plan.conv.flops)

    def _pixel(self, tile: Any, pixels: Any) -> Any:
        """A tile's first pixel: the last tile may have some of the one before."""
        return self.b.let(lesser(tile * self.plan.parts, pixels - self.plan.parts))

    def _see(self, image: Any, low: Any, pixels: Any, tiles: Any) -> None:
        plan, b, conv = self.plan, self.b, self.plan.conv
        name = f"cuvil_left{plan.depth}"
        b.llvm(name, conv_strassen_texts.left_text(name, plan.depth))
        line = conv.width.size * BLOCK
        plane = conv.height.size * line
        source = b.let(image * (conv.channels // BLOCK) * plane)
        with b.loop(tiles, name="t") as t:
            first, places = self._pixel(t, pixels), []
            for i in range(plan.parts):
                column, row = split(self.emitter, b.let(first + i), plan.columns)
                down = (low + row) * (conv.height.stride * line)
                places.append(b.let(source + down + column * (conv.width.stride * BLOCK)))
            with b.loop(plan.channels // BLOCK, name="c") as c:
                ahead = c * (plan.parts * plane)
                call = tirx.call_extern(
                    "int32", name, self.x.data, *(as_expr(place + ahead) for place in places),
                    as_expr(plane), self.seen.data, as_expr(t * plan.channels + c * BLOCK),
                    as_expr(plan.point),
                )  # fmt: skip
                b.emit(tirx.Evaluate(call))

    def _transform_weights(self, unit: Any) -> None:
        """Those of a unit: [points, pairs of input channels, BLOCK, 2]."""
        plan, b = self.plan, self.b
        block = b.let(unit * plan.parts)
        panel = self.k.floordiv(block, PANEL // BLOCK)
        half = (block - panel * (PANEL // BLOCK)) * BLOCK
        first = b.let(panel * (plan.conv.channels * PANEL) + half * GROUP_BYTES)
        self.emitter.call(
            self.weigh, (self.w, self.weights),
            (first, plan.channels // BLOCK, plan.weights_point),
        )  # fmt: skip

    def _finish(self, image: Any, unit: Any, low: Any, pixels: Any, tiles: Any) -> None:
        """Add the products of the task's tiles up and store their results."""
        plan, b = self.plan, self.b
        name = f"cuvil_sums{plan.depth}"
        b.llvm(name, conv_strassen_texts.sums_text(name, plan.depth, plan.made_point))
        parts = plan.parts
        with b.loop(tiles, name="t") as t:
            call = tirx.call_extern(
                "int32", name, self.made.data, as_expr(t * BLOCK), self.results.data
            )
            b.emit(tirx.Evaluate(call))
            first = self._pixel(t, pixels)
            with b.loop(opaque(b, parts), name="p") as p:
                column, row = split(self.emitter, b.let(first + p), plan.columns)
                with b.loop(opaque(b, parts), name="h") as h:
                    at = (p * parts + h) * BLOCK
                    block = b.let(unit * parts + h)
                    self.store.pixel(self.results, at, image, block, (low + row, column))
