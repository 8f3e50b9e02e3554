"""Reads and writes at places that the model computes. A negative index counts from the end."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import less
from cuvilc.dialect.op import ShapeError, Tensor, op, sample
from cuvilc.dialect.ops._index import as_index, put, wrapped
from cuvilc.dialect.ops._rules import (
    need,
    need_axis,
    need_dtype,
    need_equal,
    need_integer,
    need_not_negative,
    need_number,
    need_rank,
    need_same_dtype,
    need_shape,
    need_true,
    need_word,
    replaced,
    spell,
)
from cuvilc.dialect.types import TensorType

REDUCTIONS = ("none", "add", "mul", "max", "min")
_INDEX_DTYPES = ("int32", "int64")


@op("ai.gather", traits=("injective",))
class Gather:
    """x with `axis` replaced by the slices that `indices` names; out of range is a fault.

    y[a, j, b] = x[a, indices[j], b], where a, j and b are index tuples.
    """

    x: Tensor
    indices: Tensor
    axis: int = 0

    def shape(x, indices, *, axis):
        need_dtype(indices, _INDEX_DTYPES, "indices")
        need_axis(axis, x.rank)
        return TensorType((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)

    def reference(x, indices, *, axis):
        return np.take(x, indices, axis)

    def element(k, i, x, indices, *, axis):
        after = axis + len(indices.shape)
        place = wrapped(k, indices[tuple(i[axis:after])], x.shape[axis])
        return x[(*i[:axis], place, *i[after:])]

    samples = (
        sample("float32[5,3]", np.array([[0, 4], [-1, 2]])),
        sample("float32[2,5,3]", np.array([3, 3, -5], np.int32), axis=1),
        sample("int64[4]", np.array(2)),
        sample("float16[2,3]", np.zeros((0,), np.int64), axis=1),
    )


@op("ai.gather_elements", traits=("injective",))
class GatherElements:
    """y[i] = x[i with i[axis] replaced by indices[i]]; y has the shape of `indices`."""

    x: Tensor
    indices: Tensor
    axis: int = 0

    def shape(x, indices, *, axis):
        need_dtype(indices, _INDEX_DTYPES, "indices")
        need_axis(axis, x.rank)
        need_rank(indices, x.rank, "indices")
        _need_within(indices, x, axis)
        return TensorType(indices.shape, x.dtype)

    def reference(x, indices, *, axis):
        return x[_along(indices, axis)]

    def element(k, i, x, indices, *, axis):
        return x[put(i, axis, wrapped(k, indices[i], x.shape[axis]))]

    samples = (
        sample("float32[3,4]", np.array([[0, -1, 2], [3, 0, 1]]), axis=1),
        sample("int32[3,2]", np.array([[2, 0]], np.int32)),
        sample("float32[2,2,2]", np.zeros((2, 0, 2), np.int64), axis=1),
    )


def _need_within(indices: TensorType, x: TensorType, axis: int) -> None:
    for j, (m, n) in enumerate(zip(indices.shape, x.shape, strict=True)):
        message = f"indices {spell(indices.shape)} exceed x {spell(x.shape)} along axis {j}"
        if j != axis:
            need_true(less(m, n + 1), message)


def _along(indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """NumPy index of every element that `indices` names along `axis`."""
    grids: list[np.ndarray] = list(np.indices(indices.shape))
    grids[axis] = indices
    return tuple(grids)


@op("ai.gather_nd", traits=("injective",))
class GatherND:
    """Each row of `indices` names a slice of x: y[b, j] = x[b, *indices[b, j]], b a batch index."""

    x: Tensor
    indices: Tensor
    batch_dims: int = 0

    def shape(x, indices, *, batch_dims):
        need_dtype(indices, _INDEX_DTYPES, "indices")
        depth = _row_length(indices)
        fits = 0 <= batch_dims < min(x.rank, indices.rank) and batch_dims + depth <= x.rank
        need(fits, f"rows of {depth} and batch_dims {batch_dims} do not fit x {spell(x.shape)}")
        for a, b in zip(x.shape[:batch_dims], indices.shape[:batch_dims], strict=True):
            need_equal(a, b, "batch sizes of x and indices")
        return TensorType((*indices.shape[:-1], *x.shape[batch_dims + depth :]), x.dtype)

    def reference(x, indices, *, batch_dims):
        depth = indices.shape[-1]
        grids = np.indices(indices.shape[:-1])[:batch_dims]
        where = (*grids, *(indices[..., j] for j in range(depth)))
        return x[where] if where else np.broadcast_to(x, (*indices.shape[:-1], *x.shape))

    def element(k, i, x, indices, *, batch_dims):
        rows = len(indices.shape) - 1
        where = list(i[:batch_dims])
        for j in range(indices.shape[-1]):
            extent = x.shape[batch_dims + j]
            where.append(wrapped(k, indices[(*i[:rows], j)], extent))
        return x[(*where, *i[rows:])]

    samples = (
        sample("float32[3,4]", np.array([[0, 1], [2, -1]])),
        sample("float32[2,3,5]", np.array([[1], [0]]), batch_dims=1),
        sample("int64[3,2]", np.array([[[2]], [[-3]]])),
        sample("float32[3,2]", np.zeros((0, 2), np.int64)),
    )


def _row_length(indices: TensorType) -> int:
    need(indices.rank >= 1, "indices must have 1 dimension or more")
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise ShapeError(f"the last size of indices must be a constant, not {depth}")
    return depth


def _accumulate(out: np.ndarray, where, updates: np.ndarray, reduction: str) -> np.ndarray:
    """Write the updates into `out`; of several at one place without reduction the last stays."""
    folds = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    if reduction == "none":
        out[where] = updates
    else:
        folds[reduction].at(out, where, updates)
    return out


def _check_scatter(x: TensorType, indices: TensorType, updates: TensorType, reduction: str) -> None:
    need_dtype(indices, _INDEX_DTYPES, "indices")
    need_same_dtype(x, updates)
    need_word(reduction, REDUCTIONS, "reduction")
    if reduction != "none":
        need_number(x)


@op("ai.scatter_elements")
class ScatterElements:
    """x with updates[i] written at i with i[axis] replaced by indices[i].

    `reduction` folds the update into what is there; with "none", the last update of a place stays.
    """

    x: Tensor
    indices: Tensor
    updates: Tensor
    axis: int = 0
    reduction: str = "none"

    def shape(x, indices, updates, *, axis, reduction):
        _check_scatter(x, indices, updates, reduction)
        need_axis(axis, x.rank)
        need_rank(indices, x.rank, "indices")
        need_shape(updates, indices.shape, "updates")
        _need_within(indices, x, axis)
        return TensorType(x.shape, x.dtype)

    def reference(x, indices, updates, *, axis, reduction):
        return _accumulate(x.copy(), _along(indices, axis), updates, reduction)

    samples = (
        sample("float32[3,4]", np.array([[0, -1], [2, 1]]), "float32[2,2]", axis=1),
        sample("float32[5]", np.array([1, 1, 4]), "float32[3]", reduction="add"),
        sample("int32[5]", np.array([1, 1, 4]), "int32[3]", reduction="mul"),
        sample("float32[3,2]", np.array([[0, 2]], np.int32), "float32[1,2]", reduction="max"),
        sample("float32[3]", np.zeros((0,), np.int64), "float32[0]", reduction="min"),
    )


@op("ai.scatter_nd")
class ScatterND:
    """x with the slice updates[j] written at x[*indices[j]] for every index tuple j."""

    x: Tensor
    indices: Tensor
    updates: Tensor
    reduction: str = "none"

    def shape(x, indices, updates, *, reduction):
        _check_scatter(x, indices, updates, reduction)
        depth = _row_length(indices)
        need(depth <= x.rank, f"indices name {depth} axes, x {spell(x.shape)} has {x.rank}")
        need_shape(updates, (*indices.shape[:-1], *x.shape[depth:]), "updates")
        return TensorType(x.shape, x.dtype)

    def reference(x, indices, updates, *, reduction):
        where = tuple(indices[..., j] for j in range(indices.shape[-1]))
        return _accumulate(x.copy(), where, updates, reduction)

    samples = (
        sample("float32[4,3]", np.array([[0], [-1]]), "float32[2,3]"),
        sample("float32[4,3]", np.array([[1, 2], [1, 2], [3, 0]]), "float32[3]", reduction="add"),
        sample("int64[6]", np.array([[[5]], [[0]]]), "int64[2,1]", reduction="min"),
        sample("float32[4]", np.zeros((0, 1), np.int64), "float32[0]", reduction="mul"),
    )


@op("ai.tensor_scatter", traits=("injective",))
class TensorScatter:
    """x with each image's `updates` written along `axis` from start[image] on.

    x and updates agree but along `axis`; start [N] int64, N x's first size. circular: what passes
    the end goes on at the beginning; else a write beyond the end is a fault.
    """

    x: Tensor
    updates: Tensor
    start: Tensor
    axis: int
    circular: bool = False

    def shape(x, updates, start, *, axis, circular):
        need_same_dtype(x, updates)
        need_dtype(start, ("int64",), "start")
        need_axis(axis, x.rank)
        need(axis > 0, "the first axis numbers the images")
        need_rank(updates, x.rank, "updates")
        need_shape(updates, replaced(x.shape, axis, updates.shape[axis]), "updates")
        message = f"updates {spell(updates.shape)} exceed x {spell(x.shape)} along axis {axis}"
        need_true(less(updates.shape[axis], x.shape[axis] + 1), message)
        need_shape(start, x.shape[:1], "start")
        return TensorType(x.shape, x.dtype)

    def reference(x, updates, start, *, axis, circular):
        y = x.copy()
        for image, first in enumerate(start):
            places = first + np.arange(updates.shape[axis])
            places = places % x.shape[axis] if circular else places
            y[image][(*[slice(None)] * (axis - 1), places)] = updates[image]
        return y

    def element(k, i, x, updates, start, *, axis, circular):
        # Nothing here has a name: that would hide that all lanes of a vector are in or out.
        first = k.index(start[i[0]])
        size, count = x.shape[axis], updates.shape[axis]
        if not circular:
            fits = k.both(k.ge(first, 0), k.le(first + count, as_index(k, size)))
            k.fault_unless(fits, "index")
        place = as_index(k, i[axis]) - first
        if circular:
            place = k.floor_mod(place, as_index(k, size))
        inside = k.both(k.ge(place, 0), k.lt(place, count))
        where = put(i, axis, k.clamp_index(place, count))
        return k.guard(inside, lambda: updates[where], x[i])

    samples = (
        sample("float32[2,5,3]", "float32[2,2,3]", np.array([0, 3]), axis=1),
        sample("float16[2,3,4]", "float16[2,3,3]", np.array([2, 3]), axis=2, circular=True),
        sample("int32[1,4]", "int32[1,4]", np.array([-6]), axis=1, circular=True, low=-9, high=9),
    )


@op("ai.one_hot", traits=("injective",))
class OneHot:
    """A new axis of size `depth` at `axis`: values[1] where it equals the index, else values[0].

    An index in [-depth, 0) counts from the end; one beyond selects nothing.
    """

    indices: Tensor
    values: Tensor
    depth: int
    axis: int

    def shape(indices, values, *, depth, axis):
        need_integer(indices, "indices")
        need_shape(values, (2,), "values")
        need_axis(axis, indices.rank + 1)
        need_not_negative((depth,), "depth")
        shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
        return TensorType(shape, values.dtype)

    def reference(indices, values, *, depth, axis):
        place = np.arange(depth).reshape(replaced((1,) * (indices.ndim + 1), axis, depth))
        index = np.expand_dims(indices, axis).astype(np.int64)
        return np.where((index == place) | (index == place - depth), values[1], values[0])

    def element(k, i, indices, values, *, depth, axis):
        index = k.index(indices[(*i[:axis], *i[axis + 1 :])])
        place = as_index(k, i[axis])
        hit = k.either(k.eq(index, place), k.eq(index, place - depth))
        return k.select(hit, values[1], values[0])

    samples = (
        sample(np.array([0, 2, -1, 7]), "float32[2]", depth=3, axis=1),
        sample(np.array([[1, 0]], np.int32), "int64[2]", depth=2, axis=0),
        sample(np.array(1, np.uint8), "bool[2]", depth=300, axis=0, low=0, high=1),
    )
