"""Resize and Upsample of all opsets."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.ops.resize import COORDINATES

from . import onnx_values as V
from ._table import importer
from .onnx_node import DataDependent, Node, ai, axis


def _refuse(attributes: dict[str, Any]) -> str | None:
    if attributes.get("antialias", 0):
        return "antialias = 1 is not supported"
    coordinate = attributes.get("coordinate_transformation_mode", "half_pixel")
    if coordinate not in COORDINATES:
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
        _keep_aspect(n, before, sizes, axes)
    else:
        scales = _scales(n, 2, len(axes))
        sizes, scales = _scaled(before, sizes, axes, scales)
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


def _keep_aspect(n: Node, before: list[Dim], sizes: list[Dim], axes: list[int]) -> None:
    """keep_aspect_ratio_policy: one scale for all axes; sizes are not exceeded, or reached."""
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return
    pairs = [(before[a], sizes[a]) for a in axes]
    if not all(isinstance(x, int) for pair in pairs for x in pair):
        raise ShapeError(f"keep_aspect_ratio_policy {policy} needs constant sizes")
    ratios = [new / old for old, new in pairs]  # type: ignore[operator]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    for a in axes:
        sizes[a] = int(scale * before[a] + 0.5)  # type: ignore[operator]


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
