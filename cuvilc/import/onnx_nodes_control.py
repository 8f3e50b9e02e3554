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
from .onnx_node import DataDependent, Node, ai, reshape
from .onnx_sequences import OptionalVal, SequenceVal
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
    blocks = [draft.regions[i].blocks.append() for i in range(2)]
    first, second = (_branch(n, g, b) for g, b in zip(branches, blocks, strict=True))
    if first is None or second is None:
        return [None] * n.results
    common = Common(n, condition)
    given = [common.result(i, *pair) for i, pair in enumerate(zip(first, second, strict=True))]
    types = [t for y in given for t in (y if isinstance(y, list) else [y])]
    final = ir.create("ai.if", flag, types=types, sizes=tuple(common.sizes))
    common.bound.append(final)
    results = iter(move_regions(draft, final))
    return [
        SequenceVal([Val.of(next(results)) for _ in y]) if isinstance(y, list) else next(results)
        for y in given
    ]


def _ranks_hang_on_sizes(n: Node, branches: tuple[Any, Any]) -> bool:
    """Whether one branch only drops or adds axes of size 1, as scripted `squeeze` exports: then
    the model is valid for sizes that lead to one branch alone, since what follows has one rank."""
    kinds = [
        [node.op_type for node in graph.node if node.op_type != "Constant"] for graph in branches
    ]
    return any(k in (["Squeeze"], ["Unsqueeze"]) for k in kinds) and any(
        k in (["Identity"], []) for k in kinds
    )


Yielded = TensorType | list[TensorType]  # of a tensor, of a sequence's elements


def _branch(n: Node, graph: Any, block: Any) -> list[Yielded] | None:
    """Import a branch into its block; the types it yields, or None when something in it failed.

    A sequence yields each of its elements.
    """
    converter = n.converter
    converter.depth += 1
    try:
        with ir.at_end(block):
            vals: list[Val | None] = converter.inner(graph, n)
            if any(v is None for v in vals):
                return None
            if any(isinstance(v, OptionalVal) for v in vals):
                raise DataDependent("which optional it gives is")
            given = [v.items() if isinstance(v, SequenceVal) else v for v in vals if v is not None]
            tensors = [v for g in given for v in (g if isinstance(g, list) else [g])]
            values = [converter.value(v) for v in tensors]
            ai("yield", *values)
    finally:
        converter.depth -= 1
    types = iter([ir.type_of(v) for v in values])
    return [[next(types) for _ in g] if isinstance(g, list) else next(types) for g in given]


class Common:
    """The types that both branches' results have; sizes that differ get a name of their own."""

    def __init__(self, n: Node, condition: Any) -> None:
        self.n, self.condition = n, condition
        self.sizes: list[tuple[str, Dim, Dim]] = []  # (symbol, in the first branch, in the second)
        self.bound: list[ir.Operation] = []  # the conditional, once it is built

    def result(self, i: int, a: Yielded, b: Yielded) -> Yielded:
        """The type of both branches' result i. CUV114 where dtype, rank or length differ."""
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            return [self.tensor(i, x, y) for x, y in zip(a, b, strict=True)]
        if isinstance(a, list) or isinstance(b, list):
            raise self.differ(i, a, b)
        return self.tensor(i, a, b)

    def tensor(self, i: int, a: TensorType, b: TensorType) -> TensorType:
        if (a.dtype, a.rank) != (b.dtype, b.rank):
            raise self.differ(i, a, b)
        sizes = [self.size(x, y) for x, y in zip(a.shape, b.shape, strict=True)]
        return TensorType(tuple(sizes), a.dtype)

    def differ(self, i: int, first: Yielded, second: Yielded) -> Exception:
        a, b = (
            f"a sequence of {len(y)}" if isinstance(y, list) else str(y) for y in (first, second)
        )
        name = self.n.proto.output[i]
        then, other = (
            self.n.attr(branch).output[i].name for branch in ("then_branch", "else_branch")
        )
        return fail(
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
