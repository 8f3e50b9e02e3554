"""The rules that come with the compiler. Each region is a contract with the schedules of its kind.

conv, conv_transpose (kind "conv"), pool, gemm: the anchor and an elementwise epilogue of its
    shape, one result.
attention: moves of q, k and v before; elementwise operations and a transpose after.
rows: a normalisation or softmax, cheap operations before (a residual sum may be a second result)
    and after.
reduction: operations on its operand before, on the reduced value after.
elementwise: everything with an `element` facet, grown backwards from its last operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuvilc.dialect.ir import Value
from cuvilc.dialect.op import OPS
from cuvilc.dialect.passes.context import Miss
from cuvilc.dialect.passes.fuse_growth import (
    CHEAP,
    Producers,
    epilogue,
    has_element,
    is_elementwise,
    moves_before,
)
from cuvilc.dialect.passes.fuse_regions import MOST_OPERATIONS, Site
from cuvilc.dialect.passes.fuse_rules import FusionRule, register
from cuvilc.dialect.passes.rules_graph import Node
from cuvilc.dialect.passes.rules_pattern import Match, Pattern, either, op

_MOVES = ("ai.reshape", "ai.transpose", "ai.slice")


def _any_of(names: str) -> Pattern:
    return either(*(op(f"ai.{n}") for n in names.split()))


def _with_epilogue(match: Match) -> Sequence[Node]:
    members = [match.root]
    epilogue(match.site, members, match.root.result, refuse=match.refuse)
    return members


def _attention(match: Match) -> Sequence[Node]:
    site, anchor = match.site, match.root
    members = [anchor]
    for value in anchor.operands[:3]:
        moves_before(site, members, value, _MOVES)
    out = epilogue(site, members, anchor.result, refuse=match.refuse)
    users = site.users(out)
    if len(users) == 1 and users[0].name == "ai.transpose" and site.is_free(users[0]):
        members.append(users[0])
    try:
        site.check(members)
    except Miss as miss:
        match.refuse(anchor, str(miss))
        return [anchor]
    return members


def _rows(match: Match) -> Sequence[Node]:
    site, anchor = match.site, match.root
    members, kept = [anchor], list[Value]()
    _rows_before(site, members, kept, anchor.operands[0])
    epilogue(site, members, anchor.result, kept, match.refuse)
    try:
        site.check(members)
    except Miss as miss:
        match.refuse(anchor, str(miss))
        return _with_epilogue(match)
    return members


def _rows_before(site: Site, members: list[Node], kept: list[Value], x: Value) -> None:
    """Cheap operations of x's shape; one value that others read too may be a second result."""
    g, shape = site.graph, site.graph.type(x).shape
    inside, stack = set(members), [x]
    while stack and len(members) < MOST_OPERATIONS // 2:
        value = stack.pop()
        p = g.producers.get(value)
        if p is None or p in inside or not site.is_free(p) or not _cheap_in_row(site, p):
            continue
        if g.type(value).shape != shape or g.type(value).layout:
            continue
        shared = any(u not in inside for u in site.users(value))
        if shared and (kept or value != x or p.name != "ai.elemwise_add"):
            continue
        trial = [*members, p]
        try:
            site.check(trial)
        except Miss:
            continue
        if shared:
            kept.append(value)
        members.append(p)
        inside.add(p)
        stack += p.operands


def _cheap_in_row(site: Site, p: Node) -> bool:
    if p.name == "ai.gather":
        return p.attr("axis") < site.graph.type(p.operands[0]).rank - 1
    return is_elementwise(p) and p.name in CHEAP


def _reduction(match: Match) -> Sequence[Node]:
    site, anchor = match.site, match.root
    region = Producers(site, [anchor], anchor.operands[:1])
    members = list(region.grow(_joins))
    epilogue(site, members, anchor.result, refuse=match.refuse)
    try:
        site.check(members)
    except Miss as miss:
        match.refuse(anchor, str(miss))
        return [anchor]
    return members


def _elementwise(match: Match) -> Sequence[Node]:
    site, root = match.site, match.root
    for results in (True, False):
        region = Producers(site, [root], root.operands)
        region.root = site.graph.type(root.result)
        members = list(region.grow(_joins, results))
        try:
            site.check(members)
        except Miss as miss:
            match.refuse(root, str(miss))
            continue
        return members
    return [root]


def _joins(node: Node) -> bool:
    return has_element(node) and node.name != "ai.full"


def _not_free(match: Match) -> None:
    """A reshape of row-major data is free on its own, and a number is an immediate."""
    root, g = match.root, match.graph
    if root.name == "ai.reshape" and not g.type(root.operands[0]).layout:
        raise Miss("a reshape on its own moves nothing")
    if len(root.results) != 1:
        raise Miss("several results")


class _HasElement(Pattern):
    """Any operation with an `element` facet, numbers aside."""

    def names(self) -> tuple[str, ...]:
        return tuple(
            n for n, d in OPS.items() if d.facet("element") and d.results == 1 and n != "ai.full"
        )

    def _matches(self, graph: object, value: Value, match: Match) -> bool:
        match.nodes.append(match.graph.producers[value])
        return True


_REDUCTIONS = "reduce_sum reduce_prod reduce_max reduce_min reduce_mean arg_max arg_min"
_NORMS = "softmax log_softmax layer_norm rms_norm instance_norm group_norm"
_CONVOLUTIONS = "conv conv_integer conv_mixed conv_winograd"
_PRODUCTS = "matmul matmul_integer matmul_mixed matmul_nbits lora_matmul"
_BUILTIN = (
    FusionRule("conv", _any_of(_CONVOLUTIONS), "conv", rewrite=_with_epilogue, priority=100),
    FusionRule("gemm", _any_of(_PRODUCTS), "gemm", rewrite=_with_epilogue, priority=90),
    FusionRule("attention", _any_of("attention"), "attention", rewrite=_attention, priority=80),
    FusionRule("pool", _any_of("max_pool avg_pool"), "pool", rewrite=_with_epilogue, priority=70),
    FusionRule("rows", _any_of(_NORMS), "rows", rewrite=_rows, priority=60),
    FusionRule("reduction", _any_of(_REDUCTIONS), "reduction", rewrite=_reduction, priority=50),
    FusionRule("elementwise", _HasElement(), "elementwise", _not_free, _elementwise, priority=10),
)


def load() -> None:
    """Register the built-in rules (again: no change)."""
    for rule in _BUILTIN:
        register(rule)
