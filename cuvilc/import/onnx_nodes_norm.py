"""Normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Shape
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.types import numpy_dtype

from ._table import importer
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar, shape_of
from .onnx_nodes_training import batch_norm_training


@importer("BatchNormalization")
def batch_normalization(n: Node) -> Any:
    """As x · factor + shift per channel, both in float64 first; a pass can fold them.

    Opsets 7 to 13 say by their outputs that a model is trained.
    """
    for i in range(1, 5):
        n.require_equal(n.shape(0)[1] if len(n.shape(0)) > 1 else 1, n.shape(i)[0])
    x = n[0]
    rank = len(shape_of(x))
    parameters = [n.array(i) for i in range(1, 5)]
    eps = n.attr("epsilon", 1e-5)
    if n.attr("training_mode", 0) or (7 <= n.opset < 14 and any(map(n.wants, range(1, 5)))):
        return batch_norm_training(n, x, eps)[: n.results]
    if any(p is None for p in parameters):
        return _computed_batch_norm(n, rank, eps)
    scale, bias, mean, variance = (np.asarray(p, np.float64) for p in parameters)
    factor = scale / np.sqrt(variance + eps)
    shift = bias - mean * factor
    column = (-1,) + (1,) * (rank - 2)
    dtype = numpy_dtype(dtype_of(x))
    y = ai("elemwise_mul", x, n.constant(factor.astype(dtype).reshape(column)))
    return ai("elemwise_add", y, n.constant(shift.astype(dtype).reshape(column)))


def _computed_batch_norm(n: Node, rank: int, eps: float) -> ir.Value:
    dtype = dtype_of(n[0])
    scale, bias, mean, variance = (
        reshape(cast(n[i], dtype), (*n.shape(i), *[1] * (rank - 2))) for i in range(1, 5)
    )
    deviation = ai("sqrt", ai("elemwise_add", variance, scalar(eps, variance)))
    y = ai("elemwise_div", ai("elemwise_sub", n[0], mean), deviation)
    return ai("elemwise_add", ai("elemwise_mul", y, scale), bias)


@importer("LayerNormalization")
def layer_normalization(n: Node) -> Any:
    x, at = n[0], n.axis(-1)
    y = layer_norm(n, x, n[1], n.get(2), at, n.attr("epsilon", 1e-5))
    return [y, *_statistics(n, x, at)] if n.wants(1) or n.wants(2) else y


def layer_norm(
    n: Node, x: ir.Value, scale: ir.Value, bias: ir.Value | None, at: int, eps: float
) -> ir.Value:
    """ai.layer_norm; scale and bias get the normalised axes' full shape."""
    tail = shape_of(x)[at:]
    return ai(
        "layer_norm", x, fitted(n, scale, tail), bias and fitted(n, bias, tail), axis=at, eps=eps
    )


def fitted(n: Node, value: ir.Value, tail: Shape) -> ir.Value:
    """`value` with exactly the shape `tail`."""
    sizes = shape_of(value)
    if len(sizes) == len(tail):
        for a, b in zip(tail, sizes, strict=True):
            if b != 1:
                n.require_equal(a, b)
    return (
        value if sizes == tail else ai("broadcast_to", _without_lead(value, len(tail)), shape=tail)
    )


def _without_lead(value: ir.Value, rank: int) -> ir.Value:
    sizes = shape_of(value)
    lead = sizes[: max(len(sizes) - rank, 0)]
    if any(d != 1 for d in lead):
        raise ShapeError(f"scale {sizes} has more axes than are normalised")
    return reshape(value, sizes[len(lead) :])


def _statistics(n: Node, x: ir.Value, at: int) -> list[ir.Value | None]:
    """LayerNormalization's outputs Mean and InvStdDev."""
    axes = tuple(range(at, len(shape_of(x))))
    wide = cast(x, "float32")
    mean = ai("reduce_mean", wide, axes=axes, keepdims=True)
    centred = ai("elemwise_sub", wide, mean)
    variance = ai("reduce_mean", ai("elemwise_mul", centred, centred), axes=axes, keepdims=True)
    eps = scalar(n.attr("epsilon", 1e-5), variance)
    inverse = ai("reciprocal", ai("sqrt", ai("elemwise_add", variance, eps)))
    return [mean, inverse]


@importer("RMSNormalization")
def rms_normalization(n: Node) -> ir.Value:
    at = n.axis(-1)
    x, scale = n[0], n[1]
    return ai(
        "rms_norm", x, fitted(n, scale, shape_of(x)[at:]), axis=at, eps=n.attr("epsilon", 1e-5)
    )


@importer("InstanceNormalization")
def instance_normalization(n: Node) -> ir.Value:
    n.require_equal(n.shape(0)[1], n.shape(1)[0])
    return ai("instance_norm", n[0], n[1], n[2], eps=n.attr("epsilon", 1e-5))


@importer("GroupNormalization")
def group_normalization(n: Node) -> ir.Value:
    groups, channels = n.attr("num_groups"), n.shape(0)[1]
    scale, bias = n[1], n[2]
    if n.opset < 21:  # one number a group, not a channel
        scale, bias = (_per_channel(v, groups, channels) for v in (scale, bias))
    return ai("group_norm", n[0], scale, bias, groups=groups, eps=n.attr("epsilon", 1e-5))


def _per_channel(value: ir.Value, groups: int, channels: Any) -> ir.Value:
    wide = ai(
        "broadcast_to", reshape(value, (groups, 1)), shape=(groups, D.floordiv(channels, groups))
    )
    return reshape(wide, (channels,))


@importer("LRN")
def lrn(n: Node) -> ir.Value:
    return ai(
        "lrn", n[0], size=n.attr("size"), alpha=n.attr("alpha", 1e-4), beta=n.attr("beta", 0.75),
        bias=n.attr("bias", 1.0),
    )  # fmt: skip


@importer("MeanVarianceNormalization")
def mean_variance_normalization(n: Node) -> ir.Value:
    axes, x = tuple(sorted(n.attr("axes", (0, 2, 3)))), n[0]
    mean = ai("reduce_mean", x, axes=axes, keepdims=True)
    centred = ai("elemwise_sub", x, mean)
    variance = ai("reduce_mean", ai("elemwise_mul", centred, centred), axes=axes, keepdims=True)
    return ai(
        "elemwise_div", centred, ai("elemwise_add", ai("sqrt", variance), scalar(1e-9, variance))
    )
