"""Sliding windows: the arithmetic that convolutions and pools share, in shapes, NumPy and indices.

A window attribute set is strides, pads_begin, pads_end, dilations, one entry per spatial axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from cuvilc.dialect.dims import Dim, Shape, ceildiv, floordiv, less
from cuvilc.dialect.ops._index import as_index
from cuvilc.dialect.ops._rules import (
    need,
    need_length,
    need_not_negative,
    need_positive,
    need_true,
    spell,
)
from cuvilc.dialect.types import TensorType

_FAR = 1 << 31


def need_spatial(x: TensorType, what: str = "x") -> int:
    """The number of spatial axes of [N, C, spatial...]. Refuses fewer than 1 and more than 3."""
    need(3 <= x.rank <= 5, f"{what} must be [N, C, 1 to 3 spatial sizes], not {spell(x.shape)}")
    return x.rank - 2


def need_windows(spatial: int, strides, pads_begin, pads_end, dilations) -> None:
    """Check the lengths and signs of window attributes."""
    for values, what in ((strides, "strides"), (dilations, "dilations")):
        need_length(values, spatial, what)
        need_positive(values, what)
    for values, what in ((pads_begin, "pads_begin"), (pads_end, "pads_end")):
        need_length(values, spatial, what)
        need_not_negative(values, what)


def stacks(x: TensorType, stack: int, stack_step: int) -> tuple[Dim, Dim]:
    """(images, channels) of x [N, C, ..] where `stack` images that follow each other are one, their
    channels one after the other, and the next one begins `stack_step` images later:
    ((N - stack) div stack_step + 1, C · stack). Raises ShapeError for fewer images than `stack`.
    """
    need_positive((stack, stack_step), "stack, stack_step")
    if stack == stack_step == 1:
        return x.shape[0], x.shape[1]
    need_true(less(stack - 1, x.shape[0]), f"{x.shape[0]} images are no stack of {stack}")
    return floordiv(x.shape[0] - stack, stack_step) + 1, x.shape[1] * stack


def stacked(x: np.ndarray, stack: int, stack_step: int) -> np.ndarray:
    """x [N, C, ..] as the array [images, channels, ..] of `stacks`."""
    if stack == stack_step == 1:
        return x
    count = (x.shape[0] - stack) // stack_step + 1
    end = (count - 1) * stack_step + 1
    return np.concatenate([x[t : t + end : stack_step] for t in range(stack)], 1)


def of_stack(k: Any, image: Any, channel: Any, x: Any, stack: int, stack_step: int) -> Any:
    """(image, channel) of x [N, C, ..] that a channel of an image of `stacks` is."""
    if stack == 1:
        return image if stack_step == 1 else image * stack_step, channel
    size = x.shape[1]
    return image * stack_step + k.floordiv(channel, size), k.mod(channel, size)


def window_counts(
    sizes: Shape, kernel: Shape, strides, pads_begin, pads_end, dilations, ceil_mode: bool = False
) -> Shape:
    """How many windows lie along each spatial axis.

    ⌊(n + p + q - d·(k - 1) - 1) / s⌋ + 1; in ceil mode ⌈..⌉ instead, less the windows that would
    start beyond the input and its left padding.
    """
    counts: list[Dim] = []
    windows = zip(sizes, kernel, strides, pads_begin, pads_end, dilations, strict=True)
    for n, size, s, p, q, d in windows:
        far = isinstance(size, int) and d * (size - 1) >= _FAR
        need(not far, f"a window of {size} (dilation {d}) is longer than any axis")
        room = n + p + q - d * (size - 1) - 1
        if ceil_mode:
            count = ceildiv(room, s) + 1
            count = count - 1 + less((count - 1) * s, n + p)
        else:
            count = room // s + 1
        message = f"a window of {size} (dilation {d}) does not fit {n} padded by {p} and {q}"
        need(not isinstance(room, int) or room >= 0, message)
        need_true(less(-1, count), message)  # at run time an empty result will do
        counts.append(count)
    return tuple(counts)


def windows(
    x: np.ndarray, counts, kernel, strides, pads_begin, dilations, fill: float
) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """For each place in the kernel, the elements of all windows at it: [N, C, counts...]."""
    reach = [
        (c - 1) * s + d * (size - 1) + 1 if c else 0
        for c, size, s, d in zip(counts, kernel, strides, dilations, strict=True)
    ]
    lengths = [max(r, p + n) for r, p, n in zip(reach, pads_begin, x.shape[2:], strict=True)]
    padded = np.full((*x.shape[:2], *lengths), fill, x.dtype)
    inner: Any = tuple(slice(p, p + n) for p, n in zip(pads_begin, x.shape[2:], strict=True))
    padded[(..., *inner)] = x
    for place in product(*map(range, kernel)):
        starts = [d * at for d, at in zip(dilations, place, strict=True)]
        spans = zip(starts, strides, counts, strict=True)
        cut: Any = tuple(slice(b, b + s * c, s) for b, s, c in spans)
        yield place, padded[(..., *cut)]


def window_index(k: Any, i, place, extents, strides, pads_begin, pads_end, dilations, ceil_mode):
    """(spatial index into x, conditions under which it is in range) at a place of window i.

    A condition appears only where padding can make it fail.
    """
    where, conditions = [], []
    axes = zip(i, place, extents, strides, pads_begin, pads_end, dilations, strict=True)
    for j, at, n, s, p, q, d in axes:
        position = j * s + at * d - p
        where.append(position)
        if not (isinstance(p, int) and p == 0):
            conditions.append(k.ge(j * s + at * d, p))
        if ceil_mode or not (isinstance(q, int) and q == 0):
            conditions.append(k.lt(position, n))
    return tuple(where), conditions


def cells_inside(k: Any, start, kernel: int, dilation: int, low, high):
    """How many cells of a window that begins at index `start` lie in [low, high), as an index."""
    zero, size = as_index(k, 0), as_index(k, kernel)

    def before(edge):  # cells before `edge`: ⌈(edge - start) / dilation⌉ within [0, kernel]
        gap = k.max(as_index(k, edge - start), zero)
        return k.min(as_index(k, k.floordiv(gap + (dilation - 1), dilation)), size)

    return before(high) - before(low)
