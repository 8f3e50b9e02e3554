"""Tree ensembles (gradient-boosted trees, random forests), and votes of pairs of classes."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import (
    need,
    need_dtype,
    need_float,
    need_positive,
    need_rank,
    need_same_dtype,
    need_shape,
    need_word,
    spell,
)
from cuvilc.dialect.types import TensorType

# node modes: a leaf, or how x compares with the threshold to go to the true child
LEAF, LESS_EQUAL, LESS, GREATER_EQUAL, GREATER, EQUAL, NOT_EQUAL = range(7)
AGGREGATES = ("sum", "average", "min", "max")
_COMPARE = {
    LESS_EQUAL: np.less_equal, LESS: np.less, GREATER_EQUAL: np.greater_equal,
    GREATER: np.greater, EQUAL: np.equal, NOT_EQUAL: np.not_equal,
}  # fmt: skip


def _fold(weights: list[float], aggregate: str, trees: int) -> float:
    match aggregate:
        case "average":
            return sum(weights) / trees
        case "min":
            return min(weights, default=0.0)
        case "max":
            return max(weights, default=0.0)
    return sum(weights)


def _forest(aggregate: str, modes: tuple[int, int, int], missing: int):
    """Two trees over three features: one of depth 2, one of depth 1, two targets."""
    ints = lambda *v: np.array(v, np.int64)  # noqa: E731
    x = np.array([[0.5, -1, 2], [-0.5, 1, np.nan], [0, 0, 0], [0.25, np.nan, -3]], np.float32)
    return sample(
        x,
        ints(0, 1, 0, 0, 0, 2, 0, 0),
        np.array([0, 0.5, 0, 0, 0, -1, 0, 0], np.float32),
        ints(1, 2, 0, 1, 3, 6, 4, 5),
        ints(4, 3, 1, 3, 4, 7, 5, 6),
        ints(modes[0], modes[1], 0, 0, 0, modes[2], 0, 0),
        np.array([missing] * 8, np.uint8),
        ints(0, 5),
        ints(0, 1, 0, 1, 0, 1),
        np.array([0.5, -1, 2, 0.25, -0.75, 3], np.float32),
        np.array([0.0, 1.5], np.float32),
        aggregate=aggregate, targets=2,
    )  # fmt: skip


@op("ai.tree_ensemble")
class TreeEnsemble:
    """The trees' leaves for each row of x, folded per target, plus `base`. (Breiman 2001)

    x [N, F] → [N, targets]. Node n (arrays [nodes]): mode 0 is a leaf, else x[feature] compares to
    `threshold` by mode 1 ≤, 2 <, 3 ≥, 4 >, 5 =, 6 ≠; true leads to true_child, false to
    false_child. A NaN also leads to true_child where missing[n] (uint8) is not 0. A leaf gives the
    pairs (leaf_target, leaf_weight) from number true_child up to, not with, false_child. roots
    [trees] are the first nodes; a child's number is above its parent's, so a walk ends. aggregate:
    "sum", "average" (sum / trees), "min", "max" of the weights that reach a target, 0 if none does;
    then base [targets] is added.
    """

    x: Tensor
    feature: Tensor
    threshold: Tensor
    true_child: Tensor
    false_child: Tensor
    mode: Tensor
    missing: Tensor
    roots: Tensor
    leaf_target: Tensor
    leaf_weight: Tensor
    base: Tensor
    aggregate: str
    targets: int

    def shape(
        x, feature, threshold, true_child, false_child, mode, missing, roots, leaf_target,
        leaf_weight, base, *, aggregate, targets,
    ):  # fmt: skip
        need_rank(x, 2, "x")
        need_float(x)
        need_same_dtype(x, threshold)
        need_rank(threshold, 1, "threshold")
        links = {
            "feature": feature, "true_child": true_child, "false_child": false_child, "mode": mode,
        }  # fmt: skip
        for what, t in links.items():
            need_dtype(t, ("int64",), what)
            need_shape(t, threshold.shape, what)
        need_dtype(missing, ("uint8",), "missing")
        need_shape(missing, threshold.shape, "missing")
        for what, t in {"roots": roots, "leaf_target": leaf_target}.items():
            need_dtype(t, ("int64",), what)
            need_rank(t, 1, what)
        need_float(leaf_weight, "leaf_weight")
        need_shape(leaf_weight, leaf_target.shape, "leaf_weight")
        need_same_dtype(leaf_weight, base)
        need_positive((targets,), "targets")
        need_shape(base, (targets,), "base")
        need_word(aggregate, AGGREGATES, "aggregate")
        need(roots.shape[0] != 0, f"an ensemble has a tree; roots is {spell(roots.shape)}")
        return TensorType((x.shape[0], targets), leaf_weight.dtype)

    def reference(
        x, feature, threshold, true_child, false_child, mode, missing, roots, leaf_target,
        leaf_weight, base, *, aggregate, targets,
    ):  # fmt: skip
        y = np.zeros((len(x), targets))
        for row, features in enumerate(x):
            reached: list[list[float]] = [[] for _ in range(targets)]
            for node in roots:
                while mode[node] != LEAF:
                    value = features[feature[node]]
                    follow = _COMPARE[mode[node]](value, threshold[node])
                    follow = follow or (np.isnan(value) and missing[node])
                    node = true_child[node] if follow else false_child[node]
                for pair in range(true_child[node], false_child[node]):
                    reached[leaf_target[pair]].append(leaf_weight[pair])
            y[row] = [_fold(weights, aggregate, len(roots)) for weights in reached]
        return y + base

    samples = (
        _forest("sum", (LESS_EQUAL, GREATER, LESS), 0),
        _forest("average", (LESS, GREATER_EQUAL, EQUAL), 1),
        _forest("max", (NOT_EQUAL, LESS_EQUAL, GREATER), 0),
        _forest("min", (GREATER, EQUAL, GREATER_EQUAL), 1),
    )


@op("ai.couple_probabilities")
class CoupleProbabilities:
    """Probabilities of `classes` classes from those of each pair.  (Wu et al. 2004, algorithm 2)

    x [N, pairs]: that of class i against j > i, pairs in row-major order → [N, classes]. The
    iteration ends as libsvm's does: after max(100, classes) steps, or when no error exceeds
    0.005 / classes.
    """

    x: Tensor
    classes: int

    def shape(x, *, classes):
        need_dtype(x, ("float32", "float64"), "x")
        need_positive((classes,), "classes")
        need_rank(x, 2, "x")
        need_shape(x, (x.shape[0], classes * (classes - 1) // 2), "x")
        return TensorType((x.shape[0], classes), x.dtype)

    def reference(x, *, classes):
        return np.array([_coupled(row, classes) for row in x]).reshape(len(x), classes)

    samples = (
        sample("float32[5,1]", classes=2, low=0.01, high=0.99),
        sample("float32[4,6]", classes=4, low=0.01, high=0.99),
        sample("float64[3,3]", classes=3, low=0.4, high=0.6),
    )


def _coupled(pairs: np.ndarray, classes: int) -> np.ndarray:
    """One row of it."""
    r = np.zeros((classes, classes))
    upper = np.triu_indices(classes, 1)
    r[upper] = pairs
    r.T[upper] = 1 - pairs
    q = -r.T * r
    q[np.diag_indices(classes)] = (r * r).sum(0)
    p = np.full(classes, 1 / classes)
    for _ in range(max(100, classes)):
        change = q @ p
        mean = p @ change
        if np.abs(change - mean).max() < 0.005 / classes:
            break
        for t in range(classes):
            step = (mean - change[t]) / q[t, t]
            mean = (mean + step * (step * q[t, t] + 2 * change[t])) / (1 + step) ** 2
            change = (change + step * q[t]) / (1 + step)
            p[t] += step
            p = p / (1 + step)
    return p
