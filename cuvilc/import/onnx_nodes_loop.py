"""Loop: one `ai.loop`; where it carries a sequence that it does not just append to, unrolled.

The latter takes a number of rounds that is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.op import ShapeError

from ._table import importer
from .onnx_loops import MOST_UNROLLED, Entering, LoopDraft, stack
from .onnx_node import DataDependent, Node, cast, reshape
from .onnx_sequences import OptionalVal, SequenceVal, known
from .onnx_values import Val, symbolic

_UNBOUNDED = 1 << 62  # a trip count from here on is "until the condition says stop"


@importer("Loop")
def loop(n: Node) -> list[Any]:
    body, trip = n.attr("body"), _trip(n)
    names = [i.name for i in body.input]
    carried = [n.val(i) for i in range(2, len(n))]
    if len(names) != len(carried) + 2 or len(body.output) != n.results + 1 or None in carried:
        raise ShapeError(
            f"the body takes {len(names)} values and gives {len(body.output)}, the node has "
            f"{len(carried) + 2} and {n.results + 1}"
        )
    condition = n.known(1) if n.has(1) else np.array(True, object)
    start: ir.Value | None = None
    if condition is None or symbolic(*condition.reshape(-1)):
        start = cast(reshape(n[1], ()), "bool")
    elif not bool(condition.reshape(-1)[0]):
        trip = 0
    vector = len(body.input[0].type.tensor_type.shape.dim) == 1

    def enter(counter: Val, values: list[Val]) -> dict[str, Val]:
        if vector and counter.content is not None:
            counter = Val.known(counter.content.reshape(1), "int64", counter.key)
        going = Val.constant(np.array(True), "condition")
        return dict(zip(names, [counter, going, *values], strict=True))

    given = [v for v in carried if v is not None]
    if any(isinstance(v, (SequenceVal, OptionalVal)) for v in given) and start is None:
        unrolled = _unroll(n, body, given, trip, enter)
        if unrolled is not None:
            return unrolled
    if any(isinstance(v, OptionalVal) for v in given):
        raise DataDependent("the number of rounds that carry an optional is")
    return LoopDraft(n, body, given, trip, start, enter).run()


def _trip(n: Node) -> Dim:
    """The trip count; -1 where there is none."""
    if not n.has(0):
        return -1
    (trip,) = n.dims(0, "the trip count is", signed=True)
    return -1 if isinstance(trip, int) and trip >= _UNBOUNDED else D.maximum(trip, 0)


def _unroll(n: Node, body: Any, values: list[Val], trip: Dim, enter: Entering) -> list[Any] | None:
    """The rounds one after the other; None where their number is not known."""
    if not isinstance(trip, int) or not 0 <= trip <= MOST_UNROLLED:
        return None
    rows: list[list[Val]] = [[] for _ in range(n.results - len(values))]
    for i in range(trip):
        results = n.converter.inner(body, n, enter(known(i, "int64", "counter"), values))
        if any(r is None for r in results):
            return [None] * n.results
        going, *rest = [r for r in results if r is not None]
        goes_on = n.converter.elements(going)
        if goes_on is None or symbolic(*goes_on.reshape(-1)):
            return None
        values = rest[: len(values)]
        for row, val in zip(rows, rest[len(values) :], strict=True):
            row.append(val)
        if not bool(goes_on.reshape(-1)[0]):
            break
    return [*values, *(stack(n, row) for row in rows)]
