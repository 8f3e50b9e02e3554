"""One kernel for every form of parameter: it makes the weight that an adapter asks for.

No launch in `main` calls it; the runtime does, when an adapter is put to use. Parameters without
one (other dtypes, layouts that are not panels of their outputs) are exchanged whole.
"""

from __future__ import annotations

from math import prod

from cuvilc.dialect import ir
from cuvilc.dialect.dims import ceildiv, symbol
from cuvilc.dialect.ir import Operation, Program
from cuvilc.dialect.op import write_attr
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.passes.outline_kernels import finish_kernel
from cuvilc.dialect.types import PANEL, TensorType

NAME = "add-merges"
VERSION = 1


def run(program: Program, context: PassContext) -> None:
    """After it, every parameter that has a kernel to be merged by names it."""
    with program:
        known: dict[str, str] = {}
        for operation in list(ir.walk(ir.body(program.function("main")))):
            if operation.name == "ai.parameter" and _fits(operation):
                name = _kernel(program, operation, known)
                operation.attributes["kernel"] = write_attr(name)
                context.apply(NAME)


def _fits(operation: Operation) -> bool:
    """float32, its outputs in panels or along the last axis."""
    t, attrs = ir.type_of(operation.results[0]), ir.attrs(operation)
    if attrs["batched"] or t.dtype != "float32" or t.rank < 2 or attrs["parts"][0][2] == "":
        return False
    if t.layout:
        return t.layout == f"pack{attrs['out_axis']}_{PANEL}"
    return attrs["out_axis"] == t.rank - 1


def _kernel(program: Program, operation: Operation, known: dict[str, str]) -> str:
    """The name of the kernel that merges a change into this form of parameter."""
    t, axis = ir.type_of(operation.results[0]), ir.attrs(operation)["out_axis"]
    outputs = t.static_shape[axis]
    rows = prod(d for i, d in enumerate(t.static_shape) if i != axis)
    panels, rank = ceildiv(outputs, PANEL), symbol("s0")
    types = [
        t, TensorType((rank, rows)), TensorType((panels, rank, PANEL)),
        TensorType((panels * PANEL,)),
    ]  # fmt: skip
    block = ir.define_function(program, "kernel", types)
    with ir.at_end(block):
        result = ir.build("ai.lora_merge", *block.arguments, out_axis=axis)
    ir.finish_function(block, [result])
    return finish_kernel(block.owner.operation, ("s0",), "lora-merge", "lora_merge", known)
