"""Convolutions of 8-bit integers with int32 sums, and the two codes of 8 bits."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import equal
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import guarded
from cuvilc.dialect.ops._rules import (
    need,
    need_dtype,
    need_equal,
    need_positive,
    need_rank,
    need_true,
)
from cuvilc.dialect.ops._windows import (
    need_spatial,
    need_windows,
    window_counts,
    window_index,
    windows,
)
from cuvilc.dialect.ops.conv import check_layout
from cuvilc.dialect.types import TensorType

BYTES = ("int8", "uint8")
_OTHER = {"int8": "uint8", "uint8": "int8"}


@op("ai.recode", traits=("elementwise", "injective"))
class Recode:
    """uint8 x as int8 x - 128, and int8 x as uint8 x + 128: one bit of each byte flips."""

    x: Tensor

    def shape(x):
        need_dtype(x, BYTES, "x")
        return x.with_(dtype=_OTHER[x.dtype])

    def reference(x):
        wide = x.astype(np.int32)
        return wide - 128 if x.dtype == np.uint8 else wide + 128

    def element(k, i, x):
        flipped = k.bit_xor(x[i], k.const(128 if x.dtype == "uint8" else -128, x.dtype))
        return k.cast(flipped, _OTHER[x.dtype])

    samples = (
        sample("uint8[3,5]", low=0, high=255),
        sample(np.array([-128, -1, 0, 127], np.int8)),
    )


@op("ai.conv_integer")
class ConvInteger:
    """Convolution of x - x_zero with w - w_zero in int32.    (Jacob et al. 2018, eq. 7)

    Shapes and windows are those of ai.conv. x_zero is one number, w_zero one or one an output
    channel [O]; a missing one is 0. Beyond its edge x is x_zero, so that the term there is 0.
    Where `centred` is false nothing is subtracted: Σ x · w, and x is x_zero beyond its edge.
    """

    x: Tensor
    w: Tensor
    x_zero: Tensor | None
    w_zero: Tensor | None
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple
    groups: int = 1
    centred: bool = True
    out_layout: str = ""

    def shape(
        x, w, x_zero, w_zero, *,
        strides, pads_begin, pads_end, dilations, groups, centred, out_layout,
    ):  # fmt: skip
        spatial = need_spatial(x)
        need_rank(w, x.rank, "w")
        need_windows(spatial, strides, pads_begin, pads_end, dilations)
        need_positive((groups,), "groups")
        for t, zero, what in ((x, x_zero, "x"), (w, w_zero, "w")):
            need_dtype(t, BYTES, what)
            if zero is not None:
                need_dtype(zero, (t.dtype,), f"{what}_zero")
        o, c, *kernel = w.shape
        need(x_zero is None or x_zero.shape in ((), (1,)), "x_zero must be one number")
        need(centred or w_zero is None, "a sum that is not centred takes no w_zero")
        if w_zero is not None and w_zero.shape not in ((), (1,)):
            need_rank(w_zero, 1, "w_zero")
            need_equal(w_zero.shape[0], o, "w_zero and the output channels")
        need_equal(x.shape[1], c * groups, f"channels of x and those of w in {groups} group(s)")
        whole = equal(o % groups, 0)
        need_true(whole, f"{o} output channels do not divide into {groups} groups")
        counts = window_counts(x.shape[2:], tuple(kernel), strides, pads_begin, pads_end, dilations)
        return TensorType((x.shape[0], o, *counts), "int32", check_layout(out_layout))

    def reference(
        x, w, x_zero, w_zero, *,
        strides, pads_begin, pads_end, dilations, groups, centred, out_layout,
    ):  # fmt: skip
        o, c, *kernel = w.shape
        outside = 0 if x_zero is None else int(x_zero.reshape(()))
        x, w = x.astype(np.int64), w.astype(np.int64)
        if centred:
            x, outside = x - outside, 0
            if w_zero is not None:
                w = w - w_zero.astype(np.int64).reshape(-1, *[1] * (w.ndim - 1))
        counts = window_counts(x.shape[2:], kernel, strides, pads_begin, pads_end, dilations)
        total = np.zeros((x.shape[0], groups, o // groups, *counts), np.int64)
        for place, cells in windows(x, counts, kernel, strides, pads_begin, dilations, outside):
            cells = cells.reshape(x.shape[0], groups, c, *counts)
            taps = w[(..., *place)].reshape(groups, o // groups, c)
            total += np.einsum("ngc...,goc->ngo...", cells, taps)
        return total.reshape(x.shape[0], o, *counts)

    def domain(k, x, w, x_zero, w_zero, **attrs):
        return tuple(w.shape[1:])

    def term(
        k, i, r, x, w, x_zero, w_zero, *,
        strides, pads_begin, pads_end, dilations, groups, centred, out_layout,
    ):  # fmt: skip
        batch, o, *rest = i
        channel, *place = r
        if groups != 1:
            group = k.floordiv(o, k.floordiv(w.shape[0], groups))
            channel = group * w.shape[1] + channel
        where, conditions = window_index(
            k, rest, place, x.shape[2:], strides, pads_begin, pads_end, dilations, False
        )
        level, outside = k.cast(w[(o, *r)], "int32"), k.const(0, "int32")
        if x_zero is not None:
            outside = k.let(k.cast(x_zero[(0,) * len(x_zero.shape)], "int32"))
        load = guarded(k, conditions, lambda: k.cast(x[(batch, channel, *where)], "int32"), outside)
        if not centred:
            return load * level
        if w_zero is not None:
            one = w_zero.type.shape in ((), (1,))
            zero = w_zero[(0,) * len(w_zero.shape)] if one else w_zero[o]
            level = level - k.cast(zero, "int32")
        return (load - outside) * level

    combine = "sum"
    samples = (
        sample(
            "uint8[1,3,7,9]", "int8[5,3,3,3]", np.array(7, np.uint8), strides=(2, 1),
            pads_begin=(1, 1), pads_end=(1, 0), dilations=(1, 2), low=0, high=127,
        ),
        sample(
            "int8[2,6,5,5]", "uint8[6,1,3,3]", np.array([-3], np.int8), "uint8[6]",
            strides=(1, 1), pads_begin=(0, 1), pads_end=(2, 0), dilations=(1, 1), groups=6,
            low=0, high=127,
        ),
        sample(
            "uint8[1,4,9]", "int8[6,2,3]", np.array(200, np.uint8), strides=(2,),
            pads_begin=(2,), pads_end=(0,), dilations=(1,), groups=2, centred=False,
            low=0, high=127,
        ),
        sample(
            "uint8[1,2,3,4,5]", "int8[3,2,2,1,3]", strides=(1, 2, 1), pads_begin=(1, 0, 1),
            pads_end=(0, 0, 1), dilations=(1, 1, 1), low=0, high=127,
        ),
    )  # fmt: skip
