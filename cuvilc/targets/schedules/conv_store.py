"""Stores a tile of pixels × channels into channel-blocked results, through the epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.conv_levels import TOGETHER, LevelStore
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.microkernel import (
    Epilogue,
    first_of,
    opaque,
    powers_of_two,
)
from cuvilc.targets.tir import Buffer


class Pixels(Protocol):
    """`rows` pixels of `width` channels, as a RegisterTile has them."""

    rows: int
    width: int

    def at(self, row: int, lane: Any) -> Any:
        """A channel of a pixel; pixels are asked for in order."""

    def spill(self) -> Any:
        """All of them as an array [rows, width] in memory."""


class ChannelStore:
    """Adds the convolution's bias, applies the epilogue, and stores block by block.

    The last block may be partial. Operands such as a bias end with the last channel, so beyond it
    nothing is read, and nothing need be written.
    """

    def __init__(
        self, emitter: Emitter, anchor: Any, channels: int, vectorize: bool, steps: int = 0,
        chip: Chip | None = None,
    ) -> None:  # fmt: skip
        """`steps`: of the reduction before; with a chip its sums may begin at `terms`, and its
        function may store levels.
        """
        self.emitter, self.b, self.channels = emitter, emitter.builder, channels
        self.epilogue = Epilogue(emitter, anchor, steps)
        self.levels: LevelStore | None = None
        if chip is not None and channels % BLOCK == 0:
            self.epilogue.absorb()
            if vectorize:
                self.levels = LevelStore.of(emitter, chip)
        self._shape = emitter.region.type_of(anchor.results[0]).shape
        self._flat = len(self._shape) == 3
        self.lanes = "vectorized" if vectorize else "serial"
        biased = anchor.name != "ai.conv_integer" and len(anchor.operands) > 2
        self.bias = emitter.accessor(anchor.operands[2]) if biased else None

    def terms(self, block: Any) -> Callable[[Any], Any] | None:
        """What sums of channels from a block on must begin with, if not with 0: of a lane."""
        terms = self.epilogue.terms
        if terms is None:
            return None
        rest = (0,) * (len(terms.shape) - 1)
        return lambda lane: terms[(block * BLOCK + lane, *rest)]

    def pixels(self, oh: Any, ow: Any, width: int = 0) -> Callable[[Any], tuple[Any, ...]]:
        """`place` for a tile of pixels of row `oh` from column `ow`; in one dimension a column.
        `width`: of a tile of several rows.
        """

        def place(p: Any) -> tuple[Any, ...]:
            if not width:
                return (ow + p,) if self._flat else (oh, ow + p)
            row = self.emitter.k.floordiv(p, width)
            return oh + row, ow + (p - row * width)

        return place

    def tile(
        self, tile: Pixels, image: Any, block: Any, blocks: int, place: Callable[[Any], Any],
        count: Any = None, line: int | None = None, exist: int | None = None,
    ) -> None:  # fmt: skip
        """`place(p)` is the spatial index of pixel p; channels begin at `block`; `count`: of the
        pixels that are stored, the first ones (all, unless given); `line`: how many lie side by
        side, again and again (all, unless given); `exist`: how many of the tile's channels are of
        the result, where that is known.
        """
        if exist is None and not self.channels % BLOCK:
            exist = blocks * BLOCK
        lanes = [None if exist is None else min(exist - h * BLOCK, BLOCK) for h in range(blocks)]
        line = tile.rows if line is None else line
        if self.levels is not None and count is None and line >= TOGETHER:
            self._levels(self.levels, tile, image, block, blocks, place, line)
            return
        count = tile.rows if count is None else count
        if exist is not None and exist % (BLOCK // 2) == 0 and self.epilogue.unrolls:
            for h, some in enumerate(lanes):
                with self.b.loop(some, self.lanes) as lane:
                    for p in range(tile.rows):
                        value = tile.at(p, lane + h * BLOCK)
                        with self._while(p, count):
                            self._store(image, (block + h) * BLOCK + lane, place(p), value)
            return
        memory = tile.spill()
        rows = opaque(self.b, count) if tile.rows > 1 else 1  # LLVM shall not unroll it
        with self.b.loop(rows, name="p") as p:
            for h, some in enumerate(lanes):
                at = p * tile.width + h * BLOCK
                self.pixel(memory, at, image, block + h, place(p), some)

    def _levels(
        self, levels: LevelStore, tile: Pixels, image: Any, block: Any, blocks: int,
        place: Callable[[Any], Any], line: int,
    ) -> None:  # fmt: skip
        if self.epilogue.unrolls:
            starts = [
                low + min(i, line - TOGETHER)
                for low in range(0, tile.rows, line)
                for i in range(0, line, TOGETHER)
            ]
            for h in range(blocks):
                quotients = self.b.local(tile.rows * BLOCK, "float32")
                channel = (block + h) * BLOCK
                with self.b.loop(BLOCK, self.lanes) as lane:
                    for p in range(tile.rows):
                        value = tile.at(p, lane + h * BLOCK)
                        self._quotient(quotients, p, lane, image, channel, place(p), value)
                for p in starts:
                    levels.store(quotients, p * BLOCK, (image, channel, *place(p)))
            return
        memory = tile.spill()
        whole, left = divmod(line, TOGETHER)
        with self.b.loop(opaque(self.b, tile.rows // line), name="l") as i:
            with self.b.loop(opaque(self.b, whole), name="p") as j:
                first = self.b.let(i * line + j * TOGETHER)
                for h in range(blocks):
                    quotients = self.b.local(TOGETHER * BLOCK, "float32")
                    channel = (block + h) * BLOCK
                    with self.b.loop(BLOCK, self.lanes) as lane:
                        for p in range(TOGETHER):
                            at = (first + p) * tile.width + h * BLOCK
                            value = self.b.load(memory, at + lane)
                            pixel = place(first + p)
                            self._quotient(quotients, p, lane, image, channel, pixel, value)
                    levels.store(quotients, 0, (image, channel, *place(first)))
            if left:
                with self.b.loop(left, start=whole * TOGETHER, name="p") as j:
                    for h in range(blocks):
                        at = (i * line + j) * tile.width + h * BLOCK
                        self.pixel(memory, at, image, block + h, place(i * line + j))

    def _quotient(
        self, into: Buffer, p: int, lane: Any, image: Any, channel: Any, place: Any, value: Any
    ) -> None:
        assert self.levels is not None
        self.epilogue.define(value)
        quotient = self.levels.quotient((image, channel + lane, *place))
        self.b.store(into, p * BLOCK + lane, quotient)

    def _while(self, p: int, count: Any) -> AbstractContextManager[None]:
        """Only if p < count, of which there is one at least."""
        sure = p == 0 or isinstance(count, int)
        return nullcontext() if sure else self.b.when(p < count)

    def pixel(
        self, memory: Buffer, at: Any, image: Any, block: Any, place: tuple[Any, ...],
        exist: int | None = None,
    ) -> None:  # fmt: skip
        """A block of channels of one pixel, from index `at` of the memory on; `exist`: how many of
        them are of the result, where that is known.
        """

        def values(lane: Any) -> tuple[Any]:
            return (self.b.load(memory, at + lane),)

        self.pixels_of(values, image, block, (place,), exist)

    def pixels_of(
        self, values: Callable[[Any], Sequence[Any]], image: Any, block: Any, places: Sequence[Any],
        exist: int | None = None,
    ) -> None:  # fmt: skip
        """A block of channels of the pixels at `places`: `values(lane)` has one channel of each;
        `exist`: as of `pixel`.
        """

        def pieces(some: list[tuple[int, int]]) -> Callable[[], None]:
            def body() -> None:
                for offset, lanes in some:
                    with self.b.loop(lanes, self.lanes) as lane:
                        for place, value in zip(places, values(offset + lane), strict=True):
                            self._store(image, block * BLOCK + offset + lane, place, value)

            return body

        partial, whole = self.channels % BLOCK, pieces([(0, BLOCK)])
        if not partial:
            whole()
        elif exist is not None:
            pieces(powers_of_two(exist))()
        elif self.channels < BLOCK:
            pieces(powers_of_two(partial))()
        else:
            last = self.channels // BLOCK
            first_of(self.b, [(block < last, whole), (None, pieces(powers_of_two(partial)))])

    def _store(self, image: Any, channel: Any, place: Any, value: Any) -> None:
        if self.bias is not None:
            value = self.emitter.k.let(value + self.bias[channel])
        index = (image, channel, *place)
        for i, size in zip(index, self._shape, strict=True):
            if not isinstance(size, int):
                self.b.note_span(i, size)
        self.epilogue.store(index, value)
