"""Quantised biases follow the scales of their weights.

A bias in int32 is in units of (input's scale · weight's scale), so that sums of integers take it as
it is. When a weight is fitted anew its unit changes, and the bias is rounded to the new one: to
half a unit, as it was before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect.ir import Value
from cuvilc.dialect.lora_packed import MOVES, known
from cuvilc.dialect.lora_refit import Quantised
from cuvilc.dialect.lora_values import Array
from cuvilc.dialect.passes.rules_graph import Graph, Node

_KEEP_SCALE = (*MOVES, "ai.slice", "ai.gather", "ai.max_pool", "ai.relu")
_SAME_UNIT = 1e-5  # as raise-integers has it
_INT32 = np.iinfo(np.int32)


def follow_units(g: Graph, weight: Value, before: Quantised, after: Quantised) -> None:
    """Round the biases of all products by `weight` to the units that they are in afterwards."""
    if before.block or np.array_equal(before.scale, after.scale):
        return
    for user in list(dict.fromkeys(g.users(weight))):
        found = _bias(g, user, weight)
        scale = _input_scale(g, user)
        if found is not None and scale is not None:
            _follow(g, *found, scale, (before.scale, after.scale))


def _bias(g: Graph, user: Node, weight: Value) -> tuple[Node, int, Node] | None:
    """(who reads it, as which operand, what dequantises it) of a bias that only one product has."""
    reader, place = user, 2
    while reader.name in MOVES and len(g.users(reader.result)) == 1:
        weight, reader = reader.result, g.users(reader.result)[0]
    if reader.name == "ai.conv" and len(reader.operands) > 2 and reader.operands[1] == weight:
        place = 2
    elif reader.name == "ai.matmul" and reader.operands[1] == weight:
        readers = g.users(reader.result)
        if len(readers) != 1 or readers[0].name != "ai.elemwise_add":
            return None
        place = 1 if readers[0].operands[0] == reader.result else 0
        reader = readers[0]
    else:
        return None
    source = g.producer(reader.operands[place], "ai.dequantize_linear")
    if source is None or g.type(source.operands[0]).dtype != "int32" or source.attr("block"):
        return None
    return reader, place, source


def _input_scale(g: Graph, user: Node) -> Array | None:
    """The one scale of what the product's other operand was dequantised from."""
    while user.name in MOVES and len(g.users(user.result)) == 1:
        user = g.users(user.result)[0]
    node = g.producer(user.operands[0])
    while node is not None and node.name in _KEEP_SCALE:
        node = g.producer(node.operands[0])
    if node is None or node.name != "ai.dequantize_linear":
        return None
    scale = known(g.program, node.operands[1])
    return scale.reshape(()) if scale is not None and scale.size == 1 else None


def _follow(
    g: Graph, reader: Node, place: int, source: Node, scale: Array, units: tuple[Array, Array]
) -> None:
    arrays: list[Any] = [known(g.program, v) for v in source.operands]
    if any(a is None for a in arrays) or (len(arrays) > 2 and arrays[2].any()):
        return
    levels, unit = arrays[0].astype(np.float64), arrays[1].astype(np.float64)
    old, new = (scale.astype(np.float64) * u.astype(np.float64).reshape(-1) for u in units)
    if unit.size not in (1, old.size) or not np.allclose(unit, old, rtol=_SAME_UNIT, atol=0):
        return
    new = np.broadcast_to(new, unit.shape) if unit.size == new.size else new[:1].reshape(unit.shape)
    made = np.clip(np.rint(levels * unit / new), _INT32.min, _INT32.max).astype(np.int32)
    key = f"{g.key(source.operands[0]) if g.is_constant(source.operands[0]) else 'bias'}+unit"
    operands = [g.constant(made, key, at=reader),
                g.constant(new.astype(arrays[1].dtype).reshape(arrays[1].shape),
                           f"{key}.scale", at=reader)]  # fmt: skip
    operands += source.operands[2:]
    value = g.build("ai.dequantize_linear", *operands, origin=(source,), at=reader, **source.attrs)
    g.set_operand(reader, place, value)
    g.drop(source)
