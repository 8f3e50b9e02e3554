"""A matrix product as its schedule sees it: sizes, sources of operands, how work is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Shape, ceildiv, product
from cuvilc.dialect.types import PANEL as PANEL
from cuvilc.dialect.types import TensorType, pack_parts
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import compute_dtype
from cuvilc.targets.region import Emitter, Miss, Region
from cuvilc.targets.schedules.microkernel import (
    anchor_of,
    halvings,
    tile_rows,
)

LINE = 16  # floats of a cache line
# A task should last about 20 us: so many operations, or so many bytes of weights when few rows
# share them. Of a small product it is shorter, so that there are tasks for several threads.
_TASK_FLOPS = 2.5e6, 4e5
_TASK_WEIGHT_BYTES = 300e3, 60e3
_TASKS = 12  # of a small product
_STORE_FLOPS = 16  # what it costs to store a sum
# Rows of A this far apart share one set of the L1 cache; of more rows than ways, none stays.
_ALIAS_BYTES, _WAYS = 4096, 8
_PADDING = 16  # floats between packed rows, for the same reason
COPIES = ("copied", "turned")
_COPIED_TILES = 2  # tiles of rows: more repay copying a panel of B, whose rows lie far apart
_MOST_VECTORS = 8  # of sums, where a tile has few rows
# In a task, when the number of rows is known only at run time.
MOST_ROW_TILES, _LEAST_ROW_TILES = 16, 4


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
    # "packed": panels of constants; "rows": read where it lies; into scratch, a panel at a time,
    # "copied": its rows, "turned": squares of a transposed one, "gather": element by element
    b_kind: str
    rows: int  # of the full register tile
    width: int
    tile_group: int = 1  # row tiles in a task
    panel_group: int = 1  # panels in a task
    often_few: bool = True  # rows, where they are known only at run time
    dtype: str = "float32"  # of computation
    side: int = 1  # of the squares that a "turned" B is transposed in

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
        """Of A as the register tile reads it; of a transposed A's columns."""
        if self.a_direct:
            return self.k
        return self.packed_rows if self.transposed_a else self.k + _PADDING

    @property
    def overlaps(self) -> bool:
        """Whether the last panel begins earlier, to be whole."""
        return self.b_kind in ("rows", *COPIES)

    @property
    def packed_rows(self) -> int:
        """Of a task, where A is packed; whole lines of them."""
        return -(-self.tile_group * self.rows // LINE) * LINE

    @property
    def last_width(self) -> int:
        """Of the tile on the last panel: half of a tile suffices where its second half would be
        empty.
        """
        n = self.n if isinstance(self.n, int) else 0
        left = n % self.width
        half = self.width // 2
        if self.b_kind == "packed":
            halved = self.width == PANEL
        else:
            halved = self.b_kind in COPIES and half < n  # it begins earlier
        return half if halved and 0 < left <= half else self.width

    @property
    def sizes(self) -> list[int]:
        """Row counts of the register tiles that exist when the number of rows is known only at run
        time.
        """
        return halvings(self.rows) if self.often_few else [self.rows, -(-self.rows // 3), 1]

    def row_index(self, emitter: Emitter, row: Any) -> list[Any]:
        """The digits of a row number."""
        return row_digits(emitter, self.leading, row)


def row_digits(emitter: Emitter, leading: Shape, row: Any) -> list[Any]:
    """The digits of a row number, outer first; an extent of 1 has the digit 0."""
    real = [axis for axis, d in enumerate(leading) if d != 1]
    digits: list[Any] = [0] * len(leading)
    for axis in reversed(real):
        if axis == real[0]:
            digits[axis] = row
        else:
            extent = emitter.builder.scalar(leading[axis])
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
    dtype = _check(ta, tb, result)
    chip = at_dtype(chip, dtype)
    n = result.shape[-1]
    k = ta.shape[-2 if attrs["transpose_a"] else -1]
    vector = ta.rank == 1
    flat = tb.rank == 2 and not attrs["transpose_a"]
    leading = () if vector else result.shape[:-1] if flat else (result.shape[-2],)
    batch = () if flat or vector else result.shape[:-2]
    if vector and tb.rank != 2:
        raise Miss("a vector times a stack of matrices")
    m, width = product(leading), tile_width(chip, n)
    kind = _kind(region, b, attrs["transpose_b"], m, n, chip)
    if name == "ai.matmul" and kind != "packed" and not attrs["transpose_a"]:
        plain = all(region.argument(v) is not None and is_plain(ir.type_of(v)) for v in (a, b))
        thin = n == 1 or (m == 1 and attrs["transpose_b"])
        if plain and thin and isinstance(k, int) and k > 1:
            raise Miss("a row or a column of sums along memory, which is a reduction")
    if kind == "packed" and isinstance(m, int) and m <= tile_rows(chip, PANEL) and n != width:
        width = PANEL  # few rows are bound by memory: read whole panels
    if kind in ("rows", *COPIES) and isinstance(n, int) and n < width:
        width = chip.lanes
    if kind == "rows" and isinstance(m, int):
        width = max(width, _wide(chip, m, n))
    a_direct = region.argument(a) is not None and not attrs["transpose_a"] and is_plain(ta)
    full = tile_rows(chip, width)
    if a_direct:
        full = rows_that_stay(full, k, _bytes(dtype))
    rows = balanced_rows(m, full)
    plan = Plan(
        anchor, a, b, batch, leading, attrs["transpose_a"], attrs["transpose_b"], m, n, k,
        a_direct, kind, rows, width, dtype=dtype, side=chip.lanes,
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


def rows_that_stay(full: int, k: Dim, item_bytes: int) -> int:
    """Rows of a tile, of `full` at most, whose lines of A are in the L1 cache together. Of eight
    rows a tile still hides the latency of its sums; packing a task's rows would take 5 % of it.
    """
    return min(full, _WAYS) if aliases(k * item_bytes) else full


def aliases(distance: Dim) -> bool:
    """Whether what lies so many bytes apart, again and again, shares one set of the L1 cache."""
    return isinstance(distance, int) and distance > 0 and distance % _ALIAS_BYTES == 0


def _wide(chip: Chip, m: int, n: Dim) -> int:
    """Columns of a tile of few rows of which no constant panel is read: as many sums as hide the
    latency, side by side. Fewer columns would be short pieces of far rows of B.
    """
    columns = min(n if isinstance(n, int) else 0, chip.lanes * _MOST_VECTORS // max(m, 1))
    return 1 << columns.bit_length() - 1 if columns else 0


def at_dtype(chip: Chip, dtype: str) -> Chip:
    """The chip as it computes in float64: half as many lanes."""
    return replace(chip, lanes=max(chip.lanes // 2, 1)) if dtype == "float64" else chip


def _bytes(dtype: str) -> int:
    return 8 if dtype == "float64" else 4


def _check(ta: TensorType, tb: TensorType, result: TensorType) -> str:
    """The dtype of computation. Raises Miss."""
    wide = {t.dtype == "float64" for t in (ta, tb, result)}
    floats = ("float32", "float16", "bfloat16", "float64")
    if any(t.dtype not in floats for t in (ta, tb, result)) or len(wide) > 1:
        raise Miss(f"product of {ta.dtype}")
    if ta.layout or tb.rank < 2:
        raise Miss("A in a blocked layout" if ta.layout else "matrix times vector")
    check_batch(ta, tb, result)
    return compute_dtype(result.dtype)


def check_batch(ta: TensorType, tb: TensorType, result: TensorType) -> None:
    """Miss unless it is known which batch dimensions broadcast."""
    for side in (ta, tb):
        for own, out in zip(reversed(side.shape[:-2]), reversed(result.shape[:-2]), strict=False):
            if own != out and own != 1:
                raise Miss("whether a batch dimension broadcasts is known only at run time")


def is_plain(t: TensorType) -> bool:
    """Whether elements lie in memory as they are computed with."""
    return t.dtype in ("float32", "float64") and not t.layout


def _kind(region: Region, b: Any, transposed: bool, m: Dim, n: Dim, chip: Chip) -> str:
    tb = ir.type_of(b)
    if tb.layout:
        if pack_parts(tb.layout) != (0 if transposed else 1, PANEL) or tb.rank != 2:
            raise Miss(f"weights in layout {tb.layout}")
        if region.argument(b) is None:
            raise Miss("packed weights computed in the kernel")
        return "packed"
    if not isinstance(n, int) or n < chip.lanes:
        return "gather"
    plain = region.argument(b) is not None and is_plain(tb)
    if transposed:
        return "turned" if plain else "gather"
    if isinstance(m, int) and m > _COPIED_TILES * tile_rows(chip, tile_width(chip, n)):
        return "copied"
    return "rows" if plain else "gather"


def group(plan: Plan) -> None:
    """Cut rows and panels into tasks: all rows of a panel first, so its weights stay in cache."""
    k = plan.k if isinstance(plan.k, int) else 512
    of_sum = 2 * k + _STORE_FLOPS
    task = _share(product(plan.batch) * plan.m * plan.n * of_sum, _TASK_FLOPS)
    tiles = max(1, round(task / (plan.rows * plan.width * of_sum)))
    few_rows = not isinstance(plan.m, int) or plan.m <= plan.rows
    item = _bytes(plan.dtype)
    weights = _share(product(plan.batch) * plan.n * k * item, _TASK_WEIGHT_BYTES)
    by_bytes = max(1, round(weights / max(item * plan.width * k, 1))) if few_rows else 1
    if isinstance(plan.m, int):
        row_tiles = max(1, -(-plan.m // plan.rows))
        groups = max(1, -(-row_tiles // tiles))
        plan.tile_group = -(-row_tiles // groups)
        if plan.b_kind in ("gather", *COPIES):
            plan.tile_group = min(row_tiles, max(plan.tile_group, MOST_ROW_TILES))
        plan.panel_group = max(1, min(tiles // plan.tile_group, 8)) if not few_rows else 1
    plan.panel_group = max(plan.panel_group, min(by_bytes, 8))
    if not plan.a_direct:  # each task packs its rows of A again: let more panels share them
        plan.panel_group = max(plan.panel_group, 4)
    if isinstance(plan.n, int):
        plan.panel_group = max(1, min(plan.panel_group, -(-plan.n // plan.width)))
    if not isinstance(plan.m, int):
        least = min(tiles, _LEAST_ROW_TILES)
        plan.tile_group = min(max(tiles // plan.panel_group, least), MOST_ROW_TILES)


def _share(total: Dim, limits: tuple[float, float]) -> float:
    """Of a task: the first limit, less where that leaves few tasks, but not below the second."""
    most, least = limits
    return min(max(total / _TASKS, least), most) if isinstance(total, int) else most
