"""ai.onnx.ml's linear models, support vector machines and preparations, against onnxruntime."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from cuvilc.diagnostics import CuvilError
from tests.dialect.ops.onnx_nodes import Node

from .one_node import agree, drawn, registry, results, saved

RNG = np.random.default_rng(17)
ML = "ai.onnx.ml"
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
normal = partial(drawn, RNG)


def ml(kind: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> Node:
    return Node(kind, inputs, attributes, outputs, domain=ML)


X = normal(9, 4)


# ---- support vector machines


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(tmp_path, kernel, one_class):
    node = ml(
        "SVMRegressor", [X], kernel_type=kernel, kernel_params=[0.3, 0.2, 2.0], n_supports=5,
        support_vectors=normal(20).tolist(), coefficients=normal(5).tolist(), rho=[0.1],
        one_class=one_class,
    )  # fmt: skip
    agree(tmp_path, node)


def test_svm_regressor_without_vectors(tmp_path):
    node = ml("SVMRegressor", [X], coefficients=normal(4).tolist(), rho=[0.1], n_supports=0)
    agree(tmp_path, node)


def svc(classes: int, kernel: str = "RBF", proba: bool = False, **more: Any) -> Node:
    counts = [3, 1, 4, 2, 2][:classes]
    pairs = classes * (classes - 1) // 2
    words: dict[str, Any] = {
        "classlabels_ints": [7, 3, 11, 0, 5][:classes], "vectors_per_class": counts,
        "support_vectors": normal(sum(counts) * 4).tolist(), "kernel_type": kernel,
        "coefficients": normal((classes - 1) * sum(counts)).tolist(),
        "rho": normal(pairs).tolist(), "kernel_params": [0.3, 0.2, 3.0],
    }  # fmt: skip
    if proba:
        words |= {"prob_a": normal(pairs).tolist(), "prob_b": normal(pairs).tolist()}
    return ml("SVMClassifier", [X], 2, **words, **more)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("proba", [False, True])
def test_svm_classifier(tmp_path, classes, kernel, proba):
    agree(tmp_path, svc(classes, kernel, proba))


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize(("classes", "proba"), [(2, True), (3, False), (3, True)])
def test_svm_transforms(tmp_path, classes, proba, transform):
    agree(tmp_path, svc(classes, proba=proba, post_transform=transform))


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_svm_transforms_of_one_score(tmp_path, transform):
    """As onnx's reference has them; onnxruntime's softmax gives 1 - s and s."""
    node = svc(2, post_transform=transform)
    node.reference_only = True
    agree(tmp_path, node)


@pytest.mark.parametrize(
    ("classes", "rho", "transform"),
    [
        (1, 1, "NONE"),  # with others onnxruntime adds a second class
        *(
            (*sizes, t)
            for sizes in ((2, 1), (3, 1), (3, 3))
            for t in ("NONE", "SOFTMAX", "LOGISTIC")
        ),
    ],
)
def test_linear_svm(tmp_path, classes, rho, transform):
    node = ml(
        "SVMClassifier", [X], 2, classlabels_ints=[4, 2, 9][:classes], post_transform=transform,
        coefficients=normal(classes * 4).tolist(), rho=normal(rho).tolist(), kernel_type="LINEAR",
    )  # fmt: skip
    agree(tmp_path, node)


# ---- linear models


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_linear_classifier(tmp_path, transform, dtype):
    node = ml(
        "LinearClassifier", [(3 * X).astype(dtype)], 2, classlabels_ints=[5, 1, 8],
        coefficients=normal(12).tolist(), intercepts=normal(3).tolist(), post_transform=transform,
    )  # fmt: skip
    agree(tmp_path, node)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_linear_classifier_of_two(tmp_path, transform):
    """As onnx's reference has it: -s and s, where onnxruntime has 1 - s and s."""
    node = ml(
        "LinearClassifier", [X], 2, classlabels_ints=[5, 1], coefficients=normal(4).tolist(),
        intercepts=[0.1], post_transform=transform,
    )  # fmt: skip
    node.reference_only = True
    agree(tmp_path, node)


@pytest.mark.parametrize("targets", [1, 3])
def test_linear_regressor(tmp_path, targets):
    node = ml(
        "LinearRegressor", [X], coefficients=normal(4 * targets).tolist(), targets=targets,
        intercepts=normal(targets).tolist(),
    )  # fmt: skip
    agree(tmp_path, node)


# ---- preparations


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("each", [True, False])
def test_scaler(tmp_path, dtype, each):
    count = 4 if each else 1
    attributes = {"offset": normal(count).tolist(), "scale": normal(count).tolist()}
    agree(tmp_path, ml("Scaler", [(5 * X).astype(dtype)], **attributes))


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(tmp_path, norm):
    agree(tmp_path, ml("Normalizer", [X], norm=norm))


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_one_hot_encoder(tmp_path, dtype):
    x = RNG.integers(0, 4, (3, 2)).astype(dtype)
    agree(tmp_path, ml("OneHotEncoder", [x], cats_int64s=[2, 0, 3], zeros=1))


def test_imputer(tmp_path):
    x = X.copy()
    x[::3, 1], x[2, 3] = np.nan, np.nan
    node = ml("Imputer", [x], imputed_value_floats=[1.0, 2, 3, 4], replaced_value_float=np.nan)
    agree(tmp_path, node)
    whole = RNG.integers(0, 3, (5, 4))
    node = ml("Imputer", [whole], imputed_value_int64s=[9], replaced_value_int64=1)
    agree(tmp_path, node)


def test_binarizer(tmp_path):
    agree(tmp_path, ml("Binarizer", [X], threshold=0.25))


def test_features(tmp_path):
    agree(tmp_path, ml("ArrayFeatureExtractor", [X, np.array([3, 0, 3])]), constants=(1,))
    inputs = [X, normal(9, 2)]
    agree(tmp_path, ml("FeatureVectorizer", inputs, inputdimensions=[4, 2]))


def test_zip_map_gives_the_scores(tmp_path):
    node = ml("ZipMap", [X], classlabels_int64s=[4, 2, 9, 1])
    for (found,) in results(tmp_path, node):
        np.testing.assert_array_equal(found, X)


@pytest.mark.parametrize(
    "node",
    [
        ml("OneHotEncoder", [X], cats_strings=["a", "b"]),
        ml("LabelEncoder", [np.array([1, 2])], keys_int64s=[1], values_strings=["a"]),
        ml("CategoryMapper", [np.array([1, 2])], cats_int64s=[1], cats_strings=["a"]),
        ml("SVMRegressor", [X], kernel_type="SINC", coefficients=[1.0], rho=[0.0]),
    ],
    ids=lambda n: n.kind,
)  # fmt: skip
def test_refusals(tmp_path, node):
    with pytest.raises(CuvilError, match=r"string|SINC"):
        registry.load(saved(tmp_path, node))
