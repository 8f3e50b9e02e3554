"""The region of an `ai.loop`, imported until the carried values' types settle.

A carried value may change its sizes from round to round. Which do is found by importing the body
with the types that the values begin with: where it yields another size, that size becomes a symbol
of its own, and the body is imported again. A carried sequence, to which each round appends, becomes
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuvilc._mlir import ir as mlir
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, symbol, symbols
from cuvilc.dialect.op import OPS, ShapeError, current_types, segment_attrs
from cuvilc.dialect.ops.structure import computed_sizes
from cuvilc.dialect.types import TensorType

from .onnx_node import DataDependent, Node, ai, cast, reshape
from .onnx_nodes_control import move_regions
from .onnx_nodes_slice import concat_values
from .onnx_sequences import SequenceVal, Slices, Woven, known
from .onnx_values import Val, computed_points, symbolic

MOST_UNROLLED = 512  # rounds that are imported one after the other
_MOST_ATTEMPTS = 64
_MOST_IMPORTS = 2000  # of bodies in one model: each level of nested loops multiplies them

# What the body's inputs are, given the round's number and the carried values.
Entering = Callable[[Val, list[Val]], dict[str, Val]]


def stack(n: Node, row: list[Val]) -> ir.Value:
    """One value of each round, along a new first axis. ShapeError without rounds."""
    if not row:
        raise ShapeError("a loop without rounds gives rows of unknown sizes")
    values = [n.converter.value(v) for v in row]
    shape = ir.type_of(values[0]).shape
    return concat_values([reshape(v, (1, *shape)) for v in values], 0)


class LoopDraft:
    """One loop on its way: types of the carried values, then the operation.

    The carried values are tensors and sequences; `tensors` are the former.
    """

    def __init__(
        self, n: Node, body: Any, carried: list[Val], trip: Dim, start: ir.Value | None,
        enter: Entering, yields_condition: bool = True,
    ) -> None:  # fmt: skip
        self.n, self.converter, self.body, self.enter = n, n.converter, body, enter
        self.carried, self.trip, self.start = carried, trip, start
        self.yields_condition = yields_condition
        self.tensors = [self.converter.value(v) for v in carried if not isinstance(v, SequenceVal)]
        self.types = [ir.type_of(v) for v in self.tensors]
        # (carried tensor, axis) that change; kept for when a loop around this one is imported again
        self.moving: set[tuple[int, int]] = n.converter.moving.setdefault((n.place, n.label), set())
        self.sizes: list[tuple[str, int, int]] = []  # `carried_sizes` of the operation
        self.counter = ""
        self.conditional = start is not None
        self.appended: list[int] = []  # of each carried sequence: how many elements a round adds
        self.bound: list[ir.Operation] = []  # the operation, once it is built

    def run(self) -> list[Any]:
        """The node's outputs. ShapeError where a carried value changes its dtype or rank."""
        errors, kept = len(self.converter.errors), len(computed_points())
        for _ in range(_MOST_ATTEMPTS):
            self.converter.attempts += 1
            if self.converter.attempts > _MOST_IMPORTS:
                raise ShapeError(f"its body would be imported more than {_MOST_IMPORTS} times")
            draft, values = self.attempt()
            moved = set() if values is None else self.moved(values)
            if values is not None and not moved:
                return self.finish(draft, values)
            inside = self.inside(draft)
            draft.erase()
            self.converter.forget_sizes(kept, inside)
            if values is None:
                return [None] * self.n.results
            del self.converter.errors[errors:]
            self.moving |= moved
        raise ShapeError("the sizes of the carried values do not settle")

    def attempt(self) -> tuple[ir.Operation, list[ir.Value] | None]:
        """A draft with the body imported; carried tensors and rows it yields, None if it failed."""
        draft = mlir.Operation.create(
            "ai.loop", results=[], operands=[], attributes=segment_attrs(OPS["ai.loop"], 0, 0),
            regions=1,
        )  # fmt: skip
        block = draft.regions[0].blocks.append()
        self.sizes = []
        types = [self.entering(i, t, block) for i, t in enumerate(self.types)]
        table = current_types()
        arguments = iter([block.add_argument(table.to_mlir(t), ir.here()) for t in types])
        self.counter = self.converter.new_size((0, None), _at_begin(block))
        values = [
            SequenceVal([], self) if isinstance(v, SequenceVal) else Val.of(next(arguments))
            for v in self.carried
        ]
        counter = known(symbol(self.counter), "int64", "counter")
        self.converter.depth += 1
        try:
            with ir.at_end(block):
                results = self.converter.inner(self.body, self.n, self.enter(counter, values))
                if any(v is None for v in results):
                    return draft, None
                return draft, self.end([v for v in results if v is not None])
        finally:
            self.converter.depth -= 1

    def entering(self, i: int, t: TensorType, block: Any) -> TensorType:
        """The type of carried tensor i in the region: sizes that change are symbols."""
        shape = list(t.shape)
        for axis in range(t.rank):
            if (i, axis) in self.moving:
                name = self.converter.new_size((0, None), _at_begin(block))
                self.sizes.append((name, i, axis))
                shape[axis] = symbol(name)
        return t.with_(shape=tuple(shape))

    def end(self, results: list[Val]) -> list[ir.Value]:
        """End the region with the next carried tensors, the rows, and what sequences took in."""
        condition = self.condition(results.pop(0)) if self.yields_condition else None
        after, rows = results[: len(self.carried)], results[len(self.carried) :]
        self.appended = []
        taken: list[Val] = []
        tensors: list[Val] = []
        for i, val in enumerate(after):
            if not isinstance(self.carried[i], SequenceVal):
                tensors.append(val)
                continue
            if not isinstance(val, SequenceVal) or val.round_of is not self:
                raise ShapeError("a loop may only append to a sequence that it carries along")
            self.appended.append(len(val.parts))
            taken += [part for part in val.parts if isinstance(part, Val)]
        values = [self.converter.value(v) for v in (*tensors, *rows, *taken)]
        self.conditional = condition is not None or self.start is not None
        if self.conditional and condition is None:
            condition = ir.full(True, (), "bool")
        ai("yield", *([] if condition is None else [condition]), *values)
        return values

    def condition(self, val: Val) -> ir.Value | None:
        """Whether to go on, where the body computes it; None where it always says yes."""
        found = self.converter.elements(val)
        if found is not None and not symbolic(*found.reshape(-1)) and bool(found.reshape(-1)[0]):
            return None
        return cast(reshape(self.converter.value(val), ()), "bool")

    def moved(self, values: list[ir.Value]) -> set[tuple[int, int]]:
        """The sizes that a round changes and that were not known to change."""
        found = set()
        for i, (begin, value) in enumerate(zip(self.types, values, strict=False)):
            t = ir.type_of(value)
            if (t.rank, t.dtype) != (begin.rank, begin.dtype):
                raise ShapeError(f"carried value {i} begins as {begin} and goes on as {t}")
            for axis, (d, after) in enumerate(zip(begin.shape, t.shape, strict=True)):
                if (i, axis) not in self.moving and d != after:
                    found.add((i, axis))
        return found

    def inside(self, draft: ir.Operation) -> set[str]:
        """The symbols of the region."""
        bound = computed_sizes(draft.regions[0].blocks[0])
        return {self.counter, *(name for name, *_ in self.sizes), *bound}

    def finish(self, draft: ir.Operation, values: list[ir.Value]) -> list[Any]:
        """Build the operation with its true types; it takes the draft's region."""
        inside = self.inside(draft)
        finals: list[tuple[str, Dim]] = []
        types = []
        for i, t in enumerate(self.types):
            now = {axis: self.outer(symbol(s), finals) for s, j, axis in self.sizes if j == i}
            types.append(t.with_(shape=tuple(now.get(a, d) for a, d in enumerate(t.shape))))
        rounds = self.trip
        if values[len(types) :] and (self.conditional or self.trip == -1):
            rounds = self.outer(symbol(self.counter), finals)
        row_sizes: list[tuple[str, Dim]] = []
        taken = len(values) - sum(self.appended)
        for i, value in enumerate(values[len(types) :], len(types)):
            t = ir.type_of(value)
            if i >= taken and any(self.counter in symbols(d) for d in t.shape):
                raise DataDependent("the number of rounds that give rows of other sizes each is")
            shape = [
                self.outer(self.outer(d, row_sizes), finals) if symbols(d) & inside else d
                for d in t.shape
            ]
            types.append(t.with_(shape=(rounds, *shape)))
        if not types:
            draft.erase()
            return self.outputs([])
        first = [self.start or ir.full(True, (), "bool")] if self.conditional else []
        final = ir.create(
            "ai.loop", *first, *self.tensors, types=types, trip=self.trip,
            conditional=self.conditional, counter=self.counter, carried_sizes=tuple(self.sizes),
            row_sizes=tuple(row_sizes), final_sizes=tuple(finals),
        )  # fmt: skip
        self.bound.append(final)
        return self.outputs(move_regions(draft, final))

    def outer(self, d: Dim, bound: list[tuple[str, Dim]]) -> Dim:
        """A symbol around the loop for a size of its region."""
        name = next((name for name, size in bound if size == d), None)
        if name is None:
            point = lambda: mlir.InsertionPoint.after(self.bound[0])  # noqa: E731
            name = self.converter.new_size((0, None), point)
            bound.append((name, d))
        return symbol(name)

    def outputs(self, results: list[ir.Value]) -> list[Any]:
        """The operation's results as the node's: what sequences took in becomes their rows."""
        count = len(results) - sum(self.appended)
        taken = results[count:]
        tensors, rows = iter(results[: len(self.types)]), results[len(self.types) : count]
        appended = iter(self.appended)
        found: list[Any] = []
        for val in self.carried:
            if not isinstance(val, SequenceVal):
                found.append(next(tensors))
                continue
            each = next(appended)
            mine, taken = taken[:each], taken[each:]
            found.append(SequenceVal([*val.parts, *_rows_of_rounds(mine)]))
        return [*found, *rows]


def _rows_of_rounds(rows: list[ir.Value]) -> list[Slices | Woven]:
    """What a sequence got from a loop that took in these rows, one of each a round."""
    if len(rows) < 2:
        return [Slices(Val.of(r)) for r in rows]
    count, *shape = ir.type_of(rows[0]).shape
    if any(ir.type_of(r).shape != (count, *shape) for r in rows):
        return [Woven(tuple(Val.of(r) for r in rows))]
    joined = concat_values([reshape(r, (count, 1, *shape)) for r in rows], 1)
    return [Slices(Val.of(reshape(joined, (count * len(rows), *shape))))]


def _at_begin(block: Any) -> Callable[[], Any]:
    return lambda: mlir.InsertionPoint.at_block_begin(block)
