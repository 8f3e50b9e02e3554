"""`--precision bf16`: constant float32 weights of products and convolutions become bfloat16.

The other operand is rounded to bfloat16 as it is read, sums stay float32. Attention may round its
operands. Other products of two inputs, and convolutions in groups that leave blocks of channels
unfilled, stay as they are.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cuvilc.dialect.ir import Program, Value
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rules, rewrite

NAME = "narrow-weights"
VERSION = 2


def run(program: Program, context: PassContext) -> None:
    """After it, if asked for, no product, and no convolution of one group, has float32 weights."""
    if context.precision != "bf16":
        return
    with program:
        narrow = _Narrow(context)
        rules: Rules = {
            "ai.matmul": (narrow.narrow_product,),
            "ai.conv": (narrow.narrow_convolution,),
            "ai.attention": (narrow_attention,),
        }
        rewrite(Graph(program), rules, context)


class _Narrow:
    """The rules, which share what they have made: a weight has one narrow form, straight or turned,
    however many products read it.
    """

    def __init__(self, context: PassContext) -> None:
        self.context = context
        self.made: dict[tuple[Value, bool], Value] = {}

    def narrow_product(self, g: Graph, node: Node) -> Any:
        """a · w → ai.matmul_mixed."""
        a, b = node.operands
        if g.type(a).dtype != "float32" or not g.is_weight(b):
            return None
        if g.type(b).rank != 2 or node.attr("transpose_a") or g.type(b).layout:
            raise Miss("not a matrix on the right, or a transposed one on the left")
        weights = self.weight(g, b, node.attr("transpose_b"))
        return g.build("ai.matmul_mixed", a, weights, origin=(node,))

    def narrow_convolution(self, g: Graph, node: Node) -> Any:
        """conv(x, w) → ai.conv_mixed."""
        x, w, *bias = node.operands
        if g.type(x).dtype != "float32" or not g.is_weight(w):
            return None
        sizes: Any = g.type(w).shape  # of a weight, so known
        whole = self.context.fills_blocks(sizes[0], sizes[1], node.attr("groups"))
        if not whole or g.type(x).rank != 4:
            raise Miss("groups of channels that fill no blocks, or not two spatial axes")
        if node.attr("dilations")[1] != 1 and g.type(w).shape[1] % 2:
            raise Miss("dilated taps of an odd number of channels")
        narrow = self.weight(g, w)
        return g.build("ai.conv_mixed", x, narrow, *bias, origin=(node,), **node.attrs)

    def weight(self, g: Graph, value: Value, turn: bool = False) -> Value:
        """A constant or parameter in bfloat16, turned if asked to."""
        if (value, turn) not in self.made:
            self.made[value, turn] = _narrow(g, value, turn)
        return self.made[value, turn]


def narrow_attention(g: Graph, node: Node) -> Any:
    """Attention's products may be of bfloat16."""
    if node.attr("narrow") or g.type(node.result).dtype != "float32":
        return None
    attrs = node.attrs | {"narrow": True}
    return g.build("ai.attention", *node.operands, origin=(node,), **attrs)


def _narrow(g: Graph, value: Value, turn: bool) -> Value:
    source = g.producer(value)
    assert source is not None
    array: Any = g.program.weight_array(value)
    array = np.ascontiguousarray(array.T) if turn else array
    key = f"{source.attr('key')}.bf16"
    made = g.constant(array.astype(ml_dtypes.bfloat16), key, at=source)
    if source.name != "ai.parameter":
        return made
    constant, axis = g.producers[made], source.attr("out_axis")
    attrs = source.attrs | constant.attrs | {"out_axis": 1 - axis if turn else axis}
    parameter: Value = g.build("ai.parameter", at=source, **attrs)
    g.drop(constant)
    return parameter
