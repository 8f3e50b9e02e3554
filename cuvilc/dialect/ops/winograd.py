"""Convolutions of 3×3 windows by Winograd's minimal filtering: see cuvilc/dialect/winograd.py."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import as_index, guarded
from cuvilc.dialect.ops._rules import (
    need,
    need_dtype,
    need_equal,
    need_rank,
    need_same_dtype,
    need_shape,
)
from cuvilc.dialect.ops._windows import need_windows, window_counts
from cuvilc.dialect.ops.conv import check_layout
from cuvilc.dialect.types import TensorType
from cuvilc.dialect.winograd import (
    MATRICES,
    STRIDES,
    TAPS,
    TILES,
    coefficient,
    points,
    transform,
    weight_points,
)


def _need_tile(tile, stride) -> None:
    need(tile in TILES, f"tile must be one of {TILES}, not {tile}")
    need(stride in STRIDES, f"stride must be one of {STRIDES}, not {stride}")


@op("ai.winograd_weights", traits=("prepared", "channels-given"))
class WinogradWeights:
    """Weights of 3×3 windows as ai.conv_winograd multiplies them.   (Lavin & Gray 2016, eq. 12)

    w [O, C, 3, 3] → u [O, k², C], k = tile + 2: u[o, ·, c] = G w[o, c] Gᵀ, row by row.
    """

    w: Tensor
    tile: int
    stride: int = 1
    out_layout: str = ""

    def shape(w, *, tile, stride, out_layout):
        _need_tile(tile, stride)
        need_dtype(w, ("float32",), "w")
        need_rank(w, 4, "w")
        need_shape(w, (*w.shape[:2], TAPS, TAPS), "w")
        return TensorType((w.shape[0], weight_points(tile) ** 2, w.shape[1]), w.dtype, out_layout)

    def reference(w, *, tile, stride, out_layout):
        o, c = w.shape[:2]
        return np.moveaxis(transform(MATRICES[tile, stride].weights, w).reshape(o, c, -1), 1, 2)

    def domain(k, w, **attrs):
        return (TAPS, TAPS)

    def term(k, i, r, w, *, tile, stride, out_layout):
        o, place, c = i
        g, n = MATRICES[tile, stride].weights, weight_points(tile)
        first = coefficient(k, g, k.floordiv(place, n), r[0])
        return first * coefficient(k, g, k.mod(place, n), r[1]) * w[(o, c, *r)]

    combine = "sum"
    samples = (
        sample("float32[3,2,3,3]", tile=2),
        sample("float32[2,3,3,3]", tile=4),
        sample("float32[2,3,3,3]", tile=4, stride=2),
    )


@op("ai.conv_winograd")
class ConvWinograd:
    """ai.conv of 3×3 windows with weights from ai.winograd_weights, plus bias.

    x [N, C, h, w], u [O, k², C], bias [O] → [N, O, ..]. The result is cut into tiles, tile × tile;
    each is Aᵀ [Σ_c u[o, ·, c] ⊙ (Bᵀ x_c B)] A, x_c being the n × n inputs that it sees, 0 beyond
    the edge; product (i, j) takes weight (min(i, k - 1), min(j, k - 1)).    (Lavin & Gray 2016,
    eq. 13.)  An infinity or NaN spreads to the tiles that see it.
    """

    x: Tensor
    u: Tensor
    bias: Tensor | None
    tile: int
    pads_begin: tuple
    pads_end: tuple
    stride: int = 1
    out_layout: str = ""

    def shape(x, u, bias, *, tile, pads_begin, pads_end, stride, out_layout):
        _need_tile(tile, stride)
        need_dtype(x, ("float32",), "x")
        need_rank(x, 4, "x")
        need_rank(u, 3, "u")
        need_same_dtype(x, u, *([bias] if bias else []))
        need_windows(2, (stride,) * 2, pads_begin, pads_end, (1, 1))
        need_equal(u.shape[1], weight_points(tile) ** 2, "weights of a channel")
        need_equal(x.shape[1], u.shape[2], "channels of x and those of u")
        if bias is not None:
            need_shape(bias, u.shape[:1], "bias")
        counts = _counts(x, pads_begin, pads_end, stride)
        return TensorType((x.shape[0], u.shape[0], *counts), x.dtype, check_layout(out_layout))

    def reference(x, u, bias, *, tile, pads_begin, pads_end, stride, out_layout):
        matrices, n, k = MATRICES[tile, stride], points(tile, stride), weight_points(tile)
        o, c, step = u.shape[0], u.shape[2], tile * stride
        counts = _counts(x, pads_begin, pads_end, stride)
        tiles = [-(-m // tile) for m in counts]
        sizes = [(t - 1) * step + n if t else 0 for t in tiles]
        ends = [s - m - p for s, m, p in zip(sizes, x.shape[2:], pads_begin, strict=True)]
        begins = zip(pads_begin, (max(e, 0) for e in ends), strict=True)
        padded = np.pad(x, ((0, 0), (0, 0), *begins))[:, :, : sizes[0], : sizes[1]]
        y = np.zeros((x.shape[0], o, tiles[0], tile, tiles[1], tile))
        which = np.minimum(np.arange(n), k - 1)
        products = u.reshape(o, k, k, c).transpose(1, 2, 0, 3)[which][:, which]  # [n, n, O, C]
        for i in range(tiles[0]):
            for j in range(tiles[1]):
                seen = padded[..., i * step : i * step + n, j * step : j * step + n]
                v = transform(matrices.input, seen).transpose(2, 3, 1, 0)  # [n, n, C, N]
                m = np.matmul(products, v).transpose(3, 2, 0, 1)
                y[:, :, i, :, j, :] = transform(matrices.output, m)
        y = y.reshape(x.shape[0], o, tiles[0] * tile, tiles[1] * tile)
        y = y[:, :, : counts[0], : counts[1]]
        return y if bias is None else y + bias.reshape(-1, 1, 1)

    def domain(k, x, u, bias, *, tile, stride, **attrs):
        n = points(tile, stride)
        return (n * n, u.shape[2], n, n)

    def term(k, i, r, x, u, bias, *, tile, pads_begin, pads_end, stride, out_layout):
        batch, o, *rest = i
        product, c, *seen = r
        n, (out, inward, _) = points(tile, stride), MATRICES[tile, stride]
        digits = (k.floordiv(product, n), k.mod(product, n))
        last = weight_points(tile) - 1
        down, across = (k.select(k.lt(d, last), as_index(k, d), as_index(k, last)) for d in digits)
        where, conditions = [], []
        value = u[(o, down * (last + 1) + across, c)]
        axes = zip(rest, digits, seen, pads_begin, x.shape[2:], strict=True)
        for at, digit, s, pad, size in axes:
            value = value * coefficient(k, out, k.mod(at, tile), digit)
            value = value * coefficient(k, inward, digit, s)
            place = k.floordiv(at, tile) * (tile * stride) + s - pad
            conditions += [k.ge(place, 0), k.lt(place, size)]
            where.append(place)
        load = guarded(k, conditions, lambda: x[(batch, c, *where)], k.const(0, x.dtype))
        return value * load

    def finish(k, i, total, x, u, bias, **attrs):
        return total if bias is None else total + bias[i[1]]

    combine = "sum"
    samples = (
        sample(
            "float32[2,2,3,4]", "float32[2,16,2]", "float32[2]", tile=2, pads_begin=(1, 0),
            pads_end=(1, 1),
        ),
        sample(
            "float32[1,1,3,2]", "float32[1,36,1]", tile=4, pads_begin=(1, 1), pads_end=(1, 1),
            low=-1.0, high=1.0,
        ),
        sample(
            "float32[0,2,6,5]", "float32[3,36,2]", tile=4, pads_begin=(0, 2), pads_end=(0, 1),
        ),
        sample(
            "float32[1,1,3,4]", "float32[2,16,1]", "float32[2]", tile=2, stride=2,
            pads_begin=(1, 1), pads_end=(1, 0),
        ),
    )  # fmt: skip


def _counts(x, pads_begin, pads_end, stride):
    kernel, strides = (TAPS, TAPS), (stride, stride)
    return window_counts(x.shape[2:], kernel, strides, pads_begin, pads_end, (1, 1))
