"""Identities of elementwise operations. Each keeps NaN and infinities as they are.

The sign of a zero is not kept: x + 0 becomes x, though -0 + 0 is +0. (No ONNX operator promises
it.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cuvilc.dialect.ir import Value
from cuvilc.dialect.narrow import NARROW, NARROW_FLOATS, STORED
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rewrite
from cuvilc.dialect.types import FLOATS

BINARY = (
    "ai.elemwise_add", "ai.elemwise_sub", "ai.elemwise_mul", "ai.elemwise_div", "ai.pow",
    "ai.maximum", "ai.minimum", "ai.mod", "ai.equal", "ai.less", "ai.less_equal", "ai.greater",
    "ai.greater_equal", "ai.logical_and", "ai.logical_or", "ai.logical_xor",
)  # fmt: skip


def _same_type(g: Graph, node: Node, value: Value) -> Value | None:
    """`value` if it can stand for the node's result."""
    return value if value.type == node.result.type else None


def _is_float(g: Graph, node: Node) -> bool:
    return g.type(node.result).dtype in FLOATS


def scalar_operand(g: Graph, node: Node) -> Any:
    """A full operand becomes rank 0 where the result's type stays, so that it can be shared."""
    for i, v in enumerate(node.operands):
        number = g.number(v)
        if number is None or g.type(v).rank == 0:
            continue
        operands = list(node.operands)
        operands[i] = g.full(number, (), g.type(v).dtype)
        return g.build(node.name, *operands, **node.broadcasting())
    return None


def implicit_broadcast(g: Graph, node: Node) -> Any:
    """op(broadcast_to(x), y) → op(x, y) where the broadcast adds nothing to the result's shape."""
    for i, v in enumerate(node.operands):
        source = g.producer(v, "ai.broadcast_to")
        if source is None:
            continue
        operands = list(node.operands)
        operands[i] = source.operands[0]
        others = [g.type(o).rank for j, o in enumerate(operands) if j != i]
        if max(others, default=0) < g.type(node.result).rank and len(operands) > 1:
            continue
        made = g.build(node.name, *operands, **node.broadcasting())
        if made.type == node.result.type:
            return made
    return None


def add_zero(g: Graph, node: Node) -> Any:
    a, b = node.operands
    for x, c in ((a, b), (b, a)):
        if g.number(c) == 0 and (kept := _same_type(g, node, x)) is not None:
            return kept
    return None


def _is_known(g: Graph, value: Value, depth: int = 4) -> bool:
    """Whether the value is a constant, or will be one: a sum of few."""
    node = g.producer(value)
    if not depth or node is None or node.name not in ("ai.elemwise_add", "ai.elemwise_sub"):
        return g.is_constant(value)
    return all(_is_known(g, v, depth - 1) for v in node.operands)


def integer_terms(g: Graph, node: Node) -> Any:
    """(x ± c) + d → x + (d ± c) of constant integers, which wrap alike in any order."""
    if _is_float(g, node):
        return None
    for x, d in (tuple(node.operands), tuple(reversed(node.operands))):
        inner = g.producer(x)
        if inner is None or inner.name not in ("ai.elemwise_add", "ai.elemwise_sub"):
            continue
        y, c = inner.operands
        if inner.name == "ai.elemwise_add" and _is_known(g, y):
            y, c = c, y
        fits = g.type(y) == g.type(x) == g.type(node.result) and g.type(c) == g.type(d)
        if fits and _is_known(g, c) and _is_known(g, d) and g.one_use(x):
            return g.build("ai.elemwise_add", y, g.build(inner.name, d, c))
    return None


def sub_constant(g: Graph, node: Node) -> Any:
    """x - c → x + (-c) for floats, so that one rule sees both; x - 0 → x; 0 - x → -x."""
    x, c = node.operands
    number = g.number(c)
    if number == 0:
        return _same_type(g, node, x)
    if number is not None and _is_float(g, node):
        t = g.type(c)
        attrs = {"broadcast": node.attr("broadcast"), "rounding": node.attr("rounding")}
        return g.build("ai.elemwise_add", x, g.full(-number, t.shape, t.dtype), **attrs)
    if g.number(x) == 0 and c.type == node.result.type:
        return g.build("ai.neg", c)
    return None


def mul_one(g: Graph, node: Node) -> Any:
    """x · 1 → x; x · -1 → -x."""
    a, b = node.operands
    for x, c in ((a, b), (b, a)):
        number = g.number(c)
        if number == 1 and (kept := _same_type(g, node, x)) is not None:
            return kept
        if number == -1 and x.type == node.result.type and not g.type(x).dtype.startswith("u"):
            return g.build("ai.neg", x)
    return None


def div_exact(g: Graph, node: Node) -> Any:
    """x / 1 → x; x / 2ⁿ → x · 2⁻ⁿ, which rounds alike; 1 / x → reciprocal."""
    x, c = node.operands
    number = g.number(c)
    if number == 1:
        return _same_type(g, node, x)
    if not _is_float(g, node):
        return None
    if number and math.isfinite(number) and abs(math.frexp(number)[0]) == 0.5:
        inverse = 1.0 / number
        if 1e-4 < abs(inverse) < 1e4:  # far from the subnormals of every dtype
            return g.build("ai.elemwise_mul", x, g.full(inverse, g.type(c).shape, g.type(c).dtype))
    if g.number(x) == 1 and c.type == node.result.type:
        return g.build("ai.reciprocal", c)
    return None


def power(g: Graph, node: Node) -> Any:
    """x¹ → x, x² → x·x, x³ → x·x·x, x^½ → √x, x⁻¹ → 1/x, x^-½ → 1/√x."""
    x, exponent = node.operands
    number = g.number(exponent)
    if number is None or x.type != node.result.type:
        return None
    if number == 1:
        return x
    if number in (2, 3):
        square = g.build("ai.elemwise_mul", x, x)
        return square if number == 2 else g.build("ai.elemwise_mul", square, x)
    if not _is_float(g, node):
        return None
    if number in (0.5, -0.5):
        root = g.build("ai.sqrt", x)
        return root if number > 0 else g.build("ai.reciprocal", root)
    return g.build("ai.reciprocal", x) if number == -1 else None


def idempotent(g: Graph, node: Node) -> Any:
    """relu(relu x), abs(abs x), abs(-x), -(-x)."""
    inner = g.producer(node.operands[0])
    if inner is None:
        return None
    if node.name == "ai.neg":
        return inner.operands[0] if inner.name == "ai.neg" else None
    if inner.name == node.name:
        return inner.result
    if node.name == "ai.abs" and inner.name == "ai.neg":
        return g.build("ai.abs", inner.operands[0])
    return None


def extreme_of_number(g: Graph, node: Node) -> Any:
    """max(x, 0) → relu; max or min of x and a number → clip. NaN stays NaN in both."""
    a, b = node.operands
    for x, c in ((a, b), (b, a)):
        number = g.number(c)
        if number is None or x.type != node.result.type or g.number(x) is not None:
            continue
        if number != number or abs(number) > 2**53:
            return None
        if node.name == "ai.maximum" and number == 0:
            return g.build("ai.relu", x)
        low, high = (float(number), None) if node.name == "ai.maximum" else (None, float(number))
        return g.build("ai.clip", x, low=low, high=high)
    return None


def _bounds(node: Node) -> tuple[float, float] | None:
    """(low, high) of a clip or relu."""
    if node.name == "ai.relu":
        return 0.0, math.inf
    if node.name == "ai.clip":
        low, high = node.attr("low"), node.attr("high")
        return (-math.inf if low is None else low), (math.inf if high is None else high)
    return None


def clip_chain(g: Graph, node: Node) -> Any:
    """Two clips in a row → one; an open clip → x; clip at 0 only → relu."""
    low, high = _bounds(node) or (0.0, 0.0)
    inner = g.producer(node.operands[0])
    first = _bounds(inner) if inner is not None else None
    x = node.operands[0]
    if inner is not None and first is not None and first[0] <= first[1] and low <= high:
        x = inner.operands[0]
        low, high = min(max(first[0], low), high), min(max(first[1], low), high)
    elif node.name == "ai.relu" or (low, high) not in ((0.0, math.inf), (-math.inf, math.inf)):
        return None
    if (low, high) == (-math.inf, math.inf):
        return x
    if (low, high) == (0.0, math.inf):
        return g.build("ai.relu", x)
    bounds: dict[str, Any] = {
        "low": None if low == -math.inf else low,
        "high": None if high == math.inf else high,
    }
    return g.build("ai.clip", x, **bounds)


def _holds(source: str, middle: str) -> bool:
    """Whether every value of dtype `source` survives in `middle`."""
    if source == middle or source == "bool":
        return True
    if middle in NARROW:
        return False
    if source in NARROW_FLOATS:
        return middle in ("float32", "float64", "bfloat16")
    source = STORED.get(source, source)
    if source == "bfloat16":
        return middle in ("float32", "float64")
    if middle == "bfloat16" or (source in ("int64", "uint64") and middle in FLOATS):
        return False
    return bool(np.can_cast(source, middle, "safe"))


def cast_chain(g: Graph, node: Node) -> Any:
    """A cast to the same dtype; a cast of a cast that lost nothing."""
    x = node.operands[0]
    if x.type == node.result.type:
        return x
    inner = g.producer(x, "ai.cast")
    if inner is None:
        return None
    source = inner.operands[0]
    if not _holds(g.type(source).dtype, g.type(x).dtype):
        return None
    if source.type == node.result.type:
        return source
    return g.build("ai.cast", source, dtype=node.attr("dtype"))


def where_known(g: Graph, node: Node) -> Any:
    """A constant condition, equal branches, a negated condition."""
    condition, x, y = node.operands
    number = g.number(condition)
    chosen = x if x == y else None if number is None else x if number else y
    if chosen is not None:
        if chosen.type == node.result.type:
            return chosen
        return g.build("ai.broadcast_to", chosen, shape=g.type(node.result).shape)
    inverse = g.producer(condition, "ai.logical_not")
    if inverse is not None:
        return g.build("ai.where", inverse.operands[0], y, x)
    return None


def logic_known(g: Graph, node: Node) -> Any:
    """x and true → x, x or false → x, and the constants that decide alone."""
    a, b = node.operands
    neutral = node.name == "ai.logical_and"
    for x, c in ((a, b), (b, a)):
        number = g.number(c)
        if number is None:
            continue
        if bool(number) == neutral:
            return _same_type(g, node, x)
        return g.full(not neutral, g.type(node.result).shape, "bool")
    return None


def small_constant(g: Graph, node: Node) -> Any:
    """A constant of one element → ai.full, which kernels take as an immediate."""
    t = g.type(node.result)
    if t.layout or any(d != 1 for d in t.shape) or t.dtype in NARROW_FLOATS:
        return None  # a number does not tell a narrow float's NaNs apart
    number = g.array(node.result).reshape(()).astype(
        np.float64 if t.dtype == "bfloat16" else STORED.get(t.dtype, g.array(node.result).dtype)
    ).item()  # fmt: skip
    if not -(2**63) <= number < 2**63 and t.dtype not in FLOATS:
        return None
    return g.full(number, t.shape, t.dtype)


_ELEMENTWISE: tuple[Rewrite, ...] = (scalar_operand, implicit_broadcast)
RULES: dict[str, tuple[Rewrite, ...]] = dict.fromkeys(BINARY, _ELEMENTWISE) | {
    "ai.elemwise_add": (add_zero, integer_terms, *_ELEMENTWISE),
    "ai.elemwise_sub": (sub_constant, *_ELEMENTWISE),
    "ai.elemwise_mul": (mul_one, *_ELEMENTWISE),
    "ai.elemwise_div": (div_exact, *_ELEMENTWISE),
    "ai.pow": (power, *_ELEMENTWISE),
    "ai.maximum": (extreme_of_number, *_ELEMENTWISE),
    "ai.minimum": (extreme_of_number, *_ELEMENTWISE),
    "ai.logical_and": (logic_known, *_ELEMENTWISE),
    "ai.logical_or": (logic_known, *_ELEMENTWISE),
    "ai.where": (where_known, *_ELEMENTWISE),
    "ai.relu": (idempotent, clip_chain),
    "ai.abs": (idempotent,),
    "ai.neg": (idempotent,),
    "ai.clip": (clip_chain,),
    "ai.cast": (cast_chain,),
    "ai.constant": (small_constant,),
}
