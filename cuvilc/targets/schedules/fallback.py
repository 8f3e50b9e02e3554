"""The schedule that is always right: elementwise loops in which every reduction is a loop of its
own.

Takes any region whose results follow from `element` facets and `term` facets. The loop over the
innermost axis of the results is vectorised where no condition depends on it: then each lane reduces
for itself.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, product
from cuvilc.dialect.ops._index import unflatten
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import compute_dtype
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules.elementwise import schedule_with
from cuvilc.targets.schedules.reduction_fold import combine, identity


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Loops over all elements of the results. Raises Miss if an operation has neither facet."""
    for operation in region.operations:
        declared = ir.definition(operation)
        if declared is None or not (declared.facet("element") or declared.facet("term")):
            raise Miss(f"{operation.name} has neither an element nor a term facet")
    terms = product([_terms(region, o) for o in region.operations])
    if len({ir.type_of(v).layout for v in region.results}) == 1:
        return schedule_with(region, chip, name, "fallback", define_terms, terms)
    return _plain(region, name, terms)


def define_terms(emitter: Emitter) -> None:
    """Let the result of every operation with `term` be computed by a loop wherever it is read."""
    for operation in emitter.region.operations:
        declared = ir.definition(operation)
        if declared is not None and declared.facet("term"):
            _define(emitter, operation, declared)


def _define(emitter: Emitter, operation: Any, declared: Any) -> None:
    k, b = emitter.k, emitter.builder
    operands, attrs = emitter.operands(operation), emitter.attrs(operation)
    dtype = compute_dtype(ir.type_of(operation.results[0]).dtype)
    stored = "int8" if dtype == "bool" else dtype
    term, finish = declared.facet("term"), declared.facet("finish")

    def load(index: tuple[Any, ...]) -> Any:
        total = b.variable(identity(stored, declared.combine))
        with b.loops(declared.facet("domain")(k, *operands, **attrs)) as r:
            value = k.cast(term(k, index, r, *operands, **attrs), stored)
            total.set(combine(k, declared.combine, total.get(), value))
        value = k.let(k.cast(total.get(), dtype))
        return k.let(finish(k, index, value, *operands, **attrs)) if finish else value

    emitter.define(operation.results[0], load)


def _terms(region: Region, operation: Any) -> Dim:
    """About how many terms an element of the operation's result has."""
    declared = ir.definition(operation)
    if declared is None or not declared.facet("term"):
        return 1
    emitter = Emitter(region, "terms")
    try:
        operands = emitter.operands(operation)
    except Miss:
        return 64
    domain = declared.facets["domain"](emitter.k, *operands, **emitter.attrs(operation))
    return product([d if isinstance(d, int) else 8 for d in domain])


def _plain(region: Region, name: str, terms: Dim) -> Scheduled:
    """One scalar loop, for results that lie differently in memory."""
    shapes = {ir.type_of(v).shape for v in region.results}
    if len(shapes) != 1:
        raise Miss(f"results of {len(shapes)} different shapes")
    (shape,) = shapes
    emitter = Emitter(region, name)
    define_terms(emitter)
    b = emitter.builder
    extents = emitter.extents(shape)
    with b.tasks() as t, b.loop(extents[-1] if extents else 1) as last:
        index = (*unflatten(emitter.k, t, extents[:-1]), last) if extents else ()
        emitter.store_all(index)
    tasks: Dim = product(shape[:-1]) if shape else 1
    return emitter.finish("fallback", tasks, product(shape) * terms)
