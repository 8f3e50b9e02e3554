"""Requests of many threads share runs; each gets what it would get alone, or its own error."""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import pairwise

import cuvil
import fake_models
import numpy as np
import pytest
from fake_package import INPUT, KERNEL, OUTPUT, Image
from threads import THREADS, on_threads

BATCH = np.random.default_rng(0).standard_normal((40, fake_models.K)).astype(np.float32)


def rows() -> Image:
    """y = x @ WEIGHT: axis 0 is the batch of both."""
    image = Image()
    batch = image.symbol("batch", 0, 0, 1, 64)
    k, n = image.const(fake_models.K), image.const(fake_models.N)
    image.arena_bytes = image.const(0)
    x = image.port(INPUT, "x", "float32", [batch, k])
    y = image.port(OUTPUT, "y", "float32", [batch, n])
    weight = image.weight(fake_models.WEIGHT)
    image.step(KERNEL, "test_matmul", [x, weight, y], [k, n], batch, image.const(fake_models.N * 4))
    return image


@pytest.fixture
def model(load):
    return load(rows(), threads=1)


def test_requests_share_runs_and_get_their_own_rows(model) -> None:
    sizes = [1, 3, 2, 5, 1, 8]
    starts = np.cumsum([0, *sizes])
    with cuvil.Batcher(model, most_rows=32, wait_s=5) as batcher:
        parts = [BATCH[a:b] for a, b in pairwise(starts)]
        futures = [batcher.submit({"x": part}) for part in parts]
        last = batcher.submit({"x": BATCH[:12]})  # 20 + 12 rows: as many as a batch may have
        for part, future in zip([*parts, BATCH[:12]], [*futures, last], strict=True):
            assert np.array_equal(future.result()["y"], model(part))
        assert (batcher.runs, batcher.rows) == (1, 32)


def test_many_threads(model) -> None:
    with cuvil.Batcher(model, wait_s=0.001) as batcher:

        def ask(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(20):
                part = rng.standard_normal((rng.integers(1, 4), fake_models.K)).astype(np.float32)
                found = batcher({"x": part})["y"]
                np.testing.assert_allclose(found, part @ fake_models.WEIGHT, atol=1e-5)

        on_threads(ask)
        assert batcher.runs < 20 * THREADS, "some requests shared a run"


def test_a_request_at_fault_fails_alone(load) -> None:
    model = load(fake_models.gather(), threads=1)
    with cuvil.Batcher(model, most_rows=6, wait_s=5) as batcher:
        good, bad, other = (
            batcher.submit({"index": np.array(i, np.int64)}) for i in ([1, 2], [3, 99], [4, 5])
        )
        assert good.result()["y"].tolist() == [10, 20] and other.result()["y"].tolist() == [40, 50]
        with pytest.raises(cuvil.CuvilError, match="CUV609"):
            bad.result()


def test_what_may_share_a_run(model) -> None:
    one = cuvil.Request({"x": BATCH[:2]}, 2)
    assert cuvil.batch_axis(model) == "batch"
    assert cuvil.can_batch(model, one, cuvil.Request({"x": BATCH[:3]}, 3)) == ""
    longer = cuvil.Request({"x": np.zeros((2, 9), np.float32)}, 2)
    assert "length (5,) is not (9,)" in cuvil.can_batch(model, one, longer)
    half = cuvil.Request({"x": BATCH[:2].astype(np.float16)}, 2)
    assert "dtype float32 is not float16" in cuvil.can_batch(model, one, half)
    many = cuvil.Request({"x": np.zeros((63, 5), np.float32)}, 63)
    assert "more than the 64" in cuvil.can_batch(model, one, many)
    assert "one run has one adapter" in cuvil.can_batch(model, one, replace(one, adapter="sql"))


def test_what_cannot_be_batched(load, model) -> None:
    with pytest.raises(cuvil.CuvilError, match=r"CUV610.*axis 0 of every input and output"):
        cuvil.Batcher(load(fake_models.mlp(), threads=1))  # its `shape` has no batch axis
    for options in ({"most_rows": 0}, {"wait_s": -1}, {"wait_s": float("nan")}):
        with pytest.raises(cuvil.CuvilError, match="CUV610"):
            cuvil.Batcher(model, **options)
    batcher = cuvil.Batcher(model)
    for feeds, code in (({}, "CUV604"), ({"x": BATCH, "z": BATCH}, "CUV604"),
                        ({"x": BATCH.astype(np.float64)}, "CUV605"),
                        ({"x": np.float32(1)}, "CUV606")):  # fmt: skip
        with pytest.raises(cuvil.CuvilError, match=code):
            batcher.submit(feeds)
    with pytest.raises(cuvil.CuvilError, match="CUV612.*takes no adapters"):
        batcher.submit({"x": BATCH}, adapter="sql")
    with pytest.raises(cuvil.CuvilError, match=r'CUV604.*\{"x": array\}, not as ndarray'):
        batcher.submit(BATCH)
    with pytest.raises(cuvil.CuvilError, match="CUV610.*a name for each row"):
        model.run({"x": BATCH}, adapters="sql")
    with pytest.raises(cuvil.CuvilError, match="CUV612"):
        model(BATCH, adapters=["sql"] * len(BATCH))
    batcher.close()
    with pytest.raises(cuvil.CuvilError, match="CUV610.*closed"):
        batcher.submit({"x": BATCH})


def test_a_cancelled_request_is_left_out_and_close_runs_what_waits(model) -> None:
    batcher = cuvil.Batcher(model, wait_s=60)
    kept, gone = batcher.submit({"x": BATCH[:1]}), batcher.submit({"x": BATCH[1:2]})
    assert gone.cancel()
    batcher.close()
    assert np.array_equal(kept.result()["y"], model(BATCH[:1]))
    with pytest.raises(CancelledError):
        gone.result()
