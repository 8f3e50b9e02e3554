"""Quantised operators of com.microsoft against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.properties.contrib import model
from tests.properties.draws import Case, Draw, Model
from tests.properties.registry import operator


def quantised(d: Draw, m: Model, shape: list[int], dtype: str, optional: bool = True) -> list[str]:
    """A quantised input: value, scale, zero point (left out at times)."""
    zero = np.array(d.number(*_middle(dtype)), dtype)
    if optional and d.number(0, 7) == 7:  # onnxruntime seldom runs it without, though it may be so
        zero = None
    return [
        m.input(d.array(shape, dtype, -128, 255)),
        m.input(np.array(d.pick(0.02, 0.05, 0.11), np.float32)),
        m.input(zero),
    ]


def _middle(dtype: str) -> tuple[int, int]:
    return (100, 150) if dtype == "uint8" else (-20, 20)


def result(d: Draw, m: Model, dtype: str, scale: float | None = None) -> list[str]:
    """The output's scale and zero point."""
    by = np.array(scale or d.pick(0.03, 0.1), np.float32)
    return [m.input(by), m.input(np.array(d.number(*_middle(dtype)), dtype))]


def _elementwise(op: str, **attributes: float) -> None:
    @operator(f"ms.{op}")
    def case(d: Draw) -> Case:
        dtype, made = d.pick("uint8", "int8"), model(op)
        shape = d.shape(1, 3)
        parts = quantised(d, made, shape, dtype)
        if op in ("QLinearAdd", "QLinearMul"):
            parts += quantised(d, made, d.broadcast(shape), dtype)
        scale = 1 / 256 if op == "QLinearSigmoid" else None
        return made.case([*parts, *result(d, made, dtype, scale)], [dtype], quantised=True,
                         reference="onnxruntime", **attributes)  # fmt: skip


_elementwise("QLinearAdd")
_elementwise("QLinearMul")
_elementwise("QLinearSigmoid")
_elementwise("QLinearLeakyRelu", alpha=0.3)


@operator("ms.QLinearSoftmax")
def qlinear_softmax(d: Draw) -> Case:
    dtype, made = d.pick("uint8", "int8"), model("QLinearSoftmax")
    shape = d.shape(1, 3, zero=False)
    parts = [*quantised(d, made, shape, dtype), *result(d, made, dtype, 1 / 256)]
    return made.case(parts, [dtype], quantised=True, opset=d.pick(12, 13), axis=d.axis(len(shape)),
                     reference="onnxruntime")  # fmt: skip


@operator("ms.QLinearWhere")
def qlinear_where(d: Draw) -> Case:
    dtype, made = d.pick("uint8", "int8"), model("QLinearWhere")
    shape = d.shape(1, 3)
    parts = [made.input(d.array(d.broadcast(shape), "bool"))]
    for _ in range(2):
        parts += quantised(d, made, shape, dtype, optional=False)
    for i in (2, 3, 5, 6):  # scales and zero points are constants there
        made.weights[parts[i]] = made.feeds.pop(parts[i])
    end = result(d, made, dtype)
    made.weights |= {name: made.feeds.pop(name) for name in end}
    return made.case([*parts, *end], [dtype], quantised=True, reference="onnxruntime")


def _average(op: str, more: Callable[[Draw, int], dict[str, object]]) -> None:
    @operator(f"ms.{op}")
    def case(d: Draw) -> Case:
        dtype, made, last = d.pick("uint8", "int8"), model(op), d.flag()
        spatial = d.number(1, 2)
        sizes = [d.number(3, 7) for _ in range(spatial)]
        channels = d.number(1, 3)
        shape = [2, *sizes, channels] if last else [2, channels, *sizes]
        parts = quantised(d, made, shape, dtype, optional=op == "QLinearAveragePool")
        return made.case([*parts, *result(d, made, dtype)], [dtype], quantised=True,
                         channels_last=int(last), reference="onnxruntime",
                         **more(d, spatial))  # fmt: skip


def _window(d: Draw, spatial: int) -> dict[str, object]:
    """ceil_mode and count_include_pad not together: there onnxruntime's quantised pooling divides
    by the whole window, unlike its own AveragePool and ONNX, which cuvilc follows.
    """
    ceil = d.flag()
    return {
        "kernel_shape": [d.number(2, 3) for _ in range(spatial)],
        "strides": [d.number(1, 2) for _ in range(spatial)],
        "pads": [d.number(0, 1) for _ in range(2 * spatial)],
        "count_include_pad": 0 if ceil else int(d.flag()),
        "ceil_mode": int(ceil),
    }


_average("QLinearAveragePool", _window)
_average("QLinearGlobalAveragePool", lambda d, spatial: {})


@operator("ms.QLinearConcat")
def qlinear_concat(d: Draw) -> Case:
    dtype, made = d.pick("uint8", "int8"), model("QLinearConcat")
    shape = d.shape(1, 3, zero=False)
    at = d.axis(len(shape))
    parts = result(d, made, dtype)
    for _ in range(d.number(1, 3)):
        own = list(shape)
        own[at] = d.number(1, 4)
        parts += quantised(d, made, own, dtype, optional=False)
    return made.case(parts, [dtype], quantised=True, axis=at, reference="onnxruntime")


@operator("ms.NhwcMaxPool")
def nhwc_max_pool(d: Draw) -> Case:
    dtype, made = d.pick("uint8", "int8"), model("NhwcMaxPool")
    x = made.input(d.array([d.size(2, False), d.number(3, 7), d.number(3, 7), d.number(1, 5)],
                           dtype, -128, 255))  # fmt: skip
    more = _window(d, 2)
    del more["count_include_pad"]
    return made.case([x], [dtype], **more, reference="onnxruntime")


def _matrices(
    d: Draw, m: Model, turn_a: bool = False, turn_b: bool = False
) -> tuple[np.ndarray, np.ndarray, int]:
    """Integer matrices and the number of the product's columns."""
    rows, inner, columns = d.number(1, 4), d.number(1, 9), d.number(1, 5)
    a, b = d.pick("uint8", "int8"), d.pick("uint8", "int8")
    if a == "int8":  # what onnxruntime has kernels for
        b = "int8"
    return (
        d.array([inner, rows] if turn_a else [rows, inner], a, -128, 255),
        d.array([columns, inner] if turn_b else [inner, columns], b, -128, 255),
        columns,
    )


def _scales(d: Draw, columns: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """One scale and zero point, or one a column."""
    shape = d.pick((), (columns,))
    return (
        d.array(shape, low=0.01, high=0.1),
        d.array(shape, dtype, *_middle(dtype)),
    )


@operator("ms.QGemm")
def qgemm(d: Draw) -> Case:
    turn_a, turn_b = d.flag(), d.flag()
    made = model("QGemm")
    a, b, columns = _matrices(d, made, turn_a, turn_b)
    by, zero = _scales(d, columns, b.dtype.name)
    bias = d.array(d.broadcast([a.shape[1 if turn_a else 0], columns]), "int32", -5000, 5000)
    parts = [
        made.input(a), made.input(np.array(0.02, np.float32)),
        made.input(np.array(d.number(*_middle(a.dtype.name)), a.dtype)),
        made.input(b, constant=True), made.input(by), made.input(zero),
        made.input(bias if d.flag() else None),
    ]  # fmt: skip
    out = "float32"
    if d.flag():
        out = a.dtype.name
        parts += result(d, made, out, 0.7)
    return made.case(parts, [out], quantised=True, transA=int(turn_a), transB=int(turn_b),
                     alpha=d.pick(1.0, 0.5), reference="onnxruntime")  # fmt: skip


@operator("ms.MatMulIntegerToFloat")
def matmul_integer_to_float(d: Draw) -> Case:
    made = model("MatMulIntegerToFloat")
    a, b, columns = _matrices(d, made)
    by, zero = _scales(d, columns, b.dtype.name)
    parts = [
        made.input(a), made.input(b, constant=d.flag()),
        made.input(np.array(0.02, np.float32)), made.input(by),
        made.input(np.array(d.number(*_middle(a.dtype.name)), a.dtype) if d.flag() else None),
        made.input(zero if d.flag() else None),
        made.input(d.array([columns]) if d.flag() else None),
    ]  # fmt: skip
    return made.case(parts, ["float32"], reference="onnxruntime")


@operator("ms.DynamicQuantizeMatMul")
def dynamic_quantize_matmul(d: Draw) -> Case:
    made = model("DynamicQuantizeMatMul")
    _, b, columns = _matrices(d, made)
    by, zero = _scales(d, columns, b.dtype.name)
    shape = [*d.shape(1, 2, zero=False), b.shape[0]]
    parts = [
        made.input(d.array(shape, low=d.pick(-3, 0), high=3)), made.input(b, constant=d.flag()),
        made.input(by), made.input(zero if d.flag() else None),
        made.input(d.array([columns]) if d.flag() else None),
    ]  # fmt: skip
    return made.case(parts, ["float32"], reference="onnxruntime")


@operator("ms.MatMulNBits")
def matmul_nbits(d: Draw) -> Case:
    made = model("MatMulNBits")
    bits, block = d.pick(2, 4, 8), d.pick(16, 32)
    rows, columns = d.number(1, 6), d.pick(5, 16, 40, 64)
    blocks = -(-columns // block)
    packed = d.array([rows, blocks, block * bits // 8], "uint8", 0, 255)
    zeros = d.pick("none", "packed", "float")
    width = -(-blocks * bits // 8)
    zero = {
        "none": None,
        "packed": d.array([rows, width], "uint8", 0, 255),
        "float": d.array([rows, blocks], low=0, high=2**bits - 1),
    }[zeros]
    parts = [
        made.input(d.array([*d.shape(1, 2, zero=False), columns])),
        made.input(packed, constant=True),
        made.input(d.array([rows, blocks], low=0.01, high=0.1), constant=True),
        made.input(zero, constant=True), "",
        made.input(d.array([rows]) if d.flag() else None, constant=True),
    ]  # fmt: skip
    return made.case(parts, ["float32"], K=columns, N=rows, bits=bits, block_size=block,
                     reference="onnxruntime")  # fmt: skip


@operator("ms.QuantizeLinear")
def quantize_linear(d: Draw) -> Case:
    dtype, made = d.pick("uint8", "int8", "uint16", "int16"), model("QuantizeLinear")
    shape = d.shape(1, 3, zero=False)
    at = d.axis(len(shape))
    own = d.pick((), (shape[at],))
    parts = [
        made.input(d.array(shape)),
        made.input(d.array(own, low=0.01, high=0.1)),
        made.input(d.array(own, dtype, *_middle(dtype))),
    ]
    return made.case(parts, [dtype], axis=at, reference="onnxruntime")


@operator("ms.DequantizeLinear")
def dequantize_linear(d: Draw) -> Case:
    dtype, made = d.pick("uint8", "int8", "uint16", "int16", "int32"), model("DequantizeLinear")
    shape = d.shape(1, 3, zero=False)
    at = d.axis(len(shape))
    own = d.pick((), (shape[at],))
    zero = np.zeros(own, dtype) if dtype == "int32" else d.array(own, dtype, *_middle(dtype))
    parts = [
        made.input(d.array(shape, dtype, -128, 255)),
        made.input(d.array(own, low=0.01, high=0.1)),
        made.input(zero if d.flag() else None),
    ]
    return made.case(parts, ["float32"], axis=at, reference="onnxruntime")
