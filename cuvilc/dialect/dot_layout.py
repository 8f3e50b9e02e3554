"""Weights as products of narrow numbers read them: small groups along the reduction lie together.

The layout "dot{axis}_{block}x{group}" cuts the axis of outputs into blocks, as "pack" does, and the
reduction into groups: [blocks, rows.., groups, block, group], filled up with zeros. Of a matrix the
other axis is the reduction. Of a convolution's weights [O, C, k.., kw] it is (kw, C) in this order,
so that a group may span taps, and the other kernel axes are the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuvilc.dialect.dims import Dim, Shape, ceildiv


def dot_parts(layout: str) -> tuple[int, int, int]:
    """(axis, block, group) of a layout."""
    axis, _, rest = layout.removeprefix("dot").partition("_")
    block, _, group = rest.partition("x")
    return int(axis), int(block), int(group)


def dot_shape(shape: Shape, layout: str) -> Shape:
    """Extents in memory."""
    axis, block, group = dot_parts(layout)
    rows, steps = _reduction(shape, axis)
    return (ceildiv(shape[axis], block), *rows, ceildiv(steps, group), block, group)


def dot_index(
    shape: Shape,
    layout: str,
    index: Sequence[Any],
    div: Callable[..., Any],
    mod: Callable[..., Any],
) -> list[Any]:
    """Where the element at a logical index lies in memory; div, mod: of an index and a number."""
    axis, block, group = dot_parts(layout)
    output, rows, step = index[axis], [], index[1 - axis]
    if len(shape) > 2:
        rows, step = [*index[2:-1]], index[-1] * shape[1] + index[1]
    return [div(output, block), *rows, div(step, group), mod(output, block), mod(step, group)]


def _reduction(shape: Shape, axis: int) -> tuple[Shape, Dim]:
    """(row axes, length of a row's reduction)."""
    if len(shape) == 2:
        return (), shape[1 - axis]
    return shape[2:-1], shape[-1] * shape[1]


def to_dot(array: np.ndarray, layout: str) -> np.ndarray:
    """A row-major array as it lies in memory."""
    axis, block, group = dot_parts(layout)
    if array.ndim == 2:
        lines = np.moveaxis(array, axis, 0)  # [outputs, steps]
    else:
        steps = array.shape[1] * array.shape[-1]
        lines = np.moveaxis(array, 1, -1).reshape(array.shape[0], *array.shape[2:-1], steps)
    outputs, steps = lines.shape[0], lines.shape[-1]
    widths = [(0, -outputs % block), *[(0, 0)] * (lines.ndim - 2), (0, -steps % group)]
    lines = np.pad(lines, widths)
    rows = lines.shape[1:-1]
    cut = lines.reshape(len(lines) // block, block, *rows, lines.shape[-1] // group, group)
    return np.ascontiguousarray(np.moveaxis(cut, 1, -2))


def from_dot(array: np.ndarray, layout: str, shape: tuple[int, ...]) -> np.ndarray:
    """Inverse of to_dot: the array of `shape`."""
    axis, _, _ = dot_parts(layout)
    cut = np.moveaxis(array, -2, 1)
    steps = cut.shape[-2] * cut.shape[-1]
    lines = cut.reshape(cut.shape[0] * cut.shape[1], *cut.shape[2:-2], steps)
    if len(shape) == 2:
        return np.moveaxis(lines[: shape[axis], : shape[1 - axis]], 0, axis)
    lines = lines[: shape[0], ..., : shape[-1] * shape[1]]
    return np.moveaxis(lines.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
