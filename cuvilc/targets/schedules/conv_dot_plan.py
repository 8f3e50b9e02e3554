"""A convolution on groups of narrow numbers as its schedule sees it: sizes, and how work is cut."""

from __future__ import annotations

from dataclasses import dataclass, field

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.dot_layout import dot_parts
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import BYTES, Dots
from cuvilc.targets.region import Miss, Region
from cuvilc.targets.schedules import conv_plan
from cuvilc.targets.schedules.conv_plan import (
    USUAL_WIDTH,
    blocks_of_unit,
    check_places,
    check_stack,
)
from cuvilc.targets.schedules.conv_window import BLOCK, Axis, axes_of
from cuvilc.targets.schedules.dot_tile import dot_rows
from cuvilc.targets.schedules.gemm_dot import kind_of
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.microkernel import anchor_of, balanced

_TASK_FLOPS = 8e6  # of bytes, about 20 us; others take as much longer as they are
_TASKS = 8  # at least, so that threads end together, while a task is an eighth of that or more
# Copying an input pixel takes two thirds as long as a unit's products of one tap: of eight such it
# is a small part. A task has so many units as long as there are so many tasks.
_SHARING, _MANY = 8, 32


@dataclass
class Plan(conv_plan.Plan):
    """`pixels` are those of the largest tile, which may span several short rows."""

    dots: Dots = field(kw_only=True)
    tile_rows: int = 1  # output rows in a tile
    turned: bool = False  # an image of one row is taken as one of one column

    @property
    def flops(self) -> Dim:
        """All taps count: padding is in the copied rows."""
        taps = self.height.kernel * self.width.kernel
        count = self.height.count * self.width.count
        return count * (2 * self.outputs * self.channels * taps) * self.images

    @property
    def runs(self) -> tuple[int, int]:
        """(runs of neighbouring bytes that a window's row is, groups in each)."""
        if self.width.dilation == 1:
            return 1, -(-self.width.kernel * self.channels // self.dots.group)
        return self.width.kernel, self.channels // self.dots.group

    @property
    def direct(self) -> bool:
        """Whether input is read where it lies."""
        one = all((a.kernel, a.pad) == (1, 0) and a.all_inside for a in (self.height, self.width))
        whole = self.channels % self.dots.group == 0 and self.dots is BYTES
        return one and self.blocked_input and whole

    @property
    def seen_columns(self) -> Dim:
        """Input columns that windows reach, padding included."""
        return reach(self.width, self.width.count)


def reach(axis: Axis, count: Dim) -> Dim:
    """Places of the input that `count` outputs read along an axis."""
    return (count - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1


def plan_of(region: Region, chip: Chip) -> Plan:
    """Decide everything that needs no code. Raises Miss."""
    dots = kind_of(region).on(chip.dots)
    anchor = anchor_of(region, dots.conv)
    attrs = ir.attrs(anchor)
    x, w = (ir.type_of(v) for v in anchor.operands[:2])
    result = ir.type_of(anchor.results[0])
    fits = (x.dtype, w.dtype) in ((dots.left, dots.right), ("float32", dots.right))
    if attrs.get("centred") or not fits:
        raise Miss(f"not plain sums of {dots.left} and {dots.right}")
    check_places(region, anchor, x, w, result)
    groups, outputs, channels = attrs["groups"], w.shape[0], w.shape[1]
    if not (isinstance(outputs, int) and isinstance(channels, int)):
        raise Miss("channels known only at run time")
    if not w.layout.startswith("dot") or dot_parts(w.layout) != (0, PANEL, dots.group):
        raise Miss(f"weights in layout {w.layout or 'row-major'}")
    if groups > 1 and (channels % BLOCK or (outputs // groups) % BLOCK):
        raise Miss(f"{groups} groups of {channels} channels")
    height, width = axes_of(x.shape, result.shape, w.shape[2:], attrs)
    # Rows are what tasks share, and a copied row of one pixel has no taps beside each other.
    flat = (height.size, height.count, height.kernel, height.pad) == (1, 1, 1, 0)
    turned = flat and x.rank == 4 and channels % dots.group == 0
    if turned:
        height, width = width, height
    if width.dilation != 1 and channels % dots.group:
        raise Miss("dilated taps of channels that are not whole groups")
    unit_blocks = blocks_of_unit(outputs, groups, chip)
    plan = Plan(
        anchor, result.shape[0], height, width, channels, outputs, groups, bool(x.layout),
        unit_blocks, dot_rows(chip, dots, unit_blocks * BLOCK), dots=dots, turned=turned,
        stack=attrs.get("stack", 1), stack_step=attrs.get("stack_step", 1),
    )  # fmt: skip
    check_stack(x, plan.stack)
    _group(plan)
    return plan


def _group(plan: Plan) -> None:
    """Rows for tiles of short rows, then units for tasks, then rows."""
    count = plan.width.count
    if isinstance(count, int) and isinstance(plan.height.count, int) and count:
        plan.tile_rows = max(1, min(plan.pixels // count, plan.height.count))
    taps = plan.height.kernel * plan.width.kernel
    known = count if isinstance(count, int) else USUAL_WIDTH
    unit_flops = max(2 * known * plan.unit_blocks * BLOCK * plan.channels * taps, 1)
    per_group = plan.unit_count // plan.groups if plan.groups > 1 else plan.unit_count
    rows = max(1, round(_task_flops(plan) / unit_flops))
    if plan.direct:
        plan.units = max(1, min(per_group, rows // 4))
    else:  # as many as can share what a task copies, which each further row makes more
        plan.units = balanced(per_group, max(1, rows // plan.tile_rows, _shared(plan, per_group)))[
            0
        ]
    while per_group % plan.units and plan.groups > 1:
        plan.units -= 1
    rows = -(-rows // plan.units) if plan.direct else max(1, rows // plan.units)
    rows = max(1, -(-rows // plan.tile_rows)) * plan.tile_rows
    if isinstance(plan.height.count, int) and plan.height.count:
        groups = -(-plan.height.count // rows)
        even = -(-plan.height.count // groups)
        plan.rows = min(-(-even // plan.tile_rows) * plan.tile_rows, plan.height.count)
    else:
        plan.rows = min(rows, 8)


def _shared(plan: Plan, per_group: int) -> int:
    """Units of a task for which copying its input is a small part, while there are many tasks."""
    height, width = plan.height, plan.width
    taps = height.kernel * width.kernel
    wanted = min(per_group, -(-_SHARING * height.stride * width.stride // taps))
    lines = height.count // plan.tile_rows if isinstance(height.count, int) else 0
    return wanted if lines * -(-per_group // wanted) * plan.groups >= _MANY else 1


def _task_flops(plan: Plan) -> float:
    """Of a task, about."""
    most = _TASK_FLOPS / plan.dots.item
    total = plan.flops
    return min(most, max(total / _TASKS, most / 8)) if isinstance(total, int) else most
