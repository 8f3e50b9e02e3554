"""What the schedules of single operations share."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.ir import Operation, Value
from cuvilc.dialect.types import item_bytes
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import compute_dtype
from cuvilc.targets.region import Emitter, Miss, Region


def lone(region: Region, *names: str) -> Operation:
    """The region's operation, if it is one of `names`; number constants may stand beside it."""
    found = [o for o in region.operations if o.name != "ai.full"]
    if len(found) != 1 or found[0].name not in names:
        raise Miss(f"not one of {', '.join(names)} alone")
    if any(v not in list(found[0].results) for v in region.results):
        raise Miss("a result is not the operation's")
    return found[0]


def argument(region: Region, value: Value) -> int:
    """The value's place among the launch's buffers."""
    found = region.argument(value)
    if found is None:
        raise Miss("an operand that must lie in memory does not")
    if ir.type_of(value).layout:
        raise Miss("an operand in a blocked layout")
    return found


def outputs(region: Region, operation: Operation) -> dict[int, int]:
    """Number of an operation's result -> number of the region's; unused ones are absent."""
    made = list(operation.results)
    return {made.index(v): n for n, v in enumerate(region.results)}


def register_elements(chip: Chip, dtype: str) -> int:
    """Elements of one vector register as `dtype` is computed with."""
    return max(1, chip.lanes * 4 // item_bytes(compute_dtype(dtype)))


def unravel(emitter: Emitter, flat: Any, shape: tuple[Dim, ...]) -> list[Any]:
    """The index of row-major element number `flat`."""
    k, b = emitter.k, emitter.builder
    index: list[Any] = []
    for d in reversed(shape[1:]):
        index.append(b.let(k.mod(flat, b.scalar(d))))
        flat = b.let(k.floordiv(flat, b.scalar(d)))
    return [*([flat] if shape else []), *reversed(index)]
