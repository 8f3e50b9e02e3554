"""Operators that move elements: any rank, sizes 0 and 1, negative axes and indices."""

from __future__ import annotations

import numpy as np

from tests.properties.draws import Case, Draw, Model
from tests.properties.registry import operator

ANY = ("float32", "float64", "float16", "int8", "int64", "uint16", "bool")


def _ints(values: object) -> np.ndarray:
    return np.array(values, np.int64)


@operator("Reshape")
def reshape(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Reshape", 19)
    shape = d.shape(0, 4)
    count = int(np.prod(shape))
    target: list[int] = []
    left = count
    while len(target) < d.number(0, 4) and left > 0:
        step = d.pick(*[n for n in range(1, left + 1) if left % n == 0][:6])
        target.append(step)
        left //= step
    target.append(left)
    if count and d.flag():
        target[d.number(0, len(target) - 1)] = -1
    elif count and len(shape) >= len(target) and target[-1] == shape[len(target) - 1]:
        target[-1] = 0
    inputs = [made.input(d.array(shape, dtype)), made.input(_ints(target), constant=True)]
    return made.case(inputs, [dtype], allowzero=None if count else 1)


@operator("Transpose")
def transpose(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Transpose", 21)
    shape = d.shape()
    perm = [int(i) for i in np.argsort(d.array([len(shape)], "float64"))]
    named = perm if perm and d.flag() else None
    return made.case([made.input(d.array(shape, dtype))], [dtype], perm=named)


@operator("Concat")
def concat(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Concat", 13)
    shape = d.shape(1)
    at = d.axis(len(shape))
    parts = []
    for _ in range(d.number(1, 4)):
        shape[at] = d.number(0, 4)
        parts.append(made.input(d.array(shape, dtype)))
    return made.case(parts, [dtype], axis=at)


@operator("Split")
def split(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Split", 18)
    shape = d.shape(1)
    at, parts = d.axis(len(shape)), d.number(1, 4)
    if d.flag():
        sizes = [d.number(0, 3) for _ in range(parts)]
        shape[at] = sum(sizes)
        inputs = [made.input(d.array(shape, dtype)), made.input(_ints(sizes), constant=True)]
        return made.case(inputs, [dtype] * parts, axis=at)
    shape[at] = d.number(parts, 8)
    return made.case([made.input(d.array(shape, dtype))], [dtype] * parts, axis=at,
                     num_outputs=parts)  # fmt: skip


@operator("Slice")
def slice_(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Slice", 13)
    shape = d.shape(1)
    axes = [i for i in range(len(shape)) if d.flag()] or [0]
    far = 2**62
    starts = [d.pick(d.number(-7, 7), -far, far) for _ in axes]
    ends = [d.pick(d.number(-7, 7), -far, far) for _ in axes]
    steps = [d.pick(1, 1, 2, 3, -1, -2) for _ in axes]
    named = [a - len(shape) if d.flag() else a for a in axes]
    words = [starts, ends, named, steps]
    inputs = [made.input(d.array(shape, dtype))]
    inputs += [made.input(_ints(w), constant=True) for w in words]
    return made.case(inputs, [dtype])


@operator("Gather")
def gather(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Gather", 13)
    shape = d.shape(1, zero=False)
    at = d.axis(len(shape))
    ids = d.array(d.shape(0, 2), d.pick("int32", "int64"), -shape[at], shape[at] - 1)
    inputs = [made.input(d.array(shape, dtype)), made.input(ids, constant=d.flag())]
    return made.case(inputs, [dtype], axis=at)


@operator("GatherElements")
def gather_elements(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("GatherElements", 13)
    shape = d.shape(1, zero=False)
    at = d.axis(len(shape))
    own = [d.number(1, n) for n in shape]
    own[at] = d.number(0, 6)
    ids = d.array(own, d.pick("int32", "int64"), -shape[at], shape[at] - 1)
    return made.case([made.input(d.array(shape, dtype)), made.input(ids)], [dtype], axis=at)


def _rows(d: Draw, shape: list[int], batch: int) -> np.ndarray:
    """Indices of GatherND and ScatterND: rows of a depth, each within its axes."""
    depth = d.number(1, len(shape) - batch)
    lead = [*shape[:batch], *d.shape(0, 2, 3, zero=False)]
    columns = [d.array(lead, "int64", -n, n - 1) for n in shape[batch : batch + depth]]
    return np.stack(columns, -1)


@operator("GatherND")
def gather_nd(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("GatherND", 13)
    shape = d.shape(1, 4, zero=False)
    batch = d.number(0, len(shape) - 1)
    ids = _rows(d, shape, batch)
    inputs = [made.input(d.array(shape, dtype)), made.input(ids)]
    return made.case(inputs, [dtype], batch_dims=batch)


_REDUCTIONS = (None, "none", "add", "mul", "max", "min")


@operator("ScatterND")
def scatter_nd(d: Draw) -> Case:
    """Rows are distinct where nothing is reduced: which of two wins is left open."""
    dtype, made = d.pick("float32", "int64", "float64"), Model("ScatterND", 18)
    shape = d.shape(1, 3, zero=False)
    kind = d.pick(*_REDUCTIONS)
    ids = _rows(d, shape, 0)
    flat = ids.reshape(-1, ids.shape[-1])
    if kind in (None, "none"):
        flat = np.unique(flat % np.array(shape[: ids.shape[-1]]), axis=0)
    updates = d.array([*flat.shape[:-1], *shape[flat.shape[-1] :]], dtype)
    inputs = [made.input(v) for v in (d.array(shape, dtype), flat, updates)]
    return made.case(inputs, [dtype], reduction=kind)


@operator("ScatterElements")
def scatter_elements(d: Draw) -> Case:
    dtype, made = d.pick("float32", "int64", "float64"), Model("ScatterElements", 18)
    shape = d.shape(1, 3, zero=False)
    at, kind = d.axis(len(shape)), d.pick(*_REDUCTIONS)
    own = [d.number(1, n) for n in shape]
    ids = d.array(own, "int64", -shape[at], shape[at] - 1)
    if kind in (None, "none"):  # one row along the axis: distinct places
        own[at] = 1
        ids = d.array(own, "int64", -shape[at], shape[at] - 1)
    inputs = [made.input(v) for v in (d.array(shape, dtype), ids, d.array(own, dtype))]
    return made.case(inputs, [dtype], axis=at, reduction=kind)


@operator("Pad")
def pad(d: Draw) -> Case:
    dtype, made = d.pick("float32", "float64", "int64", "int8"), Model("Pad", 19)
    shape = d.shape(1, 3, zero=False)
    mode = d.pick("constant", "constant", "reflect", "edge", "wrap")
    low = -1 if mode == "constant" else 0
    axes = [i for i in range(len(shape)) if d.flag()] or [0]
    pads = []
    for _ in range(2):
        for a in axes:
            most = shape[a] - 1 if mode == "reflect" else shape[a] if mode == "wrap" else 3
            pads.append(d.number(low if shape[a] > 2 else 0, max(most, 0)))
    value = made.input(np.array(d.number(-3, 3), dtype), True) if d.flag() else ""
    inputs = [made.input(d.array(shape, dtype)), made.input(_ints(pads), True), value,
              made.input(_ints(axes), True)]  # fmt: skip
    return made.case(inputs, [dtype], mode=mode)


@operator("Tile")
def tile(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Tile", 13)
    shape = d.shape()
    repeats = _ints([d.number(0, 3) for _ in shape])
    return made.case([made.input(d.array(shape, dtype)), made.input(repeats, True)], [dtype])


@operator("Expand")
def expand(d: Draw) -> Case:
    """The target may have fewer axes than x, and 1 where x has more."""
    dtype, made = d.pick(*ANY), Model("Expand", 13)
    shape = d.shape()
    x = d.array(d.broadcast(shape), dtype)
    target = shape if d.flag() else d.broadcast(shape)
    return made.case([made.input(x), made.input(_ints(target), True)], [dtype])


@operator("Squeeze")
def squeeze(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Squeeze", 13)
    shape = [d.pick(1, 1, 3) for _ in range(d.number(0, 4))]
    ones = [i for i, n in enumerate(shape) if n == 1 and d.flag()]
    axes = made.input(_ints(ones), True) if ones else ""
    return made.case([made.input(d.array(shape, dtype)), axes], [dtype])


@operator("Unsqueeze")
def unsqueeze(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Unsqueeze", 13)
    shape, count = d.shape(0, 3), d.number(1, 3)
    rank = len(shape) + count
    order = [int(i) for i in np.argsort(d.array([rank], "float64"))[:count]]
    axes = [a - rank if d.flag() else a for a in order]
    return made.case([made.input(d.array(shape, dtype)), made.input(_ints(axes), True)], [dtype])


@operator("Flatten")
def flatten(d: Draw) -> Case:
    dtype, made = d.pick(*ANY), Model("Flatten", 13)
    shape = d.shape()
    at = d.number(-len(shape), len(shape))
    return made.case([made.input(d.array(shape, dtype))], [dtype], axis=at)


@operator("DepthToSpace")
def depth_to_space(d: Draw) -> Case:
    dtype, made, block = (
        d.pick("float32", "int8", "float64"),
        Model("DepthToSpace", 13),
        d.pick(1, 2, 3),
    )
    shape = [d.size(2), d.number(1, 2) * block**2, d.size(3), d.size(3)]
    return made.case([made.input(d.array(shape, dtype))], [dtype], blocksize=block,
                     mode=d.pick(None, "DCR", "CRD"))  # fmt: skip


@operator("SpaceToDepth")
def space_to_depth(d: Draw) -> Case:
    dtype, made, block = d.pick("float32", "float64"), Model("SpaceToDepth", 13), d.pick(1, 2, 3)
    shape = [d.size(2), d.size(3), d.size(2) * block, d.size(2) * block]
    return made.case([made.input(d.array(shape, dtype))], [dtype], blocksize=block)


@operator("OneHot")
def one_hot(d: Draw) -> Case:
    dtype, made = d.pick("float32", "int64"), Model("OneHot", 11)
    depth, shape = d.number(1, 5), d.shape(0, 3)
    inputs = [
        made.input(d.array(shape, d.pick("int64", "int32", "float32"), -depth - 1, depth + 1)),
        made.input(np.array(depth, np.int64), True), made.input(d.array([2], dtype)),
    ]  # fmt: skip
    if made.feeds[inputs[0]].dtype.kind == "f":
        made.feeds[inputs[0]] = np.asarray(np.trunc(made.feeds[inputs[0]]), np.float32)
    return made.case(inputs, [dtype], axis=d.number(-len(shape) - 1, len(shape)))


@operator("Range")
def range_(d: Draw) -> Case:
    dtype, made = d.pick("float32", "int64", "int32", "float64"), Model("Range", 11)
    step = d.pick(1, 2, 3, -1, -2)
    parts = [np.array(v, dtype) for v in (d.number(-5, 5), d.number(-9, 9), step)]
    constant = d.flag()
    return made.case([made.input(p, constant) for p in parts], [dtype])


@operator("EyeLike")
def eye_like(d: Draw) -> Case:
    dtype, made = d.pick("float32", "int64", "bool", "float64"), Model("EyeLike", 9)
    x = made.input(d.array([d.size(4, False), d.size(4, False)], dtype))
    return made.case([x], [dtype], k=d.number(-5, 5))


@operator("Trilu")
def trilu(d: Draw) -> Case:
    dtype, made = d.pick("float32", "int64", "bool", "float64"), Model("Trilu", 14)
    k = made.input(np.array(d.number(-5, 5), np.int64), True) if d.flag() else ""
    x = made.input(d.array(d.shape(2, 4), dtype))
    return made.case([x, k], [dtype], upper=d.pick(None, 0, 1))


@operator("ReverseSequence")
def reverse_sequence(d: Draw) -> Case:
    dtype, made = d.pick("float32", "int64"), Model("ReverseSequence", 10)
    shape = d.shape(2, 4, zero=False)
    time = d.number(0, 1)
    lengths = d.array([shape[1 - time]], "int64", 1, shape[time])
    inputs = [made.input(d.array(shape, dtype)), made.input(lengths)]
    return made.case(inputs, [dtype], time_axis=time, batch_axis=1 - time)


@operator("ConstantOfShape")
def constant_of_shape(d: Draw) -> Case:
    from onnx import numpy_helper

    dtype, made = d.pick("float32", "int64", "bool", "int8"), Model("ConstantOfShape", 9)
    value = numpy_helper.from_array(np.array([d.number(0, 1)], dtype))
    shape = made.input(_ints(d.shape()), d.flag())
    return made.case([shape], [dtype], value=value)


def _sizes(op: str) -> None:
    @operator(op)
    def case(d: Draw) -> Case:
        made = Model(op, 15)
        x = made.input(d.array(d.shape()))
        bounds = {w: d.pick(None, d.number(-5, 5)) for w in ("start", "end")}
        return made.case([x], ["int64"], **(bounds if op == "Shape" else {}))


_sizes("Shape")
_sizes("Size")


@operator("CenterCropPad")
def center_crop_pad(d: Draw) -> Case:
    made = Model("CenterCropPad", 18)
    shape = d.shape(1, 3, zero=False)
    axes = [i for i in range(len(shape)) if d.flag()] or [0]
    target = made.input(_ints([d.number(1, 7) for _ in axes]), True)
    return made.case([made.input(d.array(shape)), target], ["float32"], axes=axes)
