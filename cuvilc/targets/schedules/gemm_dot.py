"""Matrix products on groups of narrow numbers: of uint8 and int8, of float32 and bfloat16."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv, product
from cuvilc.dialect.dot_layout import dot_parts
from cuvilc.dialect.types import TensorType
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import BYTES, GROUP_BYTES, KINDS, Dots
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.dot_rounding import Rounding
from cuvilc.targets.schedules.dot_tile import (
    dot_rows,
    dot_tile,
    fetch_ahead,
    load_group,
    streams,
)
from cuvilc.targets.schedules.gemm import Gemm
from cuvilc.targets.schedules.gemm_operands import Left, Right
from cuvilc.targets.schedules.gemm_plan import (
    PANEL,
    Plan,
    balanced_rows,
    check_batch,
    group,
    rows_that_stay,
    tile_width,
)
from cuvilc.targets.schedules.microkernel import Epilogue, anchor_of, lesser
from cuvilc.targets.tir import const

_PADDING = 64  # elements between packed rows of A
# How many panels of a task share the rows that it packs: with 4 packing takes 5 % of the time, with
# 24 1 %. And how many tasks shall be left at least.
_SHARING, _TASKS = 24, 16


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.matmul_integer of uint8 and int8 without zero points, or ai.matmul_mixed, with an
    elementwise epilogue.
    """
    kind = kind_of(region).on(chip.dots)
    plan = plan_of(region, chip, kind)
    return vectorized(lambda vector: DotGemm(region, chip, name, plan, kind, vector).build())


def kind_of(region: Region) -> Dots:
    """The kind of products that the region has. Raises Miss."""
    for kind in KINDS:
        if region.named(kind.matmul, kind.conv):
            return kind
    raise Miss("no products of narrow numbers")


def plan_of(region: Region, chip: Chip, kind: Dots) -> Plan:
    """Decide everything that needs no code. Raises Miss."""
    anchor = anchor_of(region, kind.matmul)
    if len(anchor.operands) != 2:
        raise Miss("zero points in the product")
    a, b = anchor.operands
    ta, tb, result = ir.type_of(a), ir.type_of(b), ir.type_of(anchor.results[0])
    if (ta.dtype, tb.dtype) not in ((kind.left, kind.right), ("float32", kind.right)):
        raise Miss(f"product of {ta.dtype} and {tb.dtype}")
    if min(ta.rank, tb.rank) < 2:
        raise Miss("a vector")
    check_batch(ta, tb, result)
    n, k = result.shape[-1], ta.shape[-1]
    flat = tb.rank == 2
    leading = result.shape[:-1] if flat else (result.shape[-2],)
    batch = () if flat else result.shape[:-2]
    source = _source(region, b, tb, kind)
    m, width = product(leading), tile_width(chip, n)
    full = dot_rows(chip, kind, width)
    if source == "packed" and isinstance(m, int) and m <= dot_rows(chip, kind, PANEL):
        width = width if n == width else PANEL
        full = dot_rows(chip, kind, width)
    direct = region.argument(a) is not None and isinstance(k, int) and k % kind.group == 0
    direct = direct and ta.dtype == kind.laid
    if direct:
        full = rows_that_stay(full, k, kind.item)
    rows = balanced_rows(m, full)
    plan = Plan(
        anchor, a, b, batch, leading, False, False, m, n, ceildiv(k, kind.group), direct, source,
        rows, width,
    )  # fmt: skip
    group(plan)  # a step does the work of a group
    _share_packed_rows(plan)
    plan.k = k
    return plan


def _share_packed_rows(plan: Plan) -> None:
    """Let so many panels of a task share its packed rows that packing is a small part of it, and
    fewer tiles of rows.
    """
    m, n = plan.m, plan.n
    if plan.a_direct or not isinstance(m, int) or m <= plan.rows or not isinstance(n, int):
        return
    tiles = plan.tile_group * plan.panel_group
    panels, row_tiles = -(-n // plan.width), -(-m // plan.rows)
    groups = max(-(-panels // _SHARING), -(-_TASKS // row_tiles))
    plan.panel_group = max(plan.panel_group, -(-panels // groups))
    plan.tile_group = max(1, min(plan.tile_group, tiles // plan.panel_group))


def _source(region: Region, b: Any, tb: TensorType, kind: Dots) -> str:
    if not tb.layout and kind.sums == "int32":
        return "gather"
    packed = bool(tb.layout) and dot_parts(tb.layout) == (1, PANEL, kind.group)
    if not packed or region.argument(b) is None:
        raise Miss(f"weights in layout {tb.layout}")
    return "packed"


class DotGemm(Gemm):
    """The loops of a product whose step is a group instead of an element."""

    def __init__(
        self, region: Region, chip: Chip, name: str, plan: Plan, dots: Dots, vectorize: bool
    ) -> None:
        self.dots = dots
        super().__init__(region, chip, name, plan, vectorize)
        self.kind = f"gemm-{dots.label}"

    def steps(self) -> Dim:
        return ceildiv(self.plan.k, self.dots.group)

    def make_left(self) -> Any:
        self.epilogue = Epilogue(self.emitter, self.plan.anchor, self.plan.k)
        rounding = Rounding(self.emitter, self.chip, self.dots, self.lanes)
        return _Rows(self.emitter, self.plan, self.lanes, rounding)

    def make_right(self) -> Any:
        return _Panels(self.emitter, self.plan, self.lanes, self.dots)

    def make_tile(self, rows: int, width: int, sets: int) -> Any:
        return dot_tile(self.b, self.chip, self.dots, rows, width, sets)

    def _reduce(self, tile: Any, sets: int) -> None:
        for part in tile.parts():
            super()._reduce(part, part.sets)


class _Rows(Left):
    """Rows of A: `at(r, k)` is group k of row r of the tile begun last."""

    def __init__(self, emitter: Emitter, plan: Plan, lanes: str, rounding: Rounding) -> None:
        self.rounding, self.dots = rounding, rounding.dots
        super().__init__(emitter, plan, lanes)

    def _scratch_dtype(self) -> str:
        return self.dots.laid

    def _row_stride(self) -> Dim:
        plan, group = self.plan, self.dots.group
        return plan.k if plan.a_direct else ceildiv(plan.k, group) * group + _PADDING

    def _pack_step(self, to: Any, row: Any, first: Any) -> None:
        self.rounding.store(self._buffer, to + first, lambda lane: self._element(row, first + lane))

    def _store(self, place: Any, row: Any, k: Any) -> None:
        value = self.rounding.laid(self._element(row, k))
        self.emitter.k.store(self._buffer, place, value, self.dtype)

    def at(self, r: int, k: Any) -> Any:
        first = (self._tile + r * self.stride) * self.dots.item
        return load_group(self.b, self._buffer, first + k * self.dots.group_bytes, self.dots)


class _Panels(Right):
    """A panel of B: `at(k, lane)` is where group k begins at the panel's column `lane`."""

    def __init__(self, emitter: Emitter, plan: Plan, lanes: str, dots: Dots) -> None:
        self.emitter, self.plan, self.b, self.lanes = emitter, plan, emitter.builder, lanes
        self.n = self.b.scalar(plan.n)
        self.k, self.groups = self.b.scalar(plan.k), self.b.scalar(ceildiv(plan.k, dots.group))
        self.batch: list[Any] = []
        self._panel: Any = 0
        self._stride: Any = plan.width
        if plan.b_kind == "packed":
            self._buffer, self._stride = emitter.argument(plan.b), PANEL
        else:
            self._buffer = self.b.scratch(ceildiv(plan.k, dots.group) * plan.width, "int32")

    def begin_task(self, batch: list[Any]) -> None:
        self.batch = batch

    def begin_panel(self, panel: Any, width: int) -> None:
        if self.plan.b_kind != "packed":
            self._pack(panel)
            return
        share, k = PANEL // self.plan.width, self.emitter.k
        block = k.floordiv(panel, share)
        column = (panel - block * share) * self.plan.width
        self._panel = self.b.let(block * (self.groups * PANEL) + column)

    def begin_tile(self, number: Any, rows: int) -> None:
        """A row tile of `rows` rows is next."""
        self._streams = self.plan.b_kind == "packed" and streams(rows, self.plan.width)

    def begin_step(self, k: Any) -> None:
        """Group k is next: fetch groups behind it, of this panel or the next one."""
        if self._streams:
            fetch_ahead(self.b, self._buffer, self._panel + k * PANEL)

    def _pack(self, panel: Any) -> None:
        """The panel into scratch, each group as an int32; zeros beyond the last row of B."""
        b, width, n = self.b, self.plan.width, self.n
        first = b.let(panel * width)
        whole = isinstance(n, int) and n % width == 0
        groups = self.emitter.k.floordiv(self.k, BYTES.group)
        groups = groups if isinstance(groups, int) else b.let(groups)

        def line(g: Any, count: int) -> None:
            if whole:
                with b.loop(width, self.lanes) as j:
                    bits = self._group(g * BYTES.group, first + j, count)
                    b.store(self._buffer, g * width + j, bits)
                return
            with b.loop(width, name="j") as j:
                column = b.let(lesser(first + j, n - 1))
                b.store(self._buffer, g * width + j, self._group(g * BYTES.group, column, count))

        with b.loop(groups, name="g") as g:
            line(g, BYTES.group)
        if isinstance(self.k, int):
            if self.k % BYTES.group:
                line(groups, self.k % BYTES.group)
            return
        for left in range(1, BYTES.group):
            with b.when(self.emitter.k.eq(self.k - groups * BYTES.group, left)):
                line(groups, left)

    def _group(self, row: Any, column: Any, count: int) -> Any:
        """`count` rows of a column as the bytes of an int32."""
        matrix, k = self.emitter.accessor(self.plan.b), self.emitter.k
        bits = const(0, "uint32")
        for i in range(count):
            byte = k.cast(k.cast(matrix.at((*self.batch, row + i, column)), "uint8"), "uint32")
            bits = bits | (byte << const(8 * i, "uint32"))
        return k.cast(bits, "int32")

    def at(self, k: Any, lane: Any) -> Any:
        return self._buffer, (self._panel + k * self._stride + lane) * GROUP_BYTES
