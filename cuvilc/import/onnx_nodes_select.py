"""Operators whose results have as many elements as the data says: NonZero, Compress, Unique, …

Each counts first, makes the count a size, and then fills: the size is known before anything of it
is allocated.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, symbol
from cuvilc.dialect.op import ShapeError

from ._table import importer
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar, shape_of
from .onnx_nodes_slice import concat_values, sliced


def computed_length(n: Node, count: ir.Value, most: Dim | None = None) -> Dim:
    """A size that is element 0 of the int64 `count`; the run is refused if it is beyond `most`."""
    return symbol(n.converter.bind_element(count, 0, most if isinstance(most, int) else None))


def where_true(n: Node, flags: ir.Value) -> ir.Value:
    """The int64 positions, in order, at which the bool vector `flags` is true.

    The running count says where each goes; the others go one place behind the last.
    """
    (total,) = shape_of(flags)
    ones = cast(flags, "int64")
    places = ai("cumsum", ones, axis=0, exclusive=True)
    length = computed_length(n, ai("reduce_sum", ones, axes=(0,), keepdims=True), total)
    here = ai("where", flags, places, _sizes((total,)))
    room = ir.full(0, (total + 1,), "int64")
    filled = ai("scatter_elements", room, here, _count(total), axis=0)
    return sliced(filled, (0,), (length,))


def _sizes(values: tuple[Dim, ...]) -> ir.Value:
    """Sizes as an int64 vector."""
    if len(values) == 1 and isinstance(values[0], int):
        return ir.full(values[0], (1,), "int64")
    return ir.build("ai.dim_values", values=values)


def _count(length: Dim) -> ir.Value:
    """0, 1, … length - 1."""
    return ai("iota", shape=(length,), axis=0, dtype="int64", start=0, step=1)


def _flat(x: ir.Value) -> ir.Value:
    return reshape(x, (D.product(shape_of(x)),))


def _is_true(x: ir.Value) -> ir.Value:
    return x if dtype_of(x) == "bool" else ai("logical_not", ai("equal", x, scalar(0, x)))


@importer("NonZero")
def non_zero(n: Node) -> ir.Value:
    x = n[0]
    return indices_of(where_true(n, _flat(_is_true(x))), shape_of(x))


def indices_of(places: ir.Value, shape: tuple[Dim, ...]) -> ir.Value:
    """Row-major positions in `shape` as indices: [rank, length]."""
    (length,) = shape_of(places)
    if not shape:
        return ir.full(0, (0, length), "int64")
    rows: list[ir.Value] = []
    rest = places
    for axis in range(len(shape) - 1, -1, -1):
        d = reshape(_sizes((D.maximum(shape[axis], 1),)), ())
        row = rest if axis == 0 else ai("mod", rest, d, fmod=False)
        rows.append(reshape(row, (1, length)))
        rest = rest if axis == 0 else ai("elemwise_div", rest, d)
    return concat_values(rows[::-1], 0) if len(rows) > 1 else rows[0]


@importer("Compress", since=9)
def compress(n: Node) -> ir.Value:
    x, condition = n[0], n[1]
    at = n.axis(0) if "axis" in n.attributes else 0
    if "axis" not in n.attributes:
        x = _flat(x)
    return ai("gather", x, where_true(n, condition), axis=at)


@importer("Unique", since=11)
def unique(n: Node) -> list[Any]:
    """Values, where each occurs first, which one each element is, how often it occurs."""
    x = n[0]
    if "axis" not in n.attributes:
        rows = reshape(x, (D.product(shape_of(x)), 1))
        first, inverse, counts = _unique_rows(n, rows)
        return [ai("gather", _flat(x), first, axis=0), first, inverse, counts][: n.results]
    at = n.axis(0)
    shape = shape_of(x)
    moved = ai("transpose", x, perm=(at, *(a for a in range(len(shape)) if a != at)))
    rows = reshape(moved, (shape[at], D.product(d for a, d in enumerate(shape) if a != at)))
    first, inverse, counts = _unique_rows(n, rows)
    return [ai("gather", x, first, axis=at), first, inverse, counts][: n.results]


def _unique_rows(n: Node, rows: ir.Value) -> tuple[ir.Value, ...]:
    """Of [M, D] rows: (first place of each, number of each row's group, size of each)."""
    total, width = shape_of(rows)
    order = _order(rows) if width == 1 else _order_of_rows(rows)
    lined = ai("gather", rows, order, axis=0)
    starts = _starts(lined)
    group = ai("elemwise_sub", ai("cumsum", cast(starts, "int64"), axis=0), ir.full(1, (), "int64"))
    inverse = ai("scatter_elements", ir.full(0, (total,), "int64"), order, group, axis=0)
    places = where_true(n, starts)
    (length,) = shape_of(places)
    ends = sliced(concat_values([places, _sizes((total,))], 0), (1,), (length,))
    counts = ai("elemwise_sub", ends, places)
    first = ai("gather", order, places, axis=0)
    if n.attr("sorted", 1):
        return first, inverse, counts
    first, rank = ai("top_k", first, k=length, axis=0, largest=False)
    place = ai("scatter_elements", ir.full(0, (length,), "int64"), rank, _count(length), axis=0)
    return first, ai("gather", place, inverse, axis=0), ai("gather", counts, rank, axis=0)


def _order(rows: ir.Value) -> ir.Value:
    """The places of the [M, 1] rows' elements in ascending order, equal ones as they come."""
    flat = _flat(rows)
    if dtype_of(flat) == "bool":
        flat = cast(flat, "uint8")
    return ai("top_k", flat, k=shape_of(flat)[0], axis=0, largest=False)[1]


def _order_of_rows(rows: ir.Value) -> ir.Value:
    """The same of [M, D] rows in lexicographic order: each row's rank is how many come before it.

    A row comes before another if at the first place where they differ it has less, or if it is
    equal and stands before it.
    """
    total, width = shape_of(rows)
    left, right = reshape(rows, (total, 1, width)), reshape(rows, (1, total, width))
    differ = ai("logical_not", ai("equal", left, right))
    place = ai("arg_max", cast(differ, "int32"), axis=2, keepdims=True)
    less = cast(ai("less", left, right), "int32")
    less = ai("gather_elements", less, place, axis=2)
    different = ai("gather_elements", cast(differ, "int32"), place, axis=2)
    index = _count(total)
    earlier = ai("less", reshape(index, (total, 1, 1)), reshape(index, (1, total, 1)))
    before = ai("where", cast(different, "bool"), less, cast(earlier, "int32"))
    rank = reshape(ai("reduce_sum", before, axes=(0,), keepdims=False), (total,))
    room = ir.full(0, (total,), "int64")
    return ai("scatter_elements", room, cast(rank, "int64"), index, axis=0)


def _starts(lined: ir.Value) -> ir.Value:
    """Which of the sorted [M, D] rows differ from the row before."""
    total, width = shape_of(lined)
    if total == 0:
        return ir.full(True, (total,), "bool")
    rest = D.maximum(total - 1, 0)
    before = sliced(lined, (0, 0), (rest, width))
    after = sliced(lined, (D.minimum(total, 1), 0), (rest, width))
    differ = cast(ai("logical_not", ai("equal", before, after)), "int32")
    changed = ai("reduce_max", differ, axes=(1,), keepdims=False)
    head = ir.full(1, (D.minimum(total, 1),), "int32")
    return cast(concat_values([head, changed], 0), "bool")


def computed_range(n: Node) -> ir.Value:
    """start, start + delta, … below limit, for operands that the model computes.

    A delta of 0 asks for -1 elements, so that the run is refused.
    """
    start, limit, delta = (reshape(n[i], ()) for i in range(3))
    dtype = dtype_of(start)
    span = ai("elemwise_sub", cast(limit, "float64"), cast(start, "float64"))
    if dtype == "int64":  # exact beyond 2⁵³, unless it overflows
        near = ai("less", ai("abs", span), ir.full(2.0**62, (), "float64"))
        span = ai("where", near, cast(ai("elemwise_sub", limit, start), "float64"), span)
    steps = ai("ceil", ai("elemwise_div", span, cast(delta, "float64")))
    count = cast(ai("maximum", steps, ir.full(0.0, (), "float64")), "int64")
    still = ai("equal", delta, ir.full(0, (), dtype))
    count = ai("where", still, ir.full(-1, (), "int64"), count)
    length = computed_length(n, reshape(count, (1,)))
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    ramp = cast(ai("iota", shape=(length,), axis=0, dtype="int64", start=0, step=1), wide)
    moved = ai("elemwise_mul", ramp, cast(delta, wide))
    return cast(ai("elemwise_add", moved, cast(start, wide)), dtype)


@importer("NonMaxSuppression", since=10)
def non_max_suppression(n: Node) -> ir.Value:
    boxes, scores = n[0], n[1]
    batch, classes, count = shape_of(scores)
    if not n.has(2):
        return ir.full(0, (0, 3), "int64")
    most = cast(reshape(n[2], ()), "int64")
    overlap = reshape(n[3], ()) if n.has(3) else ir.full(0.0, (), "float32")
    least = reshape(n[4], ()) if n.has(4) else ir.full(float("-inf"), (), "float32")
    ranked, order = ai("top_k", scores, k=count, axis=2)
    kept = ai(
        "non_max_suppression", boxes, ranked, order, most, overlap, least,
        center=bool(n.attr("center_point_box", 0)),
    )  # fmt: skip
    if count == 0:
        raise ShapeError("no boxes")
    index = indices_of(where_true(n, _flat(kept)), (batch, classes, count))
    (length,) = shape_of(index)[1:]
    rows = ai("transpose", index, perm=(1, 0))
    box = ai("gather_nd", order, rows, batch_dims=0)
    return concat_values([sliced(rows, (0, 0), (length, 2)), reshape(box, (length, 1))], 1)
