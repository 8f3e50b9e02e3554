"""Whose first axis is the batch? Sizes tell, unless another axis has the batch's: then what was
done to a value does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Shape, mod, product
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.passes.batch_index import picks_own_rows

_LOST = -1  # an axis that is not known any more
_PUT = ("ai.scatter_elements", "ai.scatter_nd")
_PICK = ("ai.gather", "ai.gather_elements", "ai.top_k")  # along their axis


def turned(program: Program, main: Any, batch: Dim) -> dict[Value, Operation]:
    """The values that come of the model's inputs and of which the first axis may be as long as the
    batch, but is not the batch, or not in its order: another axis was put first, rows were cut,
    picked or gathered from it. From there on sizes do not tell. With the operation that did it.
    """
    return _Flow(program, batch).run(main) if batch != 1 else {}


class _Flow:
    """live: what depends on the inputs; turned: of that, whose rows are not the batch's, and since
    which operation; moved: which axis has the batch where a transpose put another first, or _LOST.
    """

    def __init__(self, program: Program, batch: Dim) -> None:
        self.program, self.batch = program, batch
        self.live: set[Value] = set()
        self.turned: dict[Value, Operation] = {}
        self.moved: dict[Value, int] = {}

    def run(self, main: Any) -> dict[Value, Operation]:
        self.live.update(main.arguments)
        self._block(main)
        return self.turned

    def _block(self, block: Any) -> None:
        for operation in ir.operations(block):
            if operation.name == "ai.loop":
                self._loop(operation)
            elif len(operation.regions):
                for i in range(len(operation.regions)):
                    inner = ir.body(operation, i)
                    self._block(inner)
                    self._same(ir.terminator(inner).operands, operation.results)
            elif len(operation.results) and self.live.intersection(operation.operands):
                self.live.update(operation.results)
                since = next((self.turned[v] for v in operation.operands if v in self.turned), None)
                if since is None and self._turns(operation):
                    since = operation
                if since is not None:
                    self.turned |= dict.fromkeys(operation.results, since)
                self._move(operation)

    def _loop(self, loop: Operation) -> None:
        """Until nothing more comes of another round."""
        body, first = ir.body(loop), int(ir.attrs(loop)["conditional"])
        carried = len(body.arguments)
        self._same(loop.operands[first:], body.arguments)
        found = -1
        while found != len(self.live) + len(self.turned) + len(self.moved):
            found = len(self.live) + len(self.turned) + len(self.moved)
            self._block(body)
            self._same(ir.terminator(body).operands[first : first + carried], body.arguments)
        given = list(ir.terminator(body).operands)[first:]
        self._same(list(loop.operands)[first : first + carried], loop.results)  # of no round at all
        self._same(given, loop.results)
        for value, rows in zip(given[carried:], list(loop.results)[carried:], strict=True):
            if value in self.live and self._is_long(rows):  # a new first axis: the rounds
                self.turned.setdefault(rows, loop)

    def _same(self, values: Iterable[Value], others: Iterable[Value]) -> None:
        """The others are what the values are."""
        for value, other in zip(values, others, strict=False):
            if value in self.live:
                self.live.add(other)
            if value in self.turned:
                self.turned.setdefault(other, self.turned[value])
            if value in self.moved:
                self.moved.setdefault(other, self.moved[value])

    def _is_long(self, value: Value) -> bool:
        return bool(ir.type_of(value).shape[:1] == (self.batch,))

    def _turns(self, operation: Operation) -> bool:
        """Whether an operation puts other elements where the batch's were."""
        x, attrs = operation.operands[0], ir.attrs(operation)
        if operation.name == "ai.transpose":
            return attrs["perm"][:1] != (0,) and self._is_long(operation.results[0])
        if operation.name == "ai.matmul" and (x not in self.live or _is_turned_product(x, attrs)):
            return self._is_long(operation.results[0])  # rows are those of the first operand
        if operation.name in _PUT:
            return self._puts_elsewhere(operation)
        if operation.name == "ai.slice" and self._is_whole_part(operation):
            return False
        if x in self.moved and not self._is_long(x):
            # A first axis of another kind, made as long as the batch. Without that axis, trust.
            less = ir.type_of(operation.results[0]).rank < ir.type_of(x).rank
            made = operation.name in ("ai.reshape", "ai.gather_nd") or not less
            return made and self._is_long(operation.results[0]) and not self._is_first(x)
        if x not in self.live or not self._is_long(x):
            return False
        if operation.name == "ai.reshape":  # [4, 6] → [6, 4]: then no axis is the batch
            return not self._keeps(ir.type_of(operation.results[0]).shape)
        if operation.name == "ai.slice":
            cut = (attrs["starts"][0], attrs["steps"][0], attrs["sizes"][0])
            return cut != (0, 1, self.batch)
        if operation.name == "ai.gather_nd":
            own = attrs["batch_dims"] or picks_own_rows(self.program, operation.operands[1])
            return not own or not self._is_long(operation.results[0])
        if operation.name in _PICK:
            return bool(attrs["axis"] == 0)
        # A reduction that keeps its axis leaves one row, which may be added to all.
        return attrs.get("keepdims") is False and 0 in (*attrs.get("axes", ()), attrs.get("axis"))

    def _puts_elsewhere(self, scatter: Operation) -> bool:
        """Whether what is written may go to other rows than it has."""
        _, indices, updates = scatter.operands
        if not self._is_long(scatter.results[0]) or not self.live.intersection((indices, updates)):
            return False
        if scatter.name == "ai.scatter_elements":
            return bool(ir.attrs(scatter)["axis"] == 0)
        return not (self._is_long(updates) and picks_own_rows(self.program, indices))

    def _is_whole_part(self, piece: Operation) -> bool:
        """Whether a slice takes a whole batch out of several that were joined."""
        joined, attrs = ir.defining(piece.operands[0]), ir.attrs(piece)
        if joined is None or joined.name != "ai.concat" or ir.attrs(joined)["axis"] != 0:
            return False
        start, step, size = (attrs[name][0] for name in ("starts", "steps", "sizes"))
        whole = (step, size) == (1, self.batch) and mod(start, self.batch) == 0
        return whole and all(self._is_long(v) and v not in self.moved for v in joined.operands)

    def _grows(self, operation: Operation) -> bool:
        """Whether rows come before or after a batch's, so that a slice may take them."""
        if not any(v in self.live and self._is_long(v) for v in operation.operands):
            return False
        attrs = ir.attrs(operation)
        return (operation.name == "ai.concat" and attrs["axis"] == 0) or (
            operation.name == "ai.pad" and (attrs["before"][0], attrs["after"][0]) != (0, 0)
        )

    def _move(self, operation: Operation) -> None:
        """Note where the batch is in what an operation makes of its operands."""
        if operation.name == "ai.transpose":
            x, perm = operation.operands[0], ir.attrs(operation)["perm"]
            before = self.moved.get(x, 0)
            at = before if before == _LOST else list(perm).index(before)
        elif self._grows(operation):
            x, at = operation.operands[0], _LOST
        else:
            moved = [v for v in operation.operands if v in self.moved]
            if not moved:
                return
            x = moved[0]
            at = self.moved[x]
        for result in operation.results:
            if self._is_long(result):
                continue  # told by _turns
            place = at
            if operation.name == "ai.reshape":
                place = self._after_reshape(ir.type_of(x).shape, ir.type_of(result).shape, at)
            elif ir.type_of(result).rank != ir.type_of(x).rank:
                place = _LOST
            if place != 0:
                self.moved.setdefault(result, place)

    def _after_reshape(self, before: Shape, after: Shape, at: int) -> int:
        """The axis that has, or begins with, what axis `at` was."""
        if at != _LOST:
            for i, size in enumerate(after):
                if product(after[:i]) == product(before[:at]) and mod(size, self.batch) == 0:
                    return i
        return _LOST

    def _is_first(self, x: Value) -> bool:
        """Whether no elements come before those of the axis that has the batch."""
        at = self.moved[x]
        return at != _LOST and product(ir.type_of(x).shape[:at]) == 1

    def _keeps(self, shape: Shape) -> bool:
        """Whether a reshape to these sizes, of what begins with the batch, keeps or joins it."""
        first = next((d for d in shape if d != 1), 1)
        return mod(first, self.batch) == 0


def _is_turned_product(x: Value, attrs: dict[str, Any]) -> bool:
    return bool(attrs["transpose_a"]) and ir.type_of(x).rank == 2
