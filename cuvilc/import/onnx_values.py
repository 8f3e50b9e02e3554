"""Values during import, and arithmetic on what is known of them at compile time.

The content of a small tensor is an object array whose elements are int, bool, float, a `Dim`
expression (a size, or 0/1 for a condition), or a `Ratio` of sizes (float arithmetic on sizes, as
Resize's scales need it).
`Unknown` is raised by arithmetic that leaves this realm; the importer then computes at run time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Expr, Shape
from cuvilc.dialect.narrow import NARROW, NARROW_FLOATS
from cuvilc.dialect.types import FLOATS, TensorType, dtype_name

MAX_KNOWN = 4096  # elements of the largest tensor whose content is followed


class Unknown(Exception):
    """The result is not expressible; not an error."""


@dataclass(frozen=True)
class Ratio:
    """num / den as a real number; den is positive and not 1."""

    num: Dim
    den: Dim


Element = Any  # int | bool | float | Expr | Ratio


class Sizes:
    """What is known of the symbols' ranges while one model is imported.

    `computed`: the symbols that no input's shape gives, in the order in which they are bound.
    """

    def __init__(self, ranges: Mapping[str, tuple[int, int | None]]) -> None:
        self.ranges = ranges
        self.computed: dict[str, Any] = {}

    def bounds(self, d: Dim) -> tuple[float, float]:
        return D.bounds(d, self.ranges)


_current: list[Sizes] = [Sizes({})]


@contextmanager
def assuming(ranges: Mapping[str, tuple[int, int | None]]) -> Iterator[None]:
    """Within, comparisons of sizes are decided by these ranges."""
    _current.append(Sizes(ranges))
    try:
        yield
    finally:
        _current.pop()


def bounds(d: Dim) -> tuple[float, float]:
    return _current[-1].bounds(d)


def minimum(a: Dim, b: Dim) -> Dim:
    lo, hi = bounds(a - b)
    return a if hi <= 0 else b if lo >= 0 else D.minimum(a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    lo, hi = bounds(a - b)
    return a if lo >= 0 else b if hi <= 0 else D.maximum(a, b)


def equal_sizes(a: Dim, b: Dim) -> Dim:
    lo, hi = bounds(a - b)
    return 1 if lo == hi == 0 else 0 if lo > 0 or hi < 0 else D.equal(a, b)


def less_size(a: Dim, b: Dim) -> Dim:
    lo, hi = bounds(a - b)
    return 1 if hi < 0 else 0 if lo >= 0 else D.less(a, b)


def ratio(num: Dim, den: Dim) -> Element:
    """num / den in the simplest form."""
    if isinstance(num, int) and isinstance(den, int):
        if den == 0:
            raise Unknown
        return num / den
    if isinstance(den, int) and den < 0:
        num, den = -num, -den
    whole = D.floordiv(num, den)
    if whole * den == num:
        return whole
    return Ratio(num, den)


def parts(x: Element) -> tuple[Dim, Dim]:
    """(num, den) of a finite element."""
    if isinstance(x, Ratio):
        return x.num, x.den
    if isinstance(x, float):
        if not math.isfinite(x):
            raise Unknown
        f = Fraction(x)
        near = f.limit_denominator(1 << 16)
        if np.float32(float(near)) == np.float32(x):  # 0.1 in a file means 1/10
            f = near
        return f.numerator, f.denominator
    return (x if isinstance(x, Expr) else int(x)), 1


def symbolic(*xs: Element) -> bool:
    return any(isinstance(x, (Expr, Ratio)) for x in xs)


def _arith(
    plain: Callable[[Any, Any], Any], exact: Callable[..., Element]
) -> Callable[[Any, Any], Element]:
    def apply(a: Element, b: Element) -> Element:
        if not symbolic(a, b):
            return plain(a, b)
        return exact(*parts(a), *parts(b))

    return apply


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        if b == 0:
            raise Unknown
        return a / b
    if b == 0:
        raise Unknown
    return int(a) // int(b) if (a < 0) == (b < 0) or a % b == 0 else -((-int(a)) // int(b))


def _modulo(a: Any, b: Any) -> Any:
    if b == 0 or isinstance(a, float):
        raise Unknown
    return a % b


def _symbolic_modulo(an: Dim, ad: Dim, bn: Dim, bd: Dim) -> Element:
    if ad != 1 or bd != 1:
        raise Unknown
    return D.mod(an, bn)


add = _arith(lambda a, b: a + b, lambda an, ad, bn, bd: ratio(an * bd + bn * ad, ad * bd))
sub = _arith(lambda a, b: a - b, lambda an, ad, bn, bd: ratio(an * bd - bn * ad, ad * bd))
mul = _arith(lambda a, b: a * b, lambda an, ad, bn, bd: ratio(an * bn, ad * bd))
div_float = _arith(_divide, lambda an, ad, bn, bd: ratio(an * bd, ad * bn))
div_int = _arith(_divide, lambda an, ad, bn, bd: D.floordiv(an * bd, ad * bn))
modulo = _arith(_modulo, _symbolic_modulo)
low = _arith(min, lambda an, ad, bn, bd: ratio(minimum(an * bd, bn * ad), ad * bd))
high = _arith(max, lambda an, ad, bn, bd: ratio(maximum(an * bd, bn * ad), ad * bd))
equal = _arith(lambda a, b: bool(a == b), lambda an, ad, bn, bd: equal_sizes(an * bd, bn * ad))
less = _arith(lambda a, b: bool(a < b), lambda an, ad, bn, bd: less_size(an * bd, bn * ad))


def floor(x: Element) -> Element:
    if isinstance(x, Ratio):
        return D.floordiv(x.num, x.den)
    return float(math.floor(x)) if isinstance(x, float) and math.isfinite(x) else x


def ceil(x: Element) -> Element:
    if isinstance(x, Ratio):
        return D.ceildiv(x.num, x.den)
    return float(math.ceil(x)) if isinstance(x, float) and math.isfinite(x) else x


def negate(x: Element) -> Element:
    return sub(0, x)


def negation(x: Element) -> Element:
    """Logical not of a bool or of a 0/1 expression."""
    return 1 - x if isinstance(x, Expr) else not x


def both(a: Element, b: Element) -> Element:
    return a * b if symbolic(a, b) else bool(a) and bool(b)


def either(a: Element, b: Element) -> Element:
    return negation(both(negation(a), negation(b)))


def choose(c: Element, a: Element, b: Element) -> Element:
    """a where c, else b."""
    if not isinstance(c, Expr):
        return a if c else b
    if isinstance(a, (float, Ratio)) or isinstance(b, (float, Ratio)):
        raise Unknown
    return D.select(c, int(a) if isinstance(a, bool) else a, int(b) if isinstance(b, bool) else b)


def cast(x: Element, dtype: str) -> Element:
    if dtype == "bool":
        return negation(equal(x, 0)) if symbolic(x) else bool(x)
    if dtype in FLOATS:
        return x if symbolic(x) else float(x)
    if isinstance(x, Ratio):
        return D.floordiv(x.num, x.den)  # sizes are not negative, so this truncates
    if isinstance(x, Expr):
        return x
    if isinstance(x, float) and not math.isfinite(x):
        raise Unknown
    return int(x)


def is_computed(*sizes: Element) -> bool:
    """Whether a size hangs on one that is known only while the model runs."""
    return any(D.symbols(d) & _current[-1].computed.keys() for d in sizes if isinstance(d, Expr))


def computed_points() -> dict[str, Any]:
    """Computed symbol -> what gives the insertion point from which on it is bound."""
    return _current[-1].computed


def is_known_dtype(dtype: str) -> bool:
    return dtype not in ("bfloat16", *NARROW)


class Val:
    """A value of the model: its type, and its content or the SSA value that holds it, or both.

    `content` is a NumPy array of the dtype (a constant) or an object array (sizes); see the module.
    """

    __slots__ = ("_ssa", "content", "dtype", "key", "shape")

    def __init__(
        self,
        shape: Shape,
        dtype: str,
        content: np.ndarray | None = None,
        ssa: ir.Value | None = None,
        key: str = "constant",
    ) -> None:
        self.shape, self.dtype, self.content, self._ssa, self.key = shape, dtype, content, ssa, key

    @staticmethod
    def of(value: ir.Value) -> Val:
        t = ir.type_of(value)
        return Val(t.shape, t.dtype, ssa=value)

    @staticmethod
    def constant(array: np.ndarray, key: str) -> Val:
        return Val(tuple(int(d) for d in array.shape), dtype_name(array.dtype), array, key=key)

    @staticmethod
    def known(content: np.ndarray, dtype: str, key: str) -> Val:
        """Of an object array; becomes a plain constant when nothing in it is symbolic."""
        if not symbolic(*content.reshape(-1)):
            flat = content.reshape(-1).tolist()  # (2⁶³ - 1, 0) would be a list of lists
            plain = np.array(flat, dtype=np.dtype(dtype)).reshape(content.shape)
            return Val.constant(plain, key)
        return Val(tuple(content.shape), dtype, content, key=key)

    @property
    def type(self) -> TensorType:
        return TensorType(self.shape, self.dtype)

    @property
    def spelled(self) -> str:
        """The type, as messages show it."""
        return str(self.type)

    @property
    def array(self) -> np.ndarray | None:
        """The constant's typed array; None for other values."""
        return None if self.content is None or self.content.dtype == object else self.content

    def elements(self) -> np.ndarray | None:
        """The content as an object array if it is known and small."""
        if self.content is None or self.content.size > MAX_KNOWN or not is_known_dtype(self.dtype):
            return None
        return self.content if self.content.dtype == object else self.content.astype(object)

    @property
    def ssa(self) -> ir.Value | None:
        return self._ssa

    def materialise(self, program: ir.Program) -> ir.Value:
        """The SSA value, built at the current insertion point if there is none yet."""
        if self._ssa is not None:
            return self._ssa
        assert self.content is not None
        return _build(program, self)

    def keep(self, value: ir.Value) -> None:
        self._ssa = value


def _build(program: ir.Program, val: Val) -> ir.Value:
    array = val.array
    if array is not None:
        exact = array.size == 1 and val.dtype not in NARROW_FLOATS  # a NaN has several codes
        if exact and not (array.dtype.kind == "i" and abs(int(array.reshape(()))) > 1 << 53):
            return ir.full(array.reshape(()).item(), val.shape, val.dtype)
        return ir.constant(program, array, val.key)
    assert val.content is not None
    flat = [parts(x) for x in val.content.reshape(-1)]
    value = _dim_tensor([n for n, _ in flat], val)
    if any(d != 1 for _, d in flat):
        value = ir.build("ai.elemwise_div", value, _dim_tensor([d for _, d in flat], val))
    return value


def _dim_tensor(sizes: list[Dim], val: Val) -> ir.Value:
    value = ir.build("ai.dim_values", values=tuple(sizes))
    if val.shape != (len(sizes),):
        value = ir.build("ai.reshape", value, shape=val.shape)
    return value if val.dtype == "int64" else ir.build("ai.cast", value, dtype=val.dtype)
