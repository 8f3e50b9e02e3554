"""What all Winograd convolutions of one tile share (part.py): their sizes are arguments.

`seen` and `made`, the inputs and the products, are [blocks of channels, points, rows, BLOCK],
where `point_stride` and `block_stride` are those of a point and of a block; `half` is [points down,
points across, BLOCK], what lies between the two passes of a transform (a tile of one axis has one
pass), and a tile's results. A row is a tile of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import tirx

from cuvilc.dialect.winograd import Tile, matrices, points
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import Notation
from cuvilc.targets.part import Part, PartBuilder, part
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import (
    Piece,
    RegisterTile,
    cut_tiles,
    first_of,
    greater,
    halvings,
    lesser,
    opaque,
    unrolled_steps,
)
from cuvilc.targets.schedules.winograd_transforms import Memory, combine, lines, turns
from cuvilc.targets.tir import Buffer, KernelBuilder, Variable, const


def inputs(chip: Chip, tile: Tile, strides: tuple[int, int]) -> Part:
    """Transform what rows [first, last) see, all channels of it, from x to places from 0 on.

    x, seen, half; first, last, tiles_down, tiles_across, channel_blocks,
    image_blocks (from an image to the next), height, width, pad_top,
    pad_left, point_stride, block_stride.
    """
    return part(chip, partial(_inputs, tile, strides), "winograd_inputs", *tile, *strides)


def products(chip: Chip, rows: int, spread: str, width: int, rest: int) -> Part:
    """Multiply rows with the weights of `width` output channels from `weights` on, `rest` of whose
    input channels are left over. The rows are, by `spread`:

    "even": those of row tiles [low, high) of `rows` rows;
    "uneven": the same, where from number `many` on a row tile has one less;
    "open": [low, high), of which there may be any number.

    seen, u, made; points (of a tile), across (those along a line), weights_down, weights_across
    (of the weights), low, high, many, weights, channels, point_stride, block_stride.
    """
    build = partial(_products, rows, spread, width, rest)
    return part(chip, build, f"winograd_products_{spread}", rows, width, rest)


def results(chip: Chip, tile: Tile, strides: tuple[int, int]) -> Part:
    """Transform a row's products, of one block from `start` on, back, to the first pixels of the
    first lines of `half`.

    made, half; start, point_stride.
    """
    return part(chip, partial(_results, tile, strides), "winograd_results", *tile, *strides)


# ---- the inputs


def _inputs(tile: Tile, strides: tuple[int, int], chip: Chip, symbol: str) -> Any:
    b = PartBuilder(symbol)
    k, n = Notation(b), points(tile, strides)
    down_by, across_by = (m.input for m in matrices(tile, strides))
    both = min(n) > 1
    x, seen, half = b.floats("x", "seen", "half")
    first, last, tiles_down, tiles_across = b.indices("first", "last", "down", "across")
    blocks, image_blocks, height, width = b.indices("blocks", "apart", "height", "width")
    pad_top, pad_left = b.indices("top", "left")
    point_stride, block_stride = b.indices("point_stride", "block_stride")
    line = b.let(width * BLOCK)
    if n[0] > 1:  # the pass down comes first
        matrix, apart, others, other = down_by, line, n[1], BLOCK
    else:
        matrix, apart, others, other = across_by, BLOCK, 1, line
    row_of = b.let(tirx.truncdiv(first, tiles_across))
    image_of = b.let(tirx.truncdiv(row_of, tiles_down))

    def inside(at: Any, size: Any) -> Any:
        at = b.let(at)
        return b.let(k.both(k.ge(at, 0), k.lt(at, size)))

    def column(start: Any, to: Memory, value: Callable[[int, Callable[[], Any]], Any]) -> None:
        """value(i, load) is load() or what is there instead in line i."""
        start, (buffer, place, stride) = opaque(b, start), to
        place = opaque(b, place)
        with b.loop(BLOCK, "vectorized") as lane:
            loads = (partial(b.load, x, start + i * apart + lane) for i in range(len(matrix)))
            values = [k.let(value(i, load)) for i, load in enumerate(loads)]
            for i, made in enumerate(combine(k, matrix, values)):
                b.store(buffer, place + i * stride + lane, made)

    def columns(to: Any, each: Callable[[Any, Memory], None]) -> None:
        """each(which, where its result goes) of the first pass."""
        if not both:
            each(0, (seen, to, point_stride))
            return
        with turns(b, others, "j") as j:
            each(j, (half, j * BLOCK, others * BLOCK))

    def partly(top: Any, left: Any, start: Any, to: Any) -> None:
        (along, room), (beside, width_) = (top, height), (left, width)
        if n[0] == 1:
            (along, room), (beside, width_) = (beside, width_), (along, room)
        exist = [inside(along + i, room) for i in range(len(matrix))]
        zero = const(0.0, "float32")

        def each(j: Any, to: Memory) -> None:
            with b.when(inside(beside + j, width_)):
                column(start + j * other, to, lambda i, load: b.pick(exist[i], load, zero))
            with b.otherwise():
                buffer, place, stride = to
                place = opaque(b, place)
                with b.loop(BLOCK, "vectorized") as lane:
                    for i in range(len(matrix)):
                        b.store(buffer, place + i * stride + lane, zero)

        columns(to, each)

    def whole(start: Any, to: Any) -> None:
        columns(to, lambda j, to: column(start + j * other, to, lambda i, load: load()))

    with b.loop(blocks, name="c") as block:
        image, down = b.variable(image_of), b.variable(row_of - image_of * tiles_down)
        across = b.variable(first - row_of * tiles_across)
        with b.loop(last - first, name="r") as row:
            top = b.let(down.get() * (tile[0] * strides[0]) - pad_top)
            left = b.let(across.get() * (tile[1] * strides[1]) - pad_left)
            plane = (image.get() * image_blocks + block) * height
            start = b.let(((plane + top) * width + left) * BLOCK)  # may lie before the input
            to = b.let(block * block_stride + row * BLOCK)
            ends = k.both(k.le(top + n[0], height), k.le(left + n[1], width))
            starts = k.both(k.ge(top, 0), k.ge(left, 0))
            cases = [
                (k.both(starts, ends), partial(whole, start, to)),
                (None, partial(partly, top, left, start, to)),
            ]
            first_of(b, cases)
            if both:
                with turns(b, n[0], "i") as i:
                    source = (half, opaque(b, i * n[1] * BLOCK), BLOCK)
                    place = opaque(b, to + i * n[1] * point_stride)
                    lines(b, across_by, source, (seen, place, point_stride), BLOCK)
            advance(b, (across, tiles_across), (down, tiles_down), image)
    return b.finish()


def advance(
    b: KernelBuilder, across: tuple[Variable, Any], down: tuple[Variable, Any], image: Variable
) -> None:
    """To the next row's place; pairs of where along an axis it is, and of how many."""
    (x, width), (y, height) = across, down
    x.set(x.get() + 1)
    with b.when(x.get() == width):
        x.set(const(0))
        y.set(y.get() + 1)
        with b.when(y.get() == height):
            y.set(const(0))
            image.set(image.get() + 1)


# ---- the products


def _products(rows: int, spread: str, width: int, rest: int, chip: Chip, symbol: str) -> Any:
    b = PartBuilder(symbol)
    seen, u, made = b.floats("seen", "u", "made")
    points, across = b.indices("points", "across")
    weights_down, weights_across = b.indices("weights_down", "weights_across")
    low, high, many, weights, channels = b.indices("low", "high", "many", "weights", "channels")
    point_stride, block_stride = b.indices("point_stride", "block_stride")
    of_point, whole = b.let(channels * PANEL), b.let(tirx.truncdiv(channels, const(BLOCK)))

    def row_of(tile: Any) -> Any:
        return tile * rows - greater(tile - many, 0)

    def tile(size: int, source: Any, base: Any) -> None:
        sums = _Tile(b, chip, size, width, (seen, u))
        with b.loop(whole, name="c") as c:
            sums.add(b.let(source + c * block_stride), b.let(base + c * (BLOCK * PANEL)), BLOCK)
        if rest:
            row = b.let(source + whole * block_stride)
            sums.add(row, b.let(base + whole * (BLOCK * PANEL)), rest)
        sums.store(made, source, block_stride)

    def weight(point: Any) -> Any:
        """The number of the weight that a product takes."""
        down = b.let(tirx.truncdiv(point, across))
        line = lesser(down, weights_down - 1) * weights_across
        return line + lesser(point - down * across, weights_across - 1)

    def pieces() -> list[Piece]:
        """From row `low` on, which lies first."""
        if spread == "open":  # what lies beyond the last row is nobody's
            return cut_tiles(b, b.let(high - low), halvings(rows), fits=False)
        if spread == "even":
            return [Piece(rows, 0, high - low)]
        middle = b.let(lesser(high, greater(low, many)))
        first, less = b.let(row_of(low)), b.let(row_of(middle))
        return [
            Piece(rows, 0, middle - low),
            Piece(rows - 1, less - first, high - middle),
        ]

    cut = pieces()
    with b.loop(points, name="e") as point:
        base = b.let(weights + weight(point) * of_point)
        place = b.let(point * point_stride)
        for size, start, count in cut:
            with b.loop(count, name="m") as i:
                tile(size, b.let(place + (start + i * size) * BLOCK), base)
    return b.finish()


class _Tile:
    """A register tile of rows × output channels."""

    def __init__(
        self, b: PartBuilder, chip: Chip, size: int, width: int, operands: tuple[Buffer, Buffer]
    ) -> None:
        self.b, self.size, self.width = b, size, width
        self.seen, self.u = operands
        sets = RegisterTile.sets_for(chip, size, width)
        self.steps = unrolled_steps(chip, size, width, sets)
        self.sums = RegisterTile(b, size, width, sets)

    def add(self, row: Any, column: Any, channels: int) -> None:
        """Products of `channels` channels, from `row` of the inputs and `column` of the weights."""
        b, steps = self.b, self.steps
        whole = channels // steps
        with b.loop(whole, name="k") as turn:
            at = opaque(b, row + turn * steps)
            down = opaque(b, column + turn * (steps * PANEL))
            for s in range(steps):
                self._step(at + s, down + s * PANEL, s % self.sums.sets)
        for s in range(whole * steps, channels):
            self._step(row + s, column + s * PANEL, 0)

    def _step(self, row: Any, column: Any, turn: int) -> None:
        scalars = [self.b.load(self.seen, row + r * BLOCK) for r in range(self.size)]
        self.sums.step(scalars, lambda lane: self.b.load(self.u, column + lane), turn)

    def store(self, made: Buffer, start: Any, block_stride: Any) -> None:
        b = self.b
        self.sums.gather_sets()
        for at in range(0, self.width, BLOCK):
            to = b.let(start + at // BLOCK * block_stride)
            with b.loop(min(self.width - at, BLOCK), "vectorized") as lane:
                for r in range(self.size):
                    b.store(made, to + r * BLOCK + lane, self.sums.at(r, lane + at))


# ---- the results


def _results(tile: Tile, strides: tuple[int, int], chip: Chip, symbol: str) -> Any:
    b, (rows, columns) = PartBuilder(symbol), points(tile, strides)
    k, (down, across) = Notation(b), (m.output for m in matrices(tile, strides))
    made, half = b.floats("made", "half")
    start, point_stride = b.indices("start", "point_stride")
    lanes = min(chip.lanes, BLOCK)

    def at_once(at: Any, to: Any) -> None:
        places = [b.let(at + point * point_stride) for point in range(rows * columns)]
        with b.loop(lanes, "vectorized") as lane:
            halves = []
            for j in range(columns):
                values = [k.let(b.load(made, place + lane)) for place in places[j::columns]]
                halves.append([k.let(v) for v in combine(k, down, values)])
            for i in range(tile[0]):
                for p, value in enumerate(combine(k, across, [h[i] for h in halves])):
                    b.store(half, to + (i * columns + p) * BLOCK + lane, value)

    def by_lines(at: Any, to: Any) -> None:
        step = b.let(columns * point_stride)
        with turns(b, columns, "j") as j:
            source = (made, b.let(at + j * point_stride), step)
            lines(b, down, source, (half, opaque(b, to + j * BLOCK), columns * BLOCK), lanes)
        with turns(b, tile[0], "i") as i:
            line = (half, opaque(b, to + i * (columns * BLOCK)), BLOCK)
            lines(b, across, line, line, lanes)

    # All columns, and what one is made of.
    fits = columns * tile[0] + rows <= chip.registers
    with b.loop(opaque(b, BLOCK // lanes), name="v") as vector:
        (at_once if fits else by_lines)(b.let(start + vector * lanes), b.let(vector * lanes))
    return b.finish()
