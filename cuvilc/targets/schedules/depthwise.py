"""Depthwise convolutions on channel-blocked activations: vectors of 16 channels, some pixels at a
time.

A task is some output rows of one block of channels of one image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.conv_plan import check_types
from cuvilc.targets.schedules.conv_rows import ChannelWindows
from cuvilc.targets.schedules.conv_taps import Step, Taps
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.microkernel import RegisterTile, anchor_of, named


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
    kernel = w.shape[2:]
    return vectorized(
        lambda vector: _Depthwise(region, chip, name, anchor, kernel, channels, vector).build()
    )


class _Depthwise(ChannelWindows):
    def build(self) -> Scheduled:
        weights = self.anchor.operands[1]
        self.w, self.w_dtype = self.emitter.argument(weights), ir.type_of(weights).dtype
        self.rows.emit(self._tile)
        flops = self.tap_count() * (2 * self.channels) * self.rows.images
        return self.emitter.finish("depthwise", self.rows.tasks, flops)

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
                            tile.add(p, lane, self.input(start, checks, p, lane) * weight)

                inner(step)

        taps.over(nest)
        self.store_tile(tile, ow)
