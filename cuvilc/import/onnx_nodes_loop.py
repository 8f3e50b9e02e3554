"""Loop and Scan: one `ai.loop`, whose region is imported until the carried values' types settle.

A carried value may change its sizes from round to round. Which do is found by importing the body
with the types that the values begin with: where it yields another size, that size becomes a symbol
of its own, and the body is imported again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc._mlir import ir as mlir
from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, symbol, symbols
from cuvilc.dialect.op import OPS, ShapeError, current_types, segment_attrs
from cuvilc.dialect.types import TensorType

from ._table import importer
from .onnx_node import Node, ai, cast, reshape
from .onnx_nodes_control import move_regions
from .onnx_nodes_shape import sliced
from .onnx_values import Val, computed_points, parts, symbolic

_UNBOUNDED = 1 << 62  # a trip count from here on is "until the condition says stop"
_MOST_ATTEMPTS = 64


@importer("Loop")
def loop(n: Node) -> list[Any]:
    trip: Dim = -1
    if n.has(0):
        (trip,) = n.dims(0, "the trip count is", signed=True)
        trip = -1 if isinstance(trip, int) and trip >= _UNBOUNDED else D.maximum(trip, 0)
    condition = n.known(1) if n.has(1) else np.array(True, object)
    start: ir.Value | None = None
    if condition is None or symbolic(*condition.reshape(-1)):
        start = reshape(n[1], ())
    elif not bool(condition.reshape(-1)[0]):
        trip = 0
    carried = [n[i] for i in range(2, len(n))]
    return _Loop(n, n.attr("body"), carried, trip, start, _loop_scope).run()


def _loop_scope(one: _Loop, counter: Val, carried: list[Val]) -> dict[str, Val]:
    names = [i.name for i in one.body.input]
    going = Val.constant(np.array(True), "condition")
    rank = len(one.body.input[0].type.tensor_type.shape.dim)
    if rank == 1:
        counter = Val.known(counter.content.reshape(1), "int64", counter.key)  # type: ignore[union-attr]
    return dict(zip(names, [counter, going, *carried], strict=True))


class _Loop:
    """One loop on its way: types of the carried values, then the operation."""

    def __init__(
        self, n: Node, body: Any, carried: list[ir.Value], trip: Dim, start: ir.Value | None,
        scope: Any, yields_condition: bool = True,
    ) -> None:  # fmt: skip
        self.n, self.converter, self.body = n, n.converter, body
        self.carried, self.trip, self.start = carried, trip, start
        self.scope, self.yields_condition = scope, yields_condition
        self.types = [ir.type_of(v) for v in carried]
        self.sizes: list[tuple[str, int, int]] = []  # carried_sizes, without their symbols yet
        self.moving: set[tuple[int, int]] = set()  # (carried value, axis) that change
        self.operation: list[ir.Operation] = []

    def run(self) -> list[Any]:
        if len(self.body.input) != len(self.carried) + 1 + self.yields_condition and (
            self.scope is _loop_scope
        ):
            raise ShapeError(
                f"the body takes {len(self.body.input)} values, the node gives "
                f"{len(self.carried) + 2}"
            )
        errors, kept = len(self.converter.errors), len(computed_points())
        for _ in range(_MOST_ATTEMPTS):
            draft, vals = self.attempt()
            moved = set() if vals is None else self.moved(vals)
            if not moved:
                break
            draft.erase()
            del self.converter.errors[errors:]
            self.converter.forget_sizes(kept)
            self.moving |= moved
        if vals is None:
            draft.erase()
            self.converter.forget_sizes(kept)
            return [None] * self.n.results
        return self.finish(draft)

    def attempt(self) -> tuple[ir.Operation, list[ir.Value] | None]:
        """A draft of the loop with the body imported; what it yields, None if that failed."""
        draft = mlir.Operation.create(
            "ai.loop", results=[], operands=[], attributes=segment_attrs(OPS["ai.loop"], 0, 0),
            regions=1,
        )  # fmt: skip
        block = draft.regions[0].blocks.append()
        self.sizes = []
        types = [self.entering(i, t, block) for i, t in enumerate(self.types)]
        table = current_types()
        arguments = [block.add_argument(table.to_mlir(t), ir.here()) for t in types]
        counter = self.converter.new_size((0, None), _at_begin(block))
        self.counter = counter
        content = np.empty((), object)
        content[()] = symbol(counter)
        scope = self.scope(
            self, Val.known(content, "int64", "counter"), [Val.of(a) for a in arguments]
        )
        self.converter.depth += 1
        try:
            with ir.at_end(block):
                vals = self.converter.inner(self.body, self.n, scope)
                if any(v is None for v in vals):
                    return draft, None
                return draft, self.yield_values([v for v in vals if v is not None])
        finally:
            self.converter.depth -= 1

    def entering(self, i: int, t: TensorType, block: Any) -> TensorType:
        """The type of carried value i in the region: sizes that change are symbols."""
        shape = list(t.shape)
        for axis in range(t.rank):
            if (i, axis) in self.moving:
                name = self.converter.new_size((0, None), _at_begin(block))
                self.sizes.append((name, i, axis))
                shape[axis] = symbol(name)
        return t.with_(shape=tuple(shape))

    def yield_values(self, vals: list[Val]) -> list[ir.Value]:
        """End the region; the carried values and rows that it yields."""
        first = int(self.yields_condition)
        self.endless = True
        values = [self.converter.value(v) for v in vals[first:]]
        for i, t in enumerate(self.types):
            if values[i].owner is not None and ir.type_of(values[i]).dtype != t.dtype:
                raise ShapeError(
                    f"carried value {i} begins as {t} and goes on as {ir.type_of(values[i])}"
                )
        condition = self.condition(vals[0]) if first else None
        conditional = condition is not None or self.start is not None
        self.conditional = conditional
        if conditional and condition is None:
            condition = ir.full(True, (), "bool")
        ai("yield", *([condition] if condition is not None else []), *values)
        return values

    def condition(self, val: Val) -> ir.Value | None:
        """Whether to go on, where the body computes it; None where it always says yes."""
        known = self.converter.elements(val)
        if known is not None and not symbolic(*known.reshape(-1)) and bool(known.reshape(-1)[0]):
            return None
        return cast(reshape(self.converter.value(val), ()), "bool")

    def moved(self, values: list[ir.Value]) -> set[tuple[int, int]]:
        """The sizes that a round changes and that were not known to change."""
        found = set()
        now = {(i, axis): symbol(name) for name, i, axis in self.sizes}
        for i, (begin, value) in enumerate(zip(self.types, values, strict=False)):
            t = ir.type_of(value)
            if t.rank != begin.rank:
                raise ShapeError(f"carried value {i} begins as {begin} and goes on as {t}")
            for axis, (d, after) in enumerate(zip(begin.shape, t.shape, strict=True)):
                if (i, axis) not in now and d != after:
                    found.add((i, axis))
        return found

    def finish(self, draft: ir.Operation) -> list[Any]:
        block = draft.regions[0].blocks[0]
        values = list(ir.terminator(block).operands)[int(self.conditional) :]
        inside = {self.counter, *(name for name, *_ in self.sizes)} | set(_bound_in(block))
        finals: list[tuple[str, Dim]] = []
        after = {n: self.outer(symbol(n), finals) for n, *_ in self.sizes}
        types = []
        for i, t in enumerate(self.types):
            own = {axis: after[name] for name, j, axis in self.sizes if j == i}
            types.append(t.with_(shape=tuple(own.get(a, d) for a, d in enumerate(t.shape))))
        rounds = self.trip if not self.conditional and self.trip != -1 else None
        rows: list[tuple[str, Dim]] = []
        for value in values[len(self.types) :]:
            if rounds is None:
                rounds = self.outer(symbol(self.counter), finals)
            t = ir.type_of(value)
            shape = tuple(
                self.outer(d, rows) if symbols(d) & inside else d for d in t.shape
            )  # fmt: skip
            types.append(t.with_(shape=(rounds, *shape)))
        first = [self.start or ir.full(True, (), "bool")] if self.conditional else []
        if len(types) == 0:
            draft.erase()
            return []
        final = ir.create(
            "ai.loop", *first, *self.carried, types=types, trip=self.trip,
            conditional=self.conditional, counter=self.counter, carried_sizes=tuple(self.sizes),
            row_sizes=tuple(rows), final_sizes=tuple(finals),
        )  # fmt: skip
        self.operation.append(final)
        return move_regions(draft, final)

    def outer(self, d: Dim, bound: list[tuple[str, Dim]]) -> Dim:
        """A symbol around the loop for a size of its region."""
        known = next((name for name, size in bound if size == d), None)
        if known is None:
            known = self.converter.new_size(
                (0, None), lambda: mlir.InsertionPoint.after(self.operation[0])
            )
            bound.append((known, d))
        return symbol(known)


def _at_begin(block: Any) -> Any:
    return lambda: mlir.InsertionPoint.at_block_begin(block)


def _bound_in(block: Any) -> list[str]:
    from cuvilc.dialect.ops.structure import computed_sizes  # noqa: PLC0415

    return computed_sizes(block)


@importer("Scan", since=9)
def scan(n: Node) -> list[Any]:
    """A loop over the rows of some inputs; rows of the results may be written back to front."""
    body, count = n.attr("body"), n.attr("num_scan_inputs")
    states = len(n) - count
    axes = n.ints("scan_input_axes", (0,) * count) or ()
    directions = n.ints("scan_input_directions", (0,) * count) or ()
    inputs = []
    for i in range(count):
        x, at = n[states + i], axes[i] % max(len(n.shape(states + i)), 1)
        rank = len(n.shape(states + i))
        perm = (at, *(a for a in range(rank) if a != at))
        x = x if at == 0 else ai("transpose", x, perm=perm)
        inputs.append(x)
    trip = ir.type_of(inputs[0]).shape[0]
    for x in inputs[1:]:
        n.require_equal(trip, ir.type_of(x).shape[0])

    def scope(one: _Loop, counter: Val, carried: list[Val]) -> dict[str, Val]:
        names = [i.name for i in body.input]
        now = parts(counter.content.reshape(-1)[0])[0]  # type: ignore[union-attr]
        rows = [
            Val.of(_row(x, trip - 1 - now if back else now))
            for x, back in zip(inputs, directions, strict=True)
        ]
        return dict(zip(names, [*carried, *rows], strict=True))

    carried = [n[i] for i in range(states)]
    results = _Loop(n, body, carried, trip, None, scope, yields_condition=False).run()
    return [*results[:states], *_stacked(n, results[states:])]


def _row(x: ir.Value, i: Dim) -> ir.Value:
    shape = ir.type_of(x).shape
    begin = (i, *(0 for _ in shape[1:]))
    return reshape(sliced(x, begin, (1, *shape[1:])), shape[1:])


def _stacked(n: Node, results: list[Any]) -> list[Any]:
    """Scan outputs along their axes, in their directions."""
    axes = n.ints("scan_output_axes", (0,) * len(results)) or ()
    directions = n.ints("scan_output_directions", (0,) * len(results)) or ()
    done = []
    for y, at, back in zip(results, axes, directions, strict=True):
        shape = ir.type_of(y).shape
        if back:
            starts = (shape[0] - 1, *(0 for _ in shape[1:]))
            y = ai("slice", y, starts=starts, steps=(-1, *(1 for _ in shape[1:])), sizes=shape)
        rank, at = len(shape), at % len(shape)
        if at:
            perm = (*range(1, at + 1), 0, *range(at + 1, rank))
            y = ai("transpose", y, perm=perm)
        done.append(y)
    return done
