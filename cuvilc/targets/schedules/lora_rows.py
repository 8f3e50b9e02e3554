"""Which adapter a row has: slots, table and pool of ai.lora_shrink and ai.lora_matmul."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, product
from cuvilc.dialect.ops.lora_batch import COLUMNS, rows_per_slot
from cuvilc.dialect.types import item_bytes
from cuvilc.package.plan import TYPICAL_RANK
from cuvilc.targets.region import Emitter, Region


class Adapters:
    """slots, table and pool as a kernel reads them."""

    def __init__(self, emitter: Emitter, x: Any, operands: Any) -> None:
        """`operands`: the values of slots, table and pool."""
        self.b, self.k = emitter.builder, emitter.k
        self.slots, self.table, self.pool = (emitter.argument(v) for v in operands)
        slots, table, _ = (ir.type_of(v) for v in operands)
        self.count = self.b.scalar(table.shape[1])
        leading = ir.type_of(x).shape[:-1]
        self.alone = slots.shape[0] == 1  # one slot is all rows'
        self.per = 1 if self.alone else self.b.scalar(rows_per_slot(leading, slots.shape[0]))

    def part(self, row: Any) -> Any:
        """Which element of slots is the row's."""
        return 0 if self.alone else self.b.let(self.k.floordiv(row, self.per))

    def slot(self, row: Any) -> Any:
        return self.b.let(self.b.load(self.slots, self.part(row)))

    def others(self, row: Any, rows: int) -> Any:
        """Not 0 if the slots of `rows` rows from `row` on differ."""
        b = self.b
        low, high = self.part(row), self.part(row + (rows - 1))
        first = b.let(b.load(self.slots, low))
        differ = b.variable(first - first)
        with b.loop(b.let(high - low), start=low + 1, name="s") as i:
            differ.set(differ.get() | (b.load(self.slots, i) ^ first))
        return b.let(differ.get())

    def prefetch(self, place: Any) -> None:
        """Let the line of pool at `place` come; it may be anywhere."""
        self.b.prefetch(self.pool, place)

    def entry(self, part: int, slot: Any) -> Any:
        """Where the table's line of a slot begins."""
        return self.b.let((slot + part * self.count) * COLUMNS)

    def field(self, entry: Any, column: int) -> Any:
        return self.b.let(self.b.load(self.table, entry + column))


def moved_bytes(region: Region, held: Any, row_floats: Dim) -> Dim:
    """Bytes of all buffers; of the table, which has thousands of lines, those of the slots, and of
    the pool what one adapter has: an estimate for runs in which all rows have the same.

    held: the values of slots, table and pool. row_floats: of a rank of an adapter.
    """
    slots, table, pool = held
    lines = ir.type_of(slots).shape[0] * ir.type_of(table).shape[0]
    moved: Dim = lines * COLUMNS * item_bytes(ir.type_of(table).dtype)
    moved = moved + row_floats * TYPICAL_RANK * item_bytes(ir.type_of(pool).dtype)
    for value in (*region.arguments, *region.results):
        t = ir.type_of(value)
        if value not in (table, pool):
            moved = moved + product(t.physical_shape) * item_bytes(t.dtype)
    return moved
