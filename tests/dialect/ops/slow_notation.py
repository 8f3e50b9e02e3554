"""The notation of lowering facets in plain Python, one element at a time, and strict.

Values carry their dtype and refuse to mix; a load out of range, a negative operand of floordiv or
mod, and a fault raise. So a facet that runs here says the same as its reference, on any target.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cuvilc.dialect.narrow import NARROW_FLOATS, NARROW_INTEGERS, STORED, round_to
from cuvilc.dialect.op import OpDef
from cuvilc.dialect.ops.unary import erf, sigmoid
from cuvilc.dialect.types import TensorType, numpy_dtype


class Fault(Exception):
    """The kernel would record a fault."""


def compute_dtype(dtype: str) -> str:
    return {"float16": "float32", "bfloat16": "float32", **STORED}.get(dtype, dtype)


class V:
    """A NumPy scalar that combines only with its own dtype, or with ints if it is an index."""

    def __init__(self, value: Any, dtype: str) -> None:
        self.dtype = dtype
        with np.errstate(all="ignore"):
            self.value = np.asarray(value).astype(dtype)[()]

    def _other(self, other: Any) -> Any:
        if isinstance(other, V):
            assert other.dtype == self.dtype, f"{self.dtype} meets {other.dtype}"
            return other.value
        assert isinstance(other, int) and self.dtype == "int64", f"{self.dtype} meets {other!r}"
        return np.int64(other)

    def _apply(self, function: Any, *operands: Any) -> V:
        with np.errstate(all="ignore"):
            return V(function(*operands), self.dtype)

    def __add__(self, other: Any) -> V:
        return self._apply(np.add, self.value, self._other(other))

    def __radd__(self, other: Any) -> V:
        return self._apply(np.add, self._other(other), self.value)

    def __sub__(self, other: Any) -> V:
        return self._apply(np.subtract, self.value, self._other(other))

    def __rsub__(self, other: Any) -> V:
        return self._apply(np.subtract, self._other(other), self.value)

    def __mul__(self, other: Any) -> V:
        return self._apply(np.multiply, self.value, self._other(other))

    __rmul__ = __mul__

    def __neg__(self) -> V:
        return self._apply(np.negative, self.value)

    def __bool__(self) -> bool:
        raise TypeError("a facet must not branch on a value")


class Accessor:
    """An operand whose loads are checked."""

    def __init__(self, array: np.ndarray) -> None:
        self.type = TensorType(array.shape, array.dtype.name)
        self.array = array.view("uint8") if array.dtype.name in NARROW_FLOATS else array
        self.shape = array.shape
        self.dtype = compute_dtype(array.dtype.name)

    def __getitem__(self, index: Any) -> V:
        index = index if isinstance(index, tuple) else (index,)
        assert len(index) == len(self.shape), f"{len(index)} indices for {self.shape}"
        where = tuple(_int(i) for i in index)
        assert all(0 <= i < n for i, n in zip(where, self.shape, strict=True)), (where, self.shape)
        return V(self.array[where], self.dtype)

    def at(self, index: Sequence[Any]) -> V:
        mine = list(index)[len(index) - len(self.shape) :]
        return self[tuple(0 if n == 1 else i for i, n in zip(mine, self.shape, strict=True))]


def _int(index: Any) -> int:
    if isinstance(index, V):
        assert index.dtype == "int64", f"an index of {index.dtype}"
        return int(index.value)
    return int(index)


class SlowNotation:
    """`k`."""

    def __init__(self) -> None:
        self.guards = 0

    def const(self, value: Any, dtype: str) -> V:
        if dtype in NARROW_FLOATS:
            value = np.float32(value).astype(numpy_dtype(dtype)).view(np.uint8)
        return V(value, compute_dtype(dtype))

    def widen(self, v: V, dtype: str) -> V:
        if dtype not in NARROW_FLOATS:
            return v
        return V(np.uint8(v.value).view(numpy_dtype(dtype)), "float32")

    def narrow(self, v: V, dtype: str, saturate: bool, rounding: str) -> V:
        code = round_to(np.asarray(v.value), dtype, saturate, rounding)
        return V(code.view(np.uint8), "uint8")

    def cast(self, v: V, dtype: str) -> V:
        if dtype in ("float16", "bfloat16"):
            with np.errstate(all="ignore"):
                return V(np.asarray(v.value).astype(numpy_dtype(dtype)), "float32")
        if dtype in NARROW_INTEGERS:
            return V(np.asarray(v.value).astype(numpy_dtype(dtype)), STORED[dtype])
        return V(v.value != 0, "bool") if dtype == "bool" else V(v.value, dtype)

    def let(self, v: V) -> V:
        return v

    def index(self, v: Any) -> V:
        return V(_raw(v), "int64")

    def value_of_index(self, i: Any, dtype: str) -> V:
        return V(_int(i), compute_dtype(dtype))

    def floordiv(self, a: Any, b: Any) -> Any:
        assert _int(a) >= 0 and _int(b) > 0
        return _index_like(_int(a) // _int(b), a, b)

    def mod(self, a: Any, b: Any) -> Any:
        assert _int(a) >= 0 and _int(b) > 0
        return _index_like(_int(a) % _int(b), a, b)

    def clamp_index(self, i: Any, n: Any) -> V:
        return V(max(min(_int(i), _int(n) - 1), 0), "int64")

    def add(self, a: V, b: V, rounding: str = "rtne") -> V:
        total = a + b
        if rounding == "rtz" and a.dtype == "float32":
            exact = float(a.value) + float(b.value)
            if abs(float(total.value)) > abs(exact):
                return V(np.nextafter(total.value, np.float32(0)), a.dtype)
        return total

    def div(self, a: V, b: V) -> V:
        assert a.dtype == b.dtype
        if a.dtype.startswith("float"):
            with np.errstate(all="ignore"):
                return V(a.value / b.value, a.dtype)
        return V(self._truncated(a, b), a.dtype)

    def _truncated(self, a: V, b: V) -> int:
        n, d = int(a.value), int(b.value)
        self.fault_unless(V(d != 0, "bool"), "divide")
        quotient = abs(n) // abs(d)
        quotient = quotient if (n < 0) == (d < 0) else -quotient
        assert np.iinfo(a.dtype).min <= quotient <= np.iinfo(a.dtype).max, "overflow traps"
        return quotient

    def floor_mod(self, a: V, b: V) -> V:
        assert a.dtype == b.dtype
        return V(np.mod(a.value, b.value), a.dtype)

    def trunc_mod(self, a: V, b: V) -> V:
        assert a.dtype == b.dtype
        return V(np.fmod(a.value, b.value), a.dtype)

    def max(self, a: V, b: V) -> V:
        assert a.dtype == b.dtype
        return V(np.maximum(a.value, b.value), a.dtype)

    def min(self, a: V, b: V) -> V:
        assert a.dtype == b.dtype
        return V(np.minimum(a.value, b.value), a.dtype)

    def select(self, condition: Any, a: V, b: V) -> Any:
        assert isinstance(a, V) and isinstance(b, V) and a.dtype == b.dtype, (a, b)
        return a if _truth(condition) else b

    def guard(self, condition: Any, load: Any, value: Any) -> V:
        if not _truth(condition):
            return value
        self.guards += 1
        result = load()
        self.guards -= 1
        assert not isinstance(value, V) or value.dtype == result.dtype
        return result

    def fold(self, extents: Sequence[Any], start: Sequence[V], step: Any) -> tuple[V, ...]:
        state = tuple(start)
        for r in itertools.product(*(range(_int(n)) for n in extents)):
            made = tuple(step(r, *state))
            assert [v.dtype for v in made] == [v.dtype for v in state]
            state = made
        return state

    def both(self, a: Any, b: Any) -> V:
        return V(_truth(a) and _truth(b), "bool")

    def either(self, a: Any, b: Any) -> V:
        return V(_truth(a) or _truth(b), "bool")

    def invert(self, a: Any) -> V:
        return V(not _truth(a), "bool")

    def fault_unless(self, condition: Any, kind: str) -> None:
        assert kind in ("index", "divide")
        if not self.guards and not _truth(condition):
            raise Fault(kind)


def _raw(v: Any) -> Any:
    return v.value if isinstance(v, V) else v


def _truth(condition: Any) -> bool:
    if isinstance(condition, V):
        assert condition.dtype == "bool"
        return bool(condition.value)
    assert isinstance(condition, (bool, np.bool))
    return bool(condition)


def _index_like(result: int, a: Any, b: Any) -> Any:
    return V(result, "int64") if isinstance(a, V) or isinstance(b, V) else result


def _comparison(function: Any) -> Any:
    def compare(self: SlowNotation, a: Any, b: Any) -> V:
        if isinstance(a, V) and isinstance(b, V):
            assert a.dtype == b.dtype, f"{a.dtype} compared with {b.dtype}"
        else:  # an index against an int
            a, b = _int(a), _int(b)
        return V(function(_raw(a), _raw(b)), "bool")

    return compare


def _function(function: Any, dtype: str | None = None) -> Any:
    def apply(self: SlowNotation, *values: V) -> V:
        assert len({v.dtype for v in values}) == 1
        with np.errstate(all="ignore"):
            return V(function(*(v.value for v in values)), dtype or values[0].dtype)

    return apply


for _name, _of in {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}.items():  # fmt: skip
    setattr(SlowNotation, _name, _comparison(_of))
for _name, _of in {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh, "erf": erf, "sigmoid": sigmoid, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round_even": np.rint,
    "abs": np.abs, "pow": np.power, "bit_and": np.bitwise_and, "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor, "bit_not": np.invert, "shift_left": np.left_shift,
    "shift_right": np.right_shift,
}.items():  # fmt: skip
    setattr(SlowNotation, _name, _function(_of))
for _name, _of in {"isnan": np.isnan, "isinf": np.isinf}.items():
    setattr(SlowNotation, _name, _function(_of, "bool"))
SlowNotation.round_small = _function(np.rint, "int32")

_IDENTITY = {"sum": 0, "prod": 1, "max": -math.inf, "min": math.inf}


def _identity(combine: str, dtype: str) -> V:
    value = _IDENTITY[combine]
    if not dtype.startswith("float") and math.isinf(value):
        limits = np.iinfo(dtype) if dtype != "bool" else np.iinfo("uint8")
        value = limits.min if value < 0 else limits.max
    return V(value, dtype)


def lower(
    declared: OpDef, operands: Sequence[np.ndarray], attrs: dict[str, Any], result: TensorType
) -> np.ndarray:
    """The operation's result by its facets."""
    k = SlowNotation()
    given = declared.group([Accessor(a) for a in operands])
    out = np.zeros(result.shape, numpy_dtype(result.dtype))
    dtype = compute_dtype(result.dtype)
    for i in np.ndindex(*result.shape):
        if "element" in declared.facets:
            value = declared.facets["element"](k, i, *given, **attrs)
        else:
            value = _fold(k, declared, i, given, attrs, dtype)
        assert value.dtype == dtype, f"the element is {value.dtype}, not {dtype}"
        with np.errstate(all="ignore"):
            if result.dtype in NARROW_FLOATS:
                out.view(np.uint8)[i] = value.value
            else:
                out[i] = np.asarray(value.value).astype(out.dtype)
    return out


def _fold(k: Any, declared: OpDef, i: Any, given: Any, attrs: dict[str, Any], dtype: str) -> V:
    fold = {"sum": V.__add__, "prod": V.__mul__, "max": k.max, "min": k.min}[declared.combine]
    total = _identity(declared.combine, dtype)
    domain = declared.facets["domain"](k, *given, **attrs)
    for r in itertools.product(*(range(_int(n)) for n in domain)):
        total = fold(total, declared.facets["term"](k, i, r, *given, **attrs))
    finish = declared.facets.get("finish")
    return finish(k, i, total, *given, **attrs) if finish else total
