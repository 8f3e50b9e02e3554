"""`ai.loop` as steps of the plan: jumps, sizes bound anew each round, carried values copied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cuvilc.dialect import dims, ir
from cuvilc.dialect.dims import Dim, symbol, symbols
from cuvilc.dialect.ir import Operation, Value
from cuvilc.package.plan import Step, StepKind


class LoopEmitter:
    """One loop.

        row sizes := 0; carried sizes, counter := their beginnings; carried values := operands
        [if not condition: go to end]
    next:
        if counter == trip: go to end
        the region; rows copied to their places; carried values := what it yields
        row sizes, carried sizes := theirs; counter := counter + 1
        [if not condition: go to end]
        go to next
    end:
        final sizes := theirs
    """

    def __init__(self, plan: Any, operation: Operation) -> None:
        self.plan, self.operation = plan, operation
        self.attrs = ir.attrs(operation)
        self.layer = ir.source_name(operation)
        self.block = ir.body(operation)
        self.steps: list[Step] = plan.plan.steps
        self.exits: list[int] = []  # branches that leave the loop
        first = int(self.attrs["conditional"])
        self.condition = operation.operands[0] if first else None
        self.begin = list(operation.operands)[first:]
        self.yielded = list(ir.terminator(self.block).operands)[first:]
        self.goes_on = ir.terminator(self.block).operands[0] if first else None
        self.carried = self.attrs["places"][: len(self.begin)]
        self.rows = self.attrs["places"][len(self.begin) :]

    def emit(self) -> None:
        counter, trip = self.attrs["counter"], self.attrs["trip"]
        for name, _ in self.attrs["row_sizes"]:
            self.bind(name, 0)
        self.bind_carried(self.begin)
        self.bind(counter, 0)
        for value, place, argument in zip(
            self.begin, self.carried, self.block.arguments, strict=True
        ):
            self.plan.numbers[argument] = self.plan.placed(argument, place)
            self.copy(value, place)
        self.leave_unless(self.condition)
        head = len(self.steps)
        if trip != -1:
            self.exits.append(len(self.steps))
            goes_on = symbol(counter) - trip
            self.steps.append(self.step(StepKind.BRANCH, scalars=(goes_on,), name="loop"))
        self.plan.block(self.block)
        self.end_of_round()
        self.steps.append(self.step(StepKind.JUMP, target=head, name="loop"))
        for number in self.exits:
            self.steps[number] = replace(self.steps[number], target=len(self.steps))
        self.bind_all(list(self.attrs["final_sizes"]))
        for value, place in zip(self.operation.results, self.attrs["places"], strict=True):
            self.plan.numbers[value] = self.plan.placed(value, place)

    def end_of_round(self) -> None:
        counter = symbol(self.attrs["counter"])
        for value, place in zip(self.yielded[len(self.begin) :], self.rows, strict=True):
            self.copy(value, place, counter * ir.type_of(value).size_bytes)
        for value, place, argument in zip(
            self.yielded, self.carried, self.block.arguments, strict=False
        ):
            if value != argument:
                self.copy(value, place)
        for name, size in self.attrs["row_sizes"]:
            same = dims.select(dims.equal(counter, 0), 1, dims.equal(symbol(name), size))
            message = "the rows of a loop differ in their sizes"
            self.steps.append(self.step(StepKind.REQUIRE, scalars=(same,), name=message))
            self.bind(name, size)
        self.bind_carried(self.yielded[: len(self.begin)])
        self.bind(self.attrs["counter"], counter + 1)
        self.leave_unless(self.goes_on)

    def copy(self, value: Value, place: tuple[str, Dim], offset: Dim = 0) -> None:
        """`value` into the place, in the value's own size: the place's own may not be bound yet."""
        target = self.plan.part(place, ir.type_of(value).size_bytes, offset)
        source = self.plan.numbers[value]
        if source != target:
            step = self.step(StepKind.COPY, buffers=(source, target), name="copy")
            self.steps.append(step)

    def bind_carried(self, values: list[Value]) -> None:
        """The sizes of the carried values become those of `values`, all at once."""
        self.bind_all(
            [
                (name, ir.type_of(values[i]).shape[axis])
                for name, i, axis in self.attrs["carried_sizes"]
            ]
        )

    def bind_all(self, sizes: list[tuple[str, Dim]]) -> None:
        """Every size is computed before the first is bound."""
        bound: set[str] = set()
        late: dict[str, str] = {}
        for name, size in sizes:
            if symbols(size) & bound:
                late[name] = self.plan.temporary(f"{name}_next")
                self.bind(late[name], size)
            bound.add(name)
        for name, size in sizes:
            self.bind(name, symbol(late[name]) if name in late else size)

    def bind(self, name: str, value: Dim) -> None:
        self.plan.bind(name, value, self.operation)

    def leave_unless(self, condition: Value | None) -> None:
        if condition is not None:
            self.exits.append(len(self.steps))
            number = self.plan.numbers[condition]
            self.steps.append(self.step(StepKind.BRANCH, buffers=(number,), name="loop"))

    def step(self, kind: StepKind, **fields: Any) -> Step:
        return Step(kind, layer=self.layer, **fields)
