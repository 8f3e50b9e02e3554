"""The units of one block while regions are being formed, always in an order that can be executed.

Merging operations must not make a cycle: nothing between two members may depend on one and feed
the other. The units stay topologically sorted; a merge looks only at the window between its
first and last member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cuvilc._mlir import ir as mlir
from cuvilc.dialect import ir
from cuvilc.dialect.ir import Value
from cuvilc.dialect.ops.structure import defined_sizes
from cuvilc.dialect.passes.context import Miss
from cuvilc.dialect.passes.rules_graph import Graph, Node

MOST_INPUTS = 12
MOST_OPERATIONS = 24


class Unit:
    """One operation, or the members of a future kernel (then `kind` is set)."""

    __slots__ = ("index", "kind", "nodes", "rule")

    def __init__(self, nodes: list[Node], index: int, kind: str = "", rule: str = "") -> None:
        self.nodes, self.index, self.kind, self.rule = nodes, index, kind, rule


class Site:
    """One block: its nodes in order, and which unit each is in."""

    def __init__(self, graph: Graph, block: Any, nodes: list[Node]) -> None:
        self.graph = graph
        self.block = block
        self.nodes = nodes
        self.order = {n: i for i, n in enumerate(nodes)}
        self.units: list[Unit | None] = [Unit([n], i) for i, n in enumerate(nodes)]
        self.unit_of: dict[Node, Unit] = {u.nodes[0]: u for u in self.units if u is not None}
        self._captured = self._captures()
        self._binders = {name: n for n in nodes for name in defined_sizes(n.op)}
        self._sizes: dict[Node, set[str]] = {}

    def _captures(self) -> dict[Node, list[Value]]:
        """What the regions of each operation read from outside themselves."""
        found: dict[Node, list[Value]] = {}
        for n in self.graph.live():
            outer = self.local(n)
            if outer is not None and outer is not n:
                found.setdefault(outer, []).extend(n.operands)
        return found

    def local(self, node: Node) -> Node | None:
        """The node of this block that is `node` or holds it; None if it is elsewhere."""
        current: Node | None = node
        while current is not None and current not in self.order:
            current = current.parent
        return current

    def is_free(self, node: Node | None) -> bool:
        """Whether the node is of this block and in no kernel yet."""
        return node is not None and node in self.order and not self.unit_of[node].kind

    def users(self, value: Value) -> list[Node]:
        """The users; one in an inner region counts as the operation here that holds it."""
        return [self.local(n) or n for n in dict.fromkeys(self.graph.users(value))]

    def reads(self, node: Node) -> list[Value]:
        return [*node.operands, *self._captured.get(node, ())]

    def sources(self, unit: Unit) -> Iterable[Unit]:
        """Units that must run before this one."""
        for n in unit.nodes:
            for value in self.reads(n):
                producer = self.graph.producers.get(value)
                if producer is not None and producer in self.unit_of:
                    yield self.unit_of[producer]
            for name in self._sizes_of(n) if self._binders else ():
                binder = self._binders.get(name)
                if binder is not None and binder is not n:
                    yield self.unit_of[binder]

    def _sizes_of(self, node: Node) -> set[str]:
        """The symbols that the operation and those inside it use: they must be bound before it."""
        if node not in self._sizes:
            self._sizes[node] = ir.sizes_used(node.op)
        return self._sizes[node]

    def check(self, members: Sequence[Node]) -> list[Unit | None]:
        """The order of the window after the merge. Miss if it would make a cycle."""
        mine = {self.unit_of[n] for n in members}
        low = min(u.index for u in mine)
        high = max(u.index for u in mine)
        before: list[Unit | None] = []
        after: list[Unit | None] = []
        late: set[Unit] = set()
        for unit in self.units[low : high + 1]:
            if unit is None:
                continue
            if unit in mine:
                if late and any(s in late for s in self.sources(unit)):
                    raise Miss("another kernel between them needs one and feeds the other")
            elif any(s in mine or s in late for s in self.sources(unit)):
                late.add(unit)
                after.append(unit)
            else:
                before.append(unit)
        merged = Unit(sorted(members, key=self.order.__getitem__), low)
        window = [*before, merged, *after]
        return [*window, *[None] * (high + 1 - low - len(window))]

    def merge(self, members: Sequence[Node], kind: str, rule: str) -> None:
        """Make one kernel of the members. Miss if it would make a cycle."""
        window = self.check(members)
        low = min(self.unit_of[n].index for n in members)
        self.units[low : low + len(window)] = window
        for i, unit in enumerate(window):
            if unit is None:
                continue
            unit.index = low + i
            if unit.nodes[0] in members:
                unit.kind, unit.rule = kind, rule
            for n in unit.nodes:
                self.unit_of[n] = unit

    def inputs(self, members: Iterable[Node]) -> set[Value]:
        """What the members read from outside, immediates aside."""
        inside = set(members)
        found = set()
        for n in inside:
            for value in n.operands:
                producer = self.graph.producers.get(value)
                if producer is None or (producer not in inside and producer.name != "ai.full"):
                    found.add(value)
        return found

    def outputs(self, members: Iterable[Node]) -> list[Value]:
        """Results that something outside reads."""
        inside = set(members)
        return [
            r for n in members for r in n.results
            if any(u not in inside for u in self.users(r))
        ]  # fmt: skip

    def write(self) -> None:
        """Put the operations in order and every kernel into its `ai.fusion`."""
        end = ir.terminator(self.block)
        for unit in self.units:
            if unit is None:
                continue
            if unit.kind:
                self._fusion(unit, end)
            elif unit.nodes[0].alive and unit.nodes[0].op != end:
                unit.nodes[0].op.move_before(end)
        for n in self.nodes:
            if n.alive and n.name == "ai.full" and not self.unit_of[n].kind:
                self.graph.drop(n)

    def _fusion(self, unit: Unit, end: ir.Operation) -> None:
        g = self.graph
        results = self.outputs(unit.nodes)
        location = ir.fused_location([n.op for n in unit.nodes])
        if len(unit.nodes) == 1:
            location = unit.nodes[0].op.location
        with mlir.InsertionPoint(end), location:
            made = ir.build(
                "ai.fusion", kind=unit.kind, rule=unit.rule, types=[g.type(r) for r in results]
            )
        first = made[0] if isinstance(made, tuple) else made
        fusion = first.owner.operation
        inner = fusion.regions[0].blocks.append()
        inside = set(unit.nodes)
        with mlir.InsertionPoint(inner), location:
            ir.build("ai.yield", *results)
        last = ir.terminator(inner)
        fulls: dict[Value, Value] = {}
        for n in unit.nodes:
            n.op.move_before(last)
            self._immediates(n, fulls)
        for old, new in zip(results, fusion.results, strict=True):
            for user in [u for u in dict.fromkeys(g.users(old)) if u not in inside]:
                for i, value in enumerate(user.operands):
                    if value == old:
                        g.set_operand(user, i, new)

    def _immediates(self, node: Node, fulls: dict[Value, Value]) -> None:
        """Clone the numbers that the node reads to just before it, inside its kernel."""
        for i, value in enumerate(node.operands):
            source = self.graph.producers.get(value)
            if source is None or source.name != "ai.full" or not takes_immediates(node):
                continue
            if value not in fulls:
                with ir.before(node.op):
                    fulls[value] = ir.build("ai.full", **source.attrs)
            self.graph.set_operand(node, i, fulls[value])


_ROWS = ("ai.softmax", "ai.log_softmax", "ai.layer_norm", "ai.rms_norm", "ai.arg_max", "ai.arg_min")


def takes_immediates(node: Node) -> bool:
    """Whether a kernel of this operation reads its operands by index, so that a number will do."""
    declared = node.declared
    if declared is None:
        return False
    return node.name in _ROWS or bool(declared.facet("element") or declared.facet("term"))
