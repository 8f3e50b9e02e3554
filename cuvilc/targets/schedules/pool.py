"""Pools on channel-blocked activations: vectors of 16 channels; the mean over a whole image too.

A task is some output rows of one block of channels of one image.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules import pool_global
from cuvilc.targets.schedules.conv_plan import check_types
from cuvilc.targets.schedules.conv_rows import WindowRows, cut_rows
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_window import BLOCK, axes_of, over_taps
from cuvilc.targets.schedules.microkernel import RegisterTile, anchor_of, argument_index, lesser
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
        self.x = self.b.buffer(argument_index(region, anchor.operands[0]) or 0, "float32")
        self.store = ChannelStore(self.emitter, anchor, self.channels, vectorize)
        self.taps = height.kernel * width.kernel
        cut = cut_rows(height.count, width.count, self.taps, chip, self.channels)
        pixels = min(chip.registers // 2 * chip.lanes // BLOCK, 8)
        self.rows = WindowRows(self.emitter, x.shape[0], self.channels, height, width, cut, pixels)

    def build(self) -> Scheduled:
        rows = self.rows
        rows.emit(self._tile, self._pixel)
        taps = rows.height.tap_count() * rows.width.tap_count()
        return self.emitter.finish("pool", rows.tasks, taps * self.channels * rows.images)

    def _start(self, rows: int) -> RegisterTile:
        return RegisterTile(self.b, rows, BLOCK, start=float("-inf") if self.is_max else 0.0)

    def _fold(self, tile: RegisterTile, p: int, lane: Any, at: Any) -> None:
        x = self.b.let(self.b.load(self.x, at + lane))
        if self.is_max:
            tile.put(p, lane, self.k.max(tile.at(p, lane), x))
        else:
            tile.add(p, lane, x)

    def _tile(self, ow: Any, width: int, inside: Any) -> None:
        b, rows = self.b, self.rows
        tile = self._start(width)
        with rows.tap_rows() as kh:
            at = b.let(rows.input(kh, ow))

            def tap(kw: Any, pixels: Any) -> None:
                start = b.let(at + rows.distance(0, kw))
                with b.loop(BLOCK, "vectorized") as lane:
                    for p in pixels:
                        self._fold(tile, p, lane, start + rows.distance(p, 0))

            over_taps(self.emitter, width, inside, tap)
        counts = [sum(p in pixels for pixels in inside) for p in range(width)]
        self._store(tile, ow, counts)

    def _pixel(self, ow: Any) -> None:
        """One pixel whose taps along W are known at run time."""
        b, rows = self.b, self.rows
        tile = self._start(1)
        first, last = rows.taps(ow)
        with rows.tap_rows() as kh, b.loop(last - first, start=first, name="kw") as kw:
            at = b.let(rows.input(kh, ow) + rows.distance(0, kw))
            with b.loop(BLOCK, "vectorized") as lane:
                self._fold(tile, 0, lane, at)
        self._store(tile, ow, [last - first])

    def _store(self, tile: RegisterTile, ow: Any, counts: list[Any]) -> None:
        rows = self.rows
        if not self.is_max:
            self._divide(tile, ow, counts)
        flat = ir.type_of(self.anchor.results[0]).rank == 3
        place = lambda p: (ow + p,) if flat else (rows.oh, ow + p)  # noqa: E731
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
