"""Pools on channel-blocked activations: vectors of 16 channels; the mean over a whole image too.

A task is some output rows of one block of channels of one image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.ops.integer import BYTES
from cuvilc.dialect.ops.reduce import least
from cuvilc.dialect.types import numpy_dtype
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules import pool_global
from cuvilc.targets.schedules.conv_plan import check_places, check_types
from cuvilc.targets.schedules.conv_rows import ChannelWindows
from cuvilc.targets.schedules.conv_taps import Step, Taps
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.microkernel import RegisterTile, anchor_of, lesser, named
from cuvilc.targets.tir import as_expr


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.max_pool, of bytes too, ai.avg_pool, or ai.reduce_mean over H and W, with an elementwise
    epilogue.
    """
    anchor = anchor_of(region, "ai.max_pool", "ai.avg_pool", "ai.reduce_mean")
    if anchor.name == "ai.reduce_mean":
        pool_global.check(region, anchor)
        return vectorized(
            lambda vector: pool_global.GlobalMean(region, chip, name, anchor, vector).build()
        )
    x, result = ir.type_of(anchor.operands[0]), ir.type_of(anchor.results[0])
    if not x.layout:
        raise Miss("input in row-major order")
    channels = x.shape[1]
    if not isinstance(channels, int):
        raise Miss("channels known only at run time")
    if anchor.name == "ai.max_pool" and x.dtype in BYTES:
        check_places(region, anchor, x, None, result)
    else:
        check_types(region, anchor, x, None, result)
    kernel = ir.attrs(anchor)["kernel"]
    return vectorized(
        lambda vector: _Pool(region, chip, name, anchor, kernel, channels, vector).build()
    )


class _Pool(ChannelWindows):
    def build(self) -> Scheduled:
        self.is_max = self.anchor.name == "ai.max_pool"
        self.dtype = ir.type_of(self.anchor.operands[0]).dtype
        self.outside = least(numpy_dtype(self.dtype)) if self.is_max else 0.0
        self.rows.emit(self._tile)
        flops = self.tap_count() * self.channels * self.rows.images
        return self.emitter.finish("pool", self.rows.tasks, flops)

    def pixels(self, chip: Chip) -> int:
        return min(super().pixels(chip), 8)

    def _fold(self, tile: RegisterTile, p: int, lane: Any, x: Any) -> None:
        x = self.b.let(x)
        if self.is_max:
            tile.put(p, lane, self.k.max(tile.at(p, lane), x))
        else:
            tile.add(p, lane, x)

    def _tile(self, ow: Any, width: int, taps: Taps) -> None:
        b, rows = self.b, self.rows
        tile = RegisterTile(b, width, BLOCK, start=self.outside, dtype=self.dtype)

        def nest(inner: Callable[[Step], None]) -> None:
            with rows.tap_rows() as kh:
                row = rows.input_row(kh)
                at = b.let(rows.input(row, ow))

                def step(kw: Any, pixels: tuple[int, ...], edge: frozenset[int]) -> None:
                    start = named(b, at + kw * (rows.width.dilation * BLOCK), kw)
                    checks = {p: rows.checked(row, ow + p, kw) for p in sorted(edge)}
                    with b.loop(BLOCK, "vectorized") as lane:
                        for p in pixels:
                            self._fold(tile, p, lane, self.input(start, checks, p, lane))

                inner(step)

        taps.over(nest)
        if not self.is_max:
            self._divide(tile, ow)
        self.store_tile(tile, ow)

    def _divide(self, tile: RegisterTile, ow: Any) -> None:
        """By the number of cells: those inside the input, or inside the padded input."""
        b, rows = self.b, self.rows
        if ir.attrs(self.anchor)["count_include_pad"]:
            down = self._padded(rows.height, rows.oh, 0)
            counts = [self._padded(rows.width, ow + p, 1) for p in range(tile.rows)]
        else:
            ends = [rows.taps(ow + p) for p in range(tile.rows)]
            counts = [last - first for first, last in ends]
            down = rows.tap_row_count()
        for p, across in enumerate(counts):
            total = b.let(self.k.cast(as_expr(down * across), "float32"))
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
