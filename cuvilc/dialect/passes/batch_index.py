"""Does an index count the rows that it stands in? Then what it picks stays where it is.

torch's dynamo exporter writes `mask[batch_index, column_index]`, as attention masks are made, as a
`gather_nd` whose first coordinate is 0, 1, 2, … along the batch, broadcast over all other axes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Shape, product
from cuvilc.dialect.ir import Operation, Program, Value

_DTYPES = ("int32", "int64")  # narrower ones could begin again at 0


def picks_own_rows(program: Program, indices: Value) -> bool:
    """Whether the first coordinate of each row of `indices` [b, …, d] is b, by construction."""
    while (owner := ir.defining(indices)) is not None and owner.name == "ai.concat":
        width = ir.type_of(owner.operands[0]).shape[-1]
        last = ir.attrs(owner)["axis"] == ir.type_of(indices).rank - 1
        if not last or not isinstance(width, int) or width < 1:
            return False
        indices = owner.operands[0]
    array = program.constant_array(indices)
    if array is not None:
        return array.ndim > 1 and array.shape[-1] > 0 and _counts(array[..., 0], 0)
    return ir.type_of(indices).rank > 1 and _is_place(program, indices, 0)


def _is_place(program: Program, value: Value, axis: int) -> bool:
    """Whether every element is its own index along `axis`."""
    while ir.type_of(value).dtype in _DTYPES:
        array, owner = program.constant_array(value), ir.defining(value)
        if array is not None:
            return _counts(array, axis)
        if owner is None:
            return False
        attrs = ir.attrs(owner)
        if owner.name == "ai.iota":
            return (attrs["axis"], attrs["start"], attrs["step"]) == (axis, 0, 1)
        found = None
        if len(owner.operands):
            found = _axis_before(owner, attrs, ir.type_of(owner.operands[0]).shape, axis)
        if found is None:
            return False
        value, axis = owner.operands[0], found
    return False


def _axis_before(owner: Operation, attrs: dict[str, Any], before: Shape, axis: int) -> int | None:
    """Which axis of the operand, of these sizes, goes on as `axis` of the result, index by index;
    None where none does for sure.
    """
    after = ir.type_of(owner.results[0]).shape
    match owner.name:
        case "ai.cast":
            return axis
        case "ai.transpose":
            return int(attrs["perm"][axis])
        case "ai.slice":
            whole = (attrs["starts"][axis], attrs["steps"][axis]) == (0, 1)
            return axis if whole else None
        case "ai.broadcast_to":
            at = axis - (len(after) - len(before))
            return at if at >= 0 and before[at] == after[axis] else None
        case "ai.reshape":
            for at, size in enumerate(before):
                if size == after[axis] and product(before[:at]) == product(after[:axis]):
                    return at
    return None


def _counts(array: np.ndarray, axis: int) -> bool:
    line = np.arange(array.shape[axis]).reshape([-1] + [1] * (array.ndim - 1 - axis))
    return bool((array == line).all())
