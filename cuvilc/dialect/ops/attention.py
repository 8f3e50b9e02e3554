"""Attention and the position encoding that goes with it."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import equal, less, mod
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import put
from cuvilc.dialect.ops._rules import (
    need,
    need_broadcast,
    need_equal,
    need_float,
    need_rank,
    need_same_dtype,
    need_shape,
    need_true,
    spell,
)
from cuvilc.dialect.ops.reduce import softmax
from cuvilc.dialect.types import TensorType


@op("ai.attention")
class Attention:
    """softmax(scale · q·kᵀ + mask) · v for every head.    (Vaswani et al. 2017, eq. 1)

    q [B, H, S, D], k [B, G, T, D], v [B, G, T, E] → [B, H, S, E]; H is a multiple of G, and head h
    uses key head h // (H/G). The mask broadcasts to [B, H, S, T]: floats are added, a false bool
    hides. `causal` hides t > s. `softcap` c > 0 makes scores c·tanh(scores/c) before the mask.
    A row with everything hidden gives NaN, as softmax does. `narrow`: what is multiplied (scaled
    queries, keys, values, exponentials) may be rounded to bfloat16 where that is faster.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    scale: float
    causal: bool = False
    softcap: float = 0.0
    narrow: bool = False

    def shape(q, k, v, mask, *, scale, causal, softcap, narrow):
        for t, what in ((q, "q"), (k, "k"), (v, "v")):
            need_rank(t, 4, what)
        need_float(q, "q")
        need_same_dtype(q, k, v)
        need_equal(q.shape[0], k.shape[0], "batch sizes of q and k")
        need_equal(q.shape[3], k.shape[3], "head sizes of q and k")
        need_shape(v, (*k.shape[:3], v.shape[3]), "v")
        grouped = equal(mod(q.shape[1], k.shape[1]), 0) if k.shape[1] != 0 else 0
        need_true(grouped, f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads")
        need(softcap >= 0, f"softcap must not be negative: {softcap}")
        need(not narrow or q.dtype == "float32", f"narrow products of {q.dtype}")
        if mask is not None:
            _check_mask(mask, q, (*q.shape[:3], k.shape[2]))
        return TensorType((*q.shape[:3], v.shape[3]), q.dtype)

    def reference(q, k, v, mask, *, scale, causal, softcap, narrow):
        share = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, share, axis=1), np.repeat(v, share, axis=1)
        scores = scale * np.matmul(q, np.swapaxes(k, -1, -2))
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if causal:
            visible = np.tri(*scores.shape[-2:], dtype=bool)
            scores = np.where(visible, scores, -np.inf)
        if mask is not None and mask.dtype == bool:
            scores = np.where(mask, scores, -np.inf)
        elif mask is not None:
            scores = scores + mask
        return np.matmul(softmax(scores, -1), v)

    samples = (
        sample("float32[2,3,5,4]", "float32[2,3,7,4]", "float32[2,3,7,6]", scale=0.5),
        sample("float32[1,4,5,8]", "float32[1,2,5,8]", "float32[1,2,5,8]", scale=0.35, causal=True),
        sample(
            "float32[2,2,3,4]", "float32[2,2,5,4]", "float32[2,2,5,4]", "float32[2,1,3,5]",
            scale=0.5, softcap=2.0,
        ),
        sample(
            "float16[1,2,3,4]", "float16[1,1,3,4]", "float16[1,1,3,4]",
            np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]], bool), scale=0.5,
        ),
        sample("float32[1,2,3,4]", "float32[1,2,0,4]", "float32[1,2,0,5]", scale=0.5),
    )  # fmt: skip


def _check_mask(mask: TensorType, q: TensorType, scores: tuple) -> None:
    fits = mask.dtype in ("bool", q.dtype)
    need(fits, f"mask must be bool or {q.dtype}, not {mask.dtype}")
    message = f"mask {spell(mask.shape)} must broadcast to {spell(scores)}"
    need_broadcast(mask.shape, scores, message)


@op("ai.rotary_embedding", traits=("injective",))
class RotaryEmbedding:
    """Turn pairs of x's first `rotary_dim` features by an angle that the position gives.

    x [B, H, S, D], cos and sin [B or 1, S, rotary_dim/2]: the pair (a, b) of number t becomes
    (a·cos[t] - b·sin[t], b·cos[t] + a·sin[t]). Pairs are neighbours if `interleaved`, else feature
    t and t + rotary_dim/2. Features from rotary_dim on stay.    (Su et al. 2021, eq. 34)
    """

    x: Tensor
    cos: Tensor
    sin: Tensor
    interleaved: bool = False
    rotary_dim: int

    def shape(x, cos, sin, *, interleaved, rotary_dim):
        need_rank(x, 4, "x")
        need_float(x)
        need_same_dtype(x, cos, sin)
        b, _, s, d = x.shape
        even = isinstance(rotary_dim, int) and rotary_dim > 0 and rotary_dim % 2 == 0
        need(even, f"rotary_dim must be even and positive, not {rotary_dim}")
        need_true(less(rotary_dim, d + 1), f"rotary_dim {rotary_dim} exceeds the {d} features of x")
        for t, what in ((cos, "cos"), (sin, "sin")):
            need_rank(t, 3, what)
            batch = 1 if t.shape[0] == 1 else b
            need_shape(t, (batch, s, rotary_dim // 2), what)
        return TensorType(x.shape, x.dtype)

    def reference(x, cos, sin, *, interleaved, rotary_dim):
        y = np.array(x)
        half = rotary_dim // 2
        first, second = slice(half), slice(half, rotary_dim)
        if interleaved:
            first, second = slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)
        a, b = x[..., first], x[..., second]
        cos, sin = cos[:, None], sin[:, None]
        y[..., first] = a * cos - b * sin
        y[..., second] = b * cos + a * sin
        return y

    def element(k, i, x, cos, sin, *, interleaved, rotary_dim):
        half = rotary_dim // 2
        feature = i[3]
        if interleaved:
            pair, second = k.floordiv(feature, 2), k.eq(k.mod(feature, 2), 1)
            partner = feature + 1 - k.mod(feature, 2) * 2
        else:
            pair, second = k.mod(feature, half), k.ge(feature, half)
            partner = k.mod(feature + half, rotary_dim)
        turned = isinstance(x.shape[3], int) and x.shape[3] == rotary_dim

        def rotated():
            at = (i[0], i[2], pair)
            opposite = x[put(i, 3, partner)] * sin.at(at)
            return x[i] * cos.at(at) + k.select(second, opposite, -opposite)

        return rotated() if turned else k.guard(k.lt(feature, rotary_dim), rotated, x[i])

    samples = (
        sample("float32[2,3,5,8]", "float32[2,5,4]", "float32[2,5,4]", rotary_dim=8),
        sample(
            "float32[1,2,3,8]", "float32[1,3,2]", "float32[1,3,2]", interleaved=True, rotary_dim=4
        ),
        sample("float32[2,1,4,6]", "float32[1,4,2]", "float32[1,4,2]", rotary_dim=4),
        sample(
            "float16[2,2,3,4]", "float16[1,3,2]", "float16[1,3,2]", interleaved=True, rotary_dim=4
        ),
    )
