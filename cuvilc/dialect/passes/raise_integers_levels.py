"""Quantisations and dequantisations among themselves, and past what only moves elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect.ir import Value
from cuvilc.dialect.ops.integer import BYTES
from cuvilc.dialect.passes.rules_graph import Graph, Node, Rewrite

# Operations whose result's elements are elements of their first operand.
_MOVES = ("ai.reshape", "ai.transpose", "ai.slice", "ai.gather", "ai.max_pool", "ai.concat")
_WIDER = {"int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}
_ARITHMETIC = {
    "ai.elemwise_mul": np.multiply, "ai.elemwise_div": np.divide, "ai.elemwise_add": np.add,
    "ai.elemwise_sub": np.subtract,
}  # fmt: skip


def dequantised(g: Graph, value: Value) -> Node | None:
    """What makes the value, if it dequantises bytes."""
    node = g.producer(value, "ai.dequantize_linear")
    fits = node is not None and g.type(node.operands[0]).dtype in BYTES and not node.attr("block")
    return node if fits else None


def is_one(g: Graph, value: Value) -> bool:
    """Whether the value is one number."""
    return g.type(value).shape in ((), (1,))


def line(g: Graph, value: Value, spatial: int = 0) -> Value:
    """One number as a scalar; a line as it broadcasts along channels before `spatial` axes."""
    t = g.type(value)
    if is_one(g, value):
        return value if t.rank == 0 else g.build("ai.reshape", value, shape=())
    return g.build("ai.reshape", value, shape=(*t.shape, *[1] * spatial)) if spatial else value


def zero_of(node: Node) -> Value | None:
    """The zero point of a quantisation or dequantisation; None: 0."""
    return node.operands[2] if len(node.operands) > 2 else None


def known(g: Graph, value: Value) -> Any:
    """The value as an array, if a few operations on constants make it; else None."""
    array = g.array(value)
    node = g.producer(value)
    if array is not None or node is None:
        return array
    parts = [known(g, v) for v in node.operands] if len(node.operands) <= 2 else []
    if not parts or any(p is None for p in parts):
        return None
    if node.name in _ARITHMETIC:
        with np.errstate(all="ignore"):
            return _ARITHMETIC[node.name](*parts)
    if node.name == "ai.reshape" and g.type(value).is_static:
        return parts[0].reshape(g.type(value).shape)
    if node.name == "ai.cast":
        return parts[0].astype(g.type(value).dtype)
    return recoded_array(parts[0]) if node.name == "ai.recode" else None


def recoded_array(levels: np.ndarray) -> np.ndarray:
    """ai.recode of an array."""
    other = np.dtype(np.int8 if levels.dtype == np.uint8 else np.uint8)
    return (levels.view(np.uint8) ^ np.uint8(128)).view(other)


def same(g: Graph, a: Value | None, b: Value | None) -> bool:
    """Whether two scales or zero points are surely equal; None is 0."""
    if a is None and b is None:
        return True
    if a is not None and a == b:
        return True
    x, y = (np.zeros(()) if v is None else known(g, v) for v in (a, b))
    return x is not None and y is not None and bool(np.array_equal(x.reshape(-1), y.reshape(-1)))


def recoded(g: Graph, value: Value, key: str = "recoded") -> Value:
    """ai.recode of a value; of a constant, another constant."""
    array = g.array(value)
    if array is None:
        return g.build("ai.recode", value)
    other = recoded_array(np.array(array))
    if other.size == 1:  # a number that kernels take as an immediate
        return g.full(int(other.reshape(())), g.type(value).shape, other.dtype.name)
    source = g.producer(value)
    stem = source.attr("key") if source is not None and source.name == "ai.constant" else key
    return g.constant(other, f"{stem}.recoded")


# ---- levels of fewer bits


def widened(g: Graph, node: Node) -> Any:
    """dequantise(constant of 2 or 4 bits) → of bytes, as large, which products take."""
    dtype = _WIDER.get(g.type(node.operands[0]).dtype)
    held = [(v, g.array(v)) for v in (node.operands[0], *node.operands[2:])]
    if dtype is None or node.attr("block") or any(array is None for _, array in held):
        return None
    levels, *zero = (_bytes(g, value, array, dtype) for value, array in held)
    return g.build(node.name, levels, node.operands[1], *zero, origin=(node,), **node.attrs)


def _bytes(g: Graph, value: Value, array: np.ndarray, dtype: str) -> Value:
    wide = np.asarray(array).astype(dtype)
    if wide.size == 1:
        return g.full(int(wide.reshape(())), g.type(value).shape, dtype)
    source = g.producer(value)
    stem = source.attr("key") if source is not None and source.name == "ai.constant" else "levels"
    return g.constant(wide, f"{stem}.bytes")


# ---- past moves


def moved(g: Graph, node: Node) -> Any:
    """move(dequantise(x)) → dequantise(move(x)): bytes are moved instead of floats."""
    first = dequantised(g, node.operands[0])
    if first is None:
        return None
    scale, zero = first.operands[1], zero_of(first)
    axis = first.attr("axis")
    if node.name == "ai.max_pool" and not _is_positive(g, scale):
        return None
    if not is_one(g, scale):
        if node.name != "ai.transpose":
            return None
        axis = node.attr("perm").index(axis)
    rest = list(node.operands[1:])
    if node.name == "ai.concat":
        others = [dequantised(g, v) for v in rest]
        for other in others:
            if other is None or not same(g, scale, other.operands[1]):
                return None
            if g.type(other.operands[0]).dtype != g.type(first.operands[0]).dtype:
                return None
            if not same(g, zero, zero_of(other)):
                return None
        rest = [o.operands[0] for o in others if o is not None]
    levels = g.build(node.name, first.operands[0], *rest, origin=(node,), **node.attrs)
    return _again(g, first, levels, axis)


def _is_positive(g: Graph, scale: Value) -> bool:
    array = known(g, scale)
    return array is not None and bool((array > 0).all())


def _again(g: Graph, node: Node, x: Value, axis: int, *zero: Value) -> Any:
    operands = (x, node.operands[1], *(zero or node.operands[2:]))
    return g.build(node.name, *operands, **{**node.attrs, "axis": axis})


def recoded_move(g: Graph, node: Node) -> Any:
    """move(recode(x)) → recode(move(x))."""
    inner = [g.producer(v, "ai.recode") for v in node.operands]
    if inner[0] is None:
        return None
    rest = list(node.operands[1:])
    if node.name == "ai.concat":
        if any(n is None for n in inner):
            return None
        rest = [n.operands[0] for n in inner[1:] if n is not None]
    made = g.build(node.name, inner[0].operands[0], *rest, origin=(node,), **node.attrs)
    return g.build("ai.recode", made)


# ---- one after the other


def undone(g: Graph, node: Node) -> Any:
    """quantise(dequantise(x)) → x, where scale and zero point are the same."""
    first = dequantised(g, node.operands[0])
    if first is None or first.operands[0].type != node.result.type or node.attr("block"):
        return None
    if not same(g, first.operands[1], node.operands[1]):
        return None
    if not is_one(g, node.operands[1]) and first.attr("axis") != node.attr("axis"):
        return None
    return first.operands[0] if same(g, zero_of(first), zero_of(node)) else None


def unsigned(g: Graph, node: Node) -> Any:
    """An int8 quantisation → a uint8 one, recoded: products take uint8 on their left."""
    zero = node.operands[2]
    if g.type(zero).dtype != "int8" or node.attr("block") or g.array(zero) is None:
        return None
    made = g.build(
        node.name, *node.operands[:2], recoded(g, zero, "zero"), origin=(node,), **node.attrs
    )
    return g.build("ai.recode", made)


def recoded_twice(g: Graph, node: Node) -> Any:
    inner = g.producer(node.operands[0], "ai.recode")
    return inner.operands[0] if inner is not None else None


def recoded_level(g: Graph, node: Node) -> Any:
    """dequantise(recode(x)) → dequantise(x) with the zero point recoded."""
    inner = g.producer(node.operands[0], "ai.recode")
    if inner is None:
        return None
    zero = zero_of(node)
    if zero is None:
        dtype = g.type(node.operands[0]).dtype
        zero = g.full(0, g.type(node.operands[1]).shape, dtype)
    if g.array(zero) is None:
        return None
    return _again(g, node, inner.operands[0], node.attr("axis"), recoded(g, zero, "zero"))


# ---- what saturation does anyway


def clamped(g: Graph, node: Node) -> Any:
    """quantise(relu(x)), quantise(clip(x)) → quantise(x), where saturation does the same."""
    inner = g.producer(node.operands[0])
    if inner is None or inner.name not in ("ai.relu", "ai.clip") or not is_one(g, node.operands[1]):
        return None
    scale, zero = (known(g, v) for v in node.operands[1:3])
    if scale is None or zero is None or not (scale > 0).all() or node.attr("block"):
        return None
    limits = np.iinfo(g.type(node.result).dtype)
    low, high = (0.0, np.inf) if inner.name == "ai.relu" else _bounds(inner)
    with np.errstate(all="ignore"):
        first, last = (np.rint(np.float32(v) / scale.astype(np.float32)) for v in (low, high))
    if (first + zero.astype(np.float32)).max() > limits.min:
        return None
    if (last + zero.astype(np.float32)).min() < limits.max:
        return None
    return g.build(node.name, inner.operands[0], *node.operands[1:], origin=(inner, node),
                   **node.attrs)  # fmt: skip


def _bounds(clip: Node) -> tuple[float, float]:
    low, high = clip.attr("low"), clip.attr("high")
    return -np.inf if low is None else low, np.inf if high is None else high


RULES: dict[str, tuple[Rewrite, ...]] = {
    **dict.fromkeys(_MOVES, (moved, recoded_move)),
    "ai.quantize_linear": (undone, unsigned, clamped),
    "ai.dequantize_linear": (widened, recoded_level),
    "ai.recode": (recoded_twice,),
}
