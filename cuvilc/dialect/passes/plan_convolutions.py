"""Bring convolutions into the one form that has a fast schedule: two spatial axes, forward.

- float16 and bfloat16 become float32 before and come back after, as sums are float32 anyway; the
  conversions fuse with what is around.
- One spatial axis becomes two, the first of size 1, and so does the pair whose last has size 1:
  schedules tile along the last axis. The reshape back moves down past elementwise operations and
  pools, so that a chain of such layers is reshaped at its ends only.
- A transposed convolution becomes an ordinary one with strideⁿ times the outputs, one group for
  each phase of the output grid, whose results are then interleaved (polyphase decomposition:
  Shi et al. 2016, "Is the deconvolution layer the same as a convolutional layer?"). No
  multiplication by an inserted zero is left.
- Three spatial axes become two, and small groups are joined: plan_convolutions_shape.py.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, bounds
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.passes.plan_convolutions_shape import (
    join_groups,
    repeat_channels,
    split_pool,
    stack_depth,
)

NAME = "plan-convolutions"
VERSION = 4

_CONVOLUTIONS = ("ai.conv", "ai.conv_integer")
_MOST_GROWTH = 64  # of a kernel whose phases have places for every stride
_POOLS = ("ai.max_pool", "ai.avg_pool", "ai.lp_pool")


def run(program: Program, context: PassContext) -> None:
    """After it no transposed convolution of constant weights is left that decomposes, none of rank
    3 or 5, and none in groups of few channels, as far as there are not too many.
    """
    with program:
        for function in program.functions():
            for operation in list(ir.walk(ir.body(function))):
                if operation.name in ("ai.conv", "ai.conv_transpose"):
                    _in_float32(program, operation)
            for operation in list(ir.walk(ir.body(function))):
                if operation.name == "ai.conv_transpose":
                    _polyphase(program, operation, context)
            for operation in list(ir.walk(ir.body(function))):
                if operation.name == "ai.conv":
                    stack_depth(program, operation, context)
                elif operation.name in ("ai.max_pool", "ai.avg_pool"):
                    split_pool(operation, context)
            flat: dict[Value, Value] = {}  # a rank 3 value -> the rank 4 value that it is a view of
            for operation in list(ir.walk(ir.body(function))):
                _widen(program, operation, flat)
            for operation in list(ir.walk(ir.body(function))):
                if operation.name == "ai.conv":
                    repeat_channels(program, operation, context)
            for operation in list(ir.walk(ir.body(function))):
                if operation.name == "ai.conv":
                    join_groups(program, operation, context)
            ir.drop_unused(ir.body(function))


# ---- half precision


def _in_float32(program: Program, operation: Operation) -> None:
    """A convolution of a half as one of float32 between conversions."""
    t = ir.type_of(operation.results[0])
    if t.dtype not in ("float16", "bfloat16"):
        return
    with ir.before(operation):
        operands = [_wide_values(program, v) for v in operation.operands]
        y = ir.build(operation.name, *operands, **ir.attrs(operation))
        ir.replace(operation, ir.build("ai.cast", y, dtype=t.dtype))


def _wide_values(program: Program, value: Value) -> Value:
    array = program.constant_array(value)
    if array is None:
        return ir.build("ai.cast", value, dtype="float32")
    owner = ir.defining(value)
    key = ir.attrs(owner).get("key", "w") if owner is not None else "w"
    return ir.constant(program, array.astype(np.float32), f"{key}.float32")


# ---- one spatial axis


def _widen(program: Program, operation: Operation, flat: dict[Value, Value]) -> None:
    declared = ir.definition(operation)
    if operation.name in (*_CONVOLUTIONS, *_POOLS):
        if _is_flat(program, operation):
            _widen_window(program, operation, flat)
    elif declared and "elementwise" in declared.traits and flat.keys() & {*operation.operands}:
        _widen_elementwise(operation, flat)


def _is_flat(program: Program, operation: Operation) -> bool:
    """Rank 3, or rank 4 with nothing along the last axis: [N, C, H, 1], windows of one column."""
    t, attrs = ir.type_of(operation.operands[0]), ir.attrs(operation)
    if operation.name in _CONVOLUTIONS and program.constant_array(operation.operands[1]) is None:
        return False
    if t.layout or t.rank == 3:
        return not t.layout
    if operation.name in _CONVOLUTIONS:
        kernel = ir.type_of(operation.operands[1]).shape[2:]
    else:
        kernel = attrs["kernel"]
    last = (kernel[-1], attrs["strides"][-1], attrs["pads_begin"][-1], attrs["pads_end"][-1])
    return t.rank == 4 and t.shape[3] == 1 and t.shape[2] != 1 and last == (1, 1, 0, 0)


def _widen_window(program: Program, operation: Operation, flat: dict[Value, Value]) -> None:
    attrs = ir.attrs(operation)
    fill = {"kernel": 1, "strides": 1, "dilations": 1, "pads_begin": 0, "pads_end": 0}
    for key, one in fill.items():
        if key in attrs:
            attrs[key] = (one, attrs[key][0])
    x, *rest = operation.operands
    with ir.before(operation):
        operands = [_wide(x, flat)]
        if operation.name in _CONVOLUTIONS:
            weights = _constant(program, rest[0])
            key = ir.attrs(ir.defining(rest[0])).get("key", "w")
            o, i, k = weights.shape[:3]
            operands += [ir.constant(program, weights.reshape(o, i, 1, k), key), *rest[1:]]
        result = ir.build(operation.name, *operands, **attrs)
    _became(operation, result, flat)


def _wide(value: Value, flat: dict[Value, Value]) -> Value:
    """[N, C, W] and [N, C, W, 1] as [N, C, 1, W]."""
    if value not in flat:
        n, c, w, *_ = ir.type_of(value).shape
        flat[value] = ir.build("ai.reshape", value, shape=(n, c, 1, w))
    return flat[value]


def _became(operation: Operation, result: Value, flat: dict[Value, Value]) -> None:
    with ir.after(operation):
        view = ir.build("ai.reshape", result, shape=ir.type_of(operation.results[0]).shape)
    ir.replace(operation, view)
    flat[view] = result


def _widen_elementwise(operation: Operation, flat: dict[Value, Value]) -> None:
    """Move the reshape below: every operand is such a view, or one number along channels."""
    if len(operation.results) != 1:
        return
    shape = ir.type_of(operation.results[0]).shape
    if not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 1)):
        return
    operands: list[Value] = []
    with ir.before(operation):
        for value in operation.operands:
            t = ir.type_of(value)
            if value in flat:
                operands.append(flat[value])
            elif (
                t.rank == 0
                or t.shape == (1,)
                or (t.rank == 3 and len(shape) == 4 and t.shape[1:] == (1, 1))
            ):
                operands.append(value)
            elif t.rank == len(shape) - 1 and all(d == 1 for d in t.shape[1:]):
                operands.append(ir.build("ai.reshape", value, shape=(t.shape[0], 1, 1)))
            elif t.shape == shape:
                operands.append(_wide(value, flat))
            else:
                return
        result = ir.build(operation.name, *operands, **ir.attrs(operation))
    _became(operation, result, flat)


# ---- transposed


def _polyphase(program: Program, operation: Operation, context: PassContext) -> None:
    """One transposed convolution, of constant weights, without dilation."""
    try:
        taps, size = _phases(program, operation)
    except Miss as miss:
        context.miss(NAME, operation, str(miss))
        return
    x, w, *bias = operation.operands
    attrs, weights = ir.attrs(operation), _constant(program, w)
    strides, wanted = attrs["strides"], ir.type_of(operation.results[0]).shape
    groups = attrs["groups"]
    each = np.split(weights, groups)  # by inputs: [I/groups, O/groups, k..]
    key = ir.attrs(ir.defining(w)).get("key", "w")
    ones, edges = (1,) * len(taps), tuple(t - 1 for t in taps)
    with ir.before(operation):
        phases = np.concatenate([_phase_weights(part, strides, taps) for part in each])
        operands = [x, ir.constant(program, phases, f"{key}.phases")]
        for shift in bias:
            shifts = _constant(program, shift).reshape(groups, 1, -1).repeat(prod(strides), 1)
            operands.append(ir.constant(program, shifts.reshape(-1), f"{key}.phase_bias"))
        y = ir.build(
            "ai.conv", *operands, strides=ones, pads_begin=edges, pads_end=edges, dilations=ones,
            groups=groups,
        )  # fmt: skip
        y = _interleave(y, groups, int(weights.shape[1]), strides)
        if size != wanted[2:]:
            starts, steps = (0, 0, *attrs["pads_begin"]), (1,) * len(wanted)
            y = ir.build("ai.slice", y, starts=starts, steps=steps, sizes=wanted)
    ir.replace(operation, y)
    context.apply(NAME)


def _phases(program: Program, operation: Operation) -> tuple[list[int], tuple[Dim, ...]]:
    """(taps of a phase along each axis, extents of all phases interleaved). Raises Miss."""
    x, w, *bias = operation.operands
    attrs, weights = ir.attrs(operation), program.constant_array(w)
    if weights is None or any(d != 1 for d in attrs["dilations"]):
        raise Miss("weights at run time, or dilation")
    if bias and program.constant_array(bias[0]) is None:
        raise Miss("bias at run time")
    strides, wanted = attrs["strides"], ir.type_of(operation.results[0]).shape[2:]
    taps = [-(-k // s) for k, s in zip(weights.shape[2:], strides, strict=True)]
    if prod(strides) * prod(taps) > _MOST_GROWTH * prod(weights.shape[2:]):
        raise Miss("strides far beyond the kernel: most phases would be zeros")
    grid = ir.type_of(x).shape[2:]
    size = tuple((n + t - 1) * s for n, t, s in zip(grid, taps, strides, strict=True))
    for a, p, m in zip(size, attrs["pads_begin"], wanted, strict=True):
        if bounds(a - p - m, program.ranges)[0] < 0:
            raise Miss("output padding beyond the last phase")
    return taps, size


def _constant(program: Program, value: Value) -> np.ndarray:
    """The array of a value that was found to be constant."""
    array = program.constant_array(value)
    assert array is not None
    return array


def _phase_weights(weights: np.ndarray, strides: tuple[int, ...], taps: list[int]) -> np.ndarray:
    """[I, O, k..] → [phases·O, I, taps..]: phase p takes every stride-th weight from p on,
    reversed. The channels of a phase lie together, so that whole blocks of them are interleaved.
    """
    inputs, outputs, *kernel = weights.shape
    result = np.zeros((*strides, outputs, inputs, *taps), weights.dtype)
    for phase in product(*(range(s) for s in strides)):
        for tap in product(*(range(t) for t in taps)):
            at: Any = [
                p + (n - 1 - t) * s for p, t, n, s in zip(phase, tap, taps, strides, strict=True)
            ]
            if all(a < k for a, k in zip(at, kernel, strict=True)):
                place: Any = (*phase, slice(None), slice(None), *tap)
                result[place] = weights[:, :, *at].T
    return result.reshape(-1, inputs, *taps)


def _interleave(y: Value, groups: int, outputs: int, strides: tuple[int, ...]) -> Value:
    """[N, groups·phases·O, m..] → [N, groups·O, m·s..]."""
    n, _, *grid = ir.type_of(y).shape
    count = len(strides)
    y = ir.build("ai.reshape", y, shape=(n, groups, *strides, outputs, *grid))
    perm: list[Any] = [0, 1, 2 + count]
    for i in range(count):
        perm += [3 + count + i, 2 + i]
    y = ir.build("ai.transpose", y, perm=tuple(perm))
    shape = (n, groups * outputs, *(g * s for g, s in zip(grid, strides, strict=True)))
    return ir.build("ai.reshape", y, shape=shape)
