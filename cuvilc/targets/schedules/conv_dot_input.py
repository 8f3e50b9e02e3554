"""What a convolution on groups of narrow numbers reads: blocks where they lie, or copied rows.

Both give a tile the same view: bytes of a buffer, `steps` from pixel to pixel, and runs of
neighbouring groups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cuvilc.targets.dots import BYTES, GROUP_BYTES
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.conv_dot_plan import Plan, reach
from cuvilc.targets.schedules.conv_window import BLOCK, Axis
from cuvilc.targets.schedules.dot_rounding import VECTOR, Rounding
from cuvilc.targets.schedules.gemm_plan import PANEL
from cuvilc.targets.schedules.interleave import MOST_PLANES, interleave
from cuvilc.targets.schedules.microkernel import first_of, greater, lesser, opaque
from cuvilc.targets.tir import Buffer

_SLACK = 32  # bytes after a row: a vector's end, a group's end


class Blocks:
    """Input read where it lies: `runs` are blocks of channels. Offsets are bytes."""

    def __init__(self, emitter: Emitter, plan: Plan, x: Any) -> None:
        self.plan, self.buffer = plan, x
        self.b, self.k = emitter.builder, emitter.k
        line = self.b.scalar(plan.width.size) * BLOCK
        self._plane = self.b.scalar(plan.height.size * plan.width.size) * BLOCK
        self.steps = (plan.height.stride * line, plan.width.stride * BLOCK)
        self.width = plan.width
        self._task: Any = 0

    def begin_task(self, image: Any, group: Any, low: Any, high: Any) -> None:
        blocks = -(-self.plan.channels // BLOCK)
        first = image * self.plan.image_planes + group * blocks
        self._task = self.b.let(first * self._plane)

    def start(self, low: Any, oh: Any, ow: Any) -> Any:
        return self._task + oh * self.steps[0] + ow * self.steps[1]

    def runs(self, start: Any, weights: Any, run: Callable[[Any, Any, int], None]) -> None:
        """`run(where the input begins, where weights begin, groups)` for each block."""
        b, groups = self.b, BLOCK // BYTES.group
        whole, left = divmod(self.plan.channels, BLOCK)

        def block(c: Any, groups: int) -> None:
            at = opaque(b, start + c * self._plane)
            run(at, opaque(b, weights + c * (BLOCK * PANEL)), groups)

        with b.loop(whole, name="c") as c:
            block(c, groups)
        if left:
            block(whole, left // BYTES.group)


class Patch:
    """The input rows of a task in scratch memory: [rows, columns, channels], padding included.

    Vectors of 16 elements are stored in the order of addresses, so that what one writes too much
    the next overwrites.
    """

    def __init__(
        self, emitter: Emitter, plan: Plan, x: Any, outside: Any, rounding: Rounding
    ) -> None:
        self.emitter, self.plan, self.x, self.rounding = emitter, plan, x, rounding
        self.b, self.k = emitter.builder, emitter.k
        self._outside = emitter.accessor(outside) if outside is not None else None
        row = plan.seen_columns * plan.channels + _SLACK
        rows = reach(plan.height, plan.rows)
        self.stride = self.b.scalar((row + 15) // 16 * 16)
        self.dtype, item = plan.dots.laid, plan.dots.item
        self.buffer = self.b.scratch(rows * ((row + 15) // 16 * 16), self.dtype)
        self.steps = (
            plan.height.stride * self.stride * item, plan.width.stride * plan.channels * item,
        )  # fmt: skip
        axis = plan.width
        self.width = Axis(plan.seen_columns, axis.count, axis.kernel, axis.stride, 0, axis.dilation)

    def start(self, low: Any, oh: Any, ow: Any) -> Any:
        return (oh - low) * self.steps[0] + ow * self.steps[1]

    def runs(self, start: Any, weights: Any, run: Callable[[Any, Any, int], None]) -> None:
        """`run(where the input begins, where weights begin, groups)` for each row of taps; where
        they are dilated for each tap.
        """
        plan, b = self.plan, self.b
        count, groups = plan.runs
        item = plan.dots.item
        down = plan.height.dilation * self.stride * item
        with b.loop(plan.height.kernel, name="kh") as kh, b.loop(count, name="kw") as kw:
            tap = kw * (plan.width.dilation * plan.channels * item) if count > 1 else 0
            at = opaque(b, start + kh * down + tap)
            run(at, opaque(b, weights + (kh * count + kw) * (groups * PANEL * GROUP_BYTES)), groups)

    def begin_task(self, image: Any, group: Any, low: Any, high: Any) -> None:
        """Copy what the output rows [low, high) of an image read."""
        plan, b = self.plan, self.b
        height = plan.height
        first = b.let(low * height.stride - height.pad)
        count = (high - 1 - low) * height.stride + ((height.kernel - 1) * height.dilation + 1)
        if self._outside is None:
            outside: Any = self.k.const(0, self.dtype)
        else:
            outside = self._outside[(0,) * len(self._outside.shape)]
            outside = b.let(self.rounding.laid(outside))
        with b.loop(b.let(count), name="r") as r:
            ih = b.let(first + r)
            to = b.let(r * self.stride)
            size = b.scalar(height.size)
            inside = self.k.both(self.k.ge(ih, 0), self.k.lt(ih, size))
            columns = b.scalar(plan.seen_columns)
            certain = height.pad == 0 and height.all_inside
            cases: list[tuple[Any, Callable[[], None]]] = [
                (
                    None if certain else inside,
                    lambda: self._row(image, group, ih, to, outside),
                ),
                (None, lambda: self._fill(to, columns, outside)),
            ]
            first_of(b, cases)

    def _row(self, image: Any, group: Any, ih: Any, to: Any, outside: Any) -> None:
        plan, b = self.plan, self.b
        pad, size = plan.width.pad, b.scalar(plan.width.size)
        columns = b.scalar(plan.seen_columns)
        inner = lesser(size, columns - pad)
        if not isinstance(inner, int):
            inner = b.let(greater(inner, 0))
        if pad:
            self._fill(to, lesser(pad, columns), outside)
        start = b.let(to + pad * plan.channels)
        if plan.blocked_input:
            self._blocks(image, group, ih, start, inner)
        else:
            self._plain(image, group, ih, start, inner)
        right = columns - pad - inner
        right = greater(right, 0)
        if not (isinstance(right, int) and right == 0):
            self._fill(b.let(start + inner * plan.channels), right, outside)

    def _fill(self, to: Any, columns: Any, outside: Any) -> None:
        b = self.b
        vectors = self.k.floordiv(columns * self.plan.channels + 15, 16)
        with b.loop(vectors, name="f") as i, b.loop(16, "vectorized") as lane:
            self.k.store(self.buffer, to + i * 16 + lane, outside, self.dtype)

    def _blocks(self, image: Any, group: Any, ih: Any, to: Any, count: Any) -> None:
        """From blocks of 16 channels."""
        plan, b = self.plan, self.b
        plane = b.scalar(plan.height.size * plan.width.size) * BLOCK
        blocks = -(-plan.channels // BLOCK)
        first = image * plan.image_planes
        if plan.groups > 1:
            first = first + group * blocks
        source = b.let(first * plane + ih * (b.scalar(plan.width.size) * BLOCK))

        def vector(w: Any, c: Any) -> None:
            at = b.let(source + c * plane + w * BLOCK)
            into = b.let(to + w * plan.channels + c * BLOCK)
            self.rounding.store(self.buffer, into, partial(self._channel, at))

        if plan.channels % BLOCK:
            with b.loop(count, name="w") as w, b.loop(blocks, name="c") as c:
                vector(w, c)
            return
        with b.loop(blocks, name="c") as c, b.loop(count, name="w") as w:
            vector(w, c)

    def _channel(self, at: Any, lane: Any) -> Any:
        return self.b.load(self.x, at + lane)

    def _of(self, columns: Buffer, first: int, lane: Any) -> Any:
        return self.b.load(columns, first + lane)

    def _plain(self, image: Any, group: Any, ih: Any, to: Any, count: Any) -> None:
        """From row-major channels."""
        plan, b = self.plan, self.b
        plane = b.scalar(plan.height.size * plan.width.size)
        first = image * plan.image_planes
        if plan.groups > 1:
            first = first + group * plan.channels
        source = b.let(first * plane + ih * b.scalar(plan.width.size))

        def columns(start: Any, count: Any) -> None:
            with b.loop(count, start=start, name="w") as w, b.loop(plan.channels, name="c") as c:
                value = self.rounding.laid(b.load(self.x, source + c * plane + w))
                self.k.store(self.buffer, to + w * plan.channels + c, value, self.dtype)

        def vectors() -> None:
            whole = self.k.floordiv(count, VECTOR)
            with b.loop(whole if isinstance(whole, int) else b.let(whole), name="w") as i:
                self._planes(source + i * VECTOR, plane, to + i * (VECTOR * plan.channels))
            done = whole * VECTOR
            columns(done, count - done)

        vectors() if self._interleaves else columns(0, count)

    @property
    def _interleaves(self) -> bool:
        """Whether the input's planes are few and need no rounding that is slow."""
        cheap = str(self.x.dtype) == self.plan.dots.left or self.rounding.fast
        return self.plan.channels <= MOST_PLANES and cheap

    def _planes(self, source: Any, plane: Any, to: Any) -> None:
        """VECTOR columns of all channels."""
        b, planes, dtype = self.b, self.plan.channels, self.plan.dots.left
        bits = 8 if dtype == "uint8" else 16
        rows, at, stride = self.x, source, plane
        if str(self.x.dtype) != dtype:
            rows, at, stride = b.local(planes * VECTOR, self.dtype), 0, VECTOR
            for c in range(planes):
                place = source + c * plane
                self.rounding.store(rows, c * VECTOR, partial(self._channel, place))
        if dtype == self.dtype:
            interleave(b, planes, bits, (rows, at, stride), (self.buffer, to))
            return
        columns = b.local(planes * VECTOR, dtype)
        interleave(b, planes, bits, (rows, at, stride), (columns, 0))
        for c in range(planes):
            first = c * VECTOR
            self.rounding.store(self.buffer, to + first, partial(self._of, columns, first))
