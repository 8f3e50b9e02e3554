"""Support vector machines, as scikit-learn's exporters write them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError

from ._table import importer, only
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar, shape_of
from .onnx_nodes_ml import ML, POST, class_count, labels, row, transformed
from .onnx_nodes_slice import concat_values

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_MOST_CLASSES, _MOST_WEIGHTS = 1024, 1 << 26
_NEAR_ZERO = 1e-7  # probabilities of pairs stay this far from 0 and 1, as libsvm's do


def _rows(n: Node) -> ir.Value:
    """The input [N, F] in float32."""
    x = cast(n[0], "float32")
    return x if len(shape_of(x)) == 2 else reshape(x, (1, *shape_of(x)))


def _times(x: ir.Value, value: float) -> ir.Value:
    return ai("elemwise_mul", x, scalar(value, x))


def _plus(x: ir.Value, value: float) -> ir.Value:
    return ai("elemwise_add", x, scalar(value, x))


def _kernel(n: Node, x: ir.Value, vectors: np.ndarray) -> ir.Value:
    """k(x, v) of every row and every support vector [V, F]: [N, V]."""
    gamma, shift, degree = (n.attr("kernel_params") or (0.0, 0.0, 0.0))[:3]
    kind = n.attr("kernel_type", "LINEAR")
    if kind == "RBF":
        rows, features = shape_of(x)
        apart = ai("elemwise_sub", reshape(x, (rows, 1, features)), row(n, vectors))
        squares = ai("elemwise_mul", apart, apart)
        return ai("exp", _times(ai("reduce_sum", squares, axes=(2,), keepdims=False), -gamma))
    dots = ai("matmul", x, row(n, vectors.T))
    if kind == "LINEAR":
        return dots
    dots = _plus(_times(dots, gamma), shift)
    return ai("tanh", dots) if kind == "SIGMOID" else ai("pow", dots, scalar(float(degree), dots))


@importer("SVMRegressor", domain=ML, refuse=only(
    kernel_type=_KERNELS, post_transform=("NONE", "LOGISTIC"),
))  # fmt: skip
def svm_regressor(n: Node) -> ir.Value:
    x, count = _rows(n), n.attr("n_supports", 0)
    weights = np.array(n.attr("coefficients"), np.float32).reshape(-1, 1)
    if count:
        x = _kernel(n, x, np.array(n.attr("support_vectors"), np.float32).reshape(count, -1))
    y = _plus(ai("matmul", x, row(n, weights)), n.attr("rho")[0])
    if n.attr("one_class", 0):
        positive = ai("greater", y, scalar(0.0, y))
        return ai("where", positive, scalar(1.0, y), scalar(-1.0, y))
    return transformed(y, n.attr("post_transform", "NONE"))


def _refuse(attributes: dict[str, Any]) -> str | None:
    return only(kernel_type=_KERNELS)(attributes) or POST(attributes)


@importer("SVMClassifier", domain=ML, refuse=_refuse)
def svm_classifier(n: Node) -> list[Any]:
    """Of a pair of classes the score decides, votes of all pairs the class, as onnxruntime does."""
    classes = max(class_count(n), 1)
    if classes > _MOST_CLASSES:
        raise ShapeError(f"{classes} classes; at most {_MOST_CLASSES} are supported")
    if not n.attr("vectors_per_class"):
        return _linear(n, classes)
    scores = _pair_scores(n, classes)
    picked = ai("arg_max", _votes(n, scores, classes), axis=1, keepdims=False)
    transform = n.attr("post_transform", "NONE")
    if n.attr("prob_a"):
        return [labels(n, picked), transformed(_probabilities(n, scores, classes), transform)]
    if classes == 2:
        if transform == "PROBIT":
            raise ShapeError("post_transform PROBIT of a single score is not supported")
        scores = concat_values([ai("neg", scores), scores], 1)
    return [labels(n, picked), transformed(scores, transform)]


def _linear(n: Node, classes: int) -> list[Any]:
    """A score a class. With one rho the sign decides, save between two classes."""
    weights = np.array(n.attr("coefficients"), np.float32).reshape(classes, -1)
    rho = n.attr("rho")
    scores = _plus(ai("matmul", _rows(n), row(n, weights.T)), rho[0])
    result = transformed(scores, n.attr("post_transform", "NONE"))
    if len(rho) == 1 and classes != 2:
        top = ai("reduce_max", scores, axes=(1,), keepdims=False)
        return [cast(ai("greater", top, scalar(0.0, top)), "int64"), result]
    return [labels(n, ai("arg_max", scores, axis=1, keepdims=False)), result]


def _pair_scores(n: Node, classes: int) -> ir.Value:
    """[N, pairs]: above 0 for the first class of the pair.

    Vectors of class i have their weights against class j > i in row j - 1, those of j in row i.
    """
    counts = n.attr("vectors_per_class")
    if min(counts) < 0:
        raise ShapeError(f"a class has {min(counts)} vectors")
    starts = np.concatenate([[0], np.cumsum(counts)])
    total = int(starts[-1])
    weights = np.array(n.attr("coefficients"), np.float32).reshape(-1, total)
    pairs = list(combinations(range(classes), 2))
    if len(counts) != classes or len(weights) < classes - 1 or len(n.attr("rho")) < len(pairs):
        raise ShapeError(f"attributes are too short for {classes} classes")
    if total * len(pairs) > _MOST_WEIGHTS:
        raise ShapeError(f"{total} support vectors for {len(pairs)} pairs of classes")
    matrix = np.zeros((total, len(pairs)), np.float32)
    for column, (i, j) in enumerate(pairs):
        of_i, of_j = (slice(starts[c], starts[c + 1]) for c in (i, j))
        matrix[of_i, column], matrix[of_j, column] = weights[j - 1, of_i], weights[i, of_j]
    vectors = np.array(n.attr("support_vectors"), np.float32).reshape(total, -1)
    scores = ai("matmul", _kernel(n, _rows(n), vectors), row(n, matrix))
    return ai("elemwise_add", scores, row(n, n.attr("rho")[: len(pairs)]))


def _votes(n: Node, scores: ir.Value, classes: int) -> ir.Value:
    """[N, classes]: how many pairs each class wins."""
    pairs = list(combinations(range(classes), 2))
    change, losing = np.zeros((len(pairs), classes)), np.zeros(classes)
    for pair, (i, j) in enumerate(pairs):
        change[pair, i], change[pair, j] = 1, -1
        losing[j] += 1
    won = cast(ai("greater", scores, scalar(0.0, scores)), dtype_of(scores))
    return ai("elemwise_add", ai("matmul", won, row(n, change)), row(n, losing))


def _probabilities(n: Node, scores: ir.Value, classes: int) -> ir.Value:
    """Of each class, from the sigmoids of the pairs' scores.    (Platt 2000)"""
    a, b = (row(n, n.attr(name)) for name in ("prob_a", "prob_b"))
    logits = ai("neg", ai("elemwise_add", ai("elemwise_mul", scores, a), b))
    pairs = ai("clip", ai("sigmoid", logits), low=_NEAR_ZERO, high=1.0 - _NEAR_ZERO)
    return ai("couple_probabilities", pairs, classes=classes)
