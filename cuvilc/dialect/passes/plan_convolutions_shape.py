"""Convolutions and pools in terms of those that have a schedule: three axes, small groups.

- The taps along the first of three spatial axes become input channels: what tap t of a window sees
  of channel c is channel t·C + c of an image, and one convolution of two axes sums over all. Laid
  out as images by depth, x [1, D, C, H, W] has such images already, which overlap (`stack`);
  otherwise it is copied as [N·D', k·C, H, W]. Depthwise, of one image and without a stride along
  the depth, each tap is a convolution of all frames, and the results are added up, moved along the
  depth: groups of few channels would fill no blocks.
- A pool of three axes is one of the last two, then one along the first. (The mean of means is the
  mean: how many cells of a window are inside along one axis does not depend on the others.)
- Groups of one channel that make several repeat it, as many times as they make outputs.
- Groups whose channels do not fill blocks are joined, as many as do, by weights with zeros between
  them: what is multiplied by zeros would have been empty lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.op import MANY
from cuvilc.dialect.passes.context import Miss, PassContext

RULE = "plan-convolutions"
_FEW = 4  # groups: so few are joined, which multiplies by fewer zeros than repeating would copy
_MOST_JOINED = 32  # groups: beyond, zeros cost more than they bring


def stack_depth(program: Program, operation: Operation, context: PassContext) -> None:
    """A convolution of three spatial axes by constant weights as one of two."""
    x, w, *bias = operation.operands
    weights = program.constant_array(w)
    if ir.type_of(x).rank != 5 or ir.type_of(x).layout:
        return
    if weights is None or weights.shape[2] > MANY:
        context.miss(RULE, operation, "weights at run time, or too many taps along the depth")
        return
    attrs = ir.attrs(operation)
    outputs, channels, depth, *kernel = weights.shape
    n, o, *grid = ir.type_of(operation.results[0]).shape
    key = ir.attrs(ir.defining(w)).get("key", "w")
    depthwise = channels == 1 and outputs == attrs["groups"] > _FEW
    if depthwise and n == attrs["strides"][0] == 1:
        with ir.before(operation):
            ir.replace(operation, _sum_of_frames(program, x, weights, bias, attrs, grid, key))
        context.apply(RULE)
        return
    flat_attrs = _of_image(attrs)
    with ir.before(operation):
        images = _by_depth(x, attrs)
        if _lies_stacked(n, depth, channels, attrs, context):
            images = ir.build("ai.reshape", images, shape=_flat_images(images))
            flat_attrs |= {"stack": depth, "stack_step": attrs["strides"][0]}
        else:
            images = _taps(images, depth, grid[0], attrs)
        flat = weights.swapaxes(1, 2).reshape(outputs, channels * depth, *kernel)
        y = ir.build("ai.conv", images, ir.constant(program, flat, key), *bias, **flat_attrs)
        y = ir.build("ai.reshape", y, shape=(n, grid[0], o, *grid[1:]))
        ir.replace(operation, ir.build("ai.transpose", y, perm=(0, 2, 1, 3, 4)))
    context.apply(RULE)


def _sum_of_frames(
    program: Program, x: Value, weights: Any, bias: Sequence[Value], attrs: dict[str, Any],
    grid: Sequence[Dim], key: str,
) -> Value:  # fmt: skip
    """A depthwise convolution of one image: y[d] = Σ over taps t of (x[d + t] ∗ w[t])."""
    _, c, d, *image = ir.type_of(x).shape
    frames = ir.build("ai.transpose", x, perm=(0, 2, 1, 3, 4))
    frames = ir.build("ai.reshape", frames, shape=(d, c, *image))
    begin, end, step = (attrs[k][0] for k in ("pads_begin", "pads_end", "dilations"))
    total = None
    for t in range(weights.shape[2]):
        held = ir.constant(program, np.ascontiguousarray(weights[:, :, t]), f"{key}.tap{t}")
        y = ir.build("ai.conv", frames, held, **_of_image(attrs))
        if begin or end:
            y = ir.build("ai.pad", y, before=(begin, 0, 0, 0), after=(end, 0, 0, 0))
        y = ir.build(
            "ai.slice", y, starts=(t * step, 0, 0, 0), steps=(1,) * 4,
            sizes=(grid[0], c, *grid[1:]),
        )  # fmt: skip
        total = y if total is None else ir.build("ai.elemwise_add", total, y)
    for value in bias:
        line = ir.build("ai.reshape", value, shape=(c, 1, 1))
        total = ir.build("ai.elemwise_add", total, line)
    total = ir.build("ai.reshape", total, shape=(1, grid[0], c, *grid[1:]))
    return ir.build("ai.transpose", total, perm=(0, 2, 1, 3, 4))


def _of_image(attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes of the last two axes."""
    return {k: v[1:] if isinstance(v, tuple) else v for k, v in attrs.items()}


def _lies_stacked(
    n: Dim, depth: int, channels: int, attrs: dict[str, Any], context: PassContext
) -> bool:
    """Whether what a window sees are channels one after the other where they lie."""
    one = n == attrs["groups"] == attrs["dilations"][0] == 1
    whole = channels < context.channel_block or channels % context.channel_block == 0
    return one and depth > 1 and whole


def _flat_images(x: Value) -> tuple[Dim, ...]:
    """The shape of [1, D, 1, C, H, W] as images."""
    _, d, _, *image = ir.type_of(x).shape
    return (d, *image)


def _by_depth(x: Value, attrs: dict[str, Any]) -> Value:
    """[N, C, D, H, W] → [N, D, g, C/g, H, W], with its padding along the depth."""
    n, c, d, h, w = ir.type_of(x).shape
    groups = attrs["groups"]
    x = ir.build("ai.transpose", x, perm=(0, 2, 1, 3, 4))
    x = ir.build("ai.reshape", x, shape=(n, d, groups, c // groups, h, w))
    begin, end = attrs["pads_begin"][0], attrs["pads_end"][0]
    if begin == end == 0:
        return x
    rest = (0,) * 4
    return ir.build("ai.pad", x, before=(0, begin, *rest), after=(0, end, *rest))


def _taps(x: Value, depth: int, count: Dim, attrs: dict[str, Any]) -> Value:
    """[N, D, g, C/g, H, W] → [N·count, depth·C, H, W]: in a group a tap's channels together."""
    n, _, g, c, h, w = ir.type_of(x).shape
    stride, dilation = attrs["strides"][0], attrs["dilations"][0]
    parts = [
        ir.build(
            "ai.slice", x, starts=(0, t * dilation, 0, 0, 0, 0), steps=(1, stride, 1, 1, 1, 1),
            sizes=(n, count, g, c, h, w),
        )
        for t in range(depth)
    ]  # fmt: skip
    stacked = parts[0] if depth == 1 else ir.build("ai.concat", *parts, axis=3)
    return ir.build("ai.reshape", stacked, shape=(n * count, g * c * depth, h, w))


def split_pool(operation: Operation, context: PassContext) -> None:
    """A pool of three spatial axes as two pools."""
    x, attrs = operation.operands[0], ir.attrs(operation)
    if ir.type_of(x).rank != 5 or ir.type_of(x).layout:
        return
    n, c, depth, *image = ir.type_of(x).shape
    wanted = ir.type_of(operation.results[0]).shape
    each = {k: v for k, v in attrs.items() if isinstance(v, tuple)}
    fill = {"kernel": 1, "strides": 1, "dilations": 1, "pads_begin": 0, "pads_end": 0}
    with ir.before(operation):
        y = ir.build("ai.reshape", x, shape=(n, c * depth, *image))
        y = ir.build(operation.name, y, **{**attrs, **{k: v[1:] for k, v in each.items()}})
        y = ir.build("ai.reshape", y, shape=(n, c, depth, wanted[3] * wanted[4]))
        along = {k: (v[0], fill[k]) for k, v in each.items()}
        y = ir.build(operation.name, y, **{**attrs, **along})
        ir.replace(operation, ir.build("ai.reshape", y, shape=wanted))
    context.apply(RULE)


def repeat_channels(program: Program, operation: Operation, context: PassContext) -> None:
    """Groups of one channel and several outputs as groups of one output each."""
    x, w, *bias = operation.operands
    attrs, t, weights = ir.attrs(operation), ir.type_of(x), program.constant_array(w)
    groups = attrs["groups"]
    if groups <= _FEW or t.rank != 4 or t.dtype != "float32" or weights is None or t.layout:
        return
    outputs, channels = weights.shape[:2]
    if channels != 1 or outputs == groups:
        return
    n, c, *image = t.shape
    with ir.before(operation):
        many = ir.build("ai.reshape", x, shape=(n, c, 1, *image))
        many = ir.build("ai.broadcast_to", many, shape=(n, c, outputs // groups, *image))
        many = ir.build("ai.reshape", many, shape=(n, outputs, *image))
        y = ir.build("ai.conv", many, w, *bias, **{**attrs, "groups": outputs})
    ir.replace(operation, y)
    context.apply(RULE)


def join_groups(program: Program, operation: Operation, context: PassContext) -> None:
    """A convolution in groups that do not fill blocks of channels as one of fewer groups."""
    x, w, *bias = operation.operands
    attrs, t, weights = ir.attrs(operation), ir.type_of(x), program.constant_array(w)
    groups, block = attrs["groups"], context.channel_block
    if groups == 1 or t.rank != 4 or t.dtype != "float32" or weights is None:
        return
    outputs, channels = weights.shape[:2]
    each = outputs // groups
    if channels == each == 1 or (channels % block == 0 and each % block == 0):
        return
    try:
        joined = _joined(groups, channels, each, block)
    except Miss as miss:
        context.miss(RULE, operation, str(miss))
        return
    wide = np.zeros((outputs, channels * joined, *weights.shape[2:]), weights.dtype)
    for first in range(0, outputs, each):
        at = first // each % joined * channels
        wide[first : first + each, at : at + channels] = weights[first : first + each]
    key = ir.attrs(ir.defining(w)).get("key", "w")
    with ir.before(operation):
        held = ir.constant(program, wide, f"{key}.joined")
        y = ir.build("ai.conv", x, held, *bias, **{**attrs, "groups": groups // joined})
    ir.replace(operation, y)
    context.apply(RULE)


def _joined(groups: int, channels: int, each: int, block: int) -> int:
    """The fewest groups that fill blocks together; all, which need not. Raises Miss."""
    for count in range(2, groups):
        fills = count * channels % block == 0 and count * each % block == 0
        if groups % count == 0 and fills and count <= _MOST_JOINED:
            return count
    if groups > _MOST_JOINED:
        raise Miss(f"{groups} groups of {channels} channels do not fill blocks of {block}")
    return groups
