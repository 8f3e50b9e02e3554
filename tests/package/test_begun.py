"""Packages whose weights are written before their library is linked."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.artifact import read_package
from cuvilc.diagnostics import CuvilError
from cuvilc.package import begun as module
from cuvilc.package.begun import begun
from cuvilc.package.runtime_source import feature_bits
from cuvilc.package.weights import LazyWeight, Weights
from cuvilc.package.write import write_package

from .helpers import scale_metadata, scale_object, scale_plan, scale_weights, stub_runtime


def write(path: Path, weights: Weights | None = None, ahead: bool = True) -> Any:
    plan, weights = scale_plan(), scale_weights() if weights is None else weights
    with ExitStack() as stack:
        made = None
        if ahead:
            features = feature_bits(stub_runtime())
            made = stack.enter_context(begun(plan, weights, features, path))
            assert made is not None
        return write_package(
            plan, [scale_object()], weights, scale_metadata(), path, runtime=stub_runtime(),
            begun=made,
        )  # fmt: skip


@pytest.fixture(autouse=True)
def _worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTH_BYTES", 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_only_the_place_of_the_image_differs(tmp_path: Path) -> None:
    usual, early = write(tmp_path / "a.cuvil", ahead=False), write(tmp_path / "b.cuvil")
    read_package(tmp_path / "b.cuvil", check=True)
    assert {**usual, "files": None} == {**early, "files": None}
    files = contents(tmp_path / "b.cuvil")
    assert sorted(files) == ["metadata.json", "model.so"]
    image = files["model.so"].index(b"CUVILIMG")
    assert image == module._room(scale_plan())
    assert contents(tmp_path / "a.cuvil")["model.so"].endswith(files["model.so"][image:])
    permissions = [(tmp_path / x / "model.so").stat().st_mode for x in ("a.cuvil", "b.cuvil")]
    assert permissions[0] == permissions[1]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.cuvil", "b.cuvil"):
        write(tmp_path / name)
    assert contents(tmp_path / "a.cuvil") == contents(tmp_path / "b.cuvil")


def test_a_library_that_is_larger_than_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RUNTIME_BYTES", 0)
    monkeypatch.setattr(module, "_KERNEL_BYTES", 0)
    write(tmp_path / "a.cuvil", ahead=False)
    write(tmp_path / "b.cuvil")
    assert contents(tmp_path / "a.cuvil") == contents(tmp_path / "b.cuvil")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.cuvil", "b.cuvil"]


def test_a_weight_that_cannot_be_made_leaves_all_as_it_was(tmp_path: Path) -> None:
    def fails() -> np.ndarray[Any, Any]:
        raise MemoryError("no room")

    write(tmp_path / "a.cuvil")
    before = contents(tmp_path / "a.cuvil")
    with pytest.raises(MemoryError, match="no room"):
        write(tmp_path / "a.cuvil", {"w": LazyWeight(16, fails), "w again": LazyWeight(16, fails)})
    assert contents(tmp_path / "a.cuvil") == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.cuvil"]


def test_what_fails_before_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    large: Weights = {
        key: LazyWeight(16, lambda: np.zeros(4, np.float32)) for key in ("w", "w again")
    }
    with (
        pytest.raises(RuntimeError, match="no schedule"),
        begun(scale_plan(), large, {}, tmp_path / "a.cuvil"),
    ):
        raise RuntimeError("no schedule")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(CuvilError, match="CUV510"),
        begun(scale_plan(), scale_weights(), {}, tmp_path / "missing" / "a.cuvil"),
    ):
        pass


def test_few_weights_are_not_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTH_BYTES", 33)  # two weights of 16 bytes are used
    with begun(scale_plan(), scale_weights(), {}, tmp_path / "a.cuvil") as made:
        assert made is None
    assert list(tmp_path.iterdir()) == []
