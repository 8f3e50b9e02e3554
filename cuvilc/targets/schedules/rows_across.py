"""Softmax along an axis that is not the last: vectors lie across the rows, along the innermost
axis.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import product
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region, Scheduled, vectorized
from cuvilc.targets.schedules.elementwise import outer_values
from cuvilc.targets.schedules.elementwise_access import Digit
from cuvilc.targets.schedules.elementwise_loops import Place, sweep
from cuvilc.targets.schedules.reduction_fold import combine, identity
from cuvilc.targets.tir import const


def schedule(region: Region, anchor: Any, chip: Chip, name: str) -> Scheduled:
    """A task is one index of every axis but the softmax's and the last."""
    return vectorized(lambda vector: _build(region, anchor, name, chip.lanes if vector else 1))


def _build(region: Region, anchor: Any, name: str, width: int) -> Scheduled:
    emitter = Emitter(region, name)
    shape = ir.type_of(anchor.results[0]).shape
    axis = ir.attrs(anchor)["axis"]
    outer = [j for j in range(len(shape) - 1) if j != axis]
    tasks = product([shape[j] for j in outer])
    kept, dtype = anchor.name != "ai.log_softmax", emitter.accessor(anchor.operands[0]).dtype
    if not (isinstance(product(shape), int) and product(shape) == 0):
        b = emitter.builder
        with b.tasks() as t:
            digits = [Digit(j, shape[j]) for j in outer]
            values = outer_values(emitter, digits, range(len(outer)), t)
            fixed = {j: values[n] for n, j in enumerate(outer)}
            powers = b.scratch(shape[axis] * width, dtype) if kept else None

            def column(i: Any, place: Place) -> None:
                at = (powers, width, place.lane) if kept else None
                _column(emitter, anchor, axis, {**fixed, len(shape) - 1: i}, at)

            sweep(emitter, 0, b.scalar(shape[-1]), width, 1, column)
    return emitter.finish("rows-across", tasks, product(shape) * (len(region.operations) + 8))


def _column(emitter: Emitter, anchor: Any, axis: int, fixed: dict[int, Any], kept: Any) -> None:
    """One row, or in a vectorised loop as many as lanes. kept: where a softmax puts its powers, so
    that each is computed once: a buffer, elements between a row's, and the lane.
    """
    b, k = emitter.builder, emitter.k
    x = emitter.accessor(anchor.operands[0])
    extent = x.shape[axis]
    dtype = x.dtype

    def at(r: Any) -> tuple[Any, ...]:
        return tuple(r if j == axis else fixed[j] for j in range(len(x.shape)))

    top, total = b.variable(identity(dtype, "max")), b.variable(const(0.0, dtype))
    with b.loop(extent) as r:
        top.set(combine(k, "max", top.get(), x[at(r)], exact=False))
    with b.loop(extent) as r:
        power = b.let(k.exp_below(x[at(r)] - top.get()))
        if kept:
            b.store(kept[0], r * kept[1] + kept[2], power)
        total.set(total.get() + power)
    logarithm = anchor.name == "ai.log_softmax"
    shift = b.let(k.log(total.get())) if logarithm else b.let(const(1.0, dtype) / total.get())

    def value(index: tuple[Any, ...]) -> Any:
        if logarithm:
            return x[index] - top.get() - shift
        return b.load(kept[0], index[axis] * kept[1] + kept[2]) * shift

    emitter.define(anchor.results[0], lambda index: k.let(value(index)))
    with b.loop(extent) as r:
        emitter.store_all(at(r))
    emitter.forget()
