"""If: the branch that is taken, where import knows it; else both, as a region each."""

from __future__ import annotations

from typing import Any

from cuvilc._mlir import ir as mlir
from cuvilc.diagnostics import fail
from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Expr, symbol
from cuvilc.dialect.op import OPS, segment_attrs, write_attr
from cuvilc.dialect.types import TensorType

from . import codes
from ._table import importer
from .onnx_node import Node, ai, reshape
from .onnx_values import Val, is_computed, symbolic


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
        attributes=segment_attrs(OPS["ai.if"], 1, 0) | {"sizes": write_attr(())},
        regions=2,
    )
    yielded = [
        _branch(n, graph, draft.regions[i].blocks.append()) for i, graph in enumerate(branches)
    ]
    if any(y is None for y in yielded):
        return [None] * n.results
    common = Common(n, condition)
    types = [common.type(i, *pair) for i, pair in enumerate(zip(*yielded, strict=True))]
    results = ir.create("ai.if", flag, types=types, sizes=tuple(common.sizes))
    common.bound.append(results)
    return move_regions(draft, results)


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


class Common:
    """The types that both branches' results have; sizes that differ get a name of their own."""

    def __init__(self, n: Node, condition: Any) -> None:
        self.n, self.condition = n, condition
        self.sizes: list[tuple[str, Dim, Dim]] = []  # (symbol, in the first branch, in the second)
        self.bound: list[ir.Operation] = []  # the conditional, once it is built

    def type(self, i: int, a: TensorType, b: TensorType) -> TensorType:
        """The type of both branches' result i. CUV108 where dtype or rank differ."""
        if a.dtype == b.dtype and a.rank == b.rank:
            sizes = [self.size(x, y) for x, y in zip(a.shape, b.shape, strict=True)]
            return TensorType(tuple(sizes), a.dtype)
        name = self.n.proto.output[i]
        then, other = (
            self.n.attr(branch).output[i].name for branch in ("then_branch", "else_branch")
        )
        raise fail(
            codes.BRANCHES_DIFFER,
            f"the branches of `{self.n.label}` give `{name}` as {a} and as {b}",
            place=self.n.place,
            evidence=f"{then}: {a}\n{other}: {b}",
        )

    def size(self, x: Dim, y: Dim) -> Dim:
        if x == y:
            return x
        if isinstance(self.condition, Expr) and not is_computed(x, y):
            return D.select(self.condition, x, y)  # it hangs on sizes, so this one does too
        converter = self.n.converter
        name = converter.new_size((0, None), lambda: mlir.InsertionPoint.after(self.bound[0]))
        self.sizes.append((name, x, y))
        return symbol(name)


def move_regions(draft: Any, final: ir.Operation) -> list[ir.Value]:
    """The final operation's results; it has its true types, and takes the draft's blocks."""
    for i, region in enumerate(final.regions):
        draft.regions[i].blocks[0].append_to(region)
    draft.erase()
    return list(final.results)
