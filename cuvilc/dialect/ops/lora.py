"""Weights with a low-rank adapter."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from cuvilc.dialect.dims import less, product
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import (
    need,
    need_axis,
    need_float,
    need_rank,
    need_shape,
    need_true,
    replaced,
)

_BF16 = (np.arange(-9, 9) / 4).astype(ml_dtypes.bfloat16)


@op("ai.lora")
class Lora:
    """W + scale · B·A, or with a magnitude m · V / ‖V‖ of that V: the weight of an adapted layer.

    W is a weight of any layer, its outputs along `out_axis`: [N, K] or [K, N] of a product,
    [N, K / groups, *kernel] of a convolution, [V, D] of a table. The N' outputs from `start` on
    are the adapted module's; those of other modules in the same weight pass as they are. a is
    [r, M], M being all other axes of W flattened in their order, b is [N', r], so that
    V[.., start + n, ..] = W[.., start + n, ..] + scale · Σ_r b[n, r] · a[r, ..]   (Hu et al. 2021,
    eq. 3). magnitude [N'] makes it DoRA: m[n] · V[n] / ‖V[n]‖₂, the norm over all axes but
    `out_axis` (Liu et al. 2024, eq. 5).

    apart: the scale may not be multiplied into a factor beforehand (graph_semantics "additive").
    bits: where w dequantises numbers that ai.matmul_nbits had packed, of how many bits they are, so
    that merging packs them again. adapter, module: whose it is.
    """

    w: Tensor
    a: Tensor
    b: Tensor
    magnitude: Tensor | None
    scale: float
    out_axis: int = 0
    start: int = 0
    adapter: str = ""
    module: str = ""
    apart: bool = False
    bits: int = 0

    def shape(w, a, b, magnitude, *, scale, out_axis, start, adapter, module, apart, bits):
        for t, what in ((w, "w"), (a, "a"), (b, "b")):
            need_float(t, what)
        need_rank(b, 2, "b")
        need_axis(out_axis, w.rank, "out_axis")
        size, rank = b.shape
        need_shape(a, (rank, product(replaced(w.shape, out_axis, 1))), "a")
        whole = w.shape[out_axis]
        need(start >= 0, f"start must not be negative: {start}")
        need_true(less(start + size, whole + 1), f"{size} outputs from {start} on of {whole}")
        if magnitude is not None:
            need_float(magnitude, "magnitude")
            need_shape(magnitude, (size,), "magnitude")
        return w

    def reference(w, a, b, magnitude, *, scale, out_axis, start, adapter, module, apart, bits):
        rows = np.moveaxis(w, out_axis, 0)
        part = rows[start : start + len(b)].reshape(len(b), -1) + scale * (b @ a)
        if magnitude is not None:
            norm = np.sqrt((part * part).sum(1, keepdims=True))
            part = magnitude[:, None] * part / norm
        made = rows.copy()
        made[start : start + len(b)] = part.reshape(len(b), *rows.shape[1:])
        return np.moveaxis(made, 0, out_axis)

    def element(k, i, w, a, b, magnitude, *, scale, out_axis, start, adapter, module, apart, bits):
        size, rank = b.shape
        dtype = "float64" if w.dtype == "float64" else "float32"
        mine = k.both(k.le(start, i[out_axis]), k.lt(i[out_axis], start + size))
        row = k.clamp_index(i[out_axis] - start, size)

        def changed(index):
            """V at an index of w."""
            flat = 0
            for axis, at in enumerate(index):
                flat = flat if axis == out_axis else flat * w.shape[axis] + at

            def step(r, total):
                return (total + k.cast(b[row, r[0]], dtype) * k.cast(a[r[0], flat], dtype),)

            (delta,) = k.fold((rank,), (k.const(0.0, dtype),), step)
            return k.cast(w[index], dtype) + k.const(scale, dtype) * delta

        here = k.let(changed(i))
        if magnitude is not None:
            others = [*range(out_axis), *range(out_axis + 1, len(w.shape))]

            def step(r, total):
                index = dict(zip(others, r, strict=True)) | {out_axis: row + start}
                v = k.let(changed(tuple(index[axis] for axis in range(len(index)))))
                return (total + v * v,)

            sizes = [w.shape[axis] for axis in others]
            (total,) = k.fold(sizes, (k.const(0.0, dtype),), step)
            here = k.div(k.cast(magnitude[row,], dtype) * here, k.sqrt(total))
        return k.select(mine, k.cast(here, w.dtype), w[i])

    samples = (
        sample("float32[5,7]", "float32[2,7]", "float32[5,2]", scale=0.5, adapter="x", module="q"),
        sample("float32[7,6]", "float32[3,7]", "float32[2,3]", scale=2.0, out_axis=1, start=3),
        sample("float32[4,3,2,3]", "float32[1,18]", "float32[4,1]", scale=-1.5, apart=True),
        sample("float32[9,4]", "float32[2,9]", "float32[4,2]", "float32[4]", scale=1.0,
               out_axis=1, low=0.5, high=2.0),
        sample("float32[6,3,2]", "float32[2,6]", "float32[3,2]", "float32[3]", scale=0.25, start=2,
               low=0.5, high=2.0),
        sample("float16[3,5]", "float32[2,5]", "float32[3,2]", scale=1.0),
        sample(_BF16.reshape(3, 6), "float32[2,6]", "float32[3,2]", scale=1.0),
        sample("float64[3,5]", "float16[4,5]", "float16[3,4]", scale=0.125),
    )  # fmt: skip
