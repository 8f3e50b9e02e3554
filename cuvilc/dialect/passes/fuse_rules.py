"""The registry of fusion rules: what may become one kernel.

A rule is {name, pattern, guard, rewrite}: where `pattern` matches, `guard` may refuse with a
Miss, and `rewrite` names the operations that become one kernel of schedule family `kind`. Rules
of higher priority choose first; within a rule, later operations choose before earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from cuvilc.dialect.passes.rules_graph import Node
from cuvilc.dialect.passes.rules_pattern import Match, Pattern

GROUP = "cuvilc.fusion_rules"
KINDS = ("conv", "gemm", "attention", "pool", "rows", "reduction", "elementwise", "single")


def _anything(match: Match) -> None:
    """The guard that refuses nothing."""


def _matched(match: Match) -> Sequence[Node]:
    """The rewrite that takes what the pattern went through."""
    return match.nodes


@dataclass(frozen=True)
class FusionRule:
    """What may become one kernel.

    guard(match): raises Miss(reason) to refuse.
    rewrite(match): the operations of the kernel, in any order.
    """

    name: str
    pattern: Pattern
    kind: str
    guard: Callable[[Match], None] = _anything
    rewrite: Callable[[Match], Sequence[Node]] = _matched
    priority: int = 200


_RULES: dict[str, FusionRule] = {}


def register(rule: FusionRule) -> FusionRule:
    """Add a rule. ValueError for a taken name, an unknown kind, a pattern of no named root."""
    if _RULES.get(rule.name, rule) is not rule:
        raise ValueError(f"a fusion rule named {rule.name!r} is registered already")
    if rule.kind not in KINDS:
        raise ValueError(f"kind {rule.kind!r} is none of {', '.join(KINDS)}")
    if not rule.pattern.names():
        raise ValueError(f"the pattern of {rule.name!r} must start with an operation")
    _RULES[rule.name] = rule
    return rule


def unregister(name: str) -> None:
    """Remove a rule. KeyError if there is none of that name."""
    del _RULES[name]


def rules() -> list[FusionRule]:
    """All rules, those of installed packages included, in the order in which they choose."""
    _load_installed()
    return sorted(_RULES.values(), key=lambda r: (-r.priority, r.name))


@cache
def _load_installed() -> None:
    from importlib.metadata import entry_points  # noqa: PLC0415  (slow, and needed here only)

    for entry in entry_points(group=GROUP):
        register(entry.load())
