"""Prepared memory: made once, when a model is opened, and read by every run."""

from __future__ import annotations

import struct

import fake_models
import fake_prepared
import numpy as np
import pytest
from fake_package import BRANCH, COPY, INPUT, JUMP, KERNEL, OUTPUT, PREPARE, PREPARED, Image
from test_call import refused

X = np.random.default_rng(3).standard_normal(len(fake_prepared.WEIGHT)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 17, len(X)])
@pytest.mark.parametrize("threads", [1, 3])
def test_runs_read_what_was_prepared(load, count, threads):
    model = load(fake_prepared.twice(count, cost=10**9), threads=threads)
    seen = min(count, fake_prepared.SEEN)
    w = fake_prepared.WEIGHT[:seen]
    for x in (X[:seen], -X[:seen]):
        np.testing.assert_array_equal(model(x), x + (w + (w + w)))


def test_the_probe_hears_of_runs_alone(load):
    model = load(fake_prepared.twice(8))
    assert [event.layer for event in model.trace({"x": X[:8]})] == ["/Add"]


def test_bytes_are_counted(load):
    model = load(fake_prepared.twice(17))
    assert model._library.model_bytes(model._handle) == 128 + 4 * 17


def test_nothing_prepared_is_nothing_held(load):
    model = load(fake_models.mlp())
    assert model._library.model_bytes(model._handle) == 0


def test_a_fault_while_preparing(load):
    error = refused("CUV609", load, fake_prepared.faulty())
    assert "kernel `test_gather`: preparing weights failed (fault 1)" in error.message


def _image(
    *, size: str = "const", place: int = 0, buffers: str = "weight", tasks: str = "const",
    first: bool = True, jump: int = -1,
) -> Image:  # fmt: skip
    """One preparing step, with something wrong."""
    image = Image()
    n = image.symbol("n", 0, 0)
    image.arena_bytes = image.const(0)
    x = image.port(INPUT, "x", "float32", [n])
    y = image.port(OUTPUT, "y", "float32", [n])
    four = image.const(4)
    sizes = {"const": image.const(64), "symbol": n, "negative": image.const(-1),
             "most": image.const(1 << 48)}  # fmt: skip
    made = image.buffer(PREPARED, sizes[size], place)
    weight = image.weight(np.ones(16, np.float32))
    reads = {"weight": weight, "input": x, "arena": image.arena(four),
             "heap": image.heap(0, four, image.const(0))}[buffers]  # fmt: skip
    if not first:
        image.step(COPY, buffers=[x, y])
    many = n if tasks == "symbol" else four
    image.step(PREPARE, "test_nothing", [reads, made], [four], many)
    if jump >= 0:
        image.step(JUMP, jump)
        image.step(BRANCH, jump, scalars=[four])
    image.step(KERNEL, "test_nothing", [x, made, y], [], four)
    return image


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": "symbol"}, "misaligned or of unknown size"),
        ({"size": "negative"}, "misaligned or of unknown size"),
        ({"size": "most"}, "misaligned or of unknown size"),
        ({"place": 32}, "misaligned or of unknown size"),
        ({"place": 1 << 50}, "out of range"),
        ({"buffers": "input"}, "is malformed"),
        ({"buffers": "arena"}, "is malformed"),
        ({"buffers": "heap"}, "is malformed"),
        ({"first": False}, "is malformed"),
        ({"jump": 0}, "is malformed"),
        ({"tasks": "symbol"}, "a size that only a run can tell"),
    ],
    ids=str,
)
def test_refused(load, wrong, message):
    assert message in refused("CUV601", load, _image(**wrong)).message


def test_weights_that_end_too_early(load):
    image = fake_prepared.twice(16)
    kind, _, place = struct.unpack("<IIQ", image.buffers[2])
    image.buffers[2] = struct.pack("<IIQ", kind, image.const(4096), place)
    assert "a size that only a run can tell" in refused("CUV601", load, image).message
