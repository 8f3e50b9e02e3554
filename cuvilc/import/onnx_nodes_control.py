"""If: the branch that is taken, where import knows it; else both, as a region each."""

from __future__ import annotations

from typing import Any

from cuvilc._mlir import ir as mlir
from cuvilc.diagnostics import fail
from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Expr
from cuvilc.dialect.op import OPS, segment_attrs
from cuvilc.dialect.types import TensorType

from . import codes
from ._table import importer
from .onnx_node import Node, ai, reshape
from .onnx_values import Val, symbolic


@importer("If")
def if_(n: Node) -> list[Any]:
    branches = (n.attr("then_branch"), n.attr("else_branch"))
    known = n.known(0)
    condition: Any = None if known is None or known.size != 1 else known.reshape(-1)[0]
    if condition is not None and not symbolic(condition):
        return n.converter.inner(branches[0 if condition else 1], n)
    if condition is not None and _ranks_hang_on_sizes(n, branches):
        return n.converter.inner(branches[n.converter.assume(n.label)], n)
    flag = reshape(n[0], ())
    draft = mlir.Operation.create(
        "ai.if",
        results=[],
        operands=[flag],
        attributes=segment_attrs(OPS["ai.if"], 1, 0),
        regions=2,
    )
    yielded = [
        _branch(n, graph, draft.regions[i].blocks.append()) for i, graph in enumerate(branches)
    ]
    if any(y is None for y in yielded):
        return [None] * n.results
    types = [_common(n, i, condition, *pair) for i, pair in enumerate(zip(*yielded, strict=True))]
    return _finish(draft, flag, types)


def _ranks_hang_on_sizes(n: Node, branches: tuple[Any, Any]) -> bool:
    """Whether one branch only drops or adds axes of size 1, as scripted `squeeze` exports: then
    the model is valid for sizes that lead to one branch alone, since what follows has one rank."""
    kinds = [
        [node.op_type for node in graph.node if node.op_type != "Constant"] for graph in branches
    ]
    return any(k in (["Squeeze"], ["Unsqueeze"]) for k in kinds) and any(
        k in (["Identity"], []) for k in kinds
    )


def _branch(n: Node, graph: Any, block: Any) -> list[TensorType] | None:
    """Import a branch into its block; the types it yields, or None when something in it failed."""
    converter = n.converter
    converter.depth += 1
    try:
        with ir.at_end(block):
            vals: list[Val | None] = converter.inner(graph, n)
            if any(v is None for v in vals):
                return None
            values = [converter.value(v) for v in vals if v is not None]
            ai("yield", *values)
    finally:
        converter.depth -= 1
    return [ir.type_of(v) for v in values]


def _common(n: Node, i: int, condition: Any, a: TensorType, b: TensorType) -> TensorType:
    """The type of both branches' result i."""
    if a.dtype == b.dtype and a.rank == b.rank:
        sizes = [_common_size(n, condition, x, y) for x, y in zip(a.shape, b.shape, strict=True)]
        if all(d is not None for d in sizes):
            return TensorType(tuple(d for d in sizes if d is not None), a.dtype)
    name = n.proto.output[i]
    then, other = (n.attr(branch).output[i].name for branch in ("then_branch", "else_branch"))
    raise fail(
        codes.BRANCHES_DIFFER,
        f"the branches of `{n.label}` give `{name}` as {a} and as {b}",
        place=n.place,
        evidence=f"{then}: {a}\n{other}: {b}",
    )


def _common_size(n: Node, condition: Any, x: Dim, y: Dim) -> Dim | None:
    if x == y:
        return x
    if isinstance(condition, Expr):  # it hangs on sizes, so the result's size does too
        return D.select(condition, x, y)
    return None


def _finish(draft: Any, flag: ir.Value, types: list[TensorType]) -> list[ir.Value]:
    """The operation with its true results in place of the draft, whose blocks it takes."""
    results = ir.build("ai.if", flag, types=types)
    results = list(results) if isinstance(results, tuple) else [results]
    final = results[0].owner
    for i in range(2):
        draft.regions[i].blocks[0].append_to(final.regions[i])
    draft.erase()
    return results
