"""com.microsoft's attention operators with masks: Attention, MultiHeadAttention.

They become `ai.attention` with masks added to the scores. As onnxruntime's CPU kernels do, a masked
place gets `mask_filter_value` (-10000), not -∞, and a place hidden by causality the lowest number
of float32, so a row that is masked everywhere still has finite weights.
"""

from __future__ import annotations

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.op import ShapeError

from ._table import importer, takes
from .onnx_node import Node, ai, cast, dtype_of, reshape, shape_of
from .onnx_nodes_attention import join_heads, split_heads
from .onnx_nodes_contrib import MICROSOFT, add, refuse_inputs, refuse_outputs
from .onnx_nodes_slice import concat_values, entry, sliced

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
        split_heads(part(wide, 2, start, size), heads)
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


def part(x: ir.Value, axis: int, start: Dim, size: Dim) -> ir.Value:
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
    return ai("attention", q, k, v, mask, scale=score_scale(n, q), causal=causal)


def score_scale(n: Node, q: ir.Value) -> float:
    """The factor of the scores: 1/√H where the node gives none, or 0."""
    width = shape_of(q)[3]
    if scale := n.attr("scale", 0.0):
        return float(scale)
    if not isinstance(width, int):
        raise ShapeError(f"the size of a head must be known, not {width}")
    return float(width**-0.5)


def places(length: Dim, axis: int, rank: int = 4) -> ir.Value:
    """0, 1, … along one of `rank` axes, int32."""
    shape = tuple(length if i == axis else 1 for i in range(rank))
    return ai("iota", shape=shape, axis=axis, dtype="int32", start=0, step=1)


def _later(queries: Dim, keys: Dim, past: Dim) -> ir.Value:
    """[1, 1, S, T]: whether the key stands behind the query."""
    shape = (1, 1, queries, 1)
    at = ai("iota", shape=shape, axis=2, dtype="int32", start=past, step=1)
    return ai("greater", places(keys, 3), at)


def _where_hidden(hidden: ir.Value, q: ir.Value, value: float = _HIDDEN) -> ir.Value:
    """A mask to add, in q's dtype: `value` where hidden, or the lowest number; else 0."""
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
        hidden = ai("greater_equal", places(keys, 3), ends)
    elif len(sizes) == 1 and sizes[0] == batch * 2:  # ends of all, then starts of all
        ends, starts = (
            reshape(part(given, 0, batch * j, batch), (batch, 1, 1, 1)) for j in range(2)
        )
        place = places(keys, 3)
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
    found: list[ir.Value] = []
    start: Dim = 0
    crossed = n.has(1) and len(n.shape(1)) == 4  # keys and values have their biases already
    for i, x in enumerate((q, k, v)):
        width = shape_of(x)[3]
        own = reshape(part(bias, 0, start, width * heads), (1, heads, 1, width))
        found.append(x if crossed and i else add(x, own))
        start = start + width * heads
    return found[0], found[1], found[2]


def _packed(x: ir.Value, i: int) -> ir.Value:
    """[B, S, N, parts, H] → part i as [B, N, S, H]."""
    b, s, heads, _, width = shape_of(x)
    return ai("transpose", reshape(part(x, 3, i, 1), (b, s, heads, width)), perm=(0, 2, 1, 3))
