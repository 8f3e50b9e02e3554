"""1×1 convolutions of bytes, exact with fewer products, where those are of 16 bits.

A chip that must widen bytes to 16 bits anyway (dots.py, WORDS) can multiply sums of them too: the
convolution is a product of matrices, pixels × channels and channels × outputs, and Strassen's
method has 7 products of parts for 8 (conv_strassen_texts.py). A part is every second pixel or block
of 16 channels or outputs, so two beside each other are transformed by themselves. Sums of bytes are
at most 512, and sums of products are right modulo 2³². Small layers are multiplied as they are.

A task is some rows of pixels times a unit of output channels. It transforms its inputs, unless the
task before it had the same, and the unit's weights into scratch, multiplies, and adds the products
up at the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import PAIRS, WORDS
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules import conv_dot_plan
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.microkernel import opaque, split
from cuvilc.targets.schedules.strassen_kernel import Each, Strassen
from cuvilc.targets.schedules.strassen_sizes import Sizes, cheapest

_FEW_PIXELS = 96  # of a task at least, if there are: fewer hardly repay transforming weights


@dataclass(frozen=True)
class _Plan:
    conv: conv_dot_plan.Plan
    columns: int  # of the result
    sizes: Sizes


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """ai.conv_integer of uint8 and int8 of 1×1 windows without padding, of known sizes, with an
    epilogue.
    """
    plan = _plan_of(region, chip)
    return vectorized(lambda vector: _Conv(region, chip, name, plan, vector).build())


def _plan_of(region: Region, chip: Chip) -> _Plan:
    conv = conv_dot_plan.plan_of(region, chip)
    # With longer vectors the general schedule widens seldom, and stores levels faster: measured, as
    # fast for large layers and faster for small ones.
    if conv.dots is not WORDS or PAIRS.function not in chip.dots or chip.lanes * 2 != BLOCK:
        raise Miss("bytes are not widened to multiply them, or vectors are short or long")
    axes = (conv.height, conv.width)
    plain = all((a.kernel, a.pad) == (1, 0) and a.all_inside for a in axes)
    if not plain or conv.groups > 1 or conv.turned:
        raise Miss("not 1×1 windows without padding, or groups, or a single line")
    height, columns = (a.count for a in axes)
    static = all(a.is_static for a in axes)
    if not (static and isinstance(height, int) and isinstance(columns, int) and height * columns):
        raise Miss("sizes known only at run time")
    dtype = ir.type_of(conv.anchor.operands[0]).dtype
    if not conv.blocked_input or conv.channels % BLOCK or dtype != "uint8":
        raise Miss("channels that are not whole blocks")
    sizes = cheapest(chip, height, columns, _FEW_PIXELS, conv.channels, conv.outputs)
    if sizes is None:
        raise Miss("few pixels")
    return _Plan(conv, columns, sizes)


class _Conv:
    """The kernel's loops: task, tile."""

    def __init__(self, region: Region, chip: Chip, name: str, plan: _Plan, vectorize: bool) -> None:
        self.plan, self.sizes, conv = plan, plan.sizes, plan.conv
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.x, self.w = (self.emitter.argument(v) for v in conv.anchor.operands[:2])
        self.store = ChannelStore(self.emitter, conv.anchor, conv.outputs, vectorize)
        self.parts = Strassen(self.emitter, chip, plan.sizes)

    def build(self) -> Scheduled:
        sizes, b = self.sizes, self.b
        with b.tasks() as t:
            unit, rest = split(self.emitter, t, sizes.units)
            row_group, image = split(self.emitter, rest, sizes.row_groups)
            self.parts.task(
                t, unit, row_group, self.w, partial(self._see, image),
                partial(self._store, image, unit),
            )  # fmt: skip
        tasks = self.plan.conv.images * sizes.row_groups * sizes.units
        return self.emitter.finish("conv-int8-strassen", tasks, self.plan.conv.flops)

    def _see(self, image: Any, each: Each) -> None:
        b, conv = self.b, self.plan.conv
        height, width = conv.height, conv.width
        line = width.size * BLOCK
        plane = height.size * line
        source = b.let(image * (conv.channels // BLOCK) * plane)

        def tile_from(tile: Any, start: Any) -> None:
            places = []
            for i in range(self.sizes.parts):
                column, row = split(self.emitter, b.let(start + i), self.plan.columns)
                place = row * (height.stride * line) + column * (width.stride * BLOCK)
                places.append(b.let(source + place))
            self.parts.see(self.x, tile, places, plane)

        each(tile_from)

    def _store(self, image: Any, unit: Any, start: Any) -> None:
        """A tile's sums, of pixels from `start` on."""
        b, parts = self.b, self.sizes.parts
        with b.loop(opaque(b, parts), name="p") as p:
            column, row = split(self.emitter, b.let(start + p), self.plan.columns)
            with b.loop(opaque(b, parts), name="h") as h:
                at = (p * parts + h) * BLOCK
                block = b.let(unit * parts + h)
                self.store.pixel(self.parts.results, at, image, block, (row, column))
