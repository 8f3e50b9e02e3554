"""Build the runtime once per session; a fixture makes packages of hand-written images."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runtime"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import cuvil  # noqa: E402
from fake_package import Image, compile_objects, package  # noqa: E402


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
