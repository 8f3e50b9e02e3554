"""Recurrent layers. Each runs by a schedule of its own, so there are no lowering facets here.

Common to all: x [T, B, I] time-major, w [D, G·H, I], r [D, G·H, H], bias [D, 2·G·H] (input biases,
then recurrent ones), D directions, G gates, H = `hidden`. y [T, D, B, H]. seq_lens int32 [B]: a row
stops after its length, where y is 0 and the state stays; a negative length means all of T. A
reverse direction starts at a row's last step. Middle operands are given as zeros (seq_lens as -1)
when only a later one matters. activations: names per direction, as in ONNX; alphas and betas:
their parameters by position, None for the default.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import (
    need,
    need_dtype,
    need_float,
    need_length,
    need_positive,
    need_rank,
    need_same_dtype,
    need_shape,
    need_word,
)
from cuvilc.dialect.ops.unary import sigmoid, softplus
from cuvilc.dialect.types import TensorType

Array = np.ndarray
Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

# name -> (function of x, alpha, beta; default alpha; default beta), as ONNX defines them
ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Array], float, float]] = {
    "Relu": (lambda x, a, b: np.maximum(x, 0), 0.0, 0.0),
    "Tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "Sigmoid": (lambda x, a, b: sigmoid(x), 0.0, 0.0),
    "Affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "LeakyRelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, 0.0),
    "ThresholdedRelu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, 0.0),
    "ScaledTanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "Elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 1.0, 0.0),
    "Softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "Softplus": (lambda x, a, b: softplus(x), 0.0, 0.0),
}


def activation_functions(
    names, alphas, betas, clip: float | None
) -> list[Callable[[Array], Array]]:
    """The activations by position, their input clipped to [-clip, clip]."""
    functions = []
    for n, name in enumerate(names):
        function, alpha, beta = ACTIVATIONS[name]
        alpha = alpha if n >= len(alphas) or alphas[n] is None else alphas[n]
        beta = beta if n >= len(betas) or betas[n] is None else betas[n]
        functions.append(_bound(function, alpha, beta, clip))
    return functions


def _bound(function, alpha: float, beta: float, clip: float | None) -> Callable[[Array], Array]:
    if clip is None:
        return lambda x: function(x, alpha, beta)
    return lambda x: function(np.clip(x, -clip, clip), alpha, beta)


def recurrent_type(
    gates: int, per_direction: int, x, w, r, bias, seq_lens, states, *,
    hidden, direction, activations, alphas, betas, clip,
) -> tuple[TensorType, TensorType]:  # fmt: skip
    """Check what the three layers share; returns the types of y and of a final state."""
    need_word(direction, tuple(DIRECTIONS), "direction")
    need_positive((hidden,), "hidden")
    count = len(DIRECTIONS[direction])
    need_rank(x, 3, "x")
    need_float(x)
    time, batch, width = x.shape
    need_shape(w, (count, gates * hidden, width), "w")
    need_shape(r, (count, gates * hidden, hidden), "r")
    if bias is not None:
        need_shape(bias, (count, 2 * gates * hidden), "bias")
    if seq_lens is not None:
        need_dtype(seq_lens, ("int32",), "seq_lens")
        need_shape(seq_lens, (batch,), "seq_lens")
    for t, what in states:
        if t is not None:
            need_shape(t, (count, batch, hidden), what)
    need_same_dtype(x, w, r, *(t for t in (bias, *(t for t, _ in states)) if t is not None))
    need_length(activations, per_direction * count, "activations")
    for name in activations:
        need_word(name, tuple(ACTIVATIONS), "an activation")
    for values, what in ((alphas, "alphas"), (betas, "betas")):
        need(len(values) <= len(activations), f"{what} has more entries than activations")
    need(clip is None or clip > 0, f"clip must be positive, not {clip}")
    return TensorType((time, count, batch, hidden), x.dtype), TensorType(
        (count, batch, hidden), x.dtype
    )


def run_direction(
    step: Step, x: Array, states: tuple[Array, ...], seq_lens: Array | None, reverse: bool
) -> tuple[Array, tuple[Array, ...]]:
    """Run `step` over time for one direction; returns y [T, B, H] and the final states [B, H]."""
    time, batch = x.shape[:2]
    y = np.zeros((time, batch, states[0].shape[-1]))
    lengths = np.full(batch, time) if seq_lens is None else np.where(seq_lens < 0, time, seq_lens)
    rows = np.arange(batch)
    for t in range(time):
        alive = t < lengths
        at = np.where(alive, lengths - 1 - t, 0) if reverse else np.full(batch, t)
        new = step(x[at, rows], states)
        states = tuple(np.where(alive[:, None], n, s) for n, s in zip(new, states, strict=True))
        y[at[alive], rows[alive]] = states[0][alive]
    return y, states


def run_layer(make_step, gates, x, r, bias, seq_lens, starts, direction, hidden):
    """All directions: y [T, D, B, H] and each final state [D, B, H].

    make_step(d, input bias, recurrent bias) gives the step function of direction d.
    """
    ys, finals = [], []
    for d, reverse in enumerate(DIRECTIONS[direction]):
        both = np.zeros(2 * gates * hidden) if bias is None else bias[d]
        step = make_step(d, both[: gates * hidden], both[gates * hidden :])
        zero = np.zeros((x.shape[1], hidden))
        states = tuple(zero if start is None else start[d] for start in starts)
        y, final = run_direction(step, x, states, seq_lens, reverse)
        ys.append(y)
        finals.append(final)
    return (np.stack(ys, 1), *(np.stack(state) for state in zip(*finals, strict=True)))


@op("ai.lstm", results=3)
class LSTM:
    """Long short-term memory; gates in the order i, o, f, c.    (Gers & Schmidhuber 2000, §2)

    i, o, f = f(x·Wᵀ + h·Rᵀ + p ⊙ c + b); c' = f ⊙ c + i ⊙ g(..); h' = o ⊙ h(c'), where o sees c'.
    peephole [D, 3H] is p for i, o, f. input_forget: f = 1 - i.
    Results: y, h [D, B, H], c [D, B, H].
    """

    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None
    seq_lens: Tensor | None
    h0: Tensor | None
    c0: Tensor | None
    peephole: Tensor | None
    hidden: int
    direction: str = "forward"
    activations: tuple = ("Sigmoid", "Tanh", "Tanh")
    clip: float | None = None
    input_forget: bool = False
    alphas: tuple = ()
    betas: tuple = ()

    def shape(x, w, r, bias, seq_lens, h0, c0, peephole, *, hidden, input_forget, **attrs):
        states = ((h0, "h0"), (c0, "c0"))
        y, h = recurrent_type(4, 3, x, w, r, bias, seq_lens, states, hidden=hidden, **attrs)
        if peephole is not None:
            need_shape(peephole, (h.shape[0], 3 * hidden), "peephole")
            need_same_dtype(x, peephole)
        return y, h, h

    def reference(
        x, w, r, bias, seq_lens, h0, c0, peephole, *,
        hidden, direction, activations, clip, input_forget, alphas, betas,
    ):  # fmt: skip
        functions = activation_functions(activations, alphas, betas, clip)

        def make_step(d, input_bias, recurrent_bias):
            f, g, h = functions[3 * d : 3 * d + 3]
            p = np.zeros(3 * hidden) if peephole is None else peephole[d]
            pi, po, pf = np.split(p, 3)

            def step(x_t, state):
                h_t, c_t = state
                gates = x_t @ w[d].T + h_t @ r[d].T + input_bias + recurrent_bias
                i, o, forget, c = np.split(gates, 4, axis=1)
                i = f(i + pi * c_t)
                forget = 1 - i if input_forget else f(forget + pf * c_t)
                new = forget * c_t + i * g(c)
                return f(o + po * new) * h(new), new

            return step

        return run_layer(make_step, 4, x, r, bias, seq_lens, (h0, c0), direction, hidden)

    samples = (
        sample("float32[5,2,3]", "float32[1,16,3]", "float32[1,16,4]", hidden=4),
        sample(
            "float32[4,3,2]", "float32[2,12,2]", "float32[2,12,3]", "float32[2,24]",
            np.array([4, 1, 3], np.int32), "float32[2,3,3]", "float32[2,3,3]", "float32[2,9]",
            hidden=3, direction="bidirectional", activations=("Sigmoid", "Tanh", "Tanh") * 2,
        ),
        sample(
            "float32[3,2,2]", "float32[1,12,2]", "float32[1,12,3]", "float32[1,24]", hidden=3,
            direction="reverse", activations=("HardSigmoid", "Softsign", "Relu"), clip=0.75,
        ),
        sample(
            "float32[3,2,2]", "float32[1,12,2]", "float32[1,12,3]", "float32[1,24]", hidden=3,
            input_forget=True,
        ),
    )  # fmt: skip


@op("ai.gru", results=2)
class GRU:
    """Gated recurrent unit; gates in the order z, r, h.    (Cho et al. 2014, §2.3)

    z, r = f(x·Wᵀ + h·Rᵀ + b); n = g(x·Wᵀ + (r ⊙ h)·Rᵀ + b), or with linear_before_reset
    n = g(x·Wᵀ + r ⊙ (h·Rᵀ + b_r) + b_w); h' = (1 - z) ⊙ n + z ⊙ h. Results: y, h [D, B, H].
    """

    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None
    seq_lens: Tensor | None
    h0: Tensor | None
    hidden: int
    direction: str = "forward"
    activations: tuple = ("Sigmoid", "Tanh")
    linear_before_reset: bool = False
    clip: float | None = None
    alphas: tuple = ()
    betas: tuple = ()

    def shape(x, w, r, bias, seq_lens, h0, *, linear_before_reset, **attrs):
        return recurrent_type(3, 2, x, w, r, bias, seq_lens, ((h0, "h0"),), **attrs)

    def reference(
        x, w, r, bias, seq_lens, h0, *,
        hidden, direction, activations, linear_before_reset, clip, alphas, betas,
    ):  # fmt: skip
        functions = activation_functions(activations, alphas, betas, clip)

        def make_step(d, input_bias, recurrent_bias):
            f, g = functions[2 * d : 2 * d + 2]
            bz, br, bn = np.split(recurrent_bias, 3)
            rz, rr, rn = np.split(r[d], 3)

            def step(x_t, state):
                (h,) = state
                xz, xr, xn = np.split(x_t @ w[d].T + input_bias, 3, axis=1)
                z, reset = f(xz + h @ rz.T + bz), f(xr + h @ rr.T + br)
                if linear_before_reset:
                    n = g(xn + reset * (h @ rn.T + bn))
                else:
                    n = g(xn + (reset * h) @ rn.T + bn)
                return ((1 - z) * n + z * h,)

            return step

        return run_layer(make_step, 3, x, r, bias, seq_lens, (h0,), direction, hidden)

    samples = (
        sample("float32[5,2,3]", "float32[1,12,3]", "float32[1,12,4]", hidden=4),
        sample(
            "float32[4,3,2]", "float32[2,9,2]", "float32[2,9,3]", "float32[2,18]",
            np.array([4, 1, 3], np.int32), "float32[2,3,3]", hidden=3, direction="bidirectional",
            activations=("Sigmoid", "Tanh") * 2, linear_before_reset=True,
        ),
        sample(
            "float32[3,2,2]", "float32[1,9,2]", "float32[1,9,3]", "float32[1,18]", hidden=3,
            direction="reverse", clip=0.75,
        ),
    )  # fmt: skip


@op("ai.rnn", results=2)
class RNN:
    """h' = f(x·Wᵀ + h·Rᵀ + b).    (Elman 1990)    Results: y, h [D, B, H]."""

    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None
    seq_lens: Tensor | None
    h0: Tensor | None
    hidden: int
    direction: str = "forward"
    activations: tuple = ("Tanh",)
    clip: float | None = None
    alphas: tuple = ()
    betas: tuple = ()

    def shape(x, w, r, bias, seq_lens, h0, **attrs):
        return recurrent_type(1, 1, x, w, r, bias, seq_lens, ((h0, "h0"),), **attrs)

    def reference(
        x, w, r, bias, seq_lens, h0, *, hidden, direction, activations, clip, alphas, betas
    ):
        functions = activation_functions(activations, alphas, betas, clip)

        def make_step(d, input_bias, recurrent_bias):
            def step(x_t, state):
                gates = x_t @ w[d].T + state[0] @ r[d].T + input_bias + recurrent_bias
                return (functions[d](gates),)

            return step

        return run_layer(make_step, 1, x, r, bias, seq_lens, (h0,), direction, hidden)

    samples = (
        sample("float32[5,2,3]", "float32[1,4,3]", "float32[1,4,4]", hidden=4),
        sample(
            "float32[4,3,2]", "float32[2,3,2]", "float32[2,3,3]", "float32[2,6]",
            np.array([4, -1, 2], np.int32), "float32[2,3,3]", hidden=3,
            direction="bidirectional", activations=("Relu", "Tanh"),
        ),
        sample(
            "float32[3,2,2]", "float32[1,3,2]", "float32[1,3,3]", "float32[1,6]", hidden=3,
            direction="reverse", activations=("LeakyRelu",), alphas=(0.25,),
        ),
    )  # fmt: skip
