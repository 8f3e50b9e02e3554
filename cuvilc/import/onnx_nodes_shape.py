"""Operators that move elements, and those that compute with shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc._mlir import ir as mlir
from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Shape
from cuvilc.dialect.op import MANY, ShapeError
from cuvilc.dialect.ops._rules import spell
from cuvilc.dialect.types import FLOATS

from . import onnx_values as V
from ._table import importer
from .onnx_node import (
    Constrain,
    DataDependent,
    Node,
    ai,
    axis,
    cast,
    dtype_of,
    learn_bounds,
    reshape,
    shape_of,
)
from .onnx_tensors import DTYPES
from .onnx_values import Val

_FAR = 10**9  # exporters write "to the end" as a number this large or larger; no axis is that long
SliceBounds = list[tuple[int, Dim, Dim, int]]  # (axis, start, size, step)


@importer("Identity")
def identity(n: Node) -> Any:
    return n.val(0)


@importer("Dropout")
def dropout(n: Node) -> Any:
    """At inference, or where a ratio of 0 drops nothing, the input itself with a full mask."""
    trains = n.has(2) and (n.array(2) is None or bool(np.any(n.array(2))))
    if trains and n.number(1, "the ratio is", default=0.5) != 0:
        raise ShapeError("training_mode is on, or not known at compile time: it drops at random")
    outputs: list[Any] = [n.val(0)]
    if n.wants(1):
        outputs.append(ir.full(True, n.shape(0), "bool" if n.opset >= 10 else n.type(0).dtype))
    return outputs


@importer("Shape")
def shape(n: Node) -> Val:
    sizes = n.shape(0)
    start, end = n.attr("start", 0), n.attr("end")
    return sizes_value(sizes[slice(start, end)], n.label)


@importer("Size")
def size(n: Node) -> Val:
    content = np.empty((), object)
    content[()] = D.product(n.shape(0))
    return Val.known(content, "int64", n.label)


def sizes_value(sizes: Shape, key: str) -> Val:
    """Sizes as a 1-D int64 value with known content."""
    content = np.empty(len(sizes), object)
    for i, d in enumerate(sizes):
        content[i] = d
    return Val.known(content, "int64", key)


@importer("Reshape", since=5)
def reshape_(n: Node) -> ir.Value:
    target = n.dims(1, "the target shape is", signed=True)
    sizes = reshaped(n.shape(0), target, bool(n.attr("allowzero", 0)))
    return reshape(n[0], tuple(n.converter.bind_dim(d) for d in sizes))


@importer("Reshape")
def old_reshape(n: Node) -> ir.Value:
    return reshape(n[0], reshaped(n.shape(0), n.attr("shape"), False))


def reshaped(before: Shape, target: Shape, allow_zero: bool) -> Shape:
    """ONNX's target shape with 0 (copy the size) and -1 (what is left) worked out."""
    sizes = list(target)
    for i, d in enumerate(sizes):
        if d == 0 and isinstance(d, int) and not allow_zero:
            if i >= len(before):
                raise ShapeError(
                    f"the target's 0 at {i} copies a size that {len(before)} axes do not have"
                )
            sizes[i] = before[i]
    if any(V.is_computed(d) and V.bounds(d)[0] < 0 for d in sizes):
        return _computed_target(before, sizes, allow_zero)
    holes = [i for i, d in enumerate(sizes) if isinstance(d, int) and d == -1]
    if len(holes) > 1:
        raise ShapeError(f"the target {sizes} has more than one -1")
    if holes:
        sizes[holes[0]] = quotient(before, [d for i, d in enumerate(sizes) if i != holes[0]])
    return tuple(sizes)


def _computed_target(before: Shape, sizes: list[Dim], allow_zero: bool) -> Shape:
    """The target where some sizes turn out to be 0 or -1 only when the model runs."""
    for i, d in enumerate(sizes):
        if not isinstance(d, int) and not allow_zero and i < len(before):
            sizes[i] = D.select(D.equal(d, 0), before[i], d)
    total = D.product(before)
    target = []
    for i, d in enumerate(sizes):
        others = D.maximum(D.product([x for j, x in enumerate(sizes) if j != i]), 1)
        target.append(D.select(D.equal(d, -1), D.floordiv(total, others), d))
    return tuple(target)


def quotient(before: Shape, given: list[Dim]) -> Dim:
    """product(before) / product(given), equal factors cancelled first."""
    rest, divisors = list(before), []
    for d in given:
        if d in rest:
            rest.remove(d)
        else:
            divisors.append(d)
    total, divisor = D.product(rest), D.product(divisors)
    if isinstance(divisor, int) and divisor == 0:
        return 0
    whole = D.floordiv(total, divisor)
    if isinstance(total, int) and isinstance(divisor, int) and total % divisor:
        raise ShapeError(f"{total} elements do not divide into {divisor}")
    return whole


@importer("Flatten")
def flatten(n: Node) -> ir.Value:
    sizes = n.shape(0)
    at = n.attr("axis", 1)
    at += len(sizes) if at < 0 else 0
    return reshape(n[0], (D.product(sizes[:at]), D.product(sizes[at:])))


@importer("Squeeze")
def squeeze(n: Node) -> ir.Value:
    sizes = n.shape(0)
    axes = n.axes(len(sizes))
    if axes is None:
        axes = [i for i, d in enumerate(sizes) if d == 1]
    for a in axes:
        n.require_equal(sizes[a], 1)
        if isinstance(sizes[a], int) and sizes[a] != 1:
            raise ShapeError(f"axis {a} of size {sizes[a]} cannot be squeezed")
    return reshape(n[0], tuple(d for i, d in enumerate(sizes) if i not in axes))


@importer("Unsqueeze")
def unsqueeze(n: Node) -> ir.Value:
    sizes = list(n.shape(0))
    axes = n.axes()
    if axes is None:
        raise ShapeError("axes are missing")
    for a in sorted(axis(a, len(sizes) + len(axes)) for a in axes):
        sizes.insert(a, 1)
    return reshape(n[0], tuple(sizes))


@importer("Transpose")
def transpose(n: Node) -> ir.Value:
    perm = n.ints("perm", tuple(reversed(range(len(n.shape(0))))))
    assert perm is not None
    return n[0] if perm == tuple(range(len(perm))) else ai("transpose", n[0], perm=perm)


def _require_broadcast(given: Shape, wanted: Shape) -> None:
    """Ask when the model runs what NumPy's rule asks of sizes that are known only then."""
    for a, b in zip(reversed(given), reversed(wanted), strict=False):
        fits = D.maximum(D.equal(a, b), D.maximum(D.equal(a, 1), D.equal(b, 1)))
        if not isinstance(fits, int) and V.bounds(fits)[0] < 1:
            message = f"{spell(given)} does not expand to {spell(wanted)}"
            ai("require", condition=fits, message=message)


@importer("Expand")
def expand(n: Node) -> ir.Value:
    wanted = n.dims(1, "the target shape is")
    learn_bounds(n.shape(0), wanted)
    _require_broadcast(n.shape(0), wanted)
    target = D.broadcast(n.shape(0), wanted)
    return n[0] if target == n.shape(0) else ai("broadcast_to", n[0], shape=target)


@importer("Concat")
def concat(n: Node) -> ir.Value:
    at = n.axis(1)
    first = n.shape(0)
    for i in range(1, len(n)):
        for j, (a, b) in enumerate(zip(first, n.shape(i), strict=True)):
            if j != at:
                n.require_equal(a, b)
    values = n.all()
    return values[0] if len(values) == 1 else concat_values(values, at)


def concat_values(values: list[ir.Value], at: int) -> ir.Value:
    """One after the other, in stages where they are more than an operation takes."""
    while len(values) > MANY:
        values = [ai("concat", *values[i : i + MANY], axis=at) for i in range(0, len(values), MANY)]
    return ai("concat", *values, axis=at)


def slice_bounds(n: Node, sizes: Shape) -> SliceBounds:
    """What Slice takes of each axis it names."""
    if n.has(1):
        starts = n.dims(1, "starts are", signed=True)
        ends = n.dims(2, "ends are", signed=True)
        axes = n.static(3, "axes are") if n.has(3) else tuple(range(len(starts)))
        steps = n.static(4, "steps are") if n.has(4) else (1,) * len(starts)
    else:
        starts, ends = n.attr("starts", ()), n.attr("ends", ())
        axes, steps = n.attr("axes", tuple(range(len(starts)))), (1,) * len(starts)
    bounds: SliceBounds = []
    for start, end, a, step in zip(starts, ends, axes, steps, strict=True):
        a = axis(a, len(sizes))
        step = max(-_FAR, min(step, _FAR))  # beyond, too, it takes one element
        bounds.append((a, *_slice_axis(sizes[a], start, end, step), step))
    return bounds


def _slice_axis(d: Dim, start: Dim, end: Dim, step: int) -> tuple[Dim, Dim]:
    """(start, size) of one axis, by ONNX's rules of clamping."""
    if step == 0:
        raise ShapeError("a step of 0")
    if step > 0:
        first, last = _clamp(_from_end(start, d), 0, d), _clamp(_from_end(end, d), 0, d)
        return first, V.maximum(D.ceildiv(last - first, step), 0)
    first, last = _clamp(_from_end(start, d), 0, d - 1), _clamp(_from_end(end, d), -1, d - 1)
    size = V.maximum(D.ceildiv(first - last, -step), 0)
    return V.maximum(first, 0), V.minimum(size, d) if V.bounds(d)[0] <= 0 else size


def _from_end(x: Dim, d: Dim) -> Dim:
    """A negative position counts from the end."""
    lo, hi = V.bounds(x)
    if lo >= 0 or hi <= -_FAR:
        return x
    if hi < 0:
        return x + d
    return D.select(V.less_size(x, 0), x + d, x)


def _clamp(x: Dim, low: Dim, high: Dim) -> Dim:
    if isinstance(x, int) and abs(x) >= _FAR and not isinstance(high, int):
        return high if x > 0 else low
    return V.maximum(V.minimum(x, high), low)


@importer("Slice")
def slice_(n: Node) -> ir.Value:
    sizes = n.shape(0)
    starts: list[Dim] = [0] * len(sizes)
    taken, steps = list(sizes), [1] * len(sizes)
    for a, start, size_, step in slice_bounds(n, sizes):
        starts[a], taken[a], steps[a] = start, size_, step
    return sliced(n[0], tuple(starts), tuple(taken), tuple(steps))


def sliced(
    x: ir.Value, starts: Shape, sizes: Shape, steps: tuple[int, ...] | None = None
) -> ir.Value:
    """An ai.slice, or nothing where everything is taken."""
    steps = steps or (1,) * len(sizes)
    beyond = any(isinstance(s, int) and s and d != 0 for s, d in zip(starts, sizes, strict=True))
    if sizes == shape_of(x) and all(s == 1 for s in steps) and not beyond:
        return x
    if any(isinstance(d, int) and d == 0 for d in sizes):
        starts = tuple(0 if d == 0 else s for s, d in zip(starts, sizes, strict=True))
    return ai("slice", x, starts=starts, steps=steps, sizes=sizes)


def entry(x: ir.Value, i: Dim) -> ir.Value:
    """x[i]."""
    sizes = shape_of(x)[1:]
    return reshape(sliced(x, (i, *[0] * len(sizes)), (1, *sizes)), sizes)


def split_sizes(n: Node, total: Dim) -> list[Dim]:
    """Sizes of Split's outputs along its axis."""
    if n.has(1):
        return list(n.dims(1, "the sizes of the parts are"))
    if "split" in n.attributes:
        return list(n.attr("split"))
    count = n.attr("num_outputs", n.results)
    part = D.ceildiv(total, count)
    if isinstance(total, int) and isinstance(part, int):
        return [max(min(part, total - i * part), 0) for i in range(count)]
    return [part] * (count - 1) + [total - part * (count - 1)]


@importer("Split")
def split(n: Node) -> list[ir.Value]:
    at, sizes = n.axis(0), n.shape(0)
    parts = split_sizes(n, sizes[at])
    if all(isinstance(d, int) for d in (*parts, sizes[at])) and sum(parts) != sizes[at]:
        raise ShapeError(f"parts {parts} do not add up to {sizes[at]}")
    results: list[ir.Value] = []
    start: Dim = 0
    for part in parts:
        starts = tuple(start if i == at else 0 for i in range(len(sizes)))
        results.append(sliced(n[0], starts, (*sizes[:at], part, *sizes[at + 1 :])))
        start = start + part
    return results


@importer("Gather")
def gather(n: Node) -> ir.Value:
    at = n.axis(0)
    indices = index_values(n[1])
    _learn_length(indices, n.shape(0)[at])
    return ai("gather", n[0], indices, axis=at)


def _learn_length(indices: ir.Value, rows: Dim) -> None:
    """Indices 0, 1, … length - 1 into a table of `rows` bound the length."""
    value, moved = indices, ("ai.reshape", "ai.broadcast_to", "ai.cast")
    while not isinstance(value.owner, mlir.Block) and value.owner.name in moved:
        value = value.owner.operands[0]
    if isinstance(value.owner, mlir.Block) or value.owner.name != "ai.iota":
        return
    facts = ir.attrs(value.owner)
    (length,) = facts["shape"]
    names = sorted(D.symbols(length))
    if facts["step"] == 1 and isinstance(facts["start"], int) and len(names) == 1:
        last = facts["start"] + length - D.symbol(names[0])
        if isinstance(last, int) and isinstance(rows, int) and V.bounds(length)[1] > rows - last:
            raise Constrain(names[0], greatest=rows - last)


def index_values(value: ir.Value) -> ir.Value:
    """Indices in a dtype that operations take."""
    return value if dtype_of(value) in ("int32", "int64") else cast(value, "int64")


@importer("GatherElements")
def gather_elements(n: Node) -> ir.Value:
    return ai("gather_elements", n[0], index_values(n[1]), axis=n.axis(0))


@importer("GatherND")
def gather_nd(n: Node) -> ir.Value:
    return ai("gather_nd", n[0], index_values(n[1]), batch_dims=n.attr("batch_dims", 0))


@importer("ScatterElements", "Scatter")
def scatter_elements(n: Node) -> ir.Value:
    return ai(
        "scatter_elements",
        n[0],
        index_values(n[1]),
        n[2],
        axis=n.axis(0),
        reduction=n.attr("reduction", "none"),
    )


@importer("ScatterND")
def scatter_nd(n: Node) -> ir.Value:
    return ai("scatter_nd", n[0], index_values(n[1]), n[2], reduction=n.attr("reduction", "none"))


@importer("Tile", since=6)
def tile(n: Node) -> ir.Value:
    return ai("tile", n[0], repeats=n.dims(1, "the repeats are"))


@importer("Trilu")
def trilu(n: Node) -> ir.Value:
    k = int(n.number(1, "the diagonal is", 0))
    return ai("trilu", n[0], k=k, upper=bool(n.attr("upper", 1)))


@importer("OneHot")
def one_hot(n: Node) -> ir.Value:
    (depth,) = n.dims(1, "the depth is")
    indices = n[0]
    if dtype_of(indices) in FLOATS:
        indices = cast(indices, "int64")
    return ai(
        "one_hot", indices, n[2], depth=depth, axis=axis(n.attr("axis", -1), len(n.shape(0)) + 1)
    )


@importer("Range")
def range_(n: Node) -> ir.Value:
    dtype = n.type(0).dtype
    if any(n.known(i) is None for i in range(3)):
        from .onnx_nodes_select import computed_range  # noqa: PLC0415  # it imports this module

        return computed_range(n)
    start, limit, step = (_single(n, i) for i in range(3))
    if V.symbolic(start, limit, step):
        num, den = V.parts(step)
        if not isinstance(num, int) or den != 1 or num == 0 or dtype in FLOATS:
            raise DataDependent("the step is")
        span = V.sub(limit, start) if num > 0 else V.sub(start, limit)
        length: Dim = V.maximum(D.ceildiv(V.parts(span)[0], abs(num)), 0)
    elif step == 0:
        raise ShapeError("a step of 0")
    else:
        length = max(int(np.ceil((limit - start) / step)), 0)
    return ai("iota", shape=(length,), axis=0, dtype=dtype, start=start, step=step)


def _single(n: Node, i: int) -> Any:
    found = n.known(i)
    if found is None or found.size != 1:
        raise DataDependent(("the start is", "the limit is", "the step is")[i])
    return found.reshape(-1)[0]


@importer("ConstantOfShape")
def constant_of_shape(n: Node) -> ir.Value:
    value = n.attr("value")
    dtype = "float32" if value is None else value.dtype.name
    fill = 0 if value is None else value.reshape(-1)[0].item()
    return ir.full(fill, n.dims(0, "the shape is"), dtype)


@importer("EyeLike")
def eye_like(n: Node) -> ir.Value:
    dtype = DTYPES[n.attr("dtype")].name if "dtype" in n.attributes else n.type(0).dtype
    k = n.attr("k", 0)
    ones = ir.full(1, n.shape(0), "float32")
    band = ai("trilu", ai("trilu", ones, k=k, upper=True), k=k, upper=False)
    return cast(band, dtype)


@importer("DepthToSpace")
def depth_to_space(n: Node) -> ir.Value:
    return ai("depth_to_space", n[0], block=n.attr("blocksize"), mode=n.attr("mode", "DCR"))


@importer("SpaceToDepth")
def space_to_depth(n: Node) -> ir.Value:
    x, block = n[0], n.attr("blocksize")
    if n.attr("mode", "DCR") == "DCR":
        return ai("space_to_depth", x, block=block)
    batch, c, h, w = shape_of(x)
    h, w = D.floordiv(h, block), D.floordiv(w, block)
    parts = ai("transpose", reshape(x, (batch, c, h, block, w, block)), perm=(0, 1, 3, 5, 2, 4))
    return reshape(parts, (batch, c * block * block, h, w))


@importer("Pad", since=2)
def pad(n: Node) -> ir.Value:
    rank = len(n.shape(0))
    # Computed pads that mirror or wrap are never negative: sizes of either sign would make the
    # expressions of such places too long.
    mode = n.attr("mode", "constant")
    may_cut = mode == "constant"
    pads = n.dims(1, "the pads are", may_cut) if n.has(1) else tuple(n.attr("pads"))
    value = n.number(2, "the padding value is", 0.0) if n.has(1) else n.attr("value", 0.0)
    axes = [axis(a, rank) for a in n.static(3, "axes are")] if n.has(3) else list(range(rank))
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"{len(pads)} pads for {len(axes)} axes")
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for i, a in enumerate(axes):
        before[a], after[a] = pads[i], pads[i + len(axes)]
    return padded(n[0], before, after, mode, float(value))


@importer("Pad")
def old_pad(n: Node) -> ir.Value:
    pads = n.attr("paddings")
    half = len(pads) // 2
    return padded(n[0], pads[:half], pads[half:], n.attr("mode", "constant"), n.attr("value", 0.0))


def padded(x: ir.Value, before: Any, after: Any, mode: str, value: float) -> ir.Value:
    """An ai.pad; negative pads cut first."""
    cut_before = [V.maximum(-b, 0) for b in before]
    cut_after = [V.maximum(-a, 0) for a in after]
    sizes = shape_of(x)
    left = tuple(d - b - a for d, b, a in zip(sizes, cut_before, cut_after, strict=True))
    x = sliced(x, tuple(cut_before), left)
    grown = [tuple(V.maximum(p, 0) for p in side) for side in (before, after)]
    if all(isinstance(p, int) and p == 0 for side in grown for p in side):
        return x
    return ai("pad", x, before=grown[0], after=grown[1], mode=mode, value=value)


@importer("ReverseSequence")
def reverse_sequence(n: Node) -> ir.Value:
    """y[t, b] = x[len[b]-1-t, b] for t < len[b], else x[t, b], along the time and batch axes."""
    x, t, b = n[0], n.attr("time_axis", 0), n.attr("batch_axis", 1)
    sizes = shape_of(x)
    line = tuple(sizes[t] if i == t else 1 for i in range(len(sizes)))
    time = ai("iota", shape=line, axis=t, dtype="int64", start=0, step=1)
    lengths = reshape(n[1], tuple(sizes[b] if i == b else 1 for i in range(len(sizes))))
    back = ai("elemwise_sub", ai("elemwise_sub", lengths, ir.full(1, (), "int64")), time)
    source = ai("where", ai("less", time, lengths), back, time)
    return ai("gather_elements", x, ai("broadcast_to", source, shape=sizes), axis=t)
