"""Sizes that only a run can tell: results, growth, refusals, threads."""

from __future__ import annotations

import cuvil
import fake_computed
import fake_models
import numpy as np
import pytest
from fake_package import BIND, COPY, INPUT, OUTPUT, Image
from test_call import refused
from threads import on_threads

RNG = np.random.default_rng(11)


def sparse(size: int) -> np.ndarray:
    return (RNG.random(size) > 0.5).astype(np.float32)


def check_nonzero(model: cuvil.Model, x: np.ndarray) -> None:
    for ours, theirs in zip(model(x), fake_computed.nonzero_reference(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_count_is_right(load, threads):
    model = load(fake_computed.nonzero(), threads=threads)
    for size in (5, 0, 100_000, 3, 100_000, 200_000, 1):
        check_nonzero(model, sparse(size))
    check_nonzero(model, np.zeros(100, np.float32))


def test_ports_name_the_computed_size(load):
    model = load(fake_computed.nonzero(lo=-5))
    assert [port.dims for port in model.outputs] == [("count",), ("count", 2)]
    assert [port.ranges for port in model.outputs] == [((0, None),), ((0, None), (2, 2))]


def test_results_are_independent_of_later_calls(load):
    model = load(fake_computed.nonzero())
    x = np.array([0, 1, 1, 0], np.float32)
    first = model(x).places
    model(1 - x)
    assert first.tolist() == [1, 2]
    assert np.from_dlpack(first).tolist() == [1, 2]


def test_the_caller_may_guess_the_size(load):
    model, x = load(fake_computed.nonzero(hi=9)), np.array([0, 1, 1, 0], np.float32)
    places = np.empty(2, np.int64)
    assert model.run({"x": x}, out={"places": places})["places"] is places
    assert places.tolist() == [1, 2]
    wrong = {"places": np.empty(3, np.int64)}
    message = refused("CUV606", model.run, {"x": x}, wrong).message
    assert message == "output `places`: axis 0 of the given memory is 3, the result has 2"
    wrong = {"places": np.empty(10, np.int64)}
    assert "allowed is 0..9 (symbol count)" in refused("CUV606", model.run, {"x": x}, wrong).message
    check_nonzero(model, x)


def test_a_size_out_of_range(load):
    model = load(fake_computed.nonzero(lo=1, hi=3))
    for count in (1, 3):
        check_nonzero(model, np.ones(count, np.float32))
    error = refused("CUV606", model, np.ones(4, np.float32))
    assert error.message == "layer `/NonZero/size`: the computed size `count` is 4, must be 1..3", (
        "and no input symbol is blamed"
    )
    refused("CUV606", model, np.zeros(4, np.float32))
    check_nonzero(model, np.ones(2, np.float32))


@pytest.mark.parametrize("count", [0, 1, 10, 5000])
@pytest.mark.parametrize("start", [0, 3])
def test_a_value_that_grows_in_a_loop(load, count, start):
    model, x = load(fake_computed.grow()), np.arange(start, dtype=np.float32) + 50
    for trips in (count, 2, count):
        expected = fake_computed.grow_reference(trips, x)
        for ours, theirs in zip(model(np.array(trips), x), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "n", "code", "message"),
    [
        ({"size": "same"}, [-5], "CUV606", "the computed size `count` is -5, must be 0 or more"),
        (
            {"size": "less"},
            [2],
            "CUV606",
            "no result for k = 1: a size inside it would be negative",
        ),
        ({"size": "same", "lo": -9}, [-5], "CUV606", "output `y` would have a negative dimension"),
        ({"size": "same", "element": 2}, [1, 2], "CUV601", "step 0 (kind 6) reaches outside"),
        ({"size": "same", "place": 4090}, [7], "CUV601", "step 2 (kind 1) reaches outside"),
        ({"size": "same"}, [2**61], "CUV608", f"layer `/Size` needs {2**61} bytes"),
        ({"size": "same"}, [2**63 - 1], "CUV606", "output `y` would have"),
    ],
)
def test_refusals_while_it_runs(load, options, n, code, message):
    model = load(fake_computed.sized(**options), threads=1)
    assert message in refused(code, model, np.array(n)).message
    fits = np.array([6] * 3)  # at place 4090 of a page, six bytes are left
    assert model(fits).shape == (6,), "a refusal leaves the context usable"


def test_an_element_before_the_buffer(load):
    model = load(fake_computed.sized("same", element=-1))
    assert "step 0 (kind 6) reaches outside" in refused("CUV601", model, np.ones(2, int)).message


def test_demands_on_computed_sizes(load):
    model = load(fake_computed.demanding())
    for count in (0, 2, 8):
        assert model(np.array([count])).tolist() == [0] * count
    for count in (3, 2**61 + 1):  # before memory is reserved
        assert "the count must be even" in refused("CUV606", model, np.array([count])).message
    message = refused("CUV606", model, np.array([10])).message
    assert message == "layer `/If/else`: the half must be below 5, for any input"


def test_an_output_whose_size_is_never_computed(load):
    image = Image()
    count = image.computed("count")
    image.arena_bytes = image.const(0)
    image.port(OUTPUT, "y", "int8", [count])
    assert "shape of output `y`" in refused("CUV601", load(image)).message


def test_no_growth_after_the_largest(load):
    model = load(fake_computed.grow(), threads=1)
    (context,) = model._all
    sizes = []
    for count in (10, 10_000, 10, 9_999, 10_000, 0):
        model(np.array(count), np.zeros(3, np.float32))
        sizes.append(model._library.context_bytes(context.handle))
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3] == sizes[4] == sizes[5]


def test_many_threads_call_one_model(load):
    model, wrong = load(fake_computed.nonzero(), threads=2), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            x = rng.integers(0, 2, rng.integers(0, 3000)).astype(np.float32)
            result = zip(model(x), fake_computed.nonzero_reference(x), strict=True)
            if not all(np.array_equal(ours, theirs) for ours, theirs in result):
                wrong.append(len(x))

    on_threads(work)
    assert wrong == []


def test_a_branch_leaves_the_other_size_unknown_and_empty(load):
    """Sizes of a branch that was not taken are 0, not those of an earlier run."""
    image = Image()
    image.arena_bytes = image.const(0)
    first, second = image.computed("first"), image.computed("second")
    n = image.port(INPUT, "n", "int64", [image.const(2)])
    y = image.port(OUTPUT, "y", "int64", [image.expr("add", first, image.const(1))])
    image.step(BIND, 0, [n], [image.const(0)])
    image.step(fake_models.BRANCH, 3, scalars=[first])
    image.step(BIND, 1, [n], [image.const(1)])
    image.step(fake_models.DIMS, buffers=[y], scalars=[second])
    model = load(image, threads=1)
    assert model(np.array([1, 7]))[0] == 7
    assert model(np.array([0, 7]))[0] == 0


def test_heap_without_computed_sizes(load):
    image = Image()
    n = image.symbol("n", 0, 0)
    image.arena_bytes = image.const(0)
    x = image.port(INPUT, "x", "float32", [n])
    y = image.port(OUTPUT, "y", "float32", [n])
    size = image.mul(n, image.const(4))
    slot = image.heap(0, size, size)
    image.step(COPY, buffers=[x, slot])
    image.step(COPY, buffers=[slot, y])
    model = load(image)
    for count in (3, 0, 5000, 2):
        x_value = np.arange(count, dtype=np.float32)
        np.testing.assert_array_equal(model(x_value), x_value)
