"""Writing a package: complete, reproducible, all or nothing, and never over somebody's work."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np
import pytest

from cuvilc import artifact
from cuvilc.artifact import Metadata, read_package
from cuvilc.diagnostics import CuvilError
from cuvilc.package import write as write_module
from cuvilc.package.runtime_source import runtime_at
from cuvilc.package.vectors import Case, Vectors, read_vectors
from cuvilc.package.write import write_package

from .helpers import (
    compile_c,
    scale_metadata,
    scale_object,
    scale_plan,
    scale_vectors,
    scale_weights,
    stub_runtime,
)


def write(destination: Path, **more: Any) -> Metadata:
    plan = scale_plan()
    arguments: dict[str, Any] = {"runtime": stub_runtime(), "vectors": scale_vectors()} | more
    objects = arguments.pop("objects", [scale_object()])
    weights = arguments.pop("weights", scale_weights())
    return write_package(plan, objects, weights, scale_metadata(), destination, **arguments)


def contents(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(directory.iterdir())}


def test_a_package_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "scale.cuvil"
    metadata = write(path)
    files = contents(path)
    assert files.keys() == {"model.so", "metadata.json", "vectors.npz"}
    assert json.loads(files["metadata.json"]) == metadata
    for name in ("model.so", "vectors.npz"):
        assert metadata["files"][name] == {
            "sha256": hashlib.sha256(files[name]).hexdigest(),
            "bytes": len(files[name]),
        }
    assert metadata["weights"] == {"bytes": 16, "count": 1}
    [kernel] = metadata["kernels"]
    assert 16 < kernel["code_bytes"]["base"] < 2000
    assert (kernel["flops"], kernel["tasks"], kernel["layers"]) == ("4*n", "n", ["/mul"])
    assert metadata["target"]["needed"] == ["libm.so.6"]
    assert metadata["target"]["min_glibc"].startswith("2.")
    assert metadata["inputs"][0]["ranges"] == [[1, 64], [4, 4]]
    assert [p.name for p in tmp_path.iterdir()] == ["scale.cuvil"], "nothing else is left"
    assert read_package(path, check=True).metadata == metadata


def test_the_library_carries_the_metadata_without_file_hashes(tmp_path: Path) -> None:
    metadata = write(tmp_path / "a.cuvil")
    inside = {k: v for k, v in metadata.items() if k != "files"}
    assert (
        (tmp_path / "a.cuvil" / "model.so")
        .read_bytes()
        .endswith(artifact.canonical(inside) + b"\0")
    )


def test_the_same_input_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.cuvil")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "sub"))
    monkeypatch.setenv("USER", "somebody else")
    write(Path("sub") / "b.cuvil")
    first = contents(tmp_path / "a.cuvil")
    assert contents(tmp_path / "sub" / "b.cuvil") == first
    assert not any(str(tmp_path).encode() in data for data in first.values())


def test_vectors_come_back(tmp_path: Path) -> None:
    write(tmp_path / "a.cuvil")
    vectors = read_vectors(read_package(tmp_path / "a.cuvil"))
    assert vectors
    expected = scale_vectors()
    assert vectors.tolerance == expected.tolerance
    np.testing.assert_array_equal(vectors.cases[0].outputs[0], expected.cases[0].outputs[0])
    write(tmp_path / "b.cuvil", vectors=None)
    assert read_vectors(read_package(tmp_path / "b.cuvil")) is None


def test_vectors_of_bfloat16_keep_their_dtype(tmp_path: Path) -> None:
    plan, metadata = scale_plan(), scale_metadata()
    metadata["inputs"][0]["dtype"] = "bfloat16"
    x = np.arange(8).reshape(2, 4).astype(ml_dtypes.bfloat16)
    vectors = Vectors([Case([x], [np.ones((2, 4), np.float32)])], {"rtol": 0.0, "atol": 0.0})
    path = tmp_path / "a.cuvil"
    write_package(
        plan, [scale_object()], scale_weights(), metadata, path,
        runtime=stub_runtime(), vectors=vectors,
    )  # fmt: skip
    stored = read_vectors(read_package(path))
    assert stored
    assert stored.cases[0].inputs[0].dtype == x.dtype
    np.testing.assert_array_equal(stored.cases[0].inputs[0], x)


def test_damaged_vectors_are_told(tmp_path: Path) -> None:
    write(tmp_path / "a.cuvil")
    package = read_package(tmp_path / "a.cuvil")
    np.savez(tmp_path / "a.cuvil" / "vectors.npz", other=np.ones(3))
    with pytest.raises(CuvilError, match="CUV522.*case0.input0"):
        read_vectors(package)


def test_a_package_replaces_a_package(tmp_path: Path) -> None:
    path = tmp_path / "a.cuvil"
    write(path)
    before = contents(path)
    held = (path / "model.so").open("rb")  # as a process that has mapped it
    write(path, weights={**scale_weights(), "w again": np.ones(4, np.float32)}, vectors=None)
    assert contents(path).keys() == {"model.so", "metadata.json"}
    assert read_package(path, check=True).metadata["weights"]["count"] == 2
    with held:
        assert held.read() == before["model.so"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.cuvil"]


def make_directory(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("precious")


def make_package_with_notes(path: Path) -> None:
    write(path)
    (path / "notes.txt").write_text("precious")


def make_package_with_directory(path: Path) -> None:
    write(path)
    (path / "model.so").unlink()
    (path / "model.so").mkdir()


def make_other_json(path: Path) -> None:
    path.mkdir()
    (path / "metadata.json").write_text('{"schema_version": 3}')


def make_broken_json(path: Path) -> None:
    path.mkdir()
    (path / "metadata.json").write_text("{")


@pytest.mark.parametrize(
    "make",
    [
        make_directory, make_package_with_notes, make_package_with_directory, make_other_json,
        make_broken_json, Path.touch, Path.mkdir,
    ],
)  # fmt: skip
def test_what_is_not_a_package_stays(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "a.cuvil"
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CuvilError, match=r"CUV507"):
        write(path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "text", ["/", ".", "..", "a/..", "", "bad\nname", "bad\0name", "link", "missing/a"]
)
def test_a_hostile_destination_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(CuvilError, match=r"CUV506"):
        write(Path(text))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "target"]


def test_a_parent_that_is_a_file_and_a_name_that_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CuvilError, match=r"CUV506"):
        write(tmp_path / "file" / "a.cuvil")
    with pytest.raises(CuvilError, match=r"CUV510.*too long"):
        write(tmp_path / ("a" * 300))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


class FailingFile:
    """A file whose writes fail once all files together have been written to `fails_at` times."""

    writes = 0
    fails_at = 0
    number = errno.EIO

    def __init__(self, file: Any) -> None:
        self._file = file

    @classmethod
    def count(cls) -> None:
        cls.writes += 1
        if cls.writes > cls.fails_at:
            raise OSError(cls.number, os.strerror(cls.number))

    def write(self, data: bytes) -> int:
        self.count()
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@pytest.mark.parametrize("fails_at", [0, 3, 10, 17])
@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "CUV508"), (errno.EROFS, "CUV509"), (errno.EIO, "CUV510")]
)
def test_a_failing_disk_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, number: int, code: str
) -> None:
    path = tmp_path / "a.cuvil"
    write(path)
    before = contents(path)
    real, write_pieces = Path.open, os.pwritev

    def failing_pieces(*arguments: Any) -> int:
        FailingFile.count()
        return write_pieces(*arguments)

    def failing(self: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        file = real(self, mode, *rest, **more)
        in_package = self.name in ("model.so", "vectors.npz", "metadata.json")
        return FailingFile(file) if in_package and mode != "rb" else file

    monkeypatch.setattr(Path, "open", failing)
    monkeypatch.setattr(os, "pwritev", failing_pieces)
    monkeypatch.setattr(FailingFile, "writes", 0)
    monkeypatch.setattr(FailingFile, "fails_at", fails_at)
    monkeypatch.setattr(FailingFile, "number", number)
    with pytest.raises(CuvilError, match=code):
        write(path, weights={**scale_weights(), "w again": np.ones(4, np.float32)}, vectors=None)
    monkeypatch.undo()
    assert contents(path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.cuvil"]


def test_a_linker_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "full-cc"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *-shared*) '
        'echo "ld: final link failed: No space left on device"; exit 1;;\n'
        'esac\nexec cc "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    with pytest.raises(CuvilError, match="CUV508"):
        write(tmp_path / "a.cuvil")
    assert [p.name for p in tmp_path.iterdir()] == ["full-cc"]


def test_a_failed_rename_brings_the_old_package_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.cuvil"
    write(path)
    before = contents(path)
    real = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if ".new-" in self.name:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(CuvilError, match="CUV510"):
        write(path, vectors=None)
    assert contents(path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.cuvil"]


def write_often(path: Path) -> None:
    for i in range(8):
        write(path, vectors=scale_vectors() if i % 2 else None)


def test_builds_to_one_destination_at_once(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("fork")) as pool:
        list(pool.map(write_often, [tmp_path / "a.cuvil"] * 3))
    read_package(tmp_path / "a.cuvil", check=True)
    assert [p.name for p in tmp_path.iterdir()] == ["a.cuvil"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write_module, "write_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a.cuvil")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("objects", "code"),
    [([b"not an object"], "CUV504"), ([compile_c("int other;")], "CUV504")],
)
def test_objects_that_do_not_link(tmp_path: Path, objects: list[bytes], code: str) -> None:
    with pytest.raises(CuvilError, match=code):
        write(tmp_path / "a.cuvil", objects=objects)
    assert list(tmp_path.iterdir()) == []


def test_a_library_without_a_note_is_refused(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    shutil.copytree(stub_runtime().include_dirs[1], runtime / "src")
    (runtime / "src" / "image.h").write_text(
        f'#include "{Path(__file__).parents[2]}/runtime/src/image.h"\n'
    )
    (runtime / "src" / "note.S").unlink()
    with pytest.raises(CuvilError, match=r"CUV505.*no PT_NOTE"):
        write(tmp_path / "a.cuvil", runtime=runtime_at(runtime))
    assert [p.name for p in tmp_path.iterdir()] == ["runtime"]
