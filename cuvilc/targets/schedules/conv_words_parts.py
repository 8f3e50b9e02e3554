"""What all kernels of conv_words.py and of strassen_kernel.py share (part.py): sizes are arguments.

Inputs are [points, tiles, channels], of which each four neighbours are in the order ORDER; weights
[points, pairs of channels, BLOCK, 2], the pairs in the same order; products [points, tiles, BLOCK].
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import tirx

from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import GROUP_BYTES, PAIRS, WORDS
from cuvilc.targets.part import Part, PartBuilder, part
from cuvilc.targets.schedules.conv_strassen_texts import right_text
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.conv_words_texts import TILE, inputs_text, weights_text
from cuvilc.targets.schedules.dot_tile import DotTile, load_group
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import lesser
from cuvilc.targets.tir import as_expr

_STEPS = 2  # of products in their loop's body
POINT_PADDING = 32  # int16 between points, so that these lie in several sets of a cache


def inputs(chip: Chip) -> Part:
    """Transform a block of channels of `rows` times `columns` tiles, to element `to` on.

    patch, seen; line, to, rows, columns, channels, point: bytes of a row of the patch, elements of
    a tile, of a point.
    """
    return part(chip, _inputs, "words_inputs")


def weights(chip: Chip) -> Part:
    """Transform the weights of a block of output channels, which begin at byte `first`.

    w, made; first, tap, quads, point: bytes of a tap, fours of channels, elements of a point.
    """
    return part(chip, _weights, "words_weights")


def strassen_weights(chip: Chip, depth: int) -> Part:
    """Transform the weights of strassen_kernel.py of a unit, which begin at byte `first`.

    w, made; first, blocks, point: blocks of channels of a point, elements of a point.
    """
    return part(chip, partial(_strassen_weights, depth), "strassen_weights", depth)


def products(chip: Chip, tiles: int) -> Part:
    """The products of all points of `total` tiles, `tiles` (at most `total`) at a time.

    seen, weights, made; points, total, channels, point, weights_point, made_point: elements of a
    point.
    """
    return part(chip, partial(_products, tiles), "words_products", tiles)


def _inputs(chip: Chip, symbol: str) -> Any:
    b = PartBuilder(symbol)
    (patch,), (seen,) = b.buffers("uint8", "patch"), b.buffers("int16", "seen")
    line, to, rows, columns, channels, point = b.indices(
        "line", "to", "rows", "columns", "channels", "point"
    )
    name = "cuvil_words_inputs"
    b.llvm(name, inputs_text(name))
    with b.loop(rows, name="i") as i, b.loop(columns, name="j") as j:
        at = i * line * TILE + j * (TILE * BLOCK)
        place = to + (i * columns + j) * channels
        call = tirx.call_extern("int32", name, patch.data, at, line, seen.data, place, point)
        b.emit(tirx.Evaluate(call))
    return b.finish()


def _weights(chip: Chip, symbol: str) -> Any:
    b = PartBuilder(symbol)
    (w,), (made,) = b.buffers("int8", "w"), b.buffers("int16", "made")
    first, tap, quads, point = b.indices("first", "tap", "quads", "point")
    lanes = min(chip.lanes, BLOCK)
    name = "cuvil_words_weights"
    b.llvm(name, weights_text(name, lanes))
    with b.loop(quads, name="c") as c, b.loop(BLOCK // lanes, name="l") as part_of_block:
        lane = part_of_block * lanes
        at = first + (c * PANEL + lane) * GROUP_BYTES
        to = c * (WORDS.group * BLOCK) + lane * PAIRS.group
        call = tirx.call_extern("int32", name, w.data, at, tap, made.data, to, point)
        b.emit(tirx.Evaluate(call))
    return b.finish()


def _products(tiles: int, chip: Chip, symbol: str) -> Any:
    b = PartBuilder(symbol)
    seen, weights = b.buffers("int16", "seen", "weights")
    (made,) = b.buffers("int32", "made")
    points, total, channels = b.indices("points", "total", "channels")
    point, weights_point, made_point = b.indices("point", "weights_point", "made_point")
    turns = b.let(tirx.truncdiv(channels, as_expr(_STEPS * PAIRS.group)))
    groups = b.let(tirx.truncdiv(total + (tiles - 1), as_expr(tiles)))

    def step(tile: DotTile, rows: list[Any], place: Any) -> None:
        """Of the groups that lie at these bytes."""
        scalars = [load_group(b, seen, b.simplify(row)) for row in rows]
        tile.step(scalars, lambda lane: (weights, b.simplify(place + lane * GROUP_BYTES)))

    with b.loop(points, name="p") as p, b.loop(groups, name="g") as g:
        start = b.let(lesser(g * tiles, total - tiles))
        inputs = b.let((p * point + start * channels) * PAIRS.item)
        first = b.let(p * weights_point * PAIRS.item)
        tile = DotTile(b, chip, PAIRS, tiles, BLOCK)
        rows = [b.let(inputs + r * (channels * PAIRS.item)) for r in range(tiles)]
        with b.loop(turns, name="c") as turn:
            for s in range(_STEPS):
                at = turn * (_STEPS * GROUP_BYTES) + s * GROUP_BYTES
                step(tile, [row + at for row in rows], first + at * BLOCK)
        to = b.let(p * made_point + start * BLOCK)
        with b.loop(BLOCK, "vectorized") as lane:
            for r in range(tiles):
                b.store(made, to + r * BLOCK + lane, tile.at(r, lane))
    return b.finish()


def _strassen_weights(depth: int, chip: Chip, symbol: str) -> Any:
    b = PartBuilder(symbol)
    (w,), (made,) = b.buffers("int8", "w"), b.buffers("int16", "made")
    first, blocks, point = b.indices("first", "blocks", "point")
    lanes = min(chip.lanes, BLOCK)
    name = "cuvil_right"
    b.llvm(name, right_text(name, lanes, depth))
    quads = BLOCK // WORDS.group
    with (
        b.loop(blocks, name="c") as c,
        b.loop(quads, name="q") as quad,
        b.loop(BLOCK // lanes, name="l") as part_of_block,
    ):
        lane = part_of_block * lanes
        at = first + ((c * (quads << depth) + quad) * PANEL + lane) * GROUP_BYTES
        to = (c * quads + quad) * (WORDS.group * BLOCK) + lane * PAIRS.group
        call = tirx.call_extern("int32", name, w.data, at, made.data, to, point)
        b.emit(tirx.Evaluate(call))
    return b.finish()
