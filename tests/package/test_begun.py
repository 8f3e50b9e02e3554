"""Packages whose weights are written before their library is linked."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.artifact import read_package
from cuvilc.diagnostics import CuvilError
from cuvilc.package import begun as module
from cuvilc.package.begun import Begun, begun
from cuvilc.package.plan import Adaptable, Buffer, BufferKind, Part, Plan
from cuvilc.package.runtime_source import feature_bits
from cuvilc.package.weights import LazyWeight, Weights
from cuvilc.package.write import write_package

from .helpers import scale_metadata, scale_object, scale_plan, scale_weights, stub_runtime


def write(
    path: Path, weights: Weights | None = None, ahead: bool = True, plan: Plan | None = None
) -> Any:
    plan = plan or scale_plan()
    weights = scale_weights() if weights is None else weights
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


def test_the_weights_own_hash_where_adapters_ask_for_it(tmp_path: Path) -> None:
    """It is part of what is missing, so all weights are stored first."""
    site = Adaptable("w", 16, (4,), "float32", "", 0, (Part("scale", "weight", "plain", 0, 4),))
    plan = replace(scale_plan(), adaptable=[site])
    usual = write(tmp_path / "a.cuvil", ahead=False, plan=plan)
    early = write(tmp_path / "b.cuvil", plan=plan)
    read_package(tmp_path / "b.cuvil", check=True)
    assert {**usual, "files": None} == {**early, "files": None}
    assert early["weights"]["sha256"] == sha256(scale_weights()["w"].tobytes()).hexdigest()


def test_a_library_that_is_larger_than_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RUNTIME_BYTES", 0)
    monkeypatch.setattr(module, "_KERNEL_BYTES", 0)
    write(tmp_path / "a.cuvil", ahead=False)
    write(tmp_path / "b.cuvil")
    assert contents(tmp_path / "a.cuvil") == contents(tmp_path / "b.cuvil")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.cuvil", "b.cuvil"]


@pytest.mark.parametrize("equal", [False, True])
def test_the_file_is_hashed_while_it_is_written(tmp_path: Path, equal: bool) -> None:
    """Also where two weights are equal, which is only known when both have been made."""
    size_bytes = 20 << 20
    sizes = [size_bytes, 100, size_bytes, 16]
    plan = replace(
        scale_plan(),
        buffers=[b if b.kind != BufferKind.WEIGHT else replace(b, place="w3", bytes=16)
                 for b in scale_plan().buffers]
        + [Buffer(BufferKind.WEIGHT, n, f"w{i}") for i, n in enumerate(sizes)],
    )  # fmt: skip

    def slow(i: int) -> LazyWeight:
        def make() -> np.ndarray[Any, Any]:
            time.sleep(0.05)
            return np.full(sizes[i], 7 if equal else i, np.uint8)

        return LazyWeight(sizes[i], make)

    weights: Weights = {f"w{i}": slow(i) for i in range(len(sizes))}
    known: list[str] = []

    class Told(Begun):
        def finish(self, *arguments: Any) -> str:
            known.append(super().finish(*arguments))
            return known[0]

    for path in (tmp_path / "a.cuvil", tmp_path / "b.cuvil"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "Begun", Told)
            written = write(path, weights, plan=plan)
    assert [bool(sha256) for sha256 in known] == [not equal] * 2
    package = read_package(tmp_path / "a.cuvil", check=True)
    assert package.metadata["weights"]["count"] == 4 - equal
    assert contents(tmp_path / "a.cuvil") == contents(tmp_path / "b.cuvil")
    size = written["files"]["model.so"]["bytes"]
    assert (2 - equal) * size_bytes < size < (2 - equal) * size_bytes + (1 << 20)


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
