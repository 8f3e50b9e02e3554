"""Memory of outputs is used again, and never while anything looks at it."""

from __future__ import annotations

import gc
import weakref

import cuvil
import fake_models
import numpy as np
import pytest
from cuvil._blocks import Blocks
from threads import THREADS, on_threads

F32 = np.dtype(np.float32)
LARGE = (512, 300)  # 600 KB


def test_memory_comes_back_when_the_last_view_is_gone() -> None:
    blocks = Blocks()
    array = blocks.empty(LARGE, F32)
    place = array.ctypes.data
    view = array[3:, :5].T.reshape(-1)[::2]
    held = array[1:, 1:]
    del array, view
    other = blocks.empty(LARGE, F32)
    assert other.ctypes.data != place  # `held` still looks at it
    del held
    assert blocks.empty(LARGE, F32).ctypes.data == place


def test_an_array_is_like_any_other() -> None:
    array = Blocks().empty(LARGE, F32)
    flags = array.flags
    assert flags.c_contiguous and flags.aligned and flags.writeable and array.ctypes.data % 64 == 0
    assert array.shape == LARGE and array.dtype == F32
    array[...] = 3
    assert np.from_dlpack(array).sum() == 3 * array.size
    assert array.copy().flags.owndata


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float64", "complex64"])
def test_dtypes(dtype: str) -> None:
    array = Blocks().empty((300_000,), np.dtype(dtype))
    array[...] = 1
    assert array.dtype == dtype and array.all()


def test_narrow_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = Blocks().empty((300_000,), np.dtype(ml_dtypes.bfloat16))
    array[...] = 1.5
    assert array.astype(np.float32).sum() == 450_000


def test_another_shape_takes_memory_that_fits() -> None:
    blocks = Blocks()
    place = blocks.empty(LARGE, F32).ctypes.data
    smaller = blocks.empty((400, 300), F32)
    assert smaller.ctypes.data == place
    del smaller
    assert blocks.empty((200, 300), F32).nbytes == 240_000  # under half: a new block
    assert not blocks._idle or blocks._idle[0].memory.nbytes < 300_000


def test_little_is_kept() -> None:
    blocks = Blocks()
    arrays = [blocks.empty(LARGE, F32) for _ in range(5)]
    del arrays
    gc.collect()
    assert len(blocks._idle) == 2
    last = blocks.empty(LARGE, F32)
    blocks.clear()
    del last
    assert len(blocks._idle) == 0


@pytest.mark.parametrize("closed", [True, False])
def test_a_result_that_stays_keeps_no_idle_memory(closed: bool) -> None:
    """Neither after a model's close, nor when the model is gone."""
    blocks = Blocks()
    kept, other = blocks.empty(LARGE, F32), blocks.empty(LARGE, F32)
    kept[:] = 1
    del other
    idle = weakref.ref(blocks._idle[0].memory)
    if closed:
        blocks.clear()
    else:
        del blocks
    gc.collect()
    assert idle() is None
    assert (kept == 1).all()


@pytest.fixture
def small(monkeypatch):
    """The little outputs of a test count as large."""
    monkeypatch.setattr("cuvil._blocks._LEAST", 1)


@pytest.mark.usefixtures("small")
def test_outputs_of_a_model(load) -> None:
    """A result stays as it was while later runs write theirs, and its memory is used after it."""
    model = load(fake_models.mlp())
    x = np.ones((64, fake_models.K), np.float32)
    first, name = model.run({"x": x}), "y"
    kept, copy = first[name][5:], first[name][5:].copy()
    del first
    for scale in (2, 3, 4):
        model.run({"x": x * scale})
    assert np.array_equal(kept, copy)
    place = model.run({"x": x})[name].ctypes.data
    assert model.run({"x": x})[name].ctypes.data == place


@pytest.mark.usefixtures("small")
def test_outputs_live_longer_than_their_model(load) -> None:
    model = load(fake_models.mlp())
    x = np.ones((64, fake_models.K), np.float32)
    y = model(x)[0]
    copy = y.copy()
    model.close()
    del model
    gc.collect()
    assert np.array_equal(y, copy)


@pytest.mark.usefixtures("small")
def test_threads_never_share(load) -> None:
    model: cuvil.Model = load(fake_models.mlp(), threads=1)
    inputs = [np.full((64, fake_models.K), i, np.float32) for i in range(THREADS)]
    wanted = [model(x)[0].copy() for x in inputs]

    def work(i: int) -> None:
        for _ in range(30):
            assert np.array_equal(model(inputs[i])[0], wanted[i])

    on_threads(work)
