"""Resize and Upsample of all opsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.ops.resize import COORDINATES
from cuvilc.dialect.types import FLOATS

from . import onnx_values as V
from ._table import importer
from .onnx_node import DataDependent, Node, ai, axis, cast, dtype_of, scalar, shape_of
from .onnx_resample import Resampling, largest_reduction_first

_CROP = "tf_crop_and_resize"


def _refuse(attributes: dict[str, Any]) -> str | None:
    coordinate = attributes.get("coordinate_transformation_mode", "half_pixel")
    if coordinate not in (*COORDINATES, _CROP):
        return f"coordinate_transformation_mode {coordinate} is not supported"
    return None


@importer("Resize", since=11, refuse=_refuse)
def resize(n: Node) -> ir.Value:
    before = list(n.shape(0))
    axes = [axis(a, len(before)) for a in n.attr("axes", tuple(range(len(before))))]
    sizes: list[Dim] = list(before)
    scales: list[Any] | None = None
    if n.has(3) and n.shape(3) != (0,):
        for a, d in zip(axes, n.dims(3, "the sizes are"), strict=True):
            sizes[a] = d
        scales = _keep_aspect(n, before, sizes, axes)
    else:
        scales = _scales(n, 2, len(axes))
        sizes, scales = _scaled(before, sizes, axes, scales)
    smooth = n.attr("antialias", 0) and n.attr("mode", "nearest") != "nearest"
    if smooth or n.attr("coordinate_transformation_mode") == _CROP:
        return _by_tables(n, sizes, scales, axes)
    return ai(
        "resize",
        n[0],
        sizes=tuple(sizes),
        scales=None if scales is None else tuple(scales),
        mode=n.attr("mode", "nearest"),
        coordinate=n.attr("coordinate_transformation_mode", "half_pixel"),
        nearest=n.attr("nearest_mode", "round_prefer_floor"),
        cubic_a=n.attr("cubic_coeff_a", -0.75),
        exclude_outside=bool(n.attr("exclude_outside", 0)),
    )


def _by_tables(n: Node, sizes: list[Dim], scales: list[Any] | None, axes: list[int]) -> ir.Value:
    """A pass along each axis that changes; what lies outside the region of interest last."""
    x, before = n[0], n.shape(0)
    everything = (0.0, 1.0)
    crops = n.attr("coordinate_transformation_mode") == _CROP
    roi = _region(n, len(axes)) if crops else [everything] * len(axes)
    plans: list[tuple[int, Resampling]] = []
    for a, region in zip(axes, roi, strict=True):
        m, size, scale = before[a], sizes[a], 1.0 if scales is None else scales[a]
        if size == m and scale == 1.0 and region == everything:
            continue
        if not isinstance(m, int) or not isinstance(size, int):
            raise DataDependent("with antialias or tf_crop_and_resize the sizes are")
        if m == 0 or scale <= 0:
            raise ShapeError(f"an axis of {m} cannot be resized to {size}")
        scale = size / m if scales is None else scale
        plans.append((a, _plan(n, m, size, float(scale), region)))
    nearest, dtype = n.attr("mode", "nearest") == "nearest", dtype_of(x)
    whole = dtype not in FLOATS and not nearest
    y = cast(x, "float32") if whole else x
    for a, plan in largest_reduction_first(plans):
        if nearest:
            y = ai("gather", y, n.constant(plan.indices()), axis=a)
            continue
        weights, start = plan.table()
        wide = "float64" if dtype_of(y) == "float64" else "float32"
        y = ai("resample", y, n.constant(weights.astype(wide)), n.constant(start), axis=a)
    y = _rounded(y, dtype) if whole else y
    return _extrapolated(n, y, plans)


def _plan(n: Node, before: int, after: int, scale: float, roi: tuple[float, float]) -> Resampling:
    return Resampling(
        before, after, scale, n.attr("coordinate_transformation_mode", "half_pixel"),
        n.attr("mode", "nearest"), n.attr("nearest_mode", "round_prefer_floor"),
        n.attr("cubic_coeff_a", -0.75), bool(n.attr("exclude_outside", 0)),
        bool(n.attr("antialias", 0)), roi,
    )  # fmt: skip


def _region(n: Node, count: int) -> list[tuple[float, float]]:
    """(start, end) of the region of interest along each axis, 0 to 1."""
    found = n.array(1) if n.has(1) else None
    if found is None or found.size != 2 * count:
        raise DataDependent("the region of interest is")
    flat = found.astype(float).reshape(2, count)
    if not np.isfinite(flat).all():
        raise ShapeError("the region of interest is not finite")
    return [(float(a), float(b)) for a, b in flat.T]


def _rounded(y: ir.Value, dtype: str) -> ir.Value:
    """Integers to the nearest, half up, within their range: an overshoot does not wrap around."""
    limits = np.iinfo(dtype)
    half = ai("floor", ai("elemwise_add", y, scalar(0.5, y)))
    return cast(ai("clip", half, low=float(limits.min), high=float(limits.max)), dtype)


def _extrapolated(n: Node, y: ir.Value, plans: list[tuple[int, Resampling]]) -> ir.Value:
    """`extrapolation_value` where a coordinate lies outside the image."""
    rank = len(shape_of(y))
    for a, plan in plans:
        if plan.outside().any():
            line = tuple(plan.after if i == a else 1 for i in range(rank))
            mask = n.constant(plan.outside().reshape(line))
            y = ai("where", mask, scalar(n.attr("extrapolation_value", 0.0), y), y)
    return y


def _scales(n: Node, i: int, count: int) -> list[Any]:
    found = n.known(i)
    if found is None or found.size != count:
        raise DataDependent("the scales are")
    return found.reshape(-1).tolist()


def _scaled(
    before: list[Dim], sizes: list[Dim], axes: list[int], scales: list[Any]
) -> tuple[list[Dim], list[Any] | None]:
    """Sizes from scales; scales that are ratios of sizes are left to be computed from them."""
    full: list[Any] = [1.0] * len(before)
    for a, scale in zip(axes, scales, strict=True):
        size = V.floor(V.mul(before[a], scale))
        sizes[a] = int(size) if isinstance(size, float) else size
        full[a] = scale
    return sizes, None if V.symbolic(*full) else [float(s) for s in full]


def _keep_aspect(
    n: Node, before: list[Dim], sizes: list[Dim], axes: list[int]
) -> list[float] | None:
    """keep_aspect_ratio_policy: one scale for all axes; sizes are not exceeded, or reached.

    Sets the sizes; the scales of all axes, None where the sizes alone decide.
    """
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return None
    pairs = [(before[a], sizes[a]) for a in axes]
    if not all(isinstance(x, int) for pair in pairs for x in pair):
        raise DataDependent(f"with keep_aspect_ratio_policy {policy} the sizes are")
    if any(old == 0 for old, _ in pairs):
        raise ShapeError("an empty axis has no aspect ratio")
    ratios = [new / old for old, new in pairs]  # type: ignore[operator]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    scales = [1.0] * len(before)
    for a in axes:
        sizes[a] = int(scale * before[a] + 0.5)  # type: ignore[operator]
        scales[a] = scale
    return scales


@importer("Resize", "Upsample", since=7)
def upsample(n: Node) -> ir.Value:
    """Before opset 11: output i lies at i / scale, nearest rounds down."""
    before = list(n.shape(0))
    given = n.attr("scales")
    scales = list(given) if given is not None else _scales(n, 1, len(before))
    sizes, full = _scaled(before, list(before), list(range(len(before))), scales)
    return ai(
        "resize",
        n[0],
        sizes=tuple(sizes),
        scales=None if full is None else tuple(full),
        mode=n.attr("mode", "nearest").replace("bilinear", "linear"),
        coordinate="asymmetric",
        nearest="floor",
    )
