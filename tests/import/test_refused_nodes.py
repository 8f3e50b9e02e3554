"""Nodes of tensor operators whose attributes or inputs cannot be: a diagnostic, at once."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.diagnostics import CuvilError
from tests.dialect.ops.onnx_nodes import Node, ints

from .one_node import registry, saved

HUGE = 1 << 40
ML = "ai.onnx.ml"


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def mel(*numbers: float) -> list[np.ndarray]:
    return [np.array(v, np.float32 if i > 2 else np.int64) for i, v in enumerate(numbers)]


GRAMS = {
    "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "ngram_counts": [0],
    "pool_int64s": [1],
}  # fmt: skip
CROP = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
SMOOTH = {"antialias": 1, "mode": "linear"}
IMAGE = zeros(1, 2, 5, 5)
WINDOWS = [IMAGE, zeros(3, 2, 2, 2), zeros(1, 8, 4, 4)]
CASES: list[tuple[Node, tuple[int, ...], str]] = [
    (Node("GridSample", [IMAGE, zeros(2, 3, 3, 2)]), (), "batch sizes"),
    (Node("GridSample", [IMAGE, zeros(1, 3, 3, 3)]), (), "2 coordinates"),
    (Node("RoiAlign", [IMAGE, zeros(2, 4), ints(0)]), (), "rois must have shape"),
    (Node("RoiAlign", [IMAGE, zeros(1, 4), ints(0)], {"output_height": 0}), (), "1 or more"),
    (Node("DeformConv", WINDOWS, {"group": 0}), (), "0 groups"),
    (Node("DeformConv", WINDOWS, {"offset_group": 3}), (), "3 offset groups"),
    (Node("Col2Im", [zeros(1, 8, 12), ints(HUGE, HUGE), ints(2, 2)]), (1, 2), "12 columns for"),
    (Node("MaxUnpool", [IMAGE, np.zeros(IMAGE.shape, np.int64)], {"kernel_shape": [2]}), (),
     "1 axes"),
    (Node("CumProd", [zeros(3), np.array(7)], opset=26), (1,), "axis 7"),
    (Node("DFT", [zeros(1, 8, 3)]), (), "1 or 2 parts"),
    (Node("DFT", [zeros(1, 8, 1), None, np.array(2)]), (2,), "last axis"),
    (Node("STFT", [zeros(1, 10, 1), np.array(0), zeros(4)]), (1,), "every 0"),
    (Node("MelWeightMatrix", mel(HUGE, 16, 8000, 0, 4000)), tuple(range(5)), "mel bins"),
    (Node("MelWeightMatrix", mel(4, 16, 8000, np.nan, 4000)), tuple(range(5)), "nan to 4000"),
    (Node("Resize", [IMAGE, None, None, ints(1, 2, HUGE, HUGE)], SMOOTH, opset=19), (3,),
     "neighbours"),
    (Node("Resize", [IMAGE, np.full(8, np.nan, np.float32), None, ints(1, 2, 2, 2)], CROP,
          opset=19), (1, 3), "not finite"),
    (Node("TensorScatter", [zeros(1, 2, 3), zeros(1, 4, 3)], opset=24), (), "exceed"),
    (Node("RandomUniform", [], {"shape": [2], "dtype": 7}), (), "floats, not int64"),
    (Node("Multinomial", [zeros(3)]), (), "batch, classes"),
    (Node("Adam", [zeros(), np.array(0), zeros(2), zeros(2)], {}, 3, "ai.onnx.preview.training"),
     (), "4 for each parameter"),
    (Node("TfIdfVectorizer", [ints(1)], GRAMS | {"max_skip_count": HUGE, "ngram_indexes": [0]},
          opset=9), (), "skips"),
    (Node("TfIdfVectorizer", [ints(1)], GRAMS | {"max_skip_count": 0, "ngram_indexes": [HUGE]},
          opset=9), (), "columns"),
    (Node("SVMClassifier", [zeros(1, 2)], {
        "vectors_per_class": [-3, 5], "support_vectors": [1.0] * 4, "coefficients": [1.0] * 2,
        "rho": [0.0], "classlabels_ints": [0, 1]}, 2, ML), (), "-3 vectors"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("node", "constants", "message"), CASES, ids=[f"{n.kind}-{m}" for n, _, m in CASES]
)
def test_refusal(tmp_path, node, constants, message):
    with pytest.raises(CuvilError, match=message) as caught:
        registry.load(saved(tmp_path, node, constants))
    assert caught.value.diagnostics[0].code == "CUV110"
