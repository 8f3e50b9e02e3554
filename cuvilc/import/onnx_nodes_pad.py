"""Pad, and padding for other operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.op import ShapeError

from . import onnx_values as V
from ._table import importer
from .onnx_node import Node, ai, axis, shape_of
from .onnx_nodes_slice import sliced


@importer("Pad", since=2)
def pad(n: Node) -> ir.Value:
    rank = len(n.shape(0))
    mode = n.attr("mode", "constant")
    pads = n.dims(1, "the pads are", signed=True) if n.has(1) else tuple(n.attr("pads"))
    value = n.number(2, "the padding value is", 0.0) if n.has(1) else n.attr("value", 0.0)
    axes = [axis(a, rank) for a in n.static(3, "axes are")] if n.has(3) else list(range(rank))
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"{len(pads)} pads for {len(axes)} axes")
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for i, a in enumerate(axes):
        before[a], after[a] = pads[i], pads[i + len(axes)]
    # The expressions of places that mirror or wrap would be too long of pads of either sign.
    name = (lambda d: d) if mode == "constant" else n.converter.bind_dim
    return padded(n[0], before, after, mode, float(value), name)


@importer("Pad")
def old_pad(n: Node) -> ir.Value:
    pads = n.attr("paddings")
    half = len(pads) // 2
    return padded(n[0], pads[:half], pads[half:], n.attr("mode", "constant"), n.attr("value", 0.0))


def padded(
    x: ir.Value,
    before: Any,
    after: Any,
    mode: str,
    value: float,
    name: Callable[[Dim], Dim] = lambda d: d,
) -> ir.Value:
    """An ai.pad; negative pads cut first. `name` may make a symbol of what is cut or added."""
    cut_before = [name(V.maximum(-b, 0)) for b in before]
    cut_after = [name(V.maximum(-a, 0)) for a in after]
    sizes = shape_of(x)
    left = tuple(d - b - a for d, b, a in zip(sizes, cut_before, cut_after, strict=True))
    x = sliced(x, tuple(cut_before), left)
    grown = [tuple(name(V.maximum(p, 0)) for p in side) for side in (before, after)]
    if all(isinstance(p, int) and p == 0 for side in grown for p in side):
        return x
    return ai("pad", x, before=grown[0], after=grown[1], mode=mode, value=value)
