"""Attention written out in products and softmax → ai.attention.

PyTorch's exporter writes where(is_nan(p), 0, p) after softmax, so that a row with everything
hidden gives 0 instead of NaN. A row of softmax is all NaN or has none, so the test moves behind
the attention, where it is T/E times smaller: where(is_nan(a), 0, a). For finite v this is the
same function, bit for bit in the rows that are not hidden; it differs only in that a NaN inside
v then counts as a hidden row too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cuvilc.dialect.dims import Dim
from cuvilc.dialect.ir import Value
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.passes.context import Miss
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rewrite
from cuvilc.dialect.passes.rules_pattern import Match, any_value, either, number, op

_SOFTMAX = op("ai.softmax").bind("softmax")
_CLEANED = op("ai.where", op("ai.is_nan", any_value("softmax")), number(0.0), _SOFTMAX)
_PROBABILITIES = either(_CLEANED.bind("cleaned"), _SOFTMAX)


class _Scores:
    """softmax's operand taken apart: scale · q·kᵀ + mask."""

    def __init__(self, g: Graph) -> None:
        self.g = g
        self.scale = 1.0
        self.mask: Value | None = None
        self.nodes: list[Node] = []
        self.q: Value | None = None
        self.k: Value | None = None

    def read(self, value: Value) -> None:
        """Fill in from the scores. Miss says what does not fit."""
        value = self._unmask(value)
        value = self._unscale(value)
        product = self.g.producer(value, "ai.matmul")
        if product is None:
            raise Miss("the scores are not a matrix product")
        if not self.g.one_use(value):
            raise Miss("the scores are used elsewhere too")
        if product.attr("transpose_a"):
            raise Miss("q comes transposed")
        self.nodes.append(product)
        q, k = product.operands
        self.q, self.k = self._unscale(q), self._unscale(k)
        # float16 and bfloat16 are computed in float32, too.
        dtype = "float64" if self.g.type(self.q).dtype == "float64" else "float32"
        if not abs(self.scale) <= float(np.finfo(dtype).max):
            raise Miss(f"the scale {self.scale} is no number of {dtype}")
        if not product.attr("transpose_b"):
            rank = self.g.type(self.k).rank
            if rank < 2:
                raise Miss("k is a vector")
            perm = (*range(rank - 2), rank - 1, rank - 2)
            self.k = self.g.build("ai.transpose", self.k, perm=perm)

    def _unmask(self, value: Value) -> Value:
        node = self.g.producer(value)
        if node is None or node.name not in ("ai.elemwise_add", "ai.where"):
            return value
        if not self.g.one_use(value):
            raise Miss("the masked scores are used elsewhere too")
        if node.name == "ai.where":
            condition, x, hidden = node.operands
            if self.g.number(hidden) != -math.inf:
                raise Miss("the mask hides by a number that is not -inf")
            scores, self.mask = x, condition
        else:
            scores, self.mask = self._split(node)
        if scores.type != value.type:
            raise Miss("the mask is larger than the scores")
        self.nodes.append(node)
        return scores

    def _split(self, node: Node) -> tuple[Value, Value]:
        """(scores, mask) of their sum: the scores are the side that a product made."""
        a, b = node.operands
        if self._comes_from_product(a):
            return a, b
        if self._comes_from_product(b):
            return b, a
        raise Miss("neither side of the masked sum is a matrix product")

    def _comes_from_product(self, value: Value) -> bool:
        node = self.g.producer(value)
        while node is not None and node.name in ("ai.elemwise_mul", "ai.elemwise_div"):
            numbers = [self.g.number(v) is not None for v in node.operands]
            node = self.g.producer(node.operands[numbers[0]]) if any(numbers) else None
        return node is not None and node.name == "ai.matmul"

    def _unscale(self, value: Value) -> Value:
        """Take number factors off a value that nothing else reads."""
        while True:
            node = self.g.producer(value)
            if node is None or not self.g.one_use(value):
                return value
            if node.name == "ai.transpose":
                # a factor may sit behind the transpose that makes kᵀ
                inner = self._unscale(node.operands[0])
                if inner == node.operands[0]:
                    return value
                return self.g.build("ai.transpose", inner, perm=node.attr("perm"))
            if node.name not in ("ai.elemwise_mul", "ai.elemwise_div"):
                return value
            a, b = node.operands
            factor = self.g.number(b)
            if factor is None and node.name == "ai.elemwise_mul":
                a, b = b, a
                factor = self.g.number(b)
            divides = node.name == "ai.elemwise_div"
            if factor is None or (divides and factor == 0) or a.type != value.type:
                return value
            self.scale *= 1 / factor if divides else factor
            self.nodes.append(node)
            value = a


def attention(g: Graph, node: Node) -> Any:
    """softmax(scale · q·kᵀ + mask) · v, with or without the exporter's test for NaN."""
    if node.attr("transpose_a"):
        return None
    found = Match(g)
    if not _PROBABILITIES.matches(g, node.operands[0], found):
        return None
    softmax = g.producer(found["softmax"], "ai.softmax")
    if softmax is None:
        return None
    t = g.type(softmax.result)
    if softmax.attr("axis") != t.rank - 1:
        raise Miss("softmax is not along the last axis")
    if len(set(g.users(softmax.result))) != (2 if found.get("cleaned") else 1):
        raise Miss("the probabilities are used elsewhere too")
    if not g.one_use(node.operands[0]):
        raise Miss("the probabilities are used elsewhere too")
    if not 2 <= t.rank <= 4:
        raise Miss(f"the scores have {t.rank} dimensions")
    scores = _Scores(g)
    scores.read(softmax.operands[0])
    assert scores.q is not None and scores.k is not None
    v = node.operands[1]
    if node.attr("transpose_b"):
        rank = g.type(v).rank
        v = g.build("ai.transpose", v, perm=(*range(rank - 2), rank - 1, rank - 2))
    origin = [*reversed(scores.nodes), softmax, node]
    return _build(g, node, scores, v, bool(found.get("cleaned")), origin)


def _build(
    g: Graph, node: Node, scores: _Scores, v: Value, cleaned: bool, origin: list[Node]
) -> Any:
    q, k, mask = scores.q, scores.k, scores.mask
    assert q is not None and k is not None
    rank = g.type(q).rank
    if not g.type(k).rank == g.type(v).rank == rank:
        raise Miss("q, k and v differ in rank")
    if rank == 4:
        k, v = _shared_heads(g, k, v)
    q, k, v = (_with_heads(g, x) for x in (q, k, v))
    operands = [q, k, v]
    if mask is not None:
        operands.append(_mask(g, mask, rank))
    attrs = {"scale": float(scores.scale), "causal": False, "softcap": 0.0}
    try:
        y = _attend(g, operands, _grouped(g, operands), attrs, origin, cleaned)
    except ShapeError as error:
        raise Miss(str(error)) from None
    t = g.type(node.result)
    if y.type == node.result.type:
        return y
    if g.type(y).rank == t.rank:
        raise Miss(f"the product broadcasts to {t}, attention gives {g.type(y)}")
    return g.build("ai.reshape", y, shape=t.shape)


def _with_heads(g: Graph, x: Value) -> Value:
    """[S, D] and [B, S, D] as [B, 1, S, D]."""
    shape = g.type(x).shape
    if len(shape) == 4:
        return x
    batch: tuple[Dim, ...] = shape[:-2] or (1,)
    return g.build("ai.reshape", x, shape=(*batch, 1, *shape[-2:]))


def _mask(g: Graph, mask: Value, rank: int) -> Value:
    """The mask for scores of `rank` dimensions as one for [B, H, S, T]."""
    shape = g.type(mask).shape
    if rank == 4 or len(shape) < 3:
        return mask
    return g.build("ai.reshape", mask, shape=(shape[0], 1, *shape[1:]))


def needless_mask(g: Graph, node: Node) -> Any:
    """A constant mask that hides nothing → none: exporters write one where the model has none."""
    q, k, v, *mask = node.operands
    known = bool(mask) and g.producer(mask[0], "ai.constant") is not None
    values = g.program.weight_array(mask[0]) if known else None
    if values is None:
        return None
    hides = not values.all() if values.dtype == bool else values.any()
    return None if hides else g.build("ai.attention", q, k, v, origin=(node,), **node.attrs)


def grouped_queries(g: Graph, node: Node) -> Any:
    """Single queries of heads that share a key head → as many queries of one head."""
    shape = _grouped(g, node.operands) if not node.attr("causal") else None
    return None if shape is None else _attend(g, node.operands, shape, node.attrs, [node])


def _attend(
    g: Graph, operands: Sequence[Value], grouped: Sequence[Dim] | None, attrs: dict[str, Any],
    origin: Sequence[Node], cleaned: bool = False,
) -> Value:  # fmt: skip
    """Attention, with q of the shape `grouped` if there is one; `cleaned`: 0 where it gives NaN."""
    q, k, v, *mask = operands
    turned = q if grouped is None else g.build("ai.reshape", q, shape=grouped)
    y: Value = g.build("ai.attention", turned, k, v, *mask, origin=origin, **attrs)
    if cleaned:
        zero = g.full(0.0, (), g.type(y).dtype)
        y = g.build("ai.where", g.build("ai.is_nan", y), zero, y)
    if grouped is not None:
        y = g.build("ai.reshape", y, shape=(*g.type(q).shape[:3], g.type(v).shape[3]))
    return y


def _grouped(g: Graph, operands: Sequence[Value]) -> tuple[Dim, ...] | None:
    """[B, G, H/G, D] for q [B, H, 1, D] and k with G heads, where the mask is all heads': keys are
    then read once for a group.
    """
    (batch, heads, queries, depth), groups = g.type(operands[0]).shape, g.type(operands[1]).shape[1]
    if not (isinstance(heads, int) and isinstance(groups, int)) or queries != 1:
        return None
    if groups in (0, heads) or heads % groups:
        return None
    mask = g.type(operands[3]).shape if len(operands) > 3 else ()
    return (batch, groups, heads // groups, depth) if mask[-3:-2] in ((), (1,)) else None


def _shared_heads(g: Graph, k: Value, v: Value) -> tuple[Value, Value]:
    """k and v before each head was repeated for a group of query heads."""
    key, value = _before_repeat(g, k), _before_repeat(g, v)
    if key is None or value is None or g.type(key).shape[1] != g.type(value).shape[1]:
        return k, v
    return key, value


def _before_repeat(g: Graph, x: Value) -> Value | None:
    """[B, G, T, D] where x is it as [B, G, 1, T, D], spread to [B, G, R, T, D], merged."""
    merged = g.producer(x, "ai.reshape")
    spread = g.producer(merged.operands[0], "ai.broadcast_to") if merged is not None else None
    if spread is None:
        return None
    wide, narrow = g.type(spread.result).shape, g.type(spread.operands[0]).shape
    shape = g.type(x).shape
    if len(wide) != 5 or len(narrow) != 5 or narrow[2] != 1:
        return None
    if (*wide[:2], *wide[3:]) != (*narrow[:2], *narrow[3:]):
        return None
    if shape != (wide[0], wide[1] * wide[2], wide[3], wide[4]):
        return None
    return g.build("ai.reshape", spread.operands[0], shape=(*narrow[:2], *narrow[3:]))


RULES: dict[str, tuple[Rewrite, ...]] = {
    "ai.matmul": (attention,),
    "ai.attention": (needless_mask, grouped_queries),
}
