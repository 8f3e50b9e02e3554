"""Weights of 3×3 windows into the form that Winograd's filtering multiplies, panel by panel.

A task is some input channels of a panel of output channels.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv
from cuvilc.dialect.winograd import MATRICES, TAPS, weight_points
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import anchor_of, lesser, opaque, split
from cuvilc.targets.schedules.winograd_transforms import combine

_TASK_CHANNELS = 32


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.winograd_weights alone, packed in panels."""
    anchor = anchor_of(region, "ai.winograd_weights")
    w, u = ir.type_of(anchor.operands[0]), ir.type_of(anchor.results[0])
    if len(region.operations) > 1 or region.argument(anchor.operands[0]) is None:
        raise Miss("other operations in the kernel")
    packed = f"pack0_{PANEL}"
    if (w.layout, u.layout) != (packed, packed):
        raise Miss(f"weights in layout {w.layout or 'row-major'}, {u.layout or 'row-major'}")
    return _Weights(region, name, anchor).build()


class _Weights:
    def __init__(self, region: Region, name: str, anchor: Any) -> None:
        attrs = ir.attrs(anchor)
        self.matrix = MATRICES[attrs["tile"], attrs["stride"]].weights
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        w = anchor.operands[0]
        self.outputs, self.channels = ir.type_of(w).shape[:2]
        self.w = self.emitter.argument(w)
        self.u = self.b.buffer(1, "float32")
        self.points = weight_points(attrs["tile"])
        self.half = self.b.scratch(TAPS * self.points * PANEL, "float32")

    def build(self) -> Scheduled:
        b = self.b
        groups = ceildiv(self.channels, _TASK_CHANNELS)
        with b.tasks() as t:
            group, panel = split(self.emitter, t, b.scalar(groups))
            first = b.let(group * _TASK_CHANNELS)
            last = b.let(lesser(first + _TASK_CHANNELS, b.scalar(self.channels)))
            with b.loop(last - first, start=first, name="c") as channel:
                self._transform(panel, channel)
        tasks: Dim = groups * ceildiv(self.outputs, PANEL)
        steps = 2 * TAPS * self.points * (TAPS + self.points)
        return self.emitter.finish("winograd-weights", tasks, self.outputs * self.channels * steps)

    def _transform(self, panel: Any, channel: Any) -> None:
        b, n, matrix = self.b, self.points, self.matrix
        channels = b.scalar(self.channels)
        source = b.let((panel * channels + channel) * (TAPS * TAPS * PANEL))
        to = b.let((panel * (n * n) * channels + channel) * PANEL)
        step = b.let(channels * PANEL)
        with b.loop(TAPS, name="j") as j, b.loop(PANEL, "vectorized") as lane:
            values = [
                self.k.let(b.load(self.w, source + (i * TAPS + j) * PANEL + lane))
                for i in range(TAPS)
            ]
            for i, value in enumerate(combine(self.k, matrix, values)):
                b.store(self.half, (i * TAPS + j) * PANEL + lane, value)
        with b.loop(opaque(b, n), name="i") as i, b.loop(PANEL, "vectorized") as lane:
            values = [
                self.k.let(b.load(self.half, (i * TAPS + j) * PANEL + lane)) for j in range(TAPS)
            ]
            for j, value in enumerate(combine(self.k, matrix, values)):
                b.store(self.u, to + (i * n + j) * step + lane, value)
