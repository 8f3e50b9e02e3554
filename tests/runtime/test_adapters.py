"""Adapters of a loaded model: which there are, which one a run sees, loading and unloading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic, sleep

import cuvil
import fake_models
import numpy as np
import pytest
from fake_adapters import (
    PANELS,
    SITES,
    Change,
    adapted_weights,
    cuvla,
    embed,
    exchanging,
    factors,
)
from threads import on_threads

OPEN = np.array([0, 1], np.int32)
RNG = np.random.default_rng(5)
VECTOR = Change(2, np.arange(9, dtype=np.float32) - 40)
ADAPTERS: dict[str | None, list[Change]] = {
    None: [],
    "all": [factors(RNG, 0, 2), factors(RNG, 1, 3, gain=True), VECTOR],
    "pieces": [factors(RNG, 0, 2, 1, 1, gain=True), factors(RNG, 0, 1, 3, 2)],
    "begin": [factors(RNG, 0, 3, 0, 2)],
    "end": [factors(RNG, 0, 4, PANELS - 1, 1)],
    "rows": [factors(RNG, 1, 1)],
    "vector": [VECTOR],
    "whole": [Change(0, RNG.standard_normal((PANELS, 3, 32)).astype(np.float32))],
    "nothing": [],
}
EMBEDDED = [cuvla(name, changes) for name, changes in ADAPTERS.items() if name]


@pytest.fixture
def model(load):
    return load(embed(exchanging(), EMBEDDED), threads=1)


def seen(model: cuvil.Model) -> dict[str, np.ndarray]:
    return model.run({"gate": OPEN.copy()})


def same(outputs: dict[str, np.ndarray], changes: Sequence[Change]) -> bool:
    """Whether a run saw exactly the weights with these changes, to the bit."""
    expected = adapted_weights(changes)
    pairs = [(outputs[name], w) for name, w in zip(SITES, expected, strict=True)]
    pairs.append((outputs["after"], expected[0]))
    return all(got.tobytes() == want.tobytes() for got, want in pairs)


def refused(code: str, text: str, call, *arguments) -> None:
    with pytest.raises(cuvil.CuvilError) as caught:
        call(*arguments)
    assert caught.value.code == code, caught.value
    assert text in str(caught.value)


def active(model: cuvil.Model) -> list[str]:
    return [adapter.name for adapter in model.adapters if adapter.active]


def test_adapters_of_the_package_are_listed(model):
    assert [a.name for a in model.adapters] == [name for name in ADAPTERS if name]
    first = model.adapters[0]
    assert (first.rank, first.tensors, first.bytes) == (3, 3, len(EMBEDDED[0]))
    assert first.sha256 == b"s".hex() * 32
    assert active(model) == []
    assert same(seen(model), [])


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_makes_the_weights_that_it_asks_for(model, name):
    """Factors, gains, whole tensors, entries that leave panels alone."""
    model.use(name)
    assert active(model) == ([name] if name else [])
    assert same(seen(model), ADAPTERS[name])


def test_no_order_of_swaps_leaves_a_trace(model):
    """Every state equals that of a model which never had another adapter, to the bit."""
    rng, names = np.random.default_rng(6), list(ADAPTERS)
    for _ in range(400):
        name = names[rng.integers(len(names))]
        model.use(name)
        if rng.integers(3):
            assert same(seen(model), ADAPTERS[name]), name
    for name in ("all", "pieces", "all", None, "whole", "end", "whole", None):
        model.use(name)
        assert same(seen(model), ADAPTERS[name]), name


def test_a_failed_use_changes_nothing(load):
    """Unknown names, and a kernel that fails after other weights have been merged."""
    bad = [factors(RNG, 0, 2), factors(RNG, 1, 1)]
    bad[1].a[0, 0] = np.nan
    model = load(embed(exchanging(), [*EMBEDDED, cuvla("bad", bad)]), threads=2)
    for name in ("all", None, "pieces", "end", "all"):
        model.use(name)
        refused("CUV612", "there is no adapter `none`; loaded: all, pieces", model.use, "none")
        assert same(seen(model), ADAPTERS[name])
        for _ in range(3):
            refused("CUV609", "adapter `bad`: merging it failed", model.use, "bad")
            assert active(model) == ([name] if name else [])
            assert same(seen(model), ADAPTERS[name])
        model.use("rows")
        assert same(seen(model), ADAPTERS["rows"])


def test_adapters_from_files(model, tmp_path):
    file, changes = tmp_path / "new.cuvla", [factors(RNG, 0, 7), factors(RNG, 1, 5)]
    file.write_bytes(cuvla("new", changes))
    model.load_adapter(file)
    refused("CUV611", "an adapter `new` is loaded already", model.load_adapter, file)
    refused("CUV611", 'help: `model.load_adapter(FILE, "ANOTHER_NAME")`', model.load_adapter, file)
    refused("CUV611", "an adapter `all` is loaded already", model.load_adapter, file, "all")
    model.load_adapter(str(file), "another")
    assert [a.name for a in model.adapters][-2:] == ["new", "another"]
    for name in ("new", "another", "all", "new"):
        model.use(name)
        assert same(seen(model), ADAPTERS.get(name, changes))
    refused("CUV611", "adapter `new` is in use", model.unload_adapter, "new")
    refused("CUV611", "help: `model.use(None)`", model.unload_adapter, "new")
    model.use(None)
    for name in ("new", "another", "pieces"):
        model.unload_adapter(name)
        refused("CUV612", f"there is no adapter `{name}`", model.use, name)
        refused("CUV612", f"there is no adapter `{name}`", model.unload_adapter, name)
    other = [factors(RNG, 0, 1)]
    file.write_bytes(cuvla("new", other))
    model.load_adapter(file)  # the name is free again, and the shadow is not the old one's
    model.use("new")
    assert same(seen(model), other)


def test_a_new_adapter_is_not_taken_for_one_that_is_gone(model, tmp_path):
    """However often memory is used again: what was made of the old one is forgotten with it."""
    file = tmp_path / "new.cuvla"
    for _ in range(60):
        changes = [factors(RNG, 0, 2), factors(RNG, 1, 1)]
        file.write_bytes(cuvla("new", changes))
        model.load_adapter(file)
        model.use("new")
        assert same(seen(model), changes)
        model.use(None)
        model.unload_adapter("new")


def test_a_file_may_change_or_vanish_once_it_is_loaded(model, tmp_path):
    file, changes = tmp_path / "new.cuvla", [factors(RNG, 0, 7), VECTOR]
    file.write_bytes(cuvla("new", changes))
    model.load_adapter(file)
    file.write_bytes(b"")
    model.use("new")
    assert same(seen(model), changes)
    file.unlink()
    model.use("all")
    model.use("new")
    assert same(seen(model), changes)


@pytest.mark.parametrize("name", ["new", "", "a name " * 60, "naïve"])
def test_loading_returns_the_name(model, tmp_path, name):
    file = tmp_path / "file.cuvla"
    file.write_bytes(cuvla(name, ADAPTERS["rows"]))
    assert model.load_adapter(file) == name
    assert model.adapters[-1].name.encode() == name.encode()[:127]
    model.use(name)
    assert same(seen(model), ADAPTERS["rows"])
    assert model.load_adapter(str(file), "mine") == "mine"


def test_what_is_no_file_is_refused(model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    load = model.load_adapter
    refused("CUV611", "No such file", load, tmp_path / "none")
    refused("CUV611", "it is no file", load, tmp_path)
    refused("CUV611", "it is no file", load, tmp_path / "pipe")
    refused("CUV611", "is not an adapter that cuvilc built", load, tmp_path / "empty")


def test_names_are_whole(model, tmp_path):
    """A NUL would cut a name short in C."""
    for call in (model.use, model.unload_adapter, model.load_adapter):
        with pytest.raises(ValueError, match="embedded null"):
            call("all\0x")
    with pytest.raises(ValueError, match="embedded null"):
        model.load_adapter(tmp_path, "a\0b")


def test_a_package_without_exchangeable_weights_takes_none(load, tmp_path):
    model = load(fake_models.mlp())
    assert model.adapters == ()
    model.use(None)
    for call in (model.use, model.unload_adapter, model.load_adapter):
        refused("CUV612", "takes no adapters: it was not built with --lora swap", call, "x")


class Slow:
    """A run that another thread began, which waits at the model's gate until it is let go."""

    def __init__(self, pool: ThreadPoolExecutor, model: cuvil.Model) -> None:
        self.gate = np.zeros(2, np.int32)
        self.future: Future = pool.submit(model.run, {"gate": self.gate})
        wait_for(lambda: self.gate[0] == 1)

    def finish(self) -> dict[str, np.ndarray]:
        self.gate[1] = 1
        return self.future.result(60)


def wait_for(condition) -> None:
    limit = monotonic() + 60
    while not condition():
        assert monotonic() < limit
        sleep(0.001)


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.mark.parametrize("first", ["all", "whole", None])
def test_a_run_finishes_with_the_adapter_that_it_began_with(model, pool, first):
    model.use(first)
    run = Slow(pool, model)
    for name in ("pieces", None, "pieces", first, None, "pieces"):
        model.use(name)
        assert same(seen(model), ADAPTERS[name])
    assert not run.future.done()
    assert same(run.finish(), ADAPTERS[first])


def test_a_third_adapter_waits_for_the_runs_of_the_first(model, pool):
    """There is memory for two: the third one's would be the first one's, which a run reads."""
    model.use("all")
    run = Slow(pool, model)
    model.use("pieces")
    swap = pool.submit(model.use, "end")
    sleep(0.2)
    assert not swap.done()
    assert active(model) == ["pieces"]
    assert same(seen(model), ADAPTERS["pieces"])
    assert same(run.finish(), ADAPTERS["all"])
    swap.result(60)
    assert same(seen(model), ADAPTERS["end"])


@pytest.mark.parametrize("name", ["all", "whole"])
def test_unloading_waits_for_the_runs_that_read_it(model, pool, name):
    model.use(name)
    run = Slow(pool, model)
    model.use(None)
    unload = pool.submit(model.unload_adapter, name)
    sleep(0.2)
    assert not unload.done()
    assert same(seen(model), [])  # others run on meanwhile
    assert same(run.finish(), ADAPTERS[name])
    unload.result(60)
    assert name not in [a.name for a in model.adapters]


def test_closing_waits_for_nobody(model, pool):
    """A model that another thread swaps cannot be closed under it."""
    model.use("all")
    run = Slow(pool, model)
    model.use("pieces")
    swap = pool.submit(model.use, "end")
    wait_for(swap.running)
    sleep(0.1)
    refused("CUV610", "the model is closed while another thread", model.close)
    run.finish()
    swap.result(60)
    model.close()
    for call in (model.use, model.unload_adapter, model.load_adapter):
        refused("CUV610", "the model is closed", call, "all")


def test_threads_of_python(model, tmp_path):
    """All at once: runs, swaps, loads, unloads and listings; every run sees one adapter."""
    known = [adapted_weights(changes) for changes in ADAPTERS.values()]
    file = tmp_path / "late.cuvla"
    file.write_bytes(cuvla("late", [VECTOR]))

    def work(seed: int) -> None:
        rng, names = np.random.default_rng(seed), list(ADAPTERS)
        for i in range(60):
            if seed < 3:
                model.use(names[rng.integers(len(names))])
                outputs = seen(model)
                got = [outputs[name].tobytes() for name in SITES]
                assert got in [[w.tobytes() for w in weights] for weights in known]
                assert outputs["after"].tobytes() == got[0]
            elif seed == 3:
                model.load_adapter(file, f"late {i}")
                model.unload_adapter(f"late {i}")
            else:
                assert len(model.adapters) >= len(EMBEDDED)

    on_threads(work)
    model.use(None)
    assert same(seen(model), [])
