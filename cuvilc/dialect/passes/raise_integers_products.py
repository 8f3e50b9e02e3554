"""Products of dequantised bytes → sums in int32 times the product of the scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect.ir import Value
from cuvilc.dialect.ops.integer import BYTES
from cuvilc.dialect.passes.context import Miss
from cuvilc.dialect.passes.raise_integers_levels import (
    dequantised,
    is_one,
    known,
    line,
    zero_of,
)
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rules

# A bias quantised by a product of scales that was rounded differently is still in units of it.
_SAME_UNIT = 1e-5


def integer_matmul(g: Graph, node: Node) -> Any:
    """dequantise(a) · dequantise(b) → cast(a · b) · (a scale · b scale)."""
    a, b = (dequantised(g, v) for v in node.operands)
    if a is None or b is None:
        return None
    ranks = [g.type(v).rank for v in node.operands]
    if min(ranks) < 2:
        raise Miss("a vector")
    turn_a, turn_b = node.attr("transpose_a"), node.attr("transpose_b")
    column = ranks[1] - (2 if turn_b else 1)
    if not is_one(g, a.operands[1]):
        raise Miss("a scale per row or column of the left operand")
    if not is_one(g, b.operands[1]) and b.attr("axis") != column:
        raise Miss("a scale per row of the right operand")
    left, right = (_turned(g, n.operands[0], turn) for n, turn in ((a, turn_a), (b, turn_b)))
    zeros = _zeros(g, a, b)
    total = g.build("ai.matmul_integer", left, right, *zeros, origin=(a, b, node))
    return _scaled(g, node, total, line(g, a.operands[1]), line(g, b.operands[1]))


def integer_conv(g: Graph, node: Node) -> Any:
    """The same of a convolution, its bias added to the sums where it is in their unit."""
    x, w = (dequantised(g, v) for v in node.operands[:2])
    if x is None or w is None:
        return None
    if not is_one(g, x.operands[1]):
        raise Miss("a scale per channel of the input")
    if not is_one(g, w.operands[1]) and w.attr("axis") != 0:
        raise Miss("a scale per input channel of the weights")
    total = g.build(
        "ai.conv_integer", x.operands[0], w.operands[0], *_zeros(g, x, w),
        origin=(x, w, node), **_unstacked(node.attrs),
    )  # fmt: skip
    spatial = g.type(node.result).rank - 2
    scales = [line(g, n.operands[1], spatial) for n in (x, w)]
    if len(node.operands) < 3:
        return _scaled(g, node, total, *scales)
    bias = line(g, node.operands[2], spatial)
    whole = _whole_bias(g, node.operands[2], x.operands[1], w.operands[1])
    if whole is not None:
        total = g.build("ai.elemwise_add", total, line(g, whole, spatial))
        return _scaled(g, node, total, *scales)
    return g.build("ai.elemwise_add", _scaled(g, node, total, *scales), bias)


def _unstacked(attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes of an ai.conv for ai.conv_integer, which has no stacks of images."""
    kept = dict(attrs)
    if (kept.pop("stack"), kept.pop("stack_step")) != (1, 1):
        raise Miss("a stack of images")
    return kept


def _turned(g: Graph, value: Value, turn: bool) -> Value:
    """The value with its last two axes swapped; of a constant, another constant."""
    if not turn:
        return value
    rank = g.type(value).rank
    array, source = g.array(value), g.producer(value)
    if array is not None and source is not None and source.name == "ai.constant":
        turned = np.ascontiguousarray(np.swapaxes(array, -1, -2))
        return g.constant(turned, f"{source.attr('key')}.transposed")
    return g.build("ai.transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2))


def _zeros(g: Graph, left: Node, right: Node) -> list[Value]:
    """Zero points of both, as far as there are some: numbers as scalars."""
    found = [None if z is None else line(g, z) for z in (zero_of(left), zero_of(right))]
    if found[0] is None and found[1] is not None:
        found[0] = g.full(0, (), g.type(left.operands[0]).dtype)
    return [z for z in found if z is not None]


def _scaled(g: Graph, node: Node, total: Value, left: Value, right: Value) -> Value:
    """cast(total) · (left · right) in the node's dtype; scales are multiplied in float32."""
    factors = [_cast(g, v, "float32") for v in (left, right)]
    unit = g.build("ai.elemwise_mul", *factors)
    y = g.build("ai.elemwise_mul", _cast(g, total, "float32"), unit)
    return _cast(g, y, g.type(node.result).dtype)


def _cast(g: Graph, value: Value, dtype: str) -> Value:
    return value if g.type(value).dtype == dtype else g.build("ai.cast", value, dtype=dtype)


def _whole_bias(g: Graph, bias: Value, left: Value, right: Value) -> Value | None:
    """The int32 numbers that a bias was dequantised from, if by the product of these scales."""
    source = g.producer(bias, "ai.dequantize_linear")
    if source is None or g.type(source.operands[0]).dtype != "int32":
        return None
    zero = zero_of(source)
    if zero is not None and (known(g, zero) is None or known(g, zero).any()):
        return None
    if source.attr("block"):
        return None
    units = [known(g, v) for v in (source.operands[1], left, right)]
    if any(u is None for u in units):
        return None
    unit, product = units[0], units[1].astype(np.float64) * units[2]
    if not np.allclose(unit, product.reshape(-1) if product.size > 1 else product.reshape(()),
                       rtol=_SAME_UNIT, atol=0):  # fmt: skip
        return None
    return source.operands[0]


def added_bias(g: Graph, node: Node) -> Any:
    """cast(n) · unit + dequantise(bias) → cast(n + bias) · unit, where the bias is in that unit."""
    for y, bias in (node.operands, node.operands[::-1]):
        scaled = g.producer(y, "ai.elemwise_mul")
        if scaled is None or y.type != node.result.type or not g.one_use(y):
            continue
        cast = g.producer(scaled.operands[0], "ai.cast")
        if cast is None or g.type(cast.operands[0]).dtype != "int32":
            continue
        one = g.full(1.0, (), "float32")
        whole = _whole_bias(g, bias, scaled.operands[1], one)
        if whole is None or g.type(whole).rank > g.type(y).rank:
            continue
        if not _along(g, bias, scaled.operands[1]):
            continue
        total = g.build("ai.elemwise_add", cast.operands[0], whole)
        wide = g.build("ai.cast", total, dtype="float32")
        return g.build("ai.elemwise_mul", wide, scaled.operands[1], origin=(scaled, node))
    return None


def _along(g: Graph, bias: Value, unit: Value) -> bool:
    """Whether the scales of a dequantised bias lie along the axis of the sums that `unit` does."""
    source = g.producer(bias)
    assert source is not None
    if is_one(g, unit) or is_one(g, source.operands[1]):
        return True
    behind = g.type(bias).rank - 1 - source.attr("axis")
    shape = g.type(unit).shape
    return behind < len(shape) and shape[-1 - behind] != 1


# ---- quantised again


def quantised(g: Graph, node: Node) -> Any:
    """quantise(x, scale) → quantise(x / scale, 1), where scales alone are divided.

    x is made of sums times a scale, of dequantised bytes, of their sums and their relu.
    """
    scale = node.operands[1]
    t = g.type(node.operands[0])
    if g.number(scale) == 1.0 or not is_one(g, scale) or t.dtype != "float32" or node.attr("block"):
        return None
    if g.type(node.result).dtype not in BYTES:
        return None
    if g.type(scale).dtype != "float32" or not _divides(g, node.operands[0]):
        return None
    smaller = _divided(g, node.operands[0], line(g, scale))
    one = g.full(1.0, (), "float32")
    zero = line(g, node.operands[2])
    return g.build(node.name, smaller, one, zero, origin=(node,), axis=0, block=0)


def _divides(g: Graph, value: Value) -> bool:
    """Whether `_divided` can."""
    node = g.producer(value)
    if node is None or g.type(value).dtype != "float32":
        return False
    if node.name == "ai.dequantize_linear":
        return not node.attr("block")
    if not g.one_use(value):
        return False
    if node.name == "ai.elemwise_mul":
        return _is_sum(g, node.operands[0])
    if node.name == "ai.relu":
        return _divides(g, node.operands[0])
    if node.name == "ai.elemwise_add":
        left, right = node.operands
        return _divides(g, left) and (_divides(g, right) or known(g, right) is not None)
    return False


def _is_sum(g: Graph, value: Value) -> bool:
    cast = g.producer(value, "ai.cast")
    return cast is not None and g.type(cast.operands[0]).dtype == "int32"


def _divided(g: Graph, value: Value, scale: Value) -> Value:
    node = g.producer(value)
    if node is None or known(g, value) is not None:
        return g.build("ai.elemwise_div", value, scale)
    first, *rest = node.operands
    if node.name == "ai.dequantize_linear":
        by = g.build("ai.elemwise_div", rest[0], scale)
        return g.build(node.name, first, by, *rest[1:], origin=(node,), **node.attrs)
    if node.name == "ai.elemwise_mul":
        return g.build(node.name, first, g.build("ai.elemwise_div", rest[0], scale),
                       origin=(node,))  # fmt: skip
    operands = [_divided(g, v, scale) for v in node.operands]
    return g.build(node.name, *operands, origin=(node,), **node.attrs)


RULES: Rules = {
    "ai.matmul": (integer_matmul,),
    "ai.conv": (integer_conv,),
    "ai.elemwise_add": (added_bias,),
    "ai.quantize_linear": (quantised,),
}
