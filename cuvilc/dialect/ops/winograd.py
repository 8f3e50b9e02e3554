"""Convolutions of 3×3, 1×3 and 3×1 windows by Winograd's minimal filtering: see
cuvilc/dialect/winograd.py.
"""

from __future__ import annotations

from math import prod

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
from cuvilc.dialect.ops._windows import need_windows, of_stack, stacked, stacks, window_counts
from cuvilc.dialect.ops.conv import check_layout
from cuvilc.dialect.types import TensorType
from cuvilc.dialect.winograd import (
    SHAPES,
    STRIDES,
    coefficient,
    matrices,
    points,
    transform,
    weight_points,
    window_of,
)


def _need_tile(tile, strides) -> None:
    need(tile in SHAPES, f"tile must be one of {SHAPES}, not {tile}")
    fine = len(strides) == 2 and all(s in STRIDES for s in strides)
    need(fine, f"strides must be two of {STRIDES}, not {strides}")


@op("ai.winograd_weights", traits=("prepared", "channels-given"))
class WinogradWeights:
    """Weights of 3×3 windows as ai.conv_winograd multiplies them.   (Lavin & Gray 2016, eq. 12)

    w [O, C, 3, 3] → u [O, k², C], k = tile + 2: u[o, ·, c] = G w[o, c] Gᵀ, row by row. Along an
    axis where the tile is 1, windows have 1 tap, and k is 1.
    """

    w: Tensor
    tile: tuple
    strides: tuple = (1, 1)
    out_layout: str = ""

    def shape(w, *, tile, strides, out_layout):
        _need_tile(tile, strides)
        need_dtype(w, ("float32",), "w")
        need_rank(w, 4, "w")
        need_shape(w, (*w.shape[:2], *window_of(tile)), "w")
        shape = (w.shape[0], prod(weight_points(tile)), w.shape[1])
        return TensorType(shape, w.dtype, out_layout)

    def reference(w, *, tile, strides, out_layout):
        o, c = w.shape[:2]
        down, across = (m.weights for m in matrices(tile, strides))
        return np.moveaxis(transform(down, across, w).reshape(o, c, -1), 1, 2)

    def domain(k, w, *, tile, **attrs):
        return window_of(tile)

    def term(k, i, r, w, *, tile, strides, out_layout):
        o, place, c = i
        (down, across), n = (m.weights for m in matrices(tile, strides)), weight_points(tile)[1]
        first = coefficient(k, down, k.floordiv(place, n), r[0])
        return first * coefficient(k, across, k.mod(place, n), r[1]) * w[(o, c, *r)]

    combine = "sum"
    samples = (
        sample("float32[3,2,3,3]", tile=(2, 2)),
        sample("float32[2,3,3,3]", tile=(4, 4)),
        sample("float32[2,3,3,3]", tile=(4, 4), strides=(2, 1)),
        sample("float32[2,3,1,3]", tile=(1, 4)),
        sample("float32[3,2,3,1]", tile=(2, 1)),
    )


@op("ai.conv_winograd")
class ConvWinograd:
    """ai.conv of 3×3 windows with weights from ai.winograd_weights, plus bias.

    x [N, C, h, w], u [O, k², C], bias [O] → [N, O, ..]. The result is cut into tiles; each is
    Aᵀ [Σ_c u[o, ·, c] ⊙ (Bᵀ x_c B)] A, x_c being the n × n inputs that it sees, 0 beyond the edge;
    product (i, j) takes weight (min(i, k - 1), min(j, k - 1)).    (Lavin & Gray 2016, eq. 13.)  n,
    k and the matrices are those of each axis: 1 where the tile is 1, along which windows have one
    tap. An infinity or NaN spreads to the tiles that see it. stack, stack_step: as of ai.conv.
    """

    x: Tensor
    u: Tensor
    bias: Tensor | None
    tile: tuple
    pads_begin: tuple
    pads_end: tuple
    strides: tuple = (1, 1)
    out_layout: str = ""
    stack: int = 1
    stack_step: int = 1

    def shape(x, u, bias, *, tile, pads_begin, pads_end, strides, out_layout, stack, stack_step):
        _need_tile(tile, strides)
        need_dtype(x, ("float32",), "x")
        need_rank(x, 4, "x")
        need_rank(u, 3, "u")
        need_same_dtype(x, u, *([bias] if bias else []))
        need_windows(2, strides, pads_begin, pads_end, (1, 1))
        need_equal(u.shape[1], prod(weight_points(tile)), "weights of a channel")
        images, channels = stacks(x, stack, stack_step)
        need_equal(channels, u.shape[2], "channels of x and those of u")
        if bias is not None:
            need_shape(bias, u.shape[:1], "bias")
        counts = _counts(x, tile, pads_begin, pads_end, strides)
        return TensorType((images, u.shape[0], *counts), x.dtype, check_layout(out_layout))

    def reference(
        x, u, bias, *, tile, pads_begin, pads_end, strides, out_layout, stack, stack_step
    ):
        x = stacked(x, stack, stack_step)
        (down, across), n, k = matrices(tile, strides), points(tile, strides), weight_points(tile)
        o, c, step = u.shape[0], u.shape[2], [t * s for t, s in zip(tile, strides, strict=True)]
        counts = _counts(x, tile, pads_begin, pads_end, strides)
        tiles = [-(-m // t) for m, t in zip(counts, tile, strict=True)]
        axes = zip(tiles, step, n, strict=True)
        sizes = [(t - 1) * s + m if t else 0 for t, s, m in axes]
        ends = [s - m - p for s, m, p in zip(sizes, x.shape[2:], pads_begin, strict=True)]
        begins = zip(pads_begin, (max(e, 0) for e in ends), strict=True)
        padded = np.pad(x, ((0, 0), (0, 0), *begins))[:, :, : sizes[0], : sizes[1]]
        y = np.zeros((x.shape[0], o, tiles[0], tile[0], tiles[1], tile[1]))
        rows, columns = (np.minimum(np.arange(m), q - 1) for m, q in zip(n, k, strict=True))
        products = u.reshape(o, *k, c).transpose(1, 2, 0, 3)[rows][:, columns]  # [n, n, O, C]
        for i in range(tiles[0]):
            for j in range(tiles[1]):
                seen = padded[..., i * step[0] :, j * step[1] :][..., : n[0], : n[1]]
                v = transform(down.input, across.input, seen).transpose(2, 3, 1, 0)  # [n, n, C, N]
                m = np.matmul(products, v).transpose(3, 2, 0, 1)
                y[:, :, i, :, j, :] = transform(down.output, across.output, m)
        y = y.reshape(x.shape[0], o, tiles[0] * tile[0], tiles[1] * tile[1])
        y = y[:, :, : counts[0], : counts[1]]
        return y if bias is None else y + bias.reshape(-1, 1, 1)

    def domain(k, x, u, bias, *, tile, strides, **attrs):
        n = points(tile, strides)
        return (prod(n), u.shape[2], *n)

    def term(
        k, i, r, x, u, bias, *, tile, pads_begin, pads_end, strides, out_layout, stack, stack_step
    ):
        batch, o, *rest = i
        product, c, *seen = r
        image, channel = of_stack(k, batch, c, x, stack, stack_step)
        n = points(tile, strides)[1]
        digits = (k.floordiv(product, n), k.mod(product, n))
        lasts = [m - 1 for m in weight_points(tile)]
        down, across = (
            k.select(k.lt(d, last), as_index(k, d), as_index(k, last))
            for d, last in zip(digits, lasts, strict=True)
        )
        where, conditions = [], []
        value = u[(o, down * (lasts[1] + 1) + across, c)]
        sizes = zip(tile, strides, matrices(tile, strides), strict=True)
        axes = zip(rest, digits, seen, pads_begin, x.shape[2:], sizes, strict=True)
        for at, digit, s, pad, size, (results, stride, axis) in axes:
            value = value * coefficient(k, axis.output, k.mod(at, results), digit)
            value = value * coefficient(k, axis.input, digit, s)
            place = k.floordiv(at, results) * (results * stride) + s - pad
            conditions += [k.ge(place, 0), k.lt(place, size)]
            where.append(place)
        load = guarded(k, conditions, lambda: x[(image, channel, *where)], k.const(0, x.dtype))
        return value * load

    def finish(k, i, total, x, u, bias, **attrs):
        return total if bias is None else total + bias[i[1]]

    combine = "sum"
    samples = (
        sample(
            "float32[2,2,3,4]", "float32[2,16,2]", "float32[2]", tile=(2, 2),
            pads_begin=(1, 0), pads_end=(1, 1),
        ),
        sample(
            "float32[1,1,3,2]", "float32[1,36,1]", tile=(4, 4), pads_begin=(1, 1),
            pads_end=(1, 1), low=-1.0, high=1.0,
        ),
        sample(
            "float32[0,2,6,5]", "float32[3,36,2]", tile=(4, 4), pads_begin=(0, 2),
            pads_end=(0, 1),
        ),
        sample(
            "float32[1,1,3,4]", "float32[2,16,1]", "float32[2]", tile=(2, 2), strides=(2, 2),
            pads_begin=(1, 1), pads_end=(1, 0),
        ),
        sample(
            "float32[2,2,2,5]", "float32[2,6,2]", "float32[2]", tile=(1, 4), pads_begin=(0, 1),
            pads_end=(1, 1), low=-1.0, high=1.0,
        ),
        sample(
            "float32[1,2,6,2]", "float32[3,4,2]", tile=(2, 1), pads_begin=(0, 1), pads_end=(1, 0),
        ),
        sample(
            "float32[4,1,3,4]", "float32[2,16,2]", tile=(2, 2), pads_begin=(1, 1),
            pads_end=(1, 1), stack=2,
        ),
    )  # fmt: skip


def _counts(x, tile, pads_begin, pads_end, strides):
    return window_counts(x.shape[2:], window_of(tile), strides, pads_begin, pads_end, (1, 1))
