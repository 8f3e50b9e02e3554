"""Pools on channel-blocked activations: vectors of 16 channels; the mean over a whole image too.

A task is some output rows of one block of channels of one image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules import pool_global
from cuvilc.targets.schedules.conv_plan import check_types
from cuvilc.targets.schedules.conv_rows import WindowRows, cut_rows
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_taps import Step, Taps
from cuvilc.targets.schedules.conv_window import BLOCK, axes_of
from cuvilc.targets.schedules.microkernel import (
    RegisterTile,
    anchor_of,
    argument_index,
    lesser,
    named,
)
from cuvilc.targets.tir import CannotVectorize, const


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.max_pool, ai.avg_pool, or ai.reduce_mean over H and W, with an elementwise epilogue."""
    anchor = anchor_of(region, "ai.max_pool", "ai.avg_pool", "ai.reduce_mean")
    make: Any = _Pool
    if anchor.name == "ai.reduce_mean":
        pool_global.check(region, anchor)
        make = pool_global.GlobalMean
    else:
        x, result = ir.type_of(anchor.operands[0]), ir.type_of(anchor.results[0])
        if not x.layout:
            raise Miss("input in row-major order")
        check_types(region, anchor, x, None, result)
    try:
        # Type: ignore[no-any-return]
        return make(region, chip, name, anchor, vectorize=True).build()
    except CannotVectorize:
        # Type: ignore[no-any-return]
        return make(region, chip, name, anchor, vectorize=False).build()


class _Pool:
    def __init__(self, region: Region, chip: Chip, name: str, anchor: Any, vectorize: bool) -> None:
        x, attrs = ir.type_of(anchor.operands[0]), ir.attrs(anchor)
        result = ir.type_of(anchor.results[0])
        height, width = axes_of(x.shape, result.shape, attrs["kernel"], attrs)
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.anchor, self.channels = anchor, x.shape[1]
        if not isinstance(self.channels, int):
            raise Miss("channels known only at run time")
        self.is_max = anchor.name == "ai.max_pool"
        self.identity = float("-inf") if self.is_max else 0.0
        self.x = self.b.buffer(argument_index(region, anchor.operands[0]) or 0, "float32")
        self.store = ChannelStore(self.emitter, anchor, self.channels, vectorize)
        self.taps = height.kernel * width.kernel
        cut = cut_rows(height.count, width.count, self.taps, chip, self.channels)
        pixels = min(chip.registers // 2 * chip.lanes // BLOCK, 8)
        self.rows = WindowRows(self.emitter, x.shape[0], self.channels, height, width, cut, pixels)

    def build(self) -> Scheduled:
        rows = self.rows
        rows.emit(self._tile)
        taps = rows.height.tap_count() * rows.width.tap_count()
        return self.emitter.finish("pool", rows.tasks, taps * self.channels * rows.images)

    def _start(self, rows: int) -> RegisterTile:
        return RegisterTile(self.b, rows, BLOCK, start=self.identity)

    def _fold(self, tile: RegisterTile, p: int, lane: Any, x: Any) -> None:
        x = self.b.let(x)
        if self.is_max:
            tile.put(p, lane, self.k.max(tile.at(p, lane), x))
        else:
            tile.add(p, lane, x)

    def _tile(self, ow: Any, width: int, taps: Taps) -> None:
        b, rows = self.b, self.rows
        tile = self._start(width)

        def nest(inner: Callable[[Step], None]) -> None:
            with rows.tap_rows() as kh:
                row = rows.input_row(kh)
                at = b.let(rows.input(row, ow))

                def step(kw: Any, pixels: tuple[int, ...], edge: frozenset[int]) -> None:
                    start = named(b, at + kw * (rows.width.dilation * BLOCK), kw)
                    checks = {p: rows.checked(row, ow + p, kw) for p in sorted(edge)}
                    with b.loop(BLOCK, "vectorized") as lane:
                        for p in pixels:
                            self._fold(tile, p, lane, self._input(start, checks, p, lane))

                inner(step)

        taps.over(nest)
        counts: list[Any] = []
        if not self.is_max and not ir.attrs(self.anchor)["count_include_pad"]:
            ends = [rows.taps(ow + p) for p in range(width)]
            counts = [last - first for first, last in ends]
        self._store(tile, ow, counts)

    def _input(self, start: Any, checks: dict[int, Any], p: int, lane: Any) -> Any:
        if p not in checks:
            return self.b.load(self.x, start + p * (self.rows.width.stride * BLOCK) + lane)
        at, inside = checks[p]
        nothing = self.k.const(self.identity, "float32")
        return self.k.select(inside, self.b.load(self.x, at + lane), nothing)

    def _store(self, tile: RegisterTile, ow: Any, counts: list[Any]) -> None:
        rows = self.rows
        if not self.is_max:
            self._divide(tile, ow, counts)
        flat = ir.type_of(self.anchor.results[0]).rank == 3

        def place(p: Any) -> tuple[Any, ...]:
            return (ow + p,) if flat else (rows.oh, ow + p)

        self.store.tile(tile, rows.image, rows.block, 1, place)

    def _divide(self, tile: RegisterTile, ow: Any, counts: list[Any]) -> None:
        """By the number of cells: those inside the input, or inside the padded input."""
        b, rows = self.b, self.rows
        if ir.attrs(self.anchor)["count_include_pad"]:
            down, counts = (
                self._padded(rows.height, rows.oh, 0),
                [self._padded(rows.width, ow + p, 1) for p in range(tile.rows)],
            )
        else:
            down = rows.tap_row_count()
        for p, across in enumerate(counts):
            total = b.let(self.k.cast(_i64(down * across), "float32"))
            with b.loop(BLOCK, "vectorized") as lane:
                tile.put(p, lane, tile.at(p, lane) / total)

    def _padded(self, axis: Any, window: Any, number: int) -> Any:
        """Cells of a window inside the padded axis: fewer than the kernel only in ceil mode."""
        attrs = ir.attrs(self.anchor)
        if not attrs["ceil_mode"]:
            return axis.kernel
        ends = attrs["pads_end"]
        end = ends[number] if len(ends) == 2 else (0, *ends)[number]
        room = self.b.scalar(axis.size) + axis.pad + end - window * axis.stride
        cells = self.k.floordiv(room + (axis.dilation - 1), axis.dilation)
        return lesser(cells, axis.kernel)


def _i64(value: Any) -> Any:
    return const(value) if isinstance(value, int) else value
