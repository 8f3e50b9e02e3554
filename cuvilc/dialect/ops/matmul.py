"""Matrix products."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import Dim, Shape, equal
from cuvilc.dialect.op import ShapeError, Tensor, op, sample
from cuvilc.dialect.ops._rules import (
    broadcast_shapes,
    need,
    need_dtype,
    need_equal,
    need_number,
    need_same_dtype,
    need_true,
    spell,
)
from cuvilc.dialect.types import TensorType


def _matrix(t: TensorType, transpose: bool, what: str) -> tuple[Shape, Dim, Dim]:
    """(batch shape, rows, columns) of an operand of two dimensions or more."""
    need(t.rank >= 1, f"{what} must have 1 dimension or more")
    *batch, rows, columns = t.shape if t.rank > 1 else (1, *t.shape)
    return tuple(batch), *((columns, rows) if transpose else (rows, columns))


def _product_shape(a: TensorType, b: TensorType, transpose_a: bool, transpose_b: bool) -> Shape:
    """NumPy's rule: a vector on the left is a row, on the right a column; its axis goes after."""
    vector_a, vector_b = a.rank == 1, b.rank == 1
    need(not (vector_a and transpose_a), "transpose_a of a vector has no meaning")
    need(not (vector_b and transpose_b), "transpose_b of a vector has no meaning")
    batch_a, m, k_a = _matrix(a, transpose_a, "a")
    batch_b, k_b, n = _matrix(b, transpose_b or vector_b, "b")
    message = f"a {spell(a.shape)} has {k_a} columns, b {spell(b.shape)} has {k_b} rows"
    need_true(equal(k_a, k_b), message)
    batch = broadcast_shapes(TensorType(batch_a), TensorType(batch_b))
    return (*batch, *(() if vector_a else (m,)), *(() if vector_b else (n,)))


def _load(x, batch, row, column, transpose):
    """The element of an operand at a batch index and a place in its matrix."""
    if transpose:
        row, column = column, row
    return x.at((*batch, row, column))


def _pair(i, r, a, b, transpose_a, transpose_b):
    """The two factors of the term at output index i and reduction index r."""
    vector_a, vector_b = len(a.shape) == 1, len(b.shape) == 1
    batch = i[: len(i) - (not vector_a) - (not vector_b)]
    row = None if vector_a else i[len(batch)]
    column = None if vector_b else i[-1]
    left = a[r] if vector_a else _load(a, batch, row, r[0], transpose_a)
    right = b[r] if vector_b else _load(b, batch, r[0], column, transpose_b)
    return left, right


@op("ai.matmul")
class MatMul:
    """a · b over the last two axes, those before broadcast; vectors as in NumPy's matmul.

    y[.., m, n] = Σ_k a[.., m, k] · b[.., k, n], where transpose_a and transpose_b swap the last two
    axes of an operand first.
    """

    a: Tensor
    b: Tensor
    transpose_a: bool = False
    transpose_b: bool = False

    def shape(a, b, *, transpose_a, transpose_b):
        need_number(a, "a")
        need_same_dtype(a, b)
        return TensorType(_product_shape(a, b, transpose_a, transpose_b), a.dtype)

    def reference(a, b, *, transpose_a, transpose_b):
        a = np.swapaxes(a, -1, -2) if transpose_a else a
        b = np.swapaxes(b, -1, -2) if transpose_b else b
        return np.matmul(a, b)

    def domain(k, a, b, *, transpose_a, transpose_b):
        return (a.shape[-2 if transpose_a else -1],)

    def term(k, i, r, a, b, *, transpose_a, transpose_b):
        left, right = _pair(i, r, a, b, transpose_a, transpose_b)
        return left * right

    combine = "sum"
    samples = (
        sample("float32[3,5]", "float32[5,7]"),
        sample("float32[2,1,3,5]", "float32[4,7,5]", transpose_b=True),
        sample("float32[5]", "float32[2,5,3]"),
        sample("int32[5,3]", "int32[5]", transpose_a=True, low=-9, high=9),
        sample("float16[4]", "float16[4]"),
        sample("float32[2,0]", "float32[0,3]"),
    )


@op("ai.matmul_integer")
class MatMulInteger:
    """(a - a_zero) · (b - b_zero) in int32, for a and b of int8 or uint8.

    a_zero is one number or one per row of a ([M] or [.., M, 1]), b_zero one or one per column of b
    ([N] or [.., 1, N]).    (Jacob et al. 2018, eq. 7)
    """

    a: Tensor
    b: Tensor
    a_zero: Tensor | None
    b_zero: Tensor | None

    def shape(a, b, a_zero, b_zero):
        need_dtype(a, ("int8", "uint8"), "a")
        need_dtype(b, ("int8", "uint8"), "b")
        shape = _product_shape(a, b, False, False)
        for t, zero, axis, what in ((a, a_zero, -2, "a_zero"), (b, b_zero, -1, "b_zero")):
            if zero is not None:
                need_dtype(zero, (t.dtype,), what)
                _check_zero(t, zero, axis, what)
        return TensorType(shape, "int32")

    def reference(a, b, a_zero, b_zero):
        return np.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))

    def domain(k, a, b, a_zero, b_zero):
        return (a.shape[-1],)

    def term(k, i, r, a, b, a_zero, b_zero):
        left, right = (k.cast(v, "int32") for v in _pair(i, r, a, b, False, False))
        vector_a, vector_b = len(a.shape) == 1, len(b.shape) == 1
        batch = i[: len(i) - (not vector_a) - (not vector_b)]
        row, column = 0 if vector_a else i[len(batch)], 0 if vector_b else i[-1]
        if a_zero is not None:
            left = left - k.cast(_zero(a_zero, batch, row, r[0], row), "int32")
        if b_zero is not None:
            right = right - k.cast(_zero(b_zero, batch, r[0], column, column), "int32")
        return left * right

    combine = "sum"
    samples = (
        sample("uint8[3,5]", "int8[5,7]", low=0, high=127),
        sample("int8[3,5]", "int8[5,7]", np.array(3, np.int8), low=-128, high=127),
        sample("uint8[2,3,5]", "uint8[5,4]", "uint8[3]", "uint8[4]", low=0, high=255),
        sample("uint8[5]", "int8[5,2]", "uint8[1]", "int8[2]", low=0, high=127),
        sample("uint8[2,3,4]", "int8[2,4,2]", "uint8[2,3,1]", "int8[2,1,2]", low=0, high=127),
    )


def _check_zero(t: TensorType, zero: TensorType, axis: int, what: str) -> None:
    if zero.rank == 0 or zero.shape == (1,):
        return
    line = t.rank > 1 and zero.rank == 1
    if line:
        need_equal(zero.shape[0], t.shape[axis], f"{what} and the axis it belongs to")
    elif zero.rank != t.rank or zero.rank == 1:
        raise ShapeError(f"{what} {spell(zero.shape)} does not fit {spell(t.shape)}")
    else:
        broadcast_shapes(zero, t)
        summed = -3 - axis
        need_equal(zero.shape[summed], 1, f"{what} along the summed axis")


def _centred(x: np.ndarray, zero: np.ndarray | None, axis: int) -> np.ndarray:
    """x - zero in int32, a line of zero points laid along `axis`."""
    wide = x.astype(np.int32)
    if zero is None:
        return wide
    if zero.ndim == 1 and zero.size != 1 and axis == -2:
        zero = zero[:, None]
    return wide - zero.astype(np.int32)


def _zero(zero, batch, row, column, mine):
    """The zero point for one element: `mine` is its place along the axis the points belong to."""
    if len(zero.shape) == 0:
        return zero[()]
    if len(zero.shape) == 1:
        return zero.at((mine,))
    return zero.at((*batch, row, column))
