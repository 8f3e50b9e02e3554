"""Recurrent layers: rows of a batch together where there are several, else row by row."""

from __future__ import annotations

from cuvilc.dialect import ir
from cuvilc.dialect.dims import ceildiv
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules import rnn_tiles
from cuvilc.targets.schedules.rnn_layer import GATES, Layer
from cuvilc.targets.schedules.special_common import argument, lone


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes one lstm, gru or rnn alone; any of its results may be unused."""
    anchor = lone(region, *GATES)
    for value in anchor.operands[:3]:
        argument(region, value)
    if not isinstance(ir.attrs(anchor)["hidden"], int):
        raise Miss("a hidden size known at run time only")
    time, batch, width = ir.type_of(anchor.operands[0]).shape
    rows = rnn_tiles.rows_of(region, anchor)
    emitter = Emitter(region, name)
    layer = rnn_tiles.Tiled(emitter, chip, anchor, rows) if rows else Layer(emitter, chip, anchor)
    with layer.b.tasks() as t:
        layer.task(t)
    tasks = layer.directions * ceildiv(batch, max(rows, 1))
    flops = tasks * time * (2 * layer.gates * layer.hidden * (width + layer.hidden))
    return layer.emitter.finish("rnn", tasks, flops)
