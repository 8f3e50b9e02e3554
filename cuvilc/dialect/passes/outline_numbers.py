"""Which numbers of fusions differ where all else is equal: kernels that read them can be shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.ir import Operation, Value

# Operations that read a number as they would a tensor, wherever it comes from.
_READERS = frozenset(
    f"ai.{n}"
    for n in (
        "quantize_linear", "dequantize_linear", "elemwise_add", "elemwise_sub", "elemwise_mul",
        "elemwise_div", "maximum", "minimum", "fake_quantize",
    )
)  # fmt: skip
_MOST = 8  # numbers that a kernel reads


def unlike_numbers(fusions: Sequence[Operation]) -> list[list[Operation]]:
    """For each fusion those of its `ai.full`s that others, equal but for them, have otherwise."""
    numbers = [_numbers(fusion) for fusion in fusions]
    alike: dict[Any, list[int]] = {}
    for i, fusion in enumerate(fusions):
        if numbers[i]:
            alike.setdefault(_form(fusion, numbers[i]), []).append(i)
    found: list[list[Operation]] = [[] for _ in fusions]
    for group in alike.values():
        values = [[ir.attrs(o)["value"] for o in numbers[i]] for i in group]
        differ = [k for k, column in enumerate(zip(*values, strict=True)) if len({*column}) > 1]
        if len(differ) <= _MOST:
            for i in group:
                found[i] = [numbers[i][k] for k in differ]
    return found


def _numbers(fusion: Operation) -> list[Operation]:
    """Its `ai.full`s that only operations read which do not care."""
    inner = ir.operations(ir.body(fusion))
    return [
        o
        for o in inner
        if o.name == "ai.full" and all(u.name in _READERS for u in ir.users(o.results[0]))
    ]


def _form(fusion: Operation, numbers: Sequence[Operation]) -> Any:
    """What equal fusions have in common, the values of `numbers` left out."""
    names: dict[Value, int] = {}
    form: list[Any] = []
    free = {o.results[0] for o in numbers}
    for operation in ir.operations(ir.body(fusion)):
        places = []
        for value in operation.operands:
            if value not in names:
                names[value] = len(names)
                form.append(str(value.type))
            places.append(names[value])
        attributes = ir.attrs(operation)
        for result in operation.results:
            if result in free:
                attributes.pop("value")
            names[result] = len(names)
        types = tuple(str(r.type) for r in operation.results)
        form.append((operation.name, tuple(places), repr(attributes), types))
    return tuple(form)
