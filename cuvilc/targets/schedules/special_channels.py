"""What schedules share that find a place once and read it in many channels.

A task has up to CHANNELS of them. Those in blocks go by vectors, in steps of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.ir import Operation, Value
from cuvilc.dialect.types import channel_block
from cuvilc.targets.region import Emitter, Miss, Region
from cuvilc.targets.tir import as_expr, const

CHANNELS = 64
_MOVES = ("ai.relayout", "ai.full")


def sampler(region: Region, name: str) -> Operation:
    """The region's only operation but for moves between layouts. Raises Miss."""
    anchors = region.named(name)
    if len(anchors) != 1:
        raise Miss(f"{len(anchors)} operations {name}, not one")
    (anchor,) = anchors
    shape = ir.type_of(anchor.results[0]).shape
    if any(o != anchor and o.name not in _MOVES for o in region.operations):
        raise Miss("more than moves between layouts")
    if any(ir.type_of(v).shape != shape for v in region.results):
        raise Miss("a result has another shape")
    return anchor


def read_block(region: Region, value: Value) -> int:
    """Channels that lie side by side in the buffer that the value comes from; 0 of plain ones, and
    of an immediate, which comes from none.
    """
    while value not in region.arguments:
        operation = value.owner.operation
        if operation.name == "ai.full":
            return 0
        value = operation.operands[0]
    return _block(value)


def _block(value: Value) -> int:
    layout = ir.type_of(value).layout
    return channel_block(layout) if layout.startswith("NCHW") else 0


class Channels:
    """Loops over the channels of a task; `number` is the one at hand, counted in the task."""

    def __init__(self, emitter: Emitter, anchor: Operation, vector: bool) -> None:
        region, self.b = emitter.region, emitter.builder
        self.read_width = read_block(region, anchor.operands[0]) if vector else 0
        self.store_width = min(map(_block, region.results)) if vector else 0
        self.number: Any = 0
        self.block: Any = 0
        self.count: Any = 0

    def start(self, block: Any, channels: Any) -> None:
        """The task has block number `block` of all channels."""
        rest = as_expr(channels) - block * CHANNELS
        self.block, self.count = block, self.b.let(tirx.min(rest, const(CHANNELS)))

    def each(self, width: int, body: Callable[[Any], None]) -> None:
        """body(channel) for all of the task: vectors of `width`, then one by one."""
        b = self.b
        done: Any = 0
        if width:
            vectors = b.let(tirx.floordiv(self.count, const(width)))
            with b.loop(vectors) as v, b.loop(width, "vectorized") as lane:
                self.number = v * width + lane
                body((self.block * (CHANNELS // width) + v) * width + lane)
            done = b.let(vectors * width)
        with b.loop(b.let(self.count - done)) as n:
            self.number = n + done
            body(self.block * CHANNELS + self.number)
