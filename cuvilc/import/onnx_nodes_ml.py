"""ai.onnx.ml: what scikit-learn and boosting libraries export."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError

from ._table import importer, only
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar, shape_of
from .onnx_nodes_gather import index_values
from .onnx_nodes_reduce import divided_by_norm, lp_norm
from .onnx_nodes_slice import concat_values
from .onnx_tree_nodes import pack
from .onnx_trees import Forest, float_lists, read_ensemble, read_forest

ML = "ai.onnx.ml"
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
POST = only(post_transform=_TRANSFORMS)


def _float(x: ir.Value) -> ir.Value:
    """Operators of ai.onnx.ml take any numbers and give float32."""
    return x if dtype_of(x) == "float32" else cast(x, "float32")


def row(n: Node, values: Any, dtype: type = np.float32) -> ir.Value:
    """Numbers of an attribute as a constant."""
    return n.constant(np.array(values, dtype, order="C"))


@importer("Scaler", domain=ML)
def scaler(n: Node) -> ir.Value:
    x = _float(n[0])
    x = ai("elemwise_sub", x, row(n, n.attr("offset", (0.0,))))
    return ai("elemwise_mul", x, row(n, n.attr("scale", (1.0,))))


@importer("Normalizer", domain=ML)
def normalizer(n: Node) -> ir.Value:
    x = _float(n[0])
    at = len(shape_of(x)) - 1
    match n.attr("norm", "MAX"):
        case "L1":
            norm = lp_norm(x, 1, at)
        case "L2":
            norm = lp_norm(x, 2, at)
        case _:
            norm = ai("reduce_max", x, axes=(at,), keepdims=True)
    return divided_by_norm(x, norm)


@importer("Imputer", domain=ML)
def imputer(n: Node) -> ir.Value:
    x, values = n[0], n.attr("imputed_value_floats")
    if values is None:
        values, old = n.attr("imputed_value_int64s"), n.attr("replaced_value_int64", 0)
    else:
        old = n.attr("replaced_value_float", 0.0)
    missing = ai("is_nan", x) if old != old else ai("equal", x, scalar(old, x))
    filled = ai("broadcast_to", n.constant(np.array(values, dtype_of(x))), shape=shape_of(x))
    return ai("where", missing, filled, x)


@importer("Binarizer", domain=ML)
def binarizer(n: Node) -> ir.Value:
    x = n[0]
    return cast(ai("greater", x, scalar(n.attr("threshold", 0.0), x)), dtype_of(x))


@importer("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(n: Node) -> ir.Value:
    x = n[0]
    x = x if len(shape_of(x)) > 1 else reshape(x, (1, *shape_of(x)))
    indices = index_values(n[1])
    count = 1
    for d in shape_of(indices):
        count = count * d  # type: ignore[assignment]
    return ai("gather", x, reshape(indices, (count,)), axis=len(shape_of(x)) - 1)


@importer("FeatureVectorizer", domain=ML)
def feature_vectorizer(n: Node) -> ir.Value:
    parts = [_float(v) for v in n.all()]
    return concat_values(
        [v if len(shape_of(v)) > 1 else reshape(v, (*shape_of(v), 1)) for v in parts], 1
    )


@importer("OneHotEncoder", domain=ML)
def one_hot_encoder(n: Node) -> ir.Value:
    categories = n.attr("cats_int64s")
    if categories is None:
        raise ShapeError("string categories are not supported")
    x = cast(n[0], "int64")
    wide = reshape(x, (*shape_of(x), 1))
    return cast(ai("equal", wide, row(n, categories, np.int64)), "float32")


@importer("ZipMap", domain=ML)
def zip_map(n: Node) -> Any:
    """A package gives the scores as the tensor they are; the map's keys go to the metadata."""
    keys = n.attr("classlabels_int64s") or n.attr("classlabels_strings") or ()
    n.converter.program.source.setdefault("class_labels", {})[n.proto.output[0]] = list(keys)
    return n.val(0)


def transformed(scores: ir.Value, transform: str) -> ir.Value:
    match transform:
        case "SOFTMAX":
            return ai("softmax", scores, axis=1)
        case "LOGISTIC":
            return ai("sigmoid", scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(scores)
        case "PROBIT":
            return _probit(scores)
    return scores


def _softmax_zero(scores: ir.Value) -> ir.Value:
    """A softmax where 0 gets e⁰ times e^-max as a factor: 0 stays 0. Rows of 0 alone give ½."""
    top = ai("reduce_max", scores, axes=(1,), keepdims=True)
    small = ai("less_equal", ai("abs", scores), scalar(1e-7, scores))
    shrunk = ai("elemwise_mul", scores, ai("exp", ai("neg", top)))
    powers = ai("where", small, shrunk, ai("exp", ai("elemwise_sub", scores, top)))
    total = ai("reduce_sum", powers, axes=(1,), keepdims=True)
    none = ai("equal", total, scalar(0.0, total))
    share = ai("elemwise_div", powers, ai("where", none, scalar(1.0, total), total))
    return ai("where", none, scalar(0.5, total), share)


def _probit(scores: ir.Value) -> ir.Value:
    """√2 · erf⁻¹(2p - 1) as onnxruntime approximates it.    (Winitzki 2008)"""
    a = 0.147
    x = ai("elemwise_sub", ai("elemwise_mul", scores, scalar(2.0, scores)), scalar(1.0, scores))
    rest = ai("elemwise_sub", scalar(1.0, x), ai("elemwise_mul", x, x))
    log = ai("log", rest)
    half = ai("elemwise_mul", log, scalar(0.5, x))
    v = ai("elemwise_add", half, scalar(2.0 / (np.pi * a), x))
    inner = ai("elemwise_mul", log, scalar(1.0 / a, x))
    root = ai("sqrt", ai("elemwise_sub", ai("elemwise_mul", v, v), inner))
    size = ai("sqrt", ai("elemwise_sub", root, v))
    return ai("elemwise_mul", ai("elemwise_mul", ai("sign", x), size), scalar(1.41421356, x))


@importer("LinearRegressor", domain=ML, refuse=POST)
def linear_regressor(n: Node) -> ir.Value:
    targets = n.attr("targets", 1)
    y = _linear(n, targets, n.attr("intercepts"))
    return transformed(y, n.attr("post_transform", "NONE"))


def _linear(n: Node, rows: int, intercepts: Any) -> ir.Value:
    x = _float(n[0])
    x = x if len(shape_of(x)) > 1 else reshape(x, (1, *shape_of(x)))
    weights = np.array(n.attr("coefficients"), np.float32).reshape(rows, -1)
    y = ai("matmul", x, n.constant(np.ascontiguousarray(weights.T)))
    return ai("elemwise_add", y, row(n, intercepts)) if intercepts else y


def labels(n: Node, picked: ir.Value) -> ir.Value | None:
    """The class label for each picked index; None for labels that are strings."""
    known = n.attr("classlabels_int64s") or n.attr("classlabels_ints")
    if known is None:
        return None if n.attr("classlabels_strings") and n.wants(0) else picked
    if tuple(known) == tuple(range(len(known))):
        return picked
    return ai("gather", row(n, known, np.int64), picked, axis=0)


def class_count(n: Node) -> int:
    names = ("classlabels_int64s", "classlabels_ints", "classlabels_strings")
    return max(len(n.attr(name) or ()) for name in names)


@importer("LinearClassifier", domain=ML, refuse=POST)
def linear_classifier(n: Node) -> list[Any]:
    intercepts = n.attr("intercepts") or ()
    rows = len(intercepts) or class_count(n)
    scores = _linear(n, rows, intercepts)
    transform = n.attr("post_transform", "NONE")
    if rows == 1 and class_count(n) == 2:
        return _binary(n, scores, transform, limit=0.5 if transform == "LOGISTIC" else 0.0)
    picked = ai("arg_max", scores, axis=1, keepdims=False)
    return [labels(n, picked), transformed(scores, transform)]


def _binary(
    n: Node, score: ir.Value, transform: str, limit: float, positive: bool = False
) -> list[Any]:
    """Label and both classes' scores from the second class's; `positive`: it is a probability.

    A softmax is of -s and s, as onnx's reference has it (onnxruntime leaves it out).
    """
    if transform == "PROBIT":
        raise ShapeError("post_transform PROBIT of a single score is not supported")
    soft = transform.startswith("SOFTMAX")
    result = score if soft else transformed(score, transform)
    threshold = 0.0 if soft else limit
    decided = ai("greater", result if threshold == 0.5 else score, scalar(threshold, score))
    picked = reshape(cast(decided, "int64"), shape_of(score)[:1])
    if not soft and (transform == "LOGISTIC" or positive):
        other = ai("elemwise_sub", scalar(1.0, result), result)
    else:
        other = ai("neg", result)
    both = concat_values([other, result], 1)
    return [labels(n, picked), transformed(both, transform) if soft else both]


def _ensemble(n: Node, forest: Forest, aggregate: str) -> ir.Value:
    x = _columns(n[0], forest.features())
    given = n.op == "TreeEnsemble" or any("_as_tensor" in name for name in n.attributes)
    numbers = "float64" if given and dtype_of(x) == "float64" else "float32"
    features = shape_of(x)[1]
    assert isinstance(features, int)  # _columns sees to it
    packed = pack(forest.rounded(numbers), dtype_of(x), features)
    arrays = (packed.nodes, packed.roots, packed.first_pairs, *forest.pairs(numbers))
    return ai(
        "tree_ensemble", x, *map(n.constant, arrays), aggregate=aggregate, targets=forest.targets,
        nan_below=packed.nan_below, single=packed.single,
    )  # fmt: skip


def _columns(x: ir.Value, count: int) -> ir.Value:
    """The input as rows of floats, `count` columns at least: walks trust the numbers of columns."""
    x = x if dtype_of(x) in ("float32", "float64") else cast(x, "float32")
    x = x if len(shape_of(x)) > 1 else reshape(x, (1, *shape_of(x)))
    rows, features = shape_of(x)
    if not isinstance(features, int):  # the slice is checked when the size is known
        return ai("slice", x, starts=(0, 0), steps=(1, 1), sizes=(rows, count))
    if features < count:
        raise ShapeError(f"the trees ask for {count} features, the input has {features}")
    return x


@importer("TreeEnsembleRegressor", domain=ML, refuse=POST)
def tree_ensemble_regressor(n: Node) -> ir.Value:
    forest = read_forest(float_lists(n.attributes), "target", n.attr("n_targets", 1))
    y = _ensemble(n, forest, n.attr("aggregate_function", "SUM").lower())
    return transformed(cast(y, "float32"), n.attr("post_transform", "NONE"))


@importer("TreeEnsembleClassifier", domain=ML, refuse=POST)
def tree_ensemble_classifier(n: Node) -> list[Any]:
    """Weights of one class alone, of two, mean a binary decision; as onnxruntime decides it."""
    transform, classes = n.attr("post_transform", "NONE"), class_count(n)
    single = classes == 2 and len(set(n.attr("class_ids"))) == 1
    forest = read_forest(float_lists(n.attributes), "class", 1 if single else classes)
    scores = cast(_ensemble(n, forest, "sum"), "float32")
    if single:
        positive = all(w >= 0 for w in forest.leaf_weight)
        return _binary(n, scores, transform, limit=0.5 if positive else 0.0, positive=positive)
    picked = ai("arg_max", scores, axis=1, keepdims=False)
    return [labels(n, picked), transformed(scores, transform)]


@importer("TreeEnsemble", domain=ML)
def tree_ensemble(n: Node) -> ir.Value:
    """The form of ai.onnx.ml 5. Numbers and sums are float64 where x is, else float32."""
    words, folds = _TRANSFORMS, ("average", "sum", "min", "max")
    transform, fold = n.attr("post_transform", 0), n.attr("aggregate_function", 1)
    if not (0 <= transform < len(words) and 0 <= fold < len(folds)):
        raise ShapeError(f"post_transform {transform} or aggregate_function {fold} is not known")
    forest = read_ensemble(n.attributes, n.attr("n_targets", 1))
    y = _ensemble(n, forest, folds[fold])
    return cast(transformed(y, words[transform]), n.type(0).dtype)
