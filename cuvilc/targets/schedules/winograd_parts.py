"""What all Winograd convolutions of one tile share (part.py): their sizes are arguments.

`seen` and `made`, the inputs and the products, are [blocks of channels, n², rows, BLOCK], where
`point_stride` and `block_stride` are those of a point and of a block; `half` is [n, n, BLOCK], what
is between the two passes of a transform. A row is a tile of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import tirx

from cuvilc.dialect.winograd import MATRICES, points
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
from cuvilc.targets.schedules.winograd_transforms import combine, lines, turns
from cuvilc.targets.tir import Buffer, KernelBuilder, Variable, const


def inputs(chip: Chip, tile: int, stride: int) -> Part:
    """Transform what rows [first, last) see, all channels of it, from x to places from 0 on.

    x, seen, half; first, last, tiles_down, tiles_across, channel_blocks, height, width, pad_top,
    pad_left, point_stride, block_stride.
    """
    return part(chip, partial(_inputs, tile, stride), "winograd_inputs", tile, stride)


def products(chip: Chip, rows: int, spread: str, blocks: int, rest: int) -> Part:
    """Multiply rows with the weights of `blocks` blocks of output channels from `weights` on,
    `rest` of whose channels are left over. n and k are the points along an axis and those of
    weights. The rows are, by `spread`:

    "even": those of row tiles [low, high) of `rows` rows;
    "uneven": the same, where from number `many` on a row tile has one less;
    "open": [low, high), of which there may be any number.

    seen, u, made; n, k, low, high, many, weights, channels, point_stride, block_stride.
    """
    build = partial(_products, rows, spread, blocks, rest)
    return part(chip, build, f"winograd_products_{spread}", rows, blocks, rest)


def results(chip: Chip, tile: int, stride: int) -> Part:
    """Transform a row's products, of one block from `start` on, back, to the first pixels of the
    first lines of `half`.

    made, half; start, point_stride.
    """
    return part(chip, partial(_results, tile, stride), "winograd_results", tile, stride)


# ---- the inputs


def _inputs(tile: int, stride: int, chip: Chip, symbol: str) -> Any:
    b = PartBuilder(symbol)
    k, n, matrix = Notation(b), points(tile, stride), MATRICES[tile, stride].input
    x, seen, half = b.floats("x", "seen", "half")
    first, last, tiles_down, tiles_across = b.indices("first", "last", "down", "across")
    blocks, height, width, pad_top, pad_left = b.indices("blocks", "height", "width", "top", "left")
    point_stride, block_stride = b.indices("point_stride", "block_stride")
    line, step = b.let(width * BLOCK), tile * stride
    row_of = b.let(tirx.truncdiv(first, tiles_across))
    image_of = b.let(tirx.truncdiv(row_of, tiles_down))

    def inside(at: Any, size: Any) -> Any:
        at = b.let(at)
        return b.let(k.both(k.ge(at, 0), k.lt(at, size)))

    def column(j: Any, start: Any, value: Callable[[int, Callable[[], Any]], Any]) -> None:
        """value(i, load) is load() or what is there instead in line i."""
        start, to = opaque(b, start), opaque(b, j * BLOCK)
        with b.loop(BLOCK, "vectorized") as lane:
            loads = (partial(b.load, x, start + i * line + lane) for i in range(n))
            values = [k.let(value(i, load)) for i, load in enumerate(loads)]
            for i, made in enumerate(combine(k, matrix, values)):
                b.store(half, to + i * n * BLOCK + lane, made)

    def partly(top: Any, left: Any, start: Any) -> None:
        exist = [inside(top + i, height) for i in range(n)]
        zero = const(0.0, "float32")
        with turns(b, n, "j") as j:
            with b.when(inside(left + j, width)):
                column(j, start + j * BLOCK, lambda i, load: b.pick(exist[i], load, zero))
            with b.otherwise():
                at = opaque(b, j * BLOCK)
                with b.loop(BLOCK, "vectorized") as lane:
                    for i in range(n):
                        b.store(half, at + i * n * BLOCK + lane, zero)

    def whole(start: Any) -> None:
        with turns(b, n, "j") as j:
            column(j, start + j * BLOCK, lambda i, load: load())

    with b.loop(blocks, name="c") as block:
        image, down = b.variable(image_of), b.variable(row_of - image_of * tiles_down)
        across = b.variable(first - row_of * tiles_across)
        with b.loop(last - first, name="r") as row:
            top, left = b.let(down.get() * step - pad_top), b.let(across.get() * step - pad_left)
            plane = (image.get() * blocks + block) * height
            start = b.let(((plane + top) * width + left) * BLOCK)  # may lie before the input
            ends = k.both(k.le(top + n, height), k.le(left + n, width))
            starts = k.both(k.ge(top, 0), k.ge(left, 0))
            cases = [
                (k.both(starts, ends), partial(whole, start)),
                (None, partial(partly, top, left, start)),
            ]
            first_of(b, cases)
            to = b.let(block * block_stride + row * BLOCK)
            with turns(b, n, "i") as i:
                source = (half, opaque(b, i * n * BLOCK), BLOCK)
                place = opaque(b, to + i * n * point_stride)
                lines(b, matrix, source, (seen, place, point_stride), BLOCK)
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


def _products(rows: int, spread: str, blocks: int, rest: int, chip: Chip, symbol: str) -> Any:
    b = PartBuilder(symbol)
    seen, u, made = b.floats("seen", "u", "made")
    n, weight_n, low, high, many = b.indices("n", "weight_n", "low", "high", "many")
    weights, channels = b.indices("weights", "channels")
    point_stride, block_stride = b.indices("point_stride", "block_stride")
    of_point, whole = b.let(channels * PANEL), b.let(tirx.truncdiv(channels, const(BLOCK)))

    def row_of(tile: Any) -> Any:
        return tile * rows - greater(tile - many, 0)

    def tile(size: int, source: Any, base: Any) -> None:
        sums = _Tile(b, chip, size, blocks, (seen, u))
        with b.loop(whole, name="c") as c:
            sums.add(b.let(source + c * block_stride), b.let(base + c * (BLOCK * PANEL)), BLOCK)
        if rest:
            row = b.let(source + whole * block_stride)
            sums.add(row, b.let(base + whole * (BLOCK * PANEL)), rest)
        sums.store(made, source, block_stride)

    def weight(point: Any) -> Any:
        """The number of the weight that a product takes."""
        down = b.let(tirx.truncdiv(point, n))
        across = point - down * n
        return lesser(down, weight_n - 1) * weight_n + lesser(across, weight_n - 1)

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
    with b.loop(b.let(n * n), name="e") as point:
        base = b.let(weights + weight(point) * of_point)
        place = b.let(point * point_stride)
        for size, start, count in cut:
            with b.loop(count, name="m") as i:
                tile(size, b.let(place + (start + i * size) * BLOCK), base)
    return b.finish()


class _Tile:
    """A register tile of rows × blocks of output channels."""

    def __init__(
        self, b: PartBuilder, chip: Chip, size: int, blocks: int, operands: tuple[Buffer, Buffer]
    ) -> None:
        self.b, self.size, self.blocks = b, size, blocks
        self.seen, self.u = operands
        width = blocks * BLOCK
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
        for h in range(self.blocks):
            to = b.let(start + h * block_stride)
            with b.loop(BLOCK, "vectorized") as lane:
                for r in range(self.size):
                    b.store(made, to + r * BLOCK + lane, self.sums.at(r, lane + h * BLOCK))


# ---- the results


def _results(tile: int, stride: int, chip: Chip, symbol: str) -> Any:
    b, n, matrix = PartBuilder(symbol), points(tile, stride), MATRICES[tile, stride].output
    k = Notation(b)
    made, half = b.floats("made", "half")
    start, point_stride = b.indices("start", "point_stride")
    lanes = min(chip.lanes, BLOCK)

    def at_once(at: Any, to: Any) -> None:
        places = [b.let(at + point * point_stride) for point in range(n * n)]
        with b.loop(lanes, "vectorized") as lane:
            columns = []
            for j in range(n):
                values = [k.let(b.load(made, place + lane)) for place in places[j::n]]
                columns.append([k.let(v) for v in combine(k, matrix, values)])
            for i in range(tile):
                for p, value in enumerate(combine(k, matrix, [c[i] for c in columns])):
                    b.store(half, to + (i * n + p) * BLOCK + lane, value)

    def by_lines(at: Any, to: Any) -> None:
        step = b.let(n * point_stride)
        with turns(b, n, "j") as j:
            source = (made, b.let(at + j * point_stride), step)
            lines(b, matrix, source, (half, opaque(b, to + j * BLOCK), n * BLOCK), lanes)
        with turns(b, tile, "i") as i:
            line = (half, opaque(b, to + i * (n * BLOCK)), BLOCK)
            lines(b, matrix, line, line, lanes)

    fits = n * (tile + 1) <= chip.registers  # all columns, and what one is made of
    with b.loop(opaque(b, BLOCK // lanes), name="v") as vector:
        (at_once if fits else by_lines)(b.let(start + vector * lanes), b.let(vector * lanes))
    return b.finish()
