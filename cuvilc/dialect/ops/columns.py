"""Windows of an image as columns of a matrix."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import flatten, guarded
from cuvilc.dialect.ops._rules import (
    need,
    need_length,
    need_number,
    need_positive,
    need_rank,
    need_true,
    spell,
)
from cuvilc.dialect.ops._windows import need_windows, window_counts
from cuvilc.dialect.types import TensorType


@op("ai.col2im")
class Col2Im:
    """Columns of windows added up where they lie in the image.    (Chellapilla et al. 2006, §3)

    x [N, C·Πk, Πm] → [N, C, *image]: y[b, c, j] = Σ x[b, (c, κ), i] over all kernel places κ and
    windows i with i·s - p + κ·d = j; m is the number of windows along each axis of the image.
    """

    x: Tensor
    image: tuple
    kernel: tuple
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple

    def shape(x, *, image, kernel, strides, pads_begin, pads_end, dilations):
        need_rank(x, 3, "x")
        need_number(x)
        need_length(kernel, len(image), "kernel")
        need_positive(kernel, "kernel")
        need_windows(len(image), strides, pads_begin, pads_end, dilations)
        counts = window_counts(image, kernel, strides, pads_begin, pads_end, dilations)
        windows, places = D.product(counts), prod(kernel)
        message = f"{x.shape[2]} columns for {windows} windows of {spell(image)}"
        need_true(D.equal(x.shape[2], windows), message)
        rows = f"{x.shape[1]} rows are no multiple of the kernel's {places} places"
        need_true(D.equal(D.mod(x.shape[1], places), 0), rows)
        need(bool(image), "the image has no axis")
        return TensorType((x.shape[0], D.floordiv(x.shape[1], places), *image), x.dtype)

    def reference(x, *, image, kernel, strides, pads_begin, pads_end, dilations):
        counts = window_counts(image, kernel, strides, pads_begin, pads_end, dilations)
        channels = x.shape[1] // prod(kernel)
        parts = x.reshape(x.shape[0], channels, *kernel, *counts)
        pads = zip(image, pads_begin, pads_end, strict=True)
        y = np.zeros((x.shape[0], channels, *(n + p + q for n, p, q in pads)), x.dtype)
        for place in product(*map(range, kernel)):
            steps = zip(place, dilations, strides, counts, strict=True)
            where = tuple(slice(k * d, k * d + s * m, s) for k, d, s, m in steps)
            y[(..., *where)] += parts[(slice(None), slice(None), *place)]
        inner = tuple(slice(p, p + n) for p, n in zip(pads_begin, image, strict=True))
        return y[(..., *inner)]

    def domain(k, x, *, kernel, **attrs):
        return kernel

    def term(k, i, r, x, *, image, kernel, strides, pads_begin, pads_end, dilations):
        batch, channel, *rest = i
        windows = zip(rest, r, image, kernel, strides, pads_begin, pads_end, dilations, strict=True)
        counts, where, conditions = [], [], []
        for j, at, n, size, s, p, q, d in windows:
            counts.append(k.floordiv(n + p + q - d * (size - 1) - 1, s) + 1)
            lead = (size - 1) * d  # whole strides added, so that nothing is negative
            spread = j + p - at * d + lead * s
            source = k.floordiv(spread, s)
            if s != 1:
                conditions.append(k.eq(k.mod(spread, s), 0))
            conditions += [k.ge(source, lead), k.lt(source, counts[-1] + lead)]
            where.append(source - lead)
        row = channel * prod(kernel) + flatten(r, kernel)
        column = flatten(where, counts)
        return guarded(k, conditions, lambda: x[batch, row, column], k.const(0, x.dtype))

    combine = "sum"
    samples = (
        sample(
            "float32[1,8,12]", image=(5, 4), kernel=(2, 2), strides=(1, 1), pads_begin=(0, 0),
            pads_end=(0, 0), dilations=(1, 1),
        ),
        sample(
            "float32[2,6,4]", image=(4, 5), kernel=(3, 2), strides=(2, 2), pads_begin=(1, 0),
            pads_end=(0, 1), dilations=(1, 2),
        ),
        sample(
            "int32[1,3,4]", image=(5,), kernel=(3,), strides=(1,), pads_begin=(0,), pads_end=(1,),
            dilations=(1,), low=-9, high=9,
        ),
        sample(
            "float32[1,8,12]", image=(3, 3, 4), kernel=(2, 2, 2), strides=(1, 1, 1),
            pads_begin=(0, 0, 0), pads_end=(0, 0, 0), dilations=(1, 1, 1),
        ),
    )  # fmt: skip
