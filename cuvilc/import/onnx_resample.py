"""Resize as a table of weights an axis: with antialias, or of a region of interest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cuvilc.dialect.op import ShapeError

_MOST_WEIGHTS = 1 << 24


@dataclass(frozen=True)
class Resampling:
    """How one axis is resized; see the ONNX specification of Resize for the words."""

    before: int
    after: int
    scale: float
    coordinate: str
    mode: str
    nearest: str
    cubic_a: float
    exclude_outside: bool
    antialias: bool
    roi: tuple[float, float]

    def places(self) -> np.ndarray:
        """Where the resized axis' elements lie in the one before, float64."""
        i, n = np.arange(self.after, dtype=np.float64), self.before
        width = self.scale * n
        match self.coordinate:
            case "tf_crop_and_resize":
                first, last = map(np.float32, self.roi)  # what ends on ½ depends on it
                span = float(last - first) * (n - 1)
                along = np.full(self.after, span / 2) if width == 1 else i * span / (width - 1)
                return along + float(first * np.float32(n - 1))
            case "align_corners":
                return i * ((n - 1) / (self.after - 1)) if self.after > 1 else np.zeros(1)
            case "asymmetric":
                return i / self.scale
            case "pytorch_half_pixel" if self.after == 1:
                return np.zeros(1)
            case "half_pixel_symmetric":
                return n / 2 * (1 - self.after / width) + (i + 0.5) / self.scale - 0.5
        return (i + 0.5) / self.scale - 0.5

    def outside(self) -> np.ndarray:
        """Which elements are extrapolated."""
        x = self.places()
        crops = self.coordinate == "tf_crop_and_resize"
        return ((x < 0) | (x > self.before - 1)) & crops

    def indices(self) -> np.ndarray:
        """The nearest element of each. ShapeError if they would be too many."""
        if self.after > _MOST_WEIGHTS:
            raise ShapeError(f"{self.after} elements along one axis")
        x = self.places()
        match self.nearest:
            case "floor":
                x = np.floor(x)
            case "ceil":
                x = np.ceil(x)
            case "round_prefer_floor":
                x = np.ceil(x - 0.5)
            case "round_prefer_ceil":
                x = np.floor(x + 0.5)
            case other:
                raise ShapeError(f"nearest_mode {other} is not known")
        return np.clip(x, 0, self.before - 1).astype(np.int64)

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """(weights [after, T], start [after]) of ai.resample. ShapeError if it would be huge.

        The kernel, stretched by 1 / scale where antialias makes an axis smaller, at the distances
        of the elements; it is made to sum to 1. Beyond the edge lies the edge's element.
        """
        stretch = min(self.scale, 1.0) if self.antialias else 1.0
        reach = (1 if self.mode == "linear" else 2) / stretch
        count = 2 * int(np.ceil(reach)) + 1
        if count * self.after > _MOST_WEIGHTS:
            raise ShapeError(f"{self.after} elements of {count} neighbours each")
        x = self.places()
        first = np.floor(x).astype(np.int64) - count // 2
        at = first[:, None] + np.arange(count)
        distance = np.abs(at - x[:, None]) * stretch
        weights = np.clip(1 - distance, 0, 1) if self.mode == "linear" else self._keys(distance)
        if self.exclude_outside:
            weights = np.where((at >= 0) & (at < self.before), weights, 0)
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
        return _gathered(weights, np.clip(at, 0, self.before - 1), self.before)

    def _keys(self, d: np.ndarray) -> np.ndarray:
        """The cubic kernel at distances d.    (Keys 1981, eq. 4)"""
        a = self.cubic_a
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _gathered(weights: np.ndarray, at: np.ndarray, before: int) -> tuple[np.ndarray, np.ndarray]:
    """The same sums with ascending places: weights of one place are added, zeros at ends go."""
    used = weights != 0
    first = np.where(used, at, before).min(1, initial=before)
    last = np.where(used, at, -1).max(1, initial=-1)
    count = max(int((last - first).max(initial=0)) + 1, 1)
    start = np.clip(first, 0, before - count)
    found = np.zeros((len(at), count))
    rows, taps = np.nonzero(used)
    np.add.at(found, (rows, at[rows, taps] - start[rows]), weights[rows, taps])
    return found, start


def largest_reduction_first(axes: Sequence[tuple[int, Resampling]]) -> list[tuple[int, Resampling]]:
    """So that the passes along other axes have less to do."""
    return sorted(axes, key=lambda pair: pair[1].after / pair[1].before)
