"""Elementwise arithmetic: one output element from the elements at the same (broadcast) index."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from cuvilc.dialect.narrow import NARROW_FLOATS, widened
from cuvilc.dialect.op import Sample, ShapeError, Tensor, op, sample
from cuvilc.dialect.ops._rules import (
    INTEGERS,
    SIGNED,
    broadcast_shapes,
    need_broadcast,
    need_computable,
    need_dtype,
    need_number,
    need_same_dtype,
    need_word,
    spell,
)
from cuvilc.dialect.types import DTYPES, TensorType

ELEMENTWISE = ("elementwise",)


def broadcast_type(*operands: TensorType, dtype: str | None = None) -> TensorType:
    """The type of an elementwise result: NumPy broadcasting, one dtype for all, their layout.

    dtype: the result's, where it is not the operands'; then these may differ in dtype.
    """
    first = operands[0]
    shape = broadcast_shapes(*operands)
    for other in operands[1:]:
        if dtype is None and other.dtype != first.dtype:
            raise ShapeError(f"dtypes {first.dtype} and {other.dtype} differ")
    layouts = {t.layout for t in operands if t.layout}
    if len(layouts) > 1:
        raise ShapeError(f"layouts {sorted(layouts)} differ")
    return TensorType(shape, dtype or first.dtype, layouts.pop() if layouts else "")


def arithmetic_type(
    lhs: TensorType, rhs: TensorType, broadcast: bool, rounding: str, roundings: tuple[str, ...]
) -> TensorType:
    """The shape rule of + - × ÷."""
    need_word(rounding, roundings, "rounding")
    if not broadcast and lhs.shape != rhs.shape:
        raise ShapeError(f"broadcast = false, but {lhs} and {rhs} differ in shape")
    need_number(lhs, "lhs")
    return broadcast_type(lhs, rhs)


@op("ai.elemwise_add", traits=ELEMENTWISE)
class ElemwiseAdd:
    """lhs + rhs.

    `broadcast = false` demands equal shapes. `rounding`: "rtne" to nearest, ties to even (IEEE
    754), or "rtz" toward zero; every target obeys it.
    """

    lhs: Tensor
    rhs: Tensor
    broadcast: bool = True
    rounding: str = "rtne"

    def shape(lhs, rhs, *, broadcast, rounding):
        return arithmetic_type(lhs, rhs, broadcast, rounding, ("rtne", "rtz"))

    def reference(lhs, rhs, *, broadcast, rounding):
        return lhs + rhs

    def element(k, i, lhs, rhs, *, broadcast, rounding):
        return k.add(lhs.at(i), rhs.at(i), rounding)

    samples = (
        sample("float32[2,3]", "float32[3]"),
        sample("int32[4]", "int32[4]"),
        sample("float32[3,4]", "float32[3,4]", rounding="rtz"),
        sample("bfloat16[5,1]", "bfloat16[1,7]"),
    )


@op("ai.elemwise_sub", traits=ELEMENTWISE)
class ElemwiseSub:
    """lhs - rhs; `broadcast` and `rounding` as in ai.elemwise_add."""

    lhs: Tensor
    rhs: Tensor
    broadcast: bool = True
    rounding: str = "rtne"

    def shape(lhs, rhs, *, broadcast, rounding):
        return arithmetic_type(lhs, rhs, broadcast, rounding, ("rtne", "rtz"))

    def reference(lhs, rhs, *, broadcast, rounding):
        return lhs - rhs

    def element(k, i, lhs, rhs, *, broadcast, rounding):
        if rounding == "rtne":
            return lhs.at(i) - rhs.at(i)
        return k.add(lhs.at(i), -rhs.at(i), rounding)

    samples = (
        sample("float32[2,3]", "float32[]"),
        sample("uint8[4]", "uint8[4]", low=0, high=255),
        sample("float32[7]", "float32[7]", rounding="rtz", broadcast=False),
        sample("float32[0,3]", "float32[3]"),
    )


@op("ai.elemwise_mul", traits=ELEMENTWISE)
class ElemwiseMul:
    """lhs · rhs, rounded to nearest ("rtne" is the only rounding it offers)."""

    lhs: Tensor
    rhs: Tensor
    broadcast: bool = True
    rounding: str = "rtne"

    def shape(lhs, rhs, *, broadcast, rounding):
        return arithmetic_type(lhs, rhs, broadcast, rounding, ("rtne",))

    def reference(lhs, rhs, *, broadcast, rounding):
        return lhs * rhs

    def element(k, i, lhs, rhs, *, broadcast, rounding):
        return lhs.at(i) * rhs.at(i)

    samples = (
        sample("float32[2,1,3]", "float32[5,1]"),
        sample("int64[6]", "int64[1]"),
        sample("float16[3,5]", "float16[3,5]"),
    )


@op("ai.elemwise_div", traits=ELEMENTWISE)
class ElemwiseDiv:
    """lhs / rhs; integers round toward zero as in C, and dividing them by 0 is a fault."""

    lhs: Tensor
    rhs: Tensor
    broadcast: bool = True
    rounding: str = "rtne"

    def shape(lhs, rhs, *, broadcast, rounding):
        return arithmetic_type(lhs, rhs, broadcast, rounding, ("rtne",))

    def reference(lhs, rhs, *, broadcast, rounding):
        if lhs.dtype.kind == "f":
            return lhs / rhs
        quotient = lhs // rhs
        inexact = (lhs % rhs != 0) & ((lhs < 0) != (rhs < 0))
        return (quotient + inexact).astype(lhs.dtype)

    def element(k, i, lhs, rhs, *, broadcast, rounding):
        if lhs.dtype not in INTEGERS:
            return k.div(lhs.at(i), rhs.at(i))
        return checked_divide(k, k.div, lhs.at(i), rhs.at(i), lhs.dtype, lambda a: -a)

    samples = (
        sample("float32[2,3]", "float32[3]", low=0.5, high=4.0),
        sample("int32[6]", np.array([3, -2, 7, -5, 1, -1], np.int32), low=-40, high=40),
        sample("uint8[2,2]", np.array([3, 7], np.uint8), low=0, high=255),
        sample(np.array([-(2**31), 2**31 - 1], np.int32), np.array(-1, np.int32)),
    )


def checked_divide(k, divide, a, b, dtype, by_minus_one):
    """divide(a, b) of integers; b = -1 is apart, since hardware traps on the least integer."""
    if dtype not in SIGNED:
        return divide(a, b)
    minus = k.eq(b, k.const(-1, dtype))
    return k.select(minus, by_minus_one(a), divide(a, k.select(minus, k.const(1, dtype), b)))


@op("ai.pow", traits=ELEMENTWISE)
class Pow:
    """x to the power y, in x's dtype; y may be of another. Integers go through float64."""

    x: Tensor
    y: Tensor

    def shape(x, y):
        need_number(x)
        need_number(y, "y")
        return broadcast_type(x, y, dtype=x.dtype)

    def reference(x, y):
        return np.power(x.astype(np.float64), y.astype(np.float64))

    def element(k, i, x, y):
        wide = "float64" if x.dtype in INTEGERS else x.dtype
        return k.cast(k.pow(k.cast(x.at(i), wide), k.cast(y.at(i), wide)), x.dtype)

    samples = (
        sample("float32[2,3]", "float32[3]", low=0.25, high=3.0),
        sample("float32[5]", np.array(2.0, np.float32)),
        sample("float32[4]", np.array([2, 3, 0, 1], np.int64)),
        sample("int32[4]", np.array([2, 3, 0, 1], np.int32), low=-5, high=5),
    )


@op("ai.maximum", traits=ELEMENTWISE)
class Maximum:
    """The larger of lhs and rhs; NaN if either is."""

    lhs: Tensor
    rhs: Tensor

    def shape(lhs, rhs):
        need_number(lhs, "lhs")
        return broadcast_type(lhs, rhs)

    def reference(lhs, rhs):
        return np.maximum(lhs, rhs)

    def element(k, i, lhs, rhs):
        return k.max(lhs.at(i), rhs.at(i))

    samples = (
        sample("float32[2,3]", "float32[2,1]"),
        sample("int8[7]", "int8[7]", low=-128, high=127),
        sample(np.array([np.nan, 1, 2], np.float32), np.array([1, np.nan, 3], np.float32)),
    )


@op("ai.minimum", traits=ELEMENTWISE)
class Minimum:
    """The smaller of lhs and rhs; NaN if either is."""

    lhs: Tensor
    rhs: Tensor

    def shape(lhs, rhs):
        need_number(lhs, "lhs")
        return broadcast_type(lhs, rhs)

    def reference(lhs, rhs):
        return np.minimum(lhs, rhs)

    def element(k, i, lhs, rhs):
        return k.min(lhs.at(i), rhs.at(i))

    samples = (
        sample("float32[2,3]", "float32[2,1]"),
        sample("uint8[7]", "uint8[7]", low=0, high=255),
        sample(np.array([np.nan, 1, 2], np.float32), np.array([1, np.nan, 3], np.float32)),
    )


@op("ai.mod", traits=ELEMENTWISE)
class Mod:
    """The remainder of lhs / rhs: with rhs's sign (Python's %), or with lhs's when `fmod` (C's).

    An integer remainder by 0 is a fault.
    """

    lhs: Tensor
    rhs: Tensor
    fmod: bool

    def shape(lhs, rhs, *, fmod):
        need_number(lhs, "lhs")
        return broadcast_type(lhs, rhs)

    def reference(lhs, rhs, *, fmod):
        return np.fmod(lhs, rhs) if fmod else np.mod(lhs, rhs)

    def element(k, i, lhs, rhs, *, fmod):
        divide = k.trunc_mod if fmod else k.floor_mod
        if lhs.dtype not in INTEGERS:
            return divide(lhs.at(i), rhs.at(i))
        zero = k.const(0, lhs.dtype)
        return checked_divide(k, divide, lhs.at(i), rhs.at(i), lhs.dtype, lambda a: zero)

    samples = (
        sample("int32[6]", np.array([3, -2, 7, -5, 4, -1], np.int32), low=-40, high=40, fmod=False),
        sample("int32[6]", np.array([3, -2, 7, -5, 4, -1], np.int32), low=-40, high=40, fmod=True),
        sample("float32[2,3]", np.array([1.5, -0.75, 2.5], np.float32), low=-9, high=9, fmod=True),
        sample("uint8[2,3]", np.array([3, 7, 9], np.uint8), low=0, high=255, fmod=False),
    )


@op("ai.where", traits=ELEMENTWISE)
class Where:
    """x where `condition` holds, else y; all three broadcast."""

    condition: Tensor
    x: Tensor
    y: Tensor

    def shape(condition, x, y):
        need_dtype(condition, ("bool",), "condition")
        need_same_dtype(x, y)
        return broadcast_type(condition, x, y, dtype=x.dtype)

    def reference(condition, x, y):
        return np.where(condition, x, y)

    def element(k, i, condition, x, y):
        return k.select(condition.at(i), x.at(i), y.at(i))

    samples = (
        sample("bool[2,3]", "float32[3]", "float32[2,1]", low=0, high=1),
        sample("bool[4]", "int64[4]", "int64[]"),
        sample("bool[1]", "bool[0,2]", "bool[2]", low=0, high=1),
    )


@op("ai.cast", traits=ELEMENTWISE)
class Cast:
    """x in another dtype: floats round to nearest and truncate to integers; bool is x ≠ 0.

    A float that no integer of `dtype` holds gives an unspecified one; beyond float16 lies inf.
    Integers wrap around. To a narrow float leads `ai.narrow`.
    """

    x: Tensor
    dtype: str

    def shape(x, *, dtype):
        need_word(dtype, tuple(d for d in DTYPES if d not in NARROW_FLOATS), "dtype")
        return x.with_(dtype=dtype)

    def reference(x, *, dtype):
        x = widened(x)
        return x != 0 if dtype == "bool" else x

    def element(k, i, x, *, dtype):
        return k.cast(k.widen(x[i], x.type.dtype), dtype)

    samples = (
        sample("float32[3,5]", dtype="int32", low=-9.0, high=9.0),
        sample(np.array([0.0, 0.25, -1.0], np.float32), dtype="bool"),
        sample("int64[7]", dtype="float32", low=-100, high=100),
        sample("bool[4]", dtype="uint8", low=0, high=1),
        sample(np.array([1e6, 0.1, -1e6], np.float32), dtype="float16"),
        sample("float32[2,0]", dtype="bfloat16"),
        sample(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fnuz), dtype="float32"),
        sample(np.arange(254, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu), dtype="float64"),
        sample("float6_e3m2fn[9]", dtype="float16", low=-28, high=28),
        sample("float32[3,7]", dtype="int4", low=-20, high=20),
        sample("int64[20]", dtype="uint2", low=-99, high=99),
        sample("int4[5,3]", dtype="float32", low=-8, high=7),
    )


@op("ai.clip", traits=ELEMENTWISE)
class Clip:
    """min(max(x, low), high); None leaves a side open. NaN stays NaN; if low > high, high."""

    x: Tensor
    low: float | None
    high: float | None

    def shape(x, *, low, high):
        need_number(x)
        return x

    def reference(x, *, low, high):
        low, high = clip_bounds(x.dtype.name, low, high)
        if low is not None:
            x = np.maximum(x, np.asarray(low, x.dtype))
        return x if high is None else np.minimum(x, np.asarray(high, x.dtype))

    def element(k, i, x, *, low, high):
        low, high = clip_bounds(x.dtype, low, high)
        y = x[i] if low is None else k.max(x[i], k.const(low, x.dtype))
        return y if high is None else k.min(y, k.const(high, x.dtype))

    samples = (  # sample() would take `low` for the range of x
        Sample(("float32[3,7]",), {"low": -1.0, "high": 1.0}),
        Sample(("float16[5]",), {"low": None, "high": 0.5}),
        Sample(("int32[9]",), {"low": -2.5, "high": None}, -9, 9),
        Sample(("uint8[9]",), {"low": -1.0, "high": 6.0}, 0, 255),
        Sample((np.array([np.nan, 1, -7], np.float32),), {"low": 0.0, "high": 6.0}),
    )


def clip_bounds(dtype: str, low: float | None, high: float | None) -> tuple:
    """The bounds as numbers of `dtype`: for integers the least range that means the same."""
    if dtype not in INTEGERS:
        return low, high
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if low is not None:
        low = least if low < least else most if low > most else math.ceil(low)
    if high is not None:
        high = most if high > most else least if high < least else math.floor(high)
    return low, high


@op("ai.prelu", traits=ELEMENTWISE)
class PRelu:
    """x where x ≥ 0, else slope · x; slope broadcasts to x's shape.    (He et al. 2015, eq. 1)"""

    x: Tensor
    slope: Tensor

    def shape(x, slope):
        need_number(x)
        need_same_dtype(x, slope)
        message = f"slope {spell(slope.shape)} must broadcast to the shape of x {spell(x.shape)}"
        need_broadcast(slope.shape, x.shape, message)
        return x

    def reference(x, slope):
        return np.where(x < 0, slope * x, x)

    def element(k, i, x, slope):
        return k.select(k.lt(x[i], k.const(0, x.dtype)), slope.at(i) * x[i], x[i])

    samples = (
        sample("float32[2,3,4]", "float32[3,1]"),
        sample("float32[5]", "float32[1]"),
        sample("int32[2,2]", "int32[]", low=-9, high=9),
    )


def compare(name: str, doc: str, reference, element, *samples, numbers: bool = True) -> None:
    """Declare a comparison: two operands of one dtype, a bool result."""

    def shape(lhs, rhs):
        need_same_dtype(lhs, rhs)
        (need_number if numbers else need_computable)(lhs, "lhs")
        return broadcast_type(lhs, rhs, dtype="bool")

    declare_binary(name, doc, shape, reference, element, samples)


def declare_binary(name: str, doc: str, shape, reference, element, samples) -> None:
    body = {
        "__doc__": doc,
        "__annotations__": {"lhs": "Tensor", "rhs": "Tensor"},
        "shape": shape,
        "reference": lambda lhs, rhs: reference(lhs, rhs),
        "element": lambda k, i, lhs, rhs: element(k, lhs.at(i), rhs.at(i)),
        "samples": samples,
    }
    op(f"ai.{name}", traits=ELEMENTWISE)(type(name, (), body))


_PAIRS = (
    sample("float32[2,3]", np.array([0.0, 0.5, -0.5], np.float32)),
    sample(np.array([1, 2, 3], np.int64), np.array([[3], [2]], np.int64)),
    sample(np.array([np.nan, 1, np.nan], np.float32), np.array([1, 1, np.nan], np.float32)),
    sample("float32[0]", "float32[1]"),
)
_BOOLS = sample("bool[3,4]", "bool[4]", low=0, high=1)
compare(
    "equal", "lhs = rhs; NaN equals nothing.", lambda a, b: a == b, lambda k, a, b: k.eq(a, b),
    *_PAIRS, _BOOLS, numbers=False,
)  # fmt: skip
compare("less", "lhs < rhs.", lambda a, b: a < b, lambda k, a, b: k.lt(a, b), *_PAIRS)
compare("less_equal", "lhs ≤ rhs.", lambda a, b: a <= b, lambda k, a, b: k.le(a, b), *_PAIRS)
compare("greater", "lhs > rhs.", lambda a, b: a > b, lambda k, a, b: k.gt(a, b), *_PAIRS)
compare("greater_equal", "lhs ≥ rhs.", lambda a, b: a >= b, lambda k, a, b: k.ge(a, b), *_PAIRS)
