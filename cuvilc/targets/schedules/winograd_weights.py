"""Weights of 3×3 windows into the form that Winograd's filtering multiplies, panel by panel.

A task is some input channels of a panel of output channels.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv
from cuvilc.dialect.winograd import MATRICES, TAPS, Rows
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import anchor_of, lesser, opaque, split
from cuvilc.targets.schedules.winograd_transforms import Memory, lines, turns
from cuvilc.targets.tir import Buffer, KernelBuilder

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
    attrs = ir.attrs(anchor)
    matrix = MATRICES[attrs["tile"], attrs["stride"]].weights
    emitter, n = Emitter(region, name), len(matrix)
    b, (outputs, channels) = emitter.builder, w.shape[:2]
    groups, size = ceildiv(channels, _TASK_CHANNELS), b.scalar(channels)
    source, to = emitter.argument(anchor.operands[0]), b.buffer(1, "float32")
    half = b.scratch(TAPS * n * PANEL, "float32")
    with b.tasks() as t:
        group, panel = split(emitter, t, b.scalar(groups))
        first = b.let(group * _TASK_CHANNELS)
        last = b.let(lesser(first + _TASK_CHANNELS, size))
        with b.loop(last - first, start=first, name="c") as c:
            start = b.let((panel * size + c) * (TAPS * TAPS * PANEL))
            place = b.let((panel * (n * n) * size + c) * PANEL)
            _transform(b, matrix, (source, start), half, (to, place, b.let(size * PANEL)))
    tasks: Dim = groups * ceildiv(outputs, PANEL)
    steps = 2 * TAPS * n * (TAPS + n)
    return emitter.finish("winograd-weights", tasks, outputs * channels * steps)


def _transform(
    b: KernelBuilder, matrix: Rows, source: tuple[Buffer, Any], half: Buffer, to: Memory
) -> None:
    """One channel's weights of a panel: along columns into `half`, then along lines."""
    (w, start), (u, place, step), n = source, to, len(matrix)
    with b.loop(TAPS, name="j") as j:
        column = (w, opaque(b, start + j * PANEL), TAPS * PANEL)
        lines(b, matrix, column, (half, opaque(b, j * PANEL), TAPS * PANEL), PANEL)
    with turns(b, n, "i") as i:
        line = (half, opaque(b, i * TAPS * PANEL), PANEL)
        lines(b, matrix, line, (u, opaque(b, place + i * n * step), step), PANEL)
