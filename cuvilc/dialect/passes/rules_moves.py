"""Identities of operations that only move elements: reshapes, transposes, slices, pads, joins."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect.dims import Dim, Shape
from cuvilc.dialect.ir import Value
from cuvilc.dialect.op import MANY
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rewrite


def same_result(g: Graph, node: Node) -> Any:
    """A move that changes nothing: reshape, broadcast or relayout to the same type."""
    x = node.operands[0]
    return x if x.type == node.result.type else None


def reshape_chain(g: Graph, node: Node) -> Any:
    inner = g.producer(node.operands[0], "ai.reshape")
    if inner is None:
        return None
    return g.build("ai.reshape", inner.operands[0], shape=node.attr("shape"), origin=(inner, node))


def reshape_around_transpose(g: Graph, node: Node) -> Any:
    """reshape(transpose(reshape(x))) → transpose(reshape(x)), where the outer one splits axes.

    PyTorch's exporter writes kᵀ so: [B, H, S, D] → [B·H, S, D] → [B·H, D, S] → [B, H, D, S]; the
    remaining reshape is then of x to its own shape, or joins the one that made x.
    """
    moved = g.producer(node.operands[0], "ai.transpose")
    merged = g.producer(moved.operands[0], "ai.reshape") if moved is not None else None
    if moved is None or merged is None or not g.one_use(moved.result):
        return None
    perm, shape = moved.attr("perm"), g.type(node.result).shape
    groups = _merged_axes(shape, g.type(moved.result).shape)
    if groups is None:
        return None
    places = sorted(range(len(perm)), key=lambda j: perm[j])
    before = [axis for j in places for axis in groups[j]]  # result's axes in the order of x's
    x = g.build("ai.reshape", merged.operands[0], shape=tuple(shape[a] for a in before))
    order = tuple(before.index(axis) for axis in range(len(shape)))
    return g.build("ai.transpose", x, perm=order, origin=(merged, moved, node))


def _merged_axes(shape: Shape, merged: Shape) -> list[list[int]] | None:
    """For each axis of `merged`, the consecutive axes of `shape` whose product it is."""
    groups, axis = [], 0
    for extent in merged:
        group: list[int] = []
        size: Dim = 1
        while not group or size != extent:
            if axis == len(shape):
                return None
            size, group, axis = size * shape[axis], [*group, axis], axis + 1
        groups.append(group)
    return groups if axis == len(shape) else None


def moved_full(g: Graph, node: Node) -> Any:
    """A moved ai.full is an ai.full."""
    number = g.number(node.operands[0])
    t = g.type(node.result)
    return None if number is None or t.layout else g.full(number, t.shape, t.dtype)


def transpose_chain(g: Graph, node: Node) -> Any:
    """Transposes in a row → one; the identity → x."""
    perm = node.attr("perm")
    inner = g.producer(node.operands[0], "ai.transpose")
    x = node.operands[0]
    if inner is not None:
        x, first = inner.operands[0], inner.attr("perm")
        perm = tuple(first[p] for p in perm)
    if perm == tuple(range(len(perm))):
        return x
    if inner is None:
        return None
    return g.build("ai.transpose", x, perm=perm, origin=(inner, node))


def slice_known(g: Graph, node: Node) -> Any:
    """The whole of x → x; a slice of a slice → one."""
    x = node.operands[0]
    starts, steps = node.attr("starts"), node.attr("steps")
    if x.type == node.result.type and all(s == 0 for s in starts) and all(s == 1 for s in steps):
        return x
    inner = g.producer(x, "ai.slice")
    if inner is None:
        return None
    begin, stride = inner.attr("starts"), inner.attr("steps")
    return g.build(
        "ai.slice", inner.operands[0], origin=(inner, node),
        starts=tuple(b + s * t for b, t, s in zip(begin, stride, starts, strict=True)),
        steps=tuple(t * s for t, s in zip(stride, steps, strict=True)),
        sizes=node.attr("sizes"),
    )  # fmt: skip


def pad_nothing(g: Graph, node: Node) -> Any:
    pads = (*node.attr("before"), *node.attr("after"))
    return node.operands[0] if all(p == 0 for p in pads) else None


def tile_nothing(g: Graph, node: Node) -> Any:
    return node.operands[0] if all(r == 1 for r in node.attr("repeats")) else None


def concat_known(g: Graph, node: Node) -> Any:
    """One operand → itself; a concat inside, of the same axis and used here only → flat."""
    if len(node.operands) == 1:
        return node.operands[0]
    axis, flat, origin = node.attr("axis"), [], [node]
    for v in node.operands:
        inner = g.producer(v, "ai.concat")
        if inner is not None and inner.attr("axis") == axis and g.one_use(v):
            flat += inner.operands
            origin.append(inner)
        else:
            flat.append(v)
    if len(flat) == len(node.operands) or len(flat) > MANY:
        return None
    return g.build("ai.concat", *flat, axis=axis, origin=origin)


def broadcast_chain(g: Graph, node: Node) -> Any:
    inner = g.producer(node.operands[0], "ai.broadcast_to")
    if inner is None:
        return None
    return g.build("ai.broadcast_to", inner.operands[0], shape=node.attr("shape"))


def gather_one(g: Graph, node: Node) -> Any:
    """A gather at one known place → slice and reshape, which need no index and often no copy."""
    x, indices = node.operands
    place, axis, t = g.number(indices), node.attr("axis"), g.type(x)
    if place is None or t.layout or any(d != 1 for d in g.type(indices).shape):
        return None
    extent = t.shape[axis]
    if isinstance(extent, int):
        place += extent if place < 0 else 0
        if not 0 <= place < extent:
            return None  # the kernel reports the fault
    elif place != 0:
        return None  # whether the size allows it is known at run time only
    cut = g.build(
        "ai.slice", x, starts=tuple(place if j == axis else 0 for j in range(t.rank)),
        steps=(1,) * t.rank, sizes=tuple(1 if j == axis else d for j, d in enumerate(t.shape)),
    )  # fmt: skip
    return g.build("ai.reshape", cut, shape=g.type(node.result).shape)


def gather_of_scaled(g: Graph, node: Node) -> Any:
    """gather(op(table, …)) → op(gather(table), …) for constants: computes the read rows only."""
    x, indices = node.operands
    source = g.producer(x)
    if source is None or not source.is_a("elementwise") or not g.one_use(x):
        return None
    axis, t = node.attr("axis"), g.type(x)
    constants = [v for v in source.operands if g.type(v).rank]
    if not constants or not all(g.type(v).rank == t.rank and _is_made(g, v) for v in constants):
        return None
    operands = [
        g.build("ai.gather", v, indices, axis=axis)
        if g.type(v).rank and g.type(v).shape[axis] == t.shape[axis] else v
        for v in source.operands
    ]  # fmt: skip
    if g.type(indices).rank != 1 and any(
        g.type(v).rank and g.type(v).shape[axis] != t.shape[axis] for v in source.operands
    ):
        return None
    return g.build(source.name, *operands, origin=(source, node), **source.attrs)


def _is_made(g: Graph, value: Value) -> bool:
    """A constant, or an elementwise operation on constants."""
    node = g.producer(value)
    if node is None:
        return False
    if node.name in ("ai.constant", "ai.parameter", "ai.full"):
        return True
    return node.is_a("elementwise") and all(_is_made(g, v) for v in node.operands)


def matmul_transposed(g: Graph, node: Node) -> Any:
    """A transpose of the last two axes before a product → its transpose flag."""
    flags = [node.attr("transpose_a"), node.attr("transpose_b")]
    operands = list(node.operands)
    for i in (0, 1):
        inner = g.producer(operands[i], "ai.transpose")
        if inner is None:
            continue
        perm, n = inner.attr("perm"), len(inner.attr("perm"))
        if n >= 2 and perm == (*range(n - 2), n - 1, n - 2):
            operands[i], flags[i] = inner.operands[0], not flags[i]
    if operands == node.operands:
        return None
    return g.build("ai.matmul", *operands, transpose_a=flags[0], transpose_b=flags[1])


RULES: dict[str, tuple[Rewrite, ...]] = {
    "ai.reshape": (same_result, moved_full, reshape_chain, reshape_around_transpose),
    "ai.transpose": (moved_full, transpose_chain),
    "ai.broadcast_to": (same_result, moved_full, broadcast_chain),
    "ai.relayout": (same_result,),
    "ai.slice": (moved_full, slice_known),
    "ai.tile": (moved_full, tile_nothing),
    "ai.pad": (pad_nothing,),
    "ai.concat": (concat_known,),
    "ai.gather": (gather_one, gather_of_scaled),
    "ai.matmul": (matmul_transposed,),
}
