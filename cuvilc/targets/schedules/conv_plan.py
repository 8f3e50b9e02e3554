"""A convolution as its schedule sees it: sizes, blocks of output channels, how work is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv, floordiv, maximum
from cuvilc.dialect.types import TensorType, channel_block
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Miss, Region
from cuvilc.targets.schedules.conv_taps import tile_widths
from cuvilc.targets.schedules.conv_window import BLOCK, Axis, axes_of
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import anchor_of, tile_rows

_TASK_FLOPS = 2.5e6  # about 20 us
_HALF = BLOCK // 2
_FEW_ROWS = 4  # which may be too few to share
# In a part of a row: the last one, which is moved back where the number is not known, is then
# computed by who computes the one that it overlaps.
_LEAST_TILES = 2
USUAL_WIDTH = 56  # of a row, where it is known only at run time


class ChannelUnits:
    """Output channels in blocks, these in units, and these in groups: a task has one of them."""

    outputs: int
    unit_blocks: int
    units: int

    @property
    def blocks(self) -> int:
        return -(-self.outputs // BLOCK)

    @property
    def unit_count(self) -> int:
        return -(-self.blocks // self.unit_blocks)

    @property
    def unit_width(self) -> int:
        """Channels of a register tile of any unit but the last."""
        return tile_width(min(self.outputs, self.unit_blocks * BLOCK))

    @property
    def last_channels(self) -> int:
        """Output channels of the last unit."""
        return self.outputs - (self.unit_count - 1) * self.unit_blocks * BLOCK

    @property
    def last_width(self) -> int:
        """Channels of its register tile."""
        return tile_width(self.last_channels)

    @property
    def unit_groups(self) -> int:
        return -(-self.unit_count // self.units)


@dataclass
class Plan(ChannelUnits):
    """Sizes and decisions. A unit is the output channels of a register tile: one block of 16, or
    two.
    """

    anchor: Any
    images: Dim
    height: Axis
    width: Axis
    channels: int  # input channels of a group
    outputs: int
    groups: int
    blocked_input: bool
    unit_blocks: int
    pixels: int  # of the widest tile
    rows: int = 1  # in a task
    units: int = 1  # in a task
    part_tiles: int = 0  # tiles of a row in a task at least, where a row is cut
    stack: int = 1  # images of the input whose channels are those of one (ai.conv)
    stack_step: int = 1  # from one's first to the next one's

    @property
    def image_planes(self) -> int:
        """Of the input, from an image of the result to the next: of blocks, or of channels."""
        planes = self.channels * self.groups // self.stack
        return (-(-planes // BLOCK) if self.blocked_input else planes) * self.stack_step

    @property
    def row_groups(self) -> Dim:
        return ceildiv(self.height.count, self.rows)

    @property
    def row_tiles(self) -> Dim:
        """Tiles of a row."""
        count = self.width.count
        if isinstance(count, int):
            return len(tile_widths(count, self.pixels))
        return ceildiv(count, self.pixels)

    @property
    def parts(self) -> Dim:
        """Of a row; its last one has what is left."""
        return maximum(floordiv(self.row_tiles, self.part_tiles), 1) if self.part_tiles else 1

    @property
    def tasks(self) -> Dim:
        return self.images * self.unit_groups * self.row_groups * self.parts

    @property
    def flops(self) -> Dim:
        """Multiply-adds that touch padding are not done and not counted."""
        taps = self.height.tap_count() * self.width.tap_count()
        return taps * (2 * self.outputs * self.channels) * self.images


def unit_cases(
    plan: ChannelUnits, unit: Any, of: Callable[[int, int | None], Callable[[], None]]
) -> list[tuple[Any, Callable[[], None]]]:
    """`of(width of a register tile, how many of its channels exist, if known)` for microkernel's
    first_of: a unit, and the last one where its tile is narrower.
    """
    last = of(plan.last_width, plan.last_channels)
    if plan.unit_count <= 1:
        return [(None, last)]
    if plan.last_width == plan.unit_width:
        return [(None, of(plan.unit_width, None if plan.outputs % BLOCK else plan.unit_width))]
    return [(unit < plan.unit_count - 1, of(plan.unit_width, plan.unit_width)), (None, last)]


def blocks_of_unit(outputs: int, groups: int, chip: Chip) -> int:
    """Two where two vectors hold them, and the output channels of a group are whole pairs."""
    pairs = outputs > BLOCK and (groups == 1 or (outputs // groups) % PANEL == 0)
    return 2 if pairs and chip.lanes * 2 >= PANEL else 1


def tile_width(channels: int) -> int:
    """Of a register tile for so many: whole halves of a block. A short vector takes no longer than
    a long one that is half empty, and on many chips half as long.
    """
    return -(-channels // _HALF) * _HALF


def plan_of(region: Region, chip: Chip) -> Plan:
    """Decide everything that needs no code. Raises Miss."""
    anchor = anchor_of(region, "ai.conv")
    attrs = ir.attrs(anchor)
    x, w = (ir.type_of(v) for v in anchor.operands[:2])
    result = ir.type_of(anchor.results[0])
    check_types(region, anchor, x, w, result)
    groups, outputs, channels = attrs["groups"], w.shape[0], w.shape[1]
    if not (isinstance(outputs, int) and isinstance(channels, int)):
        raise Miss("channels known only at run time")
    if w.layout != f"pack0_{PANEL}":
        raise Miss(f"weights in layout {w.layout or 'row-major'}")
    if groups > 1 and (channels % BLOCK or (outputs // groups) % BLOCK):
        raise Miss(f"{groups} groups of {channels} channels")
    unit_blocks = blocks_of_unit(outputs, groups, chip)
    height, width = axes_of(x.shape, result.shape, w.shape[2:], attrs)
    plan = Plan(
        anchor, result.shape[0], height, width, channels, outputs, groups, bool(x.layout),
        unit_blocks, 1, stack=attrs["stack"], stack_step=attrs["stack_step"],
    )  # fmt: skip
    check_stack(x, plan.stack)
    plan.pixels = tile_rows(chip, plan.unit_width)
    _group(plan)
    return plan


def check_stack(x: TensorType, stack: int) -> None:
    """Miss unless the channels of images that follow each other lie one after the other."""
    if stack > 1 and x.layout and not (isinstance(x.shape[1], int) and x.shape[1] % BLOCK == 0):
        raise Miss(f"a stack of images of {x.shape[1]} channels")


def check_types(
    region: Region, anchor: Any, x: TensorType, w: TensorType | None, result: TensorType
) -> None:
    """Miss unless x and the result are what a blocked schedule reads and writes."""
    if x.dtype != "float32":
        raise Miss(f"a convolution or pool of {x.dtype}")
    check_places(region, anchor, x, w, result)


def check_places(
    region: Region, anchor: Any, x: TensorType, w: TensorType | None, result: TensorType
) -> None:
    """Miss unless x and w are arguments, and the results lie in blocks of channels."""
    if x.rank not in (3, 4):
        raise Miss(f"{x.rank - 2} spatial dimensions")
    if region.argument(anchor.operands[0]) is None:
        raise Miss("the input is computed in the kernel")
    if w is not None and region.argument(anchor.operands[1]) is None:
        raise Miss("the weights are computed in the kernel")
    for t in (result, *(ir.type_of(v) for v in region.results)):
        if not t.layout or channel_block(t.layout) != BLOCK:
            raise Miss(f"a result in layout {t.layout or 'row-major'}")
    if x.layout and channel_block(x.layout) != BLOCK:
        raise Miss(f"input in layout {x.layout}")


def _group(plan: Plan) -> None:
    """Rows, then units, until a task is long enough."""
    count = plan.width.count if isinstance(plan.width.count, int) else USUAL_WIDTH
    taps = plan.height.kernel * plan.width.kernel
    row_flops = max(2 * count * plan.unit_width * plan.channels * taps, 1)
    rows = max(1, round(_TASK_FLOPS / row_flops))
    if isinstance(plan.height.count, int):
        groups = max(1, -(-plan.height.count // rows))
        plan.rows = max(1, -(-plan.height.count // groups))
        plan.units = max(1, min(plan.unit_count, rows // plan.rows)) if groups == 1 else 1
    else:
        plan.rows = min(rows, 8)
    if plan.rows == 1 and isinstance(plan.height.count, int) and plan.height.count <= _FEW_ROWS:
        tile_flops = row_flops / max(count / plan.pixels, 1)
        plan.part_tiles = max(_LEAST_TILES, round(_TASK_FLOPS / tile_flops))
        if isinstance(plan.row_tiles, int) and plan.parts == 1:
            plan.part_tiles = 0
