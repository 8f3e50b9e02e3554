"""`cuvilc adapter inspect`: what is in an adapter, for people and as JSON."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .helpers import Cuvilc, check_golden
from .test_inspect import loaded_by

files = import_module("tests.import.lora_files")  # the folder is named by a keyword


def llama(folder: Path, layers: int = 4, **config: Any) -> Path:
    """An adapter of a model like Llama, on q and v, with a head that is replaced."""
    values = {}
    for n in range(layers):
        for name in ("q_proj", "v_proj"):
            values |= files.pair(f"model.layers.{n}.self_attn.{name}")
    values[f"{files.PREFIX}score.weight"] = np.ones((2, 4), np.float32)
    return files.write(folder / "sql", values, modules_to_save=["score"], **config)


def test_page(cuvilc: Cuvilc, tmp_path: Path) -> None:
    semantics = {"dependency_level": "cross-attention", "fusion_strategy": "additive"}
    llama(tmp_path, 8, graph_semantics=semantics, use_rslora=True)
    shown = re.sub(r" {2,}|─+", "  ", cuvilc.ok("adapter", "inspect", "sql").out)
    check_golden("adapter-inspect", shown, tmp_path)


def test_all_shows_every_module_and_layer(cuvilc: Cuvilc, tmp_path: Path) -> None:
    llama(tmp_path, 8)
    shown = cuvilc.ok("adapter", "inspect", "sql", "--all").out
    assert all(shown.count(f"model.layers.{n}.self_attn.q_proj") == 1 for n in range(8))
    assert all(f"├ model.layers.{n}\n" in shown for n in range(8))


def test_json(cuvilc: Cuvilc, tmp_path: Path) -> None:
    llama(tmp_path, 2)
    (found,) = cuvilc.ok("adapter", "inspect", "sql", "--json").data["adapters"]
    assert (found["name"], found["r"], found["lora_dropout"]) == ("sql", 2, 0.1)
    assert found["totals"] == {
        "modules": 5, "tensors": 9, "parameters": 4 * 14 + 8, "bytes": 4 * (4 * 14 + 8),
        "ranks": [2], "dtypes": ["float32"],
    }  # fmt: skip
    module = found["modules"][0]
    assert module["path"] == "model.layers.0.self_attn.q_proj"
    assert (module["a"], module["b"], module["scale"]) == ([2, 3], [4, 2], 2.0)
    assert found["modules"][-1]["replaced"] == {"weight": [2, 4]}
    graph = found["graph"]
    assert graph["nodes"][0] == "input" and graph["nodes"][-1] == "score"
    assert len(graph["nodes"]) == 6
    assert graph["edges"][0] == {
        "from": "input", "to": "model.layers.0.self_attn.q_proj", "r": 2, "alpha": 4.0,
        "dropout": 0.1,
    }  # fmt: skip
    assert len(graph["edges"]) == 2 + 4 + 2


def test_several_adapters(cuvilc: Cuvilc, tmp_path: Path) -> None:
    files.write(tmp_path / "both" / "sql")
    files.write(tmp_path / "both" / "chat")
    found = cuvilc.ok("adapter", "inspect", "both", "--json").data["adapters"]
    assert [a["name"] for a in found] == ["chat", "sql"]
    shown = cuvilc.ok("adapter", "inspect", "both").out
    assert shown.startswith("chat  both/chat") and "\nsql  both/sql" in shown


def test_names_cannot_steer_the_terminal(cuvilc: Cuvilc, tmp_path: Path) -> None:
    values = files.pair("l.0.\x1b[2Jq_proj")
    files.write(tmp_path / "sql", values, target_modules="l.*")
    assert "\x1b" not in cuvilc.ok("adapter", "inspect", "sql", "--all").out


def broken(folder: Path) -> None:
    values = files.tensors() | files.pair("l.0.k_proj")
    del values[f"{files.PREFIX}l.0.q_proj.lora_B.weight"]
    files.write(folder, values)


def nan(folder: Path) -> None:
    values = files.tensors()
    values[f"{files.PREFIX}l.0.q_proj.lora_B.weight"][1, 1] = np.nan
    files.write(folder, values)


def truncated(folder: Path) -> None:
    files.write(folder)
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def pickled(folder: Path) -> None:
    files.write(folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def wide(folder: Path) -> None:
    files.write(folder, {n: t.astype(np.float64) for n, t in files.pair("l.0.q_proj").items()})


HOSTILE: dict[str, Any] = {
    "CUV701": lambda folder: folder.mkdir(),
    "CUV702": truncated,
    "CUV703": lambda folder: files.write(folder, r=0, use_magic=True),
    "CUV704": lambda folder: files.write(folder, peft_type="IA3"),
    "CUV706": broken,
    "CUV707": lambda folder: files.write(folder, r=4),
    "CUV708": nan,
    "CUV709": wide,
    "CUV710": pickled,
    "CUV711": lambda folder: files.write(
        folder, files.pair("l.0.q_proj"), graph_semantics={"dependency_level": "cross-attention"}
    ),
}


@pytest.mark.parametrize("code", HOSTILE)
def test_diagnostic(cuvilc: Cuvilc, tmp_path: Path, code: str) -> None:
    """CUV706 with CUV705."""
    HOSTILE[code](tmp_path / "sql")
    result = cuvilc("adapter", "inspect", "sql")
    assert result.code == 1 and result.out == "" and code in result.err
    check_golden(f"adapter-{code.lower()}", result.err + f"exit code {result.code}\n", tmp_path)


def test_loads_no_compiler(tmp_path: Path) -> None:
    assert loaded_by("adapter", "--help") == set()
    assert loaded_by("adapter", "inspect", str(files.write(tmp_path / "sql"))) <= {"numpy"}
