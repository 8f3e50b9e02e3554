"""Recurrent networks: LSTM, GRU, RNN."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir

from ._table import importer
from .onnx_node import Node, ai, cast, shape_of

# How many of alpha, beta an activation takes; ONNX lists them for those that take any, in order.
_PARAMETERS = {
    "Sigmoid": 0, "Tanh": 0, "Relu": 0, "Softsign": 0, "Softplus": 0, "LeakyRelu": 1,
    "ThresholdedRelu": 1,
    "Elu": 1, "Affine": 2, "ScaledTanh": 2, "HardSigmoid": 2,
}  # fmt: skip
_SPELLED = {name.lower(): name for name in _PARAMETERS}


def _refuse(attributes: dict[str, Any]) -> str | None:
    for name in attributes.get("activations", ()):
        if name.lower() not in _SPELLED:
            return f"activation {name} is not supported"
    return None


def _time_first(n: Node) -> tuple[ir.Value, list[ir.Value | None]]:
    """x as [time, batch, input] and the initial states as [direction, batch, hidden]."""
    states = [n.get(i) for i in (5, 6)]
    if not n.attr("layout", 0):
        return n[0], states
    turned = [None if s is None else ai("transpose", s, perm=(1, 0, 2)) for s in states]
    return ai("transpose", n[0], perm=(1, 0, 2)), turned


def _operands(n: Node, states: int, gates: int) -> list[ir.Value | None]:
    """x, w, r and the optional operands; those missing before one that is given are neutral."""
    x, first = _time_first(n)
    lengths = n.get(4)
    later = [lengths and cast(lengths, "int32"), *first[:states], n.get(7) if states == 2 else None]
    batch, hidden, directions = shape_of(x)[1], n.attr("hidden_size"), n.shape(1)[0]
    for state in first[:states]:
        if state is not None:
            n.require_equal(shape_of(state)[1], batch)
    while later and later[-1] is None:
        later.pop()
    bias, dtype = n.get(3), n.type(0).dtype
    if later and bias is None:
        bias = ir.full(0.0, (directions, 2 * gates * hidden), dtype)
    for i, value in enumerate(later):
        if value is None:  # a negative length means the whole time
            state = ir.full(0.0, (directions, batch, hidden), dtype) if i else None
            later[i] = state or ir.full(-1, (batch,), "int32")
    return [x, n[1], n[2], bias, *later]


def _facts(n: Node, default: tuple[str, ...]) -> dict[str, Any]:
    direction = n.attr("direction", "forward")
    names = n.attr("activations", default * (2 if direction == "bidirectional" else 1))
    names = tuple(_SPELLED[name.lower()] for name in names)
    given = {
        "alphas": list(n.attr("activation_alpha", ())),
        "betas": list(n.attr("activation_beta", ())),
    }
    facts: dict[str, Any] = {}
    for needed, (which, values) in enumerate(given.items(), 1):
        taken = [values.pop(0) if _PARAMETERS[a] >= needed and values else None for a in names]
        facts[which] = tuple(taken) if any(v is not None for v in taken) else ()
    clip = n.attr("clip", 0.0)
    return facts | {
        "hidden": n.attr("hidden_size"), "direction": direction, "activations": names,
        "clip": clip or None,
    }  # fmt: skip


def _results(n: Node, results: Any) -> list[ir.Value]:
    """y [time, direction, batch, hidden] and states, in the node's layout."""
    if not n.attr("layout", 0):
        return list(results)
    y, *states = results
    return [
        ai("transpose", y, perm=(2, 0, 1, 3)),
        *(ai("transpose", s, perm=(1, 0, 2)) for s in states),
    ]


@importer("LSTM", refuse=_refuse)
def lstm(n: Node) -> list[ir.Value]:
    facts = _facts(n, ("Sigmoid", "Tanh", "Tanh"))
    forget = bool(n.attr("input_forget", 0))
    return _results(n, ai("lstm", *_operands(n, 2, 4), input_forget=forget, **facts))


@importer("GRU", refuse=_refuse)
def gru(n: Node) -> list[ir.Value]:
    linear = bool(n.attr("linear_before_reset", 0))
    facts = _facts(n, ("Sigmoid", "Tanh"))
    return _results(n, ai("gru", *_operands(n, 1, 3), linear_before_reset=linear, **facts))


@importer("RNN", refuse=_refuse)
def rnn(n: Node) -> list[ir.Value]:
    return _results(n, ai("rnn", *_operands(n, 1, 1), **_facts(n, ("Tanh",))))
