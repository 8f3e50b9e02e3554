"""Stores a tile of pixels × channels into channel-blocked results, through the epilogue."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from cuvilc.dialect import ir
from cuvilc.targets.region import Emitter
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
        self, emitter: Emitter, anchor: Any, channels: int, vectorize: bool, steps: int = 0
    ) -> None:
        """`steps`: of the reduction before."""
        self.emitter, self.b, self.channels = emitter, emitter.builder, channels
        self.epilogue = Epilogue(emitter, anchor, steps)
        self._flat = ir.type_of(anchor.results[0]).rank == 3
        self.lanes = "vectorized" if vectorize else "serial"
        biased = anchor.name != "ai.conv_integer" and len(anchor.operands) > 2
        self.bias = emitter.accessor(anchor.operands[2]) if biased else None

    def pixels(self, oh: Any, ow: Any) -> Callable[[Any], tuple[Any, ...]]:
        """`place` for a tile of pixels of row `oh` from column `ow`; in one dimension a column."""
        return lambda p: (ow + p,) if self._flat else (oh, ow + p)

    def tile(
        self, tile: Pixels, image: Any, block: Any, blocks: int, place: Callable[[Any], Any],
        count: Any = None,
    ) -> None:  # fmt: skip
        """`place(p)` is the spatial index of pixel p; channels begin at `block`; `count`: of the
        pixels that are stored, the first ones (all, unless given).
        """
        partial = self.channels % BLOCK
        count = tile.rows if count is None else count
        if not partial and self.epilogue.unrolls:
            for h in range(blocks):
                with self.b.loop(BLOCK, self.lanes) as lane:
                    for p in range(tile.rows):
                        value = tile.at(p, lane + h * BLOCK)
                        with self._while(p, count):
                            self._store(image, (block + h) * BLOCK + lane, place(p), value)
            return
        memory = tile.spill()
        rows = opaque(self.b, count) if tile.rows > 1 else 1  # LLVM shall not unroll it
        with self.b.loop(rows, name="p") as p:
            for h in range(blocks):
                at = p * tile.width + h * BLOCK
                self.pixel(memory, at, image, block + h, place(p))

    def _while(self, p: int, count: Any) -> AbstractContextManager[None]:
        """Only if p < count, of which there is one at least."""
        sure = p == 0 or isinstance(count, int)
        return nullcontext() if sure else self.b.when(p < count)

    def pixel(
        self, memory: Buffer, at: Any, image: Any, block: Any, place: tuple[Any, ...]
    ) -> None:
        """A block of channels of one pixel, from index `at` of the memory on."""

        def pieces(some: list[tuple[int, int]]) -> Callable[[], None]:
            def body() -> None:
                for offset, lanes in some:
                    with self.b.loop(lanes, self.lanes) as lane:
                        value = self.b.load(memory, at + offset + lane)
                        self._store(image, block * BLOCK + offset + lane, place, value)

            return body

        partial, whole = self.channels % BLOCK, pieces([(0, BLOCK)])
        if not partial:
            whole()
        elif self.channels < BLOCK:
            pieces(powers_of_two(partial))()
        else:
            last = self.channels // BLOCK
            first_of(self.b, [(block < last, whole), (None, pieces(powers_of_two(partial)))])

    def _store(self, image: Any, channel: Any, place: Any, value: Any) -> None:
        if self.bias is not None:
            value = self.emitter.k.let(value + self.bias[channel])
        self.epilogue.store((image, channel, *place), value)
