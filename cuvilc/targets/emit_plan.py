"""The launch level as the runtime's plan: buffers by number, steps in order, branches as jumps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cuvilc.diagnostics import define, fail
from cuvilc.dialect import dims, ir
from cuvilc.dialect.dims import Dim, TooComplex, substitute
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.ops.structure import MOST, computed_sizes
from cuvilc.package.describe import KernelFacts
from cuvilc.package.plan import (
    Adaptable,
    Buffer,
    BufferKind,
    Level,
    Part,
    Plan,
    Port,
    Step,
    StepKind,
    Symbol,
)
from cuvilc.package.weights import LazyWeight
from cuvilc.targets.emit_loop import LoopEmitter
from cuvilc.targets.kernels import Kernel
from cuvilc.targets.pack_ahead import packed

UNBOUND_SYMBOL = define(
    "CUV402",
    "a size of the model cannot be read from its inputs",
    """\
Every symbolic size must be one axis of some input by itself, so that the runtime can read it there.
Here a size occurs only inside an expression, or only in an output.

Next step: give the size with `--dim NAME=N`, or fix the input's shape with `--shape INPUT=…`.
""",
)


@dataclass
class Emitted:
    """A plan, its weights by key, the totals of each kernel, and the logical arrays of the weights
    that adapters may exchange.
    """

    plan: Plan
    weights: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, KernelFacts] = field(default_factory=dict)
    bases: list[Any] = field(default_factory=list)


def emit_plan(program: Program, kernels: dict[str, Kernel], levels: list[Level]) -> Emitted:
    """The plan of a program at the launch level whose kernels are compiled. CUV402."""
    with program:
        return _Emitter(program, kernels, levels).emit()


class _Emitter:
    def __init__(self, program: Program, kernels: dict[str, Kernel], levels: list[Level]) -> None:
        self.program = program
        self.kernels = kernels
        self.emitted = Emitted(Plan(levels=levels))
        self.plan = self.emitted.plan
        self.numbers: dict[Value, int] = {}
        self.buffers: dict[Buffer, int] = {}
        self.adapted: dict[tuple[Adaptable, int], int] = {}  # their numbers, with their tables'
        self.tables: list[int] = []
        self.biases: dict[str, str] = {}  # keys of what layers with tables have, by their modules

    def emit(self) -> Emitted:
        main = self.program.function("main")
        names = ir.attrs(main)
        block = ir.body(main)
        for i, (argument, name) in enumerate(
            zip(block.arguments, names["input_names"], strict=True)
        ):
            t = ir.type_of(argument)
            number = self.buffer(Buffer(BufferKind.INPUT, t.size_bytes, i))
            self.numbers[argument] = number
            self.plan.inputs.append(Port(name, t.dtype, t.shape, number))
        self.plan.hidden_inputs = names.get("hidden_inputs", 0)
        self.plan.symbols = self.symbols()
        self.plan.arena_bytes = names["arena_bytes"]
        self.prepare(block)
        self.block(block)
        for name, value in zip(names["output_names"], ir.terminator(block).operands, strict=True):
            t = ir.type_of(value)
            self.plan.outputs.append(Port(name, t.dtype, t.shape, self.numbers[value]))
        self.order_symbols()
        self.order_tables()
        self.check_symbols()
        return self.emitted

    def order_symbols(self) -> None:
        """Computed symbols in the order in which steps bind them first, as the plan demands."""
        plan = self.plan
        bound = [s.target for s in plan.steps if s.kind == StepKind.BIND]
        given = [i for i, s in enumerate(plan.symbols) if not s.computed]
        order = list(dict.fromkeys([*given, *bound]))
        place = {old: new for new, old in enumerate(order)}
        plan.symbols = [plan.symbols[i] for i in order]
        plan.steps = [
            replace(s, target=place[s.target]) if s.kind == StepKind.BIND else s for s in plan.steps
        ]

    def order_tables(self) -> None:
        """Batched parameters in the order of the inputs that are their tables, and biases."""
        order = sorted(range(len(self.tables)), key=self.tables.__getitem__)
        if order:
            plan, emitted = self.plan, self.emitted
            plan.adaptable = [plan.adaptable[i] for i in order]
            emitted.bases = [emitted.bases[i] for i in order]
        for module, key in self.biases.items():
            self.base_bias(module, key)

    def symbols(self) -> list[Symbol]:
        found: dict[str, Symbol] = {}
        for i, port in enumerate(self.plan.inputs):
            for axis, d in enumerate(port.dims):
                if not isinstance(d, int) and str(d).isidentifier():
                    lo, hi = self.program.ranges.get(str(d), (0, None))
                    found.setdefault(str(d), Symbol(str(d), i, axis, lo, hi))
        computed = computed_sizes(ir.body(self.program.function("main")))
        for name in computed:
            lo, hi = self.program.ranges.get(name, (-MOST, None))
            found[name] = Symbol(name, lo=lo, hi=hi)
        return list(found.values())

    def check_symbols(self) -> None:
        """Every size that the plan uses can be read from an input."""
        known = {s.name for s in self.plan.symbols}
        for port in (*self.plan.inputs, *self.plan.outputs):
            for d in port.dims:
                missing = sorted(dims.symbols(d) - known)
                if missing:
                    raise fail(
                        UNBOUND_SYMBOL,
                        f"the size `{missing[0]}` is not an axis of any input",
                        place=f"{self.program.name}: `{port.name}`",
                        evidence=f"{port.name}: [{', '.join(map(str, port.dims))}]",
                        help=f"give it a value: --dim {missing[0]}=N",
                    )

    def buffer(self, wanted: Buffer) -> int:
        number = self.buffers.get(wanted)
        if number is None:
            number = self.buffers[wanted] = len(self.plan.buffers)
            self.plan.buffers.append(wanted)
        return number

    def placed(self, value: Value, place: tuple[str, Dim]) -> int:
        return self.part(place, ir.type_of(value).size_bytes)

    def part(self, place: tuple[str, Dim], size_bytes: Dim, offset: Dim = 0) -> int:
        """The buffer of `size_bytes` from `offset` on in a place that plan-memory chose."""
        kind, where = place
        if kind == "output":
            return self.buffer(Buffer(BufferKind.OUTPUT, size_bytes, where))
        if kind == "arena":
            return self.buffer(Buffer(BufferKind.ARENA, size_bytes, where + offset))
        assert isinstance(where, int)
        if kind == "prepared":
            return self.buffer(Buffer(BufferKind.PREPARED, size_bytes, where))
        return self.buffer(Buffer(BufferKind.HEAP, size_bytes, (where, offset)))

    def prepare(self, block: Any) -> None:
        """The steps that run when the package is opened: first, wherever their launches stand."""
        for operation in ir.walk(block):
            if not _is_prepared(operation):
                continue
            for value in operation.operands:
                self.do_ai_constant(ir.defining(value))
            self.launch(operation, StepKind.PREPARE)

    def block(self, block: Any) -> None:
        for operation in ir.operations(block):
            emit = getattr(self, "do_" + operation.name.replace(".", "_"), None)
            if emit is None:
                raise NotImplementedError(f"{operation.name} at the launch level")
            emit(operation)

    def do_func_return(self, operation: Operation) -> None:
        pass

    def do_ai_yield(self, operation: Operation) -> None:
        pass

    def do_ai_constant(self, operation: Operation) -> None:
        key, size = self.weight(operation)
        self.numbers[operation.results[0]] = self.buffer(Buffer(BufferKind.WEIGHT, size, key))

    def weight(self, operation: Operation) -> tuple[str, int]:
        """The key and bytes of a constant's or parameter's weight, which the package has from now
        on.
        """
        attrs = ir.attrs(operation)
        name, layout = attrs["key"], attrs["layout"]
        key = f"{name}@{layout}" if layout else name
        size = ir.type_of(operation.results[0]).size_bytes
        assert isinstance(size, int)
        self.emitted.weights[key] = LazyWeight(size, partial(packed, self.program, name, layout))
        return key, size

    def do_ai_parameter(self, operation: Operation) -> None:
        attrs, value = ir.attrs(operation), operation.results[0]
        t = ir.type_of(value)
        key, size = self.weight(operation)
        parts = tuple(Part(*part) for part in attrs["parts"])
        kernel = self.kernel_number(attrs["kernel"]) if attrs["kernel"] else None
        if attrs["batched"]:  # every kernel that reads it takes factors; the weight itself stays
            kernel = 0
            self.biases |= dict(attrs["biases"])
        made = Adaptable(
            key, size, t.static_shape, t.dtype, t.layout, attrs["out_axis"], parts, kernel
        )
        number = self.adapted.setdefault((made, attrs["table"]), len(self.adapted))
        if number == len(self.plan.adaptable):  # not one that stands in another branch too
            self.plan.adaptable.append(made)
            self.emitted.bases.append(self.program.weights[attrs["key"]])
            if attrs["batched"]:
                self.tables.append(attrs["table"])
        self.numbers[value] = self.buffer(
            Buffer(BufferKind.WEIGHT, size, key)
            if attrs["batched"]
            else Buffer(BufferKind.ADAPTED, size, number)
        )

    def base_bias(self, module: str, key: str) -> None:
        """What a layer whose rows have adapters adds anyway, for those who make adapters."""
        array = self.program.weights[key]
        self.emitted.weights.setdefault(key, LazyWeight(array.nbytes, lambda: array))
        part = Part(module, "bias", "", 0, len(array))
        self.plan.adaptable.append(
            Adaptable(key, array.nbytes, array.shape, str(array.dtype), "", 0, (part,))
        )
        self.emitted.bases.append(array)

    def kernel_number(self, name: str) -> int:
        """The number of a kernel, which is in the plan from now on."""
        if name not in self.plan.kernels:
            self.plan.kernels.append(name)
            self.emitted.facts.setdefault(name, KernelFacts(self.kernels[name].facts.schedule))
        return self.plan.kernels.index(name)

    def part_number(self, symbol: str) -> int:
        """The number of a function that kernels call by it, which is in the plan from now on."""
        if symbol not in self.plan.parts:
            self.plan.parts.append(symbol)
        return self.plan.parts.index(symbol)

    def do_ai_reshape(self, operation: Operation) -> None:
        self.numbers[operation.results[0]] = self.numbers[operation.operands[0]]

    do_ai_bitcast = do_ai_reshape

    def do_ai_dim_values(self, operation: Operation) -> None:
        value, attrs = operation.results[0], ir.attrs(operation)
        if "places" not in attrs:
            return
        number = self.numbers[value] = self.placed(value, attrs["places"][0])
        self.plan.steps.append(
            Step(StepKind.DIMS, buffers=(number,), scalars=attrs["values"], name="dims")
        )

    def do_ai_require(self, operation: Operation) -> None:
        attrs, layer = ir.attrs(operation), ir.source_name(operation)
        self.plan.steps.append(
            Step(
                StepKind.REQUIRE, scalars=(attrs["condition"],), name=attrs["message"], layer=layer
            )
        )

    def do_ai_copy(self, operation: Operation) -> None:
        value = operation.results[0]
        number = self.numbers[value] = self.placed(value, ir.attrs(operation)["place"])
        source = self.numbers[operation.operands[0]]
        layer = ir.source_name(operation)
        self.plan.steps.append(
            Step(StepKind.COPY, buffers=(source, number), name="copy", layer=layer)
        )

    def do_ai_if(self, operation: Operation) -> None:
        attrs, steps = ir.attrs(operation), self.plan.steps
        sizes = attrs["sizes"]
        for value, place in zip(operation.results, attrs.get("places", ()), strict=False):
            self.numbers[value] = self.placed(value, place)
        branch = len(steps)
        layer = ir.source_name(operation)
        condition = self.numbers[operation.operands[0]]
        steps.append(Step(StepKind.BRANCH, buffers=(condition,), name="if", layer=layer))
        self.block(ir.body(operation, 0))
        for name, size, _ in sizes:
            self.bind(name, size, operation)
        jump = len(steps)
        steps.append(Step(StepKind.JUMP, name="else", layer=layer))
        steps[branch] = replace(steps[branch], target=len(steps))
        self.block(ir.body(operation, 1))
        for name, _, size in sizes:
            self.bind(name, size, operation)
        steps[jump] = replace(steps[jump], target=len(steps))

    def bind(self, name: str, value: Dim, operation: Operation) -> None:
        """The computed size `name` becomes `value`."""
        self.plan.steps.append(
            Step(
                StepKind.BIND, self.symbol_number(name), scalars=(value,), name="size",
                layer=ir.source_name(operation),
            )
        )  # fmt: skip

    def temporary(self, name: str) -> str:
        """A computed size that the plan itself needs."""
        if not any(s.name == name for s in self.plan.symbols):
            self.plan.symbols.append(Symbol(name, lo=-MOST))
        return name

    def symbol_number(self, name: str) -> int:
        return next(i for i, s in enumerate(self.plan.symbols) if s.name == name)

    def do_ai_bind_size(self, operation: Operation) -> None:
        attrs = ir.attrs(operation)
        self.plan.steps.append(
            Step(
                StepKind.BIND, self.symbol_number(attrs["symbol"]),
                buffers=(self.numbers[operation.operands[0]],), scalars=(attrs["index"],),
                name="size", layer=ir.source_name(operation),
            )
        )  # fmt: skip

    def do_ai_loop(self, operation: Operation) -> None:
        LoopEmitter(self, operation).emit()

    def do_ai_cpu_launch(self, operation: Operation) -> None:
        if not _is_prepared(operation):
            self.launch(operation, StepKind.KERNEL)

    def launch(self, operation: Operation, kind: StepKind) -> None:
        """A step that runs a kernel. What is prepared costs a run nothing."""
        attrs = ir.attrs(operation)
        kernel = self.kernels[attrs["kernel"]]
        for value, place in zip(operation.results, attrs["places"], strict=True):
            self.numbers[value] = self.placed(value, place)
        function = self.program.function(kernel.name)
        names = ir.attrs(function)["symbols"]
        sizes = dict(zip(names, attrs["symbols"], strict=True))
        facts = kernel.facts
        numbers = {symbol: self.part_number(symbol) for symbol in facts.numbered()}
        flops, moved = substitute(facts.flops, sizes), substitute(facts.bytes, sizes)
        if kind == StepKind.PREPARE:
            flops = moved = 0
        self.plan.steps.append(
            Step(
                kind,
                target=self.kernel_number(kernel.name),
                buffers=tuple(self.numbers[v] for v in (*operation.operands, *operation.results)),
                scalars=tuple(substitute(s, sizes | numbers) for s in facts.scalars),
                tasks=_tasks(substitute(facts.tasks, sizes), operation),
                scratch_bytes=substitute(facts.scratch_bytes, sizes),
                cost=_cost(flops, moved),
                name=kernel.name,
                layer=ir.source_name(operation),
            )
        )
        known = self.emitted.facts[kernel.name]
        self.emitted.facts[kernel.name] = KernelFacts(
            facts.schedule, known.flops + flops, known.bytes + moved
        )


def _is_prepared(operation: Operation) -> bool:
    return any(kind == "prepared" for kind, _ in ir.places(operation))


def _cost(flops: Dim, moved: Dim) -> Dim:
    """FLOPs or 4 x bytes, the larger; bytes where the two together are too long an expression."""
    try:
        return dims.maximum(flops, moved * 4)
    except TooComplex:
        return moved


def _tasks(tasks: Dim, launch: Operation) -> Dim:
    """At most one task an element: of results without any, an axis may be of any length."""
    if isinstance(tasks, int):
        return tasks
    elements: Dim = 0
    for value in launch.results:
        elements = elements + dims.product(ir.type_of(value).shape)
    return dims.minimum(tasks, elements)
