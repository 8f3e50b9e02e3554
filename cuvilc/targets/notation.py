"""The language `k` of lowering facets, over TIR: values, index arithmetic, and accessors of
operands.

float16 and bfloat16 are float32 in here; loads and stores convert. Narrow floats stay codes until
`k.widen` makes a float32 of one, and `k.narrow` a code (narrow.py). Transcendental functions are
polynomials that vectorise, each with the source of its formula and its error;
tests/targets/test_notation.py measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx

from cuvilc.dialect.dims import Dim
from cuvilc.dialect.dot_layout import dot_index
from cuvilc.dialect.narrow import NARROW_INTEGERS, STORED
from cuvilc.dialect.types import TensorType, channel_block, pack_parts
from cuvilc.targets.math import Math
from cuvilc.targets.narrow import Narrow
from cuvilc.targets.tir import Buffer, KernelBuilder, PrimExpr, as_expr, const

WIDE = {"float16": "float32", "bfloat16": "float32", **STORED}
FAULTS = {"index": 1, "divide": 2}


def compute_dtype(dtype: str) -> str:
    """The dtype that values of `dtype` have inside a kernel."""
    return WIDE.get(dtype, dtype)


class Accessor:
    """An operand in index notation: `x[i, j]`, an element; `x.at(i)`, one with broadcasting."""

    def __init__(
        self, t: TensorType, extents: Sequence[Any], load: Callable[[tuple[Any, ...]], Any],
        builder: KernelBuilder | None = None,
    ) -> None:  # fmt: skip
        self.type = t
        self.builder = builder
        self.shape = tuple(extents)
        self.dtype = compute_dtype(t.dtype)
        self.load = load

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) != len(self.shape):
            raise ValueError(f"{len(index)} indices for {self.type}")
        return self.load(index)

    def at(self, index: Sequence[Any], shape: Sequence[Dim] = ()) -> Any:
        """The element that NumPy's broadcasting pairs with output index `index`.

        shape: of the output, where that is known: a dimension that is like it is not broadcast.
        """
        skipped = len(index) - len(self.shape)
        mine, alike = list(index)[skipped:], shape[skipped:]
        for axis, d in enumerate(self.type.shape):
            if d == 1:
                mine[axis] = 0
            elif not (
                isinstance(d, int)
                or is_zero(mine[axis])
                or (alike and alike[axis] == d)
                or self._spans(mine[axis], d)
            ):
                mine[axis] = tirx.Select(
                    as_expr(self.shape[axis]) == const(1), const(0), as_expr(mine[axis])
                )
        return self[tuple(mine)]

    def _spans(self, index: Any, dim: Any) -> bool:
        return self.builder is not None and self.builder.spans(index, dim)


def is_zero(index: Any) -> bool:
    """Whether the index is the constant 0."""
    return isinstance(index, int) and index == 0


class Notation(Math, Narrow):
    """`k` in the facets of the dialect's operations; builds into one KernelBuilder."""

    def __init__(self, builder: KernelBuilder) -> None:
        self.builder = builder
        # What `cast` has rounded, and how it is stored, by identity: stores need not round again.
        self._rounded: dict[int, tuple[Any, str, Any]] = {}

    # ---- memory

    def flat_index(self, t: TensorType, index: Sequence[Any]) -> Any:
        """Offset in elements of a logical index, in any layout."""
        extents = [self.builder.scalar(d) for d in t.physical_shape]
        where = list(index)
        if t.layout.startswith("pack"):
            axis, block = pack_parts(t.layout)
            split = where.pop(axis)
            where = [self.floordiv(split, block), *where, self.mod(split, block)]
        elif t.layout.startswith("dot"):
            where = dot_index(t.shape, t.layout, where, self.floordiv, self.mod)
        elif t.layout:
            block = channel_block(t.layout)
            n, c, *spatial = where
            where = [n, self.floordiv(c, block), *spatial, self.mod(c, block)]
        offset: Any = 0
        for i, extent in zip(where, extents, strict=True):
            offset = offset * extent + i
        return offset

    def load(self, buffer: Buffer, offset: Any, dtype: str) -> Any:
        """The element at `offset`, converted from how it is stored."""
        return self._as_computed(self.builder.load(buffer, offset), dtype)

    def _as_computed(self, value: Any, dtype: str) -> Any:
        if dtype == "bool":
            return tirx.NE(value, const(0, "uint8"))
        if dtype == "bfloat16":
            bits = tirx.Cast("uint32", value) << const(16, "uint32")
            return tirx.reinterpret("float32", bits)
        if dtype == "float16":
            return tirx.Cast("float32", value)
        return self.own_bits(value, dtype) if dtype in STORED else value

    def store(self, buffer: Buffer, offset: Any, value: Any, dtype: str) -> None:
        """Write one element, converting (round to nearest even) to how `dtype` is stored."""
        known = self._rounded.get(id(value))
        if known is not None and known[1] == dtype:
            value = known[2]
        elif dtype == "bool":
            value = tirx.Cast("uint8", value)
        elif dtype == "bfloat16":
            value = self._bfloat16_bits(value)
        elif dtype == "float16":
            value = tirx.Cast("float16", value)
        self.builder.store(buffer, offset, value)

    def _bfloat16_bits(self, value: Any) -> Any:
        bits = self.let(tirx.reinterpret("uint32", value))
        low = (bits >> const(16, "uint32")) & const(1, "uint32")
        rounded = (bits + const(0x7FFF, "uint32") + low) >> const(16, "uint32")
        quiet = (bits >> const(16, "uint32")) | const(64, "uint32")
        is_nan = (bits & const(0x7FFFFFFF, "uint32")) > const(0x7F800000, "uint32")
        return tirx.Cast("uint16", tirx.Select(is_nan, quiet, rounded))

    def operand(self, t: TensorType, argument: int) -> Accessor:
        """Launch argument `argument` as an operand of type `t`."""
        buffer = self.builder.buffer(argument, t.dtype)
        extents = [self.builder.scalar(d) for d in t.shape]

        def load(index: Any) -> Any:
            if t.rank == 0:
                return self._as_computed(self.builder.number(argument, t.dtype), t.dtype)
            return self.load(buffer, self.flat_index(t, index), t.dtype)

        return Accessor(t, extents, load, self.builder)

    def let(self, value: Any) -> Any:
        """Name a value: it is computed once."""
        return self.builder.let(value)

    # ---- values

    def const(self, value: float, dtype: str) -> PrimExpr:
        if dtype in STORED:
            return self.code_of(value, dtype)
        dtype = compute_dtype(dtype)
        if dtype == "bool":
            return tirx.const(bool(value), "bool")
        return const(float(value) if dtype.startswith("float") else int(value), dtype)

    def cast(self, value: Any, dtype: str) -> PrimExpr:
        """Convert as C does; a narrower float format rounds to nearest even, to bool is `!= 0`.

        Narrow floats need `widen` before and `narrow` instead: their codes look like integers.
        """
        source = _dtype(value)
        if dtype == "bool":
            return value if source == "bool" else unequal(value, const(0, source))
        if dtype in NARROW_INTEGERS:
            whole = self.cast(value, "int8") if source == "bool" else value
            return self.to_narrow_integer(whole, dtype)
        if dtype in ("float16", "bfloat16"):
            return self._round(value if source == "float32" else tirx.Cast("float32", value), dtype)
        if source == "bool":
            return tirx.Cast(dtype, tirx.Select(value, const(1, "int32"), const(0, "int32")))
        return value if source == dtype else tirx.Cast(dtype, value)

    def _round(self, value: Any, dtype: str) -> PrimExpr:
        if dtype == "float16":
            stored = self.let(tirx.Cast("float16", value))
            made = self.let(tirx.Cast("float32", stored))
        else:
            stored = self.let(self._bfloat16_bits(value))
            bits = tirx.Cast("uint32", stored) << const(16, "uint32")
            made = self.let(tirx.reinterpret("float32", bits))
        self._rounded[id(made)] = (made, dtype, stored)
        return made

    def index(self, value: Any) -> Any:
        return value if isinstance(value, int) else self.cast(value, "int64")

    def value_of_index(self, index: Any, dtype: str) -> PrimExpr:
        return self.cast(as_expr(index), compute_dtype(dtype))

    def floordiv(self, a: Any, b: Any) -> Any:
        """Of indices, which are never negative."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if isinstance(b, int) and b == 1 else tirx.floordiv(as_expr(a), as_expr(b))

    def mod(self, a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if isinstance(b, int) and b == 1 else tirx.floormod(as_expr(a), as_expr(b))

    def add(self, a: Any, b: Any, rounding: str = "rtne") -> Any:
        """a + b; "rtz" corrects the result toward zero by the exact error (Knuth's TwoSum).

        LLVM contracts no sum of sums into a multiply-add, so the error is exact.
        """
        if rounding == "rtne" or not _dtype(a).startswith("float"):
            return a + b
        a, b = self.let(a), self.let(b)
        total = self.let(a + b)
        back = self.let(total - a)
        error = self.let((a - (total - back)) + (b - back))
        dtype = _dtype(a)
        zero = const(0, dtype)
        away = tirx.Or(tirx.And(total > zero, error < zero), tirx.And(total < zero, error > zero))
        bits = dtype.replace("float", "int")
        toward_zero = tirx.reinterpret(dtype, tirx.reinterpret(bits, total) - const(1, bits))
        return tirx.Select(away, toward_zero, total)

    def div(self, a: Any, b: Any) -> Any:
        """Division of floats; C's truncating division of integers (a zero divisor is a fault; the
        least integer divided by -1 must not come).
        """
        dtype = _dtype(a)
        if dtype.startswith("float"):
            if isinstance(b, tirx.FloatImm) and b.value == 0:  # which TVM would fold, and refuse to
                return a * const(math.copysign(math.inf, b.value), dtype)
            return a / b
        b = self._nonzero(b)
        wide = _quotient_dtype(dtype, b)
        if not wide:
            return tirx.truncdiv(a, b)
        return self._whole(tirx.Cast(wide, a) / tirx.Cast(wide, b), dtype)

    def floor_mod(self, a: Any, b: Any) -> Any:
        """Result has the divisor's sign, as Python's %."""
        if _dtype(a).startswith("float"):
            a, b = self.let(a), self.let(b)
            r = self.let(_fmod(a, b))
            zero = const(0, _dtype(a))
            wrong = tirx.Or(tirx.And(r < zero, b > zero), tirx.And(r > zero, b < zero))
            return tirx.Select(wrong, r + b, r)
        b = self._nonzero(b)
        wide = _quotient_dtype(_dtype(a), b)
        if not wide:
            return tirx.floormod(a, b)
        rest, divisor = self._rest(a, b, wide)
        wrong = rest * divisor < const(0.0, wide)
        return self._whole(tirx.Select(wrong, rest + divisor, rest), _dtype(a))

    def trunc_mod(self, a: Any, b: Any) -> Any:
        """Result has the dividend's sign, as C's fmod and %."""
        if _dtype(a).startswith("float"):
            return _fmod(a, b)
        b = self._nonzero(b)
        wide = _quotient_dtype(_dtype(a), b)
        if not wide:
            return tirx.truncmod(a, b)
        return self._whole(self._rest(a, b, wide)[0], _dtype(a))

    def _rest(self, a: Any, b: Any, wide: str) -> tuple[Any, Any]:
        """a - b·trunc(a / b) and b, in a float that holds both exactly."""
        dividend, divisor = self.let(tirx.Cast(wide, a)), self.let(tirx.Cast(wide, b))
        whole = tirx.trunc(dividend / divisor)
        return self.let(dividend - whole * divisor), divisor

    @staticmethod
    def _whole(value: Any, dtype: str) -> Any:
        """A float, cut off, as an integer of at most 32 bits that holds it."""
        return tirx.Cast(dtype, value if dtype == "uint32" else tirx.Cast("int32", value))

    def _nonzero(self, b: Any) -> Any:
        """A divisor that cannot trap: zero becomes 1 after the fault is recorded."""
        if isinstance(b, (int, tirx.IntImm)):
            return b
        b = self.let(b)
        nonzero = tirx.NE(b, const(0, _dtype(b)))
        self.fault_unless(nonzero, "divide")
        return tirx.Select(nonzero, b, const(1, _dtype(b)))

    def max(self, a: Any, b: Any) -> Any:
        """NaN if either is NaN."""
        return self._extreme(a, b, lambda x, y: x < y)

    def min(self, a: Any, b: Any) -> Any:
        return self._extreme(a, b, lambda x, y: x > y)

    def _extreme(self, a: Any, b: Any, loses: Callable[[Any, Any], Any]) -> Any:
        # `a < b ? b : a` gives a when either is NaN, and is one instruction; only a NaN in b needs
        # more.
        if not _dtype(a).startswith("float"):
            a, b = self.let(a), self.let(b)
            return tirx.Select(loses(a, b), b, a)
        if isinstance(a, tirx.FloatImm):
            a, b = b, a
        a, b = self.let(a), self.let(b)
        picked = tirx.Select(loses(a, b), b, a)
        if isinstance(b, tirx.FloatImm):
            return picked
        return tirx.Select(b == b, picked, b)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """Both sides are computed."""
        return tirx.Select(condition, a, b)

    def guard(self, condition: Any, load: Callable[[], Any], value: Any) -> Any:
        """load() where the condition holds, else `value`; load() is not evaluated otherwise."""
        holds = condition if isinstance(condition, bool) else self.builder.decide(condition)
        if holds is not None:
            return load() if holds else value
        constant = isinstance(value, (int, float))
        return self.builder.pick(
            condition, load, (lambda dtype: self.const(value, dtype)) if constant else value
        )

    def fold(
        self, extents: Sequence[Any], start: Sequence[Any], step: Callable[..., Sequence[Any]]
    ) -> tuple[Any, ...]:
        """`state = step(r, *state)` at every index r of loops over `extents`, from `start` on.

        In a vectorised loop the extents must be the same for every lane.
        """
        for extent in extents:
            if not isinstance(extent, int):
                self.builder.require_uniform(extent)
        state = [self.builder.variable(value) for value in start]
        with self.builder.loops(extents) as r:
            made = [self.let(value) for value in step(r, *(s.get() for s in state))]
            for variable, value in zip(state, made, strict=True):
                variable.set(value)
        return tuple(self.let(s.get()) for s in state)

    def lt(self, a: Any, b: Any) -> Any:
        return as_expr(a) < as_expr(b)

    def le(self, a: Any, b: Any) -> Any:
        return as_expr(a) <= as_expr(b)

    def gt(self, a: Any, b: Any) -> Any:
        return as_expr(a) > as_expr(b)

    def ge(self, a: Any, b: Any) -> Any:
        return as_expr(a) >= as_expr(b)

    def eq(self, a: Any, b: Any) -> Any:
        return tirx.EQ(_comparable(a), _comparable(b))

    def ne(self, a: Any, b: Any) -> Any:
        return unequal(_comparable(a), _comparable(b))

    def both(self, a: Any, b: Any) -> Any:
        return tirx.And(a, b)

    def either(self, a: Any, b: Any) -> Any:
        return tirx.Or(a, b)

    def invert(self, a: Any) -> Any:
        return tirx.Not(a)

    def bit_and(self, a: Any, b: Any) -> Any:
        return a & b

    def bit_or(self, a: Any, b: Any) -> Any:
        return a | b

    def bit_xor(self, a: Any, b: Any) -> Any:
        return a ^ b

    def bit_not(self, a: Any) -> Any:
        return ~a

    def shift_left(self, a: Any, b: Any) -> Any:
        return a << b

    def shift_right(self, a: Any, b: Any) -> Any:
        return a >> b

    def fault_unless(self, condition: Any, kind: str) -> None:
        """Record a kernel fault when the condition is false."""
        if self.builder.varies(condition):
            self.builder.fault_lanes(tirx.Not(condition), FAULTS[kind])
            return
        with self.builder.when(tirx.Not(condition)):
            self.builder.fault(FAULTS[kind])

    def clamp_index(self, i: Any, n: Any) -> Any:
        """An index that surely lies in [0, n)."""
        return tirx.max(tirx.min(as_expr(i), as_expr(n) - const(1)), const(0))


def _quotient_dtype(dtype: str, b: Any) -> str:
    """The float whose division of such integers, cut off, is theirs, and goes by vectors; "" where
    none holds them, or b is a constant, for which there are multiplications.

    A quotient a / b that is no whole number is at least 1 / |b| away from one, and the division is
    off by less: by |a / b| · 2⁻⁵³, of 16 bits and less 2⁻²⁴.
    """
    if isinstance(b, (int, tirx.IntImm)):
        return ""
    bits = tvm.DataType(dtype).bits
    return "float32" if bits <= 16 else "float64" if bits == 32 else ""


def _fmod(a: Any, b: Any) -> PrimExpr:
    """libm's, lane by lane."""
    dtype = _dtype(a)
    return tirx.call_pure_extern(dtype, "fmodf" if dtype == "float32" else "fmod", a, b)


def unequal(a: Any, b: Any) -> PrimExpr:
    """a != b, true for NaN as IEEE 754 says: TVM's own NE is false there."""
    if not _dtype(a).startswith("float"):
        return tirx.NE(a, b)
    return tirx.EQ(tirx.Cast("int8", tirx.EQ(a, b)), const(0, "int8"))


def _comparable(value: Any) -> PrimExpr:
    """LLVM compares vectors of bool only as integers."""
    value = as_expr(value)
    return tirx.Cast("int8", value) if _dtype(value) == "bool" else value


def _dtype(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64"
    return str(value.ty.dtype) if hasattr(value.ty, "dtype") else str(value.dtype)


__all__ = ["FAULTS", "Accessor", "Notation", "compute_dtype", "is_zero"]
