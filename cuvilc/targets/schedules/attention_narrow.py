"""Attention whose products are of bfloat16, two of them in one instruction's lane.

The loops are attention.py's. Groups of two features of scaled queries meet groups of two features
of keys, groups of two exponentials those of two values: both sides are rounded when they are
packed. Scores, exponentials, their sums and the results are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import GROUP_BYTES, HALVES
from cuvilc.targets.region import Miss, Region, Scheduled
from cuvilc.targets.schedules.attention import FEW, Attention, parts_of
from cuvilc.targets.schedules.dot_rounding import VECTOR, Rounding
from cuvilc.targets.schedules.dot_tile import DotTile, load_group
from cuvilc.targets.schedules.transpose_block import transpose_block
from cuvilc.targets.tir import as_expr, const

_GROUP = HALVES.group


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes regions with one ai.attention that may be narrow, on chips with the instructions."""
    anchor, ending = parts_of(region)
    if not ir.attrs(anchor)["narrow"]:
        raise Miss("its products are float32's")
    if HALVES.function not in chip.fast_dots or chip.lanes != VECTOR:
        raise Miss("the chip has no such products")
    return _Narrow(region, anchor, ending, chip, name, vector=True).build()


def _whole_vectors(size: Dim) -> int:
    """A number of features a head that fill vectors."""
    if not isinstance(size, int) or size == 0 or size % VECTOR:
        raise Miss(f"{size} features a head are not whole vectors")
    return size


class _Narrow(Attention):
    """Buffers in scratch beside attention.py's: keys of a block, rounded, and groups of values and
    of exponentials. packed_k[d / 2, t] and packed_v[t / 2, e] are groups of two.
    """

    def _allocate(self) -> None:
        self.d, self.e = (_whole_vectors(n) for n in (self.depth, self.features))
        if isinstance(self.queries, int) and self.queries <= FEW:
            raise Miss("few queries, for which rounding costs more than it spares")
        b = self.b
        b.llvm(HALVES.pairs, self.chip.dots[HALVES.pairs])
        self.rounding = Rounding(self.emitter, self.chip, HALVES, "vectorized")
        self.wide = -(-self.d // _GROUP // VECTOR) * VECTOR  # groups of blocks to transpose
        self.packed_q = b.scratch(self.chunk * self.d // _GROUP, "int32")
        self.rounded_k = b.scratch(self.block * self.wide, "int32")
        self.packed_k = b.scratch(self.block * self.wide, "int32")
        self.packed_v = b.scratch(self.block // _GROUP * self.e, "int32")
        self.weights = b.scratch(self.chunk * self.block // _GROUP, "int32")
        self._allocate_rows()

    def _round(self, to: Any, at: Any, count: int, element: Callable[[Any], Any]) -> None:
        """`count` elements, rounded, into `to` from its element `at` on."""

        def vector(first: int) -> Callable[[Any], Any]:
            return lambda lane: element(first + lane)

        for first in range(0, count, VECTOR):
            self.rounding.store(to, at + first, vector(first))

    def _copy_query(self, r: Any, s: Any) -> None:
        self._round(self.packed_q, r * self.d, self.d, lambda d: self._query(s, d))

    def _pack_keys(self) -> None:
        b, wide = self.b, self.wide
        with b.loop(self.count) as t:
            to = t * (wide * _GROUP)
            self._round(self.rounded_k, to, self.d, lambda d: self._key(t, d))
        blocks = b.let(tirx.floordiv(self.count + (VECTOR - 1), const(VECTOR)))
        with b.loop(blocks) as i, b.loop(wide // VECTOR) as j:
            t, d = i * VECTOR, j * VECTOR
            source = (self.rounded_k, t * wide + d, const(wide))
            target = (self.packed_k, d * self.block + t, const(self.block))
            transpose_block(b, VECTOR, source, target)

    def _score_tile(self, row: Any, t: Any, vectors: int) -> None:
        b, width = self.b, vectors * VECTOR
        tile = DotTile(b, self.chip, HALVES, self.tile, width)
        with b.loop(self.d // _GROUP) as d:
            left = [
                load_group(b, self.packed_q, ((row + r) * (self.d // _GROUP) + d) * GROUP_BYTES)
                for r in range(self.tile)
            ]
            tile.step(left, lambda lane: (self.packed_k, (d * self.block + t + lane) * GROUP_BYTES))
        with b.loop(width, "vectorized") as lane:
            for r in range(self.tile):
                b.store(self.scores, (row + r) * self.block + (t + lane), tile.at(r, lane))

    def _soften(self, r: Any) -> None:
        super()._soften(r)
        b = self.b
        blocks = b.let(tirx.floordiv(self.count + (VECTOR - 1), const(VECTOR)))
        with b.loop(blocks) as i:
            at = b.let(r * self.block + i * VECTOR)
            self.rounding.store(self.weights, at, lambda lane: b.load(self.scores, at + lane))

    def _add_values(self) -> None:
        b = self.b
        pairs = b.let(tirx.floordiv(self.count + 1, const(_GROUP)))
        self._pack_values(pairs)
        e, width = 0, self.vectors * VECTOR
        while e < self.e:
            while width > self.e - e:
                width //= 2
            with b.loop(self.tiles) as i:
                self._add_tile(b.let(i * self.tile), e, width, pairs)
            e += width

    def _pack_values(self, pairs: Any) -> None:
        """packed_v: zeros beside an odd last value, which may be infinite: ∞ · 0 is NaN."""
        b = self.b
        with b.loop(pairs) as g:
            t = b.let(g * _GROUP)
            two = b.let(t + 1 < self.count)
            for e in range(0, self.e, VECTOR):
                self._store_pairs(g * self.e + e, t, two, e)

    def _store_pairs(self, at: Any, t: Any, two: Any, e: int) -> None:
        """packed_v[at + lane] = a group of values of keys t and t + 1, for a vector of features."""
        b, none = self.b, const(0.0, "float32")
        both = b.local(2 * VECTOR, "float32")  # in registers, once the function is inlined
        other = b.let(tirx.min(t + 1, self.count - 1))
        with b.loop(VECTOR, "vectorized") as lane:
            b.store(both, lane, self._value(t, e + lane))
            value = self._value(other, e + lane)
            b.store(both, VECTOR + lane, tirx.Select(two, value, none))
        to = as_expr(b.simplify(at))
        call = tirx.call_extern("int32", HALVES.pairs, both.data, self.packed_v.data, to)
        b.emit(tirx.Evaluate(call))

    def _add_tile(self, row: Any, e: int, width: int, pairs: Any) -> None:
        b, features = self.b, self.e
        tile = DotTile(b, self.chip, HALVES, self.tile, width)
        with b.loop(width, "vectorized") as lane:
            for r in range(self.tile):
                tile.put(r, lane, b.load(self.sums, (row + r) * features + (e + lane)))
        with b.loop(pairs) as g:
            left = [
                load_group(b, self.weights, ((row + r) * (self.block // _GROUP) + g) * GROUP_BYTES)
                for r in range(self.tile)
            ]
            tile.step(left, lambda lane: (self.packed_v, (g * features + e + lane) * GROUP_BYTES))
        with b.loop(width, "vectorized") as lane:
            for r in range(self.tile):
                b.store(self.sums, (row + r) * features + (e + lane), tile.at(r, lane))
