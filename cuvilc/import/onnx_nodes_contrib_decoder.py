"""com.microsoft's attention as decoders have it: RotaryEmbedding, GroupQueryAttention."""

from __future__ import annotations

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim

from . import onnx_values as V
from ._table import importer, takes
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar, shape_of
from .onnx_nodes_attention import join_heads, split_heads
from .onnx_nodes_contrib import MICROSOFT, add, refuse_inputs, refuse_outputs
from .onnx_nodes_contrib_attention import part, places, score_scale
from .onnx_nodes_slice import concat_values


@importer("RotaryEmbedding", domain=MICROSOFT, refuse=takes(
    "num_heads", "rotary_embedding_dim", "interleaved", scale=(1.0,), is_packed_batching=(0,)
))  # fmt: skip
def rotary_embedding(n: Node) -> ir.Value:
    """As ONNX's, but the tables always have a row a position, and ids may be one first position."""
    x = n[0]
    rotary = n.attr("rotary_embedding_dim", 0)
    width = shape_of(n[2])[1] * 2
    flat = len(shape_of(x)) == 3
    if flat:
        heads = n.attr("num_heads", 0) if rotary else 0
        x = split_heads(x, heads or D.floordiv(shape_of(x)[2], width))
    ids = n[1]
    if len(shape_of(ids)) == 1:
        line = cast(places(shape_of(x)[2], 1, 2), dtype_of(ids))
        ids = ai("elemwise_add", line, reshape(ids, (1, 1)))
    y = _rotated(x, n[2], n[3], ids, bool(n.attr("interleaved", 0)))
    return join_heads(y) if flat else y


def _rotated(
    x: ir.Value, cos: ir.Value, sin: ir.Value, ids: ir.Value, interleaved: bool
) -> ir.Value:
    """x [B, N, S, H] turned by the angles of its positions: ids [B or 1, S] name rows of tables."""
    cos, sin = (ai("gather", table, ids, axis=0) for table in (cos, sin))
    turned = shape_of(cos)[2] * 2
    return ai("rotary_embedding", x, cos, sin, interleaved=interleaved, rotary_dim=turned)


@importer(
    "GroupQueryAttention",
    domain=MICROSOFT,
    refuse=takes(
        "num_heads", "kv_num_heads", "scale", "softcap", "local_window_size", "do_rotary",
        "rotary_interleaved", "q_norm_epsilon", "k_norm_epsilon", "qk_norm_epsilon",
        causal=(1,), qk_output=(0,), smooth_softmax=(0, -1), sliding_window_cache=(0,),
        kv_cache_bit_width=(0,), k_quant_type=("NONE",), v_quant_type=("NONE",),
    ),
)  # fmt: skip
def group_query_attention(n: Node) -> list[ir.Value]:
    """Causal attention with fewer key heads than query heads and a cache of keys and values.

    Sequence b has seqlens_k[b] + 1 keys with the new ones, which stand behind its past; the rest of
    the present caches is 0. Rows of queries beyond a sequence's own length hold nothing of meaning,
    as in onnxruntime.
    """
    refuse_inputs(n, head_sink=11, k_scale=12, v_scale=13, query_seqlens=16)
    refuse_outputs(n, output_qk=3)
    heads, shared = n.attr("num_heads"), n.attr("kv_num_heads")
    q, k, v = _grouped_inputs(n, heads, shared)
    length = shape_of(q)[2]
    total = n.dims(6, "the total sequence length is")[0]
    batch = shape_of(q)[0]
    keys = ai("elemwise_add", reshape(n[5], (batch, 1, 1, 1)), ir.full(1, (), "int32"))
    first = ai("maximum", ai("elemwise_sub", keys, _size_value(length)), ir.full(0, (), "int32"))
    if n.attr("do_rotary", 0):
        ids = n.get(9)
        if ids is None:
            ids = ai("elemwise_add", reshape(first, (batch, 1)), places(length, 1, 2))
        turn = bool(n.attr("rotary_interleaved", 0))
        q, k = (_rotated(x, n[7], n[8], ids, turn) for x in (q, k))
    if n.has(3):
        k, v = (_kept(n[3 + i], new, first, keys, total) for i, new in enumerate((k, v)))
    mask = _window_mask(n, q, k, first)
    if n.has(10):
        mask = add(mask, _fitted_bias(n[10], shape_of(k)[2]))
    y = ai(
        "attention", q, k, v, mask, scale=score_scale(n, q), softcap=float(n.attr("softcap", 0.0))
    )
    return [join_heads(y), k, v]


def _grouped_inputs(n: Node, heads: int, shared: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """q, k and v of their heads, apart or packed along the last axis, q and k normalised."""
    if n.has(1):
        q, k, v = split_heads(n[0], heads), split_heads(n[1], shared), split_heads(n[2], shared)
    else:
        width = D.floordiv(n.shape(0)[2], heads + 2 * shared)
        starts = (0, heads * width, (heads + shared) * width)
        q, k, v = (
            split_heads(part(n[0], 2, start, count * width), count)
            for start, count in zip(starts, (heads, shared, shared), strict=True)
        )
    normalised = []
    for x, i, name in ((q, 14, "q"), (k, 15, "k")):
        eps = n.attr(f"{name}_norm_epsilon", n.attr("qk_norm_epsilon", 1e-6))
        scale = n.get(i)
        normalised.append(x if scale is None else ai("rms_norm", x, scale, axis=3, eps=eps))
    return normalised[0], normalised[1], v


def _size_value(d: Dim) -> ir.Value:
    """A size as an int32 number."""
    return ai("iota", shape=(1,), axis=0, dtype="int32", start=d, step=1)


def _kept(past: ir.Value, new: ir.Value, first: ir.Value, keys: ir.Value, total: Dim) -> ir.Value:
    """The cache with the new rows [B, G, S, H] from row `first` [B, 1, 1, 1] on; zeros from row
    `keys` on.
    """
    before, length = shape_of(past)[2], shape_of(new)[2]
    rows = V.maximum(before, total)
    joined = concat_values([past, new], 2)
    place = places(rows, 2)
    since = ai("elemwise_sub", place, first)
    inside = ai(
        "logical_and",
        ai("greater_equal", since, ir.full(0, (), "int32")),
        ai("less", since, _size_value(length)),
    )
    last = V.maximum(before - 1, 0)
    old = ai("minimum", place, _size_value(last))
    row = ai("where", inside, ai("elemwise_add", since, _size_value(before)), old)
    batch, groups = shape_of(new)[:2]
    at = ai("broadcast_to", row, shape=(batch, groups, rows, 1))
    found = ai("gather_nd", joined, at, batch_dims=2)
    return ai("where", ai("less", place, keys), found, scalar(0.0, found))


def _window_mask(n: Node, q: ir.Value, k: ir.Value, first: ir.Value) -> ir.Value:
    """[B, 1, S, T]: hides what stands behind the query, or too far before it."""
    query = ai("elemwise_add", places(shape_of(q)[2], 2), first)
    key = places(shape_of(k)[2], 3)
    hidden = ai("greater", key, query)
    window = n.attr("local_window_size", -1)
    if window >= 0:
        oldest = ai("elemwise_sub", query, ir.full(window, (), "int32"))
        hidden = ai("logical_or", hidden, ai("less_equal", key, oldest))
    return ai("where", hidden, scalar(float("-inf"), q), scalar(0.0, q))


def _fitted_bias(bias: ir.Value, keys: Dim) -> ir.Value:
    """The bias, with zeros for keys of a longer cache."""
    short = keys - shape_of(bias)[3]
    if short == 0:
        return bias
    return ai("pad", bias, before=(0, 0, 0, 0), after=(0, 0, 0, short), mode="constant", value=0.0)
