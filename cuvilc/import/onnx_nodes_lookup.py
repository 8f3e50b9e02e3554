"""Tables of numbers: LabelEncoder, and TfIdfVectorizer of integers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError

from . import onnx_values as V
from ._table import importer, only
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar, shape_of
from .onnx_nodes_ml import ML
from .onnx_nodes_slice import concat_values, sliced

_STRINGS = "strings are not supported: map them to numbers before the model"
_MOST_WALKS, _MOST_COLUMNS = 1024, 1 << 24
_DTYPES = {"floats": np.float32, "int64s": np.int64}


def look_up(n: Node, x: ir.Value, keys: np.ndarray, values: np.ndarray, other: Any) -> ir.Value:
    """values[j] where x is keys[j], the last of equal keys; `other` where it is none."""
    last = dict(zip(keys.tolist(), range(len(keys)), strict=True))  # each NaN is a key of its own
    nan = [j for key, j in last.items() if key != key]
    order = sorted((key, j) for key, j in last.items() if key == key)
    default = np.array(other, values.dtype)
    if order:
        table, places = (np.array(column) for column in zip(*order, strict=True))
        y = ai(
            "lookup", x, n.constant(table.astype(keys.dtype)), n.constant(values[places]),
            n.constant(default),
        )  # fmt: skip
    else:
        y = ai("broadcast_to", n.constant(default), shape=shape_of(x))
    return ai("where", ai("is_nan", x), n.constant(values[nan[-1]]), y) if nan else y


def _no_strings(attributes: dict[str, Any]) -> str | None:
    listed = ("keys_strings", "values_strings", "classes_strings", "cats_strings", "pool_strings")
    return _STRINGS if any(attributes.get(name) for name in listed) else None


@importer("LabelEncoder", domain=ML, refuse=_no_strings)
def label_encoder(n: Node) -> ir.Value:
    keys, values = _column(n, "keys"), _column(n, "values")
    if len(keys) != len(values):
        raise ShapeError(f"{len(keys)} keys for {len(values)} values")
    default = n.attr("default_tensor")
    if default is None:
        whole = values.dtype.kind == "i"
        default = n.attr("default_int64", -1) if whole else n.attr("default_float", -0.0)
    x = n[0]
    if dtype_of(x) != keys.dtype.name:
        raise ShapeError(f"the keys are {keys.dtype.name}, the input is {dtype_of(x)}")
    if n.opset < 4:  # NaN is no key
        found = keys == keys
        keys, values = keys[found], values[found]
    return look_up(n, x, keys, values, np.asarray(default).reshape(()))


def _column(n: Node, what: str) -> np.ndarray:
    """The `keys` or `values` of the table, from whichever attribute holds them."""
    tensor = n.attr(f"{what}_tensor")
    if tensor is not None:
        return np.asarray(tensor).reshape(-1)
    for kind, dtype in _DTYPES.items():
        if (found := n.attr(f"{what}_{kind}")) is not None:
            return np.array(found, dtype)
    raise ShapeError(f"the {what} are missing")


def _refuse_grams(attributes: dict[str, Any]) -> str | None:
    return _no_strings(attributes) or only(mode=("TF", "IDF", "TFIDF"))(attributes)


@importer("TfIdfVectorizer", refuse=_refuse_grams)
def tf_idf_vectorizer(n: Node) -> ir.Value:
    """Counts of n-grams: every window walks a trie of the pool, a table of (state, word) to state.

    weights[j] is that of n-gram j, as the specification and onnxruntime have it; onnx's reference
    takes it for that of column j.
    """
    grams = _Grams(n)
    x = cast(n[0], "int64")
    rank = len(shape_of(x))
    if rank > 2:
        raise ShapeError(f"the input must be [C] or [N, C], not {shape_of(x)}")
    x = x if rank == 2 else reshape(x, (1, D.product(shape_of(x))))
    rows, columns = shape_of(x)[0], grams.columns
    hits = grams.hits(x)
    zeros = ir.full(0.0, (rows, columns + 1), "float32")
    if hits is None:
        counts = zeros
    else:
        ones = ir.full(1.0, shape_of(hits), "float32")
        counts = ai("scatter_elements", zeros, hits, ones, axis=1, reduction="add")
    counts = sliced(counts, (0, 0), (rows, columns))
    y = _weighed(n, grams, counts)
    return y if rank == 2 else reshape(y, (columns,))


def _weighed(n: Node, grams: _Grams, counts: ir.Value) -> ir.Value:
    mode, weights = n.attr("mode"), n.attr("weights")
    if mode == "TF":
        return counts
    if mode == "IDF":
        counts = cast(ai("greater", counts, scalar(0.0, counts)), "float32")
    if not weights:
        return counts
    if len(weights) != len(grams.indexes):
        raise ShapeError(f"{len(weights)} weights for {len(grams.indexes)} n-grams")
    row = np.zeros(grams.columns, np.float32)
    row[list(grams.indexes)] = weights
    if (row[list(grams.indexes)] != np.array(weights, np.float32)).any():
        raise ShapeError("two n-grams of one column have different weights")
    return ai("elemwise_mul", counts, n.constant(row))


class _Grams:
    """The pool as a trie. State 0 is the root, the last one has no way out."""

    def __init__(self, n: Node) -> None:
        self.n = n
        self.least, self.most = n.attr("min_gram_length"), n.attr("max_gram_length")
        self.skips = n.attr("max_skip_count")
        if not 1 <= self.least <= self.most or self.skips < 0:
            raise ShapeError(f"n-grams of {self.least} to {self.most}, {self.skips} skips")
        self.indexes = tuple(n.attr("ngram_indexes"))
        if not self.indexes or min(self.indexes) < 0:
            raise ShapeError("ngram_indexes names no column")
        self.columns = max(self.indexes) + 1
        if (self.skips + 1) * self.most > _MOST_WALKS or self.columns > _MOST_COLUMNS:
            raise ShapeError(f"{self.columns} columns, {self.skips} skips of {self.most} words")
        self.ways: dict[tuple[int, int], int] = {}  # (state, word) -> state
        self.column_of: dict[int, int] = {}  # state -> column
        pool = [int(v) for v in n.attr("pool_int64s")]
        self._read(pool, [*n.attr("ngram_counts"), len(pool)])
        self.words = np.array(sorted({word for _, word in self.ways}), np.int64)
        self.number = {int(word): j for j, word in enumerate(self.words)}

    def _read(self, pool: list[int], starts: list[int]) -> None:
        gram = 0
        for size, (start, end) in enumerate(pairwise(starts), 1):
            for at in range(start, end - size + 1, size):
                if self.least <= size <= self.most:
                    self._add(pool[at : at + size], self.indexes[gram])
                gram += 1

    def _add(self, words: list[int], column: int) -> None:
        state = 0
        for word in words:
            state = self.ways.setdefault((state, word), len(self.ways) + 1)
        self.column_of[state] = column

    def hits(self, x: ir.Value) -> ir.Value | None:
        """The columns [N, windows] of the n-grams that x holds; `columns` where there is none."""
        if not self.ways:
            return None
        words = look_up(self.n, x, self.words, np.arange(len(self.words)), len(self.words))
        found: list[ir.Value] = []
        for distance in range(1, self.skips + 2):
            found += self._walk(words, distance, first=distance == 1)
        return concat_values(found, 1) if found else None

    def _walk(self, words: ir.Value, distance: int, first: bool) -> list[ir.Value]:
        """Of n-grams whose words are `distance` apart; single words count at the first alone."""
        rows, length = shape_of(words)
        state: ir.Value | None = None
        found = []
        for size in range(1, self.most + 1):
            reach = distance * (size - 1)
            sizes = (rows, V.maximum(length - reach, 0))
            word = sliced(words, (0, V.minimum(reach, length)), sizes)
            if state is not None:
                state = sliced(state, (0, 0), sizes)
            state = self._step(state, word)
            if size >= self.least and (first or size > 1):
                found.append(ai("gather", self.n.constant(self._columns()), state, axis=0))
        return found

    def _step(self, state: ir.Value | None, word: ir.Value) -> ir.Value:
        base = len(self.words) + 1
        keys = np.array([s * base + self.number[w] for s, w in self.ways], np.int64)
        values = np.array(list(self.ways.values()), np.int64)
        if state is not None:
            word = ai("elemwise_add", ai("elemwise_mul", state, scalar(base, state)), word)
        return look_up(self.n, word, keys, values, len(self.ways) + 1)

    def _columns(self) -> np.ndarray:
        table = np.full(len(self.ways) + 2, self.columns, np.int64)
        for state, column in self.column_of.items():
            table[state] = column
        return table
