"""`--precision bf16`: constant float32 weights of products and convolutions become bfloat16.

The other operand is rounded to bfloat16 as it is read, sums stay float32. What has no constant
weights (attention, products of two inputs), and convolutions in groups, stay as they are.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cuvilc.dialect.ir import Program, Value
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rules, rewrite

NAME = "narrow-weights"
VERSION = 1


def run(program: Program, context: PassContext) -> None:
    """After it, if asked for, no product or convolution of one group has float32 weights."""
    if context.precision != "bf16":
        return
    with program:
        rewrite(Graph(program), RULES, context)


def narrow_product(g: Graph, node: Node) -> Any:
    """a · w → ai.matmul_mixed."""
    a, b = node.operands
    if g.type(a).dtype != "float32" or not g.is_constant(b):
        return None
    if g.type(b).rank != 2 or node.attr("transpose_a") or g.type(b).layout:
        raise Miss("not a matrix on the right, or a transposed one on the left")
    weights = _narrow(g, b, node.attr("transpose_b"))
    return g.build("ai.matmul_mixed", a, weights, origin=(node,))


def narrow_convolution(g: Graph, node: Node) -> Any:
    """conv(x, w) → ai.conv_mixed."""
    x, w, *bias = node.operands
    if g.type(x).dtype != "float32" or not g.is_constant(w):
        return None
    if node.attr("groups") != 1 or g.type(x).rank != 4:
        raise Miss("groups, or not two spatial axes")
    if node.attr("dilations")[1] != 1 and g.type(w).shape[1] % 2:
        raise Miss("dilated taps of an odd number of channels")
    return g.build("ai.conv_mixed", x, _narrow(g, w), *bias, origin=(node,), **node.attrs)


def _narrow(g: Graph, value: Value, turn: bool = False) -> Value:
    source = g.producer(value)
    assert source is not None
    array = g.array(value)
    array = np.ascontiguousarray(array.T) if turn else array
    return g.constant(array.astype(ml_dtypes.bfloat16), f"{source.attr('key')}.bf16")


RULES: Rules = {"ai.matmul": (narrow_product,), "ai.conv": (narrow_convolution,)}
