"""Scan: a loop over the rows of some inputs, and the older form that has a batch of them."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError

from ._table import importer
from .onnx_loops import MOST_UNROLLED, LoopDraft, stack
from .onnx_node import DataDependent, Node, ai
from .onnx_nodes_slice import entry
from .onnx_values import Val


@importer("Scan", since=9)
def scan(n: Node) -> list[Any]:
    """A loop over the rows of some inputs; rows may be read and written back to front."""
    body, count = n.attr("body"), n.attr("num_scan_inputs")
    states = len(n) - count
    axes = n.ints("scan_input_axes", (0,) * count) or ()
    back = n.ints("scan_input_directions", (0,) * count) or ()
    inputs = [_axis_first(n[states + i], axes[i]) for i in range(count)]
    results = _scanned(n, body, [n[i] for i in range(states)], inputs, back)
    if any(r is None for r in results):
        return results
    return [*results[:states], *_stacked(n, results[states:])]


def _scanned(
    n: Node, body: Any, carried: list[ir.Value], inputs: list[ir.Value], back: tuple[int, ...]
) -> list[Any]:
    """The carried values after the last row of the inputs, and the rows that the body gives."""
    trip = ir.type_of(inputs[0]).shape[0]
    for x in inputs[1:]:
        n.require_equal(trip, ir.type_of(x).shape[0])

    def enter(counter: Val, values: list[Val]) -> dict[str, Val]:
        now = counter.content.reshape(-1)[0]  # type: ignore[union-attr]
        rows = [
            Val.of(entry(x, trip - 1 - now if reverse else now))
            for x, reverse in zip(inputs, back, strict=True)
        ]
        return dict(zip([i.name for i in body.input], [*values, *rows], strict=True))

    vals = [Val.of(v) for v in carried]
    return LoopDraft(n, body, vals, trip, None, enter, yields_condition=False).run()


@importer("Scan", since=8)
def batched_scan(n: Node) -> list[Any]:
    """Opset 8: everything has a batch axis in front, whose elements go on by themselves."""
    if n.has(0):
        raise ShapeError("sequence_lens (input 0) is not supported")
    body, count = n.attr("body"), n.attr("num_scan_inputs")
    states = len(n) - 1 - count
    values = [n[i] for i in range(1, len(n))]
    back = n.ints("directions", (0,) * count) or ()
    batch = ir.type_of(values[0]).shape[0]
    if not isinstance(batch, int) or not 0 < batch <= MOST_UNROLLED:
        raise DataDependent("the batch is")
    done = []
    for b in range(batch):
        rows = [entry(v, b) for v in values]
        done.append(_scanned(n, body, rows[:states], rows[states:], back))
    if any(r is None for row in done for r in row):
        return [None] * n.results
    return [stack(n, [Val.of(r) for r in column]) for column in zip(*done, strict=True)]


def _axis_first(x: ir.Value, at: int) -> ir.Value:
    rank = len(ir.type_of(x).shape)
    at %= max(rank, 1)
    perm = (at, *(a for a in range(rank) if a != at))
    return x if at == 0 else ai("transpose", x, perm=perm)


def _stacked(n: Node, results: list[Any]) -> list[Any]:
    """Scan outputs along their axes, in their directions."""
    axes = n.ints("scan_output_axes", (0,) * len(results)) or ()
    back = n.ints("scan_output_directions", (0,) * len(results)) or ()
    done = []
    for value, axis, reverse in zip(results, axes, back, strict=True):
        shape, y = ir.type_of(value).shape, value
        if reverse:
            starts = (D.maximum(shape[0] - 1, 0), *(0 for _ in shape[1:]))
            y = ai("slice", y, starts=starts, steps=(-1, *(1 for _ in shape[1:])), sizes=shape)
        at = axis % len(shape)
        perm = (*range(1, at + 1), 0, *range(at + 1, len(shape)))
        done.append(ai("transpose", y, perm=perm) if at else y)
    return done
