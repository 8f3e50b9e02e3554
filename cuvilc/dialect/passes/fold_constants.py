"""Compute once, at build time, what depends on constants alone.

Every folded operation is evaluated as the interpreter would: by its reference in float64,
rounded once to the declared dtype. Only the values that other operations still need become
`ai.constant`s, so a chain such as cast → multiply of a large weight keeps one array alive at a
time.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Expr
from cuvilc.dialect.interpret import widen
from cuvilc.dialect.ir import Program, Value
from cuvilc.dialect.narrow import NARROW_FLOATS
from cuvilc.dialect.passes.canonicalize import in_order
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.passes.rules_graph import Graph, Node
from cuvilc.dialect.types import TensorType, item_bytes, numpy_dtype

NAME = "fold-constants"
VERSION = 1

GROWTH_BYTES = 64 << 10
_CHUNK_BYTES = 4 << 20
_KEPT = ("ai.constant", "ai.full", "ai.attention", "ai.relayout", "ai.lstm", "ai.gru", "ai.rnn")
_MOVES = (
    "ai.reshape", "ai.transpose", "ai.slice", "ai.concat", "ai.gather", "ai.broadcast_to", "ai.pad",
    "ai.tile", "ai.bitcast",
)  # fmt: skip


def run(program: Program, context: PassContext) -> None:
    """After it no pure operation has only constant operands, save where the result is too big."""
    with program:
        graph = Graph(program)
        folder = _Folder(graph, context)
        for node in in_order(graph):
            if node.alive:
                folder.visit(node)
        folder.finish()


class _Folder:
    """One sweep. `arrays` holds folded values that some later operation may still read."""

    def __init__(self, graph: Graph, context: PassContext) -> None:
        self.graph = graph
        self.context = context
        self.arrays: dict[Value, np.ndarray] = {}
        self.names: dict[Value, str] = {}
        self.pending: dict[Value, int] = {}
        self.folded: list[Node] = []

    def visit(self, node: Node) -> None:
        if self.fits(node) and self.fold(node):
            return
        for i, value in enumerate(node.operands):
            if value in self.arrays:
                self.graph.set_operand(node, i, self.materialise(value, node))

    def fits(self, node: Node) -> bool:
        declared = node.declared
        if declared is None or declared.reference is None or not declared.pure or declared.regions:
            return False
        if node.name in _KEPT or not all(self.is_known(v) for v in node.operands):
            return False
        types = [self.graph.type(r) for r in node.results]
        if not all(t.is_static and not t.layout for t in types) or _is_symbolic(node.attrs):
            return False
        return not self.is_too_big(node, types)

    def is_known(self, value: Value) -> bool:
        if value in self.arrays:
            return True
        source = self.graph.producer(value)
        if source is None or source.name not in ir.CONSTANTS or self.graph.type(value).layout:
            return False
        return self.graph.type(value).is_static and self.graph.array(value) is not None

    def is_too_big(self, node: Node, types: list[TensorType]) -> bool:
        """Whether the result is data that a kernel makes more cheaply than memory holds it."""
        operands = [self.graph.type(v) for v in dict.fromkeys(node.operands)]
        made = sum(_bytes(t) for t in types)
        fulls = all(self.graph.number(v) is not None for v in node.operands)
        read = 0 if fulls else sum(_bytes(t) for t in operands)
        if made - read <= GROWTH_BYTES:
            return False
        elements = max((_elements(t) for t in operands), default=0)
        if fulls or _elements(types[0]) > elements:
            self.context.miss(
                NAME, node.op, f"the result is {made - read} bytes larger than its operands"
            )
            return True
        return False

    def fold(self, node: Node) -> bool:
        """Evaluate the node. False where an index lies outside: the run decides about that."""
        operands = [self.known(v) for v in node.operands]
        try:
            results = _evaluate(node, operands, [self.graph.type(r) for r in node.results])
        except IndexError as error:
            self.context.miss(NAME, node.op, str(error))
            return False
        stem = "+".join(dict.fromkeys(n for v in node.operands if (n := self.name(v)))) or node.name
        for value, array in zip(node.results, results, strict=True):
            self.arrays[value] = array
            self.names[value] = stem
            self.pending[value] = len(self.graph.users(value))
        for value in node.operands:
            self.used(value)
        self.folded.append(node)
        self.context.apply(NAME)
        return True

    def known(self, value: Value) -> np.ndarray:
        return self.arrays[value] if value in self.arrays else self.graph.array(value)

    def name(self, value: Value) -> str:
        if value in self.names:
            return self.names[value]
        source = self.graph.producer(value)
        if source is not None and source.name == "ai.constant":
            return str(source.attr("key"))
        return ""

    def used(self, value: Value) -> None:
        """Forget an array when its last reader has been folded."""
        if value in self.pending:
            self.pending[value] -= 1
            if self.pending[value] <= 0:
                del self.arrays[value]

    def materialise(self, value: Value, reader: Node) -> Value:
        """The folded value as an `ai.constant` (or `ai.full`) where it was computed."""
        node = self.graph.producers[value]
        array, t = self.arrays[value], self.graph.type(value)
        first = array.reshape(-1)[:1]
        narrow = t.dtype in NARROW_FLOATS  # a number does not tell its NaNs apart
        uniform = array.size == 1 and not narrow and (t.is_float or abs(int(first[0])) < 2**62)
        self.graph.here = node
        if uniform:
            made = self.graph.full(
                first.astype(np.float64)[0] if t.is_float else first[0], t.shape, t.dtype
            )
        else:
            made = self.graph.constant(array, self.names[value])
        for user in list(dict.fromkeys(self.graph.users(value))):
            for i, v in enumerate(user.operands):
                if v == value and user is not reader:
                    self.graph.set_operand(user, i, made)
        self.arrays.pop(value)
        return made

    def finish(self) -> None:
        for node in reversed(self.folded):
            self.graph.drop(node)


def _shape(t: TensorType) -> tuple[int, ...]:
    """The shape of a static type."""
    return tuple(d for d in t.shape if isinstance(d, int))


def _elements(t: TensorType) -> int:
    return prod(_shape(t))


def _bytes(t: TensorType) -> int:
    return _elements(t) * item_bytes(t.dtype)


def _is_symbolic(attrs: dict[str, Any]) -> bool:
    """Whether a size among the attributes is known only at run time."""
    values = [v for a in attrs.values() for v in (a if isinstance(a, tuple) else (a,))]
    return any(isinstance(v, Expr) for v in values)


def _evaluate(node: Node, operands: list[np.ndarray], types: list[TensorType]) -> list[np.ndarray]:
    """The reference's results, each rounded once to its dtype."""
    declared = node.declared
    assert declared is not None and declared.reference is not None
    if node.name in _MOVES:
        made = declared.reference(*declared.group(operands), **node.attrs)
        return [np.asarray(made).astype(numpy_dtype(types[0].dtype), copy=False)]
    shape, size = _shape(types[0]), _elements(types[0]) * 8
    axis = _broadcast_axis(node)
    if node.is_a("elementwise") and size > _CHUNK_BYTES and len(types) == 1 and axis < len(shape):
        out = np.empty(shape, numpy_dtype(types[0].dtype))
        for chunk in _chunks(shape[axis], min(shape[axis], -(-size // _CHUNK_BYTES))):
            place = (*[slice(None)] * axis, chunk)
            out[place] = _reference(node, _parts(operands, len(shape), place))[0]
        return [out]
    results = _reference(node, operands)
    with np.errstate(all="ignore"):
        return [
            np.asarray(r).astype(numpy_dtype(t.dtype), copy=False)
            for r, t in zip(results, types, strict=True)
        ]


def _reference(node: Node, operands: list[np.ndarray]) -> Any:
    declared = node.declared
    assert declared is not None and declared.reference is not None
    with np.errstate(all="ignore"):
        made = declared.reference(*declared.group([widen(a) for a in operands]), **node.attrs)
    return made if isinstance(made, (tuple, list)) else (made,)


def _chunks(rows: int, count: int) -> list[slice]:
    step = -(-rows // count)
    return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]


def _broadcast_axis(node: Node) -> int:
    """An axis along which operands broadcast as NumPy has it. Along a quantisation's own axis
    scales do not: there is one for several elements, or a line of them.
    """
    return 1 if node.attrs.get("axis") == 0 else 0


def _parts(operands: list[np.ndarray], rank: int, place: tuple[slice, ...]) -> list[np.ndarray]:
    """What the part of the result at `place`, all of it but for the last axis named, reads."""
    axis = len(place) - 1
    return [a[place] if a.ndim == rank and a.shape[axis] != 1 else a for a in operands]
