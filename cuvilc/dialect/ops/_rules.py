"""What shape rules ask again and again, each with the message for a refusal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from cuvilc.dialect.dims import Dim, Shape, broadcast, equal, less, maximum
from cuvilc.dialect.narrow import NARROW
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.types import FLOATS, TensorType

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED


def need(condition: bool, message: str) -> None:
    """Raise ShapeError(message) unless the condition holds."""
    if not condition:
        raise ShapeError(message)


# What the rules that run now leave to the run time: condition -> message. None: nobody asks.
_LEFT_OPEN: ContextVar[dict[Dim, str] | None] = ContextVar("left_open", default=None)


@contextmanager
def left_open() -> Iterator[dict[Dim, str]]:
    """The conditions that shape rules run in this block could not decide: each must be 1 when the
    model runs, else its message holds.
    """
    found: dict[Dim, str] = {}
    token = _LEFT_OPEN.set(found)
    try:
        yield found
    finally:
        _LEFT_OPEN.reset(token)


def need_true(condition: Dim, message: str) -> None:
    """Refuse a condition on sizes that is surely 0; one known only at run time is left open."""
    if isinstance(condition, int):
        need(condition != 0, message)
    elif (found := _LEFT_OPEN.get()) is not None:
        found.setdefault(condition, message)


def need_equal(a: Dim, b: Dim, what: str) -> None:
    """Refuse sizes that differ."""
    need_true(equal(a, b), f"{what}: {a} and {b} differ")


def need_same_sizes(found: Sequence[Dim], wanted: Sequence[Dim], message: str) -> None:
    """Refuse a shape that is not the one wanted."""
    need(len(found) == len(wanted), message)
    for a, b in zip(found, wanted, strict=True):
        need_true(equal(a, b), message)


def need_shape(t: TensorType, shape: Sequence[Dim], what: str) -> None:
    """Refuse `t` unless its shape is `shape`."""
    need_same_sizes(t.shape, shape, f"{what} must have shape {spell(shape)}, not {spell(t.shape)}")


def need_dtype(t: TensorType, dtypes: Sequence[str], what: str) -> None:
    need(t.dtype in dtypes, f"{what} must be {' or '.join(dtypes)}, not {t.dtype}")


def need_float(t: TensorType, what: str = "x") -> None:
    need_dtype(t, FLOATS, what)


def need_integer(t: TensorType, what: str) -> None:
    need(t.dtype in INTEGERS, f"{what} must be of an integer dtype, not {t.dtype}")


def need_computable(t: TensorType, what: str = "x") -> None:
    """Refuse narrow dtypes: a kernel has their codes, which say nothing of order or equality."""
    need(t.dtype not in NARROW, f"{what} of {t.dtype} can be moved, but not computed with: cast it")


def need_number(t: TensorType, what: str = "x") -> None:
    need(t.dtype != "bool", f"{what} must be numbers, not bool; cast it or use a logical one")
    need_computable(t, what)


def need_same_dtype(*types: TensorType) -> None:
    first = types[0].dtype
    for t in types[1:]:
        need(t.dtype == first, f"dtypes {first} and {t.dtype} differ")


def need_rank(t: TensorType, rank: int, what: str) -> None:
    need(t.rank == rank, f"{what} must have {rank} dimensions, not {spell(t.shape)}")


def need_axis(axis: int, rank: int, what: str = "axis") -> None:
    need(0 <= axis < rank, f"{what} {axis} is not in 0..{rank - 1} (a negative one is normalised)")


def need_length(values: Sequence[object], length: int, what: str) -> None:
    need(len(values) == length, f"{what} needs {length} entries, not {len(values)}: {values}")


def need_word(value: str, words: Sequence[str], what: str) -> None:
    listed = ", ".join(repr(w) for w in words)
    need(value in words, f"{what} must be one of {listed}, not {value!r}")


def need_not_negative(values: Sequence[Dim], what: str) -> None:
    for value in values:
        need_true(less(-1, value), f"{what} must not be negative: {spell(values)}")


def need_positive(values: Sequence[Dim], what: str) -> None:
    bad = [v for v in values if isinstance(v, int) and v < 1]
    need(not bad, f"{what} must be 1 or more: {spell(values)}")


def spell(shape: Sequence[object]) -> str:
    """A shape as messages write it: [batch,3,224]."""
    return f"[{','.join(map(str, shape))}]"


def broadcast_shapes(*types: TensorType) -> Shape:
    """NumPy's broadcast of the operands' shapes. Raises ShapeError that names the two at fault."""
    shape: Shape = types[0].shape
    for t in types[1:]:
        message = f"shapes {spell(shape)} and {spell(t.shape)} do not broadcast"
        try:
            wide = broadcast(shape, t.shape)
        except ValueError as error:
            raise ShapeError(f"{message}: {error}") from None
        for a, b in zip(reversed(shape), reversed(t.shape), strict=False):
            need_true(maximum(equal(a, b), maximum(equal(a, 1), equal(b, 1))), message)
        shape = wide
    return shape


def need_broadcast(shape: Sequence[Dim], target: Sequence[Dim], message: str) -> None:
    """Refuse a shape that does not broadcast to `target`."""
    need(len(shape) <= len(target), message)
    for d, n in zip(reversed(shape), reversed(target), strict=False):
        need_true(maximum(equal(d, 1), equal(d, n)), message)


def replaced(items: Sequence[Dim], axis: int, value: Dim) -> tuple[Dim, ...]:
    """`items` with the one at `axis` replaced."""
    return (*items[:axis], value, *items[axis + 1 :])
