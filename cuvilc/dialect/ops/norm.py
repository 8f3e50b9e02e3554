"""Normalisations: subtract a mean, divide by a deviation, scale and shift."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import equal
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import (
    need,
    need_axis,
    need_broadcast,
    need_float,
    need_positive,
    need_same_dtype,
    need_shape,
    need_true,
    spell,
)
from cuvilc.dialect.types import TensorType


def _standardised(x: np.ndarray, axes: tuple[int, ...], eps: float) -> np.ndarray:
    centred = x - np.mean(x, axes, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axes, keepdims=True) + eps)


def _check_tail(x: TensorType, t: TensorType, axis: int, what: str) -> None:
    """A scale or shift broadcasts to the normalised axes."""
    tail = x.shape[axis:]
    message = f"{what} {spell(t.shape)} must broadcast to the normalised axes {spell(tail)}"
    need_broadcast(t.shape, tail, message)


def _check_channels(x: TensorType, *parameters: tuple[TensorType, str]) -> None:
    need_float(x)
    need(x.rank >= 2, f"x must be [N, C, ...], not {spell(x.shape)}")
    need_same_dtype(x, *(t for t, _ in parameters))
    for t, what in parameters:
        need_shape(t, (x.shape[1],), what)


@op("ai.layer_norm")
class LayerNorm:
    """(x - mean) / √(variance + eps) · scale + bias over axes `axis` and later.

    scale and bias broadcast to those axes.    (Ba et al. 2016, eq. 4)
    """

    x: Tensor
    scale: Tensor
    bias: Tensor | None
    axis: int
    eps: float = 1e-5

    def shape(x, scale, bias, *, axis, eps):
        need_float(x)
        need_axis(axis, x.rank)
        need_same_dtype(x, scale, *([bias] if bias else []))
        _check_tail(x, scale, axis, "scale")
        if bias is not None:
            _check_tail(x, bias, axis, "bias")
        return TensorType(x.shape, x.dtype)

    def reference(x, scale, bias, *, axis, eps):
        y = _standardised(x, tuple(range(axis, x.ndim)), eps) * scale
        return y if bias is None else y + bias

    samples = (
        sample("float32[3,7]", "float32[7]", "float32[7]", axis=1),
        sample("float32[2,3,5]", "float32[3,5]", axis=1, eps=1e-3),
        sample("float16[2,9]", "float16[9]", "float16[9]", axis=1),
        sample("float32[0,4]", "float32[4]", axis=1),
    )


@op("ai.rms_norm")
class RmsNorm:
    """x / √(mean(x²) + eps) · scale over axes `axis` and later.  (Zhang & Sennrich 2019, eq. 4)"""

    x: Tensor
    scale: Tensor
    axis: int
    eps: float = 1e-5

    def shape(x, scale, *, axis, eps):
        need_float(x)
        need_axis(axis, x.rank)
        need_same_dtype(x, scale)
        _check_tail(x, scale, axis, "scale")
        return TensorType(x.shape, x.dtype)

    def reference(x, scale, *, axis, eps):
        axes = tuple(range(axis, x.ndim))
        return x / np.sqrt(np.mean(x * x, axes, keepdims=True) + eps) * scale

    samples = (
        sample("float32[3,7]", "float32[7]", axis=1),
        sample("bfloat16[2,3,5]", "bfloat16[5]", axis=2, eps=1e-6),
        sample("float32[2,3,4]", "float32[3,4]", axis=1),
    )


@op("ai.instance_norm")
class InstanceNorm:
    """(x - mean) / √(variance + eps) · scale[c] + bias[c] per image and channel.

    x [N, C, spatial...].    (Ulyanov et al. 2016, eq. 2)
    """

    x: Tensor
    scale: Tensor
    bias: Tensor
    eps: float = 1e-5

    def shape(x, scale, bias, *, eps):
        _check_channels(x, (scale, "scale"), (bias, "bias"))
        return TensorType(x.shape, x.dtype)

    def reference(x, scale, bias, *, eps):
        line = (-1, *[1] * (x.ndim - 2))
        y = _standardised(x, tuple(range(2, x.ndim)), eps)
        return y * scale.reshape(line) + bias.reshape(line)

    samples = (
        sample("float32[2,3,4,5]", "float32[3]", "float32[3]"),
        sample("float32[1,2,7]", "float32[2]", "float32[2]", eps=1e-3),
    )


@op("ai.group_norm")
class GroupNorm:
    """(x - mean) / √(variance + eps) · scale[c] + bias[c] per image and group of channels.

    x [N, C, spatial...], C a multiple of `groups`.    (Wu & He 2018, eq. 7)
    """

    x: Tensor
    scale: Tensor
    bias: Tensor
    groups: int
    eps: float = 1e-5

    def shape(x, scale, bias, *, groups, eps):
        _check_channels(x, (scale, "scale"), (bias, "bias"))
        need_positive((groups,), "groups")
        whole = equal(x.shape[1] % groups, 0)
        need_true(whole, f"{x.shape[1]} channels do not divide into {groups} groups")
        return TensorType(x.shape, x.dtype)

    def reference(x, scale, bias, *, groups, eps):
        line = (-1, *[1] * (x.ndim - 2))
        parts = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
        y = _standardised(parts, tuple(range(2, parts.ndim)), eps).reshape(x.shape)
        return y * scale.reshape(line) + bias.reshape(line)

    samples = (
        sample("float32[2,6,3,5]", "float32[6]", "float32[6]", groups=3),
        sample("float32[1,4,7]", "float32[4]", "float32[4]", groups=1, eps=1e-3),
    )
