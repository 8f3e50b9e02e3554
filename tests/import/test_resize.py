"""Resize with antialias and of regions of interest, against onnxruntime or onnx's reference."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.dialect.ops.onnx_nodes import Node, ints

from .one_node import agree, drawn

RNG = np.random.default_rng(11)
image = partial(drawn, RNG)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    ("before", "after"), [((16, 13), (5, 4)), ((7, 9), (11, 3)), ((33, 40), (8, 40))]
)
@pytest.mark.parametrize("coordinate", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("exclude", [0, 1])
def test_antialias(tmp_path, before, after, mode, coordinate, exclude):
    attributes = {
        "antialias": 1, "mode": mode, "coordinate_transformation_mode": coordinate,
        "exclude_outside": exclude if mode == "cubic" else 0,
    }  # fmt: skip
    inputs = [image(2, 3, *before), None, None, ints(2, 3, *after)]
    node = Node("Resize", inputs, attributes, opset=19, reference_only=True)
    agree(tmp_path, node, constants=(3,))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias_of_bytes(tmp_path, mode):
    x = RNG.integers(0, 256, (1, 3, 31, 29)).astype(np.uint8)
    inputs = [x, None, np.array([1, 1, 0.4, 0.6], np.float32)]
    attributes = {"antialias": 1, "mode": mode, "exclude_outside": 1}
    # onnxruntime rounds to bytes between the axes too
    node = Node("Resize", inputs, attributes, opset=19, reference_only=True)
    agree(tmp_path, node, constants=(2,), quantised=True)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("roi", [(0.2, 0.1, 0.8, 0.7), (-0.3, 0.4, 0.6, 1.4), (0.9, 0.8, 0.1, 0.2)])
def test_crop_and_resize(tmp_path, mode, roi):
    attributes = {
        "mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "axes": [2, 3],
        "extrapolation_value": 9.5,
    }  # fmt: skip
    inputs = [image(1, 2, 6, 7), np.array(roi, np.float32), None, ints(5, 4)]
    node = Node("Resize", inputs, attributes, opset=19, reference_only=True)
    agree(tmp_path, node, constants=(1, 3))


def test_crop_as_onnxruntime_does(tmp_path):
    attributes = {
        "mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": -3.0,
    }  # fmt: skip
    roi = np.array([0, 0, 0.2, -0.25, 1, 1, 1.3, 0.5], np.float32)
    inputs = [image(2, 3, 8, 9), roi, None, ints(2, 3, 5, 6)]
    agree(tmp_path, Node("Resize", inputs, attributes, opset=19), constants=(1, 3))


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_aspect_ratio(tmp_path, policy, antialias):
    attributes = {
        "mode": "linear", "keep_aspect_ratio_policy": policy, "axes": [2, 3],
        "antialias": antialias,
    }  # fmt: skip
    inputs = [image(1, 2, 12, 9), None, None, ints(5, 6)]
    node = Node("Resize", inputs, attributes, opset=19, reference_only=True)
    agree(tmp_path, node, constants=(3,))
