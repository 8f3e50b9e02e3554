"""A kernel to be: the outlined function of one fusion, and its values in index notation.

A schedule gets a `Region`. It picks its anchor among `operations`, builds the loops, says with
`define` what the anchor's result is at the loops' indices, and asks `accessor(result)` for
everything that follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Shape, product
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.types import TensorType, item_bytes
from cuvilc.targets.facts import Facts
from cuvilc.targets.notation import Accessor, Notation
from cuvilc.targets.part import Part
from cuvilc.targets.tir import Buffer, CannotVectorize, KernelBuilder, is_load

_PICKS = ("ai.gather", "ai.gather_elements", "ai.gather_nd")


class Miss(Exception):
    """Why a schedule does not take a region. Raised before anything is built."""


@dataclass
class Scheduled:
    """A finished kernel."""

    function: Any  # tirx.PrimFunc, or None where a part is the kernel (Facts.code)
    facts: Facts
    parts: tuple[Part, ...] = ()  # that it calls


@dataclass
class Region:
    """The body of an outlined kernel function. Buffers of a launch: arguments, then results.

    `renamed`: types whose sizes go by other names than the program's, for code that kernels of
    different sizes share.
    """

    program: Program
    function: Operation
    arguments: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    scalars: tuple[Dim, ...] = ()  # what the launch passes anyway, first and in this order
    renamed: dict[Value, TensorType] = field(default_factory=dict)

    @staticmethod
    def of(program: Program, function: Operation) -> Region:
        block = ir.body(function)
        inner = ir.operations(block)
        return Region(
            program, function, list(block.arguments), list(inner[-1].operands), inner[:-1]
        )

    def type_of(self, value: Value) -> TensorType:
        """The type by which code is made."""
        return self.renamed.get(value) or ir.type_of(value)

    def types(self) -> list[TensorType]:
        """Types of all buffers of the launch, in order."""
        return [ir.type_of(v) for v in (*self.arguments, *self.results)]

    def moved_bytes(self) -> Dim:
        """Bytes read and written when every buffer is touched once, of tables what is picked."""
        total: Dim = 0
        for value in (*self.arguments, *self.results):
            total = total + self._touched(value) * item_bytes(ir.type_of(value).dtype)
        return total

    def _touched(self, value: Value) -> Dim:
        """Elements of a buffer, or as many as are gathered from it when nothing else reads it."""
        whole = product(ir.type_of(value).physical_shape)
        picked: Dim = 0
        for operation in self.operations:
            if value in operation.operands[1:]:
                return whole
            if value in operation.operands[:1]:
                if operation.name not in _PICKS:
                    return whole
                picked = picked + product(ir.type_of(operation.results[0]).shape)
        if value in self.results or picked == 0:
            return whole
        return min(picked, whole) if isinstance(picked, int) and isinstance(whole, int) else picked

    def argument(self, value: Value) -> int | None:
        """Which buffer of the launch the value is; None if it is computed inside."""
        return self.arguments.index(value) if value in self.arguments else None

    def need_elements(self, *apart: Operation) -> None:
        """Miss unless every operation, those `apart` excepted, has an `element` facet."""
        for operation in self.operations:
            declared = ir.definition(operation)
            if operation not in apart and not (declared and declared.facet("element")):
                raise Miss(f"{operation.name} has no element facet")

    def named(self, *names: str) -> list[Operation]:
        """The operations with one of these names."""
        return [o for o in self.operations if o.name in names]


def vectorized(build: Callable[[bool], Scheduled]) -> Scheduled:
    """build(True), or build(False) with scalar loops where control flow depends on the lane."""
    try:
        return build(True)
    except CannotVectorize:
        return build(False)


class Emitter:
    """Values of a region inside one KernelBuilder."""

    def __init__(self, region: Region, name: str, builder: KernelBuilder | None = None) -> None:
        self.region = region
        self.builder = builder or KernelBuilder(name)
        self.builder.in_place = "in_place" in region.function.attributes
        self.k = Notation(self.builder)
        values = [*region.arguments, *(r for o in region.operations for r in o.results)]
        self.builder.uses_half = any(region.type_of(v).dtype == "float16" for v in values)
        scalars = self.builder.scalars
        for size in region.scalars:  # each has its place, also where nothing reads it
            if isinstance(size, int) or size in scalars:
                scalars.append(size)
            else:
                self.builder.scalar(size)
        self._accessors: dict[Value, Accessor] = {
            v: self.k.operand(region.type_of(v), i) for i, v in enumerate(region.arguments)
        }
        self._parts: dict[str, Part] = {}

    def define(self, value: Value, load: Any) -> None:
        """`load(index)` is from now on what `value` is at a logical index."""
        t = self.region.type_of(value)
        self._accessors[value] = Accessor(t, self.extents(t.shape), load, self.builder)

    def forget(self) -> None:
        """Drop every defined and computed value, so that the next use follows new definitions."""
        self._accessors = {v: self._accessors[v] for v in self.region.arguments}

    def argument(self, value: Value) -> Buffer:
        """The buffer of a value that the schedule has found to be an argument."""
        index = self.region.argument(value)
        assert index is not None
        return self.builder.buffer(index, self.region.type_of(value).dtype)

    def extents(self, shape: Shape) -> list[Any]:
        return [self.builder.scalar(d) for d in shape]

    def accessor(self, value: Value) -> Accessor:
        """The value in index notation: argument, defined value, or operation with `element`."""
        found = self._accessors.get(value)
        if found is None:
            found = self._accessors[value] = self._computed(value)
        return found

    def operands(self, operation: Operation) -> list[Any]:
        """The operation's operands as its facets take them."""
        declared = ir.definition(operation)
        assert declared is not None
        return declared.group([self.accessor(v) for v in operation.operands])

    def attrs(self, operation: Operation) -> dict[str, Any]:
        """Attributes with symbolic dims as index expressions."""
        return {key: self._concrete(v) for key, v in ir.attrs(operation).items()}

    def _concrete(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._concrete(v) for v in value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return self.builder.scalar(value)

    def _computed(self, value: Value) -> Accessor:
        # An operation: every argument has its accessor from the start.
        operation = value.owner.operation
        declared = ir.definition(operation)
        element = declared.facet("element") if declared else None
        if element is None:
            raise Miss(f"{operation.name} has no element facet")
        operands, attrs = self.operands(operation), self.attrs(operation)
        t = self.region.type_of(value)
        memo: list[tuple[tuple[Any, ...], Any, int]] = []

        def load(index: tuple[Any, ...]) -> Any:
            scope = self.builder.scope()
            for known, result, where in memo:
                if self.builder.visible(where) and self._same(known, index):
                    return result
            result = element(self.k, index, *operands, **attrs)
            if not is_load(result):  # an element that only moved needs no name
                result = self.k.let(result)
            memo.append((index, result, scope))
            return result

        return Accessor(t, self.extents(t.shape), load, self.builder)

    def _same(self, a: Sequence[Any], b: Sequence[Any]) -> bool:
        for x, y in zip(a, b, strict=True):
            if isinstance(x, int) or isinstance(y, int):
                if not (isinstance(x, int) and isinstance(y, int) and x == y):
                    return False
            elif not self.builder.same(x, y):
                return False
        return True

    def store(self, result: int, index: Sequence[Any], value: Any) -> None:
        """Write element `index` of result number `result`."""
        t = self.region.type_of(self.region.results[result])
        buffer = self.builder.buffer(len(self.region.arguments) + result, t.dtype)
        self.k.store(buffer, self.k.flat_index(t, index), value, t.dtype)

    def store_all(self, index: Sequence[Any]) -> None:
        """Write every result at a logical index."""
        for number, value in enumerate(self.region.results):
            self.store(number, index, self.accessor(value)[tuple(index)])

    def call(self, part: Part, buffers: Sequence[Buffer], indices: Sequence[Any]) -> None:
        """Call a part with the addresses of buffers, then with indices."""
        self._parts[part.symbol] = part
        self.builder.call(part.symbol, buffers, indices)

    def finish(self, schedule: str, tasks: Dim, flops: Dim) -> Scheduled:
        """The kernel, of which nothing is left to be built."""
        function, b = self.builder.finish(), self.builder
        moved = self.region.moved_bytes()
        facts = Facts(
            schedule,
            tuple(b.scalars),
            tasks,
            b.scratch_bytes,
            flops,
            moved,
            parts=tuple(self._parts),
        )
        return Scheduled(function, facts, tuple(self._parts.values()))
