"""Products of matrices of bytes, exact with fewer products, where those are of 16 bits.

As 1×1 convolutions are (conv_strassen.py): a pixel is a row, and a part of A every second row or
block of 16 columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Shape, product
from cuvilc.dialect.dot_layout import dot_parts
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import BYTES, PAIRS
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm_plan import PANEL, row_digits
from cuvilc.targets.schedules.microkernel import Epilogue, anchor_of, opaque, split
from cuvilc.targets.schedules.strassen_kernel import Each, Strassen
from cuvilc.targets.schedules.strassen_sizes import Sizes, cheapest

_FEW_ROWS = 128  # of a task at least, if there are: fewer hardly repay transforming weights
_LEAST_ROWS = 32  # of a product: fewer never do


@dataclass(frozen=True)
class _Plan:
    anchor: Any
    leading: Shape  # what the row number stands for
    sizes: Sizes


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.matmul_integer of uint8 as it lies and of constant int8, of many rows, with an elementwise
    epilogue.
    """
    plan = _plan_of(region, chip)
    return vectorized(lambda vector: _Product(region, chip, name, plan, vector).build())


def _plan_of(region: Region, chip: Chip) -> _Plan:
    if PAIRS.function not in chip.dots or chip.lanes * 2 != BLOCK:  # as in conv_strassen.py
        raise Miss("bytes are not widened to multiply them, or vectors are short or long")
    anchor = anchor_of(region, BYTES.matmul)
    if len(anchor.operands) != 2:
        raise Miss("zero points in the product")
    a, b = anchor.operands
    ta, tb, result = ir.type_of(a), ir.type_of(b), ir.type_of(anchor.results[0])
    if (ta.dtype, tb.dtype) != (BYTES.left, BYTES.right) or ta.layout or min(ta.rank, tb.rank) < 2:
        raise Miss(f"product of {ta.dtype} and {tb.dtype}, or a vector")
    packed = bool(tb.layout) and tb.rank == 2 and dot_parts(tb.layout) == (1, PANEL, BYTES.group)
    if not packed or region.argument(a) is None or region.argument(b) is None:
        raise Miss("operands that are computed, or weights that are not packed")
    leading, n, k = result.shape[:-1], result.shape[-1], ta.shape[-1]
    m = product(leading)
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int)):
        raise Miss("sizes known only at run time")
    if k % BLOCK or n % BLOCK or not m or not k:
        raise Miss("columns that are not whole blocks")
    sizes = cheapest(chip, m, 1, _FEW_ROWS, k, n)
    if sizes is None or m < _LEAST_ROWS:
        raise Miss("few rows")
    return _Plan(anchor, leading, sizes)


class _Product:
    """The kernel's loops: task, tile."""

    def __init__(self, region: Region, chip: Chip, name: str, plan: _Plan, vectorize: bool) -> None:
        self.plan, self.sizes = plan, plan.sizes
        self.lanes = "vectorized" if vectorize else "serial"
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.a, self.w = (self.emitter.argument(v) for v in plan.anchor.operands)
        self.epilogue = Epilogue(self.emitter, plan.anchor, self.sizes.channels)
        self.parts = Strassen(self.emitter, chip, self.sizes)

    def build(self) -> Scheduled:
        sizes, b = self.sizes, self.b
        with b.tasks() as t:
            unit, row_group = split(self.emitter, t, sizes.units)
            self.parts.task(t, unit, row_group, self.w, self._see, partial(self._store, unit))
        flops = 2 * sizes.total * sizes.channels * sizes.blocks * BLOCK
        return self.emitter.finish("gemm-int8-strassen", sizes.units * sizes.row_groups, flops)

    def _see(self, each: Each) -> None:
        def tile_from(tile: Any, start: Any) -> None:
            rows = range(self.sizes.parts)
            places = [self.b.let((start + i) * self.sizes.channels) for i in rows]
            self.parts.see(self.a, tile, places, BLOCK)

        each(tile_from)

    def _store(self, unit: Any, start: Any) -> None:
        """A tile's sums, of rows from `start` on."""
        b, parts = self.b, self.sizes.parts
        with b.loop(opaque(b, parts), name="p") as p, b.loop(opaque(b, parts), name="h") as h:
            row = b.let(start + p)
            digits = row_digits(self.emitter, self.plan.leading, row)
            column = b.let((unit * parts + h) * BLOCK)
            with b.loop(BLOCK, self.lanes) as lane:
                value = b.load(self.parts.results, (p * parts + h) * BLOCK + lane)
                self.epilogue.store((*digits, column + lane), value)
