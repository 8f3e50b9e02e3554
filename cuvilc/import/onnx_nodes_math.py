"""Elementwise operators."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.narrow import NARROW_FLOATS
from cuvilc.dialect.op import ShapeError

from ._table import importer
from .onnx_node import Node, ai, cast, dtype_of, learn_bounds, reshape, scalar, shape_of
from .onnx_values import Val

_BINARY = {
    "Add": "elemwise_add", "Sub": "elemwise_sub", "Mul": "elemwise_mul", "Div": "elemwise_div",
    "Equal": "equal", "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater",
    "GreaterOrEqual": "greater_equal", "And": "logical_and", "Or": "logical_or",
    "Xor": "logical_xor",
    "BitwiseAnd": "bit_and", "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor",
}  # fmt: skip

_UNARY = {
    "Not": "logical_not", "BitwiseNot": "bit_not", "HardSwish": "hard_swish",
    **{name: name.lower() for name in (
        "Abs", "Neg", "Ceil", "Floor", "Round", "Sqrt", "Reciprocal", "Exp", "Log",
        "Sin", "Cos",
        "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf",
        "Sigmoid",
        "Relu", "Softplus", "Softsign", "Mish",
    )},
}  # fmt: skip


@importer(*_UNARY)
def unary(n: Node) -> ir.Value:
    return ai(_UNARY[n.op], n[0])


def _widened(x: ir.Value) -> ir.Value:
    """x, or a float32 where it is of a narrow float: none is computed with, and all fit."""
    return cast(x, "float32") if dtype_of(x) in NARROW_FLOATS else x


@importer("IsNaN")
def is_nan(n: Node) -> ir.Value:
    return ai("is_nan", _widened(n[0]))


@importer(*_BINARY, since=7)
def binary(n: Node) -> ir.Value:
    learn_bounds(n.shape(0), n.shape(1))
    return ai(_BINARY[n.op], n[0], n[1])


@importer(*_BINARY)
def old_binary(n: Node) -> ir.Value:
    """Before opset 7, `axis` says where the second operand's axes lie in the first's."""
    b = n[1]
    if n.attr("broadcast", 0) and "axis" in n.attributes:
        after = len(n.shape(0)) - n.axis(0) - len(shape_of(b))
        b = reshape(b, (*shape_of(b), *[1] * after))
    return ai(_BINARY[n.op], n[0], b)


@importer("Sum")
def sum_(n: Node) -> ir.Value:
    return reduce(lambda a, b: ai("elemwise_add", a, b), n.all())


@importer("Mean")
def mean(n: Node) -> ir.Value:
    total = sum_(n)
    return ai("elemwise_div", total, scalar(float(len(n)), total))


@importer("Max")
def max_(n: Node) -> ir.Value:
    return reduce(lambda a, b: ai("maximum", a, b), n.all())


@importer("Min")
def min_(n: Node) -> ir.Value:
    return reduce(lambda a, b: ai("minimum", a, b), n.all())


@importer("Pow")
def pow_(n: Node) -> ir.Value:
    return ai("pow", n[0], n[1])


@importer("Mod")
def mod(n: Node) -> ir.Value:
    return ai("mod", n[0], n[1], fmod=bool(n.attr("fmod", 0)))


@importer("BitShift")
def bit_shift(n: Node) -> ir.Value:
    return ai("shift_left" if n.attr("direction") == "LEFT" else "shift_right", n[0], n[1])


@importer("Where")
def where(n: Node) -> ir.Value:
    learn_bounds(n.shape(1), n.shape(2))
    learn_bounds(n.shape(0), n.shape(1))
    return ai("where", n[0], n[1], n[2])


@importer("IsInf")
def is_inf(n: Node) -> ir.Value:
    return ai(
        "is_inf",
        _widened(n[0]),
        positive=bool(n.attr("detect_positive", 1)),
        negative=bool(n.attr("detect_negative", 1)),
    )


@importer("Clip", since=11)
def clip(n: Node) -> ir.Value:
    x = n[0]
    low = n.array(1) if n.has(1) else None
    high = n.array(2) if n.has(2) else None
    known = (low is not None or not n.has(1)) and (high is not None or not n.has(2))
    if known and n.type(0).is_float:
        return ai("clip", x, low=_number(low), high=_number(high))
    if n.has(1):
        x = ai("maximum", x, reshape(n[1], ()))
    return ai("minimum", x, reshape(n[2], ())) if n.has(2) else x


def _number(array: Any) -> float | None:
    return None if array is None else float(array.reshape(-1)[0])


@importer("Clip")
def old_clip(n: Node) -> ir.Value:
    return ai("clip", n[0], low=n.attr("min"), high=n.attr("max"))


@importer("PRelu")
def prelu(n: Node) -> ir.Value:
    slope = n[1]
    if n.opset < 7 and len(shape_of(slope)) == 1 and len(n.shape(0)) > 1:  # one slope a channel
        slope = reshape(slope, (*shape_of(slope), *[1] * (len(n.shape(0)) - 2)))
    return ai("prelu", n[0], slope)


@importer("LeakyRelu")
def leaky_relu(n: Node) -> ir.Value:
    return ai("leaky_relu", n[0], alpha=n.attr("alpha", 0.01))


@importer("Elu")
def elu(n: Node) -> ir.Value:
    return ai("elu", n[0], alpha=n.attr("alpha", 1.0))


@importer("Selu")
def selu(n: Node) -> ir.Value:
    old = n.opset < 6
    return ai(
        "selu", n[0], alpha=n.attr("alpha", 1.6732 if old else 1.67326319217681884765625),
        gamma=n.attr("gamma", 1.0507 if old else 1.05070102214813232421875),
    )  # fmt: skip


@importer("Celu")
def celu(n: Node) -> ir.Value:
    return ai("celu", n[0], alpha=n.attr("alpha", 1.0))


@importer("HardSigmoid")
def hard_sigmoid(n: Node) -> ir.Value:
    return ai("hard_sigmoid", n[0], alpha=n.attr("alpha", 0.2), beta=n.attr("beta", 0.5))


@importer("ThresholdedRelu")
def thresholded_relu(n: Node) -> ir.Value:
    return ai("thresholded_relu", n[0], alpha=n.attr("alpha", 1.0))


@importer("Shrink")
def shrink(n: Node) -> ir.Value:
    """Integers are compared and moved as real numbers; what is left is cut off."""
    x = n[0] if n.type(0).is_float else cast(n[0], "float64")
    y = ai("shrink", x, bias=n.attr("bias", 0.0), lambd=n.attr("lambd", 0.5))
    return cast(y, n.type(0).dtype)


@importer("Sign")
def sign(n: Node) -> ir.Value:
    if n.type(0).dtype.startswith("uint"):
        return ai("minimum", n[0], ir.full(1, (), n.type(0).dtype))
    return ai("sign", n[0])


@importer("Gelu")
def gelu(n: Node) -> ir.Value:
    return ai("gelu", n[0], approximate=n.attr("approximate", "none"))


@importer("Swish")
def swish(n: Node) -> ir.Value:
    return ai("silu", n[0], beta=n.attr("alpha", 1.0))


@importer("Constant")
def constant(n: Node) -> Any:
    if len(n.attributes) != 1:
        raise ShapeError("a Constant has one attribute")
    ((name, value),) = n.attributes.items()
    if name in ("value_string", "value_strings", "sparse_value") or value is None:
        raise ShapeError(f"{name} is not supported")
    if name != "value":
        value = np.array(value, np.float32 if name.startswith("value_float") else np.int64)
    return Val.constant(value, n.proto.output[0] or n.label)
