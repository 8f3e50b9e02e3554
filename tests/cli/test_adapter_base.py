"""`cuvilc adapter inspect --base`: what attaches to a model, and what is left over."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from .helpers import Cuvilc, check_golden

files = import_module("tests.import.lora_files")  # the folder is named by a keyword
builders = import_module("tests.import.builders")
graphs = import_module("tests.import.lora_graphs")


def made(folder: Path, name: str = "q_proj", seed: int = 1) -> None:
    """An adapter of layers 0 and 1, and a model that has them (the second under `name`)."""
    files.write(folder / "sql", files.pair("l.0.q_proj") | files.pair("l.1.q_proj"))
    k, n = 3, 4
    nodes = [
        graphs.node("MatMul", "x m.l.0.q_proj.weight", "h", "/m/l.0/q_proj/MatMul"),
        graphs.node("MatMul", "x onnx::MatMul_7", "p", f"/m/l.1/{name}/MatMul"),
        graphs.node("Add", "h p", "y"),
    ]
    weights = {
        "m.l.0.q_proj.weight": graphs.values(k, n),
        "onnx::MatMul_7": graphs.values(k, n, seed=seed),
    }
    proto = builders.model(nodes, [builders.tensor("x", ["b", k])], ["y"], weights)
    builders.saved(folder, proto)


def test_page(cuvilc: Cuvilc, tmp_path: Path) -> None:
    made(tmp_path)
    shown = cuvilc.ok("adapter", "inspect", "sql", "--base", "model.onnx").out
    check_golden("adapter-attached", re.sub(r" {2,}|─+", "  ", shown), tmp_path)


def test_what_is_left_over(cuvilc: Cuvilc, tmp_path: Path) -> None:
    made(tmp_path, "query")
    result = cuvilc("adapter", "inspect", "sql", "--base", "model.onnx")
    assert result.code == 1
    shown = re.sub(r" {2,}|─+", "  ", result.out) + f"exit code {result.code}\n"
    check_golden("adapter-left-over", shown, tmp_path)


def test_json(cuvilc: Cuvilc, tmp_path: Path) -> None:
    made(tmp_path, "query")
    result = cuvilc("adapter", "inspect", "sql", "--base", "model.onnx", "--json")
    assert result.code == 1
    base = result.data["base"]
    (site,) = base["attached"]
    assert site == {
        "module": "l.0.q_proj", "parameter": "weight", "kind": "linear",
        "weight": "m.l.0.q_proj.weight", "shape": [3, 4], "out_axis": 1, "outputs": [0, 4],
        "nodes": ["/m/l.0/q_proj/MatMul"],
        "evidence": "the name `m.l.0.q_proj.weight`; node `/m/l.0/q_proj/MatMul`",
    }  # fmt: skip
    assert [d["code"] for d in base["left_over"]] == ["CUV720"]


def test_the_map_and_the_checkpoint_settle_it(cuvilc: Cuvilc, tmp_path: Path) -> None:
    made(tmp_path, "query")
    inspect = ("adapter", "inspect", "sql", "--base", "model.onnx", "--json")
    (tmp_path / "map.json").write_text(json.dumps({"l.1.q_proj": "onnx::MatMul_7"}))
    base = cuvilc.ok(*inspect, "--adapter-map", "map.json").data["base"]
    assert len(base["attached"]) == 2 and base["left_over"] == []
    tensors = {
        f"l.{i}.q_proj.weight": np.ascontiguousarray(graphs.values(3, 4, seed=i).T) for i in (0, 1)
    }
    save_file(tensors, tmp_path / "base.safetensors")
    base = cuvilc.ok(*inspect, "--base-weights", "base.safetensors").data["base"]
    assert "the values of `l.1.q_proj.weight`" in base["attached"][1]["evidence"]


def again(folder: Path) -> list[str]:
    files.write(folder / "sql", files.pair("a.l.q_proj") | files.pair("b.l.q_proj"))
    nodes = [graphs.node("MatMul", "x l.q_proj.weight", "y")]
    weights = {"l.q_proj.weight": graphs.values(3, 4)}
    builders.saved(folder, builders.model(nodes, [builders.tensor("x", ["b", 3])], ["y"], weights))
    return []


def narrow(folder: Path) -> list[str]:
    files.write(folder / "sql", files.pair("l.0.q_proj"))
    nodes = [graphs.node("MatMul", "x l.0.q_proj.weight", "y")]
    weights = {"l.0.q_proj.weight": graphs.values(3, 5)}
    builders.saved(folder, builders.model(nodes, [builders.tensor("x", ["b", 3])], ["y"], weights))
    return []


def bias(folder: Path) -> list[str]:
    made(folder)
    values = files.pair("l.0.q_proj")
    values[f"{files.PREFIX}l.0.q_proj.bias"] = np.ones(5, np.float32)  # of 4 outputs
    files.write(folder / "sql", values, bias="lora_only")
    return []


def elsewhere(folder: Path) -> list[str]:
    files.write(folder / "sql", files.pair("l.0.q_proj"))
    nodes = [graphs.node("MatMul", "x l.0.q_proj.weight", "y", "/other/fc/MatMul")]
    weights = {"l.0.q_proj.weight": graphs.values(3, 4)}
    builders.saved(folder, builders.model(nodes, [builders.tensor("x", ["b", 3])], ["y"], weights))
    return []


def other_base(folder: Path) -> list[str]:
    made(folder)
    tensors = {f"l.{i}.q_proj.weight": graphs.values(4, 3, seed=7) for i in (0, 1)}
    save_file(tensors, folder / "base.safetensors")
    return ["--base-weights", "base.safetensors"]


def bad_map(folder: Path) -> list[str]:
    made(folder)
    (folder / "map.json").write_text('{"l.2.q_proj": "onnx::MatMul_7"}')
    return ["--adapter-map", "map.json"]


REFUSED = {
    "CUV721": again, "CUV722": narrow, "CUV723": bias, "CUV724": elsewhere, "CUV725": other_base,
    "CUV726": bad_map,
}  # fmt: skip


@pytest.mark.parametrize("code", REFUSED)
def test_diagnostic(cuvilc: Cuvilc, tmp_path: Path, code: str) -> None:
    more = REFUSED[code](tmp_path)
    result = cuvilc("adapter", "inspect", "sql", "--base", "model.onnx", *more)
    assert result.code == (2 if code == "CUV726" else 1)
    shown = (result.out + result.err)[(result.out + result.err).index("error[") :]
    assert code in shown
    check_golden(f"adapter-{code.lower()}", f"{shown}exit code {result.code}\n", tmp_path)


def test_options_of_the_base_alone(cuvilc: Cuvilc, tmp_path: Path) -> None:
    made(tmp_path)
    result = cuvilc("adapter", "inspect", "sql", "--base-weights", "base.safetensors")
    assert result.code == 2 and "need --base" in result.err
