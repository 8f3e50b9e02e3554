"""A matrix product as its schedule sees it: sizes, sources of operands, how work is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Shape, ceildiv, product
from cuvilc.dialect.types import PANEL as PANEL
from cuvilc.dialect.types import TensorType, pack_parts
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region
from cuvilc.targets.schedules.microkernel import (
    anchor_of,
    halvings,
    tile_rows,
)

LINE = 16  # floats of a cache line
# A task should last about 20 us: so many operations, or so many bytes of weights when few rows
# share them.
_TASK_FLOPS = 2.5e6
_TASK_WEIGHT_BYTES = 300e3
# Rows of A this far apart share one set of the L1 cache; of more rows than ways, none stays: so
# they are packed.
_ALIAS_BYTES, _WAYS = 4096, 8
_PADDING = 16  # floats between packed rows, for the same reason
_MOST_ROW_TILES = 16  # in a task, when the number of rows is known only at run time


@dataclass
class Plan:
    """Sizes and decisions. Where B has two dimensions, all leading ones of A number the rows."""

    anchor: Any
    a: Any
    b: Any
    batch: Shape
    leading: Shape  # what the row number stands for: its digits, outer first
    transposed_a: bool
    transposed_b: bool
    m: Dim
    n: Dim
    k: Dim
    a_direct: bool  # A is read where it lies; else packed into scratch, a task's rows at a time
    # "packed": panels of constants; "rows": read where it lies; "gather": packed into scratch
    b_kind: str
    rows: int  # of the full register tile
    width: int
    tile_group: int = 1  # row tiles in a task
    panel_group: int = 1  # panels in a task
    often_few: bool = True  # rows, where they are known only at run time

    @property
    def row_tiles(self) -> Dim:
        return ceildiv(self.m, self.rows)

    @property
    def panels(self) -> Dim:
        return ceildiv(self.n, self.width)

    @property
    def row_groups(self) -> Dim:
        return ceildiv(self.row_tiles, self.tile_group)

    @property
    def panel_groups(self) -> Dim:
        return ceildiv(self.panels, self.panel_group)

    @property
    def tasks(self) -> Dim:
        return product(self.batch) * self.panel_groups * self.row_groups

    @property
    def flops(self) -> Dim:
        return product(self.batch) * self.m * self.n * self.k * 2

    @property
    def row_stride(self) -> Dim:
        """Of A as the register tile reads it."""
        return self.k if self.a_direct else self.k + _PADDING

    @property
    def last_width(self) -> int:
        """Of the tile on the last panel: half of a tile suffices where its second half would be
        empty.
        """
        left = self.n % self.width if isinstance(self.n, int) else 0
        halved = self.b_kind == "packed" and self.width == PANEL and 0 < left <= PANEL // 2
        return PANEL // 2 if halved else self.width

    @property
    def sizes(self) -> list[int]:
        """Row counts of the register tiles that exist when the number of rows is known only at run
        time.
        """
        return halvings(self.rows) if self.often_few else [self.rows, -(-self.rows // 3), 1]

    def row_index(self, emitter: Emitter, row: Any) -> list[Any]:
        """The digits of a row number; an extent of 1 has the digit 0."""
        real = [axis for axis, d in enumerate(self.leading) if d != 1]
        digits: list[Any] = [0] * len(self.leading)
        for axis in reversed(real):
            if axis == real[0]:
                digits[axis] = row
            else:
                extent = emitter.builder.scalar(self.leading[axis])
                digits[axis] = emitter.k.mod(row, extent)
                row = emitter.k.floordiv(row, extent)
        return digits


def plan_of(region: Region, chip: Chip, name: str = "ai.matmul") -> Plan:
    """Decide everything that needs no code, for the operation of this name. Raises Miss."""
    anchor = anchor_of(region, name)
    a, b, *_ = anchor.operands
    ta, tb = ir.type_of(a), ir.type_of(b)
    attrs = {"transpose_a": False, **ir.attrs(anchor)}
    result = ir.type_of(anchor.results[0])
    _check(ta, tb, result)
    n = result.shape[-1]
    k = ta.shape[-2 if attrs["transpose_a"] else -1]
    vector = ta.rank == 1
    flat = tb.rank == 2 and not attrs["transpose_a"]
    leading = () if vector else result.shape[:-1] if flat else (result.shape[-2],)
    batch = () if flat or vector else result.shape[:-2]
    if vector and tb.rank != 2:
        raise Miss("a vector times a stack of matrices")
    kind = _kind(region, b, tb, attrs["transpose_b"], n, chip)
    m = product(leading)
    width = tile_width(chip, n)
    if kind == "packed" and isinstance(m, int) and m <= tile_rows(chip, PANEL) and n != width:
        width = PANEL  # few rows are bound by memory: read whole panels
    if kind == "rows" and isinstance(n, int) and n < width:
        width = chip.lanes
    a_direct = region.argument(a) is not None and not attrs["transpose_a"] and _is_plain(ta)
    rows = balanced_rows(m, tile_rows(chip, width))
    if isinstance(k, int) and k and 4 * k % _ALIAS_BYTES == 0 and rows > _WAYS:
        a_direct = False
    plan = Plan(
        anchor, a, b, batch, leading, attrs["transpose_a"], attrs["transpose_b"], m, n, k,
        a_direct, kind, rows, width,
    )  # fmt: skip
    group(plan)
    return plan


def tile_width(chip: Chip, n: Dim) -> int:
    """Columns of the register tile: two vectors, if so many columns exist."""
    narrow = isinstance(n, int) and n <= PANEL // 2
    return min(PANEL // 2 if narrow else PANEL, chip.lanes * 2)


def balanced_rows(m: Dim, full: int) -> int:
    """Rows of the largest tile: `full`, which fit the registers, fewer if the tiles are then more
    alike.
    """
    return -(-m // -(-m // full)) if isinstance(m, int) and m else full


def _check(ta: TensorType, tb: TensorType, result: TensorType) -> None:
    floats = ("float32", "float16", "bfloat16")
    if any(t.dtype not in floats for t in (ta, tb, result)):
        raise Miss(f"product of {ta.dtype}")
    if ta.layout or tb.rank < 2:
        raise Miss("A in a blocked layout" if ta.layout else "matrix times vector")
    check_batch(ta, tb, result)


def check_batch(ta: TensorType, tb: TensorType, result: TensorType) -> None:
    """Miss unless it is known which batch dimensions broadcast."""
    for side in (ta, tb):
        for own, out in zip(reversed(side.shape[:-2]), reversed(result.shape[:-2]), strict=False):
            if own != out and own != 1:
                raise Miss("whether a batch dimension broadcasts is known only at run time")


def _is_plain(t: TensorType) -> bool:
    return t.dtype == "float32" and not t.layout


def _kind(region: Region, b: Any, tb: TensorType, transposed: bool, n: Dim, chip: Chip) -> str:
    if tb.layout:
        if pack_parts(tb.layout) != (0 if transposed else 1, PANEL) or tb.rank != 2:
            raise Miss(f"weights in layout {tb.layout}")
        if region.argument(b) is None:
            raise Miss("packed weights computed in the kernel")
        return "packed"
    direct = region.argument(b) is not None and _is_plain(tb) and not transposed
    wide = isinstance(n, int) and n >= chip.lanes
    return "rows" if direct and wide else "gather"


def group(plan: Plan) -> None:
    """Cut rows and panels into tasks: all rows of a panel first, so its weights stay in cache."""
    k = plan.k if isinstance(plan.k, int) else 512
    tile_flops = max(2 * plan.rows * plan.width * k, 1)
    tiles = max(1, round(_TASK_FLOPS / tile_flops))
    few_rows = not isinstance(plan.m, int) or plan.m <= plan.rows
    by_bytes = max(1, round(_TASK_WEIGHT_BYTES / max(4 * plan.width * k, 1))) if few_rows else 1
    if isinstance(plan.m, int):
        row_tiles = max(1, -(-plan.m // plan.rows))
        groups = max(1, -(-row_tiles // tiles))
        plan.tile_group = -(-row_tiles // groups)
        if plan.b_kind == "gather":
            plan.tile_group = min(row_tiles, max(plan.tile_group, _MOST_ROW_TILES))
        plan.panel_group = max(1, min(tiles // plan.tile_group, 8)) if not few_rows else 1
    else:
        plan.tile_group = min(tiles, _MOST_ROW_TILES)
    plan.panel_group = max(plan.panel_group, min(by_bytes, 8))
    if not plan.a_direct:  # each task packs its rows of A again: let more panels share them
        plan.panel_group = max(plan.panel_group, 4)
    if isinstance(plan.n, int):
        plan.panel_group = max(1, min(plan.panel_group, -(-plan.n // plan.width)))
