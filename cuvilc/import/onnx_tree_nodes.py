"""Trees of all of ONNX's modes as the nodes of `ai.tree_ensemble`, which know one comparison.

Thresholds become keys, integers in the order of the floats: x < t is key(x) ≤ key(t) - 1, and a
"greater" changes places with its children. A node that asks for equality becomes two. A missing
value that must go with the lower ones is asked for in the second half of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cuvilc.dialect.ops.ml import NAN_BELOW, keys_of

from .onnx_trees import Forest

_LESS, _GREATER_EQUAL, _GREATER, _EQUAL, _NOT_EQUAL = range(2, 7)  # of onnx_trees' modes
_WORDS = 4  # of a node
_INNER = -1  # as a leaf's number


@dataclass
class Nodes:
    """Operands of ai.tree_ensemble: see there. `single`: leaf number l has pair l alone."""

    nodes: np.ndarray
    roots: np.ndarray
    first_pairs: np.ndarray
    nan_below: bool
    single: bool


def pack(forest: Forest, dtype: str, features: int) -> Nodes:
    """The nodes for an x of `features` columns of float32 or float64."""
    splits = _Splits(forest, dtype, features)
    packed = _Packed(splits)
    roots = [packed.add_tree(root) for root in forest.roots]
    nodes = np.array(packed.rows, splits.keys.dtype).reshape(-1, _WORDS)
    inner = nodes[:, 3] < 0
    return Nodes(
        nodes, np.array(roots, np.int64), splits.first_pairs,
        bool(np.any(inner & (nodes[:, 1] >= max(features, 1)))), splits.single(forest.targets),
    )  # fmt: skip


class _Splits:
    """The forest's arrays; of each inner node what sends a row to `low`, the others to `high`."""

    def __init__(self, forest: Forest, dtype: str, features: int) -> None:
        mode = np.array(forest.mode, np.int64)
        true, false = np.array(forest.true_child), np.array(forest.false_child)
        limit = np.array(forest.threshold, np.float64).astype(dtype)
        unordered = np.isnan(limit)
        greater = ((mode == _GREATER) | (mode == _GREATER_EQUAL)) & ~unordered
        unequal = mode == _NOT_EQUAL
        self.leaf = mode == 0
        self.same = ((mode == _EQUAL) | unequal) & ~unordered
        swap = greater | unequal
        self.low, self.high = np.where(swap, false, true), np.where(swap, true, false)
        missing = (np.array(forest.missing, np.int64) != 0) & ~unequal
        below = missing ^ greater
        keys = keys_of(limit)
        strict = ((mode == _LESS) | (mode == _GREATER_EQUAL)) & ~unordered
        self.greatest, self.least = np.iinfo(keys.dtype).max, np.iinfo(keys.dtype).min
        # Nothing is at most a NaN, but for the missing values that are led there.
        alone = np.where(missing, self.least + NAN_BELOW, self.least)
        self.keys = np.where(unordered, alone, keys - strict).astype(keys.dtype)
        self.column = np.array(forest.feature, np.int64)
        self.below = self.column + np.where(below, features, 0)
        numbers = np.cumsum(self.leaf) - 1
        self.number = np.where(self.leaf, numbers, _INNER)
        ends = np.array([len(forest.leaf_target)], np.int64)
        self.first_pairs = np.concatenate([true[self.leaf].astype(np.int64), ends])

    def single(self, targets: int) -> bool:
        return targets == 1 and bool(np.all(np.diff(self.first_pairs) == 1))


class _Packed:
    """Grows the rows of nodes, siblings side by side."""

    def __init__(self, splits: _Splits) -> None:
        self.splits = splits
        self.rows: list[tuple[int, int, int, int]] = []

    def add_tree(self, root: int) -> int:
        """Append what is reached from a node of the forest; the place of the root."""
        first = len(self.rows)
        self.rows.append((0, 0, 0, 0))
        places: dict[int, int] = {}
        waiting = [(root, first)]
        for node, place in waiting:  # grows while it is read
            if node in places:  # a child of two nodes, as those of a set of members
                self.rows[place] = self._jump(places[node])
                continue
            places[node] = place
            if self.splits.leaf[node]:
                number = int(self.splits.number[node])
                self.rows[place] = (*self._jump(place)[:3], number)
                continue
            waiting += self._inner(node, place)
        return first * _WORDS

    def _inner(self, node: int, place: int) -> list[tuple[int, int]]:
        """Write an inner node; its children, with their places."""
        s = self.splits
        low, high, column = int(s.low[node]), int(s.high[node]), int(s.column[node])
        key, below = int(s.keys[node]), int(s.below[node])
        if not s.same[node]:
            low_place = self._pair()
            self.rows[place] = (key, below, low_place * _WORDS, _INNER)
            return [(low, low_place), (high, low_place + 1)]
        # x = t where x ≤ t and not x ≤ t - 1: there a missing value counts as high
        second = self._pair()
        self.rows[place] = (key, below, second * _WORDS, _INNER)
        low_place = self._pair()
        self.rows[second] = (key - 1, column, low_place * _WORDS, _INNER)
        return [(low, low_place + 1), (high, low_place), (high, second + 1)]

    def _pair(self) -> int:
        self.rows += [(0, 0, 0, 0)] * 2
        return len(self.rows) - 2

    def _jump(self, place: int) -> tuple[int, int, int, int]:
        """A node that leads to that place whatever x is."""
        return int(self.splits.greatest), 0, place * _WORDS, _INNER


__all__ = ["Nodes", "pack"]
