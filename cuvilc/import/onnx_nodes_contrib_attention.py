"""com.microsoft's attention operators: Attention, MultiHeadAttention, GroupQueryAttention.

All become `ai.attention` with masks added to the scores. As onnxruntime's CPU kernels do, a masked
place gets `mask_filter_value` (-10000), not -∞, and a place hidden by causality the lowest number
of float32, so a row that is masked everywhere still has finite weights.
"""

from __future__ import annotations

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.op import ShapeError

from . import onnx_values as V
from ._table import importer, takes
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar, shape_of
from .onnx_nodes_attention import join_heads, split_heads
from .onnx_nodes_contrib import MICROSOFT, add, refuse_inputs, refuse_outputs
from .onnx_nodes_shape import concat_values, entry, sliced

_HIDDEN = float(np.finfo(np.float32).min)


@importer(
    "Attention",
    domain=MICROSOFT,
    refuse=takes(
        "num_heads", "unidirectional", "scale", "mask_filter_value", "qkv_hidden_sizes",
        do_rotary=(0,), past_present_share_buffer=(0,), rotary_embedding_dim=(0,),
    ),
)  # fmt: skip
def attention(n: Node) -> list[ir.Value | None]:
    """Projects the input by one matrix to q, k and v, then attends."""
    refuse_inputs(n, past_sequence_length=6)
    heads = n.attr("num_heads")
    wide = add(ai("matmul", n[0], n[1]), n.get(2))
    third = D.floordiv(shape_of(wide)[2], 3)
    sizes: tuple[Dim, ...] = n.ints("qkv_hidden_sizes") or (third, third, third)
    starts = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (
        split_heads(_part(wide, 2, start, size), heads)
        for start, size in zip(starts, sizes, strict=True)
    )
    past: Dim = 0
    if n.has(4):  # [2, B, heads, P, H]: keys, then values
        kept = [entry(n[4], i) for i in range(2)]
        past = shape_of(kept[0])[2]
        k, v = (concat_values([old, new], 2) for old, new in zip(kept, (k, v), strict=True))
    present = None
    if n.wants(1):
        present = concat_values([reshape(t, (1, *shape_of(t))) for t in (k, v)], 0)
    y = _attend(n, q, k, v, [_padding(n, 3, q, k), n.get(5)], past)
    return [join_heads(y), present]


def _part(x: ir.Value, axis: int, start: Dim, size: Dim) -> ir.Value:
    """The slice of `size` from `start` on along one axis."""
    sizes = list(shape_of(x))
    starts: list[Dim] = [0] * len(sizes)
    sizes[axis], starts[axis] = size, start
    return sliced(x, tuple(starts), tuple(sizes))


def _attend(
    n: Node, q: ir.Value, k: ir.Value, v: ir.Value, masks: list[ir.Value | None], past: Dim
) -> ir.Value:
    """Attention with these masks added, and causality where the node asks for it.

    q [B, N, S, H], k and v [B, N, T, ..]; masks broadcast to [B, N, S, T]; query s stands at place
    past + s of the keys.
    """
    masks = [None if m is None else cast(m, dtype_of(q)) for m in masks]
    causal = bool(n.attr("unidirectional", 0))
    if causal and past != 0:
        masks.append(_where_hidden(_later(shape_of(q)[2], shape_of(k)[2], past), q))
        causal = False
    mask = add(*masks) if any(m is not None for m in masks) else None
    return ai("attention", q, k, v, mask, scale=_scale(n, q), causal=causal)


def _scale(n: Node, q: ir.Value) -> float:
    """The factor of the scores: 1/√H where the node gives none, or 0."""
    width = shape_of(q)[3]
    if scale := n.attr("scale", 0.0):
        return float(scale)
    if not isinstance(width, int):
        raise ShapeError(f"the size of a head must be known, not {width}")
    return float(width**-0.5)


def _places(length: Dim, axis: int, rank: int = 4) -> ir.Value:
    """0, 1, … along one of `rank` axes, int32."""
    shape = tuple(length if i == axis else 1 for i in range(rank))
    return ai("iota", shape=shape, axis=axis, dtype="int32", start=0, step=1)


def _later(queries: Dim, keys: Dim, past: Dim) -> ir.Value:
    """[1, 1, S, T]: whether the key stands behind the query."""
    shape = (1, 1, queries, 1)
    at = ai("iota", shape=shape, axis=2, dtype="int32", start=past, step=1)
    return ai("greater", _places(keys, 3), at)


def _where_hidden(hidden: ir.Value, q: ir.Value, value: float = _HIDDEN) -> ir.Value:
    """A mask to add, float32 (float16 has no -10000·k to spare): `value` where hidden, else 0."""
    dtype = dtype_of(q)
    low = max(value, float(np.finfo(np.float16).min)) if dtype == "float16" else value
    return ai("where", hidden, ir.full(low, (), dtype), ir.full(0.0, (), dtype))


def _padding(n: Node, i: int, q: ir.Value, k: ir.Value) -> ir.Value | None:
    """The mask that input i describes: lengths, starts and ends, or zeros where keys are hidden."""
    if not n.has(i):
        return None
    given = n[i]
    sizes, batch, keys = shape_of(given), shape_of(q)[0], shape_of(k)[2]
    if len(sizes) == 1 and sizes[0] == batch:
        ends = reshape(given, (batch, 1, 1, 1))
        hidden = ai("greater_equal", _places(keys, 3), ends)
    elif len(sizes) == 1 and sizes[0] == batch * 2:  # ends of all, then starts of all
        ends, starts = (
            reshape(_part(given, 0, batch * j, batch), (batch, 1, 1, 1)) for j in range(2)
        )
        place = _places(keys, 3)
        late, early = ai("greater_equal", place, ends), ai("less", place, starts)
        hidden = ai("logical_or", late, early)
    elif len(sizes) in (2, 3):
        n.require_equal(sizes[-1], keys)
        shape = (batch, 1, 1 if len(sizes) == 2 else sizes[1], keys)
        hidden = ai("less_equal", reshape(given, shape), ir.full(0, (), dtype_of(given)))
    else:
        raise ShapeError(f"a mask of shape {list(sizes)} is not supported")
    return _where_hidden(hidden, q, float(n.attr("mask_filter_value", -10000.0)))


@importer(
    "MultiHeadAttention",
    domain=MICROSOFT,
    refuse=takes("num_heads", "unidirectional", "scale", "mask_filter_value"),
)
def multi_head_attention(n: Node) -> list[ir.Value | None]:
    """q, k and v come projected, apart, or packed as [B, S, N, 3, H] or [B, T, N, 2, H]."""
    refuse_inputs(n, past_sequence_length=8, cache_indirection=9)
    refuse_outputs(n, qk=3)
    q, k, v = _split_inputs(n, n.attr("num_heads"))
    past: Dim = 0
    if n.has(6) and n.has(7):
        past = shape_of(n[6])[2]
        k, v = concat_values([n[6], k], 2), concat_values([n[7], v], 2)
    y = _attend(n, q, k, v, [_padding(n, 4, q, k), n.get(5)], past)
    return [join_heads(y), k, v]


def _split_inputs(n: Node, heads: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """q, k, v as [B, N, S, H], the bias of the projection added."""
    if len(n.shape(0)) == 5:  # all three in one
        q, k, v = (_packed(n[0], i) for i in range(3))
    else:
        q = split_heads(n[0], heads)
        if not n.has(1):
            raise ShapeError("the input `key` is missing")
        if len(n.shape(1)) == 5:
            k, v = (_packed(n[1], i) for i in range(2))
        elif len(n.shape(1)) == 4:  # [B, N, T, H] already
            k, v = n[1], n[2]
        else:
            k, v = split_heads(n[1], heads), split_heads(n[2], heads)
    bias = n.get(3)
    if bias is None:
        return q, k, v
    found, start = [], 0  # type: list[ir.Value], Dim
    crossed = n.has(1) and len(n.shape(1)) == 4  # keys and values have their biases already
    for i, x in enumerate((q, k, v)):
        width = shape_of(x)[3]
        part = reshape(_part(bias, 0, start, width * heads), (1, heads, 1, width))
        found.append(x if crossed and i else add(x, part))
        start = start + width * heads
    return found[0], found[1], found[2]


def _packed(x: ir.Value, i: int) -> ir.Value:
    """[B, S, N, parts, H] → part i as [B, N, S, H]."""
    b, s, heads, _, width = shape_of(x)
    return ai("transpose", reshape(_part(x, 3, i, 1), (b, s, heads, width)), perm=(0, 2, 1, 3))


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
        line = cast(_places(shape_of(x)[2], 1, 2), dtype_of(ids))
        ids = ai("elemwise_add", line, reshape(ids, (1, 1)))
    y = rotated(n, x, n[2], n[3], ids, bool(n.attr("interleaved", 0)))
    return join_heads(y) if flat else y


def rotated(
    n: Node, x: ir.Value, cos: ir.Value, sin: ir.Value, ids: ir.Value, interleaved: bool
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

    Sequence b has seqlens_k[b] + 1 keys with the new ones. The new ones stand behind its past; the
    rest of the present caches is 0. Rows of queries beyond a sequence's own
    length hold nothing of meaning, as in onnxruntime.
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
            ids = ai("elemwise_add", reshape(first, (batch, 1)), _places(length, 1, 2))
        turn = bool(n.attr("rotary_interleaved", 0))
        q, k = (rotated(n, x, n[7], n[8], ids, turn) for x in (q, k))
    if n.has(3):
        k, v = (_kept(n[3 + i], new, first, keys, total) for i, new in enumerate((k, v)))
    mask = _window_mask(n, q, k, first)
    if n.has(10):
        mask = add(mask, _fitted_bias(n[10], shape_of(k)[2]))
    y = ai("attention", q, k, v, mask, scale=_scale(n, q), softcap=float(n.attr("softcap", 0.0)))
    return [join_heads(y), k, v]


def _grouped_inputs(n: Node, heads: int, shared: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """q, k and v of their heads, apart or packed along the last axis, q and k normalised."""
    if n.has(1):
        q, k, v = split_heads(n[0], heads), split_heads(n[1], shared), split_heads(n[2], shared)
    else:
        width = D.floordiv(n.shape(0)[2], heads + 2 * shared)
        starts = (0, heads * width, (heads + shared) * width)
        q, k, v = (
            split_heads(_part(n[0], 2, start, count * width), count)
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
    place = _places(rows, 2)
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
    query = ai("elemwise_add", _places(shape_of(q)[2], 2), first)
    key = _places(shape_of(k)[2], 3)
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
