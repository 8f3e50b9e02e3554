"""The numbers of a Winograd convolution by name, so that layers can share a kernel's code.

What differs between most layers of a network are sizes. Code in which they go by names is one part
(part.py) for all of these layers, and a launch passes its layer's values. Where more depends on a
size than that, such as a partial block of channels, code has the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import prod

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Expr, substitute, symbol
from cuvilc.dialect.ir import Value
from cuvilc.dialect.types import TensorType
from cuvilc.targets.part import Part
from cuvilc.targets.region import Region
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.winograd_plan import Plan

_LINE = 4 * BLOCK  # bytes of a block of channels, to which scratch is aligned
_AXES = ("images", "outputs", "out_height", "out_width")


@dataclass(frozen=True)
class Sizes:
    """`sizes[name]`: the name where code is shared, else the number."""

    values: Mapping[str, Dim]
    shared: bool

    def __getitem__(self, name: str) -> Dim:
        return symbol(name) if self.shared else self.values[name]

    def named(self) -> tuple[Dim, ...]:
        """All that shared code reads, in the order in which a launch passes it."""
        seen, made = symbol("seen_lines"), symbol("made_lines")
        return (
            *map(symbol, self.values), symbol("blocks") * BLOCK,
            seen * _LINE, (seen + made) * _LINE,
        )  # fmt: skip

    def passed(self) -> tuple[Dim, ...]:
        """Their values."""
        return tuple(substitute(d, self.values) if isinstance(d, Expr) else d for d in self.named())

    @property
    def scratch_bytes(self) -> Dim:
        """What inputs, products and the half of a transform need."""
        values = self.values
        lines = values["seen_lines"] + values["made_lines"] + values["points"]
        return lines * _LINE


def sizes_of(plan: Plan, parts: Mapping[str, Part], shared: bool) -> Sizes:
    """Of a layer that calls `parts`, which go by the names that they have here."""
    size, many, _ = plan.row_sizes
    # Scratch of [blocks of channels, points, rows, BLOCK]; an odd number of rows keeps the points
    # of a tile, which are written and read together, in different sets of the L1 cache.
    rows = plan.room | 1
    block_lines = plan.products * rows
    values: dict[str, Dim] = {
        "images": plan.images, "height": plan.height, "width": plan.width,
        "out_height": plan.out_height, "out_width": plan.out_width,
        "pad_top": plan.pads[0], "pad_left": plan.pads[1],
        "tile_down": plan.tile[0], "tile_across": plan.tile[1], "points": plan.products,
        "points_across": plan.points[1],
        "weights_down": plan.weight_points[0], "weights_across": plan.weight_points[1],
        "tiles_down": plan.tiles_down, "tiles_across": plan.tiles_across, "total": plan.total,
        "row_size": size, "many": many,
        "row_tiles": plan.row_tiles, "row_tile_count": plan.row_tile_count,
        "channels": plan.channels, "channel_blocks": plan.channel_blocks, "blocks": plan.blocks,
        "image_blocks": plan.image_blocks,
        "units": plan.units, "unit_count": plan.unit_count, "unit_groups": plan.unit_groups,
        "panel": prod(plan.weight_points) * plan.channels * PANEL,
        "point_stride": rows * BLOCK, "block_stride": block_lines * BLOCK,
        "seen_lines": plan.channel_blocks * block_lines,
        "made_lines": plan.unit_blocks * block_lines,
    }  # fmt: skip
    values |= {name: symbol(part.symbol) for name, part in parts.items()}
    return Sizes(values, shared)


def renamed_types(region: Region, plan: Plan) -> dict[Value, TensorType] | None:
    """Types of all values in which sizes go by names; None where they cannot."""
    result, anchor = ir.type_of(plan.anchor.results[0]), plan.anchor
    if plan.outputs % BLOCK or result.rank != len(_AXES):
        return None
    names: dict[str, Dim] = dict(zip(_AXES, map(symbol, _AXES), strict=True))
    names["outputs"] = symbol("blocks") * BLOCK

    def beside_result(value: Value) -> TensorType | None:
        t = ir.type_of(value)
        axes = list(zip(t.shape, result.shape[-t.rank :], _AXES[-t.rank :], strict=False))
        if t.rank > len(_AXES) or any(d not in (1, full) for d, full, _ in axes):
            return None
        return t.with_(shape=tuple(1 if d == 1 else names[name] for d, _, name in axes))

    others = [o for o in region.operations if o != anchor]
    made: dict[Value, TensorType] = {}
    for value in (*region.arguments, *(r for o in region.operations for r in o.results)):
        elsewhere = any(value in o.operands for o in others) or value not in anchor.operands
        t = beside_result(value) if elsewhere else _of_anchor(value, plan)
        if t is None or (elsewhere and value in anchor.operands[2:]):
            return None
        made[value] = t
    sized = (a for o in others for a in ir.attrs(o).values())
    return None if any(map(_has_expr, sized)) else made


def _of_anchor(value: Value, plan: Plan) -> TensorType:
    """The type of an operand of the convolution alone: input, weights (of any points), bias."""
    t, position = ir.type_of(value), list(plan.anchor.operands).index(value)
    outputs, channels = symbol("blocks") * BLOCK, symbol("channels")
    if position == 0:
        return t.with_(shape=(symbol("images"), channels, symbol("height"), symbol("width")))
    return t.with_(shape=(outputs, 1, channels) if position == 1 else (outputs,))


def _has_expr(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_expr, value))
    return isinstance(value, Expr)


def decides(region: Region, plan: Plan) -> str:
    """What decides the shared code of a region of renamed types, beside the chip, as a word."""
    numbers = {v: f"a{i}" for i, v in enumerate(region.arguments)}
    lines = [
        repr((
            plan.unit_blocks, plan.last_width == plan.unit_width, plan.row_sizes[2] == "open",
            len(region.scalars), "in_place" in region.function.attributes,
            *[plan.tile, plan.strides] * plan.one_axis,
        ))
    ]  # fmt: skip
    lines += [f"{numbers[v]}: {_spelled(region.type_of(v))}" for v in region.arguments]
    for i, operation in enumerate(region.operations):
        operands = [numbers[v] for v in operation.operands]
        for j, value in enumerate(operation.results):
            numbers[value] = f"r{i}.{j}"
        types = [_spelled(region.type_of(v)) for v in operation.results]
        attrs = {} if operation == plan.anchor else ir.attrs(operation)
        lines.append(f"{operation.name}({operands}) {sorted(attrs.items())} -> {types}")
    lines.append(repr([numbers[v] for v in region.results]))
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def _spelled(t: TensorType) -> str:
    return f"{t.dtype}{[str(d) for d in t.shape]}{t.layout}"
