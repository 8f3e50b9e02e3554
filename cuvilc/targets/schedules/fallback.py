"""The schedule that is always right: one scalar loop over output elements, one task an element row.

Takes any region whose results follow from `element` facets and at most one `term` facet.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, product
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import compute_dtype
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.tir import const

_IDENTITY = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf")}


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Loops over all elements of the results. Raises Miss if an operation has neither facet."""
    shapes = {ir.type_of(v).shape for v in region.results}
    if len(shapes) != 1:
        raise Miss(f"results of {len(shapes)} different shapes")
    (shape,) = shapes
    emitter = Emitter(region, name)
    for operation in region.operations:
        _define_terms(emitter, operation)
    b = emitter.builder
    extents = emitter.extents(shape)
    with b.tasks() as t:
        inner = extents[-1] if extents else 1
        with b.loop(inner) as last:
            index = (*_unravel(emitter, t, extents[:-1]), last) if extents else ()
            for number, value in enumerate(region.results):
                emitter.store(number, index, emitter.accessor(value)[index])
    tasks: Dim = product(shape[:-1]) if shape else 1
    return emitter.finish("fallback", tasks, product(shape) * _terms(region))


def _terms(region: Region) -> Dim:
    return max(len(region.operations), 1)


def _unravel(emitter: Emitter, flat: Any, extents: list[Any]) -> list[Any]:
    index: list[Any] = []
    for extent in reversed(extents):
        index.append(emitter.k.mod(flat, extent))
        flat = emitter.k.floordiv(flat, extent)
    return list(reversed(index))


def _define_terms(emitter: Emitter, operation: Any) -> None:
    """Let the result of an operation with `term` be computed by a reduction loop wherever it is read."""
    declared = ir.definition(operation)
    term = declared.facet("term") if declared else None
    if declared is None or term is None:
        return
    k, b = emitter.k, emitter.builder
    operands, attrs = emitter.operands(operation), emitter.attrs(operation)
    t = ir.type_of(operation.results[0])
    dtype = compute_dtype(t.dtype)

    def load(index: tuple[Any, ...]) -> Any:
        total = b.local(1, dtype)
        b.store(total, 0, _identity(k, declared.combine, dtype))
        r: list[Any] = []
        _reduce(0, list(declared.facet("domain")(k, *operands, **attrs)), r, index, total)
        value = b.load(total, 0)
        finish = declared.facet("finish")
        return finish(k, index, value, *operands, **attrs) if finish else value

    def _reduce(depth: int, domain: list[Any], r: list[Any], index: tuple[Any, ...], total: Any) -> None:
        if depth == len(domain):
            value = term(k, index, tuple(r), *operands, **attrs)
            b.store(total, 0, combine(k, declared.combine, b.load(total, 0), value))
            return
        with b.loop(domain[depth]) as i:
            _reduce(depth + 1, domain, [*r, i], index, total)

    emitter.define(operation.results[0], load)


def combine(k: Any, how: str, a: Any, b: Any) -> Any:
    """One step of a fold."""
    match how:
        case "sum":
            return a + b
        case "prod":
            return a * b
        case "max":
            return k.max(a, b)
    return k.min(a, b)


def _identity(k: Any, how: str, dtype: str) -> Any:
    value = _IDENTITY[how]
    if dtype.startswith("float") or how in ("sum", "prod"):
        return k.const(value, dtype)
    if dtype == "bool":
        return k.const(how == "min", "bool")
    signed = dtype.startswith("int")
    bits = int("".join(c for c in dtype if c.isdigit()))
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return const(low if how == "max" else high, dtype)
