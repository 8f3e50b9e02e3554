"""Sliding windows over [N, C, H, W]: their axes, and which taps lie inside the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuvilc.dialect.dims import Dim, floordiv
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.microkernel import greater, lesser

BLOCK = 16  # channels in a block of NCHW16c: PassContext.channel_block


@dataclass(frozen=True)
class Axis:
    """One spatial axis: input size, window count, and the window's numbers."""

    size: Dim
    count: Dim
    kernel: int
    stride: int
    pad: int
    dilation: int
    pad_end: int = 0  # at least what windows reach beyond the end

    def taps(self, window: int) -> tuple[int, ...]:
        """Taps of a window that lie inside the input; only for a static size."""
        assert isinstance(self.size, int)
        start = window * self.stride - self.pad
        return tuple(j for j in range(self.kernel) if 0 <= start + j * self.dilation < self.size)

    @property
    def is_static(self) -> bool:
        return isinstance(self.size, int) and isinstance(self.count, int)

    @property
    def all_inside(self) -> bool:
        """Whether it is certain that every tap of every window lies inside."""
        if not self.is_static:
            return self.pad == 0 and self._ends_inside()
        return all(len(self.taps(w)) == self.kernel for w in self._edge_windows())

    def _edge_windows(self) -> tuple[int, ...]:
        assert isinstance(self.count, int)
        return (0, self.count - 1) if self.count else ()

    def _ends_inside(self) -> bool:
        fit = floordiv(self.size - self.dilation * (self.kernel - 1) - 1, self.stride) + 1
        return bool(fit == self.count)

    def tap_count(self) -> Dim:
        """Taps of all windows that lie inside; an upper bound while the size is unknown."""
        if not (isinstance(self.size, int) and isinstance(self.count, int)):
            return self.count * self.kernel
        total = 0
        for tap in range(self.kernel):
            ahead = self.pad - tap * self.dilation  # windows at or after this / stride have the tap
            first = max(-(-ahead // self.stride), 0)
            total += max(min((self.size - 1 + ahead) // self.stride + 1, self.count) - first, 0)
        return total


def axes_of(shape: Any, out: Any, kernel: Any, attrs: dict[str, Any]) -> list[Axis]:
    """The axes of a two-dimensional window; one dimension is a height of 1."""
    strides, ceil_mode = attrs["strides"], attrs.get("ceil_mode", False)
    ends = [p + (s - 1) * bool(ceil_mode) for p, s in zip(attrs["pads_end"], strides, strict=True)]
    numbers = zip(
        shape[2:], out[2:], kernel, strides, attrs["pads_begin"], attrs["dilations"], ends,
        strict=True,
    )  # fmt: skip
    axes = [Axis(*row) for row in numbers]
    return axes if len(axes) == 2 else [Axis(1, 1, 1, 1, 0, 1), *axes]


def dynamic_taps(emitter: Emitter, axis: Axis, window: Any) -> tuple[Any, Any]:
    """[first, last) tap of `window` that lies inside."""
    if axis.all_inside:
        return 0, axis.kernel
    b, k, d = emitter.builder, emitter.k, axis.dilation
    start = b.let(window * axis.stride - axis.pad)  # of the window, may be negative
    ahead = greater(d - 1 - start, 0)
    room = greater(b.scalar(axis.size) - start + (d - 1), 0)
    first = lesser(k.floordiv(ahead, d), axis.kernel)
    last = lesser(k.floordiv(room, d), axis.kernel)
    first, last = b.let(first), b.let(last)
    return first, b.let(greater(first, last))


def column(emitter: Emitter, axis: Axis, window: Any, kw: Any) -> tuple[Any, Any]:
    """(the input column of a tap or the nearest one inside, whether the tap is inside)."""
    b = emitter.builder
    at = b.let(window * axis.stride - axis.pad + kw * axis.dilation)
    near = b.let(greater(lesser(at, b.scalar(axis.size) - 1), 0))
    return near, emitter.k.eq(at, near)
