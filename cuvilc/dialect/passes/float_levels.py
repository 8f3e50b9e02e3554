"""Levels that only their own kernel reads stay floats: no integers between, the same values.

After fusion, since between kernels bytes are a quarter of the memory.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect.ir import Program
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.passes.raise_integers_levels import dequantised, is_one, same, zero_of
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rules, rewrite

NAME = "float-levels"
VERSION = 1


def run(program: Program, context: PassContext) -> None:
    """After it no kernel dequantises bytes that it has quantised itself, by one scale each."""
    with program:
        rewrite(Graph(program), RULES, context)


def floating(g: Graph, node: Node) -> Any:
    """dequantise(quantise(x)) of which nobody else reads the levels → ai.fake_quantize."""
    first = g.producer(node.operands[0], "ai.quantize_linear")
    if dequantised(g, node.result) is None or first is None or not g.one_use(first.result):
        return None
    x, scale, zero = first.operands
    single = is_one(g, scale) and is_one(g, node.operands[1]) and not first.attr("block")
    types = (g.type(x).dtype, g.type(scale).dtype, g.type(node.result).dtype)
    if not single or {*types, first.attr("precision")} != {"float32"}:
        return None
    if not same(g, zero, zero_of(node)):
        return None
    return g.build("ai.fake_quantize", x, scale, zero, node.operands[1], origin=(first, node))


RULES: Rules = {"ai.dequantize_linear": (floating,)}
