"""Gather and Scatter with their kin."""

from __future__ import annotations

from cuvilc._mlir import ir as mlir
from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim

from . import onnx_values as V
from ._table import importer
from .onnx_node import (
    Constrain,
    Node,
    ai,
    cast,
    dtype_of,
)


@importer("Gather")
def gather(n: Node) -> ir.Value:
    at = n.axis(0)
    indices = index_values(n[1])
    _learn_length(indices, n.shape(0)[at])
    return ai("gather", n[0], indices, axis=at)


def _learn_length(indices: ir.Value, rows: Dim) -> None:
    """Indices 0, 1, … length - 1 into a table of `rows` bound the length."""
    value, moved = indices, ("ai.reshape", "ai.broadcast_to", "ai.cast")
    while not isinstance(value.owner, mlir.Block) and value.owner.name in moved:
        value = value.owner.operands[0]
    if isinstance(value.owner, mlir.Block) or value.owner.name != "ai.iota":
        return
    facts = ir.attrs(value.owner)
    (length,) = facts["shape"]
    names = sorted(D.symbols(length))
    if facts["step"] == 1 and isinstance(facts["start"], int) and len(names) == 1:
        last = facts["start"] + length - D.symbol(names[0])
        if isinstance(last, int) and isinstance(rows, int) and V.bounds(length)[1] > rows - last:
            raise Constrain(names[0], greatest=rows - last)


def index_values(value: ir.Value) -> ir.Value:
    """Indices in a dtype that operations take."""
    return value if dtype_of(value) in ("int32", "int64") else cast(value, "int64")


@importer("GatherElements")
def gather_elements(n: Node) -> ir.Value:
    return ai("gather_elements", n[0], index_values(n[1]), axis=n.axis(0))


@importer("GatherND")
def gather_nd(n: Node) -> ir.Value:
    return ai("gather_nd", n[0], index_values(n[1]), batch_dims=n.attr("batch_dims", 0))


@importer("ScatterElements", "Scatter")
def scatter_elements(n: Node) -> ir.Value:
    return ai(
        "scatter_elements",
        n[0],
        index_values(n[1]),
        n[2],
        axis=n.axis(0),
        reduction=n.attr("reduction", "none"),
    )


@importer("ScatterND")
def scatter_nd(n: Node) -> ir.Value:
    return ai("scatter_nd", n[0], index_values(n[1]), n[2], reduction=n.attr("reduction", "none"))
