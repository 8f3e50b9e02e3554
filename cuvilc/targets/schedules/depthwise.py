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
from cuvilc.targets.schedules.conv_plan import check_places, check_types
from cuvilc.targets.schedules.conv_rows import ChannelWindows
from cuvilc.targets.schedules.conv_taps import Step, Taps, columns_of, tile_groups
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.microkernel import (
    RegisterTile,
    anchor_of,
    lesser,
    named,
    opaque,
)

_WEIGHTS = 9  # most vectors of weights that stay in registers
_RESERVED = 3  # registers for inputs


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv with as many groups as channels in and out, and an elementwise epilogue; or
    ai.conv_integer, centred.
    """
    anchor = anchor_of(region, "ai.conv", "ai.conv_integer")
    x, w = (ir.type_of(v) for v in anchor.operands[:2])
    result = ir.type_of(anchor.results[0])
    channels = w.shape[0]
    if w.shape[1] != 1 or ir.attrs(anchor)["groups"] != channels or not isinstance(channels, int):
        raise Miss("not one input and one output channel a group")
    if w.layout != f"pack0_{BLOCK}" or not x.layout:
        raise Miss("weights or input in row-major order")
    kernel = w.shape[2:]
    whole = anchor.name == "ai.conv_integer"
    if whole:
        check_places(region, anchor, x, w, result)
        if not ir.attrs(anchor)["centred"]:
            raise Miss("what lies beyond the edge is not 0")
    else:
        check_types(region, anchor, x, w, result)
    kind = _IntegerDepthwise if whole else _Depthwise
    return vectorized(
        lambda vector: kind(region, chip, name, anchor, kernel, channels, vector).build()
    )


class _Depthwise(ChannelWindows):
    def build(self) -> Scheduled:
        weights = self.anchor.operands[1]
        self.w, self.w_dtype = self.emitter.argument(weights), ir.type_of(weights).dtype
        self.rows.emit(self._tile, self._pair if self._shares() else None)
        flops = self.tap_count() * (2 * self.channels) * self.rows.images
        return self.emitter.finish("depthwise", self.rows.tasks, flops)

    def _shares(self) -> bool:
        """Whether two output rows read the same input rows, in registers that suffice."""
        rows, chip = self.rows, self.chip
        fits = chip.lanes == BLOCK and rows.height.kernel * rows.width.kernel <= _WEIGHTS
        alike = rows.height.stride == rows.height.dilation == 1 < rows.height.kernel
        static = rows.height.is_static and rows.width.is_static
        return self.dtype == "float32" and fits and alike and static and rows.row_count > 1

    def _pair(self, start: Any) -> None:
        """Two output rows: each input element is read once, weights stay in registers."""
        b, rows, axis = self.b, self.rows, self.rows.width
        taps = rows.height.kernel * axis.kernel
        most = (self.chip.registers - taps - _RESERVED) // 2
        for width, starts in tile_groups(axis, most, True):
            with b.loop(len(starts), name="w") as i:
                ow = starts[0] if len(starts) == 1 else b.let(i * width + starts[0])
                tile = RegisterTile(b, 2 * width, BLOCK)
                at = b.let(rows.input(start, ow))
                for column, uses in columns_of(axis, starts[0], width):
                    self._column(tile, opaque(b, at + column * BLOCK), uses, width)
                place = self.store.pixels(rows.oh, ow, width)
                self.store.tile(tile, rows.image, rows.block, 1, place)

    def _column(self, tile: RegisterTile, at: Any, uses: dict[int, int], width: int) -> None:
        """What the input elements of one column add to both rows; `uses`: {tap along W: pixel}."""
        b, kernel = self.b, self.rows.height.kernel
        for row in range(kernel + 1):
            with b.loop(BLOCK, "vectorized") as lane:
                value = b.let(self.load(at + row * self.rows.row + lane))
                for kw, p in uses.items():
                    for out in (0, 1):
                        if 0 <= row - out < kernel:
                            weight = self._weight(self._weights(row - out, kw) + lane, lane)
                            tile.add(out * width + p, lane, value * weight)

    def _weights(self, kh: Any, kw: Any) -> Any:
        height, width = self.rows.height, self.rows.width
        return ((self.rows.block * height.kernel + kh) * width.kernel + kw) * BLOCK

    def _weight(self, offset: Any, lane: Any) -> Any:
        return self.k.load(self.w, offset, self.w_dtype)

    def _tile(self, ow: Any, width: int, taps: Taps) -> None:
        b, rows = self.b, self.rows
        tile = RegisterTile(b, width, BLOCK, start=self.outside, dtype=self.dtype)

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
                        weight = b.let(self._weight(place + lane, lane))
                        for p in pixels:
                            tile.add(p, lane, self.input(start, checks, p, lane) * weight)

                inner(step)

        taps.over(nest)
        self.store_tile(tile, ow)


class _IntegerDepthwise(_Depthwise):
    """Sums in int32 of what is left of bytes after their zero points."""

    dtype, outside = "int32", 0

    def _zero(self, number: int, channel: Any) -> Any:
        """The zero point of an operand, where it has one."""
        if len(self.anchor.operands) <= number + 2:
            return None
        zero = self.emitter.accessor(self.anchor.operands[number + 2])
        one = zero.type.shape in ((), (1,))
        index = (0,) * len(zero.shape) if one else (channel,)
        return self.k.cast(zero[index], "int32")

    def _less(self, level: Any, zero: Any) -> Any:
        wide = self.k.cast(level, "int32")
        return wide if zero is None else wide - zero

    def load(self, offset: Any) -> Any:
        return self._less(super().load(offset), self._zero(0, None))

    def _weight(self, offset: Any, lane: Any) -> Any:
        # Beyond the last channel there is no zero point; that sum is not stored.
        channel = lesser(self.rows.block * BLOCK + lane, self.channels - 1)
        return self._less(super()._weight(offset, lane), self._zero(1, channel))
