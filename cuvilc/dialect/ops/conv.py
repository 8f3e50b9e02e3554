"""Convolutions of [N, C, spatial...] in one to three spatial dimensions."""

from __future__ import annotations

from itertools import product

import numpy as np

from cuvilc.dialect.dims import equal
from cuvilc.dialect.op import ShapeError, Tensor, op, sample
from cuvilc.dialect.ops._index import guarded
from cuvilc.dialect.ops._rules import (
    need,
    need_equal,
    need_length,
    need_not_negative,
    need_number,
    need_positive,
    need_rank,
    need_same_dtype,
    need_shape,
    need_true,
    spell,
)
from cuvilc.dialect.ops._windows import (
    need_spatial,
    need_windows,
    of_stack,
    stacked,
    stacks,
    window_counts,
    window_index,
    windows,
)
from cuvilc.dialect.types import TensorType, channel_block


def _check_operands(x, w, bias, groups, strides, pads_begin, pads_end, dilations) -> None:
    spatial = need_spatial(x)
    need_number(x)
    need_rank(w, x.rank, "w")
    need_same_dtype(x, w, *([bias] if bias else []))
    need_windows(spatial, strides, pads_begin, pads_end, dilations)
    need_positive((groups,), "groups")


def check_layout(layout: str) -> str:
    if layout:
        try:
            channel_block(layout)
        except ValueError as error:
            raise ShapeError(str(error)) from None
    return layout


@op("ai.conv")
class Conv:
    """Convolution (in networks: cross-correlation), plus bias.    (Dumoulin & Visin 2016, §2)

    x [N, C, n..], w [O, C/groups, k..], bias [O] → [N, O, m..] with m as in _windows.window_counts.
    y[b, o, i] = bias[o] + Σ_{c, k} x[b, g·C/groups + c, i·s + k·d - p] · w[o, c, k], where g is the
    group of o and x is 0 beyond its edge. Blocked layouts apply to x and the result (`out_layout`).

    stack > 1, in one group: x is [N, C / stack, n..], and an image of the result sees `stack` of
    its images that follow each other, their channels one after the other; the result's next image
    sees those from `stack_step` images later on: slices of a volume, convolved where they lie. It
    has (N - stack) div stack_step + 1 images.
    """

    x: Tensor
    w: Tensor
    bias: Tensor | None
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple
    groups: int = 1
    out_layout: str = ""
    stack: int = 1
    stack_step: int = 1

    def shape(
        x, w, bias, *, strides, pads_begin, pads_end, dilations, groups, out_layout, stack,
        stack_step,
    ):  # fmt: skip
        _check_operands(x, w, bias, groups, strides, pads_begin, pads_end, dilations)
        o, c, *kernel = w.shape
        images, channels = stacks(x, stack, stack_step)
        need(groups == 1 or stack == 1, f"a stack in {groups} groups")
        need_equal(channels, c * groups, f"channels of x and those of w in {groups} group(s)")
        whole = equal(o % groups, 0)
        need_true(whole, f"{o} output channels do not divide into {groups} groups")
        if bias is not None:
            need_shape(bias, (o,), "bias")
        counts = window_counts(x.shape[2:], tuple(kernel), strides, pads_begin, pads_end, dilations)
        return TensorType((images, o, *counts), x.dtype, check_layout(out_layout))

    def reference(
        x, w, bias, *, strides, pads_begin, pads_end, dilations, groups, out_layout, stack,
        stack_step,
    ):  # fmt: skip
        o, c, *kernel = w.shape
        x = stacked(x, stack, stack_step)
        counts = window_counts(x.shape[2:], kernel, strides, pads_begin, pads_end, dilations)
        total = np.zeros((x.shape[0], groups, o // groups, *counts), x.dtype)
        for place, cells in windows(x, counts, kernel, strides, pads_begin, dilations, 0):
            cells = cells.reshape(x.shape[0], groups, c, *counts)
            taps = w[(..., *place)].reshape(groups, o // groups, c)
            total += np.einsum("ngc...,goc->ngo...", cells, taps)
        y = total.reshape(x.shape[0], o, *counts)
        return y if bias is None else y + bias.reshape(-1, *[1] * len(counts))

    def domain(k, x, w, bias, **attrs):
        return tuple(w.shape[1:])

    def term(
        k, i, r, x, w, bias, *, strides, pads_begin, pads_end, dilations, groups, out_layout, stack,
        stack_step,
    ):  # fmt: skip
        batch, o, *rest = i
        channel, *place = r
        batch, channel = of_stack(k, batch, channel, x, stack, stack_step)
        if groups != 1:
            group = k.floordiv(o, k.floordiv(w.shape[0], groups))
            channel = group * w.shape[1] + channel
        where, conditions = window_index(
            k, rest, place, x.shape[2:], strides, pads_begin, pads_end, dilations, False
        )
        load = guarded(k, conditions, lambda: x[(batch, channel, *where)], k.const(0, x.dtype))
        return load * w[(o, *r)]

    def finish(k, i, total, x, w, bias, **attrs):
        return total if bias is None else total + bias[i[1]]

    combine = "sum"
    samples = (
        sample(
            "float32[1,3,7,9]", "float32[5,3,3,3]", "float32[5]", strides=(2, 1),
            pads_begin=(1, 1), pads_end=(1, 0), dilations=(1, 2),
        ),
        sample(
            "float32[2,6,5,5]", "float32[6,1,3,3]", strides=(1, 1), pads_begin=(0, 0),
            pads_end=(0, 0), dilations=(1, 1), groups=6,
        ),
        sample(
            "float32[1,4,9]", "float32[6,2,3]", "float32[6]", strides=(2,), pads_begin=(2,),
            pads_end=(0,), dilations=(1,), groups=2,
        ),
        sample(
            "float16[1,2,3,4,5]", "float16[3,2,2,1,3]", strides=(1, 2, 1), pads_begin=(1, 0, 1),
            pads_end=(0, 0, 1), dilations=(1, 1, 1),
        ),
        sample(
            "float32[0,2,4,4]", "float32[3,2,1,1]", strides=(1, 1), pads_begin=(0, 0),
            pads_end=(0, 0), dilations=(1, 1),
        ),
        sample(
            "float32[6,2,4,5]", "float32[3,6,3,3]", "float32[3]", strides=(1, 1),
            pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1), stack=3, stack_step=2,
        ),
    )  # fmt: skip


@op("ai.conv_transpose")
class ConvTranspose:
    """The transpose of ai.conv as a linear map, plus bias.    (Dumoulin & Visin 2016, §4)

    x [N, C, n..], w [C, O/groups, k..] → [N, O, m..], m = s·(n - 1) + e + d·(k - 1) + 1 - p - q,
    e = output_padding (zeros when empty).
    y[b, o, j] = bias[o] + Σ x[b, c, i] · w[c, o, k] over all i, k with i·s + k·d - p = j.
    """

    x: Tensor
    w: Tensor
    bias: Tensor | None
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple
    groups: int = 1
    output_padding: tuple = ()

    def shape(x, w, bias, *, strides, pads_begin, pads_end, dilations, groups, output_padding):
        _check_operands(x, w, bias, groups, strides, pads_begin, pads_end, dilations)
        extra = output_padding or (0,) * (x.rank - 2)
        need_length(extra, x.rank - 2, "output_padding")
        need_not_negative(extra, "output_padding")
        c, o, *kernel = w.shape
        need_equal(x.shape[1], c, "channels of x and of w")
        need_true(equal(c % groups, 0), f"{c} channels do not divide into {groups} groups")
        if bias is not None:
            need_shape(bias, (o * groups,), "bias")
        sizes = _transposed_sizes(
            x.shape[2:], kernel, strides, pads_begin, pads_end, dilations, extra
        )
        fits = all(not isinstance(n, int) or n >= 1 for n in sizes)
        need(fits, f"the padding {spell(pads_begin)}, {spell(pads_end)} leaves nothing")
        return TensorType((x.shape[0], o * groups, *sizes), x.dtype)

    def reference(x, w, bias, *, strides, pads_begin, pads_end, dilations, groups, output_padding):
        c, o, *kernel = w.shape
        extra = output_padding or (0,) * len(kernel)
        nothing = (0,) * len(kernel)
        full = _transposed_sizes(x.shape[2:], kernel, strides, nothing, nothing, dilations, extra)
        total = np.zeros((x.shape[0], groups, o, *(max(n, 0) for n in full)), x.dtype)
        parts = x.reshape(x.shape[0], groups, c // groups, *x.shape[2:])
        for place in product(*map(range, kernel)):
            taps = w[(..., *place)].reshape(groups, c // groups, o)
            target = tuple(
                slice(d * at, d * at + s * n, s)
                for d, at, s, n in zip(dilations, place, strides, x.shape[2:], strict=True)
            )
            total[(..., *target)] += np.einsum("ngc...,gco->ngo...", parts, taps)
        kept = tuple(slice(p, n - q) for p, n, q in zip(pads_begin, full, pads_end, strict=True))
        y = total[(..., *kept)]
        y = y.reshape(x.shape[0], o * groups, *y.shape[3:])
        return y if bias is None else y + bias.reshape(-1, *[1] * len(kernel))

    def domain(k, x, w, bias, *, groups, **attrs):
        return (k.floordiv(w.shape[0], groups), *w.shape[2:])

    def term(
        k, i, r, x, w, bias, *, strides, pads_begin, pads_end, dilations, groups, output_padding
    ):
        batch, o, *rest = i
        channel, *place = r
        if groups != 1:
            group = k.floordiv(o, w.shape[1])
            o = k.mod(o, w.shape[1])
            channel = group * k.floordiv(w.shape[0], groups) + channel
        where, conditions = [], []
        axes = zip(rest, place, w.shape[2:], x.shape[2:], strict=True)
        steps = zip(strides, pads_begin, dilations, strict=True)
        for (j, at, size, n), (s, p, d) in zip(axes, steps, strict=True):
            lead = (size - 1) * d  # whole strides added, so that nothing is negative
            spread = j + p - at * d + lead * s
            source = k.floordiv(spread, s)
            if s != 1:
                conditions.append(k.eq(k.mod(spread, s), 0))
            conditions += [k.ge(source, lead), k.lt(source, n + lead)]
            where.append(source - lead)
        load = guarded(k, conditions, lambda: x[(batch, channel, *where)], k.const(0, x.dtype))
        return load * w[(channel, o, *place)]

    def finish(k, i, total, x, w, bias, **attrs):
        return total if bias is None else total + bias[i[1]]

    combine = "sum"
    samples = (
        sample(
            "float32[1,3,4,5]", "float32[3,2,3,3]", "float32[2]", strides=(2, 3),
            pads_begin=(1, 0), pads_end=(0, 1), dilations=(1, 1), output_padding=(1, 0),
        ),
        sample(
            "float32[2,4,5]", "float32[4,3,2]", strides=(1,), pads_begin=(0,), pads_end=(0,),
            dilations=(2,), groups=2,
        ),
        sample(
            "float32[1,2,2,3,2]", "float32[2,1,2,2,2]", strides=(2, 2, 2), pads_begin=(0, 0, 0),
            pads_end=(0, 0, 0), dilations=(1, 1, 1),
        ),
    )  # fmt: skip


def _transposed_sizes(sizes, kernel, strides, pads_begin, pads_end, dilations, extra):
    axes = zip(sizes, kernel, strides, pads_begin, pads_end, dilations, extra, strict=True)
    return tuple(s * (n - 1) + e + d * (k - 1) + 1 - p - q for n, k, s, p, q, d, e in axes)
