"""The attributes of TreeEnsemble operators as arrays; onnx_tree_nodes.py makes nodes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from cuvilc.dialect.op import ShapeError

# ONNX's words for what a node is: a leaf, or how x compares with the threshold to go to the true
# child.
_MODES = {
    "LEAF": 0, "BRANCH_LEQ": 1, "BRANCH_LT": 2, "BRANCH_GTE": 3, "BRANCH_GT": 4, "BRANCH_EQ": 5,
    "BRANCH_NEQ": 6,
}  # fmt: skip
_LEAF = 0
_MEMBER = 6  # of a set, in the numbers of ai.onnx.ml 5, where no node is a leaf
Name = tuple[int, int]  # of a node: tree, number in it


@dataclass
class Forest:
    """Nodes in an order where children follow their parent.

    A NaN leads to the true child where `missing` is not 0. A leaf gives the pairs of leaf_target
    and leaf_weight from number true_child up to, not with, false_child; leaf after leaf.
    """

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

    def features(self) -> int:
        """How many columns x needs. ShapeError for a column or a target that cannot be."""
        if min(self.feature) < 0:
            raise ShapeError(f"a node asks for feature {min(self.feature)}")
        outside = [t for t in self.leaf_target if not 0 <= t < self.targets]
        if outside:
            raise ShapeError(f"a leaf is of target {outside[0]} of {self.targets}")
        return max(self.feature) + 1

    def rounded(self, numbers: str) -> Forest:
        """With thresholds in the dtype that the model has them in."""
        exact = np.array(self.threshold, np.float64)
        return replace(self, threshold=exact.astype(numbers).tolist())

    def pairs(self, numbers: str) -> tuple[np.ndarray, ...]:
        """Targets and weights of the leaves' pairs, and the base, in the model's dtype."""
        return (
            np.array(self.leaf_target, np.int64),
            np.array(self.leaf_weight, numbers),
            np.array(self.base, numbers),
        )


def float_lists(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes with what is given as a tensor of doubles under its older name."""
    ending = "_as_tensor"
    tensors = {k.removesuffix(ending): v for k, v in attributes.items() if k.endswith(ending)}
    return attributes | {k: tuple(v.reshape(-1).tolist()) for k, v in tensors.items()}


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
        feature, threshold = a["nodes_featureids"][k], a["nodes_values"][k]
        _append(forest, mode, feature, threshold, missing[k], yes, no)


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


class _Splits:
    """The attributes of the TreeEnsemble of ai.onnx.ml 5, where leaves are apart from nodes."""

    def __init__(self, a: dict[str, Any]) -> None:
        self.a = a
        self.modes = [int(m) for m in np.asarray(a["nodes_modes"]).reshape(-1)]
        self.splits = np.asarray(a["nodes_splits"]).reshape(-1).tolist()
        self.weights = np.asarray(a["leaf_weights"]).reshape(-1).tolist()
        self.missing = a.get("nodes_missing_value_tracks_true") or (0,) * len(self.modes)
        values = np.asarray(a.get("membership_values", ())).reshape(-1).tolist()
        self.members: dict[int, list[float]] = {}
        rest = iter(values)
        for node, mode in enumerate(self.modes):
            if mode == _MEMBER:  # its values end with a NaN
                self.members[node] = list(takewhile(lambda v: v == v, rest))

    def thresholds(self, node: int) -> list[float]:
        """What a node compares with: a set of members is a chain of nodes that ask for each."""
        if self.modes[node] != _MEMBER:
            return [self.splits[node]]
        return self.members[node] or [float("nan")]  # which equals nothing

    def children(self, node: int) -> list[tuple[bool, int]]:
        """(whether it is a leaf, number) of the true and the false child."""
        return [
            (bool(self.a[f"nodes_{way}leafs"][node]), int(self.a[f"nodes_{way}nodeids"][node]))
            for way in ("true", "false")
        ]


def read_ensemble(a: dict[str, Any], targets: int) -> Forest:
    """The same arrays from the TreeEnsemble of ai.onnx.ml 5. ShapeError."""
    found = _Splits(a)
    forest = Forest([], [], [], [], [], [], [], [], [], [0.0] * targets, targets)
    seen: set[int] = set()
    for root in a["tree_roots"]:
        forest.roots.append(len(forest.mode))
        _add_splits(forest, found, int(root), seen)
    return forest


def _add_splits(forest: Forest, found: _Splits, root: int, seen: set[int]) -> None:
    """Append a tree's nodes, parents first; every reference to a leaf gets one of its own."""
    order: list[tuple[bool, int]] = [(False, root)]
    starts: list[int] = []
    links: list[tuple[int, int]] = []  # of each entry the places of its children in `order`
    at = len(forest.mode)
    for leaf, number in order:  # grows while it is read
        starts.append(at)
        links.append((len(order), len(order) + 1))
        if leaf:
            at += 1
            continue
        if number in seen or not 0 <= number < len(found.modes):
            raise ShapeError(f"node {number} has two parents, or does not exist")
        seen.add(number)
        at += len(found.thresholds(number))
        order += found.children(number)
    for (leaf, number), (yes, no) in zip(order, links, strict=True):
        if leaf:
            _add_leaf(forest, found, number)
        else:
            _add_chain(forest, found, number, starts[yes], starts[no])


def _add_leaf(forest: Forest, found: _Splits, number: int) -> None:
    pair = len(forest.leaf_target)
    if not 0 <= number < len(found.weights):
        raise ShapeError(f"leaf {number} does not exist")
    forest.leaf_target.append(int(found.a["leaf_targetids"][number]))
    forest.leaf_weight.append(found.weights[number])
    _append(forest, _LEAF, 0, 0.0, 0, pair, pair + 1)


def _add_chain(forest: Forest, found: _Splits, number: int, yes: int, no: int) -> None:
    values, mode = found.thresholds(number), found.modes[number]
    mode = _MODES["BRANCH_EQ"] if mode == _MEMBER else mode + 1
    if not _LEAF < mode < len(_MODES):
        raise ShapeError(f"node {number} has mode {found.modes[number]}")
    feature, missing = int(found.a["nodes_featureids"][number]), int(found.missing[number])
    for n, value in enumerate(values):
        after = no if n == len(values) - 1 else len(forest.mode) + 1
        _append(forest, mode, feature, value, missing, yes, after)


def _append(
    forest: Forest, mode: int, feature: int, threshold: float, missing: int, yes: int, no: int
) -> None:
    forest.mode.append(mode)
    forest.feature.append(feature)
    forest.threshold.append(threshold)
    forest.missing.append(missing)
    forest.true_child.append(yes)
    forest.false_child.append(no)
