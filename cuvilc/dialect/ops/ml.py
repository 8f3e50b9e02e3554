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

AGGREGATES = ("sum", "average", "min", "max")
KEY_TYPES = {"float16": "int32", "float32": "int32", "float64": "int64"}  # by x's dtype
NAN_BELOW = 1  # as a key, above the least


def keys_of(x: np.ndarray) -> np.ndarray:
    """Integers in the order of the floats, both zeros 0; of a NaN the greatest."""
    integer = np.dtype(KEY_TYPES[x.dtype.name])
    most = integer.type(np.iinfo(integer).max)
    magnitude = np.abs(x).view(integer)
    return np.where(np.isnan(x), most, np.where(np.signbit(x), -magnitude, magnitude))


def _fold(weights: list[float], aggregate: str, trees: int) -> float:
    match aggregate:
        case "average":
            return sum(weights) / trees
        case "min":
            return min(weights, default=0.0)
        case "max":
            return max(weights, default=0.0)
    return sum(weights)


_LAST = np.iinfo(np.int32).max


def _trees(aggregate: str, below: int, targets: int = 2):
    """A tree of depth 2, with a node that only leads on, and one of depth 1; three features.

    below: 3 where the trees ask for missing values below all numbers.
    """
    ints = lambda *v: np.array(v, np.int64)  # noqa: E731
    x = np.array([[0.5, -1, 2], [-0.5, 1, np.nan], [0, 0, -0.0], [0.25, np.nan, -3]], np.float32)
    low, half, none = (int(k) for k in keys_of(np.array([-1, 0.5, 0], np.float32)))
    nodes = (
        (half, 0, 4, -1), (none, 1, 12, -1), (_LAST, 0, 20, -1), (_LAST, 0, 12, 0),
        (_LAST, 0, 16, 1), (_LAST, 0, 20, 2),
        (low, 2 + below, 28, -1), (_LAST, 0, 28, 3), (_LAST, 0, 32, 4),
    )  # fmt: skip
    single = targets == 1
    weights = np.array([0.5, -1, 2, 0.25, -0.75, 3][: 5 + (not single)], np.float32)
    return sample(
        x, np.array(nodes, np.int32), ints(0, 24),
        ints(0, 1, 2, 3, 4, 5) if single else ints(0, 2, 3, 3, 4, 6),
        ints(0, 0, 0, 0, 0) if single else ints(0, 1, 0, 1, 0, 1),
        weights, np.array([0.0, 1.5][-targets:], np.float32),
        aggregate=aggregate, targets=targets, nan_below=below > 0, single=single,
    )  # fmt: skip


@op("ai.tree_ensemble")
class TreeEnsemble:
    """The trees' leaves for each row of x, folded per target, plus `base`. (Breiman 2001)

    x [N, F] → [N, targets]. A node is (key, column, child, leaf), one of nodes [nodes, 4]; places
    of nodes, in roots [trees] and as a child, count the integers before it. From an inner node, one
    whose leaf is negative, a walk goes to its child, or to the node after that where x[column] is
    above the key. Keys are keys_of floats (int32, of a float64 x int64). A NaN is above every
    number; in columns from F on, which are those of x once more (`nan_below` says that there are
    such), below every number. A leaf's child is itself, whatever x is: its key is the greatest,
    its column 0. Leaf l gives the pairs (leaf_target, leaf_weight) from number first_pairs[l] up
    to, not with, first_pairs[l + 1]; `single`: pair l alone, of target 0, the only one. aggregate:
    "sum", "average" (sum / trees), "min", "max" of the weights that reach a target, 0 if none does;
    then base [targets] is added.
    """

    x: Tensor
    nodes: Tensor
    roots: Tensor
    first_pairs: Tensor
    leaf_target: Tensor
    leaf_weight: Tensor
    base: Tensor
    aggregate: str
    targets: int
    nan_below: bool
    single: bool

    def shape(
        x, nodes, roots, first_pairs, leaf_target, leaf_weight, base, *, aggregate, targets,
        nan_below, single,
    ):  # fmt: skip
        need_rank(x, 2, "x")
        need_dtype(x, tuple(KEY_TYPES), "x")
        need_rank(nodes, 2, "nodes")
        need_shape(nodes, (nodes.shape[0], 4), "nodes")
        need_dtype(nodes, (KEY_TYPES[x.dtype],), "nodes")
        integers = {"roots": roots, "first_pairs": first_pairs, "leaf_target": leaf_target}
        for what, t in integers.items():
            need_dtype(t, ("int64",), what)
            need_rank(t, 1, what)
        need_float(leaf_weight, "leaf_weight")
        need_shape(leaf_weight, leaf_target.shape, "leaf_weight")
        need_same_dtype(leaf_weight, base)
        need_positive((targets,), "targets")
        need_shape(base, (targets,), "base")
        need_word(aggregate, AGGREGATES, "aggregate")
        need(roots.shape[0] != 0, f"an ensemble has a tree; roots is {spell(roots.shape)}")
        need(not single or targets == 1, f"a single target, not {targets}")
        return TensorType((x.shape[0], targets), leaf_weight.dtype)

    def reference(
        x, nodes, roots, first_pairs, leaf_target, leaf_weight, base, *, aggregate, targets,
        nan_below, single,
    ):  # fmt: skip
        keys = keys_of(x.astype(np.float64 if nodes.dtype == np.int64 else np.float32))
        below = np.where(np.isnan(x), np.iinfo(keys.dtype).min + NAN_BELOW, keys)
        y = np.zeros((len(x), targets))
        for number, row in enumerate(np.concatenate([keys, below], 1)):
            reached: list[list[float]] = [[] for _ in range(targets)]
            for root in roots:
                key, column, child, leaf = nodes[root // 4]
                while leaf < 0:
                    key, column, child, leaf = nodes[child // 4 + (row[column] > key)]
                for pair in range(first_pairs[leaf], first_pairs[leaf + 1]):
                    reached[leaf_target[pair]].append(leaf_weight[pair])
            y[number] = [_fold(weights, aggregate, len(roots)) for weights in reached]
        return y + base

    samples = (
        _trees("sum", 0),
        _trees("average", 3),
        _trees("max", 0),
        _trees("min", 3),
        _trees("sum", 3, 1),
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
