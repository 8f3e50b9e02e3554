"""Tree ensembles: several walks go side by side, so that their memory latencies overlap.

A task is a block of rows, whose numbers become keys first: a step compares integers. All rows pass
through one block of trees before the next, whose nodes then stay in the first cache level; of few
trees rows walk side by side. Sums wait in scratch. Node numbers and columns are trusted: they are
the model's constants.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv
from cuvilc.dialect.ops.ml import KEY_TYPES, NAN_BELOW
from cuvilc.dialect.types import item_bytes
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import compute_dtype
from cuvilc.targets.region import Emitter, Region, Scheduled
from cuvilc.targets.schedules.microkernel import opaque
from cuvilc.targets.schedules.reduction_fold import combine, identity
from cuvilc.targets.schedules.special_common import argument, lone
from cuvilc.targets.tir import Variable, as_expr, const

_ROWS, _MANY_ROWS = 16, 64  # many when the ensemble is too large for the second cache level
_KEY_BYTES = 1 << 16  # of a block of rows at most, or it has fewer
_WALKS = 8  # side by side: enough to hide the latency of a step, few enough for registers
_FEW_TREES = 4
# A step of a walk takes about 0.9 ns [measured], as long as so many FLOPs in vectors; levels where
# only the run can tell.
_STEP_FLOPS, _LEVELS = 64, 8
_NAMES = ("x", "nodes", "roots", "first_pairs", "leaf_target", "leaf_weight", "base")
_COLUMN, _CHILD, _LEAF = 1, 2, 3  # in a node


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes one tree_ensemble alone."""
    anchor = lone(region, "ai.tree_ensemble")
    places = [argument(region, v) for v in anchor.operands]
    ensemble = _Ensemble(Emitter(region, name), anchor, places, chip)
    rows = ensemble.types["x"].shape[0]
    with ensemble.b.tasks() as t:
        ensemble.block(t * ensemble.together)
    trees, nodes = ensemble.types["roots"].shape[0], ensemble.types["nodes"].shape[0]
    levels = _LEVELS
    if isinstance(trees, int) and isinstance(nodes, int):
        levels = (nodes // trees).bit_length()
    tasks = ceildiv(rows, ensemble.together)
    return ensemble.emitter.finish("tree", tasks, rows * trees * levels * _STEP_FLOPS)


def _rows_together(nodes: Dim, node_bytes: int, keys: Dim, chip: Chip) -> int:
    """Rows of a task."""
    large = isinstance(nodes, int) and nodes * node_bytes > chip.l2_bytes
    rows = _MANY_ROWS if large else _ROWS
    most = _KEY_BYTES // max(keys * node_bytes // 4, 1) if isinstance(keys, int) else rows
    return max(min(rows, most), 1)


class _Ensemble:
    """The arrays of an ensemble and a block of rows."""

    def __init__(self, emitter: Emitter, anchor: Any, places: list[int], chip: Chip) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        attrs = ir.attrs(anchor)
        self.aggregate, self.targets = attrs["aggregate"], int(attrs["targets"])
        self.nan_below, self.single = bool(attrs["nan_below"]), bool(attrs["single"])
        self.types = {n: ir.type_of(v) for n, v in zip(_NAMES, anchor.operands, strict=True)}
        self.buffers = {
            n: self.b.buffer(place, self.types[n].dtype)
            for n, place in zip(_NAMES, places, strict=True)
        }
        rows, features = self.types["x"].shape
        keys = features * (1 + self.nan_below)
        self.key_type = KEY_TYPES[self.types["x"].dtype]
        node_bytes = 4 * item_bytes(self.key_type)
        self.together = _rows_together(self.types["nodes"].shape[0], node_bytes, keys, chip)
        self.rows, self.features = (as_expr(self.b.scalar(d)) for d in (rows, features))
        self.stride = as_expr(self.b.scalar(keys))
        trees = self.types["roots"].shape[0]
        self.few = isinstance(trees, int) and trees <= _FEW_TREES
        self.trees = as_expr(self.b.scalar(trees))
        self.dtype = compute_dtype(self.types["base"].dtype)
        self.extreme = self.aggregate in ("min", "max") and not self.single
        self.how = self.aggregate if self.aggregate in ("min", "max") else "sum"
        self.keys = self.b.scratch(self.together * keys + 1, self.key_type)
        self.totals = self.b.scratch(self.together * self.targets, self.dtype)
        self.reached: Any = None
        if self.extreme:
            self.reached = self.b.scratch(self.together * self.targets, "int8")

    def _at(self, name: str, index: Any) -> Any:
        return self.k.load(self.buffers[name], index, self.types[name].dtype)

    def block(self, first: Any) -> None:
        """Rows from `first` on."""
        b = self.b
        count = b.let(tirx.min(self.rows - first, const(self.together)))
        with b.loop(count) as row:
            self._make_keys(b.let((first + row) * self.features), b.let(row * self.stride))
        with b.loop(self.together * self.targets) as i:
            b.store(self.totals, i, identity(self.dtype, self.how))
            if self.reached is not None:
                b.store(self.reached, i, const(0, "int8"))
        if self.few:
            self._rows_side_by_side(count)
        else:
            self._trees_side_by_side(count)
        with b.loop(count) as row, b.loop(self.targets) as target:
            self._finish(first, row, target)

    def _make_keys(self, x: Any, keys: Any) -> None:
        """The keys of a row (see keys_of), and where trees ask for them those with NaN below."""
        b, integer = self.b, self.key_type
        bits = 8 * item_bytes(integer)
        most = (1 << (bits - 1)) - 1
        with b.loop(self.features) as column:
            value = b.let(self._at("x", x + column))
            raw = b.let(tirx.reinterpret(integer, value))
            sign = b.let(raw >> const(bits - 1, integer))
            key = b.let(((raw & const(most, integer)) ^ sign) - sign)
            unordered = b.let(self.k.isnan(value))
            above = tirx.Select(unordered, const(most, integer), key)
            b.store(self.keys, keys + column, above)
            if self.nan_below:
                below = tirx.Select(unordered, const(NAN_BELOW - most - 1, integer), key)
                b.store(self.keys, keys + self.features + column, below)

    def _trees_side_by_side(self, count: Any) -> None:
        b = self.b
        blocks = b.let(tirx.floordiv(self.trees + (_WALKS - 1), const(_WALKS)))
        last = self.trees - 1
        with b.loop(blocks) as block, b.loop(count) as row:
            roots = [
                b.let(self._at("roots", tirx.min(block * _WALKS + j, last))) for j in range(_WALKS)
            ]
            leaves = self._walk([b.let(row * self.stride)] * _WALKS, roots)
            together = b.let(tirx.min(self.trees - block * _WALKS, const(_WALKS)))
            with b.loop(together) as j:
                self._collect(row, b.let(b.load(leaves, j)))

    def _rows_side_by_side(self, count: Any) -> None:
        b = self.b
        blocks = b.let(tirx.floordiv(count + (_WALKS - 1), const(_WALKS)))
        with b.loop(self.trees) as tree, b.loop(blocks) as block:
            root = b.let(self._at("roots", tree))
            rows = [b.let(tirx.min(block * _WALKS + j, count - 1)) for j in range(_WALKS)]
            leaves = self._walk([b.let(row * self.stride) for row in rows], [root] * _WALKS)
            together = b.let(tirx.min(count - block * _WALKS, const(_WALKS)))
            with b.loop(together) as j:
                self._collect(b.let(block * _WALKS + j), b.let(b.load(leaves, j)))

    def _walk(self, keys: list[Any], roots: list[Any]) -> Any:
        """The numbers of the leaves that walks reach over rows at places in `keys`."""
        b = self.b
        nodes = b.local(_WALKS, "int64")
        for j in range(_WALKS):
            b.store(nodes, j, roots[j])
        inner = b.variable(const(-1, self.key_type))  # negative while a walk is at no leaf
        with b.repeat(inner.get() < const(0, self.key_type)):
            inner.set(const(0, self.key_type))
            for j in range(_WALKS):
                self._step(keys[j], nodes, j, inner)
        for j in range(_WALKS):
            leaf = b.let(self._word(b.load(nodes, j), _LEAF))
            b.store(nodes, j, tirx.Cast("int64", leaf))
        return nodes

    def _word(self, node: Any, word: int) -> Any:
        return self._at("nodes", node + word)

    def _step(self, keys: Any, nodes: Any, j: int, inner: Variable) -> None:
        """Walk j goes to a child; at a leaf it stays.

        A branch would be mispredicted. What is opaque LLVM makes no vectors of over the walks,
        whose loads would be slow gathers.
        """
        b = self.b
        node = opaque(b, b.load(nodes, j))
        column = b.let(tirx.Cast("int64", self._word(node, _COLUMN)))
        above = b.load(self.keys, keys + column) > self._word(node, 0)
        step = opaque(b, tirx.Cast("int64", above))
        child = b.let(tirx.Cast("int64", self._word(node, _CHILD)) + step * 4)
        b.store(nodes, j, child)
        inner.set(inner.get() | self._word(child, _LEAF))

    def _collect(self, row: Any, leaf: Any) -> None:
        """Fold the pairs of a leaf into a row's totals."""
        b = self.b
        if self.single:
            self._fold(row, leaf)
            return
        start = b.let(self._at("first_pairs", leaf))
        with b.loop(b.let(self._at("first_pairs", leaf + 1) - start)) as n:
            self._fold(b.let(row * self.targets + self._at("leaf_target", start + n)), start + n)

    def _fold(self, place: Any, pair: Any) -> None:
        b = self.b
        weight = self._at("leaf_weight", pair)
        total = combine(self.k, self.how, b.load(self.totals, place), weight)
        b.store(self.totals, place, total)
        if self.reached is not None:
            b.store(self.reached, place, const(1, "int8"))

    def _finish(self, first: Any, row: Any, target: Any) -> None:
        b = self.b
        place = b.let(row * self.targets + target)
        total = b.let(b.load(self.totals, place))
        if self.reached is not None:
            met = tirx.EQ(b.load(self.reached, place), const(1, "int8"))
            total = tirx.Select(met, total, const(0.0, self.dtype))
        if self.aggregate == "average":
            total = total / self.k.value_of_index(self.trees, self.dtype)
        self.emitter.store(0, (first + row, target), total + self._at("base", target))
