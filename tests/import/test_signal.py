"""DFT and STFT against NumPy's transforms, of lengths that take every way through the code."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from cuvilc.diagnostics import CuvilError
from tests.dialect.ops.onnx_nodes import Node, ints
from tests.tolerances import DOUBLE

from .one_node import agree, drawn, registry, results, saved

RNG = np.random.default_rng(5)
# dense; 64·k; four steps in three; a prime with a matrix; Bluestein; odd; twice a large prime
LENGTHS = (1, 2, 7, 60, 512, 600, 1024, 1155, 4104, 251, 1009, 2018)
signal = partial(drawn, RNG)


def parts(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1).astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
def test_real_signals(tmp_path, length):
    x = signal(2, length, 1)
    for onesided in (0, 1):
        transform = np.fft.rfft if onesided else np.fft.fft
        node = Node("DFT", [x], {"onesided": onesided})
        agree(tmp_path, node, wanted=[parts(transform(x[..., 0].astype(np.float64)))])


@pytest.mark.parametrize("length", LENGTHS)
def test_complex_signals(tmp_path, length):
    x = signal(2, length, 2)
    z = x[..., 0] + 1j * x[..., 1].astype(np.float64)
    for backward, transform in enumerate((np.fft.fft, np.fft.ifft)):
        agree(tmp_path, Node("DFT", [x], {"inverse": backward}), wanted=[parts(transform(z))])


@pytest.mark.parametrize("length", [1, 2, 9, 64, 601, 1024, 2050])
def test_back_to_real_signals(tmp_path, length):
    x = signal(3, length // 2 + 1, 2)
    z = x[..., 0] + 1j * x[..., 1].astype(np.float64)
    wanted = np.fft.irfft(z, length)[..., None].astype(np.float32)
    node = Node("DFT", [x, np.array(length)], {"inverse": 1, "onesided": 1})
    agree(tmp_path, node, constants=(1,), wanted=[wanted])


@pytest.mark.parametrize("axis", [0, 1, 2, -2])
@pytest.mark.parametrize("length", [4, 11])
def test_axes_and_lengths(tmp_path, axis, length):
    x = signal(5, 6, 7, 2)
    z = x[..., 0] + 1j * x[..., 1].astype(np.float64)
    wanted = parts(np.fft.fft(z, length, axis if axis >= 0 else axis + 1))
    node = Node("DFT", [x, np.array(length), np.array(axis)])
    agree(tmp_path, node, constants=(1, 2), wanted=[wanted])
    if axis >= 0:
        old = Node("DFT", [x, np.array(length)], {"axis": axis}, opset=17)
        agree(tmp_path, old, constants=(1,), wanted=[wanted])


def test_double_precision_stays(tmp_path):
    x = RNG.normal(size=(1, 1024, 1))
    wanted = np.fft.rfft(x[..., 0])
    for found in results(tmp_path, Node("DFT", [x], {"onesided": 1})):
        z = found[0][..., 0] + 1j * found[0][..., 1]
        assert np.abs(z - wanted).max() < DOUBLE * np.abs(wanted).max()


# A complex signal, of two numbers a sample, has no half that says it all.
@pytest.mark.parametrize(("count", "onesided"), [(1, 0), (1, 1), (2, 0)])
@pytest.mark.parametrize("window", [False, True])
def test_stft(tmp_path, window, count, onesided):
    x, weights = signal(2, 137, count), signal(40)
    inputs = [x, np.array(13), weights if window else None, np.array(40)]
    frames = np.stack([x[:, b : b + 40] for b in range(0, 137 - 39, 13)], 1).astype(np.float64)
    frames = frames * weights[:, None] if window else frames
    z = frames[..., 0] + (1j * frames[..., 1] if count == 2 else 0)
    wanted = np.fft.fft(z)[..., : 21 if onesided else 40]
    node = Node("STFT", inputs, {"onesided": onesided})
    agree(tmp_path, node, constants=(1, 3), wanted=[parts(wanted)])


def test_length_of_frames_from_the_window(tmp_path):
    inputs = [signal(1, 300, 1), np.array(50), signal(100)]
    agree(tmp_path, Node("STFT", inputs, reference_only=True), constants=(1,))


@pytest.mark.parametrize(("bins", "length", "low", "high"), [(8, 16, 0, 8192), (40, 512, 20, 7600)])
def test_mel_weights(tmp_path, bins, length, low, high):
    numbers = [*ints(bins, length, 16000), *np.array([low, high], np.float32)]
    node = Node("MelWeightMatrix", [np.array(v) for v in numbers])
    agree(tmp_path, node, constants=range(5))


@pytest.mark.parametrize("length", [0, -1, 1 << 40])
def test_lengths_that_are_refused(tmp_path, length):
    path = saved(tmp_path, Node("DFT", [signal(1, 4, 1), np.array(length)]), constants=(1,))
    with pytest.raises(CuvilError, match="length must be 1 to"):
        registry.load(path)
