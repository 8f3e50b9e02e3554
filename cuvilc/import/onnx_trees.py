"""The attributes of TreeEnsemble operators as the arrays of `ai.tree_ensemble`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvilc.dialect.op import ShapeError

# ONNX's words for the modes of ai.tree_ensemble.
_MODES = {
    "LEAF": 0, "BRANCH_LEQ": 1, "BRANCH_LT": 2, "BRANCH_GTE": 3, "BRANCH_GT": 4, "BRANCH_EQ": 5,
    "BRANCH_NEQ": 6,
}  # fmt: skip
_LEAF = 0
Name = tuple[int, int]  # of a node: tree, number in it


@dataclass
class Forest:
    """Nodes in an order where children follow their parent; see ai.tree_ensemble for the fields."""

    feature: list[int]
    threshold: list[float]
    true_child: list[int]
    false_child: list[int]
    mode: list[int]
    missing: list[int]
    roots: list[int]
    leaf_target: list[int]
    leaf_weight: list[float]
    base: list[float]
    targets: int

    def arrays(self, dtype: str) -> list[np.ndarray]:
        """The operands after x, in order; thresholds in x's dtype."""
        ints = [
            np.array(a, np.int64)
            for a in (self.feature, self.true_child, self.false_child, self.mode)
        ]
        feature, true_child, false_child, mode = ints
        return [
            feature,
            np.array(self.threshold, np.float32).astype(dtype),
            true_child,
            false_child,
            mode,
            np.array(self.missing, np.uint8),
            np.array(self.roots, np.int64),
            np.array(self.leaf_target, np.int64),
            np.array(self.leaf_weight, np.float32),
            np.array(self.base, np.float32),
        ]


def read_forest(a: dict[str, Any], leaf: str, targets: int) -> Forest:
    """Read the attributes; `leaf` prefixes the leaves': "class" or "target". ShapeError."""
    names = [(t, i) for t, i in zip(a["nodes_treeids"], a["nodes_nodeids"], strict=True)]
    places = {name: k for k, name in enumerate(names)}
    if len(places) != len(names):
        raise ShapeError("two nodes of a tree have the same number")
    base = list(a.get("base_values") or ()) or [0.0] * targets
    if len(base) != targets:
        base = base[-1:] * targets
    weights = _leaf_weights(a, leaf, targets)
    forest = Forest([], [], [], [], [], [], [], [], [], base, targets)
    missing = a.get("nodes_missing_value_tracks_true") or (0,) * len(names)
    children = {child for k, name in enumerate(names) for child in _children(a, k, name)}
    for name in names:
        if name not in children:
            forest.roots.append(len(forest.mode))
            _add_tree(forest, a, places, missing, weights, name)
    if not forest.roots:
        raise ShapeError("the trees have no root: their nodes form a circle")
    return forest


def _leaf_weights(
    a: dict[str, Any], leaf: str, targets: int
) -> dict[Name, list[tuple[int, float]]]:
    found: dict[Name, list[tuple[int, float]]] = {}
    rows = zip(*(a[f"{leaf}_{k}"] for k in ("treeids", "nodeids", "ids", "weights")), strict=True)
    for tree, node, target, weight in rows:
        found.setdefault((tree, node), []).append((0 if targets == 1 else target, weight))
    return found


def _add_tree(
    forest: Forest, a: dict[str, Any], places: dict[Name, int], missing: Any,
    weights: dict[Name, list[tuple[int, float]]], root: Name,
) -> None:  # fmt: skip
    """Append a tree's nodes, parents first. ShapeError for a node that is missing or met twice."""
    order = _parents_first(a, places, root)
    numbers = {name: len(forest.mode) + i for i, name in enumerate(order)}
    for name in order:
        k = places[name]
        mode = _MODES[a["nodes_modes"][k]]
        if mode == _LEAF:
            pairs = weights.get(name, [])
            yes = len(forest.leaf_target)
            forest.leaf_target += [t for t, _ in pairs]
            forest.leaf_weight += [w for _, w in pairs]
            no = len(forest.leaf_target)
        else:
            yes, no = (numbers[child] for child in _children(a, k, name))
        forest.mode.append(mode)
        forest.feature.append(a["nodes_featureids"][k])
        forest.threshold.append(a["nodes_values"][k])
        forest.missing.append(missing[k])
        forest.true_child.append(yes)
        forest.false_child.append(no)


def _parents_first(a: dict[str, Any], places: dict[Name, int], root: Name) -> list[Name]:
    order, seen = [root], {root}
    for name in order:  # grows while it is read
        k = _place(places, name)
        for child in _children(a, k, name):
            if child in seen:
                raise ShapeError(f"node {child[1]} of tree {child[0]} has two parents")
            seen.add(child)
            order.append(child)
    return order


def _children(a: dict[str, Any], k: int, name: Name) -> tuple[Name, ...]:
    """(where true, where false) of node number k; none of a leaf."""
    if a["nodes_modes"][k] == "LEAF":
        return ()
    return (name[0], a["nodes_truenodeids"][k]), (name[0], a["nodes_falsenodeids"][k])


def _place(places: dict[Name, int], name: Name) -> int:
    if name not in places:
        raise ShapeError(f"tree {name[0]} refers to node {name[1]}, which it does not have")
    return places[name]
