"""Activations into blocks of channels and back, where the channels do not fill the last block.

Squares of channels by pixels are transposed in registers; of the last block only the channels that
exist are read or written, the others are zeros. (Where channels fill blocks, elementwise.py has
squares too, around any arithmetic.) A task is some pixels of one block.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import product
from cuvilc.dialect.types import item_bytes
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules.microkernel import first_of, lesser, split
from cuvilc.targets.schedules.special_common import lone
from cuvilc.targets.schedules.transpose_block import transpose_block
from cuvilc.targets.tir import as_expr, const

_TASK_PIXELS = 512


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes one relayout of elements of four bytes alone, whose channels leave a block unfilled."""
    anchor = lone(region, "ai.relayout")
    x, y = ir.type_of(anchor.operands[0]), ir.type_of(anchor.results[0])
    blocked = y if y.layout else x
    if region.argument(anchor.operands[0]) is None or bool(x.layout) == bool(y.layout):
        raise Miss("not between row-major order and blocks")
    channels, block = x.shape[1], blocked.physical_shape[-1]
    pixels = product(x.shape[2:])
    if item_bytes(x.dtype) != 4 or not (isinstance(channels, int) and isinstance(block, int)):
        raise Miss(f"{channels} channels of {x.dtype}")
    if not isinstance(pixels, int) or pixels < chip.lanes or block % chip.lanes:
        raise Miss("fewer pixels than lanes, or not known")
    if channels % block == 0:
        raise Miss("whole blocks")
    return _Relayout(Emitter(region, name), chip, anchor, channels, block, pixels).build()


class _Relayout:
    def __init__(
        self, emitter: Emitter, chip: Chip, anchor: Any, channels: int, block: int, pixels: int
    ) -> None:
        self.emitter, self.b, self.n = emitter, emitter.builder, chip.lanes
        self.channels, self.block, self.pixels = channels, block, pixels
        t = ir.type_of(anchor.results[0])
        self.into, self.images = bool(t.layout), t.shape[0]
        self.blocks = -(-channels // block)
        self.source = emitter.argument(anchor.operands[0])
        self.target = self.b.buffer(len(emitter.region.arguments), t.dtype)

    def build(self) -> Scheduled:
        b, n = self.b, self.n
        squares = -(-self.pixels // n)
        each = max(1, min(squares, _TASK_PIXELS // n))
        parts = -(-squares // each)
        with b.tasks() as t:
            part, rest = split(self.emitter, t, parts)
            block, image = split(self.emitter, rest, self.blocks)
            first = b.let(as_expr(part * each))
            count = b.let(lesser(squares - first, each))
            with b.loop(count) as s:
                # the last square begins earlier, to be whole
                pixel = b.let(lesser((first + s) * n, self.pixels - n))
                left = self.channels % self.block
                cases: list[Any] = [(None, lambda: self._square(image, block, pixel, left))]
                if self.blocks > 1:
                    whole = block < self.blocks - 1
                    cases.insert(0, (whole, lambda: self._square(image, block, pixel, self.block)))
                first_of(b, cases)
        elements = self.images * (self.channels * self.pixels)
        return self.emitter.finish("relayout", self.images * (self.blocks * parts), elements)

    def _square(self, image: Any, block: Any, pixel: Any, channels: int) -> None:
        """A square of pixels of a block that has so many channels."""
        b, n = self.b, self.n
        row = b.let((image * self.channels + block * self.block) * self.pixels + pixel)
        place = b.let(((image * self.blocks + block) * self.pixels + pixel) * self.block)
        for lane in range(0, self.block, n):
            some = min(max(channels - lane, 0), n)
            plain = (row + lane * self.pixels, const(self.pixels))
            within = (place + lane, const(self.block))
            if self.into:
                transpose_block(b, n, (self.source, *plain), (self.target, *within), read=some)
            elif some:
                transpose_block(b, n, (self.source, *within), (self.target, *plain), written=some)
