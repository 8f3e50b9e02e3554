"""Tree ensembles: every sample, and random forests of every mode, missing values, row counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect.types import TensorType, numpy_dtype
from cuvilc.targets.schedules import tree
from tests.dialect.ops.one_op import build
from tests.targets.kernel_harness import V3, V4, compare, tensor
from tests.targets.samples import check_sample, on_chips, on_samples


@on_chips
@on_samples(lambda o: o.name == "ai.tree_ensemble")
def test_samples(name, case, chip):
    check_sample(name, case, chip, tree.schedule)


def forest(trees: int, depth: int, features: int, targets: int, seed: int = 0) -> dict[str, Any]:
    """Random trees of all modes, some branches ending early; operands after x."""
    rng = np.random.default_rng(seed)
    nodes: list[list[Any]] = []  # feature, threshold, true child, false child, mode, missing
    pairs: list[tuple[int, float]] = []

    def grow(left: int) -> int:
        n = len(nodes)
        nodes.append([0, 0.0, 0, 0, 0, 0])
        if left == 0 or rng.random() < 0.15:
            count = int(rng.integers(0, 3))
            nodes[n][2:4] = len(pairs), len(pairs) + count
            pairs.extend((int(rng.integers(targets)), float(rng.normal())) for _ in range(count))
            return n
        threshold = float(rng.integers(-2, 3)) / 2
        mode, missing = int(rng.integers(1, 7)), int(rng.integers(2))
        nodes[n] = [int(rng.integers(features)), threshold, 0, 0, mode, missing]
        nodes[n][2] = grow(left - 1)
        nodes[n][3] = grow(left - 1)
        return n

    roots = [grow(depth) for _ in range(trees)]
    feature, threshold, yes, no, mode, missing = (list(c) for c in zip(*nodes, strict=True))
    target, weight = zip(*pairs, strict=True)
    return {
        "feature": np.array(feature), "threshold": np.array(threshold, np.float32),
        "true": np.array(yes), "false": np.array(no), "mode": np.array(mode),
        "missing": np.array(missing, np.uint8), "roots": np.array(roots),
        "target": np.array(target), "weight": np.array(weight, np.float32),
        "base": rng.normal(size=targets).astype(np.float32),
    }  # fmt: skip


def ensemble(operands: dict[str, np.ndarray], aggregate: str, dtype: str = "float32") -> Any:
    """The program of [n, f] rows, and its operands after x."""
    arrays = list(operands.values())
    types = [tensor("n,f", dtype)]
    for a in arrays:
        name = dtype if a.dtype == np.float32 else a.dtype.name
        types.append(TensorType(a.shape, name))
    attrs = {"aggregate": aggregate, "targets": len(operands["base"])}
    given = [a.astype(numpy_dtype(t.dtype)) for a, t in zip(arrays, types[1:], strict=True)]
    return build("ai.tree_ensemble", types, attrs), given


def _rows(count: int, features: int) -> np.ndarray:
    rng = np.random.default_rng(count)
    x = rng.integers(-3, 4, (count, features)).astype(np.float32) / 2
    x[rng.random(x.shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("aggregate", ["sum", "average", "min", "max"])
@pytest.mark.parametrize("trees", [1, 8, 21])
@on_chips
def test_forests(aggregate, trees, chip):
    program, operands = ensemble(forest(trees, 5, 7, 3, trees), aggregate)
    for count in (0, 1, 37):
        feeds = {f"x{n}": a for n, a in enumerate([_rows(count, 7), *operands])}
        compare(program, feeds, chip, tree.schedule)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dtypes(dtype):
    program, operands = ensemble(forest(5, 4, 6, 2), "sum", dtype)
    x = _rows(19, 6).astype(dtype)
    feeds = {f"x{n}": a for n, a in enumerate([x, *operands])}
    compare(program, feeds, V3, tree.schedule)


def test_leaves_alone():
    program, operands = ensemble(forest(12, 0, 1, 2, 5), "sum")
    feeds = {f"x{n}": a for n, a in enumerate([_rows(3, 0), *operands])}
    compare(program, feeds, V4, tree.schedule)
