"""Random numbers: known answers of the generator, and statistics of what is made of it."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect.ops.unary import erf
from tests.dialect.ops.one_op import build, run
from tests.dialect.ops.onnx_nodes import Node
from tests.tolerances import mismatch

from .one_node import results

COUNT = 40_000


def draw(folder, kind: str, inputs=(), **attributes) -> np.ndarray:
    """What the package draws; the interpreter draws the same."""
    (ours,), (found,) = results(folder, Node(kind, list(inputs), attributes))
    assert not mismatch(np.asarray(found), np.asarray(ours))
    return np.asarray(found)


def test_known_answer():
    """From Random123's table: a counter and a key of zeros."""
    (found,) = run(build("ai.random_bits", [], {"shape": (4,), "seed": 0}), [])
    assert found.tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def distance(x: np.ndarray, cdf) -> float:
    """Kolmogorov's, times √n: above 1.95 for one sample in a thousand of the distribution."""
    x = np.sort(x.reshape(-1).astype(np.float64))
    place = np.arange(len(x) + 1) / len(x)
    want = cdf(x)
    return np.sqrt(len(x)) * max((place[1:] - want).max(), (want - place[:-1]).max())


@pytest.mark.parametrize("dtype", [1, 10, 11, 16])
def test_uniform(tmp_path, dtype):
    x = draw(tmp_path, "RandomUniform", shape=[COUNT], dtype=dtype, low=-2.0, high=3.0, seed=1.5)
    x = x.astype(np.float64)
    assert x.min() >= -2
    assert x.max() <= 3
    if dtype in (1, 11):
        assert distance(x, lambda v: (v + 2) / 5) < 1.95
        assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("dtype", [1, 11])
def test_normal(tmp_path, dtype):
    x = draw(tmp_path, "RandomNormal", shape=[200, 200], dtype=dtype, mean=1.0, scale=2.0, seed=4.0)
    assert np.isfinite(x).all()
    assert distance(x, lambda v: (1 + erf((v - 1) / np.sqrt(8))) / 2) < 1.95
    assert abs((((x - 1.0) / 2) ** 4).mean() - 3) < 0.15


def test_seeds_and_names(tmp_path):
    draws = [draw(tmp_path, "RandomUniform", shape=[8], seed=s) for s in (1.0, 1.0, 2.0)]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).all()
    like = np.zeros((4, 2), np.float16)
    assert draw(tmp_path, "RandomNormalLike", [like], dtype=1).dtype == np.float32
    assert draw(tmp_path, "RandomUniformLike", [like]).dtype == np.float16
    assert (draw(tmp_path, "RandomUniform", shape=[8]) != draws[0]).all()


def test_bernoulli(tmp_path):
    p = np.repeat(np.array([0, 0.25, 0.9, 1], np.float32), 10_000)
    x = draw(tmp_path, "Bernoulli", [p], dtype=6, seed=3.0).reshape(4, -1)
    assert x.dtype == np.int32
    assert (x[0] == 0).all()
    assert (x[3] == 1).all()
    np.testing.assert_allclose(x[1:3].mean(1), [0.25, 0.9], atol=0.015)


def test_multinomial(tmp_path):
    p = np.array([[0.1, 0.2, 0, 0.7], [0, 0, 1, 0]])
    with np.errstate(divide="ignore"):
        logs = (np.log(p) + 3).astype(np.float32)
    x = draw(tmp_path, "Multinomial", [logs], sample_size=20_000, dtype=7, seed=9.0)
    assert x.dtype == np.int64
    found = np.stack([np.bincount(row, minlength=4) for row in x]) / 20_000
    np.testing.assert_allclose(found, p, atol=0.012)
    assert (found[p == 0] == 0).all()
