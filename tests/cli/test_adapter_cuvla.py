"""`cuvilc adapter inspect` of .cuvla files, and beside packages: what they are, what fits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from .helpers import Cuvilc, check_golden
from .test_adapter_build import WEIGHTS, adapter, files, mode, model, package  # noqa: F401


def shown(text: str) -> str:
    text = re.sub(r"fingerprint [0-9a-f]{8}", "fingerprint HASH", text)
    return re.sub(r" {2,}|─+", "  ", text)


@pytest.fixture
def chat(cuvilc: Cuvilc, package: Path) -> Path:  # noqa: F811
    """chat.cuvla, for the package m.cuvil."""
    adapter(package.parent / "chat", "v_proj", seed=2)
    cuvilc.ok("adapter", "build", "chat", "--base", "m.cuvil")
    return package.parent / "chat.cuvla"


@pytest.mark.parametrize("mode", ["swap", "batch"])
def test_what_a_file_is(cuvilc, chat, tmp_path, mode) -> None:  # noqa: F811
    found = cuvilc.ok("adapter", "inspect", "chat.cuvla")
    check_golden("adapter-cuvla", shown(found.out), tmp_path)
    [told] = cuvilc.ok("adapter", "inspect", "chat.cuvla", "--json").data["adapters"]
    [source] = cuvilc.ok("adapter", "inspect", "chat", "--json").data["adapters"]
    room = cuvilc.ok("inspect", "m.cuvil", "--json").data["metadata"]["lora"]
    assert told["sha256"] == source["sha256"] and told["base"] == room["fingerprint"]
    assert told["bytes"] == chat.stat().st_size and told["format"] == "cuvla"
    assert told["totals"] == {"modules": 1, "weights": 1, "ranks": [2]}
    assert told["modules"] == [
        {"path": "model.layers.0.v_proj", "changes": ["A, B"], "ranks": [2], "weights": [1]}
    ]


def test_whole_tensors_in_a_file(cuvilc, package, tmp_path) -> None:  # noqa: F811
    key = f"{files.PREFIX}model.layers.0.q_proj.weight"
    values = files.pair("model.layers.0.v_proj") | {key: WEIGHTS["model.layers.0.q_proj"] * 2}
    files.write(tmp_path / "head", values, modules_to_save=["q_proj"], target_modules=["v_proj"])
    cuvilc.ok("adapter", "build", "head", "--base", "m.cuvil")
    [told] = cuvilc.ok("adapter", "inspect", "head.cuvla", "--json").data["adapters"]
    assert [m["changes"] for m in told["modules"]] == [["whole"], ["A, B"]]


def test_whether_a_file_is_for_a_package(cuvilc, chat, tmp_path) -> None:
    found = cuvilc.ok("adapter", "inspect", "chat.cuvla", "--base", "m.cuvil", "--json").data
    [site] = found["base"]["attached"]
    assert (site["module"], site["parameter"]) == ("model.layers.0.v_proj", "weight")
    assert found["base"]["left_over"] == []
    cuvilc.ok("build", "m.onnx", "--lora", "swap", "--lora-modules", "q_proj", "-o", "q.cuvil")
    result = cuvilc("adapter", "inspect", "chat.cuvla", "--base", "q.cuvil")
    assert result.code == 1 and "error[CUV611]: the file was built for another" in result.out
    result = cuvilc("adapter", "inspect", "chat.cuvla", "--base", "m.onnx")
    assert result.code == 2 and "is for a package" in result.err


def test_what_was_built_is_no_source(cuvilc, chat) -> None:
    for command in (("build", "m.onnx", "--adapter"), ("adapter", "build", "--base", "m.cuvil")):
        result = cuvilc(*command, "chat.cuvla")
        assert result.code == 1 and "CUV701" in result.err and "already" in result.err


def test_other_things_in_an_adapters_place(cuvilc, package) -> None:  # noqa: F811
    for place, said in (("m.onnx", "this is a model"), ("m.cuvil", "`cuvilc inspect m.cuvil`")):
        result = cuvilc("adapter", "inspect", place)
        assert result.code == 1 and "CUV701" in result.err and said in result.err
    result = cuvilc("adapter", "build", "sql", "--base", "m.onnx")
    assert result.code == 1 and "CUV520" in result.err and "m.onnx --lora swap" in result.err


def test_damaged_files(cuvilc, chat, tmp_path) -> None:
    whole = chat.read_bytes()
    for at in (0, 8, 12, 20, 88, 104, 128 + 20, len(whole) - 1):
        chat.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        result = cuvilc("adapter", "inspect", "chat.cuvla")
        assert (result.code, result.out) == (1, "") and "CUV611" in result.err, at
    for size in (0, 7, 100, 130, len(whole) - 1):
        chat.write_bytes(whole[:size])
        assert "CUV611" in cuvilc("adapter", "inspect", "chat.cuvla").err, size


@pytest.mark.parametrize("mode", ["swap", "batch"])
def test_an_adapter_beside_a_package(cuvilc, package, tmp_path, mode) -> None:  # noqa: F811
    found = cuvilc.ok("adapter", "inspect", "sql", "--base", "m.cuvil").out
    check_golden("adapter-in-a-package", shown(found), tmp_path)
    values = files.pair("model.layers.0.q_proj") | files.pair("model.layers.0.k_proj")
    values |= files.pair("model.layers.0.v_proj", outputs=5)
    targets = ["q_proj", "k_proj", "v_proj"]
    files.write(tmp_path / "more", values, target_modules=targets)
    result = cuvilc("adapter", "inspect", "more", "--base", "m.cuvil")
    assert result.code == 1
    told = result.out[result.out.index("1 parameter attaches") :]
    check_golden("adapter-not-all-in-a-package", shown(told), tmp_path)


@pytest.mark.parametrize("mode", ["swap", "batch"])
def test_a_bias_is_told_once(cuvilc, tmp_path, mode) -> None:  # noqa: F811
    model(tmp_path / "m.onnx")
    module = "model.layers.0.q_proj"
    values = files.pair(module) | {f"{files.PREFIX}{module}.bias": np.ones(4, np.float32)}
    files.write(tmp_path / "tuned", values, target_modules=["q_proj"], bias="lora_only")
    cuvilc.ok("build", "m.onnx", "--adapter", "tuned", "--lora", mode, "--vectors", "0")
    told = cuvilc.ok("adapter", "inspect", "tuned", "--base", "m.cuvil", "--json").data["base"]
    assert sorted((p["module"], p["parameter"]) for p in told["attached"]) == [
        (module, "bias"), (module, "weight")
    ]  # fmt: skip


def test_a_package_that_takes_none(cuvilc, tmp_path) -> None:
    model(tmp_path / "m.onnx")
    adapter(tmp_path / "sql")
    cuvilc.ok("build", "m.onnx", "--vectors", "0")
    result = cuvilc("adapter", "inspect", "sql", "--base", "m.cuvil")
    assert result.code == 1 and "CUV762" in result.err
    result = cuvilc("adapter", "inspect", "sql", "--base", "m.cuvil", "--base-weights", "x")
    assert result.code == 2 and "for a model, not a package" in result.err


@pytest.mark.parametrize("width", [60, 80])
def test_narrow_terminals(cuvilc, package, tmp_path, monkeypatch, width) -> None:  # noqa: F811
    """No name of a module is broken, and no line is longer than it must be."""
    monkeypatch.setenv("COLUMNS", str(width))
    found = cuvilc.ok("adapter", "inspect", "sql", "--base", "m.cuvil").out
    if width == 80:
        check_golden("adapter-narrow", found, tmp_path)
    assert found.count("model.layers.0.q_proj") >= 3
    for line in found.splitlines():
        assert len(line) <= max(width, *(len(word) + 11 for word in line.split() or [""])), line


def test_an_adapter_of_another_model(cuvilc, package, tmp_path) -> None:  # noqa: F811
    """That nothing attaches is said once, before all that does not."""
    values = files.pair("encoder.h.0.attn.c_q") | files.pair("encoder.h.0.attn.c_v")
    trained = {"target_modules": ["c_q", "c_v"], "base_model_name_or_path": "some/other"}
    files.write(tmp_path / "other", values, **trained)
    result = cuvilc("build", "m.onnx", "--adapter", "other")
    assert result.code == 1
    check_golden("adapter-of-another-model", f"{result.err}exit code 1\n", tmp_path)
    result = cuvilc("adapter", "build", "other", "--base", "m.cuvil")
    check_golden("adapter-of-another-package", f"{result.err}exit code 1\n", tmp_path)
    first = "none of the 2 modules that adapter `other` changes is"
    for base in ("m.onnx", "m.cuvil"):
        result = cuvilc("adapter", "inspect", "other", "--base", base)
        assert result.code == 1
        assert result.out.index(first) < result.out.index(f"0 parameters attach to {base}, 2 left")
        told = cuvilc("adapter", "inspect", "other", "--base", base, "--json").data["base"]
        assert [first in line for line in told["nothing_attaches"]] == [True]
        assert len(told["left_over"]) == 2
        assert "adapter-map" not in result.out and "2 left over, see --all" in result.out
        every = cuvilc("adapter", "inspect", "other", "--base", base, "--all").out
        assert every.count("error[") == 2
