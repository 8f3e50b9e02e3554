"""Scales and shifts per channel go into the constant weights of the convolution or product beside
them.

A whole chain of them (batch normalisation, then a learned affine block) is gathered in float64
first, so each weight is rounded once. A chain that would make a weight infinite or no number stays:
a sum of products over 0 is infinite, a sum of infinite products mostly NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect.dims import Dim
from cuvilc.dialect.ir import Program, Value
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.passes.rules_graph import Graph, Node, rewrite
from cuvilc.dialect.types import numpy_dtype

NAME = "fold-batch-norm"
VERSION = 1

_AFFINE = ("ai.elemwise_mul", "ai.elemwise_add", "ai.elemwise_sub", "ai.elemwise_div")


def run(program: Program, context: PassContext) -> None:
    """After it no constant scale or shift follows a convolution of constant weights on its own."""
    if context.math_exact:
        return
    with program:
        graph = Graph(program)
        rules: dict[str, Any] = dict.fromkeys(_AFFINE, (fold_after, fold_before_product))
        rewrite(graph, rules | {"ai.conv": (fold_before,)}, context)


def fold_after(g: Graph, node: Node) -> Any:
    """conv or conv_transpose, then scales and shifts: taken at the last of the chain."""
    if _next(g, node) is not None:
        return None  # the last one of the chain takes it all
    chain, anchor = [node], _previous(g, node)
    while anchor is not None and anchor.name in _AFFINE:
        chain.append(anchor)
        anchor = _previous(g, anchor)
    if anchor is None or anchor.name not in ("ai.conv", "ai.conv_transpose"):
        return None
    weights = g.array(anchor.operands[1])
    if not g.is_constant(anchor.operands[1]):
        raise Miss("the weights are not constant")
    if anchor.name == "ai.conv_transpose" and anchor.attr("groups") != 1:
        raise Miss("the transposed convolution has groups")
    if anchor.name == "ai.conv" and anchor.attr("out_layout"):
        return None
    bias = anchor.operands[2] if len(anchor.operands) > 2 else None
    if bias is not None and g.array(bias) is None:
        raise Miss("the bias is not constant")
    channels = int(g.type(anchor.result).shape[1])  # type: ignore[arg-type]
    scale, shift = np.ones(channels), np.zeros(channels)
    if bias is not None:
        shift += g.array(bias).astype(np.float64)
    for step in reversed(chain):
        scale, shift = _step(g, step, channels, scale, shift)
    return _rebuild(g, anchor, chain, weights, scale, shift)


def _rebuild(
    g: Graph, anchor: Node, chain: list[Node], weights: np.ndarray, scale: np.ndarray,
    shift: np.ndarray,
) -> Any:  # fmt: skip
    """The anchor with the chain's scale in its weights and its shift as bias."""
    axis = 0 if anchor.name == "ai.conv" else 1
    line = scale.reshape([-1 if j == axis else 1 for j in range(weights.ndim)])
    dtype = numpy_dtype(g.type(anchor.result).dtype)
    key = g.key(anchor.operands[1])
    w = anchor.operands[1]
    if not np.all(scale == 1):
        w = g.constant(_scaled(weights, line).astype(dtype, copy=False), key)
    b = g.constant(_rounded(shift, dtype), f"{key}.bias")
    origin = [anchor, *reversed(chain)]
    return g.build(anchor.name, anchor.operands[0], w, b, origin=origin, **anchor.attrs)


def _scaled(weights: np.ndarray, line: np.ndarray) -> np.ndarray:
    """weights · line in float64, rounded once, a part at a time to keep memory low.

    Raises Miss where that is not finite although the weights are.
    """
    if not np.isfinite(line).all():
        raise Miss("a scale is infinite or no number, as when divided by 0")
    out = np.empty(weights.shape, weights.dtype)
    step = max(1, (4 << 20) // max(1, weights[:1].size * 8))
    for i in range(0, weights.shape[0], step):
        part = slice(i, i + step)
        scale = line[part] if line.shape[0] != 1 else line
        out[part] = _rounded(weights[part].astype(np.float64), weights.dtype, scale)
    return out


def _inverse(line: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):  # what is not finite is refused in the end
        return 1 / line


def _rounded(values: np.ndarray, dtype: np.dtype[Any], scale: Any = 1.0) -> np.ndarray:
    """values · scale in the dtype. Raises Miss where the product of finite ones is not finite."""
    try:
        # Infinite weights of the model's own are no overflow.
        with np.errstate(all="ignore", over="raise"):
            return (values * scale).astype(dtype)
    except FloatingPointError:
        raise Miss("a weight would be beyond what its dtype holds") from None


def _chain_operand(g: Graph, node: Node) -> tuple[Value, Value] | None:
    """(x, c) of an affine step with constant c per channel; None otherwise."""
    a, b = node.operands
    pairs = [(a, b)] if node.name in ("ai.elemwise_sub", "ai.elemwise_div") else [(a, b), (b, a)]
    for x, c in pairs:
        t = g.type(node.result)
        if x.type != node.result.type or not t.is_float or t.rank < 3 or t.layout:
            continue
        shape = g.type(c).shape
        padded: tuple[Dim, ...] = (1,) * (t.rank - len(shape)) + shape
        fits = all(d == 1 for j, d in enumerate(padded) if j != 1)
        known = isinstance(padded[1], int) and isinstance(t.shape[1], int)
        if fits and known and (g.is_constant(c) or g.number(c) is not None):
            return x, c
    return None


def _previous(g: Graph, node: Node) -> Node | None:
    """The producer that this affine step could join: used here only."""
    pair = _chain_operand(g, node)
    if pair is None or not g.one_use(pair[0]):
        return None
    return g.producer(pair[0])


def _next(g: Graph, node: Node) -> Node | None:
    """The next step of the chain, if the node's only user is one."""
    users = g.users(node.result)
    if len(users) != 1 or users[0].name not in _AFFINE:
        return None
    pair = _chain_operand(g, users[0])
    return users[0] if pair is not None and pair[0] == node.result else None


def _step(
    g: Graph, node: Node, channels: int, scale: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(scale, shift) per channel, float64, after one more step of the chain."""
    pair = _chain_operand(g, node)
    assert pair is not None
    c = np.broadcast_to(g.array(pair[1]).astype(np.float64).reshape(-1), (channels,))
    with np.errstate(all="ignore"):  # what is not finite is refused in the end
        match node.name:
            case "ai.elemwise_mul":
                return scale * c, shift * c
            case "ai.elemwise_div":
                return scale / c, shift / c
            case "ai.elemwise_sub":
                return scale, shift - c
        return scale, shift + c


def fold_before(g: Graph, node: Node) -> Any:
    """conv(x · c) → conv with c in its input channels; conv(x + c) too where nothing is padded."""
    source = g.producer(node.operands[0])
    if source is None or source.name not in _AFFINE or not g.is_constant(node.operands[1]):
        return None
    pair = _chain_operand(g, source)
    if pair is None or node.attr("out_layout"):
        return None
    if not g.one_use(source.result):
        raise Miss("the scaled value is used elsewhere too")
    shifts = source.name in ("ai.elemwise_add", "ai.elemwise_sub")
    if shifts and any((*node.attr("pads_begin"), *node.attr("pads_end"))):
        raise Miss("a shift before a padded convolution: the padding is not shifted")
    bias = node.operands[2] if len(node.operands) > 2 else None
    if shifts and bias is not None and g.array(bias) is None:
        raise Miss("the bias is not constant")
    weights, groups = g.array(node.operands[1]), node.attr("groups")
    c = np.broadcast_to(
        g.array(pair[1]).astype(np.float64).reshape(-1), (weights.shape[1] * groups,)
    )
    per_group = np.repeat(c.reshape(groups, -1), weights.shape[0] // groups, axis=0)
    line = per_group.reshape(*weights.shape[:2], *[1] * (weights.ndim - 2))
    key = g.key(node.operands[1])
    w = node.operands[1]
    rest = [] if bias is None else [bias]
    if shifts:
        total = (weights.astype(np.float64) * line).reshape(weights.shape[0], -1).sum(1)
        total = -total if source.name == "ai.elemwise_sub" else total
        old = 0 if bias is None else g.array(bias).astype(np.float64)
        rest = [g.constant(_rounded(old + total, weights.dtype), f"{key}.bias")]
    else:
        line = _inverse(line) if source.name == "ai.elemwise_div" else line
        w = g.constant(_scaled(weights, line), key)
    return g.build("ai.conv", pair[0], w, *rest, origin=(source, node), **node.attrs)


def fold_before_product(g: Graph, node: Node) -> Any:
    """matmul(a, W) · c → matmul(a, W·c) for constant W and c per column (or one number)."""
    if node.name not in ("ai.elemwise_mul", "ai.elemwise_div"):
        return None
    a, b = node.operands
    for x, c in ((a, b), (b, a))[: 2 if node.name == "ai.elemwise_mul" else 1]:
        product = g.producer(x, "ai.matmul")
        if product is None or x.type != node.result.type or not g.is_constant(product.operands[1]):
            continue
        weights, t = g.array(product.operands[1]), g.type(x)
        factor = g.array(c) if g.is_constant(c) or g.number(c) is not None else None
        if factor is None or weights.ndim != 2 or not t.is_float:
            continue
        if any(n != 1 for n in factor.shape[:-1]):
            continue
        if not g.one_use(x):
            raise Miss("the product is used elsewhere too")
        line = factor.astype(np.float64).reshape(-1)
        line = _inverse(line) if node.name == "ai.elemwise_div" else line
        line = line[:, None] if product.attr("transpose_b") else line[None, :]
        w = g.constant(_scaled(weights, line), g.key(product.operands[1]))
        return g.build("ai.matmul", product.operands[0], w, origin=(product, node), **product.attrs)
    return None
