"""ai.lora_shrink: dot products of rows of x with rows of the adapters' a, vectors along K.

a lies row by row whatever its rank, so an adapter of any rank is read as it is: nothing is padded
to the greatest rank. Neighbouring rows that share an adapter share what is loaded of a. Each dot
product is one chain of vector sums, so a row's bits do not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import ceildiv, minimum, product
from cuvilc.dialect.ops.lora_batch import RANK, A
from cuvilc.package.plan import TYPICAL_RANK
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.elementwise_loops import Place
from cuvilc.targets.schedules.lora_rows import Adapters, moved_bytes
from cuvilc.targets.schedules.microkernel import anchor_of, first_of, lesser
from cuvilc.targets.schedules.reduction_fold import Fold
from cuvilc.targets.tir import as_expr, const

_TILES = 4  # of rows in a task


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.lora_shrink alone."""
    anchor = anchor_of(region, "ai.lora_shrink")
    if len(region.operations) > 1:
        raise Miss("something is fused to it")
    if not isinstance(ir.type_of(anchor.operands[0]).shape[-1], int):
        raise Miss("the columns of x are known only at run time")
    return vectorized(lambda vector: _Shrink(region, chip, name, anchor, vector).build())


class _Shrink:
    def __init__(self, region: Region, chip: Chip, name: str, anchor: Any, vector: bool) -> None:
        self.region, self.anchor = region, anchor
        self.emitter = Emitter(region, name)
        self.b = self.emitter.builder
        x, *held = anchor.operands
        t = ir.type_of(x)
        self.m, self.columns = product(t.shape[:-1]), int(t.shape[-1])  # type: ignore[arg-type]
        self.parts = ir.type_of(held[1]).shape[0]
        self.greatest = ir.attrs(anchor)["rank"]
        self.rank, self.count = self.b.scalar(self.greatest), self.b.scalar(self.m)
        self.ahead: Any = None  # a that the next row reads, to be fetched meanwhile
        self.x, self.adapters = self.emitter.argument(x), Adapters(self.emitter, x, held)
        self.out = self.b.buffer(len(region.arguments), "float32")
        self.lanes = chip.lanes if vector else 1
        # Sums that fit the registers, with the vectors that they are made of.
        self.rows, self.together = (3, 8) if chip.registers >= 32 else (3, 4)

    def build(self) -> Scheduled:
        b, rows = self.b, self.rows * _TILES
        with b.tasks() as task:
            low = b.let(task * rows)
            tiles = b.let(self.emitter.k.floordiv(lesser(self.count - low, rows), self.rows))
            with b.loop(tiles, name="m") as i:
                self._tile(b.let(low + i * self.rows))
            done = b.let(low + tiles * self.rows)
            with b.loop(lesser(low + rows, self.count) - done, start=done, name="m") as row:
                self._rows_of(row, 1, self.adapters.slot(row))
        tasks = ceildiv(self.m, rows) * minimum(self.greatest, 1)
        flops = self.m * self.columns * self.parts * (2 * TYPICAL_RANK)
        made = self.emitter.finish("lora-shrink", tasks, flops)
        moved = moved_bytes(self.region, self.anchor.operands[1:], self.columns * self.parts)
        return replace(made, facts=replace(made.facts, bytes=moved))

    def _tile(self, row: Any) -> None:
        """`self.rows` rows: together if they share a slot."""

        def apart() -> None:
            with self.b.loop(self.rows, name="r") as r:
                one = self.b.let(row + r)
                self._rows_of(one, 1, self.adapters.slot(one))

        differ = self.adapters.others(row, self.rows)
        together = tirx.EQ(as_expr(differ), const(0))
        slot = self.adapters.slot(row)
        first_of(self.b, [(together, lambda: self._rows_of(row, self.rows, slot)), (None, apart)])

    def _rows_of(self, row: Any, rows: int, slot: Any) -> None:
        """Rows of one slot, part by part. A row alone fetches what the next one will read."""
        b = self.b
        following = self.adapters.slot(lesser(row + 1, self.count - 1)) if rows == 1 else None
        stride = b.let(self.rank * self.parts)
        with b.loop(self.parts, name="p") as part:
            entry = self.adapters.entry(part, slot)
            rank = b.let(tirx.Select(slot > 0, self.adapters.field(entry, RANK), const(0)))
            to = b.let(row * stride + part * self.rank)
            self.ahead = None
            if following is not None:
                self.ahead = self.adapters.field(self.adapters.entry(part, following), A)
            self._dots(row, rows, self.adapters.field(entry, A), rank, to)
            with b.loop(self.rank - rank, start=rank, name="j") as j:
                for r in range(rows):
                    b.store(self.out, to + r * stride + j, const(0.0, "float32"))

    def _dots(self, row: Any, rows: int, a: Any, rank: Any, to: Any) -> None:
        """As many at once as fit the registers, then halves of that."""
        b, count = self.b, self.together
        whole = b.let(self.emitter.k.floordiv(rank, count))
        with b.loop(whole, name="j") as turn:
            self._block(row, rows, a, b.let(turn * count), count, to)
        done = b.let(whole * count)
        while count > 1:
            count //= 2
            more = b.let(self.emitter.k.floordiv(rank - done, count))
            with b.loop(more, name="j"):
                self._block(row, rows, a, done, count, to)
            done = b.let(done + more * count)

    def _block(self, row: Any, rows: int, a: Any, j: Any, count: int, to: Any) -> None:
        """t[row + r, j + c] for r < rows and c < count."""
        b, lanes, columns = self.b, self.lanes, self.columns
        pairs = [(r, c) for r in range(rows) for c in range(count)]
        folds = {p: Fold(self.emitter.k, "sum", "float32", lanes, 1) for p in pairs}
        left, right = b.let(row * columns), b.let(a + j * columns)
        pool = self.adapters.pool

        def step(k: Any, lane: Any) -> None:
            x = [b.let(b.load(self.x, left + (r * columns + k + lane))) for r in range(rows)]
            for c in range(count):
                factor = b.let(b.load(pool, right + (c * columns + k + lane)))
                for r in range(rows):
                    folds[r, c].add(Place(0, lane), x[r] * factor)

        whole = columns // lanes
        with b.loop(whole, name="k") as turn:
            if self.ahead is not None:
                for c in range(count):
                    self.adapters.prefetch(self.ahead + (j + c) * columns + turn * lanes)
            with b.loop(lanes, "vectorized") as lane:
                step(turn * lanes, lane)
        totals = {p: b.variable(fold.total()) for p, fold in folds.items()}
        if columns % lanes:
            with b.loop(columns - whole * lanes, start=whole * lanes, name="k") as k:
                for r, c in pairs:
                    product = b.load(self.x, left + (r * columns + k)) * b.load(
                        pool, right + (c * columns + k)
                    )
                    totals[r, c].set(totals[r, c].get() + product)
        stride = self.rank * self.parts
        for r, c in pairs:
            b.store(self.out, to + r * stride + (j + c), totals[r, c].get())
