"""Functions of one operand, elementwise, without attributes; each keeps x's layout."""

from __future__ import annotations

import math

import numpy as np

from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import SIGNED, need_dtype, need_float, need_number
from cuvilc.dialect.ops.elementwise import ELEMENTWISE
from cuvilc.dialect.types import FLOATS

erf = np.vectorize(math.erf, otypes=[np.float64])


def _unary(name, doc, reference, element, *samples, dtypes=None):
    """Declare ai.NAME. element(k, v, c): v is x's element, c(number) a constant of x's dtype."""

    def shape(x):
        if dtypes:
            need_dtype(x, dtypes, "x")
        else:
            need_number(x)
        return x

    def element_facet(k, i, x):
        return element(k, x[i], lambda value: k.const(value, x.dtype))

    body = {
        "__doc__": doc,
        "__annotations__": {"x": "Tensor"},
        "shape": shape,
        "reference": lambda x: reference(x),
        "element": element_facet,
        "samples": samples,
    }
    op(f"ai.{name}", traits=ELEMENTWISE)(type(name, (), body))


def _math(name, doc, reference, *samples, low=-2.0, high=2.0):
    """Declare a float function that the notation knows under the same name."""

    def element(k, v, c):
        return getattr(k, name)(v)

    samples = samples or (
        sample("float32[5,7]", low=low, high=high),
        sample("float16[9]", low=low, high=high),
        sample("float64[2,0]", low=low, high=high),
    )
    _unary(name, doc, reference, element, *samples, dtypes=FLOATS)


_HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, -0.4, 3.6, np.inf], np.float32)
_NUMBERS = (sample("float32[3,5]"), sample("int32[7]", low=-9, high=9), sample("float32[0]"))

_unary(
    "abs", "|x|.", np.abs, lambda k, v, c: k.abs(v), *_NUMBERS, sample("uint8[3]", low=0, high=255)
)
_unary("neg", "-x.", np.negative, lambda k, v, c: -v, *_NUMBERS, dtypes=(*SIGNED, *FLOATS))
_unary(
    "sign", "-1, 0 or 1 as x is negative, zero or positive; NaN stays.", np.sign,
    lambda k, v, c: k.select(k.gt(v, c(0)), c(1), k.select(k.lt(v, c(0)), -c(1), v)),
    *_NUMBERS, dtypes=(*SIGNED, *FLOATS),
)  # fmt: skip
_math("ceil", "⌈x⌉.", np.ceil, sample(_HALVES), sample("float32[3,5]"))
_math("floor", "⌊x⌋.", np.floor, sample(_HALVES), sample("float32[3,5]"))
_unary(
    "round", "x to the nearest integer, ties to the even one.", np.rint,
    lambda k, v, c: k.round_even(v), sample(_HALVES), sample("float16[7]", low=-9, high=9),
    dtypes=FLOATS,
)  # fmt: skip
_math("sqrt", "√x; NaN below 0.", np.sqrt, low=0.0, high=9.0)
_unary(
    "reciprocal", "1 / x.", np.reciprocal, lambda k, v, c: k.div(c(1), v),
    sample("float32[3,5]", low=0.25, high=4), sample(np.array([0, -2, np.inf], np.float32)),
    dtypes=FLOATS,
)  # fmt: skip
_math("exp", "eˣ.", np.exp)
_math("log", "The natural logarithm; NaN below 0.", np.log, low=0.1, high=9.0)
_math("sin", "sin x, x in radians.", np.sin, low=-7.0, high=7.0)
_math("cos", "cos x, x in radians.", np.cos, low=-7.0, high=7.0)
_math("tan", "tan x, x in radians.", np.tan, low=-1.4, high=1.4)
_math("asin", "The angle in [-π/2, π/2] whose sine is x.", np.arcsin, low=-0.95, high=0.95)
_math("acos", "The angle in [0, π] whose cosine is x.", np.arccos, low=-0.95, high=0.95)
_math("atan", "The angle in (-π/2, π/2) whose tangent is x.", np.arctan, low=-9.0, high=9.0)
_math("sinh", "(eˣ - e⁻ˣ) / 2.", np.sinh)
_math("cosh", "(eˣ + e⁻ˣ) / 2.", np.cosh)
_math("tanh", "(eˣ - e⁻ˣ) / (eˣ + e⁻ˣ).", np.tanh, low=-5.0, high=5.0)
_math("asinh", "ln(x + √(x² + 1)).", np.arcsinh)
_math("acosh", "ln(x + √(x² - 1)), for x ≥ 1.", np.arccosh, low=1.1, high=9.0)
_math("atanh", "½ ln((1 + x) / (1 - x)), for |x| < 1.", np.arctanh, low=-0.9, high=0.9)
_math("erf", "2/√π ∫₀ˣ exp(-t²) dt.", erf, low=-3.0, high=3.0)


def sigmoid(x):
    """1 / (1 + e⁻ˣ) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def softplus(x):
    """ln(1 + eˣ) without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def softplus_value(k, v, c):
    """softplus in index notation."""
    return k.max(v, c(0)) + k.log(c(1) + k.exp(-k.abs(v)))


_math("sigmoid", "1 / (1 + e⁻ˣ).", sigmoid, low=-6.0, high=6.0)
_unary(
    "softplus", "ln(1 + eˣ).", softplus, softplus_value,
    sample("float32[3,7]", low=-6, high=6), sample(np.array([200, -200, 0], np.float32)),
    dtypes=FLOATS,
)  # fmt: skip
_unary(
    "softsign", "x / (1 + |x|).", lambda x: x / (1 + np.abs(x)),
    lambda k, v, c: k.div(v, c(1) + k.abs(v)), sample("float32[3,7]"), sample("bfloat16[5]"),
    dtypes=FLOATS,
)  # fmt: skip
_unary(
    "hard_swish", "x · min(max(x/6 + ½, 0), 1).    (Howard et al. 2019, §5.2)",
    lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    lambda k, v, c: v * k.min(k.max(v * c(1 / 6) + c(0.5), c(0)), c(1)),
    sample("float32[3,7]", low=-5, high=5), sample("float16[5]", low=-5, high=5), dtypes=FLOATS,
)  # fmt: skip
_unary(
    "mish", "x · tanh(ln(1 + eˣ)).    (Misra 2019, eq. 1)", lambda x: x * np.tanh(softplus(x)),
    lambda k, v, c: v * k.tanh(softplus_value(k, v, c)),
    sample("float32[3,7]", low=-5, high=5), sample("float32[1]"), dtypes=FLOATS,
)  # fmt: skip


@op("ai.relu", traits=ELEMENTWISE)
class Relu:
    """max(x, 0); NaN stays NaN."""

    x: Tensor

    def shape(x):
        need_number(x)
        return x

    def reference(x):
        return np.maximum(x, 0)

    def element(k, i, x):
        return k.max(x[i], k.const(0, x.dtype))

    samples = (
        sample("float32[5,7]"),
        sample("float32[0,3]"),
        sample("int8[9]", low=-128, high=127),
        sample(np.array([np.nan, -1.0, -0.0], np.float32)),
    )


@op("ai.is_nan", traits=ELEMENTWISE)
class IsNan:
    """True where x is not a number."""

    x: Tensor

    def shape(x):
        need_float(x)
        return x.with_(dtype="bool")

    def reference(x):
        return np.isnan(x)

    def element(k, i, x):
        return k.isnan(x[i])

    samples = (
        sample(np.array([np.nan, 1.0, -np.inf], np.float32)),
        sample(np.array([[np.nan], [2.0]], np.float16)),
    )


@op("ai.is_inf", traits=ELEMENTWISE)
class IsInf:
    """True where x is +∞ (if `positive`) or -∞ (if `negative`)."""

    x: Tensor
    positive: bool = True
    negative: bool = True

    def shape(x, *, positive, negative):
        need_float(x)
        return x.with_(dtype="bool")

    def reference(x, *, positive, negative):
        return (positive & np.isposinf(x)) | (negative & np.isneginf(x))

    def element(k, i, x, *, positive, negative):
        zero = k.const(0, x.dtype)
        signs = [k.gt(x[i], zero)] * positive + [k.lt(x[i], zero)] * negative
        if not signs:
            return k.const(False, "bool")
        infinite = k.isinf(x[i])
        return infinite if len(signs) == 2 else k.both(infinite, signs[0])

    samples = (
        sample(np.array([np.nan, np.inf, -np.inf, 3.0], np.float32)),
        sample(np.array([np.nan, np.inf, -np.inf, 3.0], np.float32), negative=False),
        sample(np.array([np.nan, np.inf, -np.inf, 3.0], np.float16), positive=False),
    )
