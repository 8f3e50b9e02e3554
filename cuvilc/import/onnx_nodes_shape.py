"""Operators that move elements, and those that compute with shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Shape
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.ops._rules import spell
from cuvilc.dialect.ops.structure import MOST
from cuvilc.dialect.types import FLOATS

from . import onnx_values as V
from ._table import importer
from .onnx_node import (
    DataDependent,
    Node,
    ai,
    axis,
    cast,
    demand,
    dtype_of,
    learn_bounds,
    reshape,
    shape_of,
)
from .onnx_tensors import DTYPES
from .onnx_values import Val


@importer("Identity")
def identity(n: Node) -> Any:
    return n.val(0)


@importer("Dropout")
def dropout(n: Node) -> Any:
    """At inference, or where a ratio of 0 drops nothing, the input itself with a full mask."""
    trains = n.has(2) and (n.array(2) is None or bool(np.any(n.array(2))))
    if trains and n.number(1, "the ratio is", default=0.5) != 0:
        raise ShapeError(
            "training_mode is on, or not known at compile time: it drops at random; "
            "call model.eval() before the export, on the very module that is exported"
        )
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
        if isinstance(d, int) or allow_zero:
            continue
        if i < len(before):
            sizes[i] = D.select(D.equal(d, 0), before[i], d)
        else:
            axes = f"{len(before)} axes do not have"
            demand(1 - D.equal(d, 0), f"the target's 0 at {i} copies a size that {axes}")
    holes = sum((D.equal(d, -1) for d in sizes), 0)
    demand(D.less(holes, 2), "the target has more than one -1")
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
        demand(fits, f"{spell(given)} does not expand to {spell(wanted)}")


@importer("Expand")
def expand(n: Node) -> ir.Value:
    wanted = n.dims(1, "the target shape is")
    learn_bounds(n.shape(0), wanted)
    _require_broadcast(n.shape(0), wanted)
    target = D.broadcast(n.shape(0), wanted)
    return n[0] if target == n.shape(0) else ai("broadcast_to", n[0], shape=target)


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
        each = min(abs(num), MOST)  # no size is larger
        length: Dim = V.maximum(D.ceildiv(V.parts(span)[0], each), 0)
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
