"""Recurrent layers: rows of a batch together where there are several, else row by row."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv
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
    rows = rnn_tiles.rows_of(anchor)
    emitter = Emitter(region, name)
    tasks: Dim = _tasks(emitter, chip, anchor, rows, batch)
    directions = ir.type_of(anchor.operands[1]).shape[0]
    gates, hidden = GATES[anchor.name], ir.attrs(anchor)["hidden"]
    flops = directions * batch * time * (2 * gates * hidden * (width + hidden))
    return emitter.finish("rnn", tasks, flops)


def _tasks(emitter: Emitter, chip: Chip, anchor: Any, rows: int, batch: Dim) -> Dim:
    """Emit them; returns how many. rows: of the batch that a task takes, 0 for one (rows_of)."""
    b = emitter.builder
    if rows and isinstance(batch, int):
        tiled = rnn_tiles.Tiled(emitter, chip, anchor, rows)
        with b.tasks() as t:
            tiled.task(t)
        return tiled.directions * ceildiv(batch, rows)
    single = Layer(emitter, chip, anchor)
    if not rows:
        with b.tasks() as t:
            single.task(t)
        return single.directions * batch
    tiled = rnn_tiles.Tiled(emitter, chip, anchor, rows)
    with b.tasks() as t:
        enough = tiled.enough()
        with b.when(enough):
            tiled.task_of_row(t)
        with b.otherwise():
            single.task(t)
    return tiled.directions * batch
