"""Every operation that computes goes into an `ai.fusion`: one region, one kernel.

Analysis: each rule of the registry looks for its pattern, from the end of the block to its
beginning. Rewrite: the rule says which operations join; the merge is refused if it would make a
cycle. Binding: the fusion's `kind` names the family of schedules that makes the kernel. Refusals
are kept with their reasons.
"""

from __future__ import annotations

from cuvilc.dialect.ir import Program
from cuvilc.dialect.passes import fuse_builtin
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.passes.fuse_regions import Site, takes_immediates
from cuvilc.dialect.passes.fuse_rules import FusionRule, rules
from cuvilc.dialect.passes.rules_graph import Graph, Node

NAME = "fuse"
VERSION = 1

BARE = (
    "ai.constant", "ai.parameter", "ai.if", "ai.loop", "ai.yield", "ai.dim_values", "ai.require",
    "ai.bind_size", "ai.bitcast", "func.return", "ai.fusion",
)  # fmt: skip


def run(program: Program, context: PassContext) -> None:
    """After it all is in fusions, save constants, free views, sizes and conditionals."""
    fuse_builtin.load()
    with program:
        graph = Graph(program)
        sites = _sites(graph)
        for site in sites:
            for rule in rules() if context.fusion else ():
                _apply(site, rule, context)
            _bind_rest(site)
        for site in sites:
            site.write()


def _sites(graph: Graph) -> list[Site]:
    """The blocks outside kernels."""
    blocks: dict[int, list[Node]] = {}
    fused = [n for n in graph.live() if n.name == "ai.fusion"]
    for n in graph.live():
        if not any(graph.inside(n, f) for f in fused):
            blocks.setdefault(n.block, []).append(n)
    return [Site(graph, nodes[0].op.block, nodes) for nodes in blocks.values()]


def _apply(site: Site, rule: FusionRule, context: PassContext) -> None:
    names = set(rule.pattern.names())
    for node in reversed(site.nodes):
        if node.name not in names or not site.is_free(node):
            continue
        match = rule.pattern.search(site.graph, node)
        if match is None:
            continue
        match.site, match.refuse = site, lambda n, why: context.miss(rule.name, n.op, why)
        try:
            rule.guard(match)
            members = list(dict.fromkeys(rule.rewrite(match)))
            taken = [n for n in members if not site.is_free(n)]
            if taken:
                raise Miss(f"{taken[0].name} is in another kernel")
            shapes = {site.graph.type(v).shape for v in site.outputs(members)}
            if len(shapes) > 1:
                raise Miss("the results have different shapes")
            site.merge(members, rule.kind, rule.name)
        except Miss as miss:
            context.miss(rule.name, node.op, str(miss))
            continue
        context.apply(rule.name)


def _bind_rest(site: Site) -> None:
    """What no rule took becomes a kernel of its own; numbers that are needed in memory too."""
    for node in site.nodes:
        if not site.is_free(node) or node.name in BARE:
            continue
        if node.name == "ai.reshape" and not site.graph.type(node.operands[0]).layout:
            continue
        if node.name == "ai.full":
            if all(_is_immediate(site, u) for u in site.users(node.result)):
                continue
            site.merge([node], "elementwise", "fill")
        else:
            site.merge([node], "single", "single")


def _is_immediate(site: Site, user: Node) -> bool:
    return takes_immediates(user) and user in site.order and bool(site.unit_of[user].kind)
