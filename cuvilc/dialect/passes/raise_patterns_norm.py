"""Normalisations written out in reductions and arithmetic → ai.layer_norm, ai.rms_norm.

First the core becomes a normalisation with scale 1; then a scale and a bias that follow are
taken in.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect.ir import Value
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.passes.context import Miss
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rewrite
from cuvilc.dialect.passes.rules_pattern import Match, Pattern, any_value, either, number, op


def _over_root(top: Pattern, mean_of_squares: Pattern) -> Pattern:
    """top / √(mean + eps), or top · (1/√…)."""
    root = op("ai.sqrt", op("ai.elemwise_add", mean_of_squares, number(name="eps")))
    return either(
        op("ai.elemwise_div", top, root), op("ai.elemwise_mul", top, op("ai.reciprocal", root))
    )


def _mean_of_squares(name: str) -> Pattern:
    x = any_value(name)
    return op("ai.reduce_mean", op("ai.elemwise_mul", x, x)).bind("variance")


_CENTRED = op("ai.elemwise_sub", any_value("x"), op("ai.reduce_mean", any_value("x")).bind("mean"))
_LAYER = _over_root(_CENTRED.bind("centred"), _mean_of_squares("centred"))
_RMS = _over_root(any_value("x"), _mean_of_squares("x"))


def layer_norm(g: Graph, node: Node) -> Any:
    """(x - mean) / √(mean((x - mean)²) + eps)."""
    found = _LAYER.search(g, node)
    if found is None:
        return None
    axis = _tail_axis(g, found, "mean", "variance")
    return _normalised(g, node, "ai.layer_norm", found, axis)


def rms_norm(g: Graph, node: Node) -> Any:
    """x / √(mean(x²) + eps)."""
    found = _RMS.search(g, node)
    if found is None:
        return None
    return _normalised(g, node, "ai.rms_norm", found, _tail_axis(g, found, "variance"))


def _tail_axis(g: Graph, found: Match, *means: str) -> int:
    """The first normalised axis. Miss unless each mean is over all axes from it on, kept."""
    nodes = [g.producers[found[name]] for name in means]
    axes = nodes[0].attr("axes")
    rank = g.type(nodes[0].operands[0]).rank
    if any(n.attr("axes") != axes for n in nodes):
        raise Miss("the means are over different axes")
    if not all(n.attr("keepdims") for n in nodes):
        raise Miss("the means drop their axes")
    if axes != tuple(range(rank - len(axes), rank)) or not axes:
        raise Miss(f"the means are over axes {axes}, which are not the last ones")
    return rank - len(axes)


def _normalised(g: Graph, node: Node, name: str, found: Match, axis: int) -> Any:
    t = g.type(found["x"])
    one = g.full(1.0, t.shape[-1:], t.dtype)
    return g.build(name, found["x"], one, axis=axis, eps=float(found["eps"]), origin=found.nodes)


def scaled_norm(g: Graph, node: Node) -> Any:
    """norm(x, 1) · scale → norm(x, scale), where the scale broadcasts to the normalised axes."""
    a, b = node.operands
    for y, scale in ((a, b), (b, a)):
        norm = _bare_norm(g, y)
        if norm is None or g.number(norm.operands[1]) != 1 or y.type != node.result.type:
            continue
        attrs = norm.attrs
        if len(norm.operands) > 2 or not g.type(scale).rank:
            continue
        return _rebuilt(g, norm, node, (norm.operands[0], scale), attrs)
    return None


def shifted_norm(g: Graph, node: Node) -> Any:
    """layer_norm(x, scale) + bias → layer_norm(x, scale, bias), where the bias is constant."""
    a, b = node.operands
    for y, bias in ((a, b), (b, a)):
        norm = _bare_norm(g, y)
        if norm is None or norm.name != "ai.layer_norm" or y.type != node.result.type:
            continue
        # a residual is not a bias; a rank tells them apart where the shape rule could not
        if len(norm.operands) > 2 or not g.type(bias).rank or not g.is_constant(bias):
            continue
        return _rebuilt(g, norm, node, (*norm.operands[:2], bias), norm.attrs)
    return None


def _bare_norm(g: Graph, value: Value) -> Node | None:
    norm = g.producer(value)
    fits = norm is not None and norm.name in ("ai.layer_norm", "ai.rms_norm") and g.one_use(value)
    return norm if fits else None


def _rebuilt(g: Graph, norm: Node, node: Node, operands: tuple[Value, ...], attrs: Any) -> Any:
    try:
        return g.build(norm.name, *operands, origin=(norm, node), **attrs)
    except ShapeError:
        return None


def cast_norm(g: Graph, node: Node) -> Any:
    """cast(norm(cast(x), 1)) → norm(x, 1): a normalisation computes in float32 or better anyway."""
    norm = _bare_norm(g, node.operands[0])
    if norm is None or g.number(norm.operands[1]) != 1 or len(norm.operands) > 2:
        return None
    wide = g.producer(norm.operands[0], "ai.cast")
    if wide is None or wide.operands[0].type != node.result.type:
        return None
    if g.type(node.result).dtype not in ("float16", "bfloat16"):
        return None
    t = g.type(node.result)
    one = g.full(1.0, t.shape[-1:], t.dtype)
    return g.build(norm.name, wide.operands[0], one, origin=(wide, norm, node), **norm.attrs)


RULES: dict[str, tuple[Rewrite, ...]] = {
    "ai.elemwise_mul": (layer_norm, rms_norm, scaled_norm),
    "ai.elemwise_div": (layer_norm, rms_norm),
    "ai.elemwise_add": (shifted_norm,),
    "ai.cast": (cast_norm,),
}
