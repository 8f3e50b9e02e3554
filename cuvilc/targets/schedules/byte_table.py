"""Arithmetic on 8-bit elements by a table: what a region makes of each of the 256 is worked out
once a task, and looked up for each element.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv, product
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import LOOK_UP, LOOK_UP_BLOCK
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.elementwise import start_digits
from cuvilc.targets.schedules.elementwise_access import probe
from cuvilc.targets.schedules.microkernel import lesser
from cuvilc.targets.tir import as_expr, const

_TASK_ELEMENTS = 16384
_LEAST_ELEMENTS = 1024  # fewer do not repay the table
# Operations an element that repay it: with the chip's function, and where elements are looked up
# one by one.
_LEAST_WORK = 8, 18
_BYTES = ("int8", "uint8")


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes elementwise operations of one operand of 8 bits, and numbers, that give 8 bits."""
    source = _source(region)
    fast = LOOK_UP in chip.dots
    if probe(region, start_digits(region)).work < _LEAST_WORK[0 if fast else 1]:
        raise Miss("too little arithmetic for a table")
    return vectorized(lambda vector: _build(region, chip, name, source, vector))


def _source(region: Region) -> Any:
    """The operand. Raises Miss."""
    if len(region.results) != 1:
        raise Miss(f"{len(region.results)} results")
    result = ir.type_of(region.results[0])
    wide = [v for v in region.arguments if product(ir.type_of(v).shape) != 1]
    if len(wide) != 1:
        raise Miss(f"{len(wide)} operands of more than a number")
    x = ir.type_of(wide[0])
    if x.dtype not in _BYTES or result.dtype not in _BYTES:
        raise Miss(f"{x.dtype} to {result.dtype}")
    if (x.shape, x.layout) != (result.shape, result.layout):
        raise Miss("elements that move")
    elements = product(x.physical_shape)
    if isinstance(elements, int) and elements < _LEAST_ELEMENTS:
        raise Miss(f"a table for {elements} elements")
    for operation in region.operations:
        declared = ir.definition(operation)
        if operation.name != "ai.full" and not (declared and "elementwise" in declared.traits):
            raise Miss(f"{operation.name} moves elements")
    region.need_elements()
    return wide[0]


def _build(region: Region, chip: Chip, name: str, source: Any, vector: bool) -> Scheduled:
    emitter = Emitter(region, name)
    b, k = emitter.builder, emitter.k
    t, made = ir.type_of(source), ir.type_of(region.results[0])
    elements = product(t.physical_shape)
    x = b.buffer(region.arguments.index(source), t.dtype)
    y = b.buffer(len(region.arguments), made.dtype)
    table = b.scratch(256, made.dtype)
    total = as_expr(b.scalar(elements))
    with b.tasks() as task:
        _fill(emitter, source, table, chip.lanes if vector else 1)
        first = b.let(task * _TASK_ELEMENTS)
        count = b.let(lesser(total - first, _TASK_ELEMENTS))
        done: Any = 0
        if LOOK_UP in chip.dots:
            b.llvm(LOOK_UP, chip.dots[LOOK_UP])
            blocks = b.let(k.floordiv(count, LOOK_UP_BLOCK))
            pointers = [
                tirx.address_of(tirx.BufferLoad(buffer, [at]))
                for buffer, at in ((table, const(0)), (x, first), (y, first))
            ]
            b.emit(tirx.Evaluate(tirx.call_extern("int32", LOOK_UP, *pointers, blocks)))
            done = b.let(blocks * LOOK_UP_BLOCK)
        with b.loop(b.let(count - done)) as i:
            at = b.let(first + done + i)
            place = tirx.Cast("int64", tirx.reinterpret("uint8", b.load(x, at)))
            b.store(y, at, b.load(table, place))
    if b.can_fault:
        raise Miss("a fault of a value that may not be there")
    tasks: Dim = ceildiv(elements, _TASK_ELEMENTS)
    return emitter.finish("byte-table", tasks, elements * max(len(region.operations), 1))


def _fill(emitter: Emitter, source: Any, table: Any, width: int) -> None:
    """table[i] = what the region makes of the byte i."""
    b, k, region = emitter.builder, emitter.k, emitter.region
    t, made = ir.type_of(source), ir.type_of(region.results[0])
    index = (0,) * len(made.shape)
    emitter.forget()
    with b.loop(256 // width) as n, b.loop(width, "vectorized") as lane:
        at = n * width + lane
        value = b.let(tirx.reinterpret(t.dtype, tirx.Cast("uint8", at)))
        emitter.define(source, lambda index: value)
        k.store(table, at, emitter.accessor(region.results[0])[index], made.dtype)
    emitter.forget()
