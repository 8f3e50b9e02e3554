"""Weights with adapters in numbers: W + scale · B·A in float64, rounded once, a part at a time.

A weight is looked at as [P, N, Q]: N outputs, P and Q what lies before and behind that axis in
memory. So every block that is worked on is contiguous, and none is larger than a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cuvilc.adapter import Rows

Array = NDArray[Any]

TURNED = (
    "its weight, saved whole, is the base's transposed: that of a Conv1D where the configuration "
    "does not say `fan_in_fan_out`, or the other way round"
)
_BLOCK_ELEMENTS = 1 << 16  # 512 KiB of float64
# A product of fewer multiplications is no work to share: BLAS then wakes no threads, which on a
# busy machine takes longer than the product.
_ALONE = 1 << 18
_LOW_RANK = 64


def is_turned(saved: Array, base: Array) -> bool:
    """Whether a square weight that an adapter brings whole is the transpose of what the base has.

    A module saved whole was trained on from the base's weights, so it is like them: turned the
    wrong way, its correlation with them is far less than the other way round. (A Linear's and a
    Conv1D's square weights look the same, and files do not say which they are of.) False where
    neither way is like the base.
    """
    if saved.ndim != 2 or saved.shape != base.shape or saved.shape[0] != saved.shape[1] > 1:
        return False
    a, b = saved.astype(np.float64), base.astype(np.float64)
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    straight, turned = float(np.vdot(a, b)), float(np.vdot(a.T, b))
    return scale > 0 and turned > max(0.5 * scale, straight + 0.25 * scale)


def outputs_first(weight: Array, kind: str, outputs: int, fan_in_fan_out: bool) -> Array:
    """A weight that an adapter brings whole, as its module has it, with its outputs along axis 0.

    kind: that of the module: an embedding's table is [V, D]; a linear layer's [N, K], or [K, N] of
    GPT-2's Conv1D; all others have their outputs first. outputs: N, which tells those two apart;
    of a square weight `fan_in_fan_out` does.
    """
    turned = kind == "embedding"
    if kind == "linear" and weight.ndim == 2:
        square = weight.shape[0] == weight.shape[1]
        turned = fan_in_fan_out if square else weight.shape[0] != outputs
    return np.moveaxis(weight, -1, 0) if turned else weight


def is_same_table(mine: Array | None, theirs: Array | None) -> bool:
    """Whether two known matrices are equal, or would be if one were turned."""
    if mine is None or theirs is None or mine.ndim != theirs.ndim:
        return False
    return any(t.shape == mine.shape and bool((t == mine).all()) for t in (theirs, theirs.T))


def set_rows(weight: Array, kind: str, out_axis: int, rows: Rows) -> None:
    """Put rows of a table [V, D], or of a head's V outputs, into a weight as the program has it."""
    table = np.moveaxis(weight, 1 - out_axis if kind == "embedding" else out_axis, 0)
    table[list(rows.indices)] = rows.values


@dataclass(frozen=True)
class Part:
    """What one adapter changes of a weight: operands and attributes of an `ai.lora`."""

    a: Array  # [r, P·Q]
    b: Array  # [n, r]
    magnitude: Array | None  # [n]
    scale: float
    start: int
    adapter: str = ""
    module: str = ""

    @property
    def stop(self) -> int:
        return self.start + len(self.b)

    @property
    def rank(self) -> int:
        return len(self.a)

    def overlaps(self, other: Part) -> bool:
        return self.start < other.stop and other.start < self.stop


@dataclass(frozen=True)
class Loss:
    """What storing a merged weight lost against its float64 value, over the changed outputs.

    largest: max |W'|. delta_rms: of W' - W. base_rms: of the base weight's own quantisation, were
    its errors spread evenly over a step (step / √12); 0 for a float weight.
    """

    max_abs: float
    rms: float
    largest: float
    delta_rms: float
    base_rms: float = 0.0

    def to_json(self) -> dict[str, float]:
        """Rounded to four digits: not a last bit of a sum may differ between two machines."""
        figures = {
            "max_abs_error": self.max_abs,
            "max_error": self.max_abs / self.largest if self.largest else 0.0,
            "rms_error": self.rms,
            "delta_rms": self.delta_rms,
        }
        if self.base_rms:
            figures["base_rms_error"] = self.base_rms
        return {name: float(f"{value:.4g}") for name, value in figures.items()}


class Sums:
    """A Loss in the making."""

    def __init__(self) -> None:
        self.max_abs = self.largest = 0.0
        self.squares = self.delta = 0.0
        self.count = 0

    def add(self, wanted: Array, stored: Array, base: Array) -> None:
        """One more block: its float64 value, what is stored of it, and the base's, all float64."""
        error = wanted - stored
        self.squares += _squared(error)
        self.max_abs = _most(self.max_abs, np.abs(error).max(initial=0.0))
        self.largest = _most(self.largest, np.abs(wanted).max(initial=0.0))
        self.delta += _squared(wanted - base)
        self.count += wanted.size

    def loss(self, base_rms: float = 0.0) -> Loss:
        n = max(self.count, 1)
        return Loss(
            self.max_abs, sqrt(self.squares / n), self.largest, sqrt(self.delta / n), base_rms
        )


def _squared(x: Array) -> float:
    """Σ x², without BLAS, which would wake threads for it."""
    flat = x.reshape(-1)
    return float(np.einsum("i,i->", flat, flat))


def _most(a: float, b: float) -> float:
    """The greater; NaN if one is NaN."""
    return float(np.maximum(a, b))


class Target:
    """The float64 value of a weight with its parts, block by block."""

    def __init__(self, shape: Sequence[int], out_axis: int, parts: Sequence[Part]) -> None:
        self.view = prod(shape[:out_axis]), shape[out_axis], prod(shape[out_axis + 1 :])
        self.parts = parts
        self.factors = [
            (_double(p.a).reshape(p.rank, self.view[0], self.view[2]), _double(p.b)) for p in parts
        ]
        self.norms: dict[int, Array] = {}
        rank = max((p.rank for p in parts), default=1)
        self.elements = _ALONE // max(rank, 8) if rank <= _LOW_RANK else _BLOCK_ELEMENTS

    def blocks(self, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """(P, N) slices that cover outputs start..stop, each small."""
        p, _, q = self.view
        if q == 1:
            step = max(1, self.elements // max(1, stop - start))
            for i in range(0, p, step):
                yield slice(i, min(i + step, p)), slice(start, stop)
            return
        step = max(1, self.elements // q)
        for i in range(p):
            for j in range(start, stop, step):
                yield slice(i, i + 1), slice(j, min(j + step, stop))

    def measure(self, weight: Array) -> None:
        """Find ‖V‖ of the parts that have a magnitude; `weight` as [P, N, Q]."""
        for number, part in enumerate(self.parts):
            if part.magnitude is None:
                continue
            squares = np.zeros(len(part.b))
            for p, n in self.blocks(part.start, part.stop):
                v = _double(weight[p, n])
                self._add(v, number, p, n)
                squares[n.start - part.start : n.stop - part.start] += (v * v).sum((0, 2))
            self.norms[number] = np.sqrt(squares)

    def apply(self, block: Array, p: slice, n: slice) -> None:
        """Turn a block [P', N', Q] of the weight, float64, into that of the merged one."""
        for number, part in enumerate(self.parts):
            first, last = max(n.start, part.start), min(n.stop, part.stop)
            if first >= last:
                continue
            mine = block[:, first - n.start : last - n.start]
            self._add(mine, number, p, slice(first, last))
            if part.magnitude is not None:
                rows = slice(first - part.start, last - part.start)
                factor = _double(part.magnitude[rows]) / self.norms[number][rows]
                mine *= factor[:, None]

    def _add(self, block: Array, number: int, p: slice, n: slice) -> None:
        """block += scale · B·A, for outputs n of the part that are all its own."""
        part = self.parts[number]
        a, b = self.factors[number]
        rows = b[n.start - part.start : n.stop - part.start]
        if self.view[2] == 1:
            delta = (a[:, p, 0].T @ rows.T)[:, :, None]
        else:
            delta = (rows @ a[:, p.start])[None]
        delta *= part.scale  # the product, not a factor: graph_semantics "additive" holds
        block += delta


def _double(array: Array) -> Array:
    return array.astype(np.float64)


def changed_range(parts: Sequence[Part]) -> tuple[int, int]:
    """The outputs, first to last, that some part changes."""
    return min(p.start for p in parts), max(p.stop for p in parts)


def merge(weight: Array, out_axis: int, parts: Sequence[Part]) -> tuple[Array, Loss]:
    """The weight with all parts added, in its dtype: computed in float64, rounded once."""
    target = Target(weight.shape, out_axis, parts)
    before = weight.reshape(target.view)
    target.measure(before)
    made = np.array(weight, order="C")
    after, sums = made.reshape(target.view), Sums()
    for p, n in target.blocks(*changed_range(parts)):
        base = _double(before[p, n])
        value = base.copy()
        target.apply(value, p, n)
        rounded = round_once(value, weight.dtype)
        after[p, n] = rounded
        sums.add(value, _double(rounded), base)
    return made, sums.loss()


def round_once(x: Array, dtype: np.dtype[Any]) -> Array:
    """A float64 array in a float dtype, to nearest even, in one rounding.

    ml_dtypes goes from float64 to bfloat16 through float32, which rounds twice. Rounded to odd on
    the way (Boldo & Melquiond 2008), the second rounding sees on which side of a tie it was.
    """
    with np.errstate(over="ignore"):
        if dtype != ml_dtypes.bfloat16:
            return x.astype(dtype)
        single = x.astype(np.float32)
        bits = single.view(np.int32)
        inexact = np.isfinite(single) & (single != x)
        # Towards zero first: one step back where the magnitude was rounded up.
        bits -= (inexact & (np.abs(single) > np.abs(x))).astype(np.int32)
        bits |= inexact.astype(np.int32)
        return single.astype(dtype)
