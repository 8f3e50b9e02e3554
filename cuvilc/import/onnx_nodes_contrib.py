"""Float operators of com.microsoft that onnxruntime's own optimiser writes into saved models."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError

from ._table import importer, takes
from .onnx_node import Node, ai, cast, dtype_of, scalar, shape_of
from .onnx_nodes_conv import convolve
from .onnx_nodes_math import gelu
from .onnx_nodes_matmul import gemm
from .onnx_nodes_norm import fitted, layer_norm
from .onnx_nodes_slice import sliced

MICROSOFT = "com.microsoft"
WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
# Activation → the attributes that are its numbers, with the values that hold where they are absent.
_ACTIVATIONS: dict[str, dict[str, float]] = {
    "Relu": {}, "Tanh": {}, "Sigmoid": {}, "Softplus": {}, "Softsign": {},
    "Elu": {"alpha": 1.0}, "LeakyRelu": {"alpha": 0.01}, "Celu": {"alpha": 1.0},
    "ThresholdedRelu": {"alpha": 1.0}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "Clip": {"low": float("-inf"), "high": float("inf")},
}  # fmt: skip
_NAMES = {
    "LeakyRelu": "leaky_relu", "ThresholdedRelu": "thresholded_relu", "HardSigmoid": "hard_sigmoid",
}  # fmt: skip


def refuse_inputs(n: Node, **at: int) -> None:
    """ShapeError that names the first of these inputs that the node has."""
    for name, i in at.items():
        if n.has(i):
            raise ShapeError(f"the input `{name}` is not supported")


def refuse_outputs(n: Node, **at: int) -> None:
    """ShapeError that names the first of these outputs that someone may use."""
    for name, i in at.items():
        if n.wants(i):
            raise ShapeError(f"the output `{name}` is not supported")


def add(*values: ir.Value | None) -> ir.Value:
    """The sum of those that are there."""
    total, *rest = (v for v in values if v is not None)
    for value in rest:
        total = ai("elemwise_add", total, value)
    return total


@importer(
    "FusedMatMul",
    "TransposeMatMul",
    domain=MICROSOFT,
    refuse=takes("alpha", "transA", "transB", "transBatchA", "transBatchB"),
)
def fused_matmul(n: Node) -> ir.Value:
    """alpha · A' B': a "batch" transposition moves the first axis behind the other batch axes."""
    a = _turned(n[0]) if n.attr("transBatchA", 0) else n[0]
    b = _turned(n[1]) if n.attr("transBatchB", 0) else n[1]
    y = ai(
        "matmul",
        a,
        b,
        transpose_a=bool(n.attr("transA", 0)) and len(shape_of(a)) > 1,
        transpose_b=bool(n.attr("transB", 0)) and len(shape_of(b)) > 1,
    )
    alpha = n.attr("alpha", 1.0)
    return y if alpha == 1.0 else ai("elemwise_mul", y, scalar(alpha, y))


def _turned(x: ir.Value) -> ir.Value:
    rank = len(shape_of(x))
    if rank < 3:
        return x
    return ai("transpose", x, perm=(*range(1, rank - 1), 0, rank - 1))


def _activated(y: ir.Value, kind: str | None, given: dict[str, Any]) -> ir.Value:
    """The activation `kind` of y; `given` its numbers, as far as the node has them."""
    if kind is None or kind == "":
        return y
    numbers = _ACTIVATIONS[kind] | given
    return ai(_NAMES.get(kind, kind.lower()), y, **numbers)


@importer(
    "FusedGemm",
    domain=MICROSOFT,
    refuse=takes(
        "alpha", "beta", "transA", "transB", "activation_alpha", "activation_beta",
        "activation_gamma", activation=tuple(k for k in _ACTIVATIONS if k != "Clip"),
    ),
)  # fmt: skip
def fused_gemm(n: Node) -> ir.Value:
    kind = n.attr("activation")
    wanted = _ACTIVATIONS.get(kind, {})
    given = {k: n.attr(f"activation_{k}") for k in wanted if f"activation_{k}" in n.attributes}
    return _activated(gemm(n), kind, given)


_FUSED = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")
_CONV = takes(*WINDOW, "activation_params", activation=_FUSED)


@importer("FusedConv", domain=MICROSOFT, refuse=_CONV)
def fused_conv(n: Node) -> ir.Value:
    return _fused_conv(n, n[0], n.get(3))


def _fused_conv(n: Node, x: ir.Value, sum_with: ir.Value | None) -> ir.Value:
    y = add(convolve(n, x, n[1], n.get(2)), sum_with)
    kind, numbers = n.attr("activation"), n.attr("activation_params", ())
    names = _ACTIVATIONS.get(kind or "", {})
    if len(numbers) > len(names):
        raise ShapeError(f"{kind} takes {len(names)} activation_params, not {len(numbers)}")
    return _activated(y, kind, dict(zip(names, numbers, strict=False)))


@importer("NhwcConv", domain=MICROSOFT, refuse=takes(*WINDOW))
@importer("NhwcFusedConv", domain=MICROSOFT, refuse=_CONV)
def nhwc_conv(n: Node) -> ir.Value:
    """X, the sum's operand and Y have their channels last; W is as Conv has it."""
    extra = n.get(3)
    y = _fused_conv(n, channels_second(n[0]), None if extra is None else channels_second(extra))
    return channels_last(y)


def channels_second(x: ir.Value) -> ir.Value:
    """[N, ..., C] → [N, C, ...]."""
    rank = len(shape_of(x))
    return ai("transpose", x, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(x: ir.Value) -> ir.Value:
    """[N, C, ...] → [N, ..., C]."""
    rank = len(shape_of(x))
    return ai("transpose", x, perm=(0, *range(2, rank), 1))


importer("Gelu", domain=MICROSOFT, refuse=takes())(gelu)


@importer("BiasGelu", domain=MICROSOFT, refuse=takes())
def bias_gelu(n: Node) -> ir.Value:
    return ai("gelu", add(n[0], n[1]))


@importer("FastGelu", domain=MICROSOFT, refuse=takes())
def fast_gelu(n: Node) -> ir.Value:
    return ai("gelu", add(n[0], n.get(1)), approximate="tanh")


@importer("QuickGelu", domain=MICROSOFT, refuse=takes("alpha"))
def quick_gelu(n: Node) -> ir.Value:
    return ai("silu", n[0], beta=n.attr("alpha", 1.702))


_NORM = takes("axis", "epsilon", stash_type=(1,))


@importer("LayerNormalization", domain=MICROSOFT, refuse=_NORM)
def layer_normalization(n: Node) -> ir.Value:
    refuse_outputs(n, mean=1, inv_std_var=2)
    return layer_norm(n, n[0], n[1], n.get(2), n.axis(-1), n.attr("epsilon", 1e-5))


# onnxruntime registers it under ai.onnx, though ONNX does not have it.
@importer("SimplifiedLayerNormalization", refuse=_NORM)
@importer("SimplifiedLayerNormalization", domain=MICROSOFT, refuse=_NORM)
def simplified_layer_normalization(n: Node) -> list[ir.Value | None]:
    """Scaled by the root mean square; the result has the scale's dtype."""
    at = n.axis(-1)
    x = cast(n[0], dtype_of(n[1]))
    inverse = _inverse_root(n, n[0], at) if n.wants(1) else None
    return [_rms(n, x, n[1], at), inverse]


def _rms(n: Node, x: ir.Value, scale: ir.Value, at: int) -> ir.Value:
    return ai(
        "rms_norm", x, fitted(n, scale, shape_of(x)[at:]), axis=at, eps=n.attr("epsilon", 1e-5)
    )


def _inverse_root(n: Node, x: ir.Value, at: int) -> ir.Value:
    """1 / √(mean x² + ε) over the axes from `at` on, in float32."""
    wide = cast(x, "float32")
    axes = tuple(range(at, len(shape_of(x))))
    mean = ai("reduce_mean", ai("elemwise_mul", wide, wide), axes=axes, keepdims=True)
    return ai("reciprocal", ai("sqrt", add(mean, scalar(n.attr("epsilon", 1e-5), mean))))


@importer("SkipLayerNormalization", domain=MICROSOFT, refuse=takes("epsilon"))
def skip_layer_normalization(n: Node) -> list[ir.Value | None]:
    refuse_outputs(n, mean=1, inv_std_var=2)
    x = add(n[0], n[1], n.get(4))
    y = layer_norm(n, x, n[2], n.get(3), len(shape_of(x)) - 1, n.attr("epsilon", 1e-12))
    return [y, None, None, x]


@importer("SkipSimplifiedLayerNormalization", domain=MICROSOFT, refuse=takes("epsilon"))
def skip_simplified_layer_normalization(n: Node) -> list[ir.Value | None]:
    refuse_outputs(n, mean=1, inv_std_var=2)
    x = add(n[0], n[1], n.get(3))
    y = ai(
        "rms_norm", x, fitted(n, n[2], shape_of(x)[-1:]), axis=len(shape_of(x)) - 1,
        eps=n.attr("epsilon", 1e-12),
    )  # fmt: skip
    return [y, None, None, x]


@importer("EmbedLayerNormalization", domain=MICROSOFT, refuse=takes("epsilon", "mask_index_type"))
def embed_layer_normalization(n: Node) -> list[Any]:
    """Word, position and segment embeddings added and normalised; the mask's length beside."""
    words = ai("gather", n[2], n[0], axis=0)
    length, width = shape_of(words)[1:]
    place = ai("gather", n[3], n[8], axis=0) if n.has(8) else sliced(n[3], (0, 0), (length, width))
    segment = ai("gather", n[4], n[1], axis=0) if n.has(1) and n.has(4) else None
    x = add(words, place, segment)
    y = layer_norm(n, x, n[5], n.get(6), 2, n.attr("epsilon", 1e-12))
    results: list[Any] = [y, None, x]
    if n.wants(1):
        ones = n.get(7)
        if ones is None:
            results[1] = ir.full(0, (shape_of(x)[0],), "int32")
        else:
            results[1] = ai("reduce_sum", cast(ones, "int32"), axes=(1,), keepdims=False)
    return results


@importer("BiasAdd", domain=MICROSOFT, refuse=takes())
def bias_add(n: Node) -> ir.Value:
    return add(n[0], n[1], n[2])
