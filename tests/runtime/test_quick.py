"""Runs through the library's own built-in function: what they take, leave, hold and let go."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import OrderedDict
from ctypes import addressof, sizeof

import cuvil
import fake_models
import numpy as np
import pytest
from cuvil import _quick
from threads import on_threads

K, N = fake_models.K, fake_models.N


def rows(count: int) -> np.ndarray:
    return np.linspace(-1, 1, count * K, dtype=np.float32).reshape(count, K)


@pytest.fixture
def model(load):
    return load(fake_models.mlp())


def quick(model, feeds, out=None):
    """What the built-in function alone answers."""
    context = model._take()
    try:
        return context._quick(feeds, out)
    finally:
        model._release(context)


def test_plain_arrays_are_taken(model):
    for count in (3, 64, 3, 1):  # also after another shape
        found = quick(model, {"x": rows(count)})
        assert list(found) == ["y", "shape"]
        assert found["shape"].tolist() == [count, N]
    y = np.empty((3, N), np.float32)
    frozen = rows(3)
    frozen.flags.writeable = False
    found = quick(model, {"x": frozen}, {"y": y})
    assert found["y"] is y


class Strange(dict):
    def __getitem__(self, name):
        return rows(2)


class Subclass(np.ndarray):
    pass


UNTAKEN = {
    "no dict": [("x", rows(2))],
    "a dict of another class": Strange(x=rows(1)),
    "an ordered dict": OrderedDict(x=rows(1)),
    "nothing": None,
    "no input": {},
    "another name": {"z": rows(1)},
    "one name more": {"x": rows(1), "z": rows(1)},
    "a list": {"x": [[0.0] * K]},
    "None": {"x": None},
    "bytes": {"x": bytes(4 * K)},
    "an array of a subclass": {"x": rows(1).view(Subclass)},
    "a strided array": {"x": np.zeros((2, 2 * K), np.float32)[:, ::2]},
    "an array of Fortran's order": {"x": np.asfortranarray(rows(2))},
    "a misaligned array": {"x": np.ndarray((2, K), np.float32, bytearray(8 * K + 1), offset=1)},
    "another dtype": {"x": np.zeros((2, K))},
    "integers of as many bytes": {"x": np.zeros((2, K), np.int32)},
    "the other byte order": {"x": np.zeros((2, K), ">f4")},
    "a structured array": {"x": np.zeros((2, K), [("a", "f4")])},
    "objects": {"x": np.full((2, K), None)},
    "dates": {"x": np.zeros((2, K), "M8[s]")},
    "another size": {"x": np.zeros((2, K + 1), np.float32)},
    "another rank": {"x": np.zeros(K, np.float32)},
    "a rank beyond all": {"x": np.zeros((1,) * 20, np.float32)},
    "too large a batch": {"x": np.zeros((65, K), np.float32)},
}


@pytest.mark.parametrize("what", UNTAKEN)
def test_what_is_out_of_the_ordinary_is_left_to_the_loader(model, what):
    feeds = UNTAKEN[what]
    assert quick(model, feeds) is None
    assert sys.exc_info() == (None, None, None)
    assert model(rows(2)).shape.tolist() == [2, N]  # nothing of it is left in the context


UNTAKEN_OUT = {
    "no dict": [1],
    "another name": {"z": np.empty((2, N), np.float32)},
    "one name more": {"y": np.empty((2, N), np.float32), "z": np.empty(1)},
    "a list": {"y": [1.0]},
    "another shape": {"y": np.empty((3, N), np.float32)},
    "another dtype": {"y": np.empty((2, N))},
    "a strided array": {"y": np.empty((2, 2 * N), np.float32)[:, ::2]},
    "a read-only array": {"y": np.frombuffer(bytes(8 * N), np.float32).reshape(2, N)},
}


@pytest.mark.parametrize("what", UNTAKEN_OUT)
def test_outputs_out_of_the_ordinary_are_left_to_the_loader(model, what):
    found = quick(model, {"x": rows(2)}, UNTAKEN_OUT[what])
    assert found is None or what == "another shape"  # which the run refuses
    with pytest.raises(cuvil.CuvilError):
        model.run({"x": rows(2)}, UNTAKEN_OUT[what])
    assert model(rows(2)).shape.tolist() == [2, N]


def test_a_run_that_fails_tells_its_status(load):
    model = load(fake_models.gather())
    assert quick(model, {model.inputs[0].name: np.full(4, 99)}) == 609
    with pytest.raises(cuvil.CuvilError, match="index in the data lies outside") as caught:
        model(np.full(4, 99))
    assert caught.value.code == "CUV609"


@pytest.mark.parametrize("raised", [MemoryError, KeyboardInterrupt])
def test_what_the_making_of_an_output_raises_goes_to_the_caller(model, monkeypatch, raised):
    """Also an interrupt, which comes once: the loader's own run would not meet it again."""
    made = []

    def fail_once(self, dims, dtype):
        made.append(dims)
        if len(made) == 2:
            raise raised
        return np.empty(dims, dtype)

    monkeypatch.setattr("cuvil._blocks.Blocks.empty", fail_once)
    with pytest.raises((cuvil.CuvilError, KeyboardInterrupt)) as caught:
        model(rows(2))
    assert getattr(caught.value, "code", None) == ("CUV608" if raised is MemoryError else None)
    assert made == [(2, N), (2,)]
    assert model(rows(2)).shape.tolist() == [2, N]


class Key:
    """Looks like an output's name until it is compared."""

    def __hash__(self) -> int:
        return hash("y")

    def __eq__(self, other: object) -> bool:
        raise OSError("not today")


def test_a_key_that_fails_is_left_to_the_loader(model, monkeypatch):
    made = []
    monkeypatch.setattr("cuvil._blocks.Blocks.empty", lambda self, *a: made.append(a))
    feeds, out = {"x": rows(2)}, {Key(): np.empty((2, N), np.float32)}
    assert quick(model, feeds, out) is None
    assert quick(model, {Key(): rows(2)}) is None
    assert sys.exc_info() == (None, None, None)
    assert made == [], "no Python code runs with an exception that is not dealt with"
    with pytest.raises(OSError, match="not today"):
        model.run(feeds, out)


def test_a_wrong_number_of_arguments_is_left_to_the_loader(model):
    function, feeds = model._free[0]._quick, {"x": rows(2)}
    assert next(iter(function, feeds), "none") is None  # called without arguments at all
    assert function(feeds) is function(feeds, None, None) is None


def references(*values: object) -> list[int]:
    return [sys.getrefcount(value) for value in values]


@pytest.mark.parametrize("what", ["", *UNTAKEN])
def test_no_reference_is_lost_or_kept(model, what):
    """Whatever the way out, each object has as many references afterwards as before."""
    feeds = UNTAKEN[what] if what else {"x": rows(2)}
    value = feeds.get("x") if isinstance(feeds, dict) else feeds
    y = np.empty((2, N), np.float32)
    outs = (None, {"y": y}, {"y": y, "z": y}, [y])
    held = (feeds, value, y, None, dict, np.ndarray, *outs, model.inputs[0].name)
    for out in outs:
        quick(model, feeds, out)
    before = references(*held)
    for _ in range(500):
        for out in outs:
            quick(model, feeds, out)
    drift = [b - a for a, b in zip(before, references(*held), strict=True)]
    assert all(abs(d) < 100 for d in drift), drift  # None and dict are everybody's


def test_results_are_the_callers_alone(model):
    found = quick(model, {"x": rows(2)})
    assert references(found["y"])[0] == references(np.empty(1))[0] + 1  # that of `found`
    blocks = len(gc.get_objects())
    for _ in range(1000):
        quick(model, {"x": rows(2)})
    assert len(gc.get_objects()) - blocks < 100


def test_inputs_are_held_during_the_run_alone(model):
    memory = bytearray(rows(2).tobytes())
    assert quick(model, {"x": np.frombuffer(memory, np.float32).reshape(2, K)})
    memory.append(0)  # BufferError while anybody looks at it


def test_many_threads(load):
    model = load(fake_models.mlp())

    def work(seed: int) -> None:
        x, y = rows(1 + seed), np.empty((1 + seed, N), np.float32)
        expected = model(x).y
        for _ in range(300):
            assert np.array_equal(model.run({"x": x})["y"], expected)
            assert model.run({"x": x}, {"y": y})["y"] is y
            assert np.array_equal(y, expected)

    on_threads(work)


def test_the_function_may_outlive_model_and_library(make):
    model = cuvil.load(make(fake_models.mlp()))
    model(rows(1))
    function = model._free[0]._quick
    model.close()
    del model
    gc.collect()
    assert sys.getrefcount(function) == 2
    del function  # what describes it lies in memory of its own, not in the library
    gc.collect()


def test_other_pythons_and_loaders(load, monkeypatch):
    """Without CPython's functions, and with a library that wants others, ctypes does everything."""
    monkeypatch.setattr(_quick, "_TABLE", None)
    model = load(fake_models.mlp())
    assert model._free[0]._quick is _quick.never
    monkeypatch.setattr(_quick, "_TABLE", (ctypes.c_void_p * 3)())
    assert load(fake_models.mlp())._free[0]._quick is _quick.never
    assert model(rows(2)).shape.tolist() == [2, N]


def test_a_python_without_its_lock_calls_through_ctypes(monkeypatch):
    monkeypatch.setattr(_quick.sys, "_is_gil_enabled", lambda: False, raising=False)
    assert _quick._functions() is None


def test_the_table_is_bound_once(model):
    table = (ctypes.c_void_p * len(_quick._FUNCTIONS))()
    assert model._library.python_bind(addressof(table), sizeof(table)) == 0
    assert quick(model, {"x": rows(1)})["shape"].tolist() == [1, N]


def test_a_view_has_the_size_of_a_py_buffer():
    class Buffer(ctypes.Structure):
        _fields_ = (
            ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
            ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
            ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
            ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
        )  # fmt: skip

    assert sizeof(Buffer) == _quick._VIEW_BYTES
