"""Build the runtime once per session; a fixture makes packages of hand-written images."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_package import Image, compile_objects, package  # puts this checkout's cuvil on the path

import cuvil  # isort: skip


@pytest.fixture(scope="session")
def objects(tmp_path_factory):
    return compile_objects(tmp_path_factory.mktemp("runtime"))


@pytest.fixture
def make(tmp_path, objects):
    """make(image): the path of its package."""
    count = iter(range(1000))

    def build(image: Image) -> Path:
        return package(image, tmp_path / f"fake{next(count)}.cuvil", objects)

    return build


@pytest.fixture(params=["built-in", "ctypes"])
def way(request, monkeypatch):
    """How a run gets into the library; other Pythons than CPython have ctypes alone."""
    if request.param == "ctypes":
        monkeypatch.setattr("cuvil._quick._TABLE", None)
    return request.param


@pytest.fixture
def load(make):
    """load(image, **options): its model."""
    models = []

    def open_model(image: Image, **options) -> cuvil.Model:
        models.append(cuvil.load(make(image), **options))
        return models[-1]

    yield open_model
    for model in models:
        model.close()
