"""Tree ensembles: every sample, and random forests of every mode, missing values, row counts.

What the forests give is told by the modes' own definition, apart from how nodes are packed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

from cuvilc.dialect.types import TensorType
from cuvilc.targets.schedules import tree
from tests.dialect.ops.one_op import build
from tests.targets.kernel_harness import V3, V4, Kernel, agrees, tensor
from tests.targets.samples import check_sample, on_chips, on_samples


@on_chips
@on_samples(lambda o: o.name == "ai.tree_ensemble")
def test_samples(name, case, chip):
    check_sample(name, case, chip, tree.schedule)


COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
onnx_trees = import_module("cuvilc.import.onnx_trees")
onnx_tree_nodes = import_module("cuvilc.import.onnx_tree_nodes")


def forest(trees: int, depth: int, features: int, targets: int, seed: int = 0, pairs=(0, 3)) -> Any:
    """Random trees of all modes, some branches ending early, some with a NaN as threshold."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=targets).astype(np.float32).tolist()
    made = onnx_trees.Forest([], [], [], [], [], [], [], [], [], base, targets)
    names = ("feature", "threshold", "true_child", "false_child", "mode", "missing")

    def grow(left: int) -> int:
        n = len(made.mode)
        for name in names:
            getattr(made, name).append(0)
        if left == 0 or rng.random() < 0.15:
            made.true_child[n] = len(made.leaf_target)
            for _ in range(rng.integers(*pairs)):
                made.leaf_target.append(int(rng.integers(targets)))
                made.leaf_weight.append(float(np.float32(rng.normal())))
            made.false_child[n] = len(made.leaf_target)
            return n
        made.feature[n], made.mode[n] = int(rng.integers(features)), int(rng.integers(1, 7))
        made.threshold[n] = float(rng.choice([*np.arange(-2, 3) / 2, -0.0, np.inf, np.nan]))
        made.missing[n] = int(rng.integers(2))
        made.true_child[n] = grow(left - 1)
        made.false_child[n] = grow(left - 1)
        return n

    made.roots = [grow(depth) for _ in range(trees)]
    return made


def told(made: Any, x: np.ndarray, aggregate: str) -> np.ndarray:
    """What the forest gives for the rows of x, by the definition of its modes."""
    y = np.zeros((len(x), made.targets))
    for number, row in enumerate(x):
        reached: list[list[float]] = [[] for _ in range(made.targets)]
        for node in made.roots:
            while made.mode[node]:
                value = row[made.feature[node]]
                follow = COMPARE[made.mode[node] - 1](value, x.dtype.type(made.threshold[node]))
                follow = follow or (np.isnan(value) and made.missing[node])
                node = (made.true_child if follow else made.false_child)[node]
            for pair in range(made.true_child[node], made.false_child[node]):
                reached[made.leaf_target[pair]].append(made.leaf_weight[pair])
        fold = {"sum": sum, "average": lambda w: sum(w) / len(made.roots)}.get(aggregate)
        extreme = {"min": min, "max": max}.get(aggregate)
        y[number] = [extreme(w, default=0.0) if extreme else fold(w) for w in reached]
    return y + made.base


def ensemble(made: Any, aggregate: str, dtype: str = "float32", features: int = 7) -> Any:
    """The program of [n, features] rows, and its operands after x."""
    packed = onnx_tree_nodes.pack(made, "float64" if dtype == "float64" else "float32", features)
    numbers = "float64" if dtype == "float64" else "float32"
    given = [packed.nodes, packed.roots, packed.first_pairs, *made.pairs(numbers)]
    types = [tensor(f"n,{features}", dtype)]
    types += [TensorType(a.shape, a.dtype.name) for a in given]
    attrs = {
        "aggregate": aggregate, "targets": made.targets,
        "nan_below": packed.nan_below, "single": packed.single,
    }  # fmt: skip
    return build("ai.tree_ensemble", types, attrs), given


def check(made: Any, x: np.ndarray, aggregate: str, chip: Any) -> None:
    """The kernel as the interpreter, and both as the modes' definition has it."""
    program, operands = ensemble(made, aggregate, x.dtype.name, x.shape[1])
    feeds = {f"x{n}": a for n, a in enumerate([x, *operands])}
    kernel = Kernel(program, chip, tree.schedule)
    agrees(kernel, feeds)
    (found,) = kernel.run(feeds)
    np.testing.assert_allclose(found, told(made, x, aggregate), rtol=1e-5, atol=1e-5)


def rows(count: int, features: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(count)
    x = rng.integers(-3, 4, (count, features)).astype(dtype) / 2
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.05] = -np.inf
    x[x == 0] *= rng.choice([-1, 1])
    return x.astype(dtype)


@pytest.mark.parametrize("aggregate", ["sum", "average", "min", "max"])
@pytest.mark.parametrize("trees", [1, 4, 8, 21])
@on_chips
def test_forests(aggregate, trees, chip):
    made = forest(trees, 5, 7, 3, trees)
    for count in (0, 1, 9, 37):
        check(made, rows(count, 7), aggregate, chip)


@pytest.mark.parametrize("aggregate", ["sum", "min"])
@pytest.mark.parametrize("trees", [2, 9])
@on_chips
def test_one_number_a_leaf(aggregate, trees, chip):
    made = forest(trees, 6, 5, 1, trees, pairs=(1, 2))
    check(made, rows(35, 5), aggregate, chip)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dtypes(dtype):
    check(forest(5, 4, 6, 2), rows(19, 6, dtype), "sum", V3)


def test_neighbours_of_thresholds():
    """A threshold, and the floats next to it, denormal ones beside 0."""
    made = forest(16, 5, 4, 2, 1)
    x = np.random.default_rng(3).choice(np.array([-1, -0.5, 0, 0.5, 1], np.float32), (40, 4))
    x = np.nextafter(x, np.random.default_rng(4).choice([-9, 0, 9], x.shape).astype(np.float32))
    check(made, x.astype(np.float32), "sum", V4)


def test_many_columns():
    """So many that fewer rows go together."""
    check(forest(9, 4, 30000, 1, 2), rows(5, 30000), "sum", V4)


def test_leaves_alone():
    check(forest(12, 0, 1, 2, 5), rows(3, 0), "sum", V4)
