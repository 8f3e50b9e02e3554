"""Tree ensembles: several trees are walked side by side, so that their memory latencies overlap.

A task is a block of rows. All of them pass through one block of trees before the next, whose nodes
then stay in the first cache level. Sums wait in scratch. Node numbers and features are trusted:
they are the model's constants.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import ceildiv
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import compute_dtype
from cuvilc.targets.region import Emitter, Region, Scheduled
from cuvilc.targets.schedules.microkernel import opaque
from cuvilc.targets.schedules.reduction_fold import combine, identity
from cuvilc.targets.schedules.special_common import argument, lone
from cuvilc.targets.tir import as_expr, const

_ROWS, _MANY_ROWS = 16, 64  # many when the ensemble is too large for the second cache level
_NODE_BYTES = 37
_TREES = 8  # walks side by side: enough to hide the latency of a step, few enough for registers
_DEPTH = 8  # levels of a tree, for the estimate of work alone
# For each mode a hexadecimal digit: what outcomes lead to the true child. Bits: <, =, >, unordered.
_FOLLOW = 0xD246130
_UNORDERED = 3
_NAMES = (
    "x", "feature", "threshold", "true_child", "false_child", "mode", "missing", "roots",
    "leaf_target", "leaf_weight", "base",
)  # fmt: skip


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes one tree_ensemble alone."""
    anchor = lone(region, "ai.tree_ensemble")
    places = [argument(region, v) for v in anchor.operands]
    nodes = ir.type_of(anchor.operands[1]).shape[0]
    large = isinstance(nodes, int) and nodes * _NODE_BYTES > chip.l2_bytes
    together = _MANY_ROWS if large else _ROWS
    ensemble = _Ensemble(Emitter(region, name), anchor, places, together)
    rows = ensemble.types["x"].shape[0]
    with ensemble.b.tasks() as t:
        ensemble.block(t * together)
    trees = ensemble.types["roots"].shape[0]
    return ensemble.emitter.finish("tree", ceildiv(rows, together), rows * trees * _DEPTH)


def _mask(value: Any) -> Any:
    """All ones where a number ≥ 0 is positive, else 0."""
    return (const(0) - value) >> const(63)


class _Ensemble:
    """The arrays of an ensemble and a block of rows."""

    def __init__(self, emitter: Emitter, anchor: Any, places: list[int], together: int) -> None:
        self.together = together
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        attrs = ir.attrs(anchor)
        self.aggregate, self.targets = attrs["aggregate"], int(attrs["targets"])
        self.types = {n: ir.type_of(v) for n, v in zip(_NAMES, anchor.operands, strict=True)}
        self.buffers = {
            n: self.b.buffer(place, self.types[n].dtype)
            for n, place in zip(_NAMES, places, strict=True)
        }
        self.rows, self.features = (as_expr(self.b.scalar(d)) for d in self.types["x"].shape)
        self.trees = as_expr(self.b.scalar(self.types["roots"].shape[0]))
        self.dtype = compute_dtype(self.types["base"].dtype)
        self.extreme = self.aggregate in ("min", "max")
        self.how = self.aggregate if self.extreme else "sum"
        self.totals = self.b.scratch(together * self.targets, self.dtype)
        self.reached = self.b.scratch(together * self.targets, "int8") if self.extreme else None

    def _at(self, name: str, index: Any) -> Any:
        return self.k.load(self.buffers[name], index, self.types[name].dtype)

    def block(self, first: Any) -> None:
        """Rows from `first` on."""
        b = self.b
        count = b.let(tirx.min(self.rows - first, const(self.together)))
        with b.loop(self.together * self.targets) as i:
            b.store(self.totals, i, identity(self.dtype, self.how))
            if self.reached is not None:
                b.store(self.reached, i, const(0, "int8"))
        blocks = b.let(tirx.floordiv(self.trees + (_TREES - 1), const(_TREES)))
        with b.loop(blocks) as block, b.loop(count) as row:
            leaves = self._walk(b.let((first + row) * self.features), block * _TREES)
            together = b.let(tirx.min(self.trees - block * _TREES, const(_TREES)))
            with b.loop(together) as j:
                self._collect(b.let(row * self.targets), b.let(b.load(leaves, j)))
        with b.loop(count) as row, b.loop(self.targets) as target:
            self._finish(first, row, target)

    def _walk(self, row: Any, first_tree: Any) -> Any:
        """The leaves that a row (offset in x) reaches; for trees past the last, that one again."""
        b = self.b
        nodes, modes = b.local(_TREES, "int64"), b.local(_TREES, "int64")
        busy: Any = b.variable(const(0))
        for j in range(_TREES):
            node = self._at("roots", b.let(tirx.min(first_tree + j, self.trees - 1)))
            b.store(nodes, j, node)
            b.store(modes, j, self._at("mode", b.load(nodes, j)))
            busy.set(busy.get() | b.load(modes, j))
        with b.repeat(busy.get() > const(0)):
            busy.set(const(0))
            for j in range(_TREES):
                self._step(row, nodes, modes, j)
                busy.set(busy.get() | b.load(modes, j))
        return nodes

    def _step(self, row: Any, nodes: Any, modes: Any, j: int) -> None:
        """Walk j goes to a child; at a leaf it stays.

        All by masks: branches would be mispredicted. What is opaque LLVM makes neither branches
        of, nor vectors over the walks, whose loads would be slow gathers.
        """
        b = self.b
        node, mode = opaque(b, b.load(nodes, j)), b.let(b.load(modes, j))
        inner = b.let(_mask(mode))
        feature = self._at("feature", node) & inner
        value: Any = b.let(self._at("x", row + feature))
        threshold: Any = b.let(self._at("threshold", node))
        less, equal, greater = (
            tirx.Cast("int64", c)
            for c in (value < threshold, tirx.EQ(value, threshold), value > threshold)
        )
        outcome = const(_UNORDERED) - less * 3 - equal * 2 - greater
        missing = _mask(tirx.Cast("int64", self._at("missing", node))) & const(1 << _UNORDERED)
        follow = ((const(_FOLLOW) >> (mode * 4)) | missing) >> b.let(outcome)
        false, true = b.let(self._at("false_child", node)), self._at("true_child", node)
        child = false ^ ((false ^ true) & (const(0) - opaque(b, follow & const(1))))
        b.store(nodes, j, opaque(b, node ^ ((node ^ child) & inner)))
        b.store(modes, j, self._at("mode", b.load(nodes, j)))

    def _collect(self, totals: Any, leaf: Any) -> None:
        """Fold the pairs of a leaf into a row's totals."""
        b = self.b
        start = b.let(self._at("true_child", leaf))
        with b.loop(b.let(self._at("false_child", leaf) - start)) as n:
            place = b.let(totals + self._at("leaf_target", start + n))
            weight = self._at("leaf_weight", start + n)
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
