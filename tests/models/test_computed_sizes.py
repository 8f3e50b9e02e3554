"""Sizes and rounds that the data decides: interpreted at every level and compiled, against
onnxruntime.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from cuvilc.diagnostics import CuvilError
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.passes import PIPELINE
from cuvilc.dialect.passes.context import PassContext
from cuvilc.driver import BuildRequest, build
from cuvilc.open_package import open_package
from tests.models import agree
from tests.models.computed_cases import INT64, Feeds, body, model, node, port
from tests.models.control_cases import CASES
from tests.tolerances import mismatch

registry = import_module("cuvilc.import.registry")


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[Feeds], list[Any]]:
    """The model's file, feeds, and onnxruntime's outputs for them."""
    name = request.param
    proto, feeds = CASES[name](np.random.default_rng(zlib.crc32(name.encode())))
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(proto.SerializeToString())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return path, feeds, [session.run(None, f) for f in feeds]


def check(found: dict[str, np.ndarray], wanted: list[np.ndarray], what: str) -> None:
    for (name, array), want in zip(found.items(), wanted, strict=True):
        assert not (wrong := mismatch(array, want)), f"{what}, `{name}`: {wrong}"


def test_every_level_agrees(case: tuple[Path, list[Feeds], list[Any]]) -> None:
    path, feeds, wanted = case
    program = registry.load(path, registry.ImportOptions())
    program.verify()
    context = PassContext()
    for number in range(len(PIPELINE) + 1):
        name = "import"
        if number:
            PIPELINE[number - 1].run(program, context)
            program.verify()
            name = PIPELINE[number - 1].NAME
        if name in ("import", "fuse", "plan-memory"):
            for feed, want in zip(feeds, wanted, strict=True):
                check(interpret(program, feed), want, f"after {name}")


def test_the_text_reads_back(case: tuple[Path, list[Feeds], list[Any]]) -> None:
    path, feeds, wanted = case
    program = registry.load(path, registry.ImportOptions())
    again = type(program).parse(program.text(), program.weights)
    assert again.text() == program.text()
    check(interpret(again, feeds[0]), wanted[0], "parsed")


def test_the_package_agrees(case: tuple[Path, list[Feeds], list[Any]], tmp_path: Path) -> None:
    """In turn, so that a run with larger sizes comes after and before one with smaller ones."""
    path, feeds, _ = case
    agree.check(path, tmp_path, [*feeds, feeds[0]])


def test_the_null_target_agrees(case: tuple[Path, list[Feeds], list[Any]]) -> None:
    path, feeds, wanted = case
    package = path.with_suffix(".cuvil")
    build(BuildRequest(path, package, target="null", vectors=0))
    model = open_package(package)
    check(model.run(feeds[0]), wanted[0], "null")


def test_vectors_of_a_loop_that_never_ends(tmp_path: Path) -> None:
    """Random inputs may never meet the condition: the build says so and goes on."""
    inner = body([node("Identity", "s", "t")], [port("s", [2])], [port("t", [2])])
    proto = model([node("Loop", "_ _ x", "y", body=inner)], [port("x", [2])], [port("y", [2])])
    path = tmp_path / "endless.onnx"
    path.write_bytes(proto.SerializeToString())
    report = build(BuildRequest(path, tmp_path / "endless.cuvil", cpu="host"))
    assert report.package is not None
    assert "its loops run for too long" in report.notes[0]


def test_expand_by_data_as_numpy_broadcasts(tmp_path: Path) -> None:
    """An empty result has no tasks, however long its axes; sizes that do not fit are refused."""
    proto = model(
        [node("Expand", "x shape", "y"), node("Relu", "y", "z")],
        [port("x", ["n"]), port("shape", [2], INT64)], [port("z", [None, None])],
    )  # fmt: skip
    path = tmp_path / "expand.onnx"
    path.write_bytes(proto.SerializeToString())
    build(BuildRequest(path, tmp_path / "expand.cuvil", cpu="host", vectors=0))
    package = open_package(tmp_path / "expand.cuvil")
    for count, shape in ((3, (2, 3)), (1, (2, 3)), (0, (1 << 40, 0)), (3, (2, 1))):
        x = np.ones(count, np.float32)
        found = package.run({"x": x, "shape": np.array(shape)})["z"]
        assert found.shape == np.broadcast_shapes(x.shape, shape)
    with pytest.raises(CuvilError, match=r"\[n\] does not expand to"):
        package.run({"x": np.ones(0, np.float32), "shape": np.array([2, 3])})
