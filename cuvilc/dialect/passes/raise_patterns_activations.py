"""Activations and softmax written out in elementwise operations → the operation itself.

Products are flattened first: exporters associate x · ½ · (1 + erf(x/√2)) in every order.
"""

from __future__ import annotations

import math
from typing import Any

from cuvilc.dialect.ir import Value
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rewrite
from cuvilc.dialect.passes.rules_pattern import (
    Match,
    Pattern,
    any_value,
    close,
    either,
    number,
    op,
)

_DEPTH = 5


class Product:
    """A tree of multiplications as a number and its other factors; `nodes` made it, root first."""

    def __init__(self, g: Graph, root: Value) -> None:
        self.g = g
        self.number = 1.0
        self.factors: list[Value] = []
        self.nodes: list[Node] = []
        self._add(root, _DEPTH, True)

    def _add(self, value: Value, depth: int, is_root: bool = False) -> None:
        known = self.g.number(value)
        if known is not None:
            self.number *= float(known)
            return
        node = self.g.producer(value)
        if node is None or not depth or not (is_root or self.g.one_use(value)):
            self.factors.append(value)
        elif node.name == "ai.elemwise_mul":
            self.nodes.append(node)
            for v in node.operands:
                self._add(v, depth - 1)
        elif node.name == "ai.elemwise_div" and self.g.number(node.operands[1]):
            self.nodes.append(node)
            self.number /= float(self.g.number(node.operands[1]))
            self._add(node.operands[0], depth - 1)
        else:
            self.factors.append(value)


def _squares(g: Graph, factors: list[Value], x: Value, power: int) -> bool:
    """Whether the factors are x to that power, powers of x computed on the way included."""
    count = 0
    for f in factors:
        node = g.producer(f, "ai.elemwise_mul")
        if f == x:
            count += 1
        elif node is not None and set(node.operands) == {x}:
            count += 2
        else:
            return False
    return count == power


def _one_plus(g: Graph, value: Value) -> Value | None:
    """t where value is 1 + t."""
    found = Match(g)
    return found["t"] if op("ai.elemwise_add", number(1.0), any_value("t")).matches(
        g, value, found
    ) else None  # fmt: skip


def _is_float(g: Graph, node: Node) -> bool:
    return g.type(node.result).is_float


def gelu(g: Graph, node: Node) -> Any:
    """½ · x · (1 + erf(x/√2)), and the tanh form."""
    product = Product(g, node.result)
    if len(product.factors) != 2 or not close(product.number, 0.5) or not _is_float(g, node):
        return None
    for x, rest in (product.factors, product.factors[::-1]):
        t = _one_plus(g, rest)
        source = g.producer(t) if t is not None and x.type == node.result.type else None
        if source is None:
            continue
        if source.name == "ai.erf":
            inner = Product(g, source.operands[0])
            if inner.factors == [x] and close(inner.number, math.sqrt(0.5)):
                return g.build("ai.gelu", x, approximate="none", origin=product.nodes)
        if source.name == "ai.tanh" and _is_cubic(g, source.operands[0], x):
            return g.build("ai.gelu", x, approximate="tanh", origin=product.nodes)
    return None


def _is_cubic(g: Graph, value: Value, x: Value) -> bool:
    """√(2/π) · (x + 0.044715 x³), or √(2/π) · x · (1 + 0.044715 x²)."""
    outer = Product(g, value)
    if not close(outer.number, math.sqrt(2 / math.pi)):
        return False
    if len(outer.factors) == 2 and x in outer.factors:
        rest = outer.factors[1] if outer.factors[0] == x else outer.factors[0]
        t = _one_plus(g, rest)
        return t is not None and _is_power(g, t, x, 2)
    if len(outer.factors) != 1:
        return False
    found = Match(g)
    pattern = op("ai.elemwise_add", any_value("x"), any_value("cube"))
    found.binds["x"] = x
    return pattern.matches(g, outer.factors[0], found) and _is_power(g, found["cube"], x, 3)


def _is_power(g: Graph, value: Value, x: Value, power: int) -> bool:
    inner = Product(g, value)
    return close(inner.number, 0.044715) and _squares(g, inner.factors, x, power)


def gated(g: Graph, node: Node) -> Any:
    """x · sigmoid(βx) → silu, x · hard_sigmoid(x) → hard_swish, x · tanh(softplus(x)) → mish."""
    product = Product(g, node.result)
    if len(product.factors) != 2 or not _is_float(g, node):
        return None
    for x, gate in (product.factors, product.factors[::-1]):
        source = g.producer(gate)
        if source is None or x.type != node.result.type:
            continue
        made = _gate(g, x, source, product)
        if made is not None:
            return made
    return None


def _gate(g: Graph, x: Value, gate: Node, product: Product) -> Any:
    one = product.number == 1
    if gate.name == "ai.sigmoid" and one:
        inner = Product(g, gate.operands[0])
        if gate.operands[0] == x:
            return g.build("ai.silu", x, beta=1.0, origin=product.nodes)
        if inner.factors == [x]:
            return g.build("ai.silu", x, beta=inner.number, origin=product.nodes)
    if gate.name == "ai.hard_sigmoid" and one and gate.operands[0] == x:
        fits = close(gate.attr("alpha"), 1 / 6) and gate.attr("beta") == 0.5
        return g.build("ai.hard_swish", x, origin=product.nodes) if fits else None
    if gate.name == "ai.clip" and close(product.number, 1 / 6):
        found = Match(g, {"x": x})
        if _HARD.matches(g, gate.result, found) and (gate.attr("low"), gate.attr("high")) == (0, 6):
            return g.build("ai.hard_swish", x, origin=product.nodes)
    if gate.name == "ai.tanh" and one:
        source = g.producer(gate.operands[0], "ai.softplus")
        if source is not None and source.operands[0] == x:
            return g.build("ai.mish", x, origin=product.nodes)
    return None


_HARD = op("ai.clip", op("ai.elemwise_add", any_value("x"), number(3.0)))


def hard_sigmoid(g: Graph, node: Node) -> Any:
    """clip(x + 3, 0, 6) / 6."""
    product = Product(g, node.result)
    found = Match(g)
    if len(product.factors) != 1 or not close(product.number, 1 / 6):
        return None
    gate = g.producer(product.factors[0], "ai.clip")
    if gate is None or (gate.attr("low"), gate.attr("high")) != (0, 6):
        return None
    # a clip that is also multiplied by its own x is a hard_swish in the making
    if not _HARD.matches(g, gate.result, found) or not g.one_use(gate.result):
        return None
    if found["x"].type != node.result.type:
        return None
    return g.build("ai.hard_sigmoid", found["x"], alpha=1 / 6, beta=0.5, origin=product.nodes)


_EXP_NEG = op("ai.exp", op("ai.neg", any_value("x")))
_ONE_PLUS_EXP = op("ai.elemwise_add", number(1.0), _EXP_NEG)
_SIGMOID = op("ai.reciprocal", _ONE_PLUS_EXP)
_SILU = op("ai.elemwise_div", any_value("x"), _ONE_PLUS_EXP)


def sigmoid(g: Graph, node: Node) -> Any:
    """1 / (1 + e⁻ˣ)."""
    found = _SIGMOID.search(g, node)
    return found and g.build("ai.sigmoid", found["x"], origin=found.nodes)


def silu_quotient(g: Graph, node: Node) -> Any:
    """x / (1 + e⁻ˣ)."""
    found = _SILU.search(g, node)
    return found and g.build("ai.silu", found["x"], beta=1.0, origin=found.nodes)


_SOFTPLUS = op("ai.log", op("ai.elemwise_add", number(1.0), op("ai.exp", any_value("x"))))


def softplus(g: Graph, node: Node) -> Any:
    """ln(1 + eˣ); the operation does not overflow where the written-out form does."""
    found = _SOFTPLUS.search(g, node)
    return found and g.build("ai.softplus", found["x"], origin=found.nodes)


def _softmax_pattern() -> Pattern:
    shifted = op("ai.elemwise_sub", any_value("x"), op("ai.reduce_max", any_value("x")).bind("max"))
    e = op("ai.exp", shifted).bind("e")
    total = op("ai.reduce_sum", any_value("e")).bind("sum")
    return either(
        op("ai.elemwise_div", e, total), op("ai.elemwise_mul", e, op("ai.reciprocal", total))
    )


_SOFTMAX = _softmax_pattern()


def softmax(g: Graph, node: Node) -> Any:
    """exp(x - max x) / Σ exp(x - max x) along one axis."""
    found = _SOFTMAX.search(g, node)
    if found is None:
        return None
    most, total = g.producers[found["max"]], g.producers[found["sum"]]
    axes = most.attr("axes")
    if axes != total.attr("axes") or len(axes) != 1:
        return None
    if not (most.attr("keepdims") and total.attr("keepdims")):
        return None
    return g.build("ai.softmax", found["x"], axis=axes[0], origin=found.nodes)


RULES: dict[str, tuple[Rewrite, ...]] = {
    "ai.elemwise_mul": (gelu, gated, hard_sigmoid, softmax),
    "ai.elemwise_div": (gelu, gated, hard_sigmoid, silu_quotient, softmax),
    "ai.reciprocal": (sigmoid,),
    "ai.log": (softplus,),
}
