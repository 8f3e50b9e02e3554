"""Packages that many tests look at, built once; a cache of the tests' own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuvilc.driver import BuildRequest, build

from .helpers import Cuvilc, dense, save


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUVILC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in its own folder, and has no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def cuvilc(capfd: pytest.CaptureFixture[str]) -> Cuvilc:
    return Cuvilc(capfd)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with net.onnx, net.cuvil (x86) and null.cuvil."""
    folder = tmp_path_factory.mktemp("built")
    model = save(folder, dense())
    build(BuildRequest(model, folder / "net.cuvil"))
    build(BuildRequest(model, folder / "null.cuvil", target="null"))
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy of it that the test may spoil."""
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(tmp_path, dense())
