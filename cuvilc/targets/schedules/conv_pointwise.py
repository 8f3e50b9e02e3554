"""Convolutions of one tap and stride 1: products whose rows are the pixels of an image."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region, Scheduled, vectorized
from cuvilc.targets.schedules import gemm_plan
from cuvilc.targets.schedules.conv_plan import Plan
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm import Gemm
from cuvilc.targets.schedules.microkernel import RegisterTile, opaque, tile_rows


def fits(plan: Plan) -> bool:
    """Whether the convolution is such a product."""
    axes = (plan.height, plan.width)
    one = all((a.kernel, a.stride, a.pad) == (1, 1, 0) and a.size == a.count for a in axes)
    return one and plan.groups == 1 and plan.blocked_input


def schedule(region: Region, chip: Chip, name: str, plan: Plan) -> Scheduled:
    """The kernel of a plan that `fits`."""
    return vectorized(lambda vector: _Pointwise(region, chip, name, plan, vector).build())


# Planes of channels this far apart share one set of the caches, so a tile's pixels are in none when
# the next tile of outputs wants them, and lie too far apart for the hardware's prefetchers. They
# are fetched so many blocks of channels ahead: one is as long as a fetch from the second level.
_AHEAD = 4


class _Pixels:
    """Rows of the product: `at(r, k)` is channel k of pixel r of the tile begun last."""

    def __init__(self, emitter: Emitter, plan: Plan, chip: Chip) -> None:
        self.b, self.k = emitter.builder, emitter.k
        pixels = plan.height.size * plan.width.size
        self._fetches = (
            isinstance(pixels, int)
            and gemm_plan.aliases(pixels * BLOCK * 4)
            and pixels * plan.channels * 4 > chip.l2_bytes
        )
        self._buffer = emitter.argument(plan.anchor.operands[0])
        self._plane = self.b.scalar(plan.height.size * plan.width.size) * BLOCK
        self._image = self._plane * plan.image_planes
        self._task: Any = 0
        self._tile: Any = 0
        self._step: Any = 0

    def begin_task(self, batch: list[Any]) -> None:
        self._task = self.b.let(batch[0] * self._image)

    def pack_rows(self, low: Any, high: Any) -> None:
        """They are read where they lie."""

    def begin_tile(self, row: Any) -> None:
        self._tile = self.b.let(self._task + row * BLOCK)

    def begin_step(self, k: Any) -> None:
        block = self.k.floordiv(k, BLOCK)
        channel = k - block * BLOCK
        if self._fetches:  # a line, which is a pixel, a step
            far = (block + _AHEAD) * self._plane + channel * BLOCK
            self.b.prefetch(self._buffer, self._tile + far)
        self._step = opaque(self.b, self._tile + block * self._plane + channel)

    def at(self, r: int, k: Any) -> Any:
        return self.b.load(self._buffer, self._step + r * BLOCK)


class _Pointwise(Gemm):
    kind = "conv"

    def __init__(self, region: Region, chip: Chip, name: str, conv: Plan, vectorize: bool) -> None:
        self.conv = conv
        anchor, m = conv.anchor, conv.height.size * conv.width.size
        width = max(gemm_plan.tile_width(chip, conv.outputs), BLOCK)  # whole blocks are stored
        rows = gemm_plan.balanced_rows(m, tile_rows(chip, width))
        product = gemm_plan.Plan(
            anchor, anchor.operands[0], anchor.operands[1], (conv.images,), (m,), False, True,
            m, conv.outputs, conv.channels, True, "packed", rows, width,
        )  # fmt: skip
        product.often_few = False  # pixels
        gemm_plan.group(product)
        super().__init__(region, chip, name, product, vectorize)
        self.store = ChannelStore(self.emitter, anchor, conv.outputs, vectorize, conv.channels)

    def make_left(self) -> Any:
        return _Pixels(self.emitter, self.conv, self.chip)

    def finish(self, tile: RegisterTile, row: Any, panel: Any) -> None:
        blocks, block = tile.width // BLOCK, panel * (self.plan.width // BLOCK)
        shape = ir.type_of(self.plan.anchor.results[0]).shape
        columns = self.b.scalar(shape[-1])

        def place(p: Any) -> tuple[Any, ...]:
            pixel = row + p
            if len(shape) == 3:
                return (pixel,)
            line = self.emitter.k.floordiv(pixel, columns)
            return line, self.emitter.k.mod(pixel, columns)

        self.store.tile(tile, self.batch[0], block, blocks, place)
