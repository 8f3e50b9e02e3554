"""ONNX nodes of operations that read images at computed places; see onnx_nodes.py."""

from __future__ import annotations

import numpy as np
from onnx_nodes import Node, ints, node, window


@node("max_pool_index")
def _max_pool_index(arrays, attrs):
    (x,) = arrays
    order = {"storage_order": int(attrs["by_columns"])} if x.ndim > 3 else {}
    if np.isnan(x.astype(np.float64)).any() or x.size == 0:
        return None  # onnxruntime lets NaN lose
    after = lambda results: results[1:]  # noqa: E731
    return Node("MaxPool", [x], window(attrs, kernel=attrs["kernel"]) | order, 2, after=after)


@node("grid_sample")
def _grid_sample(arrays, attrs):
    attributes = {
        "mode": attrs["mode"], "padding_mode": attrs["padding"],
        "align_corners": int(attrs["align_corners"]),
    }  # fmt: skip
    if arrays[1].dtype == np.float64:
        return None  # onnxruntime has no kernel, the reference computes places in float32
    # onnxruntime clips a place that is outside along one axis along the other too
    apart = attrs["mode"] == "cubic" and attrs["padding"] == "border"
    return Node("GridSample", list(arrays), attributes, reference_only=apart)


@node("roi_align")
def _roi_align(arrays, attrs):
    x, rois, batch = arrays
    attributes = {
        "output_height": attrs["output"][0], "output_width": attrs["output"][1],
        "spatial_scale": attrs["scale"], "sampling_ratio": attrs["ratio"],
        "mode": "max" if attrs["maximum"] else "avg",
        "coordinate_transformation_mode": "half_pixel" if attrs["half_pixel"]
        else "output_half_pixel",
    }  # fmt: skip
    return Node("RoiAlign", [x, rois, batch.astype(np.int64)], attributes)


@node("max_roi_pool")
def _max_roi_pool(arrays, attrs):
    attributes = {"pooled_shape": attrs["output"], "spatial_scale": attrs["scale"]}
    return Node("MaxRoiPool", list(arrays), attributes, opset=17)


@node("col2im")
def _col2im(arrays, attrs):
    attributes = window(attrs)
    inputs = [arrays[0], ints(*attrs["image"]), ints(*attrs["kernel"])]
    return Node("Col2Im", inputs, attributes)


@node("tensor_scatter")
def _tensor_scatter(arrays, attrs):
    mode = "circular" if attrs["circular"] else "linear"
    attributes = {"mode": mode, "axis": attrs["axis"]}
    return Node("TensorScatter", list(arrays), attributes, opset=24, reference_only=True)
