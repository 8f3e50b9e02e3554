"""Patterns over values: small combinators that say what a graph must look like.

    relu = op("ai.relu", op("ai.conv").one_use().bind("conv"))
    found = relu.search(graph, node)         # Match or None
    found["conv"]                            # the bound Value (or number)

Operands of commutative operations are tried in both orders. A name bound twice must mean the
same value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cuvilc.dialect.ir import Value
from cuvilc.dialect.passes.rules_graph import Graph, Node

COMMUTATIVE = frozenset({
    "ai.elemwise_add", "ai.elemwise_mul", "ai.maximum", "ai.minimum", "ai.equal",
    "ai.logical_and", "ai.logical_or", "ai.logical_xor",
})  # fmt: skip


@dataclass
class Match:
    """What a pattern found: the names it bound and the nodes it went through, root first."""

    graph: Graph
    binds: dict[str, Any] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    site: Any = None  # the block and its kernels so far, while fusing
    refuse: Callable[[Node, str], None] = lambda node, why: None  # records a refusal

    def __getitem__(self, name: str) -> Any:
        return self.binds[name]

    def get(self, name: str) -> Any:
        return self.binds.get(name)

    @property
    def root(self) -> Node:
        return self.nodes[0]


class Pattern:
    """Base: `matches(graph, value, match)` extends `match`, or leaves it as it was: False."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._one_use = False
        self._check: Callable[[Graph, Value], bool] | None = None

    def bind(self, name: str) -> Pattern:
        """Remember the value under `name`."""
        self._name = name
        return self

    def one_use(self) -> Pattern:
        """Only if a single operand reads the value."""
        self._one_use = True
        return self

    def where(self, check: Callable[[Graph, Value], bool]) -> Pattern:
        """Only if `check(graph, value)` holds."""
        self._check = check
        return self

    def names(self) -> tuple[str, ...]:
        """Operation names the root can have; empty: any."""
        return ()

    def search(self, graph: Graph, node: Node) -> Match | None:
        """A match whose root is `node`."""
        if not node.results:
            return None
        match = Match(graph)
        return match if self.matches(graph, node.results[0], match) else None

    def matches(self, graph: Graph, value: Value, match: Match) -> bool:
        if self._one_use and not graph.one_use(value):
            return False
        if self._check is not None and not self._check(graph, value):
            return False
        if self._name is not None and self._name in match.binds:
            return bool(match.binds[self._name] == value)
        binds, count = dict(match.binds), len(match.nodes)
        if self._matches(graph, value, match):
            if self._name is not None:
                match.binds.setdefault(self._name, value)
            return True
        match.binds = binds
        del match.nodes[count:]
        return False

    def _matches(self, graph: Graph, value: Value, match: Match) -> bool:
        return True


class _Op(Pattern):
    def __init__(self, name: str, operands: tuple[Pattern, ...], attrs: dict[str, Any]) -> None:
        super().__init__()
        self.name, self.operands, self.attrs = name, operands, attrs

    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def _matches(self, graph: Graph, value: Value, match: Match) -> bool:
        node = graph.producer(value, self.name)
        if node is None or any(node.attr(k) != v for k, v in self.attrs.items()):
            return False
        if self.operands and len(node.operands) < len(self.operands):
            return False
        for order in self._orders(node):
            binds, count = dict(match.binds), len(match.nodes)
            match.nodes.append(node)
            pairs = zip(self.operands, order, strict=False)
            if all(p.matches(graph, v, match) for p, v in pairs):
                return True
            match.binds = binds
            del match.nodes[count:]
        return False

    def _orders(self, node: Node) -> Iterator[list[Value]]:
        yield node.operands
        if len(self.operands) == 2 and self.name in COMMUTATIVE:
            yield node.operands[::-1]


class _Either(Pattern):
    def __init__(self, choices: tuple[Pattern, ...]) -> None:
        super().__init__()
        self.choices = choices

    def names(self) -> tuple[str, ...]:
        return tuple(n for c in self.choices for n in c.names())

    def _matches(self, graph: Graph, value: Value, match: Match) -> bool:
        return any(c.matches(graph, value, match) for c in self.choices)


class _Number(Pattern):
    def __init__(self, expected: float | None, name: str | None) -> None:
        super().__init__()
        self.expected, self.number_name = expected, name

    def _matches(self, graph: Graph, value: Value, match: Match) -> bool:
        number = graph.number(value)
        if number is None:
            return False
        if self.expected is not None and not close(number, self.expected):
            return False
        if self.number_name is not None:
            match.binds[self.number_name] = number
        return True


def close(number: float, expected: float) -> bool:
    """Equal as far as float32 (or float16's rounding of a well-known constant) can say."""
    return abs(number - expected) <= 2e-4 * abs(expected)


def op(name: str, *operands: Pattern, **attrs: Any) -> Pattern:
    """The result of operation `name` whose first operands match and whose attributes are equal."""
    return _Op(name, operands, attrs)


def any_value(name: str | None = None) -> Pattern:
    """Any value."""
    pattern = Pattern()
    return pattern.bind(name) if name else pattern


def constant(name: str | None = None) -> Pattern:
    """An ai.constant."""
    return any_value(name).where(lambda graph, value: graph.is_constant(value))


def number(expected: float | None = None, name: str | None = None) -> Pattern:
    """An ai.full; of about `expected` if given. `name` binds the Python number."""
    return _Number(expected, name)


def either(*choices: Pattern) -> Pattern:
    """The first that matches."""
    return _Either(choices)


def maybe(name: str, inner: Pattern, *rest: Pattern) -> Pattern:
    """`inner`, or operation `name` around it."""
    return _Either((op(name, inner, *rest), inner))
