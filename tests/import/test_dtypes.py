"""Tensor operators in the other dtypes that ONNX allows them, against float32's results."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.dialect.ops.onnx_nodes import Node, expected, ints
from tests.tolerances import mismatch

from .one_node import agree, drawn, results

RNG = np.random.default_rng(23)
normal = partial(drawn, RNG)


BOXES = np.array([[0, 1, 5, 4], [2, 2, 7, 7.5]], np.float32)
# kind -> (inputs, which of them are in the dtype, attributes, more of Node)
FLOATS: dict[str, tuple[list[Any], tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    "GridSample": (
        [normal(1, 2, 5, 6), RNG.uniform(-1, 1, (1, 3, 4, 2)).astype(np.float32)], (0,), {}, {},
    ),
    "RoiAlign": (
        [normal(1, 2, 8, 8), BOXES, ints(0, 0)], (0, 1), {"output_height": 2, "output_width": 2},
        {"reference_only": True},
    ),
    "MaxRoiPool": (
        [normal(1, 2, 8, 8), np.concatenate([[[0], [0]], BOXES], 1).astype(np.float32)], (0, 1),
        {"pooled_shape": [2, 2]}, {"opset": 17},
    ),
    "DeformConv": (
        [normal(1, 2, 5, 5), normal(3, 2, 2, 2), normal(1, 8, 4, 4)], (0, 1, 2), {},
        {"reference_only": True},
    ),
    "Col2Im": ([normal(1, 8, 12), ints(4, 5), ints(2, 2)], (0,), {}, {}),
    "CumProd": ([normal(3, 5), np.array(1)], (0,), {}, {"opset": 26}),
    "MaxPool": ([normal(1, 2, 6, 6)], (0,), {"kernel_shape": [2, 2]}, {"outputs": 2}),
    "MaxUnpool": (
        [normal(1, 1, 2, 2), np.array([[[[0, 3], [9, 14]]]])], (0,),
        {"kernel_shape": [2, 2], "strides": [2, 2]}, {},
    ),
    "DFT": ([normal(2, 12, 1)], (0,), {"onesided": 1}, {}),
    "STFT": ([normal(1, 40, 1), np.array(8), normal(16)], (0, 2), {}, {"reference_only": True}),
    "Resize": (
        [normal(1, 2, 9, 8), None, None, ints(1, 2, 4, 5)], (0,),
        {"antialias": 1, "mode": "cubic"}, {"opset": 19, "reference_only": True},
    ),
    "TensorScatter": (
        [normal(2, 5, 3), normal(2, 2, 3), ints(0, 3)], (0, 1), {},
        {"opset": 24, "reference_only": True},
    ),
    "LpPool": ([normal(1, 2, 6, 6)], (0,), {"kernel_shape": [2, 2]}, {}),
    "GlobalLpPool": ([normal(1, 2, 6, 6)], (0,), {}, {"opset": 18}),
    "LRN": ([normal(1, 6, 3, 3)], (0,), {"size": 3}, {}),
}  # fmt: skip
CONSTANTS = {"Col2Im": (1, 2), "CumProd": (1,), "STFT": (1,), "Resize": (3,)}


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float64"])
@pytest.mark.parametrize("kind", FLOATS)
def test_floats(tmp_path, kind, dtype):
    inputs, own, attributes, more = FLOATS[kind]
    narrow = [a.astype(dtype) if i in own else a for i, a in enumerate(inputs)]
    wide = [a.astype(np.float32) if i in own else a for i, a in enumerate(narrow)]
    wanted = expected(Node(kind, wide, attributes, **more))
    for found in results(tmp_path, Node(kind, narrow, attributes, **more), CONSTANTS.get(kind, ())):
        for a, b in zip(found, wanted, strict=True):
            a = np.asarray(a)
            if b.dtype == np.float32:  # only as exact as the oracle's float32, or as the dtype
                assert a.dtype == np.dtype(dtype)
                a, b = (a.astype(b.dtype), b) if dtype == "float64" else (a, b.astype(dtype))
            wrong = mismatch(a, b)
            assert not wrong, wrong


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integers(tmp_path, dtype):
    x = RNG.integers(0, 9, (2, 3, 5, 6)).astype(dtype)
    columns = RNG.integers(0, 9, (1, 8, 12)).astype(dtype)
    agree(tmp_path, Node("Col2Im", [columns, ints(4, 5), ints(2, 2)], reference_only=True), (1, 2))
    if dtype != "int8" and dtype != "uint8":
        agree(tmp_path, Node("CumProd", [x - x // 2, np.array(1)], opset=26), (1,))
    grid = RNG.uniform(-1, 1, (2, 3, 4, 2)).astype(np.float32)
    agree(tmp_path, Node("GridSample", [x, grid], {"mode": "nearest"}, reference_only=True))
    new = RNG.integers(0, 9, (2, 3, 2, 6)).astype(dtype)
    inputs = [x, new, ints(0, 3)]
    agree(tmp_path, Node("TensorScatter", inputs, {}, opset=24, reference_only=True))


# ---- attributes of pools and normalisations that the suite's cases leave out


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_lp_pools(tmp_path, p):
    x = normal(2, 3, 7, 8)
    agree(tmp_path, Node("GlobalLpPool", [x], {"p": p}, opset=18))
    window = {"kernel_shape": [3, 2], "strides": [2, 1], "p": p}
    agree(tmp_path, Node("LpPool", [x], window | {"pads": [1, 0, 1, 1], "dilations": [1, 2]}))
    agree(tmp_path, Node("LpPool", [x], window | {"auto_pad": "SAME_UPPER"}))
    agree(tmp_path, Node("LpPool", [x], window | {"ceil_mode": 1}))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(tmp_path, size):
    words = {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
    agree(tmp_path, Node("LRN", [normal(2, 4, 5, 3)], words))
