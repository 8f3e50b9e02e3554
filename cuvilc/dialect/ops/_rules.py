"""What shape rules ask again and again, each with the message for a refusal."""

from __future__ import annotations

from collections.abc import Sequence

from cuvilc.dialect.dims import Dim, Shape, broadcast, equal
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.types import FLOATS, TensorType

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED


def need(condition: bool, message: str) -> None:
    """Raise ShapeError(message) unless the condition holds."""
    if not condition:
        raise ShapeError(message)


def may_equal(a: Dim, b: Dim) -> bool:
    """False only when the two sizes surely differ, whatever the symbols are."""
    known = equal(a, b)
    return not (isinstance(known, int) and known == 0)


def need_equal(a: Dim, b: Dim, what: str) -> None:
    """Refuse sizes that surely differ; sizes known only at run time pass."""
    need(may_equal(a, b), f"{what}: {a} and {b} differ")


def need_shape(t: TensorType, shape: Sequence[Dim], what: str) -> None:
    """Refuse `t` unless its shape may be `shape`."""
    fits = t.rank == len(shape) and all(map(may_equal, t.shape, shape))
    need(fits, f"{what} must have shape {spell(shape)}, not {spell(t.shape)}")


def need_dtype(t: TensorType, dtypes: Sequence[str], what: str) -> None:
    need(t.dtype in dtypes, f"{what} must be {' or '.join(dtypes)}, not {t.dtype}")


def need_float(t: TensorType, what: str = "x") -> None:
    need_dtype(t, FLOATS, what)


def need_integer(t: TensorType, what: str) -> None:
    need(t.dtype in INTEGERS, f"{what} must be of an integer dtype, not {t.dtype}")


def need_number(t: TensorType, what: str = "x") -> None:
    need(t.dtype != "bool", f"{what} must be numbers, not bool; cast it or use a logical one")


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
    bad = [v for v in values if isinstance(v, int) and v < 0]
    need(not bad, f"{what} must not be negative: {spell(values)}")


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
        try:
            shape = broadcast(shape, t.shape)
        except ValueError as error:
            raise ShapeError(
                f"shapes {spell(shape)} and {spell(t.shape)} do not broadcast: {error}"
            ) from None
    return shape


def replaced(items: Sequence[Dim], axis: int, value: Dim) -> tuple[Dim, ...]:
    """`items` with the one at `axis` replaced."""
    return (*items[:axis], value, *items[axis + 1 :])
