"""`cuvilc adapter build` compares sizes, kinds and range with the package: nothing later does."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .helpers import Cuvilc

files = import_module("tests.import.lora_files")  # the folder is named by a keyword
builders = import_module("tests.import.builders")
graphs = import_module("tests.import.lora_graphs")

PATH, K, N = "l.0.q_proj", 3, 4
ON = f"{files.PREFIX}{PATH}"
SAVED = {"modules_to_save": ["q_proj"]}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def wide(gain: float) -> dict[str, np.ndarray]:
    return {n: v * np.float32(gain) for n, v in files.pair(PATH, 2, K, N).items()}


# Name -> tensors, options, code; "" for what fits.
CASES: dict[str, tuple[dict[str, np.ndarray], dict[str, Any], str]] = {
    "it fits": (files.pair(PATH, 2, K, N), {}, ""),
    "more inputs": (files.pair(PATH, 2, K + 1, N), {}, "CUV722"),
    "fewer outputs": (files.pair(PATH, 2, K, N - 1), {}, "CUV722"),
    "outputs that fit a panel": (files.pair(PATH, 2, K, 32), {}, "CUV722"),
    "sizes changed over": (files.pair(PATH, 2, N, K), {}, "CUV722"),
    "a convolution's": (
        {f"{ON}.lora_A.weight": ones(2, K, 1, 1), f"{ON}.lora_B.weight": ones(N, 2, 1, 1)},
        {}, "CUV722",
    ),
    "an embedding's": (
        {f"{ON}.lora_embedding_A": ones(2, K), f"{ON}.lora_embedding_B": ones(N, 2)}, {}, "CUV722"
    ),
    "saved": ({f"{ON}.weight": ones(N, K)}, SAVED, ""),
    "saved, a Conv1D's": ({f"{ON}.weight": ones(K, N)}, SAVED, ""),
    "saved, of other sizes": ({f"{ON}.weight": ones(K, N + 1)}, SAVED, "CUV722"),
    "saved, flat": ({f"{ON}.weight": ones(K * N)}, SAVED, "CUV722"),
    "a product beyond float32": (wide(1e30), {}, "CUV741"),
    "a scale beyond float32": (wide(1e8), {"lora_alpha": 1e25}, "CUV741"),
    "large factors of a small product": (
        {f"{ON}.lora_A.weight": ones(2, K) * 1e-30, f"{ON}.lora_B.weight": ones(N, 2) * 1e30},
        {}, "",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _package(cuvilc: Cuvilc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    node = graphs.node("MatMul", f"x {PATH}.weight", "y", f"/{PATH}/MatMul")
    weights = {f"{PATH}.weight": graphs.values(K, N)}
    builders.saved(
        tmp_path, builders.model([node], [builders.tensor("x", ["b", K])], ["y"], weights)
    )
    cuvilc.ok("build", "model.onnx", "--lora", "swap", "--vectors", "0")


def test_what_does_not_fit_is_refused(cuvilc: Cuvilc, tmp_path: Path) -> None:
    for number, (case, (tensors, options, code)) in enumerate(CASES.items()):
        files.write(tmp_path / f"a{number}", tensors, **options)
        result = cuvilc("adapter", "build", f"a{number}", "--base", "model.cuvil")
        assert result.code == (1 if code else 0), f"{case}: {result.err}"
        assert code in result.err, f"{case}: {result.err}"
        assert (tmp_path / f"a{number}.cuvla").exists() == (not code), case


def test_a_name_longer_than_names_of_files_are(cuvilc: Cuvilc, tmp_path: Path) -> None:
    files.write(tmp_path / "sql", files.pair(PATH, 2, K, N))
    for text in (f"sql:{'x' * 300}", "y" * 300):
        result = cuvilc("build", "model.onnx", "--adapter", text, "-o", "x.cuvil")
        assert result.code in (1, 2) and "CUV900" not in result.err, result.err
