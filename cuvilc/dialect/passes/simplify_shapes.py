"""Fewer and cheaper moves: transposes sink below elementwise operations until they meet and cancel,
pads go into convolutions, transposes that move only axes of size 1 become reshapes, which cost
nothing.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect.ir import Program, Value
from cuvilc.dialect.op import OPS
from cuvilc.dialect.passes import rules_algebra, rules_moves
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rewrite, rewrite

NAME = "simplify-shapes"
VERSION = 1


def run(program: Program, context: PassContext) -> None:
    """After it no transpose stands before an elementwise operation that could come first."""
    with program:
        rewrite(Graph(program), _rules(), context)


def transpose_of_ones(g: Graph, node: Node) -> Any:
    """A transpose that leaves the order of all axes larger than 1 → reshape."""
    perm, shape = node.attr("perm"), g.type(node.operands[0]).shape
    moving = [p for p in perm if shape[p] != 1]
    if moving != sorted(moving) or g.type(node.operands[0]).layout:
        return None
    return g.build("ai.reshape", node.operands[0], shape=g.type(node.result).shape)


def sink_transpose(g: Graph, node: Node) -> Any:
    """op(transpose(x), …) → transpose(op(x, …)) where all other operands can be read transposed."""
    sources = [g.producer(v, "ai.transpose") for v in node.operands]
    first = next((s for s in sources if s is not None), None)
    if first is None or any(g.type(v).layout for v in node.operands):
        return None
    perm = first.attr("perm")
    if g.type(node.result).shape != g.type(first.result).shape:
        return None
    if not all(s is None or (s.attr("perm") == perm and g.one_use(s.result)) for s in sources):
        if all(s is None or s.attr("perm") == perm for s in sources):
            raise Miss("the transposed value is used elsewhere too")
        return None
    operands = []
    for value, source in zip(node.operands, sources, strict=True):
        moved = source.operands[0] if source is not None else _read_transposed(g, value, perm)
        if moved is None:
            return None
        operands.append(moved)
    inner = g.build(node.name, *operands, **node.broadcasting())
    return g.build("ai.transpose", inner, perm=perm, origin=(first, node))


def _read_transposed(g: Graph, value: Value, perm: tuple[int, ...]) -> Value | None:
    """A number or constant laid out for an operation before the transpose `perm`."""
    t = g.type(value)
    if t.rank == 0 or (all(d == 1 for d in t.shape) and g.number(value) is not None):
        return value if t.rank == 0 else g.full(g.number(value), (), t.dtype)
    if not g.is_constant(value):
        return None
    rank = len(perm)
    padded = (1,) * (rank - t.rank) + t.shape
    wide = value if t.rank == rank else g.build("ai.reshape", value, shape=padded)
    return g.build("ai.transpose", wide, perm=tuple(perm.index(i) for i in range(rank)))


def pad_into_conv(g: Graph, node: Node) -> Any:
    """A constant 0 pad of the spatial axes before a convolution → its own padding."""
    pad = g.producer(node.operands[0], "ai.pad")
    if pad is None or pad.attr("mode") != "constant":
        return None
    before, after = pad.attr("before"), pad.attr("after")
    if any(p != 0 for p in (*before[:2], *after[:2])):
        raise Miss("the pad also widens the batch or the channels")
    if pad.attr("value") != 0:
        raise Miss(f"the pad's value is {pad.attr('value')}, not 0")
    if not all(isinstance(p, int) for p in (*before, *after)):
        raise Miss("the pad's width is known at run time only")
    attrs = node.attrs
    attrs["pads_begin"] = tuple(a + b for a, b in zip(attrs["pads_begin"], before[2:], strict=True))
    attrs["pads_end"] = tuple(a + b for a, b in zip(attrs["pads_end"], after[2:], strict=True))
    return g.build("ai.conv", pad.operands[0], *node.operands[1:], origin=(pad, node), **attrs)


def reshape_of_pad(g: Graph, node: Node) -> Any:
    """reshape(pad(x)) → pad(reshape(x)) where only axes of size 1 come or go."""
    pad = g.producer(node.operands[0], "ai.pad")
    if pad is None or not g.one_use(pad.result):
        return None
    before, after = pad.attr("before"), pad.attr("after")
    wide, target = g.type(pad.result).shape, g.type(node.result).shape
    axes = [i for i, d in enumerate(wide) if d != 1]
    places = [i for i, d in enumerate(target) if d != 1]
    if [wide[i] for i in axes] != [target[i] for i in places]:
        return None
    source = dict(zip(places, axes, strict=True))
    inner = g.type(pad.operands[0]).shape
    if any(inner[i] != 1 for i in range(len(wide)) if i not in axes):
        return None
    x = g.build(
        "ai.reshape", pad.operands[0],
        shape=tuple(inner[source[i]] if i in source else 1 for i in range(len(target))),
    )  # fmt: skip
    moved = [
        tuple(p[source[i]] if i in source else 0 for i in range(len(target)))
        for p in (before, after)
    ]
    mode, value = pad.attr("mode"), pad.attr("value")
    return g.build(
        "ai.pad", x, before=moved[0], after=moved[1], mode=mode, value=value, origin=(pad, node)
    )


_FIRST: dict[str, tuple[Rewrite, ...]] = {
    "ai.transpose": (transpose_of_ones,),
    "ai.conv": (pad_into_conv,),
    "ai.reshape": (reshape_of_pad,),
}


def _rules() -> dict[str, tuple[Rewrite, ...]]:
    base = rules_algebra.RULES | rules_moves.RULES
    rules = {name: (*_FIRST.get(name, ()), *base.get(name, ())) for name in {*base, *_FIRST}}
    for name, declared in OPS.items():
        if "elementwise" in declared.traits:
            rules[name] = (*rules.get(name, ()), sink_transpose)
    return rules
