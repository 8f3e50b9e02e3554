"""The benchmark models: a sample in `make test`, all of them with `-m slow`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import compare, models
from benchmarks.peers import PEERS

pytest.importorskip("onnxruntime")
from tests.models.agree import check, session

SAMPLE = ("resnet18", "minilm")


def exported(name: str) -> Path:
    """The folder of a model; exports it when torch is here."""
    folder = models.cache_folder() / name
    if not (folder / "meta.json").is_file():
        for module in ("torch", "transformers", "onnxscript"):
            pytest.importorskip(module)
    return models.ensure(name)


def agrees(name: str, folder: Path) -> float:
    """On its own inputs and on others. Size of the package, built in `folder`, to the model's."""
    model = exported(name)
    with np.load(model / "inputs.npz") as file:
        given = {key: file[key] for key in file.files}
    rng = np.random.default_rng(1)
    other = {
        k: rng.standard_normal(v.shape).astype(v.dtype) if v.dtype == np.float32 else v[..., ::-1]
        for k, v in given.items()
    }
    check(model / "model.onnx", folder, [given, {k: v.copy() for k, v in other.items()}])
    size_bytes = sum(f.stat().st_size for f in (folder / "model.cuvil").iterdir())
    return size_bytes / (model / "model.onnx").stat().st_size


@pytest.mark.parametrize(
    "name",
    [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in models.NAMES],
)
def test_the_package_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    assert agrees(name, tmp_path) <= 1.1  # code included


@pytest.mark.slow
@pytest.mark.parametrize("name", models.FURTHER)
def test_further_packages_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    assert agrees(name, tmp_path) <= 1.1


def test_the_answer_is_torchs(tmp_path: Path) -> None:
    """onnxruntime is right about the export: the oracle is checked too."""
    folder = exported("resnet18")
    with np.load(folder / "inputs.npz") as file, np.load(folder / "ref.npz") as wanted:
        found = session(folder / "model.onnx").run(None, {key: file[key] for key in file.files})
        for name, value in zip(wanted.files, found, strict=True):
            scale = np.abs(wanted[name]).max()
            assert np.abs(value - wanted[name]).max() <= 1e-4 * scale


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_answers_as_torch_does(name: str) -> None:
    """Those that cannot run here are skipped; half precision is held to its own errors."""
    if what := compare.lacking(PEERS[name]):
        pytest.skip(f"{what} is not installed")
    with compare.running(exported("mobilenetv2"), 2, [name]) as (_, facts):
        narrow = name in ("cuvil-bf16", "openvino")
        assert facts[name]["relative_error"] < (0.2 if narrow else 1e-4), facts[name]
