"""grid_sample: where a place of the grid lies is found once for many channels.

A task is some places of an image and some channels. Where channels do not lie in blocks the
elementwise schedule is faster, which finds places by vectors and gathers.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import ceildiv, product
from cuvilc.dialect.ops.sampling import grid_taps, weighed
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.special_channels import CHANNELS, Channels, read_block, sampler
from cuvilc.targets.schedules.special_common import unravel
from cuvilc.targets.tir import as_expr, const

_PLACES = 64  # of a task
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}  # along an axis


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes regions of one grid_sample of floats, and of moves between layouts."""
    anchor = sampler(region, "ai.grid_sample")
    x, y = ir.type_of(anchor.operands[0]), ir.type_of(anchor.results[0])
    if not x.is_float:
        raise Miss("integers, which are only moved")
    images, channels, *places = y.shape
    if not read_block(region, anchor.operands[0]):
        raise Miss("channels that lie apart")
    blocks, parts = ceildiv(channels, CHANNELS), ceildiv(product(places), _PLACES)

    def build(vector: bool) -> Scheduled:
        grid = _Grid(Emitter(region, name), anchor, vector)
        b, k = grid.b, grid.k
        with b.tasks() as t:
            of_image = b.let(k.floordiv(t, b.scalar(parts)))
            block = b.let(k.mod(of_image, b.scalar(blocks)))
            image = b.let(k.floordiv(of_image, b.scalar(blocks)))
            grid.run(image, block, b.let(k.mod(t, b.scalar(parts)) * _PLACES))
        flops = product(y.shape) * 2 * _TAPS[ir.attrs(anchor)["mode"]] ** len(places)
        return grid.emitter.finish("grid-sample", images * blocks * parts, flops)

    return vectorized(build)


class _Grid:
    """One kernel."""

    def __init__(self, emitter: Emitter, anchor: Any, vector: bool) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        self.attrs = ir.attrs(anchor)
        self.x, self.grid = emitter.operands(anchor)
        self.places = ir.type_of(anchor.results[0]).shape[2:]
        self.channels = Channels(emitter, anchor, vector)
        self.result = anchor.results[0]
        self.apart = self.channels.read_width != self.channels.store_width
        self.line = self.b.scratch(CHANNELS, self.x.dtype) if self.apart else None

    def run(self, image: Any, block: Any, first: Any) -> None:
        """Places from number `first` on of an image, in block number `block` of its channels."""
        b, channels = self.b, self.channels
        channels.start(block, self.x.shape[1])
        rest = as_expr(b.scalar(product(self.places))) - first
        with b.loop(b.let(tirx.min(rest, const(_PLACES)))) as n:
            place = unravel(self.emitter, b.let(first + n), self.places)
            axes = grid_taps(self.k, image, place, self.x, self.grid, **self.attrs)
            self.emitter.forget()
            if self.apart:
                self.emitter.define(self.result, lambda _: b.load(self.line, channels.number))
                channels.each(channels.read_width, lambda c: self._keep(image, c, axes))
            else:
                self.emitter.define(
                    self.result, lambda index: self._value(index[0], index[1], axes)
                )
            store = lambda c: self.emitter.store_all((image, c, *place))  # noqa: E731
            channels.each(channels.store_width, store)

    def _keep(self, image: Any, channel: Any, axes: Any) -> None:
        self.b.store(self.line, self.channels.number, self._value(image, channel, axes))

    def _value(self, image: Any, channel: Any, axes: Any) -> Any:
        return self.k.let(weighed(self.k, self.x, (image, channel), axes, self.grid.dtype))
