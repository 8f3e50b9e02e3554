"""Elementwise operators: every dtype, broadcasting, NaN, infinities, -0, the ends of integers."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.properties.draws import FLOATS, INTEGERS, Case, Draw, Model
from tests.properties.registry import operator

NUMBERS = (*FLOATS, *INTEGERS)


def contents(d: Draw, shape: list[int], dtype: str, low: float = -4, high: float = 4) -> np.ndarray:
    """Floats with special values among them, integers from their whole range."""
    if dtype in INTEGERS and d.flag():
        return d.extremes(shape, dtype)
    return d.array(shape, dtype, low, high, special=True)


def _unary(op: str, dtypes: tuple[str, ...], low: float = -4, high: float = 4) -> None:
    @operator(op)
    def case(d: Draw) -> Case:
        dtype, made = d.pick(*dtypes), Model(op, 20)
        out = "bool" if op in ("IsNaN", "IsInf", "Not") else dtype
        return made.case([made.input(contents(d, d.shape(), dtype, low, high))], [out])


for _op in (
    "Acos", "Asin", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Exp", "HardSwish", "Log", "Mish",
    "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "Asinh", "Acosh",
    "Reciprocal", "Ceil", "Floor", "Round", "IsNaN",
):  # fmt: skip
    _unary(_op, FLOATS)
for _op in ("Abs", "Neg", "Sign"):
    _unary(_op, NUMBERS if _op != "Neg" else (*FLOATS, "int8", "int16", "int32", "int64"))
_unary("Relu", (*FLOATS, "int8", "int32"))
_unary("Not", ("bool",))
_unary("BitwiseNot", INTEGERS)


def _parametric(op: str, dtypes: tuple[str, ...], *words: str, opset: int = 20) -> None:
    """Activations with numbers as attributes, left out at times."""

    @operator(op)
    def case(d: Draw) -> Case:
        dtype, made = d.pick(*dtypes), Model(op, opset)
        given = {w: d.pick(None, 0.25, 1.5, 2.0) for w in words}
        return made.case([made.input(contents(d, d.shape(), dtype))], [dtype], **given)


_parametric("Elu", ("float32",), "alpha")
_parametric("Celu", ("float32",), "alpha")
_parametric("Selu", ("float32",), "alpha", "gamma")
_parametric("LeakyRelu", FLOATS, "alpha")
_parametric("ThresholdedRelu", ("float32",), "alpha")
_parametric("HardSigmoid", ("float32",), "alpha", "beta")
_parametric("Shrink", ("float32", "float64", "int32"), "bias", "lambd")
_parametric("Swish", ("float32",), "alpha", opset=24)


@operator("Gelu")
def gelu(d: Draw) -> Case:
    made = Model("Gelu", 20)
    x = made.input(contents(d, d.shape(), "float32"))
    return made.case([x], ["float32"], approximate=d.pick(None, "none", "tanh"))


@operator("IsInf")
def is_inf(d: Draw) -> Case:
    made = Model("IsInf", 20)
    x = made.input(contents(d, d.shape(), d.pick("float32", "float64")))
    more = {w: d.pick(None, 0, 1) for w in ("detect_positive", "detect_negative")}
    return made.case([x], ["bool"], **more)


def _pair(d: Draw) -> tuple[list[int], list[int]]:
    """Two shapes that broadcast together, either of which may be the larger."""
    shape = d.shape()
    pair = (shape, d.broadcast(shape))
    return pair if d.flag() else (pair[1], pair[0])


def _binary(op: str, dtypes: tuple[str, ...], out: str = "", opset: int = 20) -> None:
    @operator(op)
    def case(d: Draw) -> Case:
        dtype, made = d.pick(*dtypes), Model(op, opset)
        a, b = _pair(d)
        left, right = contents(d, a, dtype), contents(d, b, dtype)
        if op == "Div" and dtype in INTEGERS:  # no meaning, and a trap on many machines
            right = np.where(right == 0, np.array(3, dtype), right)
            if np.issubdtype(np.dtype(dtype), np.signedinteger):
                right = np.where(right == -1, np.array(1, dtype), right)  # its least / -1
            right = np.asarray(right, dtype)
        return made.case([made.input(left), made.input(right)], [out or dtype])


for _op in ("Add", "Sub", "Mul", "Div"):
    _binary(_op, NUMBERS)
for _op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
    _binary(_op, NUMBERS, "bool")
for _op in ("And", "Or", "Xor"):
    _binary(_op, ("bool",))
for _op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    _binary(_op, INTEGERS)


def _variadic(op: str, dtypes: tuple[str, ...]) -> None:
    @operator(op)
    def case(d: Draw) -> Case:
        dtype, made = d.pick(*dtypes), Model(op, 20)
        shape = d.shape()
        count = d.number(1, 4)
        parts = [contents(d, d.broadcast(shape) if i else shape, dtype) for i in range(count)]
        return made.case([made.input(p) for p in parts], [dtype])


_variadic("Max", NUMBERS)
_variadic("Min", NUMBERS)
_variadic("Sum", FLOATS)
_variadic("Mean", FLOATS)


@operator("PRelu")
def prelu(d: Draw) -> Case:
    """The slope broadcasts to x alone."""
    dtype, made = d.pick("float32", "float64", "int32"), Model("PRelu", 16)
    shape = d.shape(1)
    return made.case(
        [made.input(contents(d, shape, dtype)), made.input(contents(d, d.broadcast(shape), dtype))],
        [dtype],
    )


@operator("Pow")
def pow_(d: Draw) -> Case:
    dtype, other = d.pick("float32", "float64", "int32", "int64"), d.pick("float32", "int32")
    made = Model("Pow", 15)
    a, b = _pair(d)
    base = d.array(a, dtype, 0 if other == "float32" else -4, 4, special=dtype == "float32")
    return made.case([made.input(base), made.input(d.array(b, other, 0, 5))], [dtype])


@operator("Mod")
def mod(d: Draw) -> Case:
    fmod = d.flag()
    dtype, made = d.pick(*(NUMBERS if fmod else INTEGERS)), Model("Mod", 13)
    a, b = _pair(d)
    right = contents(d, b, dtype)
    if dtype in INTEGERS:
        right = np.asarray(np.where(right == 0, np.array(3, dtype), right), dtype)
        if np.issubdtype(right.dtype, np.signedinteger):
            right = np.asarray(np.where(right == -1, np.array(5, dtype), right), dtype)
    return made.case(
        [made.input(contents(d, a, dtype)), made.input(right)], [dtype], fmod=int(fmod)
    )


@operator("BitShift")
def bit_shift(d: Draw) -> Case:
    dtype, made = d.pick("uint8", "uint16", "uint32", "uint64"), Model("BitShift", 11)
    a, b = _pair(d)
    bits = np.iinfo(dtype).bits
    parts = [made.input(d.extremes(a, dtype)), made.input(d.array(b, dtype, 0, bits - 1))]
    return made.case(parts, [dtype], direction=d.pick("LEFT", "RIGHT"))


@operator("Where")
def where(d: Draw) -> Case:
    dtype, made = d.pick(*NUMBERS, "bool"), Model("Where", 16)
    shape = d.shape()
    parts = [made.input(d.array(d.broadcast(shape), "bool"))]
    parts += [made.input(contents(d, s, dtype)) for s in (shape, d.broadcast(shape))]
    return made.case(parts, [dtype])


@operator("Clip")
def clip(d: Draw) -> Case:
    dtype, made = d.pick(*NUMBERS), Model("Clip", 13)
    unsigned = dtype.startswith("u")
    low, high = (1 if unsigned else -1), d.pick(2, 3, 0)  # the last below `low`: then all is `high`
    constant = d.flag()
    limits = [made.input(np.array(v, dtype) if d.flag() else None, constant) for v in (low, high)]
    return made.case([made.input(contents(d, d.shape(), dtype)), *limits], [dtype])


@operator("Cast")
def cast(d: Draw) -> Case:
    """Between all; a float beyond an integer's range has no meaning, so none is drawn."""
    kinds = (*NUMBERS, "bool", "bfloat16")
    source, target = d.pick(*kinds), d.pick(*kinds)
    made = Model("Cast", 19)
    shape = d.shape()
    floats = source in (*FLOATS, "bfloat16")
    if floats and target in INTEGERS:
        x = d.array(shape, source, 0 if target.startswith("u") else -100, 100)
    else:
        x = contents(d, shape, source, -100, 100)
    to = TensorProto.DataType.Value(
        {"float32": "FLOAT", "float64": "DOUBLE"}.get(target, target.upper())
    )
    return made.case([made.input(x)], [target], to=to)
