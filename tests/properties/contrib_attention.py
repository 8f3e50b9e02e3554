"""com.microsoft's attention operators against onnxruntime."""

from __future__ import annotations

import numpy as np

from tests.properties.contrib import model
from tests.properties.draws import Case, Draw, Model
from tests.properties.registry import operator


def _key_mask(d: Draw, batch: int, queries: int, keys: int, ranges: bool) -> np.ndarray | None:
    """A mask in one of its forms that leaves every query the last key or first one."""
    kind = d.pick("none", "lengths", "keys", "pairs", *(["ranges"] if ranges else []))
    if kind == "none":
        return None
    if kind == "lengths":
        return d.array([batch], "int32", 1, keys)
    if kind == "ranges":
        starts = d.array([batch], "int32", 0, keys - 1)
        return np.concatenate([np.full(batch, keys, np.int32), starts])
    shape = [batch, keys] if kind == "keys" else [batch, queries, keys]
    mask = d.array(shape, "int32", 0, 1)
    mask[..., 0] = 1
    return mask


@operator("ms.Attention")
def attention(d: Draw) -> Case:
    batch, length, heads, width = d.number(1, 3), d.number(1, 4), d.number(1, 3), d.number(1, 4)
    past = d.pick(0, 0, 1, 3)
    hidden, inner = heads * width, d.number(1, 5)
    value = hidden if past or d.flag() else heads * d.number(1, 3)
    causal = d.flag()
    made = model("Attention")
    mask = _key_mask(d, batch, length, past + length, ranges=not causal)
    shape = [d.pick(1, batch), d.pick(1, heads), length, past + length]
    parts = [
        made.input(d.array([batch, length, inner])),
        made.input(d.array([inner, 2 * hidden + value]), constant=True),
        made.input(d.array([2 * hidden + value]), constant=True),
        made.input(mask),
        made.input(d.array([2, batch, heads, past, width]) if past else None),
        made.input(d.array(shape) if d.flag() else None),
    ]
    sizes = None if value == hidden else [hidden, hidden, value]
    outputs = ["float32", "float32"] if past else ["float32"]
    return made.case(
        parts, outputs, num_heads=heads, unidirectional=int(causal), qkv_hidden_sizes=sizes,
        scale=d.pick(None, 0.3), mask_filter_value=d.pick(None, -5000.0), reference="onnxruntime",
    )  # fmt: skip


@operator("ms.MultiHeadAttention")
def multi_head_attention(d: Draw) -> Case:
    batch, length, heads, width = d.number(1, 3), d.number(1, 4), d.number(1, 3), d.number(1, 4)
    form = d.pick("apart", "apart", "cross", "qkv", "kv")
    keys = length if form == "qkv" else d.number(1, 5)
    value = width if form in ("qkv", "kv") else d.pick(width, width + 1)
    past = d.pick(0, 2) if form == "apart" and value == width else 0
    causal = d.flag() and keys == length
    made = model("MultiHeadAttention")
    hidden = heads * width
    query, key, v = {
        "qkv": ([batch, length, heads, 3, width], None, None),
        "kv": ([batch, length, hidden], [batch, keys, heads, 2, width], None),
        "cross": ([batch, length, hidden], *([batch, heads, keys, w] for w in (width, value))),
        "apart": ([batch, length, hidden], [batch, keys, hidden], [batch, keys, heads * value]),
    }[form]  # fmt: skip
    mask = _key_mask(d, batch, length, past + keys, ranges=False)
    bias = d.array([2 * hidden + heads * value]) if d.flag() and form != "kv" else None
    shape = [d.pick(1, batch), d.pick(1, heads), length, past + keys]
    parts = [
        *(made.input(None if s is None else d.array(s)) for s in (query, key, v)),
        made.input(bias), made.input(mask), made.input(d.array(shape) if d.flag() else None),
        made.input(d.array([batch, heads, past, width]) if past else None),
        made.input(d.array([batch, heads, past, value]) if past else None),
    ]  # fmt: skip
    outputs = ["float32"] * (3 if form == "apart" and (past or d.flag()) else 1)
    facts = {"num_heads": heads, "unidirectional": int(causal), "scale": d.pick(None, 0.3),
             "mask_filter_value": d.pick(None, -5000.0)}  # fmt: skip
    twin = None
    if form in ("qkv", "kv"):  # which onnxruntime's CPU kernel lacks: the same inputs apart
        twin = model("MultiHeadAttention")
        names = [twin.input(a) for a in _apart(made, parts, form)]
        names += [twin.input(made.feeds[p]) if p else "" for p in parts[3:]]
        twin = twin.case(names, outputs, **facts, reference="onnxruntime")
    return made.case(parts, outputs, **facts, twin=twin, reference="onnxruntime")


def _apart(made: Model, parts: list[str], form: str) -> list[np.ndarray]:
    """Query, key and value as [B, S, N·H], of inputs that pack them."""
    query = made.feeds[parts[0]]
    if form == "qkv":
        wide = [query[:, :, :, i] for i in range(3)]
    else:
        wide = [query, *(made.feeds[parts[1]][:, :, :, i] for i in range(2))]
    return [w.reshape(*w.shape[:2], -1) for w in wide]


@operator("ms.RotaryEmbedding")
def rotary_embedding(d: Draw) -> Case:
    batch, length, heads = d.number(1, 3), d.number(1, 4), d.number(1, 3)
    half = d.number(1, 3)
    part = d.flag()
    width = 2 * half + (2 * d.number(1, 2) if part else 0)
    made = model("RotaryEmbedding")
    flat = d.flag()
    shape = [batch, length, heads * width] if flat else [batch, heads, length, width]
    ids = d.array([1], "int64", 0, 3) if d.flag() else d.array([batch, length], "int64", 0, 7)
    parts = [made.input(v) for v in (d.array(shape), ids, d.array([8, half]), d.array([8, half]))]
    more = {"rotary_embedding_dim": 2 * half, "num_heads": heads} if part else {}
    return made.case(parts, ["float32"], interleaved=int(d.flag()), **more, reference="onnxruntime")


@operator("ms.GroupQueryAttention")
def group_query_attention(d: Draw) -> Case:
    batch, groups, share = d.number(1, 3), d.number(1, 2), d.number(1, 2)
    width = 16 * d.number(1, 2)
    heads = groups * share
    past = d.pick(0, 3)
    length = d.number(1, 4) if past == 0 else d.pick(1, 1, 2)
    total = past + length
    shared = past + d.number(0, 4) if past else 0  # rows of the cache given
    if d.flag() or not past:
        shared = past
    if past and length > 1:
        batch = 1  # what onnxruntime allows
    lengths = np.full(batch, total - 1, np.int32)
    made = model("GroupQueryAttention")
    packed, turned = d.flag(), d.flag()
    query = [batch, length, heads * width]
    key = [batch, length, groups * width]
    if packed:
        query[2] += 2 * groups * width
    cache = [batch, groups, max(shared, past), width]
    tables = [total + 2, width // 2]
    first = np.zeros([*cache[:2], 0, width], np.float32)
    caches = [d.array(cache) if past else first for _ in range(2)]
    parts = [
        made.input(d.array(query)), *(made.input(None if packed else d.array(key)) for _ in "kv"),
        *(made.input(c) for c in caches),
        made.input(lengths), made.input(np.array(total, np.int32), constant=True),
        *(made.input(d.array(tables) if turned else None) for _ in "cs"),
    ]  # fmt: skip
    if d.flag():
        bias = [d.pick(1, batch), d.pick(1, heads), length, total]
        parts += ["", made.input(d.array(bias))]
    return made.case(
        parts, ["float32"] * 3, num_heads=heads, kv_num_heads=groups, do_rotary=int(turned),
        rotary_interleaved=int(d.flag()), scale=d.pick(None, 0.3), softcap=d.pick(None, 2.0),
        local_window_size=d.pick(-1, -1, 1, 2), reference="onnxruntime",
    )  # fmt: skip
