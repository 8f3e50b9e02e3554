"""Weights of windows of 3 taps into the form that Winograd's filtering multiplies, panel by panel.

A task is some input channels of a panel of output channels.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv
from cuvilc.dialect.winograd import Rows, matrices, window_of
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
    tile, strides = (ir.attrs(anchor)[attr] for attr in ("tile", "strides"))
    down, across = (m.weights for m in matrices(tile, strides))
    emitter, (rows, columns) = Emitter(region, name), window_of(tile)
    n = len(down) * len(across)
    b, (outputs, channels) = emitter.builder, w.shape[:2]
    groups, size = ceildiv(channels, _TASK_CHANNELS), b.scalar(channels)
    source, to = emitter.argument(anchor.operands[0]), b.buffer(1, "float32")
    both = rows > 1 and columns > 1
    half = b.scratch(len(down) * columns * PANEL, "float32") if both else None
    with b.tasks() as t:
        group, panel = split(emitter, t, b.scalar(groups))
        first = b.let(group * _TASK_CHANNELS)
        last = b.let(lesser(first + _TASK_CHANNELS, size))
        with b.loop(last - first, start=first, name="c") as c:
            start = b.let((panel * size + c) * (rows * columns * PANEL))
            place = b.let((panel * n * size + c) * PANEL)
            result = (to, place, b.let(size * PANEL))
            if half is None:  # taps along one axis, which lie side by side
                lines(b, across if rows == 1 else down, (source, start, PANEL), result, PANEL)
            else:
                _transform(b, (down, across), (source, start), half, result)
    tasks: Dim = groups * ceildiv(outputs, PANEL)
    steps = 2 * columns * len(down) * (rows + len(across))
    return emitter.finish("winograd-weights", tasks, outputs * channels * steps)


def _transform(
    b: KernelBuilder, matrix: tuple[Rows, Rows], source: tuple[Buffer, Any], half: Buffer,
    to: Memory,
) -> None:  # fmt: skip
    """One channel's weights of a panel: along columns into `half`, then along lines."""
    (w, start), (u, place, step), (down, across) = source, to, matrix
    taps, n = len(across[0]), len(across)
    with b.loop(taps, name="j") as j:
        column = (w, opaque(b, start + j * PANEL), taps * PANEL)
        lines(b, down, column, (half, opaque(b, j * PANEL), taps * PANEL), PANEL)
    with turns(b, len(down), "i") as i:
        line = (half, opaque(b, i * taps * PANEL), PANEL)
        lines(b, across, line, (u, opaque(b, place + i * n * step), step), PANEL)
