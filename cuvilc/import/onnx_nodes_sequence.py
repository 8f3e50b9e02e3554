"""Operators on sequences and optionals: they are followed at import; tensors alone remain."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.op import ShapeError

from ._table import importer
from .onnx_node import Node, ai, reshape, shape_of
from .onnx_nodes_slice import concat_values, sliced
from .onnx_sequences import OptionalVal, SequenceVal, Slices, Woven, known
from .onnx_values import Val

_MOST_PARTS = 512  # that a split makes tensors of their own


def sequence(n: Node, i: int = 0) -> SequenceVal:
    """Input i, which must be a sequence."""
    val = n.val(i)
    if isinstance(val, OptionalVal) and val.item is not None:
        val = val.item
    if not isinstance(val, SequenceVal):
        raise ShapeError(f"input {i} must be a sequence")
    return val


@importer("SequenceEmpty")
def sequence_empty(n: Node) -> Val:
    return SequenceVal([])


@importer("SequenceConstruct")
def sequence_construct(n: Node) -> Val:
    return SequenceVal([v for v in n.inputs if v is not None])


@importer("SequenceLength")
def sequence_length(n: Node) -> Val:
    return known(sequence(n).length(), "int64", n.label)


@importer("SequenceInsert")
def sequence_insert(n: Node) -> Val:
    given, val = sequence(n), n.val(1)
    assert val is not None
    if not n.has(2):
        return given.appended(val)
    items = given.items()
    at = _position(n, 2, len(items), len(items) + 1)
    return SequenceVal([*items[:at], val, *items[at:]])


@importer("SequenceErase")
def sequence_erase(n: Node) -> Val:
    items = sequence(n).items()
    at = _position(n, 1, len(items) - 1, len(items))
    return SequenceVal([*items[:at], *items[at + 1 :]])


@importer("SequenceAt")
def sequence_at(n: Node) -> Any:
    given = sequence(n)
    given.require_whole()
    slices = given.parts[0] if len(given.parts) == 1 else None
    if isinstance(slices, Slices):
        (at,) = n.dims(1, "the position is", signed=True)
        if isinstance(at, int):
            at = at + slices.count if at < 0 else at
        else:
            at = D.select(D.less(at, 0), at + slices.count, at)
        return _slice_at(n, slices, at)
    items = given.items()
    return items[_position(n, 1, 0, len(items))]


def _slice_at(n: Node, slices: Slices, at: Dim) -> ir.Value:
    """Element `at` of the slices."""
    x, axis, step = n.converter.value(slices.val), slices.axis, slices.step
    shape = shape_of(x)
    first = at * step
    size = 1 if step == 1 else D.minimum(shape[axis] - first, step)
    starts = tuple(first if a == axis else 0 for a in range(len(shape)))
    piece = sliced(x, starts, tuple(size if a == axis else d for a, d in enumerate(shape)))
    return piece if slices.keep else reshape(piece, (*shape[:axis], *shape[axis + 1 :]))


def _position(n: Node, i: int, default: int, count: int) -> int:
    """Input i as a place among `count`, negative ones from the end."""
    at = int(n.static(i, "the position is")[0]) if n.has(i) else default
    at += len(sequence(n).items()) if at < 0 else 0
    if not 0 <= at < count:
        raise ShapeError(f"position {at} lies outside the sequence")
    return at


@importer("ConcatFromSequence")
def concat_from_sequence(n: Node) -> ir.Value:
    given, new = sequence(n), bool(n.attr("new_axis", 0))
    given.require_whole()
    parts = [_joinable(n, part, new) for part in given.parts]
    if not parts:
        raise ShapeError("the sequence is empty")
    return parts[0] if len(parts) == 1 else concat_values(parts, _joint(n, parts[0]))


def _joint(n: Node, value: ir.Value) -> int:
    return int(n.attr("axis")) % max(len(shape_of(value)), 1)


def _joinable(n: Node, part: Any, new: bool) -> ir.Value:
    """One part as a tensor that only needs to be joined along the axis."""
    if isinstance(part, Woven):
        part = _side_by_side(n, part, new)
    value = n.converter.value(part if isinstance(part, Val) else part.val)
    shape = shape_of(value)
    if isinstance(part, Val):
        if not new:
            return value
        at = int(n.attr("axis")) % (len(shape) + 1)
        return reshape(value, (*shape[:at], 1, *shape[at:]))
    return _joined(n, part, value, new)


def _side_by_side(n: Node, part: Woven, new: bool) -> Slices:
    """The tensors joined along the axis, each row of them the elements of a round."""
    if new:
        raise ShapeError(
            "elements that a loop appended differ in their sizes, so they do not stack"
        )
    rows = [n.converter.value(v) for v in part.vals]
    element = max(len(shape_of(rows[0])) - 1, 1)
    return Slices(Val.of(concat_values(rows, 1 + int(n.attr("axis")) % element)))


def _joined(n: Node, slices: Slices, value: ir.Value, new: bool) -> ir.Value:
    """All slices of a tensor joined along the axis: the tensor with its axes in another order."""
    shape, wanted = shape_of(value), int(n.attr("axis"))
    if slices.keep:
        if new or wanted % len(shape) != slices.axis:
            raise ShapeError("parts of a tensor are joined along another axis than it was split")
        return value
    at = wanted % (len(shape) if new else max(len(shape) - 1, 1))
    others = [a for a in range(len(shape)) if a != slices.axis]
    perm = (*others[:at], slices.axis, *others[at:])
    moved = value if perm == tuple(range(len(shape))) else ai("transpose", value, perm=perm)
    if new:
        return moved
    sizes = shape_of(moved)
    return reshape(moved, (*sizes[:at], sizes[at] * sizes[at + 1], *sizes[at + 2 :]))


@importer("SplitToSequence")
def split_to_sequence(n: Node) -> Val:
    x, at = n[0], n.axis(0)
    shape = shape_of(x)
    keep = bool(n.attr("keepdims", 1)) or n.has(1)
    total = shape[at]
    if not (n.has(1) and len(n.shape(1)) == 1):
        step = int(n.static(1, "the size of the parts is")[0]) if n.has(1) else 1
        if step < 1:
            raise ShapeError(f"parts of size {step}")
        if not isinstance(total, int) or total > step * _MOST_PARTS:
            return SequenceVal([Slices(Val.of(x), at, step, keep)])
        places: list[Dim] = [*range(0, total, step), total]
    else:
        sizes = n.dims(1, "the sizes of the parts are")
        places = [0, *accumulate(sizes)]
    parts: list[Val] = []
    for begin, end in pairwise(places):
        starts = tuple(begin if a == at else 0 for a in range(len(shape)))
        lengths = tuple(end - begin if a == at else d for a, d in enumerate(shape))
        piece = sliced(x, starts, lengths)
        parts.append(Val.of(piece if keep else reshape(piece, (*shape[:at], *shape[at + 1 :]))))
    return SequenceVal(parts)


@importer("Optional")
def optional(n: Node) -> Val:
    return OptionalVal(n.val(0))


@importer("OptionalHasElement")
def optional_has_element(n: Node) -> Val:
    val = n.val(0)
    has = val.item is not None if isinstance(val, OptionalVal) else val is not None
    return Val.constant(np.array(has), n.label)


@importer("OptionalGetElement")
def optional_get_element(n: Node) -> Val:
    val = n.val(0)
    found = val.item if isinstance(val, OptionalVal) else val
    if found is None:
        raise ShapeError("the optional is empty")
    return found
