"""`--lora fold`: packages of base models with PEFT's adapters in them give what PEFT's merge gives,
and run exactly what the base package runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import pytest

from cuvilc.driver import BuildRequest, build
from tests.tolerances import mismatch

pytest.importorskip("peft")
pytest.importorskip("transformers")

from tests.models import lora_models

LINEAR = "all-linear"
DORA = {"use_dora": True}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("bert", "r1", {"r": 1, "target_modules": ["query", "value"]}),
    ("bert", "r8", {"r": 8, "target_modules": LINEAR, "lora_alpha": 16}),
    ("bert", "r256", {"r": 256, "target_modules": ["key", "dense"], "lora_alpha": 8}),
    ("bert", "saved", {"target_modules": ["query"], "modules_to_save": ["classifier"]}),
    ("bert", "biases", {"target_modules": ["query", "value"], "bias": "all"}),
    ("bert", "lora bias", {"target_modules": ["query", "dense"], "lora_bias": True}),
    ("bert", "table", {"r": 4, "target_modules": ["word_embeddings", "query"]}),
    ("bert", "patterns", {
        "r": 4, "target_modules": ["query", "key", "value"],
        "rank_pattern": {"layer.0.*query": 64, "value": 2}, "alpha_pattern": {"key": 32},
    }),
    ("gpt2", "r4", {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ("gpt2", "r64", {"r": 64, "target_modules": ["c_attn", "c_proj", "c_fc"],
                     "fan_in_fan_out": True, "use_rslora": True}),
    ("gpt2", "saved", {"target_modules": ["c_attn"], "modules_to_save": ["c_fc"],
                       "fan_in_fan_out": True}),
    ("gpt2", "dora", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True} | DORA),
    ("gpt2", "tied table", {"r": 4, "target_modules": ["wte"], "merges": False}),
    ("llama", "r8", {"r": 8, "target_modules": LINEAR, "lora_alpha": 32}),
    ("llama", "qv", {"r": 16, "target_modules": ["q_proj", "v_proj"]}),
    ("llama", "dora", {"r": 4, "target_modules": ["q_proj", "k_proj", "down_proj"]} | DORA),
    ("llama", "lora bias", {"target_modules": ["o_proj", "up_proj"], "lora_bias": True,
                            "merges": False}),
    ("llama", "layers", {"target_modules": ["v_proj"], "layers_to_transform": [1]}),
    ("vit", "r8", {"r": 8, "target_modules": LINEAR}),
    ("vit", "dora", {"r": 2, "target_modules": ["q_proj", "query", "value"]} | DORA),
    ("conv", "r4", {"r": 4, "target_modules": ["stem", "point", "wide", "line", "head"]}),
    ("conv", "dora", {"r": 2, "target_modules": ["stem", "point", "line", "head"]} | DORA),
    ("conv", "biases", {"r": 2, "target_modules": ["stem", "wide"], "bias": "lora_only",
                        "modules_to_save": ["head"]}),
]  # fmt: skip


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], tuple[Path, Any]]:
    """(ONNX file, metadata of the base package) of a model, each exported and built once."""
    made: dict[tuple[str, bool], tuple[Path, Any]] = {}

    def get(name: str, dynamo: bool) -> tuple[Path, Any]:
        if (name, dynamo) not in made:
            folder = tmp_path_factory.mktemp(f"{name}-{dynamo}")
            path = folder / f"{name}.onnx"
            lora_models.export(name, path, dynamo)
            report = build(BuildRequest(path, folder / "base.cuvil", vectors=0))
            made[name, dynamo] = path, report.metadata
        return made[name, dynamo]

    return get


def work(metadata: Any) -> Any:
    """What a run does: kernels, how often, on how much; and the memory it does it in."""
    kernels = [{k: v for k, v in kernel.items() if k != "layers"} for kernel in metadata["kernels"]]
    return kernels, metadata["memory"]["arena_bytes"], metadata["memory"]["buffers"]


def matrix() -> Iterator[Any]:
    """Every case from both exporters; from the older one, all but each model's first are slow."""
    seen: set[str] = set()
    for name, case, options in CASES:
        yield pytest.param(name, case, options, True, id=f"{name} {case}-dynamo")
        marks = [pytest.mark.slow] if name in seen else []
        yield pytest.param(name, case, options, False, id=f"{name} {case}-torchscript", marks=marks)
        seen.add(name)


@pytest.mark.parametrize(("name", "case", "options", "dynamo"), matrix())
def test_folded_package_is_the_merged_model(base, tmp_path, name, case, options, dynamo) -> None:
    path, plain = base(name, dynamo)
    wanted = lora_models.adapt(name, tmp_path / "adapter", **options)
    package = tmp_path / "folded.cuvil"
    request = BuildRequest(path, package, vectors=0, adapters=[(tmp_path / "adapter", "tuned")])
    report = build(request)
    x = lora_models.MODELS[name].input().numpy()
    for threads in (1, 2):
        with_adapter = cuvil.load(package, threads=threads)
        found = with_adapter.run({"x": x})["y"]
        with_adapter.close()
        assert not mismatch(found, wanted.astype(np.float32))
    without = cuvil.load(path.parent / "base.cuvil")
    assert mismatch(without.run({"x": x})["y"], wanted.astype(np.float32))
    without.close()
    (adapter,) = report.metadata["adapters"]
    assert adapter["name"] == "tuned" and adapter["mode"] == "fold"
    assert all(0 < w["max_error"] < 1e-7 for w in adapter["weights"])
    if not (case == "lora bias" and name == "llama"):  # a bias where the base has none
        assert work(report.metadata) == work(plain)
