"""roi_align: where a sample lies, and its weights, are found once for many channels.

A task is a region and some channels, whose sums of one bin wait in scratch.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import ceildiv
from cuvilc.dialect.ops.roi import Box
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.special_channels import CHANNELS, Channels, sampler
from cuvilc.targets.tir import as_expr, const

_SAMPLES = 4  # of a bin, where only the run can tell, for the estimate of work
_SAMPLE_FLOPS = 8


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes regions of one roi_align that averages, and of moves between layouts."""
    anchor = sampler(region, "ai.roi_align")
    if ir.attrs(anchor)["maximum"]:
        raise Miss("maxima, not averages")
    regions, channels, *bins = ir.type_of(anchor.results[0]).shape
    blocks = ceildiv(channels, CHANNELS)

    def build(vector: bool) -> Scheduled:
        align = _Align(Emitter(region, name), anchor, vector)
        with align.b.tasks() as t:
            count = align.b.scalar(blocks)
            align.run(align.k.floordiv(t, count), align.b.let(align.k.mod(t, count)))
        samples = ir.attrs(anchor)["ratio"] ** 2 or _SAMPLES
        flops = regions * channels * bins[0] * bins[1] * samples * _SAMPLE_FLOPS
        return align.emitter.finish("roi-align", regions * blocks, flops)

    return vectorized(build)


class _Align:
    """One kernel."""

    def __init__(self, emitter: Emitter, anchor: Any, vector: bool) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        self.attrs = {k: v for k, v in ir.attrs(anchor).items() if k != "maximum"}
        self.x, self.rois, self.batch = emitter.operands(anchor)
        self.channels = Channels(emitter, anchor, vector)
        self.sums = self.b.scratch(CHANNELS, self.x.dtype)
        emitter.define(anchor.results[0], lambda index: self.k.let(self._average()))

    def run(self, region: Any, block: Any) -> None:
        """Block number `block` of a region's channels."""
        b, channels = self.b, self.channels
        channels.start(block, self.x.shape[1])
        box = Box(self.k, region, self.x, self.rois, self.batch, **self.attrs)
        self.samples = b.let(box.samples())
        with b.loops(self.attrs["output"]) as place:
            with b.loop(CHANNELS) as n:
                b.store(self.sums, n, const(0.0, self.x.dtype))
            with b.loops([as_expr(n) for n in box.counts]) as at:
                self._sample(box, place, at)
            store = lambda c: self.emitter.store_all((region, c, *place))  # noqa: E731
            channels.each(channels.store_width, store)

    def _sample(self, box: Box, place: Any, at: Any) -> None:
        """Add a sample's four weighed elements of every channel to the sums."""
        b, k, channels = self.b, self.k, self.channels
        rows, columns = box.taps(place, at)
        with b.when(k.both(rows[0][2], columns[0][2])):
            taps = [
                (b.let(p), b.let(q), b.let(u * v))
                for (p, u, _), (q, v, _) in product(rows, columns)
            ]

            def add(channel: Any) -> None:
                terms = [w * self.x[box.image, channel, p, q] for p, q, w in taps]
                added = terms[0] + terms[1] + terms[2] + terms[3]
                b.store(self.sums, channels.number, b.load(self.sums, channels.number) + added)

            channels.each(channels.read_width, add)

    def _average(self) -> Any:
        return self.k.div(self.b.load(self.sums, self.channels.number), self.samples)
