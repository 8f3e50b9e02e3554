"""Steps of optimisers as models carry them: elementwise on each parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError

from ._table import importer, only
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar

TRAINING = "ai.onnx.preview.training"


def _add(a: ir.Value, b: ir.Value) -> ir.Value:
    return ai("elemwise_add", a, b)


def _sub(a: ir.Value, b: ir.Value) -> ir.Value:
    return ai("elemwise_sub", a, b)


def _mul(a: ir.Value, b: ir.Value | float) -> ir.Value:
    return ai("elemwise_mul", a, scalar(b, a) if isinstance(b, float) else b)


def _div(a: ir.Value, b: ir.Value) -> ir.Value:
    return ai("elemwise_div", a, b)


def _each(n: Node, states: int, step: Callable[..., Sequence[ir.Value]]) -> list[ir.Value]:
    """step(parameter, gradient, *states) for each parameter; results in the operator's order."""
    count, left = divmod(len(n) - 2, states + 2)
    if left or count < 1:
        raise ShapeError(f"{len(n) - 2} tensors are not {states + 2} for each parameter")
    groups = [[n[2 + k * count + i] for k in range(states + 2)] for i in range(count)]
    made = [step(*group) for group in groups]
    return [results[k] for k in range(states + 1) for results in made]


def _rate(n: Node, like: ir.Value) -> ir.Value:
    return reshape(cast(n[0], dtype_of(like)), ())


def _count(n: Node, like: ir.Value) -> ir.Value:
    """The number of updates so far."""
    return reshape(cast(n[1], dtype_of(like)), ())


def _regular(n: Node, x: ir.Value, g: ir.Value) -> ir.Value:
    """The gradient plus that of the norm."""
    coefficient = float(n.attr("norm_coefficient", 0.0))
    return g if coefficient == 0 else _add(_mul(x, coefficient), g)


@importer("Adagrad", domain=TRAINING)
def adagrad(n: Node) -> list[ir.Value]:
    """x - r / (1 + t·decay) · g / (√(h + g²) + ε)    (Duchi et al. 2011)"""

    def step(x: ir.Value, g: ir.Value, h: ir.Value) -> Sequence[ir.Value]:
        decay = _mul(_count(n, x), float(n.attr("decay_factor", 0.0)))
        rate = _div(_rate(n, x), _add(decay, scalar(1.0, x)))
        g = _regular(n, x, g)
        h = _add(h, _mul(g, g))
        root = _add(ai("sqrt", h), scalar(n.attr("epsilon", 1e-6), x))
        return _sub(x, _div(_mul(rate, g), root)), h

    return _each(n, 1, step)


@importer("Adam", domain=TRAINING)
def adam(n: Node) -> list[ir.Value]:
    """x - r' · v / (√h + ε), v and h averages of g and g², r' corrected for their start at 0.

    (Kingma & Ba 2015, algorithm 1, with the correction in the rate: §2)
    """
    alpha, beta = float(n.attr("alpha", 0.9)), float(n.attr("beta", 0.999))

    def step(x: ir.Value, g: ir.Value, v: ir.Value, h: ir.Value) -> Sequence[ir.Value]:
        g = _regular(n, x, g)
        v = _add(_mul(v, alpha), _mul(g, 1.0 - alpha))
        h = _add(_mul(h, beta), _mul(_mul(g, g), 1.0 - beta))
        root = _add(ai("sqrt", h), scalar(n.attr("epsilon", 1e-6), x))
        x = _sub(x, _mul(_corrected(n, x, alpha, beta), _div(v, root)))
        return _mul(x, 1.0 - n.attr("norm_coefficient_post", 0.0)), v, h

    return _each(n, 2, step)


def _corrected(n: Node, x: ir.Value, alpha: float, beta: float) -> ir.Value:
    """r · √(1 - βᵗ) / (1 - αᵗ); r itself before the first update."""
    rate, t = _rate(n, x), _count(n, x)
    one = scalar(1.0, x)
    first, second = (_sub(one, ai("pow", scalar(c, x), t)) for c in (alpha, beta))
    begun = ai("greater", t, scalar(0.0, x))
    return ai("where", begun, _div(_mul(rate, ai("sqrt", second)), first), rate)


@importer("Momentum", domain=TRAINING, refuse=only(mode=("standard", "nesterov")))
def momentum(n: Node) -> list[ir.Value]:
    """x - r·v, v = α·v + β·g (β = 1 at first); nesterov: x - r·(g + α·v).

    (Sutskever et al. 2013, §2)
    """
    alpha, beta = float(n.attr("alpha")), float(n.attr("beta"))

    def step(x: ir.Value, g: ir.Value, v: ir.Value) -> Sequence[ir.Value]:
        g = _regular(n, x, g)
        begun = ai("greater", _count(n, x), scalar(0.0, x))
        weight = ai("where", begun, scalar(beta, x), scalar(1.0, x))
        v = _add(_mul(v, alpha), _mul(g, weight))
        change = _add(g, _mul(v, alpha)) if n.attr("mode") == "nesterov" else v
        return _sub(x, _mul(change, _rate(n, x))), v

    return _each(n, 1, step)


def batch_norm_training(n: Node, x: ir.Value, eps: float) -> list[Any]:
    """Normalised by its own mean and variance: [y, running mean and variance, own ones].

    The statistics are computed in float32 at least; the variance is that of the population.
    """
    rank, dtype = len(n.shape(0)), "float64" if n.type(0).dtype == "float64" else "float32"
    axes = tuple(a for a in range(rank) if a != 1)
    column = (*n.shape(1), *[1] * (rank - 2))
    x = cast(x, dtype)
    scale, bias, mean, variance = (cast(n[i], dtype) for i in range(1, 5))
    own_mean = ai("reduce_mean", x, axes=axes, keepdims=True)
    centred = _sub(x, own_mean)
    own_variance = ai("reduce_mean", _mul(centred, centred), axes=axes, keepdims=True)
    deviation = ai("sqrt", _add(own_variance, scalar(eps, x)))
    y = _add(_mul(_div(centred, deviation), reshape(scale, column)), reshape(bias, column))
    own = [reshape(v, n.shape(1)) for v in (own_mean, own_variance)]
    keep = float(n.attr("momentum", 0.9))
    running = [
        _add(_mul(old, keep), _mul(new, 1.0 - keep))
        for old, new in zip((mean, variance), own, strict=True)
    ]
    results = [y, *running, *own]
    dtypes = [n.type(0).dtype, *[n.type(3).dtype] * 4]
    return [cast(v, t) for v, t in zip(results, dtypes, strict=True)]
