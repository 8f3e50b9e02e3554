"""Def-use of one function as plain Python objects, kept true while rules rewrite it.

Asking MLIR for the users of a value costs tens of microseconds through the bindings, so a pass
reads the function once and works on this mirror; every change goes through it. `rewrite` is the
driver that most passes share: rules by operation name, one sweep and then only what changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cuvilc._mlir import ir as mlir
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.op import OPS, OpDef, read_attr
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.types import TensorType

_FEW = 32  # operands of a node that are looked through for one


class Node:
    """One operation: its name, operands and results as they are now."""

    __slots__ = (
        "_attrs", "alive", "block", "name", "op", "operands", "parent", "places", "results",
    )  # fmt: skip

    def __init__(self, op: Operation, parent: Node | None, block: int) -> None:
        self.op = op
        self.name: str = op.name
        self.operands: list[Value] = list(op.operands)
        self.results: list[Value] = list(op.results)
        self.parent = parent  # the node whose region holds it
        self.block = block  # number of its block; blocks do not compare in the bindings
        self.alive = True
        self.places: dict[Value, list[int]] | None = None  # of each operand, if there are many
        self._attrs: dict[str, Any] = {}

    def renamed(self, old: Value, new: Value) -> None:
        """Operands that were `old` are `new` from now on. Many operands are not searched each time:
        all may be renamed, one after another.
        """
        if len(self.operands) <= _FEW:
            self.operands = list(self.op.operands)
            return
        if self.places is None:
            self.places = {}
            for i, value in enumerate(self.operands):
                self.places.setdefault(value, []).append(i)
        moved = self.places.pop(old, [])
        for i in moved:
            self.operands[i] = new
        self.places.setdefault(new, []).extend(moved)

    def attr(self, name: str) -> Any:
        """One attribute as a Python value."""
        if name not in self._attrs:
            self._attrs[name] = read_attr(self.op.attributes[name])
        return self._attrs[name]

    @property
    def attrs(self) -> dict[str, Any]:
        return ir.attrs(self.op)

    def broadcasting(self) -> dict[str, Any]:
        """The attributes for operands that need not have the result's shape any more."""
        attrs = self.attrs
        return attrs | {"broadcast": True} if "broadcast" in attrs else attrs

    @property
    def result(self) -> Value:
        return self.results[0]

    @property
    def declared(self) -> OpDef | None:
        return OPS.get(self.name)

    def is_a(self, *traits: str) -> bool:
        declared = OPS.get(self.name)
        return declared is not None and not declared.traits.isdisjoint(traits)


class Graph:
    """The nodes of `main` in program order, inner regions after the operation that holds them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: list[Node] = []
        self.producers: dict[Value, Node] = {}
        self.uses: dict[Value, list[Node]] = {}  # a node is listed once per operand
        self.here: Node | None = None
        self.blocks = 0
        self.block = ir.body(program.function("main"))
        self._scan(self.block, None)

    def _scan(self, block: Any, parent: Node | None) -> None:
        number, self.blocks = self.blocks, self.blocks + 1
        for op in ir.operations(block):
            node = Node(op, parent, number)
            self._enter(node)
            self.nodes.append(node)
            for region in op.regions:
                for inner in region.blocks:
                    self._scan(inner, node)

    def _enter(self, node: Node) -> None:
        for value in node.results:
            self.producers[value] = node
        for value in node.operands:
            self.uses.setdefault(value, []).append(node)

    def live(self) -> Iterator[Node]:
        return (n for n in self.nodes if n.alive)

    def producer(self, value: Value, name: str | None = None) -> Node | None:
        """What makes the value (if it is a `name`); None for arguments."""
        node = self.producers.get(value)
        return node if node is not None and name in (None, node.name) else None

    def users(self, value: Value) -> list[Node]:
        return self.uses.get(value, [])

    def one_use(self, value: Value) -> bool:
        return len(self.uses.get(value, ())) == 1

    def type(self, value: Value) -> TensorType:
        return ir.type_of(value)

    def number(self, value: Value) -> Any:
        """The number that every element of the value is, where an ai.full says so."""
        node = self.producers.get(value)
        return node.attr("value") if node is not None and node.name == "ai.full" else None

    def is_constant(self, value: Value) -> bool:
        node = self.producers.get(value)
        return node is not None and node.name == "ai.constant"

    def is_weight(self, value: Value) -> bool:
        """A constant, or a parameter that adapters may exchange."""
        node = self.producers.get(value)
        return node is not None and node.name in ("ai.constant", "ai.parameter")

    def key(self, value: Value) -> str:
        """The key of an ai.constant or ai.parameter in the side table."""
        return str(self.producers[value].attr("key"))

    def array(self, value: Value) -> Any:
        """The array of an ai.constant, or of a static ai.full; else None. Not to be written to."""
        return self.program.constant_array(value)

    def build(
        self, name: str, *operands: Value, origin: Sequence[Node] = (), at: Node | None = None,
        **attributes: Any,
    ) -> Any:  # fmt: skip
        """Build before the node that is being rewritten (or `at`), at the location of `origin`."""
        here = at or self.here
        assert here is not None
        parts = [n.op for n in origin if n.alive]
        location = ir.fused_location(parts) if len(parts) > 1 else here.op.location
        with mlir.InsertionPoint(here.op), location:
            made = ir.build(name, *operands, **attributes)
        return self._made(made, here)

    def full(self, value: float | bool, shape: Sequence[Dim] = (), dtype: str = "float32") -> Value:
        assert self.here is not None
        with ir.before(self.here.op):
            made = ir.full(value, shape, dtype)
        return self._made(made, self.here)

    def constant(self, array: Any, key: str, at: Node | None = None) -> Value:
        here = at or self.here
        assert here is not None
        with ir.before(here.op):
            made = ir.constant(self.program, array, key)
        return self._made(made, here)

    def joined(self, values: Sequence[Value], axis: int) -> Value:
        """Weights side by side along an axis; a parameter if one of them is, with all their parts.

        Parameters among them must have their outputs along that axis.
        """
        key = "+".join(self.key(v) for v in values)
        arrays: list[Any] = [self.program.weight_array(v) for v in values]
        parts, biases, start, batched = [], [], 0, False
        for value, array in zip(values, arrays, strict=True):
            node = self.producers[value]
            if node.name == "ai.parameter":
                assert node.attr("out_axis") == axis
                batched = node.attr("batched")
                parts += [(*p[:3], p[3] + start, p[4]) for p in node.attr("parts")]
                biases += node.attr("biases")
            start += array.shape[axis]
        weight = self.constant(np.concatenate(arrays, axis), key)
        if not parts:
            return weight
        constant = self.producers[weight]
        made = self.build(
            "ai.parameter", **constant.attrs, out_axis=axis, parts=tuple(parts), batched=batched,
            biases=tuple(biases),
        )  # fmt: skip
        self.drop(constant)
        return made

    def _made(self, made: Any, here: Node) -> Any:
        first = made[0] if isinstance(made, tuple) else made
        node = Node(ir.defining(first), here.parent, here.block)
        self._enter(node)
        self.nodes.append(node)
        return made

    def replace(self, node: Node, *values: Value) -> list[Node]:
        """Let users of the node's results use `values`, drop the node; returns those users."""
        touched: list[Node] = []
        for old, new in zip(node.results, values, strict=True):
            if old.type != new.type:
                raise ValueError(f"{node.name}: {self.type(old)} is not {self.type(new)}")
            users = self.uses.pop(old, [])
            old.replace_all_uses_with(new)
            self.uses.setdefault(new, []).extend(users)
            for user in dict.fromkeys(users):
                user.renamed(old, new)
                touched.append(user)
        self.drop(node)
        return touched

    def drop(self, node: Node) -> list[Node]:
        """Erase the node if unused, then what only it needed; returns the producers touched."""
        touched, queue = [], [node]
        while queue:
            n = queue.pop()
            if not n.alive or not self._is_dead(n):
                continue
            sources = self._erase(n)
            touched += sources
            queue += sources
        return [n for n in touched if n.alive]

    def _is_dead(self, node: Node) -> bool:
        declared = node.declared
        pure = declared is not None and declared.pure and "terminator" not in declared.traits
        return pure and not any(self.uses.get(r) for r in node.results)

    def _erase(self, node: Node) -> list[Node]:
        inner: list[Node] = []
        if len(node.op.regions):
            inner = [n for n in self.nodes if n.alive and self.inside(n, node)]
        sources: dict[Node, None] = {}
        for n in (*inner, node):
            n.alive = False
            for value in n.operands:
                self.uses[value].remove(n)
                source = self.producers.get(value)
                if source is not None and source.alive:
                    sources[source] = None
            for r in n.results:
                self.producers.pop(r, None)
        node.op.erase()
        return [s for s in sources if s.alive]

    def inside(self, node: Node, outer: Node) -> bool:
        """Whether `node` lies in a region of `outer`."""
        parent = node.parent
        while parent is not None and parent is not outer:
            parent = parent.parent
        return parent is outer

    def set_operand(self, node: Node, index: int, value: Value) -> None:
        self.uses[node.operands[index]].remove(node)
        node.op.operands[index] = value
        node.operands[index] = value
        node.places = None
        self.uses.setdefault(value, []).append(node)


Rewrite = Callable[[Graph, Node], Any]
Rules = dict[str, tuple[Rewrite, ...]]


def merged_rules(*tables: Rules) -> Rules:
    """One table: the rules of an operation in the order of the tables."""
    names = {n: None for t in tables for n in t}
    return {n: tuple(r for t in tables for r in t.get(n, ())) for n in names}


def rewrite(graph: Graph, rules: Mapping[str, Sequence[Rewrite]], context: PassContext) -> int:
    """Apply rules until none applies. A rule returns what replaces the node's results, or None.

    It may raise Miss, which is recorded. Unused operations are erased. Returns the number applied.
    """
    queue = deque(graph.live())
    waiting = set(queue)
    count = 0
    budget = 50 * len(graph.nodes) + 1000  # rules that undo each other stop here, not the process
    while queue and count < budget:
        node = queue.popleft()
        waiting.discard(node)
        if not node.alive:
            continue
        todo = rules.get(node.name)
        if graph._is_dead(node):
            again: Sequence[Node] = graph.drop(node)
        elif todo is None:
            continue
        else:
            again = _apply(graph, node, todo, context)
            count += bool(again)
        for n in again:
            if n.alive and n not in waiting:
                waiting.add(n)
                queue.append(n)
    return count


def _apply(
    graph: Graph, node: Node, rules: Sequence[Rewrite], context: PassContext
) -> Sequence[Node]:
    """Try each rule; returns the nodes to look at again."""
    for rule in rules:
        name = rule.__name__.strip("_").replace("_", "-")
        graph.here, first = node, len(graph.nodes)
        try:
            result = rule(graph, node)
        except Miss as miss:
            context.miss(name, node.op, str(miss))
            result = None
        made = graph.nodes[first:]
        values = result if isinstance(result, tuple) else (result,)
        if result is None or any(
            a.type != b.type for a, b in zip(node.results, values, strict=True)
        ):
            for n in reversed(made):
                graph.drop(n)
            continue
        sources = [s for v in node.operands if (s := graph.producers.get(v)) is not None]
        users = graph.replace(node, *values)
        context.apply(name)
        alone = [
            n
            for s in sources
            if s.alive
            for r in s.results
            if graph.one_use(r)
            for n in graph.uses[r]
        ]
        return [*made, *users, *sources, *alone]
    return ()
