"""One form for each meaning: identities applied, equal operations merged, dead ones gone.

MLIR's own `cse` and `canonicalize` are not used: they call the Python verifiers of every
operation, do not know that two weights with different keys may be equal, and drop the source
locations of what they merge.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.ir import Program
from cuvilc.dialect.passes import rules_algebra, rules_moves
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.passes.rules_graph import Graph, Node, rewrite

_MOST_NAMES = 8  # that the name of a merged operation joins
NAME = "canonicalize"
VERSION = 2

RULES = rules_algebra.RULES | rules_moves.RULES


def run(program: Program, context: PassContext) -> None:
    """After it no rule of RULES applies, and no two operations compute the same."""
    with program:
        again = True
        while again:
            graph = Graph(program)
            rewrite(graph, RULES, context)
            if again := take_known_branch(graph):
                context.apply("known-branch")
            elif merged := merge_equal(graph):
                context.apply("merge-equal", merged)
                again = rewrite(graph, RULES, context) > 0


def take_known_branch(graph: Graph) -> bool:
    """Put the taken branch of an `ai.if` that is known in its place; then the graph is stale."""
    for node in graph.live():
        if node.name != "ai.if":
            continue
        known = graph.array(node.operands[0])
        if known is None:
            continue
        block = ir.body(node.op, 0 if bool(known.reshape(())) else 1)
        *inner, last = ir.operations(block)
        values = list(last.operands)
        if any(v.type != r.type for v, r in zip(values, node.op.results, strict=True)):
            continue
        for operation in inner:
            operation.move_before(node.op)
        last.erase()
        ir.replace(node.op, *values)
        return True
    return False


def merge_equal(graph: Graph) -> int:
    """Let equal operations of a block, or of one around it, share results; returns how many go."""
    known: dict[Any, list[Node]] = {}
    constants: dict[Any, list[Node]] = {}
    joined: Counter[Node] = Counter()  # nodes that stand for others too, by how many names
    count = 0
    for node in in_order(graph):
        declared = node.declared
        if not node.alive or declared is None or not declared.pure or declared.regions:
            continue
        if "terminator" in declared.traits:
            continue
        if node.name == "ai.constant":
            found = constants.setdefault(_constant_key(node), [])
        else:
            found = known.setdefault(_key(node), [])
        twin = next((n for n in found if _sees(node, n) and _equal(graph, n, node)), None)
        if twin is None:
            found.append(node)
            continue
        if _named(node, twin) and joined[twin] < _MOST_NAMES:
            joined[twin] += 1
            twin.op.location = ir.fused_location([twin.op, node.op])
        graph.replace(node, *twin.results)
        count += 1
    return count


def _named(node: Node, twin: Node) -> bool:
    """Whether the merged operation keeps both names: constants and fulls are merged so often that
    their joined names would say nothing.
    """
    return (
        node.name not in ("ai.constant", "ai.parameter", "ai.full")
        and node.op.location != twin.op.location
    )


def in_order(graph: Graph) -> list[Node]:
    """The live nodes in program order."""
    by_operation = {n.op: n for n in graph.live()}
    return [by_operation[o] for o in ir.walk(graph.block) if o in by_operation]


def _key(node: Node) -> Any:
    attributes = node.op.attributes
    return node.name, tuple(node.operands), tuple((a, attributes[a]) for a in attributes)


def _constant_key(node: Node) -> Any:
    attributes = node.op.attributes
    return tuple((a, attributes[a]) for a in attributes if a != "key")


def _sees(node: Node, earlier: Node) -> bool:
    """Whether `earlier`, before `node` in program order, is in a block around it."""
    current: Node | None = node
    while current is not None:
        if current.block == earlier.block:
            return True
        current = current.parent
    return False


def _equal(graph: Graph, a: Node, b: Node) -> bool:
    if a.name != "ai.constant" or a.attr("key") == b.attr("key"):
        return True
    x, y = graph.array(a.result), graph.array(b.result)
    return x.nbytes <= 1 << 20 and np.array_equal(
        np.ascontiguousarray(x).view(np.uint8), np.ascontiguousarray(y).view(np.uint8)
    )
