"""Concat, Slice, Split: tensors of parts, and parts of tensors."""

from __future__ import annotations

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Shape
from cuvilc.dialect.op import MANY, ShapeError
from cuvilc.dialect.ops._rules import spell

from . import onnx_values as V
from ._table import importer
from .onnx_node import (
    Node,
    ai,
    axis,
    demand,
    reshape,
    shape_of,
)

_FAR = 10**9  # exporters write "to the end" as a number this large or larger; no axis is that long
SliceBounds = list[tuple[int, Dim, Dim, int]]  # (axis, start, size, step)


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
    demand(D.equal(sum(parts), sizes[at]), f"parts {spell(parts)} do not add up to {sizes[at]}")
    results: list[ir.Value] = []
    start: Dim = 0
    for part in parts:
        starts = tuple(start if i == at else 0 for i in range(len(sizes)))
        results.append(sliced(n[0], starts, (*sizes[:at], part, *sizes[at + 1 :])))
        start = start + part
    return results
