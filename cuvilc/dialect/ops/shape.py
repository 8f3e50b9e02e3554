"""Operations that move or repeat elements without computing: reshapes, slices, padding, tiling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from math import prod

import numpy as np

from cuvilc.dialect.dims import Dim, equal, less, maximum, minimum, product
from cuvilc.dialect.narrow import NARROW
from cuvilc.dialect.op import ShapeError, Tensor, Tensors, op, sample
from cuvilc.dialect.ops._index import as_index, flatten, guarded, put, reshape_index
from cuvilc.dialect.ops._rules import (
    need,
    need_axis,
    need_broadcast,
    need_equal,
    need_length,
    need_not_negative,
    need_positive,
    need_rank,
    need_same_dtype,
    need_true,
    need_word,
    replaced,
    spell,
)
from cuvilc.dialect.types import DTYPES, TensorType, channel_block, join_at_blocks

INJECTIVE = ("injective",)


@op("ai.reshape", traits=INJECTIVE)
class Reshape:
    """The elements of x in row-major order under another shape of as many elements."""

    x: Tensor
    shape: tuple

    def shape(x, *, shape):
        need_not_negative(shape, "shape")
        before, after = product(x.shape), product(shape)
        message = f"{spell(x.shape)} has {before} elements, {spell(shape)} has {after}"
        need_true(equal(before, after), message)
        return TensorType(shape, x.dtype)

    def reference(x, *, shape):
        return np.reshape(x, shape)

    def element(k, i, x, *, shape):
        return x[reshape_index(k, i, x.shape, shape)]

    samples = (
        sample("float32[2,3,4]", shape=(6, 4)),
        sample("int64[2,3,5]", shape=(3, 1, 10)),
        sample("float32[1]", shape=()),
        sample("float32[]", shape=(1, 1)),
        sample("bool[0,3]", shape=(5, 0)),
    )


@op("ai.transpose", traits=INJECTIVE)
class Transpose:
    """Axis j of the result is axis perm[j] of x."""

    x: Tensor
    perm: tuple

    def shape(x, *, perm):
        if sorted(perm) != list(range(x.rank)):
            raise ShapeError(f"perm {perm} is not a permutation of the axes of {spell(x.shape)}")
        return TensorType(tuple(x.shape[p] for p in perm), x.dtype)

    def reference(x, *, perm):
        return np.transpose(x, perm)

    def element(k, i, x, *, perm):
        return x[tuple(i[perm.index(axis)] for axis in range(len(perm)))]

    samples = (
        sample("float32[2,3,5]", perm=(2, 0, 1)),
        sample("uint8[4,3]", perm=(1, 0), low=0, high=255),
        sample("float32[]", perm=()),
        sample("float16[0,3]", perm=(1, 0)),
    )


@op("ai.broadcast_to", traits=INJECTIVE)
class BroadcastTo:
    """x repeated along the axes of size 1, and along new leading axes, until it has `shape`."""

    x: Tensor
    shape: tuple

    def shape(x, *, shape):
        need_not_negative(shape, "shape")
        need_broadcast(x.shape, shape, f"{spell(x.shape)} does not broadcast to {spell(shape)}")
        return TensorType(shape, x.dtype)

    def reference(x, *, shape):
        return np.broadcast_to(x, shape)

    def element(k, i, x, *, shape):
        return x.at(i)

    samples = (
        sample("float32[3,1]", shape=(2, 3, 4)),
        sample("bool[]", shape=(5,), low=0, high=1),
        sample("int32[1]", shape=(0,)),
        sample("float32[2,3]", shape=(2, 3)),
    )


@op("ai.slice", traits=INJECTIVE)
class Slice:
    """y[i] = x[starts + i · steps], of shape `sizes`; starts lie in x, steps may be negative."""

    x: Tensor
    starts: tuple
    steps: tuple
    sizes: tuple

    def shape(x, *, starts, steps, sizes):
        for values, what in ((starts, "starts"), (steps, "steps"), (sizes, "sizes")):
            need_length(values, x.rank, what)
        need_not_negative(sizes, "sizes")
        need_not_negative(starts, "starts")
        need(0 not in steps, f"steps must not be 0: {spell(steps)}")
        for axis, (n, *rest) in enumerate(zip(x.shape, starts, steps, sizes, strict=True)):
            _check_slice(axis, n, *rest)
        return TensorType(sizes, x.dtype)

    def reference(x, *, starts, steps, sizes):
        for axis, (start, step, size) in enumerate(zip(starts, steps, sizes, strict=True)):
            x = np.take(x, start + step * np.arange(size), axis)
        return x

    def element(k, i, x, *, starts, steps, sizes):
        return x[tuple(b + j * s for b, j, s in zip(starts, i, steps, strict=True))]

    samples = (
        sample("float32[5,7]", starts=(1, 6), steps=(1, -2), sizes=(3, 4)),
        sample("int64[9]", starts=(0,), steps=(3,), sizes=(3,)),
        sample("float32[4,3]", starts=(2, 0), steps=(1, 1), sizes=(0, 3)),
        sample("bool[4]", starts=(3,), steps=(-1,), sizes=(4,), low=0, high=1),
    )


def _check_slice(axis: int, n: Dim, start: Dim, step: Dim, size: Dim) -> None:
    """Refuse a slice that surely reads outside its axis."""
    last = start + (size - 1) * step
    for position in (start, last):
        message = f"slice of axis {axis} reads element {position} of {n}"
        inside = minimum(less(-1, position), less(position, n))
        need_true(maximum(less(size, 1), inside), message)  # nothing is read from an empty slice


def _joined_layout(xs: Sequence[TensorType], axis: int) -> str:
    """The layout of all operands of a concat."""
    layout = xs[0].layout
    need(all(t.layout == layout for t in xs), "operands of concat in different layouts")
    if layout:
        whole = join_at_blocks([t.shape[1] for t in xs], channel_block(layout))
        need(axis == 1 and whole, f"concat in layout {layout} other than at whole blocks")
    return layout


@op("ai.concat", traits=INJECTIVE)
class Concat:
    """The operands one after the other along `axis`; the other sizes agree.

    In a blocked layout, which is then that of all, channels are joined at whole blocks.
    """

    xs: Tensors
    axis: int

    def shape(xs, *, axis):
        need(bool(xs), "concat needs an operand")
        first = xs[0]
        need_axis(axis, first.rank)
        need_same_dtype(*xs)
        total: Dim = 0
        for t in xs:
            need_rank(t, first.rank, "every operand of concat")
            for j, (a, b) in enumerate(zip(first.shape, t.shape, strict=True)):
                if j != axis:
                    need_equal(a, b, f"sizes of axis {j} of concat's operands")
            total = total + t.shape[axis]
        return TensorType(replaced(first.shape, axis, total), first.dtype, _joined_layout(xs, axis))

    def reference(xs, *, axis):
        return np.concatenate(xs, axis)

    def element(k, i, xs, *, axis):
        starts = [0]
        for x in xs:
            starts.append(starts[-1] + x.shape[axis])
        value = k.const(0, xs[0].dtype)
        for x, low, high in reversed(list(zip(xs, starts, starts[1:], strict=False))):
            inside = k.both(k.ge(i[axis], low), k.lt(i[axis], high))
            where = put(i, axis, i[axis] - low)
            value = k.guard(inside, lambda x=x, where=where: x[where], value)
        return value

    samples = (
        sample("float32[2,3]", "float32[2,5]", "float32[2,1]", axis=1),
        sample("int64[2]", "int64[0]", axis=0),
        sample("bool[1,2,2]", axis=0, low=0, high=1),
        sample("float16[3,2]", "float16[1,2]", axis=0),
    )


PAD_MODES = ("constant", "reflect", "edge", "wrap")  # np.pad has the same words
_MOST_PARTS = 9  # that padding cuts an element into: those of two axes


@op("ai.pad", traits=INJECTIVE)
class Pad:
    """x with before[j] elements put before and after[j] after it along each axis j.

    mode "constant": `value`; "edge": the nearest element; "reflect": mirrored, the edge once;
    "wrap": periodic. Negative pads are slices, hence refused.
    """

    x: Tensor
    before: tuple
    after: tuple
    mode: str = "constant"
    value: float = 0.0

    def shape(x, *, before, after, mode, value):
        need_length(before, x.rank, "before")
        need_length(after, x.rank, "after")
        need_not_negative(before, "before (a negative pad is a slice)")
        need_not_negative(after, "after (a negative pad is a slice)")
        need_word(mode, PAD_MODES, "mode")
        for axis, (n, b, a) in enumerate(zip(x.shape, before, after, strict=True)):
            if mode != "constant":
                message = f"axis {axis} is empty: mode {mode!r} has nothing to repeat"
                need_true(maximum(less(0, n), equal(b + a, 0)), message)
        shape = tuple(b + n + a for n, b, a in zip(x.shape, before, after, strict=True))
        return TensorType(shape, x.dtype)

    def reference(x, *, before, after, mode, value):
        pads = list(zip(before, after, strict=True))
        if mode == "constant":
            return np.pad(x, pads, constant_values=np.asarray(value).astype(x.dtype))
        return np.pad(x, pads, mode=mode)

    def element(k, i, x, *, before, after, mode, value):
        axes = list(zip(i, before, after, x.shape, strict=True))
        if mode != "constant":
            parts = [_pad_parts(k, mode, *axis) for axis in axes]
            if prod(map(len, parts)) > _MOST_PARTS:
                return x[tuple(_pad_source(k, mode, *axis) for axis in axes)]
            found = k.const(0, x.type.dtype)
            for part in cartesian(*parts):
                conditions = [c for of_axis, _ in part for c in of_axis]
                found = guarded(
                    k, conditions, lambda part=part: x[tuple(j for _, j in part)], found
                )
            return found
        conditions = []
        for j, b, a, n in axes:
            conditions += [] if isinstance(b, int) and b == 0 else [k.ge(j, b)]
            conditions += [] if isinstance(a, int) and a == 0 else [k.lt(j, n + b)]
        where = tuple(j - b for j, b, _, _ in axes)
        return guarded(k, conditions, lambda: x[where], k.const(value, x.type.dtype))

    samples = (
        sample("float32[2,3]", before=(1, 0), after=(0, 2), value=1.5),
        sample("float32[3,5]", before=(2, 1), after=(1, 4), mode="reflect"),
        sample("int32[2,3]", before=(1, 2), after=(3, 0), mode="edge"),
        sample("float32[4]", before=(5,), after=(9,), mode="wrap"),
        sample("float32[0,2]", before=(1, 0), after=(1, 1)),
        sample("bool[3]", before=(1,), after=(1,), value=1.0),
    )


def _pad_parts(k, mode, i, before, after, n):
    """(conditions, where padded index i then comes from) of what an axis is cut into: steps through
    memory that are regular. One part where pads are many times as long as the axis, or open.
    """
    if before == after == 0:
        return [((), i)]
    if not all(isinstance(size, int) for size in (before, after, n)):
        return [((), _pad_source(k, mode, i, before, after, n))]
    if max(before, after) > {"reflect": n - 1, "wrap": n}.get(mode, before + after):
        return [((), _pad_source(k, mode, i, before, after, n))]
    end, last = before + n, n - 1
    low = {"edge": 0, "reflect": before - i, "wrap": i + (n - before)}[mode]
    high = {"edge": last, "reflect": end + last - 1 - i, "wrap": i - end}[mode]
    below, above = (k.ge(i, before),) * (before > 0), (k.lt(i, end),) * (after > 0)
    parts = [((*below, *above), i - before)]
    parts += [((k.lt(i, before),), low)] * (before > 0)
    return parts + [((k.ge(i, end),), high)] * (after > 0)


def _pad_source(k, mode, i, before, after, n):
    """Where padded index i comes from; `before` whole periods are added: nothing is negative."""
    if isinstance(before, int) and isinstance(after, int) and before == after == 0:
        return i
    if mode == "edge":
        return k.clamp_index(i - before, n)
    if mode == "wrap":
        return k.mod(i + before * (n - 1), n)
    last = n - 1
    if isinstance(n, int):
        period = max(2 * last, 1)
    else:
        period = k.max(as_index(k, 2 * last), as_index(k, 1))
    step = as_index(k, k.mod(i + before * (period - 1), period))
    return k.clamp_index(k.select(k.le(step, last), step, as_index(k, period) - step), n)


@op("ai.tile", traits=INJECTIVE)
class Tile:
    """x repeated repeats[j] times along each axis j."""

    x: Tensor
    repeats: tuple

    def shape(x, *, repeats):
        need_length(repeats, x.rank, "repeats")
        need_not_negative(repeats, "repeats")
        return TensorType(tuple(n * r for n, r in zip(x.shape, repeats, strict=True)), x.dtype)

    def reference(x, *, repeats):
        return np.tile(x, repeats)

    def element(k, i, x, *, repeats):
        return x[tuple(k.mod(j, n) for j, n in zip(i, x.shape, strict=True))]

    samples = (
        sample("float32[2,3]", repeats=(2, 3)),
        sample("int64[3]", repeats=(0,)),
        sample("float32[1,2,1]", repeats=(3, 1, 2)),
    )


@op("ai.iota", traits=INJECTIVE)
class Iota:
    """start + step · i, where i is the index along `axis`."""

    shape: tuple
    axis: int
    dtype: str
    start: float = 0
    step: float = 1

    def shape(*, shape, axis, dtype, start, step):
        need_word(dtype, DTYPES, "dtype")
        need(dtype not in ("bool", *NARROW), "dtype must be of numbers with 8 bits or more")
        need_axis(axis, len(shape))
        need_not_negative(shape, "shape")
        return TensorType(shape, dtype)

    def reference(*, shape, axis, dtype, start, step):
        line = start + step * np.arange(shape[axis])
        return np.broadcast_to(np.expand_dims(line, _other_axes(len(shape), axis)), shape)

    def element(k, i, *, shape, axis, dtype, start, step):
        if not isinstance(start, float) and not isinstance(step, float):
            return k.value_of_index(start + step * i[axis], dtype)
        first, by = (
            k.const(v, dtype) if isinstance(v, (int, float)) else k.value_of_index(v, dtype)
            for v in (start, step)
        )
        return first + by * k.value_of_index(i[axis], dtype)

    samples = (
        sample(shape=(5,), axis=0, dtype="int64"),
        sample(shape=(2, 3, 4), axis=1, dtype="float32", start=0.5, step=-0.25),
        sample(shape=(0,), axis=0, dtype="int32", start=3, step=2),
    )


def _other_axes(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(j for j in range(rank) if j != axis)


@op("ai.trilu", traits=INJECTIVE)
class Trilu:
    """The triangle of each matrix of x with column - row ≥ k (`upper`) or ≤ k; else 0."""

    x: Tensor
    k: int
    upper: bool

    def shape(x, *, k, upper):
        need(x.rank >= 2, f"x must have 2 dimensions or more, not {spell(x.shape)}")
        return TensorType(x.shape, x.dtype)

    def reference(x, *, k, upper):
        return np.triu(x, k) if upper else np.tril(x, k)

    def element(notation, i, x, *, k, upper):
        column, row = i[-1], i[-2] + k
        kept = notation.ge(column, row) if upper else notation.le(column, row)
        return notation.select(kept, x[i], notation.const(0, x.dtype))

    samples = (
        sample("float32[3,5]", k=0, upper=True),
        sample("int64[2,4,3]", k=-1, upper=False),
        sample("float32[3,3]", k=2, upper=True),
        sample("bool[0,3]", k=0, upper=False),
    )


@op("ai.depth_to_space", traits=INJECTIVE)
class DepthToSpace:
    """Blocks of channels become block × block pixels.    (Shi et al. 2016, eq. 4)

    x [N, C·b², H, W] → [N, C, H·b, W·b]; a channel of x
    is (row, column, c) in mode "DCR", (c, row, column) in "CRD".
    """

    x: Tensor
    block: int
    mode: str = "DCR"

    def shape(x, *, block, mode):
        need_rank(x, 4, "x")
        need_positive((block,), "block")
        need_word(mode, ("DCR", "CRD"), "mode")
        n, c, h, w = x.shape
        whole = equal(c % (block * block), 0)
        need_true(whole, f"{c} channels are not a multiple of {block}²")
        return TensorType((n, c // (block * block), h * block, w * block), x.dtype)

    def reference(x, *, block, mode):
        n, c, h, w = x.shape
        deep = c // block**2
        if mode == "DCR":
            parts = x.reshape(n, block, block, deep, h, w).transpose(0, 3, 4, 1, 5, 2)
        else:
            parts = x.reshape(n, deep, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
        return parts.reshape(n, deep, h * block, w * block)

    def element(k, i, x, *, block, mode):
        n, c, h, w = i
        row, column = k.mod(h, block), k.mod(w, block)
        channels = k.floordiv(x.shape[1], block * block)
        if mode == "DCR":
            depth = flatten((row, column, c), (block, block, channels))
        else:
            depth = flatten((c, row, column), (channels, block, block))
        return x[n, depth, k.floordiv(h, block), k.floordiv(w, block)]

    samples = (
        sample("float32[1,8,2,3]", block=2),
        sample("float32[2,8,2,3]", block=2, mode="CRD"),
        sample("int8[1,9,1,2]", block=3, low=-99, high=99),
    )


@op("ai.space_to_depth", traits=INJECTIVE)
class SpaceToDepth:
    """block × block pixels become channels: x [N, C, H·b, W·b] → [N, b²·C, H, W]."""

    x: Tensor
    block: int

    def shape(x, *, block):
        need_rank(x, 4, "x")
        need_positive((block,), "block")
        n, c, h, w = x.shape
        for size in (h, w):
            need_true(equal(size % block, 0), f"size {size} is not a multiple of {block}")
        return TensorType((n, c * block * block, h // block, w // block), x.dtype)

    def reference(x, *, block):
        n, c, h, w = x.shape
        parts = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
        return parts.reshape(n, c * block**2, h // block, w // block)

    def element(k, i, x, *, block):
        n, depth, h, w = i
        c = k.mod(depth, x.shape[1])
        part = k.floordiv(depth, x.shape[1])
        row, column = k.floordiv(part, block), k.mod(part, block)
        return x[n, c, h * block + row, w * block + column]

    samples = (
        sample("float32[1,2,4,6]", block=2),
        sample("int8[2,1,3,6]", block=3, low=-99, high=99),
    )
