"""How regions grow: forwards into an epilogue, backwards into producers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from cuvilc.dialect.ir import Value
from cuvilc.dialect.passes.context import Miss
from cuvilc.dialect.passes.fuse_regions import MOST_INPUTS, MOST_OPERATIONS, Site
from cuvilc.dialect.passes.rules_graph import Node
from cuvilc.dialect.types import TensorType

CHEAP = frozenset({
    "ai.elemwise_add", "ai.elemwise_sub", "ai.elemwise_mul", "ai.neg", "ai.abs", "ai.sign",
    "ai.maximum", "ai.minimum", "ai.relu", "ai.clip", "ai.where", "ai.cast", "ai.leaky_relu",
    "ai.equal", "ai.less", "ai.less_equal", "ai.greater", "ai.greater_equal", "ai.logical_and",
    "ai.logical_or", "ai.logical_xor", "ai.logical_not", "ai.prelu", "ai.hard_sigmoid",
    "ai.hard_swish", "ai.floor", "ai.ceil", "ai.round", "ai.is_nan", "ai.is_inf",
    "ai.thresholded_relu", "ai.full", "ai.iota", "ai.relayout", "ai.dequantize_linear",
    "ai.recode",
})  # fmt: skip
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
    """Let `members` grow by elementwise operations of out's shape, the region keeping one result.

    kept: results besides it that may stay. Returns the new result.
    """
    shape = site.graph.type(out).shape
    trial, ends = list(members), [out]
    wish: Node | None = None  # what the region wanted and may not get
    why = ""
    for _ in range(MOST_OPERATIONS):
        node, why = _next(site, trial, ends, shape)
        if wish is None:
            wish = node or _wish(site, trial, ends)
        if node is None:
            break
        added = [node, *_side_producers(site, trial, node, shape)]
        if len(trial) + len(added) > min(MOST_OPERATIONS, len(members) + _TENTATIVE):
            why = "the kernel would be too long"
            break
        trial += added
        if len(site.inputs(trial)) > MOST_INPUTS:
            why = f"the kernel would read more than {MOST_INPUTS} tensors"
            break
        ends = [v for v in site.outputs(trial) if v not in kept]
        if len(ends) == 1 and ends[0] != out:
            try:
                site.check(trial)
            except Miss as miss:
                why = str(miss)
                break
            members[:], out, wish = trial, ends[0], None
    if wish is not None and refuse is not None:
        refuse(wish, why)
    return out


def _wish(site: Site, trial: list[Node], ends: list[Value]) -> Node | None:
    """An elementwise user that the region would have liked."""
    inside = set(trial)
    users = (u for v in ends for u in site.users(v) if u not in inside)
    return next((u for u in users if is_elementwise(u)), None)


def _next(site: Site, trial: list[Node], ends: list[Value], shape: Any) -> tuple[Node | None, str]:
    """The first user, if it can join; else why it cannot."""
    inside = set(trial)
    users = {u for v in ends for u in site.users(v) if u not in inside}
    for u in sorted(users, key=lambda n: site.order.get(n, 0)):
        if u not in site.order or not is_elementwise(u):
            return None, f"{u.name.split('.')[-1]} needs its operand in memory"
        if not site.is_free(u):
            return None, "another kernel has it already"
        if site.graph.type(u.result).shape != shape:
            return None, "its result is larger"
        return u, ""
    return None, ""


def _side_producers(site: Site, trial: list[Node], node: Node, shape: Any) -> list[Node]:
    """Elementwise operations of the same shape that only `node`'s other operands need."""
    found: list[Node] = []
    stack = list(node.operands)
    while stack:
        value = stack.pop()
        p = site.graph.producers.get(value)
        if p is None or p in trial or p in found or not site.is_free(p) or not is_elementwise(p):
            continue
        if site.graph.type(value).shape != shape or not site.graph.one_use(value):
            continue
        if p.name == "ai.quantize_linear":  # what it makes is the least to keep in memory
            continue
        found.append(p)
        stack += p.operands
    return found


def moves_before(site: Site, members: list[Node], value: Value, names: Sequence[str]) -> None:
    """Take in the moves that lead to `value`, save reshapes at their start, which are free."""
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
        self.heap: list[tuple[int, Node]] = []
        self.queued: set[Node] = set()
        self.root: TensorType | None = None  # of the result; others may be of its shape and layout
        for value in roots:
            self._offer(value)

    def _offer(self, value: Value) -> None:
        p = self.site.graph.producers.get(value)
        if p is not None and p in self.site.order and p not in self.queued and p.name != "ai.full":
            self.queued.add(p)
            heappush(self.heap, (-self.site.order[p], p))

    def grow(
        self, accept: Callable[[Node], bool] = has_element, results: bool = False
    ) -> list[Node]:
        """Take in producers, last ones first, while all their users are inside.

        results: a value that others read too may become a result, where its shape and layout are
        the root's: loops over one order of elements would have to scatter into another.
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
        t, root = self.site.graph.type(p.result), self.root
        same = root is not None and (t.shape, t.layout) == (root.shape, root.layout)
        return same and via == "root" and not repeated and len(self.extra) < _RESULTS - 1

    def _affordable(self, p: Node, repeated: int) -> bool:
        """Work must not multiply: what is read several times an element must be cheap."""
        if p.is_a("costly"):
            return not repeated
        if p.name not in CHEAP and is_elementwise(p):
            guarded = any(
                u.name in _BRANCHES for u in self.site.users(p.result) if u in self.inside
            )
            return not repeated and not guarded
        return repeated <= _REPEATED

    def _reading(self, p: Node) -> tuple[Any, int]:
        """(through which index map the region reads p, how long a chain is read repeatedly)."""
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
                again = u.name in _REPEATS or u.is_a("rereads") or u.operands.count(p.result) > 1
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
