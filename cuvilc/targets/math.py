"""Transcendental functions of the notation: polynomials that vectorise, in float32.

Sources: Cephes single precision (S. Moshier, netlib.org/cephes: expf logf sinf cosf asinf atanf and
the hyperbolic functions), with fused steps where the chip has them; Eigen's rational tanh and erf;
pow and the trigonometric range reduction go through float64. Each docstring says the largest error
that tests/targets/test_notation.py measures. float64 calls libm, lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from cuvilc.targets.tir import const

_MAGIC = 12582912.0  # 1.5·2²³: adding it rounds to an integer, half to even, held in the low bits
_MAGIC64 = 6755399441055744.0  # 1.5·2⁵²
_LOG2E, _LN2 = math.log2(math.e), math.log(2)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_NAN = float("nan")
# Minimax for |r| ≤ ln 2 / 2, relative, below 3.1e-9 (Remez); eʳ is exact at 0.
_EXP = (1.3814540136162928e-3, 8.36874515128785e-3, 4.166839078781414e-2, 1.6666520398696197e-1,
        4.9999993432100587e-1, 1.0, 1.0)  # fmt: skip
_LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_SINH = (2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1)
_ASINH = (2.0122003309e-2, -4.2699340972e-2, 7.4847586088e-2, -1.6666288134e-1)
_ATANH = (1.81740078349e-1, 8.24370301058e-2, 1.46691431730e-1, 1.99782164500e-1, 3.33337300303e-1)
_TANH_OVER = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11,
              5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
              4.89352455891786e-03)  # fmt: skip
_TANH_UNDER = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03,
               4.89352518554385e-03)  # fmt: skip
_ERF_OVER = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06,
             -5.69250639462346e-05, -7.34990630326855e-04, -2.95459980854025e-03,
             -1.60960333262415e-02)  # fmt: skip
_ERF_UNDER = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03,
              -7.37332916720468e-03, -1.42647390514189e-02)  # fmt: skip


class Math:
    """The part of Notation that knows functions; `self` is the notation."""

    builder: Any
    let: Any

    # ---- what machines have instructions for

    def floor(self, x: Any) -> Any:
        return tirx.floor(x)

    def ceil(self, x: Any) -> Any:
        return tirx.ceil(x)

    def trunc(self, x: Any) -> Any:
        return tirx.trunc(x)

    def round_even(self, x: Any) -> Any:
        """The nearest integer, ties to the even one. (TVM would take nearbyint lane by lane.)"""
        return tirx.call_llvm_pure_intrin(_dtype(x), "llvm.roundeven", x)

    def round_small(self, x: Any) -> Any:
        """The same of a float32 of magnitude up to 2²², as an int32: 1.5 · 2²³ added leaves no
        place for a fraction. LLVM subtracts nothing where only low bytes are kept.
        """
        return _bits(x + _f(_MAGIC)) - _i(0x4B400000)

    def sqrt(self, x: Any) -> Any:
        return tirx.sqrt(x)

    def rsqrt(self, x: Any) -> Any:
        """1 / √x, both steps rounded."""
        return self._c(1, x) / tirx.sqrt(x)

    def abs(self, x: Any) -> Any:
        dtype = _dtype(x)
        if not dtype.startswith("float"):
            if dtype.startswith("uint") or dtype == "bool":
                return x
            x = self.let(x)
            return tirx.Select(x < const(0, dtype), -x, x)
        bits = dtype.replace("float", "int")
        mask = (1 << (int(bits[3:]) - 1)) - 1
        return tirx.reinterpret(dtype, tirx.reinterpret(bits, x) & const(mask, bits))

    def isnan(self, x: Any) -> Any:
        bits = _dtype(x).replace("float", "int")
        infinity = 0x7F800000 if bits == "int32" else 0x7FF0000000000000
        return tirx.reinterpret(bits, self.abs(x)) > const(infinity, bits)

    def isinf(self, x: Any) -> Any:
        return tirx.EQ(self.abs(x), self._c(math.inf, x))

    # ---- exponentials

    def exp(self, x: Any) -> Any:
        """eˣ, float32 within 2 ulp, denormal results included."""
        if _dtype(x) == "float64":
            return tirx.exp(x)
        p, bits = self._exp_parts(self._clamp(x, -104.0, 88.8), 254)
        # 2ⁿ in two steps, of which each is a float; both have their 127 already
        half = self.let(bits >> _i(1))
        return p * _shifted(half) * _shifted(bits - half)

    def exp_below(self, x: Any) -> Any:
        """eˣ for x ≤ 0; float32 results under 2⁻¹²⁶ become 0: all that softmax needs."""
        if _dtype(x) == "float64":
            return tirx.exp(x)
        p, bits = self._exp_parts(self._clamp(x, -88.0, None), 127)
        return p * _shifted(bits)

    def _exp_parts(self, x: Any, more: int, sign: int = 1) -> tuple[Any, Any]:
        """eʳ and n + more, in the low 9 bits of an int32, for sign · x = n·ln 2 + r."""
        x = self.let(x)
        magic = _f(_MAGIC + more)
        shifted = self.let(x * _f(sign * _LOG2E) + magic)
        n = self.let(shifted - magic)
        r = self.let(n * _f(-sign * _LN2_HIGH) + x)  # with the sign of x
        r = self.let(n * _f(-sign * _LN2_LOW) + r)
        powers = range(len(_EXP) - 1, -1, -1)
        poly = [c * sign**k for c, k in zip(_EXP, powers, strict=True)]
        return self._poly(poly, r), self.let(_bits(shifted))

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + e⁻ˣ), float32 within 3 ulp down to e⁻⁸⁷, then 0."""
        if _dtype(x) == "float64":
            return self._c(1, x) / (self._c(1, x) + self.exp(-x))
        p, bits = self._exp_parts(self._clamp(x, -88.8, 88.0), 127, sign=-1)
        return _f(1) / (_f(1) + p * _shifted(bits))

    def tanh(self, x: Any) -> Any:
        """float32 within 5 ulp, without fused steps 7."""
        if _dtype(x) == "float64":
            return _libm("tanh", x)
        x = self.let(x)
        y = self.let(self._clamp(x, -7.90531110763549805, 7.90531110763549805))
        z = self.let(y * y)
        value = y * self._poly(_TANH_OVER, z) / self._poly(_TANH_UNDER, z)
        return tirx.Select(self.abs(x) < _f(4e-4), x, value)

    def erf(self, x: Any) -> Any:
        """float32 within 6 ulp, without fused steps 7."""
        if _dtype(x) == "float64":
            return _libm("erf", x)
        y = self.let(self._clamp(x, -4.0, 4.0))
        z = self.let(y * y)
        return y * (self._poly(_ERF_OVER, z) / self._poly(_ERF_UNDER, z))

    def sinh(self, x: Any) -> Any:
        """float32 within 4 ulp."""
        if _dtype(x) == "float64":
            return _libm("sinh", x)
        x = self.let(x)
        z = self.let(x * x)
        small = self._poly(_SINH, z) * z * x + x
        h = self.let(self.exp(self.abs(x) * _f(0.5)))  # its square would overflow too early
        large = _f(0.5) * h * h - _f(0.5) / (h * h)
        return tirx.Select(self.abs(x) <= _f(1), small, self._with_sign(large, x))

    def cosh(self, x: Any) -> Any:
        """float32 within 4 ulp."""
        if _dtype(x) == "float64":
            return _libm("cosh", x)
        h = self.let(self.exp(self.abs(x) * _f(0.5)))
        return _f(0.5) * h * h + _f(0.5) / (h * h)

    # ---- logarithms

    def log(self, x: Any) -> Any:
        """ln x, float32 within 2 ulp; -∞ at 0, NaN below."""
        if _dtype(x) == "float64":
            return tirx.log(x)
        x = self.let(x)
        tiny = x < _f(1.1754943508222875e-38)
        bits = self.let(_bits(tirx.Select(tiny, x * _f(8388608.0), x)))
        # mantissa in [√½, √2): the exponent is counted from √½'s bits
        e = (bits - _i(0x3F3504F3)) >> _i(23)
        e = self.let(e)
        m = self.let(tirx.reinterpret("float32", bits - (e << _i(23))) - _f(1))
        count = self.let(tirx.Cast("float32", e) - tirx.Select(tiny, _f(23), _f(0)))
        z = self.let(m * m)
        y = self.let(self._poly(_LOG, m) * m * z + count * _f(_LN2_LOW))
        value = self.let(y - _f(0.5) * z + m + count * _f(_LN2_HIGH))
        value = tirx.Select(x < _f(math.inf), value, x)  # ∞ and NaN stay
        value = tirx.Select(tirx.EQ(x, _f(0)), _f(-math.inf), value)
        return tirx.Select(x < _f(0), _f(_NAN), value)

    def log1p(self, x: Any) -> Any:
        """ln(1 + x) without loss near 0.    (Hewlett-Packard 1982: ln(u)·x / (u - 1), u = 1 + x)"""
        x = self.let(x)
        u = self.let(x + self._c(1, x))
        d = self.let(u - self._c(1, x))
        exact = tirx.Or(tirx.EQ(d, self._c(0, x)), tirx.EQ(u, self._c(math.inf, x)))
        ratio = x / tirx.Select(exact, self._c(1, x), d)
        return tirx.Select(
            tirx.EQ(d, self._c(0, x)), x, self.log(u) * tirx.Select(exact, self._c(1, x), ratio)
        )

    def asinh(self, x: Any) -> Any:
        """float32 within 4 ulp."""
        if _dtype(x) == "float64":
            return _libm("asinh", x)
        x = self.let(x)
        a = self.let(self.abs(x))
        z = self.let(x * x)
        small = self._poly(_ASINH, z) * z * x + x
        huge = a > _f(1e9)
        u = tirx.Select(huge, a, a + tirx.sqrt(z + _f(1)))
        large = self.log(u) + tirx.Select(huge, _f(_LN2), _f(0))
        return tirx.Select(a < _f(0.5), small, self._with_sign(large, x))

    def acosh(self, x: Any) -> Any:
        """float32 within 4 ulp; NaN below 1."""
        if _dtype(x) == "float64":
            return _libm("acosh", x)
        x = self.let(x)
        t = self.let(x - _f(1))
        huge = x > _f(1e9)
        near = self.let(t + tirx.sqrt(t * t + _f(2) * t))
        value = self.log1p(tirx.Select(huge, t, near))
        return value + tirx.Select(huge, _f(_LN2), _f(0))

    def atanh(self, x: Any) -> Any:
        """float32 within 4 ulp; ±∞ at ±1, NaN beyond."""
        if _dtype(x) == "float64":
            return _libm("atanh", x)
        x = self.let(x)
        z = self.let(x * x)
        small = self._poly(_ATANH, z) * z * x + x
        large = _f(0.5) * self.log((_f(1) + x) / (_f(1) - x))
        return tirx.Select(self.abs(x) < _f(0.5), small, large)

    def pow(self, x: Any, y: Any) -> Any:
        """xʸ as IEEE 754 says; float32 goes through float64 and is within 1 ulp."""
        if _dtype(x) == "float64":
            return tirx.pow(x, y)
        if isinstance(y, tirx.FloatImm):
            simple = self._small_power(x, float(y.value))
            if simple is not None:
                return simple
        return self._general_power(self.let(x), self.let(y))

    def _small_power(self, x: Any, y: float) -> Any:
        x = self.let(x)
        powers = {
            0.0: lambda: _f(1), 1.0: lambda: x, 2.0: lambda: x * x, 3.0: lambda: x * x * x,
            4.0: lambda: (x * x) * (x * x), -1.0: lambda: _f(1) / x, -2.0: lambda: _f(1) / (x * x),
        }  # fmt: skip
        return powers[y]() if y in powers else None

    def _general_power(self, x: Any, y: Any) -> Any:
        wide = self.let(tirx.Cast("float64", self.abs(x)))
        exponent = self._log2_wide(wide) * tirx.Cast("float64", y)
        exponent = self.let(self._clamp(exponent, -400.0, 400.0))
        value = self.let(tirx.Cast("float32", self._exp2_wide(exponent)))
        zero, infinite, one = _f(0), _f(math.inf), _f(1)
        a = self.let(self.abs(x))
        grows, up = a > one, y > zero
        edge = tirx.Select(tirx.Select(grows, up, tirx.Not(up)), infinite, zero)
        ends = tirx.Or(
            tirx.Or(tirx.EQ(a, zero), tirx.EQ(a, infinite)), tirx.EQ(self.abs(y), infinite)
        )
        value = self.let(tirx.Select(ends, edge, value))
        value = tirx.Select(tirx.And(tirx.EQ(self.abs(y), infinite), tirx.EQ(a, one)), one, value)
        whole = tirx.EQ(tirx.floor(y), y)
        half = self.let(y * _f(0.5))
        odd = tirx.And(whole, tirx.floor(half) < half)
        negative = _bits(x) < _i(0)
        finite = tirx.And(a < infinite, a > zero)
        root = tirx.And(
            tirx.And(negative, finite), tirx.And(tirx.Not(whole), self.abs(y) < infinite)
        )
        value = self.let(value)
        value = tirx.Select(tirx.And(negative, odd), -value, tirx.Select(root, _f(_NAN), value))
        value = self.let(tirx.Select(tirx.Or(self.isnan(x), self.isnan(y)), x + y, value))
        return tirx.Select(tirx.Or(tirx.EQ(y, zero), tirx.EQ(x, one)), one, value)

    def _log2_wide(self, x: Any) -> Any:
        """log₂ of a positive float64 that was a float32, within 2⁻⁴⁰: the series of artanh."""
        bits = self.let(tirx.reinterpret("int64", x))
        e = tirx.Cast("int32", (bits - const(0x3FE6A09E667F3BCD)) >> const(52))
        e = self.let(e)
        m = tirx.reinterpret("float64", bits - (tirx.Cast("int64", e) << const(52)))
        m = self.let(m)
        s = self.let((m - _d(1)) / (m + _d(1)))
        z = self.let(s * s)
        series = self._poly([2 / math.log(2) / (2 * k + 1) for k in range(7, -1, -1)], z)
        return tirx.Cast("float64", e) + s * series

    def _exp2_wide(self, x: Any) -> Any:
        shifted = self.let(x + _d(_MAGIC64))
        f = self.let(x - (shifted - _d(_MAGIC64)))
        p = self._poly([_LN2**k / math.factorial(k) for k in range(9, -1, -1)], f)
        n = (tirx.reinterpret("int64", shifted) + const(1023)) << const(52)
        return p * tirx.reinterpret("float64", n)

    # ---- angles

    def sin(self, x: Any) -> Any:
        """float32 within 2 ulp for |x| < 2³⁰; beyond, digits are lost."""
        if _dtype(x) == "float64":
            return _libm("sin", x)
        r, quadrant = self._reduce(x)
        return self._wave(r, quadrant)

    def cos(self, x: Any) -> Any:
        """float32 within 2 ulp for |x| < 2³⁰; beyond, digits are lost."""
        if _dtype(x) == "float64":
            return _libm("cos", x)
        r, quadrant = self._reduce(x)
        return self._wave(r, self.let(quadrant + _i(1)))

    def tan(self, x: Any) -> Any:
        """sin x / cos x: float32 within 4 ulp for |x| < 2³⁰."""
        if _dtype(x) == "float64":
            return _libm("tan", x)
        r, quadrant = self._reduce(x)
        return self._wave(r, quadrant) / self._wave(r, self.let(quadrant + _i(1)))

    def _reduce(self, x: Any) -> tuple[Any, Any]:
        """x minus the nearest multiple of π/2, and the multiple modulo 2³²."""
        wide = self.let(tirx.Cast("float64", x))
        shifted = self.let(wide * _d(2 / math.pi) + _d(_MAGIC64))
        n = self.let(shifted - _d(_MAGIC64))
        r = n * _d(-1.5707963267341256) + wide  # 33 bits of π/2: the product is exact
        r = n * _d(-6.077100506506192e-11) + r
        quadrant = tirx.Cast("int32", tirx.reinterpret("int64", shifted))
        # Where digits are lost r may be anything: keep sine and cosine within -1 and 1 (NaN stays).
        r = self.let(tirx.Cast("float32", r))
        r = self.let(tirx.Select(r > _f(0.8), _f(0.8), r))
        return self.let(tirx.Select(r < _f(-0.8), _f(-0.8), r)), self.let(quadrant)

    def _wave(self, r: Any, quadrant: Any) -> Any:
        z = self.let(r * r)
        sine = self._poly(_SIN, z) * z * r + r
        cosine = self._poly(_COS, z) * (z * z) - _f(0.5) * z + _f(1)
        value = tirx.Select(tirx.EQ(quadrant & _i(1), _i(0)), sine, cosine)
        sign = (quadrant & _i(2)) << _i(30)
        return tirx.reinterpret("float32", _bits(value) ^ sign)

    def asin(self, x: Any) -> Any:
        """float32 within 4 ulp; NaN beyond ±1."""
        if _dtype(x) == "float64":
            return _libm("asin", x)
        x = self.let(x)
        a = self.let(self.abs(x))
        p, large = self._arc(a)
        value = tirx.Select(large, _f(math.pi / 2) - _f(2) * p, p)
        return self._with_sign(value, x)

    def acos(self, x: Any) -> Any:
        """float32 within 4 ulp; NaN beyond ±1."""
        if _dtype(x) == "float64":
            return _libm("acos", x)
        x = self.let(x)
        p, large = self._arc(self.let(self.abs(x)))
        twice = self.let(_f(2) * p)
        ends = tirx.Select(x < _f(0), _f(math.pi) - twice, twice)
        return tirx.Select(large, ends, _f(math.pi / 2) - self._with_sign(p, x))

    def _arc(self, a: Any) -> tuple[Any, Any]:
        """asin a for a ≤ ½, else asin √((1 - a)/2); and whether it is the latter."""
        large = a > _f(0.5)
        z = self.let(tirx.Select(large, _f(0.5) * (_f(1) - a), a * a))
        s = self.let(tirx.Select(large, tirx.sqrt(z), a))
        return self.let(self._poly(_ASIN, z) * z * s + s), large

    def atan(self, x: Any) -> Any:
        """float32 within 3 ulp."""
        if _dtype(x) == "float64":
            return _libm("atan", x)
        x = self.let(x)
        a = self.let(self.abs(x))
        high, middle = a > _f(2.414213562373095), a > _f(0.4142135623730950)
        base = tirx.Select(high, _f(math.pi / 2), tirx.Select(middle, _f(math.pi / 4), _f(0)))
        over = tirx.Select(high, _f(-1), tirx.Select(middle, a - _f(1), a))
        under = tirx.Select(high, a, tirx.Select(middle, a + _f(1), _f(1)))
        t = self.let(over / under)
        z = self.let(t * t)
        return self._with_sign(base + (self._poly(_ATAN, z) * z * t + t), x)

    # ---- pieces

    def _poly(self, coefficients: Sequence[float], x: Any) -> Any:
        """Horner's rule, highest power first."""
        total = self._c(coefficients[0], x)
        for c in coefficients[1:]:
            total = total * x + self._c(c, x)
        return self.let(total)

    def _clamp(self, x: Any, low: float | None, high: float | None) -> Any:
        """NaN stays."""
        x = self.let(x)
        if low is not None:
            x = self.let(tirx.Select(x < self._c(low, x), self._c(low, x), x))
        if high is not None:
            x = self.let(tirx.Select(x > self._c(high, x), self._c(high, x), x))
        return x

    def _with_sign(self, magnitude: Any, x: Any) -> Any:
        sign = _bits(x) & const(-(1 << 31), "int32")
        return tirx.reinterpret("float32", _bits(magnitude) | sign)

    @staticmethod
    def _c(value: float, x: Any) -> Any:
        return const(float(value), _dtype(x))


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


def _f(value: float) -> Any:
    return const(float(value), "float32")


def _d(value: float) -> Any:
    return const(float(value), "float64")


def _i(value: int) -> Any:
    return const(value, "int32")


def _bits(x: Any) -> Any:
    return tirx.reinterpret("int32", x)


def _shifted(n: Any) -> Any:
    """2ⁿ⁻¹²⁷ by the low 9 bits of n, from 1 to 254; 0 for 0, infinity for 255."""
    return tirx.reinterpret("float32", n << _i(23))


def _libm(name: str, x: Any) -> Any:
    """libm's function on each lane."""
    return tirx.call_pure_extern("float64", name, x)
