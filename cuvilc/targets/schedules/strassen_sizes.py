"""Sizes of products of bytes by Strassen's method, in conv_strassen.py and gemm_strassen.py.

A row is a pixel, or a row of a matrix. A task has some of them, and a unit of output channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import PAIRS
from cuvilc.targets.schedules.conv_strassen_texts import FORMS
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.conv_words_parts import POINT_PADDING
from cuvilc.targets.schedules.dot_tile import dot_rows

_DEPTHS = 2
_MOST_BYTES = 384 << 10  # of a task's transformed inputs, if those are rows enough
_LEAST_TILES = 4  # multiplied together: fewer leave registers without sums
# Instructions for 16 numbers without and with fewer products: of inputs, of weights, of results
# with their detour through memory; of a product and its addition.
_INPUT, _WEIGHT, _RESULT = (4, 8), (4, 11), (4, 15)
_PRODUCT = 2


@dataclass(frozen=True)
class Sizes:
    """Of a layer: `total` rows, `channels` of each, `blocks` of output channels."""

    depth: int  # 1 where there are fewer products, or 0
    total: int
    rows: int  # in a task
    last: int  # in the last one of them
    channels: int
    blocks: int
    most: int  # tiles that are multiplied together, at most

    @property
    def parts(self) -> int:
        """Rows, blocks of channels and of outputs that are transformed together."""
        return 1 << self.depth

    @property
    def points(self) -> int:
        return FORMS**self.depth

    @property
    def units(self) -> int:
        """Of output channels."""
        return self.blocks // self.parts

    @property
    def row_groups(self) -> int:
        return -(-self.total // self.rows)

    @property
    def inner(self) -> int:
        """Channels of a tile's input in one point."""
        return self.channels // self.parts

    @property
    def row_tiles(self) -> int:
        """Of a task."""
        return -(-self.rows // self.parts)

    @property
    def tiles(self) -> int:
        """That are multiplied together."""
        even = -(-self.row_tiles // -(-self.row_tiles // self.most))
        return min(even, self.last // self.parts)

    @property
    def point(self) -> int:
        """Elements of one point of a task's inputs."""
        return self.row_tiles * self.inner + POINT_PADDING

    @property
    def weights_point(self) -> int:
        """Of one point of a unit's weights."""
        return self.inner * BLOCK + POINT_PADDING

    @property
    def made_point(self) -> int:
        """Of one point of a task's products with them."""
        return self.row_tiles * BLOCK + POINT_PADDING // 2

    @property
    def cost(self) -> float:
        """Instructions, as far as this counts them."""
        depth, weights = self.depth, self.channels * self.blocks
        return (
            _PRODUCT * self.total * weights * (FORMS / 8) ** depth
            + self.total * self.channels // BLOCK * _INPUT[depth]
            + self.row_groups * weights * _WEIGHT[depth]
            + self.total * self.blocks * _RESULT[depth]
        )


def bytes_of_row(channels: int, depth: int) -> float:
    """Of a row's transformed inputs."""
    return channels * PAIRS.item * (FORMS / 4) ** depth


def cheapest(
    chip: Chip, lines: int, line: int, few: int, channels: int, outputs: int
) -> Sizes | None:
    """Of `lines` lines of `line` rows, of which a task has whole ones; None for too few rows.

    few: rows that a task has at least, if there are so many: fewer would not repay transforming
    weights.
    """
    found = []
    blocks = -(-outputs // BLOCK)
    for depth in range(_DEPTHS):
        parts = 1 << depth
        if channels // BLOCK % parts or blocks % parts or (depth and outputs % BLOCK):
            continue
        fit = int(_MOST_BYTES / (bytes_of_row(channels, depth) * line))
        together = min(max(-(-few // line), fit), lines)
        together = -(-lines // -(-lines // together))
        last = lines - (-(-lines // together) - 1) * together
        most = dot_rows(chip, PAIRS, BLOCK)
        sizes = Sizes(depth, lines * line, together * line, last * line, channels, blocks, most)
        if sizes.last >= parts and sizes.tiles >= min(most, _LEAST_TILES):
            found.append(sizes)
    return min(found, key=lambda sizes: sizes.cost) if found else None
