"""roi_align: where a sample lies, and its weights, are found once for many channels.

A task is a region and some channels, whose sums of one bin wait in scratch. Channels in blocks go
by vectors. Takes any injective prologue and an elementwise epilogue.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import ceildiv
from cuvilc.dialect.ops.roi import Box
from cuvilc.dialect.types import channel_block
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.tir import as_expr, const

_CHANNELS = 64  # of a task
_SAMPLES = 4  # of a bin, where only the run can tell, for the estimate of work
_SAMPLE_FLOPS = 8
_MOVES = ("ai.relayout", "ai.full")


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes regions of one roi_align that averages, and of moves between layouts."""
    anchor = _anchor(region)
    regions, channels, *bins = ir.type_of(anchor.results[0]).shape
    blocks = ceildiv(channels, _CHANNELS)

    def build(vector: bool) -> Scheduled:
        align = _Align(Emitter(region, name), anchor, vector)
        with align.b.tasks() as t:
            count = align.b.scalar(blocks)
            align.run(align.k.floordiv(t, count), align.b.let(align.k.mod(t, count)))
        samples = ir.attrs(anchor)["ratio"] ** 2 or _SAMPLES
        flops = regions * channels * bins[0] * bins[1] * samples * _SAMPLE_FLOPS
        return align.emitter.finish("roi-align", regions * blocks, flops)

    return vectorized(build)


def _anchor(region: Region) -> Any:
    anchors = region.named("ai.roi_align")
    if len(anchors) != 1:
        raise Miss(f"{len(anchors)} operations roi_align, not one")
    (anchor,) = anchors
    if ir.attrs(anchor)["maximum"]:
        raise Miss("maxima, not averages")
    shape = ir.type_of(anchor.results[0]).shape
    if any(o != anchor and o.name not in _MOVES for o in region.operations):
        raise Miss("more than moves between layouts")
    if any(ir.type_of(v).shape != shape for v in region.results):
        raise Miss("a result has another shape")
    return anchor


def _block(region: Region, value: Any) -> int:
    """Channels that lie side by side in the buffer that the value comes from; 0 of plain ones."""
    while value not in region.arguments:
        value = value.owner.operation.operands[0]
    layout = ir.type_of(value).layout
    return channel_block(layout) if layout.startswith("NCHW") else 0


class _Align:
    """One kernel."""

    def __init__(self, emitter: Emitter, anchor: Any, vector: bool) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        self.attrs = {k: v for k, v in ir.attrs(anchor).items() if k != "maximum"}
        self.x, self.rois, self.batch = emitter.operands(anchor)
        self.sums = self.b.scratch(_CHANNELS, self.x.dtype)
        results = [ir.type_of(v).layout for v in emitter.region.results]
        stored = min(channel_block(r) if r.startswith("NCHW") else 0 for r in results)
        self.read_width = _block(emitter.region, anchor.operands[0]) if vector else 0
        self.store_width = stored if vector else 0
        self.number: Any = 0  # of the channel in the task
        emitter.define(anchor.results[0], lambda index: self.k.let(self._average()))

    def run(self, region: Any, block: Any) -> None:
        """Block number `block` of a region's channels."""
        b = self.b
        rest = as_expr(self.x.shape[1]) - block * _CHANNELS
        self.block, self.count = block, b.let(tirx.min(rest, const(_CHANNELS)))
        box = Box(self.k, region, self.x, self.rois, self.batch, **self.attrs)
        self.samples = b.let(box.samples())
        with b.loops(self.attrs["output"]) as place:
            with b.loop(_CHANNELS) as n:
                b.store(self.sums, n, const(0.0, self.x.dtype))
            with b.loops([as_expr(n) for n in box.counts]) as at:
                self._sample(box, place, at)
            self._each(
                self.store_width,
                lambda channel: self.emitter.store_all((region, channel, *place)),
            )

    def _each(self, width: int, body: Callable[[Any], None]) -> None:
        """body(channel) for all of the task, `self.number` being its number in it."""
        b = self.b
        done: Any = 0
        if width:
            vectors = b.let(tirx.floordiv(self.count, const(width)))
            with b.loop(vectors) as v, b.loop(width, "vectorized") as lane:
                self.number = v * width + lane
                body((self.block * (_CHANNELS // width) + v) * width + lane)
            done = b.let(vectors * width)
        with b.loop(b.let(self.count - done)) as n:
            self.number = n + done
            body(self.block * _CHANNELS + self.number)

    def _sample(self, box: Box, place: Any, at: Any) -> None:
        """Add a sample's four weighed elements of every channel to the sums."""
        b, k = self.b, self.k
        rows, columns = box.taps(place, at)
        with b.when(k.both(rows[0][2], columns[0][2])):
            taps = [
                (b.let(p), b.let(q), b.let(u * v))
                for (p, u, _), (q, v, _) in product(rows, columns)
            ]

            def add(channel: Any) -> None:
                terms = [w * self.x[box.image, channel, p, q] for p, q, w in taps]
                added = terms[0] + terms[1] + terms[2] + terms[3]
                b.store(self.sums, self.number, b.load(self.sums, self.number) + added)

            self._each(self.read_width, add)

    def _average(self) -> Any:
        return self.k.div(self.b.load(self.sums, self.number), self.samples)
