"""Quantised operators. All become dequantise → float operator → quantise, the one form that passes
know: raise-integers makes integer products of it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.ops.quant import PRECISIONS, QUANTISED

from ._table import Refusal, importer
from .onnx_node import Node, ai, axis, cast, dtype_of, reshape, shape_of
from .onnx_nodes_conv import convolve
from .onnx_nodes_matmul import product
from .onnx_tensors import DTYPES, type_name

_Perhaps = TypeVar("_Perhaps", ir.Value, ir.Value | None)


def _among(word: str, dtypes: tuple[str, ...]) -> Refusal:
    """A refusal for another dtype than these as attribute `word`; 0 is none."""

    def refuse(attributes: dict[str, Any]) -> str | None:
        wanted = attributes.get(word, 0)
        if wanted and (wanted not in DTYPES or DTYPES[wanted].name not in dtypes):
            return f"{word} = {type_name(wanted)} is not supported"
        return None

    return refuse


def _dtype(n: Node, word: str) -> str:
    """The dtype that attribute `word` names, or nothing."""
    found = n.attr(word, 0)
    return DTYPES[found].name if found else ""


def _axis(n: Node, scale: ir.Value) -> int:
    """The axis along which scales vary; 0 where there is one scale."""
    return axis(n.attr("axis", 1), len(n.shape(0))) if len(shape_of(scale)) else 0


def one(value: _Perhaps) -> _Perhaps:
    """A single scale or zero point as a scalar."""
    return reshape(value, ()) if value is not None and shape_of(value) == (1,) else value


_refused_stored = _among("output_dtype", QUANTISED)
_refused_precision = _among("precision", PRECISIONS)


@importer("QuantizeLinear", refuse=lambda a: _refused_stored(a) or _refused_precision(a))
def quantize_linear(n: Node) -> ir.Value:
    """The quotient is a half where x and scale both are (as in onnx's reference), else float32."""
    x, scale, zero = n[0], one(n[1]), one(n.get(2))
    precision = _dtype(n, "precision")
    if precision:
        x, scale = cast(x, precision), cast(scale, precision)
    x, scale = (v if dtype_of(v) in PRECISIONS else cast(v, "float32") for v in (x, scale))
    if zero is None:
        zero = ir.full(0, shape_of(scale), _dtype(n, "output_dtype") or "uint8")
    return ai(
        "quantize_linear", x, scale, zero,
        axis=_axis(n, scale), block=n.attr("block_size", 0),
        precision=dtype_of(x) if dtype_of(x) == dtype_of(scale) else "float32",
        saturate=bool(n.attr("saturate", 1)),
    )  # fmt: skip


@importer("DequantizeLinear", refuse=_among("output_dtype", PRECISIONS))
def dequantize_linear(n: Node) -> ir.Value:
    """Products are a float32 where the result is of another dtype than the scale."""
    scale = one(n[1])
    wanted = _dtype(n, "output_dtype") or dtype_of(scale)
    if wanted != dtype_of(scale):
        scale = cast(scale, "float32")
    y = ai(
        "dequantize_linear",
        n[0],
        scale,
        one(n.get(2)),
        axis=_axis(n, scale),
        block=n.attr("block_size", 0),
    )
    return cast(y, wanted)


def real(n: Node, first: int, along: int = 0) -> ir.Value:
    """Inputs first, first+1, first+2 (value, scale, zero point) as floats; `along`: the axis of
    several scales.
    """
    scale, zero = one(n[first + 1]), one(n.get(first + 2))
    along = along if shape_of(scale) else 0
    return ai("dequantize_linear", n[first], scale, zero, axis=along, block=0)


def stored(n: Node, y: ir.Value, scale: int, dtype: str) -> ir.Value:
    """Quantise by the scale and zero point in inputs scale, scale+1."""
    by, zero = one(n[scale]), one(n.get(scale + 1))
    if zero is None:
        zero = ir.full(0, shape_of(by), dtype)
    if len(shape_of(by)) > 1 or len(shape_of(zero)) > 1:
        raise ShapeError("an output scale per row is not supported")
    return ai(
        "quantize_linear",
        y,
        cast(by, dtype_of(y)),
        zero,
        axis=max(len(shape_of(y)) - 2, 0),
        block=0,
    )


@importer("QLinearConv")
def qlinear_conv(n: Node) -> ir.Value:
    bias = n.get(8)
    x, w = real(n, 0), real(n, 3)
    if bias is not None:  # an int32 in units of x_scale · w_scale
        unit = ai("elemwise_mul", reshape(n[1], ()), one(n[4]))
        bias = ai("dequantize_linear", bias, unit, axis=0, block=0)
    return stored(n, convolve(n, x, w, bias), 6, n.type(0).dtype)


@importer("QLinearMatMul")
def qlinear_matmul(n: Node) -> ir.Value:
    a, b = (_real_matrix(n, i, along) for i, along in ((0, -2), (3, -1)))
    return stored(n, product(a, b), 6, n.type(0).dtype)


def _real_matrix(n: Node, first: int, along: int) -> ir.Value:
    """A matrix operand as floats; its scales may be one, one a row (column), or of full rank."""
    scale, zero = one(n[first + 1]), one(n.get(first + 2))
    if len(shape_of(scale)) <= 1:
        return real(n, first, len(n.shape(first)) + along)
    x = cast(n[first], dtype_of(scale))
    if zero is not None:
        x = ai("elemwise_sub", x, cast(zero, dtype_of(scale)))
    return ai("elemwise_mul", x, scale)
