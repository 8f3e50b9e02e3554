"""Output rows of channel-blocked windows that treat each channel alone: depthwise convolutions and
pools.

A task is some output rows of one block of channels of one image, or all rows of several blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Shape, ceildiv
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region
from cuvilc.targets.schedules.conv_store import ChannelStore
from cuvilc.targets.schedules.conv_taps import Taps, over_row
from cuvilc.targets.schedules.conv_window import BLOCK, Axis, axes_of, column, dynamic_taps
from cuvilc.targets.schedules.microkernel import RegisterTile, greater, lesser, opaque, split

# About 10 us of vector operations a task, at two operands from cache each.
_TASK_VECTORS = 20_000
_USUAL_WIDTH = 56
_FEW_PARTS = 8


def cut_rows(height: Dim, width: Dim, taps: int, chip: Chip, channels: int) -> tuple[int, int]:
    """(rows, blocks of channels) in a task: long enough, and as even as they divide."""
    vectors = (width if isinstance(width, int) else _USUAL_WIDTH) * max(BLOCK // chip.lanes, 1)
    rows = max(1, _TASK_VECTORS // max(vectors * taps, 1))
    if not isinstance(height, int):
        return min(rows, 16), 1
    groups = max(1, -(-height // rows))
    blocks = -(-channels // BLOCK)
    together = min(max(1, rows // max(height, 1)), blocks) if groups == 1 else 1
    groups, parts = _even(height, blocks, groups, -(-blocks // together))
    return max(1, -(-height // groups)), max(1, -(-blocks // parts))


def _even(height: int, blocks: int, groups: int, parts: int) -> tuple[int, int]:
    """Parts of the rows and of the blocks: of few tasks, an even number, if up to twice as many of
    either make one, for two threads to end together.
    """

    def tasks(cut: tuple[int, int]) -> int:
        rows, together = max(1, -(-height // cut[0])), max(1, -(-blocks // cut[1]))
        return -(-height // rows) * -(-blocks // together)

    if tasks((groups, parts)) % 2 == 0 or not 1 < tasks((groups, parts)) < _FEW_PARTS:
        return groups, parts
    finer = [(groups, p) for p in range(parts + 1, min(blocks, 2 * parts) + 1)]
    finer += [(g, parts) for g in range(groups + 1, min(height, 2 * groups) + 1)]
    return min((c for c in finer if tasks(c) % 2 == 0), key=tasks, default=(groups, parts))


class WindowRows:
    """Loops over tasks, rows and pixels. While it emits, `image`, `block` and `oh` say where."""

    def __init__(
        self, emitter: Emitter, images: Dim, channels: Dim, height: Axis, width: Axis,
        cut: tuple[int, int], pixels: int,
    ) -> None:  # fmt: skip
        self.emitter, self.b = emitter, emitter.builder
        self.images, self.height, self.width = images, height, width
        self.blocks = ceildiv(channels, BLOCK)
        (self.row_count, self.block_count), self.pixels = cut, pixels
        self.row = self.b.scalar(width.size) * BLOCK  # elements
        self.image: Any = 0
        self.block: Any = 0
        self.oh: Any = 0
        self._first: Any = 0
        self._last: Any = 0
        self._start: Any = 0

    @property
    def tasks(self) -> Dim:
        return self.images * self._block_groups * ceildiv(self.height.count, self.row_count)

    @property
    def _block_groups(self) -> Dim:
        return ceildiv(self.blocks, self.block_count)

    def emit(
        self, tile: Callable[[Any, int, Taps], None], pair: Callable[[Any], None] | None = None
    ) -> None:
        """`tile(first pixel, width, taps)` as in conv_taps.over_row; `pair(where input begins)`
        makes two whole rows all of whose taps along H are inside, where the height is known.
        """
        b, height = self.b, self.height
        plane = b.scalar(height.size) * self.row
        with b.tasks() as t:
            group, rest = split(self.emitter, t, b.scalar(ceildiv(height.count, self.row_count)))
            blocks, self.image = split(self.emitter, rest, b.scalar(self._block_groups))
            low = b.let(group * self.row_count)
            high = b.let(lesser(low + self.row_count, b.scalar(height.count)))
            first = b.let(blocks * self.block_count)
            last = lesser(first + self.block_count, b.scalar(self.blocks))
            with b.loop(last - first, start=first, name="c") as self.block:
                image = b.let((self.image * b.scalar(self.blocks) + self.block) * plane)

                def rows(low: Any, high: Any) -> None:
                    with b.loop(high - low, start=low, name="h") as oh:
                        self._begin(image, oh)
                        over_row(self.emitter, self.width, self.pixels, tile, alike=True)

                if pair is None:
                    rows(low, high)
                    return
                top, end = self._inner_rows()
                above = b.let(lesser(greater(low, top), high))
                pairs = b.let(self.emitter.k.floordiv(greater(lesser(high, end) - above, 0), 2))
                rows(low, above)
                with b.loop(pairs, name="h") as i:
                    self._begin(image, b.let(above + i * 2))
                    pair(self._start)
                rows(b.let(above + pairs * 2), high)

    def _begin(self, image: Any, oh: Any) -> None:
        height = self.height
        self.oh = oh
        self._first, self._last = dynamic_taps(self.emitter, height, oh)
        self._start = self.b.let(image + (oh * height.stride - height.pad) * self.row)

    def _inner_rows(self) -> tuple[int, int]:
        """[first, end) of output rows all of whose taps are inside."""
        height = self.height
        assert isinstance(height.count, int)
        inner = [i for i in range(height.count) if len(height.taps(i)) == height.kernel]
        return (inner[0], inner[-1] + 1) if inner else (height.count, height.count)

    def tap_rows(self) -> Any:
        """A loop over the taps along H that lie inside."""
        return self.b.loop(self._last - self._first, start=self._first, name="kh")

    def tap_row_count(self) -> Any:
        return self._last - self._first

    def taps(self, ow: Any) -> tuple[Any, Any]:
        """[first, last) tap along W of the window at `ow` that lies inside."""
        return dynamic_taps(self.emitter, self.width, ow)

    def input_row(self, kh: Any) -> Any:
        """Offset of the input row at tap row kh; lane 0."""
        return self.named(self._start + kh * (self.height.dilation * self.row))

    def named(self, index: Any) -> Any:
        """An index of a tap row. Where the width is unknown it is opaque, or LLVM would be slow;
        elsewhere LLVM's pointers that advance are some percent faster.
        """
        return self.b.let(index) if self.width.is_static else opaque(self.b, index)

    def input(self, row: Any, ow: Any) -> Any:
        """Offset of the element at tap 0 of window `ow`, in the input row at `row`; lane 0."""
        return row + (ow * self.width.stride - self.width.pad) * BLOCK

    def checked(self, row: Any, ow: Any, kw: Any) -> tuple[Any, Any]:
        """The same for a window that may not have the tap: (offset of an element, whether)."""
        near, inside = column(self.emitter, self.width, ow, kw)
        return row + near * BLOCK, inside


class ChannelWindows:
    """A kernel over windows of each channel alone; a subclass says what a tile of pixels is."""

    outside = 0.0  # what a tap beyond the input reads
    dtype = "float32"  # of the sums

    def __init__(
        self, region: Region, chip: Chip, name: str, anchor: Any, kernel: Shape,
        channels: int, vectorize: bool,
    ) -> None:  # fmt: skip
        x = ir.type_of(anchor.operands[0])
        shape = ir.type_of(anchor.results[0]).shape
        height, width = axes_of(x.shape, shape, kernel, ir.attrs(anchor))
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.anchor, self.channels, self.chip = anchor, channels, chip
        self.x = self.emitter.argument(anchor.operands[0])
        self.store = ChannelStore(self.emitter, anchor, channels, vectorize)
        cut = cut_rows(height.count, width.count, height.kernel * width.kernel, chip, channels)
        pixels = self.pixels(chip)
        self.rows = WindowRows(self.emitter, x.shape[0], channels, height, width, cut, pixels)

    def pixels(self, chip: Chip) -> int:
        """Pixels of a tile: half of the registers hold sums, inputs stream through the others."""
        return chip.registers // 2 * chip.lanes // BLOCK

    def tap_count(self) -> Dim:
        """Taps of an image's channel that lie inside."""
        return self.rows.height.tap_count() * self.rows.width.tap_count()

    def input(self, start: Any, checks: Mapping[int, Any], p: int, lane: Any) -> Any:
        """A tap of pixel p: from `start` on, or where `checks` (WindowRows.checked) say."""
        if p not in checks:
            return self.load(start + p * (self.rows.width.stride * BLOCK) + lane)
        at, inside = checks[p]
        nothing = self.k.const(self.outside, self.dtype)
        return self.k.let(self.k.select(inside, self.load(at + lane), nothing))

    def load(self, offset: Any) -> Any:
        """The input element at an offset, as what is summed."""
        return self.b.load(self.x, offset)

    def store_tile(self, tile: RegisterTile, ow: Any) -> None:
        """The tile, whose first pixel is `ow`, through the epilogue."""
        rows = self.rows
        self.store.tile(tile, rows.image, rows.block, 1, self.store.pixels(rows.oh, ow))
