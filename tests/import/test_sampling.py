"""GridSample, RoiAlign, MaxRoiPool, DeformConv, Col2Im, MaxUnpool, MaxPool's positions."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.dialect.ops.onnx_nodes import Node, ints

from .one_node import agree, drawn

RNG = np.random.default_rng(3)
normal = partial(drawn, RNG)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(tmp_path, mode, padding, align):
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    grid = RNG.uniform(-2, 2, (2, 5, 4, 2)).astype(np.float32)
    node = Node("GridSample", [normal(2, 3, 6, 5), grid], attributes)
    # A place outside along one axis alone: onnxruntime clips its other coordinate too.
    node.reference_only = mode == "cubic" and padding == "border"
    agree(tmp_path, node)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_grid_sample_of_volumes(tmp_path, mode, padding, align):
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    grid = RNG.uniform(-2, 2, (1, 2, 3, 4, 3)).astype(np.float32)
    agree(tmp_path, Node("GridSample", [normal(1, 2, 3, 4, 5), grid], attributes))


def test_grid_sample_of_old_opsets(tmp_path):
    grid = RNG.uniform(-1.5, 1.5, (1, 5, 4, 2)).astype(np.float32)
    node = Node("GridSample", [normal(1, 2, 6, 5), grid], {"mode": "bicubic"}, opset=16)
    agree(tmp_path, node)


def _boxes(count: int) -> np.ndarray:
    low = RNG.uniform(-2, 12, (count, 2))
    return np.concatenate([low, low + RNG.uniform(-1, 14, (count, 2))], 1).astype(np.float32)


@pytest.mark.parametrize("ratio", [0, 1, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinate", ["half_pixel", "output_half_pixel"])
def test_roi_align(tmp_path, mode, coordinate, ratio):
    attributes = {
        "mode": mode, "coordinate_transformation_mode": coordinate, "sampling_ratio": ratio,
        "output_height": 3, "output_width": 2, "spatial_scale": 0.5,
    }  # fmt: skip
    inputs = [normal(2, 3, 9, 8), _boxes(5), np.array([0, 1, 1, 0, 1])]
    agree(tmp_path, Node("RoiAlign", inputs, attributes))


def test_roi_align_before_half_pixels(tmp_path):
    attributes = {"output_height": 2, "output_width": 2}
    inputs = [normal(1, 2, 9, 8), _boxes(3), np.array([0, 0, 0])]
    agree(tmp_path, Node("RoiAlign", inputs, attributes, opset=10))


def test_max_roi_pool(tmp_path):
    boxes = np.concatenate([[[0], [1], [1], [0]], np.abs(_boxes(4))], 1).astype(np.float32)
    attributes = {"pooled_shape": [3, 2], "spatial_scale": 0.5}
    agree(tmp_path, Node("MaxRoiPool", [normal(2, 3, 9, 8), boxes], attributes, opset=17))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("offset_group", [1, 4])
def test_deform_conv(tmp_path, group, offset_group, bias):
    attributes = {
        "group": group, "offset_group": offset_group, "strides": [2, 1], "pads": [1, 0, 2, 1],
        "dilations": [1, 2], "kernel_shape": [3, 2],
    }  # fmt: skip
    offset, mask = normal(2, 12 * offset_group, 4, 6), normal(2, 6 * offset_group, 4, 6)
    inputs = [normal(2, 4, 6, 7), normal(6, 4 // group, 3, 2), offset, normal(6), mask]
    node = Node("DeformConv", inputs if bias else inputs[:3], attributes, reference_only=True)
    agree(tmp_path, node)


def test_col2im(tmp_path):
    attributes = {"strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [2, 1]}
    inputs = [normal(2, 12, 12), ints(6, 8), ints(2, 3)]
    agree(tmp_path, Node("Col2Im", inputs, attributes), constants=(1, 2))


def test_max_unpool_into_more(tmp_path):
    x = normal(1, 2, 2, 3)
    places = RNG.permutation(2 * 4 * 6)[:12].reshape(x.shape)
    inputs = [x, places, ints(1, 2, 5, 7)]
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    agree(tmp_path, Node("MaxUnpool", inputs, attributes, reference_only=True), constants=(2,))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_positions_of_maxima(tmp_path, spatial, ceil_mode, order):
    attributes = {
        "kernel_shape": [3, 2, 2][:spatial], "strides": [2, 1, 2][:spatial],
        "pads": [1, 0, 1][:spatial] * 2, "ceil_mode": ceil_mode,
        "dilations": [1, 2, 1][:spatial], "storage_order": order if spatial > 1 else 0,
    }  # fmt: skip
    x = normal(2, 3, *(6, 5, 7)[:spatial])
    agree(tmp_path, Node("MaxPool", [x], attributes, outputs=2))


def test_positions_of_equal_maxima(tmp_path):
    x = RNG.integers(0, 2, (1, 2, 6, 6)).astype(np.int8)
    agree(tmp_path, Node("MaxPool", [x], {"kernel_shape": [3, 3]}, outputs=2))
