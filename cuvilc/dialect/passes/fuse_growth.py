"""How regions grow: forwards into an epilogue, backwards into producers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from cuvilc.dialect.ir import Value
from cuvilc.dialect.passes.context import Miss
from cuvilc.dialect.passes.fuse_regions import MOST_INPUTS, MOST_OPERATIONS, Site
from cuvilc.dialect.passes.rules_graph import Node

CHEAP = frozenset(
    f"ai.{n}" for n in (
        "elemwise_add elemwise_sub elemwise_mul neg abs maximum minimum relu clip where cast equal less "
        "less_equal greater greater_equal logical_and logical_or logical_xor logical_not leaky_relu prelu "
        "hard_sigmoid hard_swish sign floor ceil round is_nan is_inf thresholded_relu full iota relayout"
    ).split()
)  # fmt: skip
_REPEATS = frozenset({
    "ai.broadcast_to", "ai.tile", "ai.gather", "ai.gather_elements", "ai.gather_nd",
    "ai.rotary_embedding", "ai.resize",
})  # fmt: skip
_BRANCHES = frozenset({"ai.concat", "ai.pad"})
_TENTATIVE = 8  # steps an epilogue may go without coming back to one result
_REPEATED = 4  # one more than the cheap operations in a row that may be computed once per reader
_RESULTS = 3


def is_elementwise(node: Node) -> bool:
    return node.is_a("elementwise") and len(node.results) == 1


def has_element(node: Node) -> bool:
    declared = node.declared
    return declared is not None and declared.facet("element") is not None and len(node.results) == 1


def epilogue(
    site: Site, members: list[Node], out: Value, kept: Sequence[Value] = (),
    refuse: Callable[[Node, str], None] | None = None,
) -> Value:  # fmt: skip
    """Let `members` grow by elementwise operations of out's shape while the region keeps one result.

    kept: results besides it that may stay. Returns the new result.
    """
    g, shape = site.graph, site.graph.type(out).shape
    trial = list(members)
    ends = [out]
    for _ in range(MOST_OPERATIONS):
        node, why = _next(site, trial, ends, shape)
        if node is None:
            if why is not None and refuse is not None:
                refuse(*why)
            break
        added = [node, *_side_producers(site, trial, node, shape)]
        if len(trial) + len(added) > MOST_OPERATIONS or len(trial) > len(members) + _TENTATIVE:
            break
        trial += added
        if len(site.inputs(trial)) > MOST_INPUTS:
            if refuse is not None:
                refuse(node, f"the kernel would read more than {MOST_INPUTS} tensors")
            break
        ends = [v for v in site.outputs(trial) if v not in kept]
        if len(ends) == 1 and ends[0] != out:
            try:
                site.check(trial)
            except Miss as miss:
                if refuse is not None:
                    refuse(node, str(miss))
                break
            members[:] = trial
            out = ends[0]
    assert g.type(out).shape == shape
    return out


def _next(
    site: Site, trial: list[Node], ends: list[Value], shape: Any
) -> tuple[Node | None, tuple[Node, str] | None]:
    """The first user that can join; or why none can."""
    inside = set(trial)
    users = {u for v in ends for u in site.users(v) if u not in inside}
    for u in sorted(users, key=lambda n: site.order.get(n, 0)):
        why = ""
        if u not in site.order or not is_elementwise(u):
            why = f"{u.name.split('.')[-1]} needs it in memory"
        elif not site.is_free(u):
            why = "its user is in another kernel"
        elif site.graph.type(u.result).shape != shape:
            why = "its user has a larger result"
        if why:
            return None, (u, why)
        return u, None
    return None, None


def _side_producers(site: Site, trial: list[Node], node: Node, shape: Any) -> list[Node]:
    """Elementwise operations of the same shape that only `node`'s other operands need."""
    found: list[Node] = []
    stack = [v for v in node.operands]
    while stack:
        value = stack.pop()
        p = site.graph.producers.get(value)
        if p is None or p in trial or p in found or not site.is_free(p) or not is_elementwise(p):
            continue
        if site.graph.type(value).shape != shape or not site.graph.one_use(value):
            continue
        found.append(p)
        stack += p.operands
    return found


def moves_before(site: Site, members: list[Node], value: Value, names: Sequence[str]) -> None:
    """Take in the chain of moves that leads to `value`, save reshapes at its start: those are free."""
    g, chain = site.graph, []
    while True:
        p = g.producers.get(value)
        if p is None or p.name not in names or not site.is_free(p) or not g.one_use(value):
            break
        chain.append(p)
        value = p.operands[0]
    while chain and chain[-1].name == "ai.reshape":
        chain.pop()
    members += chain


class Producers:
    """A region that grows backwards from what it reads."""

    def __init__(self, site: Site, members: Sequence[Node], roots: Sequence[Value]) -> None:
        """roots: values that each element of the region reads once, at one index."""
        self.site = site
        self.members = list(members)
        self.inside = set(members)
        self.inputs = site.inputs(members)
        self.extra: list[Value] = []
        self.via: dict[Node, Any] = {}
        self.repeated: dict[Node, int] = {}
        self.heap: list[tuple[int, Value]] = []
        self.queued: set[Node] = set()
        self.root_shape: Any = None
        for value in roots:
            self._offer(value)

    def _offer(self, value: Value) -> None:
        p = self.site.graph.producers.get(value)
        if p is not None and p in self.site.order and p not in self.queued and p.name != "ai.full":
            self.queued.add(p)
            heappush(self.heap, (-self.site.order[p], p))  # type: ignore[arg-type]

    def grow(self, accept: Callable[[Node], bool] = has_element, results: bool = False) -> list[Node]:
        """Take in producers, last ones first, while all their users are inside.

        results: a value that others read too may become one more result, where its shape is the root's.
        """
        while self.heap:
            _, p = heappop(self.heap)
            if not self.site.is_free(p) or not accept(p) or len(self.members) >= MOST_OPERATIONS:
                continue
            outside = any(u not in self.inside for u in self.site.users(p.result))
            via, repeated = self._reading(p)
            if outside and not (results and self._can_be_result(p, via, repeated)):
                continue
            if not self._affordable(p, repeated):
                continue
            inputs = (self.inputs - {p.result}) | self._external(p)
            if len(inputs) > MOST_INPUTS:
                continue
            self._take(p, via, repeated, inputs, outside)
        self._strip_reshapes()
        return self.members

    def _take(self, p: Node, via: Any, repeated: int, inputs: set[Value], outside: bool) -> None:
        self.members.append(p)
        self.inside.add(p)
        self.inputs = inputs
        self.via[p], self.repeated[p] = via, repeated
        if outside:
            self.extra.append(p.result)
        for value in p.operands:
            self._offer(value)

    def _external(self, p: Node) -> set[Value]:
        made = self.site.graph.producers
        return {v for v in p.operands if v not in made or made[v].name != "ai.full"}

    def _can_be_result(self, p: Node, via: Any, repeated: int) -> bool:
        same = self.root_shape is not None and self.site.graph.type(p.result).shape == self.root_shape
        return same and via == "root" and not repeated and len(self.extra) < _RESULTS - 1

    def _affordable(self, p: Node, repeated: int) -> bool:
        """Work must not multiply: what is read several times an element must be cheap."""
        if p.name not in CHEAP and is_elementwise(p):
            guarded = any(
                u.name in _BRANCHES for u in self.site.users(p.result) if u in self.inside
            )
            return not repeated and not guarded
        return repeated <= _REPEATED

    def _reading(self, p: Node) -> tuple[Any, int]:
        """(through which index map the region reads p, how long the chain is that is read repeatedly)."""
        g, ways, repeated = self.site.graph, set(), 0
        shape = g.type(p.result).shape
        for u in self.site.users(p.result):
            if u not in self.inside:
                continue
            before = self.repeated.get(u, 0)
            if is_elementwise(u) or u.name == "ai.relayout":
                same = g.type(u.result).shape == shape
                ways.add(self.via.get(u, "root") if same else ("spread", id(u)))
                again = not same
            else:
                ways.add(("move", id(u)))
                again = u.name in _REPEATS or u.operands.count(p.result) > 1
            if before or again:
                repeated = max(repeated, before, 1)
        if len(ways) > 1:
            repeated = max(repeated, 1)
        # each elementwise operation that is computed again lengthens the chain, a move does not
        length = repeated + is_elementwise(p) if repeated else 0
        return (next(iter(ways), "root") if len(ways) < 2 else ("several", id(p))), length

    def _strip_reshapes(self) -> None:
        """A reshape of what lies in memory anyway is free outside."""
        g = self.site.graph
        changed = True
        while changed:
            changed = False
            for n in self.members[1:]:
                if n.name != "ai.reshape" or g.producers.get(n.operands[0]) in self.inside:
                    continue
                if g.type(n.operands[0]).layout or n.result in self.extra:
                    continue
                self.members.remove(n)
                self.inside.discard(n)
                changed = True
