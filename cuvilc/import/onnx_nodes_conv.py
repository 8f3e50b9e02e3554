"""Convolution and pooling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Shape
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.types import FLOATS

from . import onnx_values as V
from ._table import importer
from .onnx_node import Node, ai, dtype_of, reshape, shape_of
from .onnx_nodes_pad import padded


def window(n: Node, kernel: tuple[int, ...], spatial: Shape) -> dict[str, Any]:
    """strides, dilations and pads of a window that slides over axes of the sizes `spatial`,
    `auto_pad` worked out."""
    rank = len(spatial)
    if len(kernel) != rank:
        raise ShapeError(f"a kernel of {len(kernel)} axes for {rank} spatial axes")
    strides, dilations = n.ints("strides", (1,) * rank), n.ints("dilations", (1,) * rank)
    pads = n.ints("pads", (0,) * (2 * rank))
    assert strides is not None and dilations is not None and pads is not None
    begin: tuple[Dim, ...] = pads[:rank]
    end: tuple[Dim, ...] = pads[rank:]
    auto = n.attr("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        need = [_same(*axis) for axis in zip(spatial, kernel, strides, dilations, strict=True)]
        small = [D.floordiv(p, 2) for p in need]
        large = [p - s for p, s in zip(need, small, strict=True)]
        begin, end = (
            (tuple(small), tuple(large)) if auto == "SAME_UPPER" else (tuple(large), tuple(small))
        )
    elif auto == "VALID":
        begin = end = (0,) * rank
    return {"strides": strides, "pads_begin": begin, "pads_end": end, "dilations": dilations}


def _same(size: Dim, kernel: int, stride: int, dilation: int) -> Dim:
    """Total padding that makes ⌈size / stride⌉ outputs."""
    span = (kernel - 1) * dilation + 1
    if stride == 1:
        return span - 1
    return V.maximum((D.ceildiv(size, stride) - 1) * stride + span - size, 0)


def outside(n: Node, x: ir.Value, facts: dict[str, Any], value: float) -> ir.Value:
    """Pads that are not plain numbers become an operation of their own; the window keeps zeros."""
    begin, end = facts["pads_begin"], facts["pads_end"]
    if all(isinstance(p, int) and p >= 0 for p in (*begin, *end)):
        return x
    facts["pads_begin"] = facts["pads_end"] = (0,) * len(begin)
    return padded(x, (0, 0, *begin), (0, 0, *end), "constant", value)


def kernel_of(n: Node, i: int = 1) -> tuple[int, ...]:
    """The weight's spatial sizes."""
    sizes = n.shape(i)[2:]
    if not all(isinstance(d, int) for d in sizes):
        raise ShapeError(f"the kernel's sizes {sizes} must be constants")
    return tuple(d for d in sizes if isinstance(d, int))


@importer("Conv")
def conv(n: Node) -> ir.Value:
    return convolve(n, n[0], n[1], n.get(2))


def convolve(n: Node, x: ir.Value, w: ir.Value, bias: ir.Value | None) -> ir.Value:
    """ai.conv with the node's attributes on these operands."""
    groups = n.attr("group", 1)
    n.require_equal(shape_of(x)[1], shape_of(w)[1] * groups)
    facts = window(n, tuple(shape_of(w)[2:]), shape_of(x)[2:])  # type: ignore[arg-type]
    x = outside(n, x, facts, 0.0)
    return ai("conv", x, w, bias, groups=groups, **facts)


@importer("ConvTranspose")
def conv_transpose(n: Node) -> ir.Value:
    kernel, spatial = kernel_of(n), n.shape(0)[2:]
    rank = len(kernel)
    facts = window(n, kernel, spatial)
    extra = n.ints("output_padding", (0,) * rank)
    wanted = n.ints("output_shape")
    assert extra is not None
    auto = n.attr("auto_pad", "NOTSET")
    if wanted is not None or auto.startswith("SAME"):
        target: Shape = tuple(s * d for s, d in zip(facts["strides"], spatial, strict=True))
        target = wanted[-rank:] if wanted is not None else target
        begin, end = [], []
        for i in range(rank):
            full = (
                facts["strides"][i] * (spatial[i] - 1)
                + extra[i]
                + (kernel[i] - 1) * facts["dilations"][i]
                + 1
            )
            total = full - target[i]
            if not isinstance(total, int):
                raise ShapeError("the padding depends on sizes that are not known")
            half = total // 2
            begin.append(total - half if auto != "SAME_UPPER" else half)
            end.append(half if auto != "SAME_UPPER" else total - half)
        facts["pads_begin"], facts["pads_end"] = tuple(begin), tuple(end)
    n.require_equal(n.shape(0)[1], n.shape(1)[0])
    negative = any(p < 0 for p in (*facts["pads_begin"], *facts["pads_end"]))
    if negative:  # more output than the window gives: zeros beyond it
        extra = tuple(e + max(-p, 0) for e, p in zip(extra, facts["pads_end"], strict=True))
        facts["pads_end"] = tuple(max(p, 0) for p in facts["pads_end"])
    return ai(
        "conv_transpose",
        n[0],
        n[1],
        n.get(2),
        groups=n.attr("group", 1),
        output_padding=extra,
        **facts,
    )


@importer("MaxPool")
def max_pool(n: Node) -> Any:
    pooled = max_pooled(n, n[0])
    return [pooled, _places(n)] if n.wants(1) else pooled


def max_pooled(n: Node, x: ir.Value) -> ir.Value:
    """ai.max_pool of x [N, C, ...] with the node's attributes."""
    kernel = n.ints("kernel_shape")
    assert kernel is not None
    facts = window(n, kernel, shape_of(x)[2:])
    x = outside(n, x, facts, _lowest(dtype_of(x)))
    return ai("max_pool", x, kernel=kernel, ceil_mode=bool(n.attr("ceil_mode", 0)), **facts)


def _lowest(dtype: str) -> float:
    return -math.inf if dtype in FLOATS else int(np.iinfo(dtype).min)


def _places(n: Node) -> ir.Value:
    """Where MaxPool's maxima lie."""
    kernel = n.ints("kernel_shape") or ()
    facts = window(n, kernel, n.shape(0)[2:])
    if not all(isinstance(p, int) and p >= 0 for p in (*facts["pads_begin"], *facts["pads_end"])):
        raise ShapeError("positions (output `Indices`) need pads that are known")
    return ai(
        "max_pool_index", n[0], kernel=kernel, ceil_mode=bool(n.attr("ceil_mode", 0)),
        by_columns=bool(n.attr("storage_order", 0)), **facts,
    )  # fmt: skip


@importer("AveragePool")
def average_pool(n: Node) -> ir.Value:
    return average_pooled(n, n[0])


def average_pooled(n: Node, x: ir.Value) -> ir.Value:
    """ai.avg_pool of x [N, C, ...] with the node's attributes."""
    kernel = n.ints("kernel_shape")
    assert kernel is not None
    counted = bool(n.attr("count_include_pad", 0))
    more = {
        "kernel": kernel, "ceil_mode": bool(n.attr("ceil_mode", 0)), "count_include_pad": counted,
    }  # fmt: skip
    own = window(n, kernel, shape_of(x)[2:])
    facts = dict(own)
    wide = outside(n, x, facts, 0.0)
    y = ai("avg_pool", wide, **more, **facts)
    if counted or wide is x:
        return y
    # Pads are cells of `wide`, so y has the sum by all of them: divided by the share of x's own.
    ones = outside(n, ir.full(1.0, (1, 1, *shape_of(x)[2:]), dtype_of(x)), own, 0.0)
    return ai("elemwise_div", y, ai("avg_pool", ones, **more, **facts))


@importer("LpPool")
def lp_pool(n: Node) -> ir.Value:
    kernel = n.ints("kernel_shape")
    assert kernel is not None
    facts = window(n, kernel, n.shape(0)[2:])
    x = outside(n, n[0], facts, 0.0)
    return ai(
        "lp_pool",
        x,
        kernel=kernel,
        ceil_mode=bool(n.attr("ceil_mode", 0)),
        p=n.attr("p", 2),
        **facts,
    )


_GLOBAL = {"GlobalAveragePool": "reduce_mean", "GlobalMaxPool": "reduce_max"}


@importer(*_GLOBAL)
def global_pool(n: Node) -> ir.Value:
    axes = tuple(range(2, len(n.shape(0))))
    return ai(_GLOBAL[n.op], n[0], axes=axes, keepdims=True)


@importer("GlobalLpPool")
def global_lp_pool(n: Node) -> ir.Value:
    axes, p = tuple(range(2, len(n.shape(0)))), float(n.attr("p", 2))
    x = ai("abs", n[0])
    powers = ai("pow", x, ir.full(p, (), dtype_of(x)))
    total = ai("reduce_sum", powers, axes=axes, keepdims=True)
    return ai("pow", total, ir.full(1 / p, (), dtype_of(x)))


@importer("ConvInteger")
def conv_integer(n: Node) -> ir.Value:
    """Σ (x - x_zero)(w - w_zero) in int32."""
    x, zeros = n[0], [n.get(2), n.get(3)]
    groups = n.attr("group", 1)
    n.require_equal(n.shape(0)[1], n.shape(1)[1] * groups)
    facts = window(n, tuple(n.shape(1)[2:]), n.shape(0)[2:])  # type: ignore[arg-type]
    zeros = [z if z is None or len(shape_of(z)) else reshape(z, ()) for z in zeros]
    if zeros[0] is None and zeros[1] is not None:
        zeros[0] = ir.full(0, (), dtype_of(x))
    if not all(isinstance(p, int) and p >= 0 for p in (*facts["pads_begin"], *facts["pads_end"])):
        level = np.zeros(()) if n.get(2) is None else n.known(2)
        if level is None:
            raise ShapeError("neither the padding nor the zero point it is filled with is known")
        x = outside(n, x, facts, int(level.reshape(())))
    return ai("conv_integer", x, n[1], *zeros, groups=groups, **facts)
