"""Sums of bytes in the form that schedules know: uint8 times int8, zero points in terms beside."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect.dims import product
from cuvilc.dialect.ir import Value
from cuvilc.dialect.passes.context import Miss
from cuvilc.dialect.passes.raise_integers_levels import known, line, recoded
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rules

_DENSE = 64  # most groups of a convolution that is computed as one


def plain_product(g: Graph, node: Node) -> Any:
    """ai.matmul_integer of any bytes → one of uint8 and int8 without zero points."""
    a, b = node.operands[:2]
    types = [g.type(v) for v in (a, b)]
    if (types[0].dtype, types[1].dtype, len(node.operands)) == ("uint8", "int8", 2):
        return None
    if min(t.rank for t in types) < 2:
        raise Miss("a vector")
    zeros = [*node.operands[2:], None, None][:2]
    a, p = _coded(g, a, zeros[0], "uint8", lambda z: _column(g, z, types[0].rank))
    b, q = _coded(g, b, zeros[1], "int8", lambda z: z)
    y = g.build("ai.matmul_integer", a, b, origin=(node,))
    size = types[0].shape[-1]
    if p is not None:
        y = _less(g, y, p, _total(g, b, (types[1].rank - 2,)))
    if q is not None:
        y = _less(g, y, q, _total(g, a, (types[0].rank - 1,)))
    if p is not None and q is not None:
        y = g.build("ai.elemwise_add", y, _times(g, _times(g, p, q), _count(g, size)))
    return y


def plain_convolution(g: Graph, node: Node) -> Any:
    """ai.conv_integer of any bytes → one of uint8 and int8 that is not centred."""
    if not node.attr("centred"):
        return None
    x, w, *zeros = node.operands
    zeros = [*zeros, None, None][:2]
    t = g.type(w)
    groups, spatial = node.attr("groups"), t.rank - 2
    outputs, *taps = t.shape
    if taps[0] == 1 and 1 != groups == outputs:  # channels alone: their schedules subtract zeros
        return _without_zeros(g, node)
    x, p = _coded(g, x, zeros[0], "uint8", lambda z: line(g, z))
    w, q = _coded(g, w, zeros[1], "int8", lambda z: line(g, z, spatial))
    if q is not None and groups > 1:
        raise Miss("weights with a zero point in groups")
    outside = line(g, zeros[0]) if zeros[0] is not None else g.full(0, (), g.type(x).dtype)
    if g.type(outside).dtype == "int8":
        outside = recoded(g, outside, "zero")
    elif g.type(node.operands[0]).dtype == "int8":
        outside = g.full(128, (), "uint8")
    attrs = {**node.attrs, "centred": False}
    w, attrs["groups"] = _dense(g, w, groups)
    y = g.build("ai.conv_integer", x, w, outside, origin=(node,), **attrs)
    if p is not None:
        sums = _total(g, w, tuple(range(1, t.rank)), keep=False)
        y = _less(g, y, p, line(g, sums, spatial))
    if q is not None:
        ones = g.full(1, (1, *taps), "int8")
        y = _less(g, y, q, g.build("ai.conv_integer", x, _stored(g, ones), outside, **attrs))
    if p is not None and q is not None:
        y = g.build("ai.elemwise_add", y, _times(g, _times(g, p, q), _count(g, product(taps))))
    return y


def _without_zeros(g: Graph, node: Node) -> Any:
    """The convolution without weights' zero points that are all 0, or None where it has none."""
    if len(node.operands) < 4:
        return None
    q = known(g, node.operands[3])
    if q is None or q.any():
        return None
    return g.build("ai.conv_integer", *node.operands[:3], origin=(node,), **node.attrs)


def _coded(
    g: Graph, x: Value, zero: Value | None, dtype: str, place: Any
) -> tuple[Value, Value | None]:
    """(x in the code `dtype`, its zero point as int32 laid out by `place`; None where it is 0)."""
    other = g.type(x).dtype != dtype
    if other:
        x = recoded(g, x)
        shift = 128 if dtype == "uint8" else -128
    if zero is None:
        return x, g.full(shift, (), "int32") if other else None
    array = known(g, zero)
    if array is not None:
        levels = array.astype(np.int32) + (shift if other else 0)
        if not levels.any():
            return x, None
        return x, place(_numbers(g, levels))
    wide = g.build("ai.cast", zero, dtype="int32")
    if other:
        wide = g.build("ai.elemwise_add", wide, g.full(shift, (), "int32"))
    return x, place(wide)


def _numbers(g: Graph, levels: np.ndarray) -> Value:
    if levels.size == 1:
        return g.full(int(levels.reshape(())), (), "int32")
    return g.constant(levels, "zero")


def _column(g: Graph, zero: Value, rank: int) -> Value:
    """Zero points of rows [M] as they stand beside a product, [M, 1]."""
    t = g.type(zero)
    if t.rank != 1 or rank < 2 or t.shape == (1,):
        return zero
    return g.build("ai.reshape", zero, shape=(*t.shape, 1))


def _total(g: Graph, x: Value, axes: tuple[int, ...], keep: bool = True) -> Value:
    wide = g.build("ai.cast", x, dtype="int32")
    return g.build("ai.reduce_sum", wide, axes=axes, keepdims=keep)


def _times(g: Graph, a: Value, b: Value) -> Value:
    return g.build("ai.elemwise_mul", a, b)


def _less(g: Graph, y: Value, zero: Value, sums: Value) -> Value:
    """y - zero · sums, whose shapes broadcast to y's."""
    return g.build("ai.elemwise_sub", y, _times(g, zero, sums))


def _count(g: Graph, size: Any) -> Value:
    """A size as an int32 number."""
    if isinstance(size, int):
        return g.full(size, (), "int32")
    sizes = g.build("ai.dim_values", values=(size,))
    return g.build("ai.cast", g.build("ai.reshape", sizes, shape=()), dtype="int32")


def _stored(g: Graph, full: Value) -> Value:
    """A constant instead of an ai.full, as packed weights are."""
    return g.constant(np.ascontiguousarray(g.array(full)), "ones")


def _dense(g: Graph, w: Value, groups: int) -> tuple[Value, int]:
    """Weights of a few small groups as those of one, zeros between: (weights, groups)."""
    array = g.array(w)
    if groups == 1 or array is None or groups > _DENSE:
        return w, groups
    outputs, channels, *taps = array.shape
    if channels % 16 == 0 and (outputs // groups) % 32 == 0:
        return w, groups
    wide = np.zeros((groups, outputs // groups, groups, channels, *taps), np.int8)
    for i in range(groups):
        wide[i, :, i] = array.reshape(groups, outputs // groups, channels, *taps)[i]
    return g.constant(wide.reshape(outputs, groups * channels, *taps), "dense"), 1


RULES: Rules = {
    "ai.matmul_integer": (plain_product,),
    "ai.conv_integer": (plain_convolution,),
}
