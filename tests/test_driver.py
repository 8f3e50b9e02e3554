"""The driver: phases, requests, vectors, what is left of a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from cuvilc.artifact import read_package
from cuvilc.diagnostics import CuvilError
from cuvilc.driver import PHASES, BuildRequest, build, default_output, load_model
from cuvilc.open_package import open_package
from cuvilc.package.vectors import read_vectors
from cuvilc.vectors import random_feeds, reference_vectors, sizes_within, tolerance_of, trials
from cuvilc.vectors_cost import cost
from tests.cli.helpers import dense, gather, save
from tests.cli.helpers import model as one_graph
from tests.tolerances import mismatch


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUVILC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "driver-cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(tmp_path, dense())


def null(model: Path, **more: Any) -> BuildRequest:
    return BuildRequest(model, model.with_name("net.cuvil"), target="null", **more)


def test_phases_and_report(model: Path) -> None:
    told: list[tuple[str, int, int, str]] = []
    report = build(null(model, report=lambda *what: told.append(what)))
    assert report.package == model.with_name("net.cuvil")
    assert set(report.seconds) == {*PHASES, "vectors"}
    assert list(dict.fromkeys(phase for phase, *_ in told)) == list(PHASES)
    kernels = report.kernels_built + report.kernels_cached
    assert ("schedule", kernels, kernels) in {t[:3] for t in told}
    assert report.metadata == read_package(report.package).metadata


@pytest.mark.parametrize("target", ["x86", "null"])
def test_what_was_built_computes_as_the_interpreter(model: Path, target: str) -> None:
    output = model.with_name("net.cuvil")
    report = build(BuildRequest(model, output, target=target, dims={"batch": (1, 9)}))
    program = load_model(model, {}, {})
    expected = reference_vectors(program, 2)
    opened = open_package(output)
    names = [port.name for port in opened.inputs]
    for case in expected.cases:
        found = opened.run(dict(zip(names, case.inputs, strict=True)))
        for array, wanted in zip(found.values(), case.outputs, strict=True):
            assert not mismatch(array, wanted)
    opened.close()
    assert report.metadata["symbols"][0]["hi"] == 9


@pytest.mark.parametrize("target", ["x86", "null"])
def test_identical_inputs_make_identical_packages(model: Path, target: str) -> None:
    """Whatever the jobs, without a cache as with an empty one and with a full one."""
    packages = [model.with_name(f"{n}.cuvil") for n in "abc"]
    for package, jobs in zip(packages, (1, 2, 1), strict=True):
        build(BuildRequest(model, package, target=target, jobs=jobs, use_cache=jobs == 1))
    for file in packages[0].iterdir():
        for other in packages[1:]:
            assert file.read_bytes() == (other / file.name).read_bytes(), file.name


def test_verification_does_not_change_the_package(model: Path) -> None:
    build(null(model))
    before = model.with_name("net.cuvil").joinpath("metadata.json").read_bytes()
    report = build(null(model, verify=True))
    assert report.checks
    assert model.with_name("net.cuvil").joinpath("metadata.json").read_bytes() == before
    assert not [p for p in model.parent.iterdir() if p.name.startswith(".")]


def test_vectors_bundled_are_those_of_the_interpreter(model: Path) -> None:
    build(null(model, vectors=2))
    stored = read_vectors(read_package(model.with_name("net.cuvil")))
    made = reference_vectors(load_model(model, {}, {}), 2)
    assert stored is not None
    assert len(stored.cases) == 2
    for a, b in zip(stored.cases, made.cases, strict=True):
        for x, y in zip([*a.inputs, *a.outputs], [*b.inputs, *b.outputs], strict=True):
            np.testing.assert_array_equal(x, y)


def test_verify_makes_vectors_whatever_they_cost(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuvilc.vectors.AUTO_LIMIT", 0)
    assert build(null(model)).notes
    assert build(null(model, verify=True)).checks
    assert build(null(model, vectors=0)).notes == []


def test_a_package_that_cannot_be_verified_is_not_kept(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no input pleases it")

    monkeypatch.setattr("cuvilc.dialect.interpret.interpret", refuse)
    with pytest.raises(CuvilError, match="no input pleases it") as caught:
        build(null(model, verify=True))
    assert caught.value.diagnostics[0].code == "CUV626"
    assert [p.name for p in model.parent.iterdir()] == ["net.onnx"]


def test_images_are_tried_at_larger_sizes(tmp_path: Path) -> None:
    """A 5x5 window without padding fits no image of 4 pixels."""
    weights = {"w": np.ones((1, 1, 5, 5), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[5, 5])
    proto = one_graph([node], {"x": ["n", 1, "h", "v"]}, ["y"], weights)
    report = build(null(save(tmp_path, proto), verify=True))
    assert report.checks
    assert not report.notes


def test_trials_grow_but_not_the_batch() -> None:
    tried = [sizes for sizes, _ in trials({"n": (1, None), "h": (1, 40)}, {"n"}, 0)]
    assert {s["n"] for s in tried} == {4}
    assert max(s["h"] for s in tried) == 40
    assert tried == sorted(tried, key=lambda s: s["h"])


def test_inputs_that_the_model_refuses_are_a_note(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise IndexError("index 7 is out of bounds")

    monkeypatch.setattr("cuvilc.dialect.interpret.interpret", refuse)
    report = build(null(model))
    assert "random inputs do not fit this model: for batch = 3: index 7" in report.notes[0]


def test_a_size_that_the_export_fixed_is_named(tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "s"], ["y"], name="/attention/heads")
    proto = one_graph([node], {"x": ["seq", 6]}, ["y"], {"s": np.array([7, 2, 3])})
    report = build(null(save(tmp_path, proto)))
    assert "layer `/attention/heads`, for seq = 3: cannot reshape" in report.notes[0]
    assert not build(null(save(tmp_path, proto), dims={"seq": (7, 7)}, verify=True)).notes


def test_random_indices_fit_small_tables(tmp_path: Path) -> None:
    program = load_model(save(tmp_path, gather()), {}, {})
    feeds = random_feeds(program, 0, below=2)
    assert feeds["i"].max(initial=0) < 2
    assert len(reference_vectors(program, 1).cases) == 1


def test_cost_counts_products(model: Path) -> None:
    program = load_model(model, {}, {})
    assert 2 * 100 * 8 * 20 <= cost(program, {"batch": 100}) <= 2 * 100 * 8 * 20 + 8 * 100 * 200


def test_sizes_stay_in_their_ranges() -> None:
    ranges: dict[str, tuple[int, int | None]] = {"a": (1, None), "b": (1, 2), "c": (64, 128)}
    for number in range(4):
        sizes = sizes_within(ranges, number)
        assert sizes["b"] <= 2
        assert 64 <= sizes["c"] <= 128
    assert sizes_within(ranges, 0) != sizes_within(ranges, 1)


def test_the_coarsest_dtype_sets_the_tolerance() -> None:
    assert tolerance_of({"float32", "int64"})["rtol"] == 1e-4
    assert tolerance_of({"float32", "float16"})["rtol"] == 5e-3
    assert tolerance_of({"int8"})["rtol"] == 1e-4


def test_everything_wrong_with_a_request_is_found_before_any_work(model: Path) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a phase has begun")

    for wrong in (
        {"stop_after": "x"}, {"emit": "x"}, {"dump_after": ["x"]}, {"cpu": "x"},
        {"output": model}, {"dump_ir": model},
    ):  # fmt: skip
        with pytest.raises(CuvilError):
            build(BuildRequest(**{"model": model, "target": "null", "report": never, **wrong}))


def test_default_output() -> None:
    assert default_output(Path("a/b/net.v2.onnx")) == Path("net.v2.cuvil")


def test_a_size_that_grows_too_long_in_a_pass_is_the_models(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arena of layers with open sizes is a sum over all of them."""
    layers = [
        helper.make_node("MaxPool", [f"v{i}"], [f"v{i + 1}"], kernel_shape=[3, 3], strides=[2, 2])
        for i in range(4)
    ]
    path = save(model.parent, one_graph(layers, {"v0": ["n", 3, "h", "w"]}, ["v4"]), "pools.onnx")
    monkeypatch.setattr("cuvilc.dialect.dims.MOST_PARTS", 60)
    with pytest.raises(CuvilError) as caught:
        build(null(path))
    assert caught.value.diagnostics[0].code == "CUV304"
