"""How many digits Winograd's filtering loses: the bound that docs/numerics.md states, measured."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.passes.choose_convolutions import MOST_ERROR
from cuvilc.dialect.types import TensorType
from cuvilc.dialect.winograd import (
    STRIDES,
    TILES,
    WINDOWS,
    Tile,
    error_bound,
    tile_of,
    weight_points,
    window_of,
)
from cuvilc.targets.schedules import winograd, winograd_weights
from tests.targets.kernel_harness import V4, Kernel, program_of
from tests.targets.samples import needs
from tests.tolerances import RELATIVE

OUTPUTS, SIZE = 32, 14
Case = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def _normal(rng: np.random.Generator, c: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((c, SIZE, SIZE)), rng.standard_normal((OUTPUTS, c, 3, 3))


def _positive(rng: np.random.Generator, c: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.random((c, SIZE, SIZE)), rng.random((OUTPUTS, c, 3, 3))


def _constant(rng: np.random.Generator, c: int) -> tuple[np.ndarray, np.ndarray]:
    """The transforms' differences cancel."""
    return np.full((c, SIZE, SIZE), 1.2345), rng.random((OUTPUTS, c, 3, 3))


def _range(rng: np.random.Generator, c: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight decades of inputs, six of weights."""
    x, w = _normal(rng, c)
    return x * 10.0 ** rng.uniform(-4, 4, x.shape), w * 10.0 ** rng.uniform(-3, 3, w.shape)


def _channels(rng: np.random.Generator, c: int) -> tuple[np.ndarray, np.ndarray]:
    """After a ReLU, with channels of different scales."""
    x, w = _normal(rng, c)
    return np.maximum(x, 0) * 10.0 ** rng.uniform(0, 3, (c, 1, 1)), w


def _alternating(rng: np.random.Generator, c: int) -> tuple[np.ndarray, np.ndarray]:
    """A checkerboard: the differences add up."""
    board = (-1.0) ** np.indices((SIZE, SIZE)).sum(0)
    taps = (-1.0) ** np.indices((3, 3)).sum(0)
    return rng.random((c, 1, 1)) * board, rng.random((OUTPUTS, c, 3, 3)) * taps


def _spikes(rng: np.random.Generator, c: int) -> tuple[np.ndarray, np.ndarray]:
    """A few inputs a million times as large as the others."""
    x, w = _normal(rng, c)
    x[rng.integers(0, c, 5), rng.integers(0, SIZE, 5), rng.integers(0, SIZE, 5)] *= 1e6
    return x, w


CASES: dict[str, Case] = {
    "normal": _normal, "positive": _positive, "constant": _constant, "range": _range,
    "channels": _channels, "alternating": _alternating, "spikes": _spikes,
}  # fmt: skip


def convolution(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
    """By the definition, in float64: [C, n, n] and [O, C, h, w], padding 1 where a side is 3."""
    rows, columns = w.shape[2:]
    padded = np.pad(x.astype(np.float64), ((0, 0), *_pads((rows, columns))))
    y = np.zeros((OUTPUTS, SIZE // stride, SIZE // stride))
    for i in range(rows):
        for j in range(columns):
            seen = padded[:, i : i + SIZE : stride, j : j + SIZE : stride]
            y += np.einsum("cij,oc->oij", seen, w[:, :, i, j].astype(np.float64))
    return y


def _pads(window: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    down, across = (n // 2 for n in window)
    return (down, down), (across, across)


def kernels(channels: int, tile: Tile, stride: int) -> tuple[Kernel, Kernel]:
    """What prepares the weights, and the convolution."""
    window = window_of(tile)
    w = TensorType((OUTPUTS, channels, *window), layout="pack0_32")
    u = TensorType((OUTPUTS, prod(weight_points(tile)), channels), layout="pack0_32")
    x = TensorType((1, channels, SIZE, SIZE), layout="NCHW16c")
    pads = tuple(n // 2 for n in window)

    def prepare(w: Any) -> Any:
        return ir.build(
            "ai.winograd_weights", w, tile=tile, strides=(stride,) * 2, out_layout="pack0_32"
        )

    def multiply(x: Any, u: Any) -> Any:
        return ir.build(
            "ai.conv_winograd", x, u, tile=tile, strides=(stride,) * 2, pads_begin=pads,
            pads_end=pads, out_layout="NCHW16c",
        )  # fmt: skip

    first = Kernel(program_of([w], prepare), V4, winograd_weights.schedule)
    return first, Kernel(program_of([x, u], multiply), V4, winograd.schedule)


@needs(V4)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("size", TILES)
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("channels", [16, 128, 512])
def test_error_is_bounded(channels: int, stride: int, size: int, window: Any) -> None:
    """Relative to the largest result of the layer, and so to the largest input times Σ|w|."""
    tile = tile_of(size, window)
    first, second = kernels(channels, tile, stride)
    worst = {}
    for name, case in CASES.items():
        for seed in range(3):
            x, w = (a.astype(np.float32) for a in case(np.random.default_rng(seed), channels))
            w = np.ascontiguousarray(w[:, :, : window[0], : window[1]])
            wanted = convolution(x, w, stride)
            (u,) = first.run({"x0": w})
            (found,) = second.run({"x0": x[None], "x1": u})
            error = np.abs(found[0] - wanted).max() / np.abs(wanted).max()
            worst[name] = max(worst.get(name, 0.0), float(error))
    bound = error_bound(tile, channels)
    assert max(worst.values()) <= bound, worst
    assert max(worst.values()) >= bound / 20, f"the bound says nothing: {worst}"


def test_what_is_chosen_keeps_to_the_table() -> None:
    limit = RELATIVE["float32"]
    assert limit is not None
    assert limit / 4 > MOST_ERROR > error_bound((4, 4), 512)
