"""Quantised operators of com.microsoft, which onnxruntime's quantiser writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.narrow import unpack
from cuvilc.dialect.op import ShapeError

from ._table import importer, takes
from .onnx_node import DataDependent, Node, ai, axis, cast, dtype_of, reshape, scalar, shape_of
from .onnx_nodes_contrib import (
    MICROSOFT,
    WINDOW,
    add,
    channels_last,
    channels_second,
    refuse_inputs,
)
from .onnx_nodes_conv import average_pooled, max_pooled
from .onnx_nodes_quant import dequantize_linear, one, quantize_linear, real, stored
from .onnx_nodes_slice import concat_values, sliced

importer("QuantizeLinear", domain=MICROSOFT, refuse=takes("axis"))(quantize_linear)
importer("DequantizeLinear", domain=MICROSOFT, refuse=takes("axis"))(dequantize_linear)


def _by_floats(name: str, operands: int, *attributes: str) -> Callable[[Any], Any]:
    """Register NAME: `operands` quantised inputs, then the output's scale and zero; between them
    the decorated float operator."""

    def register(float_form: Callable[..., ir.Value]) -> Any:
        def run(n: Node) -> ir.Value:
            values = [real(n, 3 * i) for i in range(operands)]
            return stored(n, float_form(n, *values), 3 * operands, n.type(0).dtype)

        return importer(name, domain=MICROSOFT, refuse=takes(*attributes))(run)

    return register


_by_floats("QLinearAdd", 2)(lambda n, a, b: ai("elemwise_add", a, b))
_by_floats("QLinearMul", 2)(lambda n, a, b: ai("elemwise_mul", a, b))
_by_floats("QLinearSigmoid", 1)(lambda n, x: ai("sigmoid", x))
_by_floats("QLinearLeakyRelu", 1, "alpha")(
    lambda n, x: ai("leaky_relu", x, alpha=n.attr("alpha", 0.01))
)


@_by_floats("QLinearGlobalAveragePool", 1, "channels_last")
def _global_average(n: Node, x: ir.Value) -> ir.Value:
    rank = len(shape_of(x))
    axes = tuple(range(1, rank - 1)) if n.attr("channels_last", 0) else tuple(range(2, rank))
    return ai("reduce_mean", x, axes=axes, keepdims=True)


@_by_floats("QLinearAveragePool", 1, *WINDOW, "ceil_mode", "count_include_pad", "channels_last")
def _average(n: Node, x: ir.Value) -> ir.Value:
    if not n.attr("channels_last", 0):
        return average_pooled(n, x)
    return channels_last(average_pooled(n, channels_second(x)))


@_by_floats("QLinearSoftmax", 1, "opset", "axis")
def _softmax(n: Node, x: ir.Value) -> ir.Value:
    """Before opset 13 over all axes from `axis` on, taken as one."""
    sizes, at = shape_of(x), n.axis(-1)
    if n.attr("opset", 13) >= 13 or at == len(sizes) - 1:
        return ai("softmax", x, axis=at)
    flat = reshape(x, (*sizes[:at], D.product(sizes[at:])))
    return reshape(ai("softmax", flat, axis=at), sizes)


@importer("QLinearWhere", domain=MICROSOFT, refuse=takes())
def qlinear_where(n: Node) -> ir.Value:
    return stored(n, ai("where", n[0], real(n, 1), real(n, 4)), 7, n.type(1).dtype)


@importer("QLinearConcat", domain=MICROSOFT, refuse=takes("axis"))
def qlinear_concat(n: Node) -> ir.Value:
    values = [real(n, i) for i in range(2, len(n), 3)]
    y = concat_values(values, axis(n.attr("axis"), len(shape_of(values[0]))))
    return stored(n, y, 0, n.type(1).dtype)


@importer("NhwcMaxPool", domain=MICROSOFT, refuse=takes(*WINDOW, "ceil_mode"))
def nhwc_max_pool(n: Node) -> ir.Value:
    return channels_last(max_pooled(n, channels_second(n[0])))


def _integer_product(
    a: ir.Value, b: ir.Value, zero_a: ir.Value | None, zero_b: ir.Value | None
) -> ir.Value:
    """(a - zero_a) · (b - zero_b) in int32."""
    if zero_a is None and zero_b is not None:
        zero_a = ir.full(0, (), dtype_of(a))
    return ai("matmul_integer", a, b, one(zero_a), one(zero_b))


def _scaled(total: ir.Value, a_scale: ir.Value, b_scale: ir.Value) -> ir.Value:
    """An int32 in units of a_scale · b_scale as floats."""
    unit = ai("elemwise_mul", one(a_scale), one(b_scale))
    return ai("elemwise_mul", cast(total, dtype_of(unit)), unit)


@importer("QGemm", domain=MICROSOFT, refuse=takes("alpha", "transA", "transB"))
def qgemm(n: Node) -> ir.Value:
    """alpha · a_scale · b_scale · (A' B' + C), as floats where no output scale is given."""
    a, b = (
        ai("transpose", n[i], perm=(1, 0)) if n.attr(turned, 0) else n[i]
        for i, turned in ((0, "transA"), (3, "transB"))
    )
    y = _scaled(add(_integer_product(a, b, n.get(2), n.get(5)), n.get(6)), n[1], n[4])
    alpha = n.attr("alpha", 1.0)
    if alpha != 1.0:
        y = ai("elemwise_mul", y, scalar(alpha, y))
    return stored(n, y, 7, n.type(0).dtype) if n.has(7) else y


@importer("MatMulIntegerToFloat", domain=MICROSOFT, refuse=takes())
def matmul_integer_to_float(n: Node) -> ir.Value:
    total = _integer_product(n[0], n[1], n.get(4), n.get(5))
    return add(_scaled(total, n[2], n[3]), n.get(6))


@importer("DynamicQuantizeMatMul", domain=MICROSOFT, refuse=takes())
def dynamic_quantize_matmul(n: Node) -> ir.Value:
    levels, scale, zero = _dynamically_quantised(n[0])
    total = _integer_product(levels, n[1], zero, n.get(3))
    return add(_scaled(total, scale, n[2]), n.get(4))


def _dynamically_quantised(x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """x in uint8 by its own range, which 0 is part of; its scale and zero point.

    scale = (max - min) / 255, or 1 where both are 0; zero = round(-min / scale).
    (onnxruntime's GetQuantizationParameter; ONNX's DynamicQuantizeLinear)
    """
    axes = tuple(range(len(shape_of(x))))
    nought = ir.full(0.0, (), dtype_of(x))
    high = ai("maximum", ai("reduce_max", x, axes=axes, keepdims=False), nought)
    low = ai("minimum", ai("reduce_min", x, axes=axes, keepdims=False), nought)
    scale = ai("elemwise_div", ai("elemwise_sub", high, low), scalar(255.0, x))
    scale = ai("where", ai("equal", high, low), scalar(1.0, x), scale)
    level = ai("round", ai("neg", ai("elemwise_div", low, scale)))
    zero = ai("cast", ai("clip", level, low=0.0, high=255.0), dtype="uint8")
    return ai("quantize_linear", x, scale, zero, axis=0, block=0), scale, zero


@importer(
    "MatMulNBits",
    domain=MICROSOFT,
    refuse=takes("K", "N", "accuracy_level", "block_size", bits=(2, 4, 8), weight_prepacked=(0,)),
)
def matmul_nbits(n: Node) -> ir.Value:
    """A · Bᵀ for B [N, K] of few bits in blocks along K, each with its scale and zero point.

    `accuracy_level` lets a runtime round A too; here A stays as it is.
    """
    refuse_inputs(n, g_idx=4)
    rows, columns, block = n.attr("N"), n.attr("K"), n.attr("block_size")
    blocks = -(-columns // block)
    n.require_equal(n.shape(0)[-1], columns)
    packed = _packed_product(n, (rows, columns, block))
    if packed is not None:
        return add(packed, n.get(5))
    levels = _unpacked(n, 1, (rows, blocks * block))[:, :columns]
    scale = reshape(n[2], (rows, blocks))
    if n.has(3) and n.type(3).is_float:
        zero = reshape(cast(n[3], dtype_of(scale)), (rows, blocks, 1))
        wide = np.pad(levels, ((0, 0), (0, blocks * block - columns)))
        stacked = cast(n.constant(wide.reshape(rows, blocks, block)), dtype_of(scale))
        real_ = ai(
            "elemwise_mul", ai("elemwise_sub", stacked, zero), reshape(scale, (rows, blocks, 1))
        )
        flat = reshape(real_, (rows, blocks * block))
        b = sliced(flat, (0, 0), (rows, columns))
    else:
        middle = np.full((rows, blocks), 1 << (n.attr("bits", 4) - 1), np.uint8)
        zeros = _unpacked(n, 3, (rows, blocks)) if n.has(3) else middle
        b = ai(
            "dequantize_linear", n.constant(levels), scale, n.constant(zeros), axis=1, block=block
        )
    return add(ai("matmul", n[0], cast(b, dtype_of(n[0])), transpose_b=True), n.get(5))


def _packed_product(n: Node, sizes: tuple[int, int, int]) -> ir.Value | None:
    """The product with the numbers as they are stored; None where that is not possible."""
    rows, columns, block = sizes
    bits, given = n.attr("bits", 4), n.array(1)
    floats = n.type(0).dtype == n.type(2).dtype == "float32"
    whole = columns % block == 0 and block * bits % 8 == 0 and given is not None
    if not floats or not whole or (n.has(3) and n.type(3).is_float):
        return None
    _unpacked(n, 1, (rows, columns))  # checks the sizes
    blocks = columns // block
    width = columns * bits // 8
    operands = [n.constant(given.reshape(rows, width)), reshape(n[2], (rows, blocks))]  # type: ignore[union-attr]
    if n.has(3):
        operands.append(n.constant(_unpacked(n, 3, (rows, blocks))))
    return ai("matmul_nbits", n[0], *operands, bits=bits, block=block)


def _unpacked(n: Node, i: int, shape: tuple[int, int]) -> np.ndarray:
    """Input i, rows of bytes with the lowest bits first, as one uint8 a number."""
    val = n.val(i)
    packed = None if val is None else val.array
    if packed is None:
        raise DataDependent(f"packed numbers (input {i}) are")
    bits = n.attr("bits", 4)
    rows, columns = shape
    width = -(-columns * bits // 8)
    if packed.dtype != np.uint8 or packed.size != rows * width:
        raise ShapeError(f"input {i} must be {rows}·{width} bytes, not {list(packed.shape)}")
    return np.ascontiguousarray(unpack(packed.reshape(rows, width), bits)[:, :columns])
