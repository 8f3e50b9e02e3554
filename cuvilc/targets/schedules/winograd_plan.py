"""A convolution by Winograd's filtering as its schedule sees it: sizes, and how work is cut."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv
from cuvilc.dialect.winograd import Tile, points, weight_points
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Miss, Region
from cuvilc.targets.schedules.conv_plan import ChannelUnits, check_stack, check_types
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import anchor_of, balanced, tile_rows

_TASK_FLOPS = 2.5e6  # about 20 us
_LEAST_FLOPS = 9e5  # of a task of a small layer, so that it has some
# Tasks that a kernel should have at least, so that threads finish at about the same time.
_TASKS = 4
_L2_SHARE = 0.6
_LEAST_ROWS = 24
# Units that share a transformed input at least: it costs about a quarter of one.
_LEAST_UNITS = 2


@dataclass
class Plan(ChannelUnits):
    """Sizes and decisions. A row is a tile of the result, a row tile as many as the registers hold;
    a unit is the output channels of a register tile: one block of 16, or two, or half of the last.
    """

    anchor: Any
    tile: Tile
    strides: tuple[int, int]
    images: Dim
    height: Dim  # of the input
    width: Dim
    out_height: Dim
    out_width: Dim
    pads: tuple[int, int]
    channels: int
    outputs: int
    unit_blocks: int
    rows: int  # of the largest register tile
    row_tiles: int = 1  # in a task
    units: int = 1  # in a task
    stack: int = 1  # as of conv_plan.Plan
    stack_step: int = 1

    @property
    def points(self) -> tuple[int, int]:
        return points(self.tile, self.strides)

    @property
    def one_axis(self) -> bool:
        """Whether windows have one tap along the other axis."""
        return 1 in self.tile

    @property
    def axis(self) -> int:
        """The first one along which windows have 3 taps."""
        return 0 if self.tile[0] > 1 else 1

    @property
    def products(self) -> int:
        """Of a row, with each channel."""
        return prod(self.points)

    @property
    def weight_points(self) -> tuple[int, int]:
        return weight_points(self.tile)

    @property
    def tiles_down(self) -> Dim:
        return ceildiv(self.out_height, self.tile[0])

    @property
    def tiles_across(self) -> Dim:
        return ceildiv(self.out_width, self.tile[1])

    @property
    def total(self) -> Dim:
        """Rows of all images."""
        return self.images * self.tiles_down * self.tiles_across

    @property
    def row_tile_count(self) -> Dim:
        return ceildiv(self.total, self.rows)

    @property
    def row_sizes(self) -> tuple[int, int, str]:
        """(size, many, spread) of row tiles: those after number `many` have one row less than
        `size`; `spread` as in winograd_parts.products.
        """
        if not isinstance(self.total, int):
            return self.rows, 0, "open"
        sizes = balanced(self.total, self.rows)  # two that differ by one, larger ones first
        size = sizes[0] if sizes else 1
        many = sizes.count(size)
        return size, many, "even" if many == len(sizes) else "uneven"

    @property
    def row_groups(self) -> Dim:
        return ceildiv(self.row_tile_count, self.row_tiles)

    @property
    def channel_blocks(self) -> int:
        return -(-self.channels // BLOCK)

    @property
    def image_blocks(self) -> int:
        """Of the input, from an image of the result to the next."""
        return self.channel_blocks // self.stack * self.stack_step

    @property
    def tasks(self) -> Dim:
        return self.row_groups * self.unit_groups

    @property
    def flops(self) -> Dim:
        """Of the products alone."""
        return self.total * (2 * self.products * self.channels * self.outputs)

    @property
    def room(self) -> int:
        """Rows that scratch holds."""
        return self.row_tiles * self.rows


def plan_of(region: Region, chip: Chip) -> Plan:
    """Decide everything that needs no code. Raises Miss."""
    anchor = anchor_of(region, "ai.conv_winograd")
    attrs = ir.attrs(anchor)
    x, u = (ir.type_of(v) for v in anchor.operands[:2])
    result = ir.type_of(anchor.results[0])
    check_types(region, anchor, x, u, result)
    if not x.layout:
        raise Miss("the input is row-major")
    if u.layout != f"pack0_{PANEL}":
        raise Miss(f"weights in layout {u.layout or 'row-major'}")
    outputs, _, channels = u.shape
    if not (isinstance(outputs, int) and isinstance(channels, int)):
        raise Miss("channels known only at run time")
    unit_blocks = 2 if outputs > BLOCK and chip.lanes * 2 >= PANEL else 1
    (_, _, height, width), (_, _, down, across) = x.shape, result.shape
    plan = Plan(
        anchor, attrs["tile"], attrs["strides"], result.shape[0], height, width, down, across,
        attrs["pads_begin"], channels, outputs, unit_blocks,
        1, stack=attrs["stack"], stack_step=attrs["stack_step"],
    )  # fmt: skip
    check_stack(x, plan.stack)
    plan.rows = tile_rows(chip, plan.unit_width)
    _group(plan, chip)
    return plan


def _group(plan: Plan, chip: Chip) -> None:
    """As many rows as the L2 cache holds what is transformed of, but so many that reading the
    weights again for the next ones costs little; then units; then fewer rows, where there is work
    for more tasks.
    """
    if isinstance(plan.total, int) and plan.total:
        plan.rows = balanced(plan.total, plan.rows)[0]
    row_bytes = 4 * BLOCK * plan.products * (plan.channel_blocks + plan.unit_blocks)
    by_cache = int(_L2_SHARE * chip.l2_bytes / (row_bytes * plan.rows))
    most = max(-(-_LEAST_ROWS // plan.rows), by_cache)
    image = plan.tiles_down * plan.tiles_across
    total = next((n for n in (plan.total, image) if isinstance(n, int)), 0)
    count = -(-total // plan.rows)
    groups = max(1, -(-count // most))
    plan.row_tiles = -(-count // groups) or most
    row_flops = 2 * plan.products * plan.channels * plan.unit_blocks * BLOCK
    unit_flops = max(1, row_flops * plan.room)
    by_work = max(1, round(plan.unit_count * unit_flops / _TASK_FLOPS))
    pieces = min(-(-_TASKS // groups), by_work, max(1, plan.unit_count // _LEAST_UNITS))
    plan.units = -(-plan.unit_count // pieces)
    work = 2 * plan.products * plan.channels * plan.outputs * total
    wanted = max([1, *(n for n in (2, _TASKS) if n * _LEAST_FLOPS <= work)])
    if groups * pieces < wanted:
        groups = max(groups, min(-(-wanted // pieces), total // _LEAST_ROWS))
        plan.row_tiles = -(-count // groups)
