"""A weight with a low-rank change, computed where the package runs."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import Dim, ceildiv, product
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import need, need_dtype, need_equal
from cuvilc.dialect.types import PANEL


@op("ai.lora_merge")
class LoraMerge:
    """gain · w + ΔW, where ΔW[.., n, ..] = Σ_r a[r, ..] · b[⌊n / 32⌋, r, n mod 32].

    n counts along `out_axis` of w; the other axes of w, flattened in order, are those of a, which
    is [R, K]. b is [⌈N / 32⌉, R, 32] and holds the adapter's scale; gain is [32 · ⌈N / 32⌉]: all
    ones unless the adapter has magnitudes.    (Hu et al. 2021, eq. 3; Liu et al. 2024, eq. 5)
    """

    w: Tensor
    a: Tensor
    b: Tensor
    gain: Tensor
    out_axis: int

    def shape(w, a, b, gain, *, out_axis):
        for t, what in ((w, "w"), (a, "a"), (b, "b"), (gain, "gain")):
            need_dtype(t, ("float32",), what)
        need(0 <= out_axis < w.rank, f"out_axis {out_axis} of {w.rank} axes")
        need(a.rank == 2 and b.rank == 3 and gain.rank == 1, "a, b, gain of 2, 3, 1 dimensions")
        panels: Dim = ceildiv(w.shape[out_axis], PANEL)
        rows = product(d for i, d in enumerate(w.shape) if i != out_axis)
        need_equal(a.shape[1], rows, "columns of a and elements of w to one output")
        need_equal(a.shape[0], b.shape[1], "rank of a and of b")
        need_equal(b.shape[0], panels, "panels of b and outputs of w")
        need_equal(b.shape[2], PANEL, "columns of a panel of b")
        need_equal(gain.shape[0], panels * PANEL, "gain and outputs of w")
        return w

    def reference(w, a, b, gain, *, out_axis):
        count = w.shape[out_axis]
        factor = np.swapaxes(b, 0, 1).reshape(len(a), -1)[:, :count]
        others = [d for i, d in enumerate(w.shape) if i != out_axis]
        change = np.moveaxis((a.T @ factor).reshape(*others, count), -1, out_axis)
        line = [1] * w.ndim
        line[out_axis] = count
        return w * gain[:count].reshape(line) + change

    def domain(k, w, a, b, gain, *, out_axis):
        return (a.shape[0],)

    def term(k, i, r, w, a, b, gain, *, out_axis):
        column = 0
        for axis, index in enumerate(i):
            if axis != out_axis:
                column = column * w.shape[axis] + index
        n = i[out_axis]
        return a[r[0], column] * b[k.floordiv(n, PANEL), r[0], k.mod(n, PANEL)]

    combine = "sum"

    def finish(k, i, total, w, a, b, gain, *, out_axis):
        return w[i] * gain[i[out_axis]] + total

    samples = (
        sample("float32[5,40]", "float32[3,5]", "float32[2,3,32]", "float32[64]", out_axis=1),
        sample("float32[40,5]", "float32[3,5]", "float32[2,3,32]", "float32[64]", out_axis=0),
        sample("float32[7,2,3,3]", "float32[1,18]", "float32[1,1,32]", "float32[32]", out_axis=0),
    )
