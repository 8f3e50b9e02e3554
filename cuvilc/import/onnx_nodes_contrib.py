"""Operators of com.microsoft that onnxruntime's own optimiser writes into saved models."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError

from ._table import importer, only
from .onnx_node import Node, ai, cast, scalar, shape_of
from .onnx_nodes_conv import convolve
from .onnx_nodes_math import gelu
from .onnx_nodes_norm import fitted, layer_norm

MICROSOFT = "com.microsoft"


@importer("FusedMatMul", domain=MICROSOFT, refuse=only(transBatchA=(0,), transBatchB=(0,)))
def fused_matmul(n: Node) -> ir.Value:
    y = ai(
        "matmul",
        n[0],
        n[1],
        transpose_a=bool(n.attr("transA", 0)),
        transpose_b=bool(n.attr("transB", 0)),
    )
    alpha = n.attr("alpha", 1.0)
    return y if alpha == 1.0 else ai("elemwise_mul", y, scalar(alpha, y))


_FUSED = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")


@importer("FusedConv", domain=MICROSOFT, refuse=only(activation=_FUSED))
def fused_conv(n: Node) -> ir.Value:
    y = convolve(n, n[0], n[1], n.get(2))
    if n.has(3):
        y = ai("elemwise_add", y, n[3])
    kind, numbers = n.attr("activation"), n.attr("activation_params", ())
    match kind:
        case "LeakyRelu":
            return ai("leaky_relu", y, alpha=numbers[0] if numbers else 0.01)
        case "Clip":
            return ai("clip", y, low=numbers[0], high=numbers[1])
        case "HardSigmoid":
            alpha, beta = numbers or (0.2, 0.5)
            return ai("hard_sigmoid", y, alpha=alpha, beta=beta)
    return y if kind is None else ai(kind.lower(), y)


importer("Gelu", domain=MICROSOFT)(gelu)


@importer("BiasGelu", domain=MICROSOFT)
def bias_gelu(n: Node) -> ir.Value:
    return ai("gelu", ai("elemwise_add", n[0], n[1]))


@importer("FastGelu", domain=MICROSOFT)
def fast_gelu(n: Node) -> ir.Value:
    x = ai("elemwise_add", n[0], n[1]) if n.has(1) else n[0]
    return ai("gelu", x, approximate="tanh")


@importer("QuickGelu", domain=MICROSOFT)
def quick_gelu(n: Node) -> ir.Value:
    return ai("silu", n[0], beta=n.attr("alpha", 1.702))


@importer("LayerNormalization", domain=MICROSOFT)
def layer_normalization(n: Node) -> ir.Value:
    return layer_norm(n, n[0], n[1], n.get(2), n.axis(-1), n.attr("epsilon", 1e-5))


# onnxruntime registers it under ai.onnx, though ONNX does not have it.
@importer("SimplifiedLayerNormalization")
@importer("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(n: Node) -> ir.Value:
    return _rms(n, n[0], n[1], n.axis(-1))


def _rms(n: Node, x: ir.Value, scale: ir.Value, at: int) -> ir.Value:
    return ai(
        "rms_norm", x, fitted(n, scale, shape_of(x)[at:]), axis=at, eps=n.attr("epsilon", 1e-5)
    )


@importer("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(n: Node) -> list[Any]:
    x = ai("elemwise_add", n[0], n[1])
    if n.has(4):
        x = ai("elemwise_add", x, n[4])
    y = layer_norm(n, x, n[2], n.get(3), len(shape_of(x)) - 1, n.attr("epsilon", 1e-12))
    return _with_sum(n, y, x)


@importer("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(n: Node) -> list[Any]:
    x = ai("elemwise_add", n[0], n[1])
    if n.has(3):
        x = ai("elemwise_add", x, n[3])
    return _with_sum(n, _rms(n, x, n[2], len(shape_of(x)) - 1), x)


def _with_sum(n: Node, y: ir.Value, x: ir.Value) -> list[Any]:
    """Outputs: normalised, mean, inverse deviation, the sum of input and skip."""
    if n.wants(1) or n.wants(2):
        raise ShapeError("the outputs `mean` and `inv_std_var` are for training")
    return [y, None, None, x]


@importer("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(n: Node) -> list[Any]:
    """Word, position and segment embeddings added and normalised; the mask's length beside."""
    x = ai("gather", n[2], n[0], axis=0)
    if n.has(8):
        place = ai("gather", n[3], n[8], axis=0)
    else:
        length, width = shape_of(x)[1:]
        place = ai("slice", n[3], starts=(0, 0), steps=(1, 1), sizes=(length, width))
    x = ai("elemwise_add", x, place)
    if n.has(1) and n.has(4):
        x = ai("elemwise_add", x, ai("gather", n[4], n[1], axis=0))
    y = layer_norm(n, x, n[5], n.get(6), 2, n.attr("epsilon", 1e-12))
    results: list[Any] = [y, None, x]
    if n.wants(1):
        ones = n.get(7)
        if ones is None:
            results[1] = ir.full(0, (shape_of(x)[0],), "int32")
        else:
            results[1] = ai("reduce_sum", cast(ones, "int32"), axes=(1,), keepdims=False)
    return results


@importer("BiasAdd", domain=MICROSOFT)
def bias_add(n: Node) -> ir.Value:
    return ai("elemwise_add", ai("elemwise_add", n[0], n[1]), n[2])
