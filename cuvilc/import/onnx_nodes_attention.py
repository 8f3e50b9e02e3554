"""Attention and rotary embeddings (ai.onnx 23 and later)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, floordiv
from cuvilc.dialect.op import ShapeError

from ._table import importer, only
from .onnx_node import Node, UseDefinition, ai, cast, dtype_of, reshape, scalar, shape_of

_PLAIN_ATTRIBUTES = {
    "is_causal", "kv_num_heads", "q_num_heads", "scale", "softcap", "softmax_precision",
    "qk_matmul_output_mode",
}  # fmt: skip


@importer("Attention")
def attention(n: Node) -> ir.Value:
    """The plain form as one operation; caches and inner outputs by ONNX's own definition."""
    if any(n.has(i) for i in (4, 5, 6)) or any(n.wants(i) for i in (1, 2, 3)):
        raise UseDefinition
    if not n.attributes.keys() <= _PLAIN_ATTRIBUTES:  # windows and what later opsets add
        raise UseDefinition
    q, k, v = n[0], n[1], n[2]
    flat = len(shape_of(q)) == 3
    if flat:
        heads, shared = n.attr("q_num_heads"), n.attr("kv_num_heads")
        q, k, v = split_heads(q, heads), split_heads(k, shared), split_heads(v, shared)
    width = shape_of(q)[3]
    causal = bool(n.attr("is_causal", 0))
    mask, hidden = _mask(n, q, k), _hidden_rows(n, causal)
    scale = n.attr("scale")
    if scale is None:
        if not isinstance(width, int):
            raise UseDefinition
        scale = width**-0.5
    y = ai(
        "attention", q, k, v, mask, scale=float(scale), causal=causal,
        softcap=float(n.attr("softcap", 0.0)),
    )  # fmt: skip
    if hidden is not None:
        y = ai("where", hidden, scalar(0.0, y), y)
    return join_heads(y) if flat else y


def _mask(n: Node, q: ir.Value, k: ir.Value) -> ir.Value | None:
    if not n.has(3):
        return None
    if n.shape(3)[-1] != shape_of(k)[2]:  # a short mask is extended by hidden columns
        raise UseDefinition
    if n.type(3).dtype == "bool":  # a row with all hidden is 0 by ONNX, NaN by ai.attention
        raise UseDefinition
    return cast(n[3], dtype_of(q))


def _hidden_rows(n: Node, causal: bool) -> ir.Value | None:
    """[.., S, 1]: where a mask of floats hides everything; such a row is 0 by ONNX, NaN by
    ai.attention. None if it hides no whole row. Raises UseDefinition.
    """
    if not n.has(3):
        return None
    known = n.array(3)
    if known is not None:
        visible = known != -math.inf
        # By causality the first row sees the first key alone, and each row that one at least.
        if np.all(np.any(visible[..., :1] if causal else visible, axis=-1)):
            return None
    if causal:  # what the mask leaves may be what causality hides
        raise UseDefinition
    most = ai("reduce_max", n[3], axes=(len(n.shape(3)) - 1,), keepdims=True)
    return ai("equal", most, scalar(-math.inf, most))


def split_heads(x: ir.Value, heads: Dim | None) -> ir.Value:
    """[B, S, H·D] → [B, H, S, D]. ShapeError where the node does not say how many heads."""
    if heads is None or (isinstance(heads, int) and heads < 1):
        raise ShapeError(f"{heads or 'no'} heads")
    b, s, width = shape_of(x)
    wide = reshape(x, (b, s, heads, floordiv(width, heads)))
    return ai("transpose", wide, perm=(0, 2, 1, 3))


def join_heads(x: ir.Value) -> ir.Value:
    """[B, H, S, D] → [B, S, H·D]."""
    b, heads, s, width = shape_of(x)
    return reshape(ai("transpose", x, perm=(0, 2, 1, 3)), (b, s, heads * width))


@importer("RotaryEmbedding")
def rotary_embedding(n: Node) -> ir.Value:
    x = n[0]
    flat = len(shape_of(x)) == 3
    if flat:
        x = split_heads(x, n.attr("num_heads"))
    return _rotate(n, x, n[1], n[2], n.get(3), flat)


def _rotate(n: Node, x: ir.Value, cos: ir.Value, sin: ir.Value, ids: Any, flat: bool) -> ir.Value:
    if ids is not None:
        cos, sin = (ai("gather", table, ids, axis=0) for table in (cos, sin))
    dim: Dim = n.attr("rotary_embedding_dim", 0) or shape_of(x)[3]
    y = ai(
        "rotary_embedding", x, cos, sin, interleaved=bool(n.attr("interleaved", 0)), rotary_dim=dim
    )
    return join_heads(y) if flat else y


@importer("TensorScatter", refuse=only(mode=("linear", "circular")))
def tensor_scatter(n: Node) -> ir.Value:
    """A cache of keys or values with the newest ones written where each sequence ends."""
    x = n[0]
    start = n[2] if n.has(2) else ir.full(0, shape_of(x)[:1], "int64")
    circular = n.attr("mode", "linear") == "circular"
    return ai("tensor_scatter", x, n[1], start, axis=n.axis(-2), circular=circular)
