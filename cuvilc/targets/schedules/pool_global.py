"""The mean over H and W of channel-blocked activations."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import product
from cuvilc.dialect.types import channel_block
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.microkernel import (
    Epilogue,
    RegisterTile,
    first_of,
    lesser,
    powers_of_two,
)

_TASK_PIXELS = 8192  # vectors read in a task, some microseconds
_USUAL_PIXELS = 256  # where the size is known only at run time
_SETS = 8  # independent sums, to hide the latency of an addition


def check(region: Region, anchor: Any) -> None:
    """Miss unless it is a mean over all spatial axes of a blocked argument."""
    x, attrs = ir.type_of(anchor.operands[0]), ir.attrs(anchor)
    axes = tuple(sorted(a % x.rank for a in attrs["axes"]))
    if not x.layout or x.dtype != "float32" or axes != tuple(range(2, x.rank)):
        raise Miss("not a mean over H and W of a blocked float32 tensor")
    if region.argument(anchor.operands[0]) is None:
        raise Miss("the input is computed in the kernel")
    if not isinstance(x.shape[1], int):
        raise Miss("channels known only at run time")
    results = (anchor.operands[0], *region.results)
    if x.rank > 4 or not all(_fits(v) for v in results):
        raise Miss("three spatial dimensions or another block of channels")


def _fits(value: Any) -> bool:
    layout = ir.type_of(value).layout
    return not layout or channel_block(layout) == BLOCK


class GlobalMean:
    """A task is some blocks of channels of one image."""

    def __init__(self, region: Region, chip: Chip, name: str, anchor: Any, vectorize: bool) -> None:
        self.x = ir.type_of(anchor.operands[0])
        assert isinstance(self.x.shape[1], int), "check() has seen to it"
        self.channels = self.x.shape[1]
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.buffer = self.emitter.argument(anchor.operands[0])
        self.epilogue = Epilogue(self.emitter, anchor)
        self.rest = (0,) * (ir.type_of(anchor.results[0]).rank - 2)
        self.lanes = "vectorized" if vectorize else "serial"

    def build(self) -> Scheduled:
        b, k = self.b, self.k
        images, _, *spatial = self.x.shape
        channels, size = self.channels, product(spatial)
        blocks, pixels = -(-channels // BLOCK), b.scalar(size)
        known = size if isinstance(size, int) else _USUAL_PIXELS
        together = max(1, min(_TASK_PIXELS // max(known, 1), blocks))
        groups = -(-blocks // together)
        with b.tasks() as t:
            image = b.let(k.floordiv(t, groups))
            first = b.let((t - image * groups) * together)
            last = lesser(first + together, blocks)
            with b.loop(last - first, start=first, name="c") as block:
                start = b.let((image * blocks + block) * (pixels * BLOCK))
                self._block(image, block, start, pixels)
        return self.emitter.finish("global-mean", images * groups, images * channels * size)

    def _block(self, image: Any, block: Any, start: Any, pixels: Any) -> None:
        """The means of 16 channels."""
        b, k = self.b, self.k
        tile = RegisterTile(b, 1, BLOCK, _SETS)
        turns = k.floordiv(pixels, _SETS)
        turns = turns if isinstance(turns, int) else b.let(turns)
        with b.loop(turns, name="p") as i, b.loop(BLOCK, "vectorized") as lane:
            for s in range(_SETS):
                at = start + (i * _SETS + s) * BLOCK
                tile.add(0, lane, b.load(self.buffer, at + lane), s)
        left = b.loop(pixels - turns * _SETS, start=turns * _SETS, name="p")
        with left as i, b.loop(BLOCK, "vectorized") as lane:
            tile.add(0, lane, b.load(self.buffer, start + i * BLOCK + lane))
        tile.gather_sets()
        self._store(tile, image, block, self.channels, b.let(k.value_of_index(pixels, "float32")))

    def _store(self, tile: RegisterTile, image: Any, block: Any, channels: int, count: Any) -> None:
        def pieces(some: list[tuple[int, int]]) -> Any:
            def body() -> None:
                for offset, width in some:
                    with self.b.loop(width, self.lanes) as lane:
                        value = self.b.let(tile.at(0, offset + lane) / count)
                        channel = block * BLOCK + offset + lane
                        self.epilogue.store((image, channel, *self.rest), value)

            return body

        partial = channels % BLOCK
        cases = [
            (block < channels // BLOCK, pieces([(0, BLOCK)])),
            (None, pieces(powers_of_two(partial))),
        ]
        first_of(self.b, cases if partial else [(None, pieces([(0, BLOCK)]))])
