"""Turn each fusion into a kernel function of its own and a launch of it; equal kernels become one.

A kernel's sizes are its own symbols s0, s1, … in order of appearance, so that layers that differ
only in which symbol they use share a kernel. So do those of "channels-given" operations whatever
their channels: the launch tells them. Layers that differ only in numbers, as quantised ones do in
scales and zero points, share one too: it reads those that differ (outline_numbers.py). The
function's name is a hint at its work and a hash of its text.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from cuvilc._mlir import ir as mlir
from cuvilc.dialect import ir, op
from cuvilc.dialect.dims import Dim, Expr, substitute, symbol, symbols
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.passes.outline_numbers import unlike_numbers
from cuvilc.dialect.types import TensorType

NAME = "outline-kernels"
VERSION = 2


def run(program: Program, context: PassContext) -> None:
    """After it, `main` consists of launches, constants, views, sizes and conditionals."""
    known: dict[str, str] = {}
    with program:
        for function in program.kernels():
            known[_text(function)] = ir.attrs(function)["sym_name"]
        main = program.function("main")
        fusions = [o for o in ir.walk(ir.body(main)) if o.name == "ai.fusion"]
        for fusion, numbers in zip(fusions, unlike_numbers(fusions), strict=True):
            _read_numbers(program, fusion, numbers)
            _outline(program, fusion, known)


def _read_numbers(program: Program, fusion: Operation, numbers: list[Operation]) -> None:
    """These `ai.full`s of the fusion become constants outside, which it reads."""
    for number in numbers:
        array = np.array(program.constant_array(number.results[0]))
        with ir.before(fusion):
            ir.replace(number, ir.constant(program, array, "number"))


def _outline(program: Program, fusion: Operation, known: dict[str, str]) -> None:
    inner = ir.operations(ir.body(fusion))
    made = {r for o in inner for r in o.results}
    captured = list(dict.fromkeys(v for o in inner for v in o.operands if v not in made))
    given = all("channels-given" in declared.traits for declared in map(_definition, inner[:-1]))
    renaming = _Renaming()
    types = [renaming.type(ir.type_of(v), given) for v in captured]
    block = ir.define_function(program, "kernel", types)
    values: dict[Value, Value] = dict(zip(captured, block.arguments, strict=True))
    with ir.at_end(block):
        for operation in inner[:-1]:
            _clone(operation, values, renaming, infer=given)
    ir.finish_function(block, [values[v] for v in inner[-1].operands])
    kind, hint = ir.attrs(fusion)["kind"], _hint(inner[:-1])
    names = tuple(f"s{n}" for n in range(len(renaming.sizes)))
    name = finish_kernel(block.owner.operation, names, kind, hint, known)
    with ir.before(fusion):
        results = ir.build(
            "ai.launch", *captured, kernel=name, symbols=tuple(renaming.sizes),
            types=[ir.type_of(r) for r in fusion.results],
        )  # fmt: skip
    ir.replace(fusion, *(results if isinstance(results, tuple) else (results,)))


def finish_kernel(
    function: Operation, symbols: tuple[str, ...], kind: str, hint: str, known: dict[str, str]
) -> str:
    """The name of a kernel: of an equal one in `known` (text to name), where there is one, in its
    place; else it gets its own.
    """
    function.attributes["symbols"] = op.write_attr(symbols)
    function.attributes["kind"] = op.write_attr(kind)
    text = _text(function)
    name = known.get(text)
    if name is not None:
        function.erase()
        return name
    name = known[text] = f"{hint}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    function.attributes["sym_name"] = mlir.StringAttr.get(name)
    return name


def _definition(operation: Operation) -> op.OpDef:
    found = ir.definition(operation)
    assert found is not None
    return found


class _Renaming:
    """Symbols of the caller to symbols of the kernel, in order of appearance."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.sizes: list[Dim] = []  # of the kernel's symbols, in terms of the caller's

    def dim(self, value: Any) -> Any:
        if isinstance(value, Expr):
            for name in sorted(symbols(value), key=lambda n: (str(value).find(n), n)):
                if name not in self.names:
                    self.names[name] = self.new(symbol(name))
            return substitute(value, {old: symbol(new) for old, new in self.names.items()})
        if isinstance(value, tuple):
            return tuple(self.dim(v) for v in value)
        return value

    def new(self, size: Dim) -> str:
        """The kernel's symbol for a size of its own."""
        self.sizes.append(size)
        return f"s{len(self.sizes) - 1}"

    def type(self, t: TensorType, given: bool) -> TensorType:
        """The type inside; `given`: its first two sizes are the kernel's symbols in any case."""
        if not given:
            return t.with_(shape=self.dim(t.shape))
        first = tuple(symbol(self.new(d)) for d in t.shape[:2])
        return t.with_(shape=(*first, *self.dim(t.shape[2:])))


def _clone(
    operation: Operation, values: dict[Value, Value], renaming: _Renaming, infer: bool
) -> None:
    """`infer`: types follow from the operands."""
    attributes = {k: renaming.dim(v) for k, v in ir.attrs(operation).items()}
    if not infer:
        attributes["types"] = [renaming.type(ir.type_of(r), False) for r in operation.results]
    results = ir.build(operation.name, *(values[v] for v in operation.operands), **attributes)
    results = results if isinstance(results, tuple) else (results,)
    values.update(zip(operation.results, results, strict=True))


def _text(function: Operation) -> str:
    """The function's text without its name: equal texts are equal kernels."""
    name = ir.attrs(function)["sym_name"]
    return ir.text_of(function).replace(f"@{name}(", "@(", 1)


_QUIET = ("ai.full", "ai.reshape", "ai.relayout")


def _hint(operations: list[Operation]) -> str:
    """A readable stem such as "conv_elemwise_add_relu"."""
    words = [o.name.removeprefix("ai.") for o in operations if o.name not in _QUIET]
    words = list(dict.fromkeys(words or [operations[0].name.removeprefix("ai.")]))
    return "_".join(w.removeprefix("elemwise_").replace(".", "_") for w in words[:4])
