"""Depthwise convolutions on channel-blocked activations: vectors of 16 channels, some pixels at a
time.

A task is some output rows of one block of channels of one image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled
from cuvilc.targets.schedules.conv_plan import check_types
from cuvilc.targets.schedules.conv_rows import WindowRows, cut_rows
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_taps import Step, Taps
from cuvilc.targets.schedules.conv_window import BLOCK, axes_of
from cuvilc.targets.schedules.microkernel import (
    RegisterTile,
    anchor_of,
    argument_index,
    named,
)
from cuvilc.targets.tir import CannotVectorize


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv with as many groups as channels in and out, and an elementwise epilogue."""
    anchor = anchor_of(region, "ai.conv")
    x, w = (ir.type_of(v) for v in anchor.operands[:2])
    result = ir.type_of(anchor.results[0])
    channels = w.shape[0]
    if w.shape[1] != 1 or ir.attrs(anchor)["groups"] != channels or not isinstance(channels, int):
        raise Miss("not one input and one output channel a group")
    if w.layout != f"pack0_{BLOCK}" or not x.layout:
        raise Miss("weights or input in row-major order")
    check_types(region, anchor, x, w, result)
    try:
        return _Depthwise(region, chip, name, anchor, vectorize=True).build()
    except CannotVectorize:
        return _Depthwise(region, chip, name, anchor, vectorize=False).build()


class _Depthwise:
    def __init__(self, region: Region, chip: Chip, name: str, anchor: Any, vectorize: bool) -> None:
        x, w = anchor.operands[:2]
        shape, result = ir.type_of(x).shape, ir.type_of(anchor.results[0]).shape
        kernel = ir.type_of(w).shape[2:]
        height, width = axes_of(shape, result, kernel, ir.attrs(anchor))
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        channels = ir.type_of(w).shape[0]
        assert isinstance(channels, int)
        self.anchor, self.channels = anchor, channels
        self.w_dtype = ir.type_of(w).dtype
        self.w = self.b.buffer(argument_index(region, w) or 0, self.w_dtype)
        self.x = self.b.buffer(argument_index(region, x) or 0, "float32")
        self.store = ChannelStore(self.emitter, anchor, self.channels, vectorize)
        taps = height.kernel * width.kernel
        cut = cut_rows(height.count, width.count, taps, chip, self.channels)
        # Half of the registers hold sums; inputs and weights stream through the others.
        pixels = chip.registers // 2 * chip.lanes // BLOCK
        self.rows = WindowRows(self.emitter, shape[0], self.channels, height, width, cut, pixels)

    def build(self) -> Scheduled:
        rows = self.rows
        rows.emit(self._tile)
        taps = rows.height.tap_count() * rows.width.tap_count()
        return self.emitter.finish(
            "depthwise", rows.tasks, taps * (2 * self.channels) * rows.images
        )

    def _weights(self, kh: Any, kw: Any) -> Any:
        height, width = self.rows.height, self.rows.width
        return ((self.rows.block * height.kernel + kh) * width.kernel + kw) * BLOCK

    def _weight(self, offset: Any) -> Any:
        return self.k.load(self.w, offset, self.w_dtype)

    def _tile(self, ow: Any, width: int, taps: Taps) -> None:
        b, rows = self.b, self.rows
        tile = RegisterTile(b, width, BLOCK)

        def nest(inner: Callable[[Step], None]) -> None:
            with rows.tap_rows() as kh:
                row = rows.input_row(kh)
                at = b.let(rows.input(row, ow))
                weights = rows.named(self._weights(kh, 0))

                def step(kw: Any, pixels: tuple[int, ...], edge: frozenset[int]) -> None:
                    start = named(b, at + kw * (rows.width.dilation * BLOCK), kw)
                    place = named(b, weights + kw * BLOCK, kw)
                    checks = {p: rows.checked(row, ow + p, kw) for p in sorted(edge)}
                    with b.loop(BLOCK, "vectorized") as lane:
                        weight = b.let(self._weight(place + lane))
                        for p in pixels:
                            tile.add(p, lane, self._input(start, checks, p, lane) * weight)

                inner(step)

        taps.over(nest)
        self._store(tile, ow)

    def _input(self, start: Any, checks: dict[int, Any], p: int, lane: Any) -> Any:
        if p not in checks:
            return self.b.load(self.x, start + p * (self.rows.width.stride * BLOCK) + lane)
        at, inside = checks[p]
        x = self.b.load(self.x, at + lane)
        return self.k.let(self.k.select(inside, x, self.k.const(0, "float32")))

    def _store(self, tile: RegisterTile, ow: Any) -> None:
        rows = self.rows
        flat = ir.type_of(self.anchor.results[0]).rank == 3

        def place(p: Any) -> tuple[Any, ...]:
            return (ow + p,) if flat else (rows.oh, ow + p)

        self.store.tile(tile, rows.image, rows.block, 1, place)
