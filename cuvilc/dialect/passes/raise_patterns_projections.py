"""Projections of one input that all lead to attention → one product and slices.

One product with three times the columns fills the machine better; the slices cost nothing, since
attention reads its operands at any stride. Elsewhere they would cost an epilogue, so that is a
refusal.
"""

from __future__ import annotations

from cuvilc.dialect.dims import Dim
from cuvilc.dialect.ir import Value
from cuvilc.dialect.passes.canonicalize import in_order
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.passes.rules_graph import Graph, Node

RULE = "join-projections"
_MOVES = ("ai.reshape", "ai.transpose", "ai.slice")
_PRODUCTS = ("ai.matmul", "ai.matmul_nbits")
_End = tuple[Node, Value | None]  # the last operation of a projection, its bias


def join_projections(g: Graph, context: PassContext) -> None:
    """Join every group of two or more that fits; the others are recorded."""
    for node in in_order(g):
        if not node.alive or node.name not in _PRODUCTS:
            continue
        group = [n for n in dict.fromkeys(g.users(node.operands[0])) if _joins(g, n, node)]
        if len(group) < 2:
            continue
        try:
            ends = [_end(g, n) for n in group]
            _check(g, ends)
        except Miss as miss:
            context.miss(RULE, node.op, str(miss))
            continue
        _join(g, node, group, ends)
        context.apply(RULE)


def _check(g: Graph, ends: list[_End]) -> None:
    if len({bias is None for _, bias in ends}) > 1:
        raise Miss("some of the projections have a bias, others none")
    if not all(_leads_to_attention(g, end.result) for end, _ in ends):
        raise Miss("the projections do not all lead to attention")


def _join(g: Graph, node: Node, group: list[Node], ends: list[_End]) -> None:
    g.here = node
    axis = _axis(node)
    weights = [g.joined([n.operands[i] for n in group], axis) for i in range(1, len(node.operands))]
    y = g.build(node.name, node.operands[0], *weights, origin=group, **node.attrs)
    biases = [bias for _, bias in ends if bias is not None]
    if biases:
        y = g.build("ai.elemwise_add", y, g.joined(biases, 0), origin=[end for end, _ in ends])
    t, parts = g.type(y), []
    start: Dim = 0
    for end, _ in ends:
        size = g.type(end.result).shape[-1]
        parts.append(g.build(
            "ai.slice", y, starts=(*[0] * (t.rank - 1), start), steps=(1,) * t.rank,
            sizes=(*t.shape[:-1], size), origin=[end],
        ))  # fmt: skip
        start = start + size
    for (end, _), part in zip(ends, parts, strict=True):
        g.replace(end, part)


def _joins(g: Graph, n: Node, node: Node) -> bool:
    """Whether `n` multiplies the same input by constant weights of the same form."""
    if n.name != node.name or n.operands[0] != node.operands[0] or n.parent is not node.parent:
        return False
    if node.name == "ai.matmul_nbits":
        return _are_alike(g, n, node)
    if not (g.is_weight(n.operands[1]) and g.is_weight(node.operands[1])):
        return False
    a, b = g.type(n.operands[1]), g.type(node.operands[1])
    axis = 1 - _axis(node)
    parameters = [
        p for v in (n.operands[1], node.operands[1]) if (p := g.producer(v, "ai.parameter"))
    ]
    if any(p.attr("out_axis") != 1 - axis for p in parameters):
        return False
    return (
        a.rank == 2 and b.rank == 2 and a.shape[axis] == b.shape[axis] and a.dtype == b.dtype
        and n.attr("transpose_b") == node.attr("transpose_b")
        and not n.attr("transpose_a") and not node.attr("transpose_a")
    )  # fmt: skip


def _axis(node: Node) -> int:
    """The axis of a product's weights that holds the result's columns."""
    return 0 if node.name == "ai.matmul_nbits" or node.attr("transpose_b") else 1


def _are_alike(g: Graph, n: Node, node: Node) -> bool:
    """Whether two products by packed numbers differ in their numbers and columns only."""
    held = [*n.operands[1:], *node.operands[1:]]
    return (
        len(n.operands) == len(node.operands) and all(g.is_constant(v) for v in held)
        and n.attrs == node.attrs
    )  # fmt: skip


def _end(g: Graph, product: Node) -> _End:
    """The addition of a constant line that follows on its own, and that line; else the product."""
    users = g.users(product.result)
    if len(users) != 1 or users[0].name != "ai.elemwise_add":
        return product, None
    a, b = users[0].operands
    bias = b if a == product.result else a
    if not g.is_weight(bias) or g.type(bias).shape != g.type(product.result).shape[-1:]:
        return product, None
    return users[0], bias


def _leads_to_attention(g: Graph, value: Value) -> bool:
    for _ in range(6):
        users = g.users(value)
        if len(users) != 1:
            return False
        if users[0].name == "ai.attention":
            return True
        if users[0].name not in _MOVES:
            return False
        value = users[0].result
    return False
