"""Activation functions that have parameters, elementwise; each keeps x's layout."""

from __future__ import annotations

import math

import numpy as np

from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import need, need_float, need_word
from cuvilc.dialect.ops.elementwise import ELEMENTWISE
from cuvilc.dialect.ops.unary import erf, sigmoid


def _constants(k, x):
    """c(number): a constant of x's dtype."""
    return lambda value: k.const(value, x.dtype)


@op("ai.leaky_relu", traits=ELEMENTWISE)
class LeakyRelu:
    """x where x ≥ 0, else α · x."""

    x: Tensor
    alpha: float = 0.01

    def shape(x, *, alpha):
        need_float(x)
        return x

    def reference(x, *, alpha):
        return np.where(x < 0, alpha * x, x)

    def element(k, i, x, *, alpha):
        c = _constants(k, x)
        return k.select(k.lt(x[i], c(0)), c(alpha) * x[i], x[i])

    samples = (sample("float32[5,7]"), sample("float16[9]", alpha=0.3))


@op("ai.elu", traits=ELEMENTWISE)
class Elu:
    """x where x ≥ 0, else α · (eˣ - 1).    (Clevert et al. 2016, eq. 15)"""

    x: Tensor
    alpha: float = 1.0

    def shape(x, *, alpha):
        need_float(x)
        return x

    def reference(x, *, alpha):
        return np.where(x < 0, alpha * np.expm1(x), x)

    def element(k, i, x, *, alpha):
        c = _constants(k, x)
        return k.select(k.lt(x[i], c(0)), c(alpha) * (k.exp(x[i]) - c(1)), x[i])

    samples = (sample("float32[5,7]"), sample("float32[3]", low=-90, high=90, alpha=0.5))


@op("ai.selu", traits=ELEMENTWISE)
class Selu:
    """γ · x where x > 0, else γ · α · (eˣ - 1).    (Klambauer et al. 2017, eq. 2)"""

    x: Tensor
    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875

    def shape(x, *, alpha, gamma):
        need_float(x)
        return x

    def reference(x, *, alpha, gamma):
        return gamma * np.where(x > 0, x, alpha * np.expm1(x))

    def element(k, i, x, *, alpha, gamma):
        c = _constants(k, x)
        below = c(alpha * gamma) * (k.exp(x[i]) - c(1))
        return k.select(k.gt(x[i], c(0)), c(gamma) * x[i], below)

    samples = (sample("float32[5,7]"), sample("float32[2,2]", alpha=2.0, gamma=3.0))


@op("ai.celu", traits=ELEMENTWISE)
class Celu:
    """max(x, 0) + min(0, α · (e^(x/α) - 1)).    (Barron 2017, eq. 2)"""

    x: Tensor
    alpha: float = 1.0

    def shape(x, *, alpha):
        need_float(x)
        need(alpha != 0, "alpha must not be 0")
        return x

    def reference(x, *, alpha):
        return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha))

    def element(k, i, x, *, alpha):
        c = _constants(k, x)
        below = c(alpha) * (k.exp(k.div(x[i], c(alpha))) - c(1))
        return k.max(x[i], c(0)) + k.min(c(0), below)

    samples = (sample("float32[5,7]"), sample("float32[2,2]", alpha=2.0))


@op("ai.hard_sigmoid", traits=ELEMENTWISE)
class HardSigmoid:
    """min(max(α · x + β, 0), 1)."""

    x: Tensor
    alpha: float = 0.2
    beta: float = 0.5

    def shape(x, *, alpha, beta):
        need_float(x)
        return x

    def reference(x, *, alpha, beta):
        return np.clip(alpha * x + beta, 0, 1)

    def element(k, i, x, *, alpha, beta):
        c = _constants(k, x)
        return k.min(k.max(c(alpha) * x[i] + c(beta), c(0)), c(1))

    samples = (sample("float32[5,7]", low=-5, high=5), sample("float16[3]", alpha=0.5, beta=0.25))


@op("ai.thresholded_relu", traits=ELEMENTWISE)
class ThresholdedRelu:
    """x where x > α, else 0."""

    x: Tensor
    alpha: float = 1.0

    def shape(x, *, alpha):
        need_float(x)
        return x

    def reference(x, *, alpha):
        return np.where(x > alpha, x, 0)

    def element(k, i, x, *, alpha):
        c = _constants(k, x)
        return k.select(k.gt(x[i], c(alpha)), x[i], c(0))

    samples = (sample("float32[5,7]"), sample("float32[3]", alpha=-0.5))


@op("ai.gelu", traits=ELEMENTWISE)
class Gelu:
    """x · Φ(x), Φ the normal distribution function.    (Hendrycks & Gimpel 2016, §2)

    approximate "none": ½x(1 + erf(x/√2)); "tanh": ½x(1 + tanh(√(2/π)(x + 0.044715x³))).
    """

    x: Tensor
    approximate: str = "none"

    def shape(x, *, approximate):
        need_float(x)
        need_word(approximate, ("none", "tanh"), "approximate")
        return x

    def reference(x, *, approximate):
        if approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + erf(x / math.sqrt(2)))

    def element(k, i, x, *, approximate):
        v, c = x[i], _constants(k, x)
        if approximate == "tanh":
            inner = c(math.sqrt(2 / math.pi)) * (v + c(0.044715) * v * v * v)
            return c(0.5) * v * (c(1) + k.tanh(inner))
        return c(0.5) * v * (c(1) + k.erf(v * c(math.sqrt(0.5))))

    samples = (
        sample("float32[5,7]", low=-4, high=4),
        sample("float32[5,7]", low=-4, high=4, approximate="tanh"),
        sample("float32[0,3]"),
    )


@op("ai.silu", traits=ELEMENTWISE)
class Silu:
    """x / (1 + e^(-βx)), also called swish.    (Ramachandran et al. 2017, §3)"""

    x: Tensor
    beta: float = 1.0

    def shape(x, *, beta):
        need_float(x)
        return x

    def reference(x, *, beta):
        return x * sigmoid(beta * x)

    def element(k, i, x, *, beta):
        return x[i] * k.sigmoid(k.const(beta, x.dtype) * x[i])

    samples = (sample("float32[5,7]", low=-5, high=5), sample("bfloat16[9]", beta=1.702))


@op("ai.shrink", traits=ELEMENTWISE)
class Shrink:
    """x + bias where x < -λ, x - bias where x > λ, else 0."""

    x: Tensor
    bias: float = 0.0
    lambd: float = 0.5

    def shape(x, *, bias, lambd):
        need_float(x)
        return x

    def reference(x, *, bias, lambd):
        return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))

    def element(k, i, x, *, bias, lambd):
        v, c = x[i], _constants(k, x)
        above = k.select(k.gt(v, c(lambd)), v - c(bias), c(0))
        return k.select(k.lt(v, c(-lambd)), v + c(bias), above)

    samples = (sample("float32[5,7]"), sample("float32[9]", bias=0.25, lambd=1.0))
