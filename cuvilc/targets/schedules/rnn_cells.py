"""What a step of a recurrent layer does after its products: activations and the new state.

A cell sees the gates' sums through `layer.gate(number, j)` and the states through `layer.read`; it
writes a state in place, as nothing reads the old one after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from cuvilc.dialect.ops.rnn import ACTIVATIONS

Function = Callable[[Any], Any]


def activations(k: Any, attrs: dict[str, Any], dtype: str) -> list[Function]:
    """The layer's activations by position, their input clipped to [-clip, clip]."""
    return [_function(k, attrs, n, name, dtype) for n, name in enumerate(attrs["activations"])]


def _function(k: Any, attrs: dict[str, Any], n: int, name: str, dtype: str) -> Function:
    _, alpha, beta = ACTIVATIONS[name]
    given = []
    for values, default in ((attrs["alphas"], alpha), (attrs["betas"], beta)):
        known = n < len(values) and values[n] is not None
        given.append(k.const(values[n] if known else default, dtype))
    limit = attrs["clip"]

    def apply(x: Any) -> Any:
        x = k.let(x)
        if limit is not None:
            low, high = k.const(-limit, dtype), k.const(limit, dtype)
            x = k.let(k.min(k.max(x, low), high))
        return k.let(_ACTIVATIONS[name](k, x, *given, k.const(0.0, dtype), k.const(1.0, dtype)))

    return apply


def _softplus(k: Any, x: Any, a: Any, b: Any, zero: Any, one: Any) -> Any:
    return k.max(x, zero) + k.log1p(k.exp(-k.abs(x)))


# (notation, x, alpha, beta, zero, one); as in dialect.ops.rnn.ACTIVATIONS
_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "Relu": lambda k, x, a, b, zero, one: k.max(x, zero),
    "Tanh": lambda k, x, a, b, zero, one: k.tanh(x),
    "Sigmoid": lambda k, x, a, b, zero, one: k.sigmoid(x),
    "Affine": lambda k, x, a, b, zero, one: a * x + b,
    "LeakyRelu": lambda k, x, a, b, zero, one: tirx.Select(x < zero, a * x, x),
    "ThresholdedRelu": lambda k, x, a, b, zero, one: tirx.Select(x > a, x, zero),
    "ScaledTanh": lambda k, x, a, b, zero, one: a * k.tanh(b * x),
    "HardSigmoid": lambda k, x, a, b, zero, one: k.min(k.max(a * x + b, zero), one),
    "Elu": lambda k, x, a, b, zero, one: tirx.Select(x < zero, a * (k.exp(x) - one), x),
    "Softsign": lambda k, x, a, b, zero, one: x / (one + k.abs(x)),
    "Softplus": _softplus,
}


def lstm(layer: Any, functions: list[Function], j: Any) -> None:
    """Element j of both states from the sums of i, o, f and c."""
    b, k = layer.b, layer.k
    f, g, h = functions
    before = b.let(layer.read(layer.cell, j))

    def seen(gate: int, peephole: int, state: Any) -> Any:
        value = layer.gate(gate, j)
        return value if layer.peephole is None else value + layer.hole(peephole, j) * state

    i = f(seen(0, 0, before))
    forget = k.const(1.0, layer.dtype) - i if layer.attrs["input_forget"] else f(seen(2, 2, before))
    after = b.let(forget * before + i * g(layer.gate(3, j)))
    layer.write(layer.cell, j, after)
    layer.put_state(j, f(seen(1, 1, after)) * h(after))


def gru_reset(layer: Any, functions: list[Function], j: Any) -> None:
    """Element j of r ⊙ h, for the product of the last gate."""
    layer.write(layer.reset, j, functions[0](layer.gate(1, j)) * layer.read(layer.state, j))


def gru(layer: Any, functions: list[Function], j: Any) -> None:
    """Element j of the state from the sums of z, r and h."""
    b = layer.b
    f, g = functions
    before = b.let(layer.read(layer.state, j))
    candidate = layer.gate(2, j)
    if layer.attrs["linear_before_reset"]:
        candidate = candidate + f(layer.gate(1, j)) * layer.read(layer.reset, j)
    n, z = g(candidate), f(layer.gate(0, j))
    layer.put_state(j, (layer.k.const(1.0, layer.dtype) - z) * n + z * before)


def rnn(layer: Any, functions: list[Function], j: Any) -> None:
    """Element j of the state from the sum of the one gate."""
    layer.put_state(j, functions[0](layer.gate(0, j)))
