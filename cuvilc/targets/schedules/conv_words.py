"""Convolutions of bytes with 3×3 windows, exact with fewer products, where those are of 16 bits.

Winograd's F(2×2, 3×3) with twice his weight matrix G (conv_words_texts.py) has integers only:
inputs, uint8, become at most 1020, weights, int8, at most 1152, and the sums four times the
convolution's, exactly. So a chip that must widen bytes to 16 bits anyway (dots.py, WORDS) has 16
products for the 36 of 2×2 results.

A task is some rows of tiles times a block of output channels. It transforms the inputs that the
tiles see, unless the task before it had the same, and the block's weights, which many tiles share,
into scratch; multiplies for each of the 16 points; and stores the tiles after the transform back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.winograd import TAPS
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import GROUP_BYTES, PAIRS, WORDS
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules import conv_dot_plan, conv_words_parts
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_window import BLOCK, Axis
from cuvilc.targets.schedules.conv_words_parts import POINT_PADDING
from cuvilc.targets.schedules.conv_words_texts import (
    POINTS,
    SEEN,
    TILE,
    pixel_text,
    results_text,
)
from cuvilc.targets.schedules.dot_tile import dot_rows
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import first_of, lesser, opaque, split
from cuvilc.targets.tir import as_expr

# Of a task's transformed inputs, unless so few tiles would not repay transforming weights.
_MOST_BYTES, _FEW_TILES = 256 << 10, 48
# Four times a sum stays an int32.
_MOST_CHANNELS = (1 << 31) // (4 * 255 * 128 * TAPS**2)
# Instructions for 16 numbers: of products and sums; of transforms of inputs, of weights, of results
# and their detour through memory.
_PRODUCT, _INPUT, _WEIGHT, _RESULT = 2, 70, 90, 150


@dataclass(frozen=True)
class _Plan:
    conv: conv_dot_plan.Plan
    tile_rows: int  # of the image
    row_tiles: int  # in a row
    rows: int  # of tiles in a task
    tiles: int  # multiplied together

    @property
    def row_groups(self) -> int:
        return -(-self.tile_rows // self.rows)

    @property
    def tasks(self) -> Dim:
        return self.conv.images * self.row_groups * self.conv.blocks

    @property
    def point(self) -> int:
        """Elements of one point of a task's inputs."""
        return self.rows * self.row_tiles * self.conv.channels + POINT_PADDING

    @property
    def weights_point(self) -> int:
        """Of one point of a block's weights."""
        return self.conv.channels * BLOCK + POINT_PADDING

    @property
    def made_point(self) -> int:
        """Of one point of a task's products with them."""
        return self.rows * self.row_tiles * BLOCK + POINT_PADDING // 2


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv_integer of uint8 and int8 of 3×3 windows that lie beside each other, of known sizes,
    with an epilogue.
    """
    plan = _plan_of(region, chip)
    return vectorized(lambda vector: _Conv(region, chip, name, plan, vector).build())


def _plan_of(region: Region, chip: Chip) -> _Plan:
    conv = conv_dot_plan.plan_of(region, chip)
    if conv.dots is not WORDS or PAIRS.function not in chip.dots or chip.lanes * 2 < BLOCK:
        raise Miss("bytes are not widened to multiply them")
    height, width, channels = conv.height, conv.width, conv.channels
    plain = all((a.kernel, a.stride, a.dilation) == (TAPS, 1, 1) for a in (height, width))
    if not plain or conv.groups > 1 or conv.turned:
        raise Miss("not windows of 3×3 beside each other, or groups, or a single line")
    if not (height.is_static and width.is_static and height.count and width.count):
        raise Miss("sizes known only at run time")
    dtype = ir.type_of(conv.anchor.operands[0]).dtype
    if not conv.blocked_input or channels % BLOCK or channels > _MOST_CHANNELS or dtype != "uint8":
        raise Miss("channels that are not whole blocks, or very many")
    tile_rows, row_tiles = _tiles(height), _tiles(width)
    bytes_of_row = row_tiles * channels * SEEN**2 * PAIRS.item
    rows = max(-(-_FEW_TILES // row_tiles), _MOST_BYTES // bytes_of_row)
    groups = -(-tile_rows // min(rows, tile_rows))
    rows = -(-tile_rows // groups)
    last = (tile_rows - (-(-tile_rows // rows) - 1) * rows) * row_tiles
    most = dot_rows(chip, PAIRS, BLOCK)
    tiles = rows * row_tiles
    plan = _Plan(conv, tile_rows, row_tiles, rows, min(-(-tiles // -(-tiles // most)), last))
    _check_pays(plan)
    return plan


def _tiles(axis: Axis) -> int:
    assert isinstance(axis.count, int)
    return -(-axis.count // TILE)


def _check_pays(plan: _Plan) -> None:
    """Miss where the direct convolution has fewer instructions, as far as this counts them."""
    conv = plan.conv
    assert isinstance(conv.height.count, int)
    assert isinstance(conv.width.count, int)
    tiles, channels, blocks = plan.tile_rows * plan.row_tiles, conv.channels, conv.blocks
    direct = conv.height.count * conv.width.count * TAPS**2 * channels * blocks * _PRODUCT
    products = tiles * POINTS * channels * blocks * _PRODUCT
    inputs = tiles * channels // BLOCK * _INPUT
    weights = plan.row_groups * channels * blocks * _WEIGHT
    if products + inputs + weights + tiles * blocks * _RESULT >= direct:
        raise Miss("transforms that take longer than the products they save")


class _Conv:
    """The kernel's loops: task, group of tiles, point."""

    def __init__(self, region: Region, chip: Chip, name: str, plan: _Plan, vectorize: bool) -> None:
        self.chip, self.plan, conv = chip, plan, plan.conv
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        x, w, *outside = conv.anchor.operands
        self.x, self.w = self.emitter.argument(x), self.emitter.argument(w)
        self._outside = self.emitter.accessor(outside[0]) if outside else None
        self.store = ChannelStore(self.emitter, conv.anchor, conv.outputs, vectorize)
        self.parts = {
            "inputs": conv_words_parts.inputs(chip), "weights": conv_words_parts.weights(chip),
            "products": conv_words_parts.products(chip, plan.tiles),
        }  # fmt: skip
        self.line = (plan.row_tiles * TILE + SEEN - TILE) * BLOCK  # bytes of a row of the patch
        b = self.b
        self.patch = b.scratch((plan.rows * TILE + SEEN - TILE) * self.line, "uint8")
        self.seen = b.scratch(POINTS * plan.point, PAIRS.laid)
        self.weights = b.scratch(POINTS * plan.weights_point, PAIRS.laid)
        self.made = b.scratch(POINTS * plan.made_point, PAIRS.sums)
        self.results = b.scratch(TILE**2 * BLOCK, PAIRS.sums)

    def build(self) -> Scheduled:
        plan, b, conv = self.plan, self.b, self.plan.conv
        with b.tasks() as t:
            block, rest = split(self.emitter, t, conv.blocks)
            row_group, image = split(self.emitter, rest, plan.row_groups)
            low = b.let(row_group * plan.rows)
            rows = b.let(lesser(plan.tile_rows - low, plan.rows))
            first = self.k.either(self.k.eq(t, b.begin), self.k.eq(block, 0))
            alone = plan.conv.blocks == 1
            first_of(b, [(None if alone else first, lambda: self._see(image, low, rows))])
            self._transform_weights(block)
            tiles = b.let(rows * plan.row_tiles)
            self.emitter.call(
                self.parts["products"], (self.seen, self.weights, self.made),
                (POINTS, tiles, conv.channels, plan.point, plan.weights_point, plan.made_point),
            )  # fmt: skip
            self._finish(image, block, low, tiles)
        return self.emitter.finish("conv-int8-winograd", plan.tasks, plan.conv.flops)

    # ---- inputs

    def _see(self, image: Any, low: Any, rows: Any) -> None:
        """Transform what the tiles see, block of channels by block."""
        plan, b, conv = self.plan, self.b, self.plan.conv
        b.llvm("cuvil_words_pixel", pixel_text("cuvil_words_pixel"))
        blocks = conv.channels // BLOCK
        plane = conv.height.size * conv.width.size * BLOCK
        outside: Any = self.k.const(0, "uint8")
        if self._outside is not None:
            outside = b.let(self._outside[(0,) * len(self._outside.shape)])
        with b.loop(blocks, name="c") as c:
            source = b.let((image * blocks + c) * plane)
            with b.loop(rows * TILE + (SEEN - TILE), name="r") as r:
                self._copy_row(source, b.let(low * TILE - conv.height.pad + r), r, outside)
            self.emitter.call(
                self.parts["inputs"], (self.patch, self.seen),
                (self.line, c * BLOCK, rows, plan.row_tiles, conv.channels, plan.point),
            )  # fmt: skip

    def _copy_row(self, source: Any, row: Any, r: Any, outside: Any) -> None:
        """A row of a block of the input, and what lies beyond its ends, into row r of the patch."""
        b, height, width = self.b, self.plan.conv.height, self.plan.conv.width
        to = b.let(r * self.line)
        columns = self.line // BLOCK
        assert isinstance(width.size, int)
        inner = min(width.size, columns - width.pad)

        def fill(first: int, last: int) -> None:
            count = last - first
            with b.loop(count, start=first, name="f") as i, b.loop(BLOCK, "vectorized") as lane:
                b.store(self.patch, to + i * BLOCK + lane, outside)

        def copy() -> None:
            start = b.let(source + row * (width.size * BLOCK))
            with b.loop(inner, name="w") as i:
                call = tirx.call_extern(
                    "int32", "cuvil_words_pixel", self.x.data, as_expr(start + i * BLOCK),
                    self.patch.data, as_expr(to + (i + width.pad) * BLOCK),
                )  # fmt: skip
                b.emit(tirx.Evaluate(call))
            fill(0, width.pad)
            fill(width.pad + inner, columns)

        inside = self.k.both(self.k.ge(row, 0), self.k.lt(row, height.size))
        first_of(b, [(inside, copy), (None, lambda: fill(0, columns))])

    # ---- weights

    def _transform_weights(self, block: Any) -> None:
        """Those of a block of output channels: [points, pairs of input channels, BLOCK, 2]."""
        b, channels = self.b, self.plan.conv.channels
        quads = channels // WORDS.group
        tap = quads * PANEL * GROUP_BYTES  # bytes of a tap's weights of a panel
        panel = self.k.floordiv(block, PANEL // BLOCK)
        half = (block - panel * (PANEL // BLOCK)) * BLOCK
        first = b.let(panel * (tap * TAPS**2) + half * GROUP_BYTES)
        self.emitter.call(
            self.parts["weights"], (self.w, self.weights),
            (first, tap, quads, self.plan.weights_point),
        )  # fmt: skip

    # ---- results

    def _finish(self, image: Any, block: Any, low: Any, tiles: Any) -> None:
        """Transform the products of the task's tiles back and store their results."""
        plan, b, conv = self.plan, self.b, self.plan.conv
        b.llvm("cuvil_words_results", results_text("cuvil_words_results", plan.made_point))
        with b.loop(tiles, name="t") as t:
            call = tirx.call_extern(
                "int32", "cuvil_words_results", self.made.data, as_expr(t * BLOCK),
                self.results.data,
            )  # fmt: skip
            b.emit(tirx.Evaluate(call))
            column, row = split(self.emitter, t, plan.row_tiles)
            top, left = b.let((low + row) * TILE), b.let(column * TILE)
            lines = opaque(b, lesser(conv.height.count - top, TILE))
            columns = opaque(b, lesser(conv.width.count - left, TILE))
            with b.loop(lines, name="i") as i, b.loop(columns, name="j") as j:
                at = (i * TILE + j) * BLOCK
                self.store.pixel(self.results, at, image, block, (top + i, left + j))
