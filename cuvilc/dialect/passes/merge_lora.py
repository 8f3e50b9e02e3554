"""Adapters of constants go into the weights: one rounding, and nothing left to do at run time.

Several adapters, one over the other, are added in float64 before that rounding. A quantised weight
(an `ai.dequantize_linear` of constants, or what was an `ai.matmul_nbits`) is quantised anew with
scales fitted to the merged values, in the groups and the form it had, so the same kernels run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from cuvilc.diagnostics import fail
from cuvilc.dialect import lora_codes as codes
from cuvilc.dialect.ir import Program, Value
from cuvilc.dialect.lora_packed import MOVES, known
from cuvilc.dialect.lora_refit import Quantised, refit
from cuvilc.dialect.lora_values import Loss, Part, merge
from cuvilc.dialect.narrow import pack
from cuvilc.dialect.passes.canonicalize import in_order
from cuvilc.dialect.passes.context import MergedWeight, PassContext
from cuvilc.dialect.passes.merge_lora_units import follow_units
from cuvilc.dialect.passes.rules_graph import Graph, Node

NAME = "merge-lora"
VERSION = 1


def run(program: Program, context: PassContext) -> None:
    """After it no `ai.lora` of constants is left. CUV740, CUV741."""
    with program:
        graph = Graph(program)
        wanted = _checked(graph)
        for n in graph.live():
            if n.name == "ai.lora" and not _is_constant(graph, n):
                context.miss(NAME, n.op, "its weight or its factors arrive at run time")
        sources = {graph.key(v) for c in wanted for v in c.constants(graph)}
        for number, chain in enumerate(wanted):
            if context.progress:
                context.progress(number, len(wanted), chain.parts[-1].module)
            _fold(graph, chain, context)
            context.apply(NAME)
        _forget(graph, sources)


def check(program: Program) -> None:
    """Whether `run` can merge what there is, apart from the values. CUV740."""
    with program:
        _checked(Graph(program))


def _checked(graph: Graph) -> list[_Chain]:
    """All chains, each of adapters that add up."""
    chains = [_chain(graph, n) for n in in_order(graph) if n.name == "ai.lora"]
    found = [c for c in chains if c is not None]
    for chain in found:
        _check(chain)
    return found


def _forget(g: Graph, keys: set[str]) -> None:
    """Let go of the arrays that nothing reads any more."""
    read = {n.attr("key") for n in g.live() if n.name == "ai.constant"}
    for key in keys - read:
        g.program.weights.pop(key, None)


@dataclass
class _Chain:
    """Adapters over one weight: `root` makes it, `last` is the outermost `ai.lora`."""

    root: Node
    last: Node
    parts: list[Part]

    def constants(self, g: Graph) -> Iterator[Value]:
        """What weight and adapters are made of."""
        node, values = self.last, [*self.root.operands, self.root.result]
        while node is not self.root:
            values += node.operands[1:]
            node = g.producers[node.operands[0]]
        yield from (v for v in values if g.is_constant(v))


def _chain(g: Graph, last: Node) -> _Chain | None:
    """The chain that ends here; None where another goes on and nothing else needs this value."""
    if all(_continues(user, last) for user in g.users(last.result)):
        return None
    parts: list[Part] = []
    node: Node | None = last
    while node is not None and node.name == "ai.lora":
        if not _is_constant(g, node):
            return None
        parts.append(_part(g, node))
        node = g.producer(node.operands[0])
    if node is None or not _is_weight(g, node):
        return None
    return _Chain(node, last, parts[::-1])


def _continues(user: Node, node: Node) -> bool:
    return user.name == "ai.lora" and user.operands[0] == node.result


def _is_constant(g: Graph, node: Node) -> bool:
    """Whether the factors are known, and the weight or what it is made of."""
    factors = all(g.array(v) is not None for v in node.operands[1:])
    source = g.producer(node.operands[0])
    known = source is not None and (source.name == "ai.lora" or _is_weight(g, source))
    return factors and known


def _is_weight(g: Graph, node: Node) -> bool:
    if node.name == "ai.dequantize_linear":
        return all(known(g.program, v) is not None for v in node.operands)
    return g.array(node.result) is not None


def _part(g: Graph, node: Node) -> Part:
    a, b, *magnitude = (g.array(v) for v in node.operands[1:])
    return Part(
        a, b, magnitude[0] if magnitude else None, node.attr("scale"), node.attr("start"),
        node.attr("adapter"), node.attr("module"),
    )  # fmt: skip


def _check(chain: _Chain) -> None:
    """CUV740 where a magnitude meets another part of the same outputs."""
    for i, part in enumerate(chain.parts):
        for other in chain.parts[:i]:
            if part.overlaps(other) and not (part.magnitude is other.magnitude is None):
                raise fail(
                    codes.CHAINED_MAGNITUDES,
                    f"`{part.adapter}` and `{other.adapter}` both change `{part.module}`",
                    place=str(chain.root.attrs.get("key", "")),
                )


def _fold(g: Graph, chain: _Chain, context: PassContext) -> None:
    axis, root, last = chain.last.attr("out_axis"), chain.root, chain.last
    g.here = last
    if root.name == "ai.dequantize_linear":
        arrays: list[Any] = [known(g.program, v) for v in root.operands]
        weight = Quantised(
            arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None,
            root.attr("axis"), root.attr("block"),
        )  # fmt: skip
        made, loss = refit(weight, axis, chain.parts)
        stored: Any = made.levels
        key, dtype = _key(g, root.operands[0], chain), weight.dtype
        _require_finite(loss, chain, dtype)
        if not last.attr("bits"):
            follow_units(g, last.result, weight, made)
        _replace_quantised(g, chain, made, key)
    else:
        weight_array = g.array(root.result)
        key, dtype = _key(g, root.result, chain), weight_array.dtype.name
        stored, loss = merge(weight_array, axis, chain.parts)
        _require_finite(loss, chain, dtype)
        g.replace(last, g.constant(stored, key))
    context.merged.append(
        MergedWeight(
            key.split("+")[0], tuple((p.adapter, p.module) for p in chain.parts), dtype,
            int(stored.nbytes), loss,
        )
    )  # fmt: skip


def _key(g: Graph, value: Value, chain: _Chain) -> str:
    """The base weight's key, and which adapters are in it."""
    names = "+".join(dict.fromkeys(p.adapter for p in chain.parts))
    source = g.producer(value)
    while source is not None and source.name in MOVES:
        source = g.producer(source.operands[0])
    key = source.attr("key") if source is not None and source.name == "ai.constant" else "weight"
    return f"{key}+{names}"


def _require_finite(loss: Loss, chain: _Chain, dtype: str) -> None:
    if not isfinite(loss.max_abs):
        part = chain.parts[-1]
        raise fail(
            codes.NOT_FINITE,
            f"`{part.module}` with adapter `{part.adapter}` does not fit in {dtype}",
            evidence=f"largest element of the merged weight: {loss.largest:.6g}",
        )


def _replace_quantised(g: Graph, chain: _Chain, made: Quantised, key: str) -> None:
    bits = chain.last.attr("bits")
    zero = chain.root.operands[2] if len(chain.root.operands) > 2 else None
    scale = g.constant(made.scale, f"{key}.scale")
    if bits:
        _replace_packed(g, chain, made, scale, (key, bits, g.number(zero) is None))
        return
    operands = [g.constant(made.levels, key), scale]
    if zero is not None:
        assert made.zero is not None
        before: Any = known(g.program, zero)
        same = np.array_equal(made.zero, before)
        operands.append(zero if same else g.constant(made.zero, f"{key}.zero"))
    root = chain.root
    value = g.build(
        "ai.dequantize_linear", *operands, origin=(root,), axis=made.axis, block=made.block
    )
    g.replace(chain.last, value)


def _replace_packed(
    g: Graph, chain: _Chain, made: Quantised, scale: Value, form: tuple[str, int, bool]
) -> None:
    """The products by this weight as `ai.matmul_nbits` again."""
    key, bits, has_zero = form
    operands = [g.constant(pack(made.levels, bits), key), scale]
    if has_zero:
        assert made.zero is not None
        operands.append(g.constant(made.zero.astype(np.uint8), f"{key}.zero"))
    for user in list(dict.fromkeys(g.users(chain.last.result))):
        assert user.name == "ai.matmul" and user.attr("transpose_b")
        value = g.build(
            "ai.matmul_nbits", user.operands[0], *operands, origin=(user,), at=user,
            bits=bits, block=made.block,
        )  # fmt: skip
        g.replace(user, value)
