"""Reads of images at computed places, and the inverses of pools and of windows."""

from __future__ import annotations

from math import prod

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.op import ShapeError

from ._table import importer, only
from .onnx_node import Node, ai, cast, dtype_of, reshape, shape_of
from .onnx_nodes_conv import kernel_of, window

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # before opset 20


@importer("GridSample")
def grid_sample(n: Node) -> ir.Value:
    mode = n.attr("mode", "linear")
    return ai(
        "grid_sample", n[0], n[1], mode=_MODES.get(mode, mode),
        padding=n.attr("padding_mode", "zeros"), align_corners=bool(n.attr("align_corners", 0)),
    )  # fmt: skip


@importer("RoiAlign", refuse=only(mode=("avg", "max")))
def roi_align(n: Node) -> ir.Value:
    half = n.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    return ai(
        "roi_align", n[0], n[1], n[2],
        output=(n.attr("output_height", 1), n.attr("output_width", 1)),
        scale=n.attr("spatial_scale", 1.0), ratio=n.attr("sampling_ratio", 0),
        maximum=n.attr("mode", "avg") == "max", half_pixel=half and n.opset >= 16,
    )  # fmt: skip


@importer("MaxRoiPool")
def max_roi_pool(n: Node) -> ir.Value:
    output, scale = n.ints("pooled_shape"), n.attr("spatial_scale", 1.0)
    return ai("max_roi_pool", n[0], n[1], output=output, scale=scale)


@importer("DeformConv")
def deform_conv(n: Node) -> ir.Value:
    """Columns of sampled elements, times the weights as matrices, one a group."""
    x, w, groups = n[0], n[1], n.attr("group", 1)
    kernel, (batch, channels, *_) = kernel_of(n), shape_of(x)
    if groups < 1:
        raise ShapeError(f"{groups} groups")
    n.require_equal(channels, shape_of(w)[1] * groups)
    columns = ai(
        "deform_columns", x, n[2], n.get(4), kernel=kernel, groups=n.attr("offset_group", 1),
        **window(n, kernel, shape_of(x)[2:]),
    )  # fmt: skip
    counts = shape_of(columns)[3:]
    rows = D.floordiv(channels, groups) * prod(kernel)
    columns = reshape(columns, (batch, groups, rows, D.product(counts)))
    outputs = D.floordiv(shape_of(w)[0], groups)
    y = ai("matmul", reshape(w, (groups, outputs, rows)), columns)
    y = reshape(y, (batch, shape_of(w)[0], *counts))
    if not n.has(3):
        return y
    return ai("elemwise_add", y, reshape(n[3], (*n.shape(3), *[1] * len(counts))))


@importer("Col2Im")
def col2im(n: Node) -> ir.Value:
    image, kernel = n.dims(1, "the image's sizes are"), n.static(2, "the block's sizes are")
    ones = (1,) * len(kernel)
    pads = n.ints("pads", (0,) * (2 * len(kernel)))
    assert pads is not None
    return ai(
        "col2im", n[0], image=image, kernel=kernel, strides=n.ints("strides", ones),
        pads_begin=pads[: len(kernel)], pads_end=pads[len(kernel) :],
        dilations=n.ints("dilations", ones),
    )  # fmt: skip


@importer("MaxUnpool")
def max_unpool(n: Node) -> ir.Value:
    """Zeros with each element at the place that it was pooled from.

    The places count in a tensor of the sizes that the attributes infer; a larger output_shape only
    adds zeros after those, as onnx's reference has it.
    """
    x, places = n[0], n[1]
    kernel = n.ints("kernel_shape") or ()
    strides, pads = n.ints("strides"), n.ints("pads")
    strides, pads = strides or (1,) * len(kernel), pads or (0,) * (2 * len(kernel))
    if len(kernel) != len(shape_of(x)) - 2 or len(pads) != 2 * len(kernel):
        raise ShapeError(f"a kernel of {len(kernel)} axes and {len(pads)} pads")
    sizes: list[Dim] = list(shape_of(x)[:2])
    for axis, (size, step) in enumerate(zip(kernel, strides, strict=True)):
        lost = pads[axis] + pads[axis + len(kernel)]
        sizes.append((shape_of(x)[axis + 2] - 1) * step + size - lost)
    count, total = D.product(shape_of(x)), D.product(tuple(sizes))
    zeros = ir.full(0, (total,), dtype_of(x))
    indices = reshape(cast(places, "int64"), (count,))
    y = ai("scatter_elements", zeros, indices, reshape(x, (count,)), axis=0)
    y = reshape(y, tuple(sizes))
    if not n.has(2):
        return y
    wanted = n.dims(2, "the output's sizes are")
    if len(wanted) != len(sizes):
        raise ShapeError(f"output_shape {wanted} for {len(sizes)} axes")
    after = tuple(w - s for w, s in zip(wanted, sizes, strict=True))
    if after == (0,) * len(after):
        return y
    return ai("pad", y, before=(0,) * len(after), after=after, mode="constant", value=0.0)
