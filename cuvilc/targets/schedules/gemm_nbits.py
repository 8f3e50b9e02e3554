"""Matrix products with packed numbers of few bits: unpacked in registers, panel by panel.

Weights of 4 bits are read from memory at an eighth of the bytes of floats. A step of the reduction
turns one number of each of the panel's columns into a float and scales it; all rows of the tile
share that. Where there are many rows, a panel becomes floats in scratch once, for all tiles of a
task.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import product
from cuvilc.dialect.types import pack_parts
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.gemm import Gemm
from cuvilc.targets.schedules.gemm_operands import Right
from cuvilc.targets.schedules.gemm_plan import (
    MOST_ROW_TILES,
    PANEL,
    Plan,
    balanced_rows,
    group,
    tile_width,
)
from cuvilc.targets.schedules.microkernel import RegisterTile, anchor_of, first_of, tile_rows
from cuvilc.targets.tir import const

_MANY_ROWS = 24  # share a panel of floats
# Where they do not: registers for the panel's scales, zero points and numbers are left.
_MOST_ROWS = 10


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.matmul_nbits whose constants are packed in panels, with an elementwise epilogue."""
    plan = plan_of(region, chip)
    return vectorized(lambda vector: NBitsGemm(region, chip, name, plan, vector).build())


def plan_of(region: Region, chip: Chip) -> Plan:
    """Decide everything that needs no code. Raises Miss."""
    anchor = anchor_of(region, "ai.matmul_nbits")
    x, packed, *_ = anchor.operands
    tx, result = ir.type_of(x), ir.type_of(anchor.results[0])
    for value in list(anchor.operands)[1:]:
        layout = ir.type_of(value).layout
        if not layout or pack_parts(layout) != (0, PANEL) or region.argument(value) is None:
            raise Miss(f"weights in layout {layout!r}")
    leading, k, n = result.shape[:-1], tx.shape[-1], result.shape[-1]
    m, width = product(leading), tile_width(chip, n)
    rows = balanced_rows(m, tile_rows(chip, width))
    if not isinstance(m, int) or m < _MANY_ROWS:
        rows = min(rows, _MOST_ROWS)
    direct = region.argument(x) is not None and not tx.layout
    plan = Plan(
        anchor, x, packed, (), leading, False, False, m, n, k, direct, "packed", rows, width
    )
    group(plan)
    if isinstance(m, int) and m >= _MANY_ROWS:
        plan.tile_group = min(-(-m // rows), MOST_ROW_TILES)
    return plan


class NBitsGemm(Gemm):
    kind = "gemm-nbits"
    right: _Panels

    def make_right(self) -> Any:
        return _Panels(self.emitter, self.plan, self.lanes)

    def _reduce(self, tile: RegisterTile, sets: int) -> None:
        plain = partial(super()._reduce, tile, sets)
        packed = partial(self._reduce_packed, tile, sets)
        first_of(self.b, [(self.right.many, plain), (None, packed)])

    def _reduce_packed(self, tile: RegisterTile, sets: int) -> None:
        """Block by block, byte by byte, number by number."""
        right, b = self.right, self.b
        bytes_ = right.block // right.numbers
        unrolled = max(
            u for u in (1, 2, 4) if bytes_ % u == 0 and u * right.numbers <= max(sets, 2)
        )
        with b.loop(right.blocks, name="b") as block:
            right.begin_block(block)
            with b.loop(bytes_ // unrolled, name="k") as turn:
                first = b.let(block * bytes_ + turn * unrolled)
                for step in range(unrolled * right.numbers):
                    byte, number = divmod(step, right.numbers)
                    at = first + byte
                    k = b.let(at * right.numbers + number)
                    scalars = [self.left.at(r, k) for r in range(tile.rows)]
                    tile.step(scalars, right.numbers_of(at, number), step % sets)


class _Panels(Right):
    """A panel's columns: number `number` of byte `at` of each, as a float.

    `many`: whether there are so many rows that they are read from the scratch; a condition where
    only the run knows.
    """

    def __init__(self, emitter: Emitter, plan: Plan, lanes: str) -> None:
        self.emitter, self.plan, self.b, self.lanes = emitter, plan, emitter.builder, lanes
        m = plan.m
        self.many: Any = self.b.scalar(m) >= _MANY_ROWS
        self._floats = (
            self.b.scratch(plan.k * plan.width, "float32") if self.many is not False else None
        )
        attrs = ir.attrs(plan.anchor)
        self.bits, self.block = attrs["bits"], attrs["block"]
        self.numbers = 8 // self.bits
        _, packed, scale, *zero = plan.anchor.operands
        self.bytes = self.b.scalar(ir.type_of(packed).shape[1])
        self.blocks = self.b.scalar(ir.type_of(scale).shape[1])
        self._packed, self._scale = emitter.argument(packed), emitter.argument(scale)
        self._zero = emitter.argument(zero[0]) if zero else None
        self._place: Any = 0  # of the panel's first byte
        self._part: Any = 0  # of the panel's first scale
        self._now: Any = 0  # of the block's first scale

    def begin_task(self, batch: list[Any]) -> None:
        """Nothing is of one task alone."""

    def column(self, panel: Any) -> Any:
        return panel * self.plan.width

    def begin_panel(self, panel: Any, width: int) -> None:
        share, k, b = PANEL // self.plan.width, self.emitter.k, self.b
        whole = b.let(k.floordiv(panel, share)) if share > 1 else panel
        within = (panel - whole * share) * self.plan.width if share > 1 else 0
        self._place = b.let(whole * (self.bytes * PANEL) + within)
        self._part = b.let(whole * (self.blocks * PANEL) + within)
        first_of(b, [(self.many, partial(self._unpack, width))])

    def _unpack(self, width: int) -> None:
        """The panel into scratch."""
        b, bytes_ = self.b, self.block // self.numbers
        with b.loop(self.blocks, name="b") as block:
            self.begin_block(block)
            with b.loop(bytes_, name="k") as turn:
                at = b.let(block * bytes_ + turn)
                for number in range(self.numbers):
                    place = b.let((at * self.numbers + number) * self.plan.width)
                    value = self.numbers_of(at, number)
                    with b.loop(width, self.lanes) as lane:
                        b.store(self._floats, place + lane, value(lane))

    def begin_tile(self, number: Any, rows: int) -> None:
        """Nothing is fetched ahead."""

    def begin_step(self, k: Any) -> None:
        """Row k of the floats is next."""

    def at(self, k: Any, lane: Any) -> Any:
        return self.b.load(self._floats, k * self.plan.width + lane)

    def begin_block(self, block: Any) -> None:
        self._now = self.b.let(self._part + block * PANEL)

    def numbers_of(self, at: Any, number: int) -> Any:
        """lane → number `number` of byte `at`, less the zero point, scaled."""
        b, bits = self.b, self.bits
        place = b.let(self._place + at * PANEL)

        def value(lane: Any) -> Any:
            byte = tirx.Cast("int32", b.load(self._packed, place + lane))
            level = byte >> const(number * bits, "int32") if number else byte
            if number < self.numbers - 1:
                level = level & const((1 << bits) - 1, "int32")
            middle: Any = const(1 << bits - 1, "int32")
            if self._zero is not None:
                middle = tirx.Cast("int32", b.load(self._zero, self._now + lane))
            centred = tirx.Cast("float32", level - middle)
            return centred * b.load(self._scale, self._now + lane)

        return value
