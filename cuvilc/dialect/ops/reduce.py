"""Folds along axes, softmax, running sums, and the search for extremes."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import less
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import put
from cuvilc.dialect.ops._rules import (
    INTEGERS,
    need,
    need_axis,
    need_computable,
    need_dtype,
    need_float,
    need_not_negative,
    need_number,
    need_true,
    replaced,
    spell,
)
from cuvilc.dialect.types import FLOATS, TensorType


def reduced_type(x: TensorType, axes: tuple[int, ...], keepdims: bool) -> TensorType:
    """x without `axes`, or with size 1 there. Blocked channels stay if neither they nor N go."""
    for axis in axes:
        need_axis(axis, x.rank)
    need(list(axes) == sorted(set(axes)), f"axes must ascend without repetition: {axes}")
    if keepdims:
        shape = tuple(1 if j in axes else d for j, d in enumerate(x.shape))
        return TensorType(shape, x.dtype, x.layout if min(axes, default=2) >= 2 else "")
    return TensorType(tuple(d for j, d in enumerate(x.shape) if j not in axes), x.dtype)


def reduced_extents(k, x, *, axes, keepdims):
    """The `domain` facet: extents of the axes that go."""
    return tuple(x.shape[a] for a in axes)


def source_index(i, r, rank, axes, keepdims):
    """Index into x of reduction index r at output index i."""
    kept = iter(i)
    where = []
    for axis in range(rank):
        if axis in axes:
            where.append(r[axes.index(axis)])
            if keepdims:
                next(kept)
        else:
            where.append(next(kept))
    return tuple(where)


def _term(k, i, r, x, *, axes, keepdims):
    return x[source_index(i, r, len(x.shape), axes, keepdims)]


_SAMPLES = (
    sample("float32[3,5]", axes=(1,), keepdims=False),
    sample("float32[2,3,4,5]", axes=(0, 2), keepdims=True),
    sample("int32[4,3]", axes=(0,), keepdims=False, low=-9, high=9),
    sample("float16[7]", axes=(0,), keepdims=True),
    sample("float32[2,0]", axes=(1,), keepdims=False),
    sample("float32[2,3]", axes=(), keepdims=False),
)


def _reduction(name, doc, reference, combine, *samples, numbers=True):
    """Declare ai.NAME(x) {axes, keepdims}, a fold that needs no last step."""

    def shape(x, *, axes, keepdims):
        (need_number if numbers else need_computable)(x)
        return reduced_type(x, axes, keepdims)

    body = {
        "__doc__": doc,
        "__annotations__": {"x": "Tensor", "axes": "tuple", "keepdims": "bool"},
        "shape": shape,
        "reference": lambda x, *, axes, keepdims: reference(x, axes, keepdims),
        "domain": reduced_extents,
        "term": _term,
        "combine": combine,
        "samples": (*_SAMPLES, *samples),
    }
    op(f"ai.{name}")(type(name, (), body))


def least(dtype: np.dtype):
    """What max starts from: -∞, the least integer, False."""
    if dtype.kind == "f":
        return -np.inf
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def greatest(dtype: np.dtype):
    """What min starts from: ∞, the greatest integer, True."""
    if dtype.kind == "f":
        return np.inf
    return True if dtype.kind == "b" else np.iinfo(dtype).max


_BOOLS = sample("bool[3,4]", axes=(1,), keepdims=False, low=0, high=1)
_reduction(
    "reduce_sum", "Σ x over `axes`; 0 over none.",
    lambda x, axes, keep: np.sum(x, axes, keepdims=keep), "sum",
)  # fmt: skip
_reduction(
    "reduce_prod", "Π x over `axes`; 1 over none.",
    lambda x, axes, keep: np.prod(x, axes, keepdims=keep), "prod",
)  # fmt: skip
_reduction(
    "reduce_max", "The greatest x over `axes`, NaN if any is; the least of the dtype over none.",
    lambda x, axes, keep: np.max(x, axes, keepdims=keep, initial=least(x.dtype)), "max",
    _BOOLS, numbers=False,
)  # fmt: skip
_reduction(
    "reduce_min", "The least x over `axes`, NaN if any is; the greatest of the dtype over none.",
    lambda x, axes, keep: np.min(x, axes, keepdims=keep, initial=greatest(x.dtype)), "min",
    _BOOLS, numbers=False,
)  # fmt: skip


@op("ai.reduce_mean")
class ReduceMean:
    """Σ x / n over `axes`, n their element count; NaN over none.

    Integers add up in their own dtype and round toward zero; 0 over none.
    """

    x: Tensor
    axes: tuple
    keepdims: bool

    def shape(x, *, axes, keepdims):
        need_dtype(x, (*FLOATS, "int32", "int64", "uint32", "uint64"), "x")
        return reduced_type(x, axes, keepdims)

    def reference(x, *, axes, keepdims):
        total = np.sum(x, axes, dtype=x.dtype, keepdims=keepdims)
        count = np.prod([x.shape[a] for a in axes], dtype=np.int64)
        if x.dtype.kind == "f":
            return total / count
        return np.sign(total) * (np.abs(total) // max(count, 1))

    domain = reduced_extents
    term = _term

    def finish(k, i, total, x, *, axes, keepdims):
        count = 1
        for a in axes:
            count = count * x.shape[a]
        divisor = k.value_of_index(count, x.dtype)
        if x.dtype in INTEGERS:
            divisor = k.max(divisor, k.const(1, x.dtype))
        return k.div(total, divisor)

    combine = "sum"
    samples = (*_SAMPLES, sample("int64[3,9]", axes=(1,), keepdims=True, low=-99, high=0))


def _extreme_type(x, axis, keepdims):
    need_number(x)
    need_axis(axis, x.rank)
    message = f"axis {axis} of {spell(x.shape)} is empty: it has no extreme"
    need_true(less(0, x.shape[axis]), message)
    return reduced_type(x, (axis,), keepdims).with_(dtype="int64", layout="")


def _extreme_index(x, axis, keepdims, select_last, search):
    if select_last:
        found = x.shape[axis] - 1 - search(np.flip(x, axis), axis=axis, keepdims=keepdims)
    else:
        found = search(x, axis=axis, keepdims=keepdims)
    return found


_ARG_SAMPLES = (
    sample("float32[3,5]", axis=1, keepdims=False),
    sample("float16[2,7,3]", axis=1, keepdims=True),
    sample(np.array([[1, 3, 3], [2, 2, 0]], np.int32), axis=1, keepdims=False),
    sample(np.array([[1, 3, 3], [0, 2, 0]], np.int64), axis=1, keepdims=True, select_last=True),
    sample("float32[0,4]", axis=1, keepdims=False),
)


@op("ai.arg_max")
class ArgMax:
    """Index of the greatest element along `axis`: of equal ones the first, or the last."""

    x: Tensor
    axis: int
    keepdims: bool
    select_last: bool = False

    def shape(x, *, axis, keepdims, select_last):
        return _extreme_type(x, axis, keepdims)

    def reference(x, *, axis, keepdims, select_last):
        return _extreme_index(x, axis, keepdims, select_last, np.argmax)

    samples = _ARG_SAMPLES


@op("ai.arg_min")
class ArgMin:
    """Index of the least element along `axis`: of equal ones the first, or the last."""

    x: Tensor
    axis: int
    keepdims: bool
    select_last: bool = False

    def shape(x, *, axis, keepdims, select_last):
        return _extreme_type(x, axis, keepdims)

    def reference(x, *, axis, keepdims, select_last):
        return _extreme_index(x, axis, keepdims, select_last, np.argmin)

    samples = _ARG_SAMPLES


_SOFTMAX_SAMPLES = (
    sample("float32[3,5]", axis=1),
    sample("float32[2,3,4]", axis=1, low=-90, high=90),
    sample("float16[7]", axis=0),
    sample("float32[0,3]", axis=1),
)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """eˣ / Σ eˣ along `axis`, safe for large x."""
    e = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
    return e / np.sum(e, axis, keepdims=True)


@op("ai.softmax")
class Softmax:
    """eˣ / Σ eˣ along `axis`; a row of -∞ alone gives NaN."""

    x: Tensor
    axis: int

    def shape(x, *, axis):
        need_float(x)
        need_axis(axis, x.rank)
        return TensorType(x.shape, x.dtype)

    def reference(x, *, axis):
        return softmax(x, axis)

    samples = _SOFTMAX_SAMPLES


@op("ai.log_softmax")
class LogSoftmax:
    """x - ln Σ eˣ along `axis`."""

    x: Tensor
    axis: int

    def shape(x, *, axis):
        need_float(x)
        need_axis(axis, x.rank)
        return TensorType(x.shape, x.dtype)

    def reference(x, *, axis):
        shifted = x - np.max(x, axis, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))

    samples = _SOFTMAX_SAMPLES


def _running(name: str, doc: str, combine: str, start: int, cumulate, low: float) -> None:
    """Declare ai.NAME(x) {axis, exclusive, reverse}, a fold of what lies before along an axis."""

    def shape(x, *, axis, exclusive, reverse):
        need_number(x)
        need_axis(axis, x.rank)
        return TensorType(x.shape, x.dtype)

    def reference(x, *, axis, exclusive, reverse):
        total = cumulate(np.flip(x, axis) if reverse else x, axis, dtype=x.dtype)
        if exclusive:
            total = np.roll(total, 1, axis)
            total[(slice(None),) * axis + (slice(1),)] = start
        return np.flip(total, axis) if reverse else total

    def domain(k, x, *, axis, exclusive, reverse):
        return (x.shape[axis],)

    def term(k, i, r, x, *, axis, exclusive, reverse):
        here = i[axis]
        compare = {
            (False, False): k.le, (True, False): k.lt, (False, True): k.ge, (True, True): k.gt,
        }[exclusive, reverse]  # fmt: skip
        return k.select(compare(r[0], here), x[put(i, axis, r[0])], k.const(start, x.dtype))

    body = {
        "__doc__": doc, "exclusive": False, "reverse": False,
        "__annotations__": {"x": "Tensor", "axis": "int", "exclusive": "bool", "reverse": "bool"},
        "shape": shape, "reference": reference, "domain": domain, "term": term,
        "combine": combine,
        "samples": (
            sample("float32[3,5]", axis=1),
            sample("float32[3,5]", axis=0, exclusive=True),
            sample("int32[7]", axis=0, reverse=True, low=low, high=9),
            sample("int64[2,3]", axis=1, exclusive=True, reverse=True, low=low, high=9),
            sample("float32[2,0]", axis=1),
        ),
    }  # fmt: skip
    op(f"ai.{name}")(type(name, (), body))


_running(
    "cumsum", "y[i] = Σ x[j] along `axis` over j ≤ i; `exclusive`: j < i; `reverse`: from the end.",
    "sum", 0, np.cumsum, -9,
)  # fmt: skip
_running(
    "cumprod",
    "y[i] = Π x[j] along `axis` over j ≤ i; `exclusive`: j < i; `reverse`: from the end.",
    "prod", 1, np.cumprod, -3,
)  # fmt: skip


@op("ai.top_k", results=2)
class TopK:
    """The `k` greatest (or least) elements along `axis` and their int64 indices.

    They come in order, of equal ones the lower index first; `sorted = false` allows any order.
    """

    x: Tensor
    k: int
    axis: int
    largest: bool = True
    sorted: bool = True

    def shape(x, *, k, axis, largest, sorted):
        need_number(x)
        need_axis(axis, x.rank)
        need_not_negative((k,), "k")
        need_true(less(k, x.shape[axis] + 1), f"k = {k} exceeds the {x.shape[axis]} of axis {axis}")
        values = TensorType(replaced(x.shape, axis, k), x.dtype)
        return values, values.with_(dtype="int64")

    def reference(x, *, k, axis, largest, sorted):
        if largest:  # a stable ascending sort of the reversed line, read backwards
            order = np.argsort(np.flip(x, axis), axis, kind="stable")
            order = np.flip(x.shape[axis] - 1 - order, axis)
        else:
            order = np.argsort(x, axis, kind="stable")
        order = np.take(order, np.arange(k), axis)
        return np.take_along_axis(x, order, axis), order

    samples = (
        sample("float32[3,7]", k=3, axis=1),
        sample("float32[5,2]", k=2, axis=0, largest=False),
        sample(np.array([1, 3, 3, 0, 3], np.int64), k=4, axis=0),
        sample(np.array([1, 0, 3, 0, 3], np.uint8), k=4, axis=0, largest=False),
        sample("float16[2,3]", k=0, axis=1),
    )
