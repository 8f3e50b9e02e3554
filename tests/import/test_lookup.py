"""LabelEncoder on numbers, TfIdfVectorizer on integers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from cuvilc.diagnostics import CuvilError
from tests.dialect.ops.onnx_nodes import Node

from .one_node import agree, registry, saved

RNG = np.random.default_rng(13)
ML = "ai.onnx.ml"


@pytest.mark.parametrize(
    ("keys", "values"),
    [("int64s", "floats"), ("floats", "int64s"), ("int64s", "int64s"), ("floats", "floats")],
)
def test_label_encoder(tmp_path, keys, values):
    key = RNG.choice(50, 17, replace=False)
    attributes = {
        f"keys_{keys}": (key if keys == "int64s" else key / 4).tolist(),
        f"values_{values}": RNG.integers(-9, 9, 17).tolist() if values == "int64s"
        else RNG.normal(size=17).tolist(),
        "default_int64": 77, "default_float": -7.5,
    }  # fmt: skip
    x = RNG.integers(0, 50, (6, 7))
    x = x if keys == "int64s" else (x / 4).astype(np.float32)
    agree(tmp_path, Node("LabelEncoder", [x], attributes, domain=ML, ml=2))


@pytest.mark.parametrize("ml", [2, 4])
def test_label_encoder_and_nan(tmp_path, ml):
    attributes = {"keys_floats": [1.0, float("nan"), -2.0, 1.0], "values_int64s": [3, 4, 5, 6]}
    x = np.array([np.nan, 1, 2, -2, np.inf], np.float32)
    node = Node("LabelEncoder", [x], attributes, domain=ML, ml=ml)
    agree(tmp_path, node, wanted=[np.array([4 if ml == 4 else -1, 6, -1, 5, -1])])


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_label_encoder_of_tensors(tmp_path, dtype):
    tensors = {
        "keys_tensor": np.arange(5).astype(dtype), "values_tensor": np.arange(5)[::-1] / 3,
        "default_tensor": np.array([0.25]),
    }  # fmt: skip
    attributes = {name: numpy_helper.from_array(a) for name, a in tensors.items()}
    x = np.array([[4, 0, 9], [-1, 2, 2]], dtype)
    node = Node("LabelEncoder", [x], attributes, domain=ML, ml=4)
    table = dict(zip(tensors["keys_tensor"], tensors["values_tensor"], strict=True))
    wanted = np.vectorize(lambda v: table.get(v, 0.25))(x)
    agree(tmp_path, node, wanted=[wanted])


def test_labels_that_are_strings(tmp_path):
    attributes = {"keys_int64s": [1, 2], "values_strings": ["a", "b"]}
    node = Node("LabelEncoder", [np.array([1, 2])], attributes, domain=ML, ml=2)
    with pytest.raises(CuvilError, match="strings are not supported"):
        registry.load(saved(tmp_path, node))


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 1, 0), (1, 3, 2), (2, 3, 1), (2, 2, 5)])
@pytest.mark.parametrize("shape", [(9,), (4, 12), (3, 1)])
def test_tf_idf(tmp_path, shape, least, most, skips, mode):
    attributes = {
        "mode": mode, "min_gram_length": least, "max_gram_length": most, "max_skip_count": skips,
        "ngram_counts": [0, 3, 9], "ngram_indexes": [4, 0, 2, 1, 3, 7, 6, 5],
        "pool_int64s": [2, 3, 5, 2, 3, 3, 2, 5, 5, 2, 3, 2, 5, 2, 2],
        "weights": [0.5, 1, 2, 3, 0.25, 1.5, 7, 9],
    }  # fmt: skip
    x = RNG.integers(1, 6, shape).astype(np.int32)
    agree(tmp_path, Node("TfIdfVectorizer", [x], attributes, opset=9))
