"""Adapters that mean a weight by another's name, one weight twice, or weights of one number."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import cuvil
import numpy as np
import pytest

from tests.tolerances import mismatch

from .helpers import Cuvilc

files = import_module("tests.import.lora_files")  # the folder is named by a keyword
builders = import_module("tests.import.builders")
graphs = import_module("tests.import.lora_graphs")

K, N = 3, 4
X = np.random.default_rng(0).standard_normal((5, K)).astype(np.float32)


def model(folder: Path, *modules: str, bias: float | None = None) -> dict[str, np.ndarray]:
    """y = Σ x · W of the modules, each plus a bias of one number; the W [K, N] by module."""
    held, nodes = {}, []
    for i, name in enumerate(modules):
        held[name] = graphs.values(K, N, seed=i)
        nodes.append(graphs.node("MatMul", f"x {name}.weight", f"p{i}", f"/{name}/MatMul"))
        if bias is not None:
            nodes.append(graphs.node("Add", f"p{i} {name}.bias", f"b{i}", f"/{name}/Add"))
    terms = " ".join(n.output[0] for n in nodes if n.op_type == "Add" or bias is None)
    nodes.append(graphs.node("Sum", terms, "y", "/Sum"))
    weights = {f"{name}.weight": w for name, w in held.items()}
    if bias is not None:
        weights |= {f"{name}.bias": np.full(N, bias, np.float32) for name in modules}
    builders.saved(folder, builders.model(nodes, [builders.tensor("x", ["n", K])], ["y"], weights))
    return held


def delta(path: str) -> np.ndarray:
    """ΔW [K, N] of files.pair: alpha / r is 2."""
    a, b = (v.astype(np.float64) for v in files.pair(path, 2, K, N).values())
    result: np.ndarray = 2 * (b @ a).T
    return result


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    return not mismatch(found, wanted.astype(np.float32))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_map_to_another_module_leaves_the_one_of_the_name(cuvilc: Cuvilc, tmp_path: Path) -> None:
    """Both would be called `q_proj` in the package, and both be changed."""
    w = model(tmp_path, "q_proj", "v_proj")
    files.write(tmp_path / "sql", files.pair("q_proj", 2, K, N))
    (tmp_path / "map.json").write_text(json.dumps({"q_proj": "v_proj.weight"}))
    named = ("--adapter", "sql", "--adapter-map", "map.json", "--vectors", "0")
    cuvilc.ok("build", "model.onnx", *named, "--lora", "swap", "-o", "s.cuvil")
    loaded = cuvil.load("s.cuvil")
    loaded.use("sql")
    assert same(loaded(X), X @ (w["q_proj"] + w["v_proj"] + delta("q_proj")))
    loaded.close()


def test_two_modules_that_may_be_one_are_refused(cuvilc: Cuvilc, tmp_path: Path) -> None:
    """Of two changes none is dropped: an adapter for the whole model, a package of a part."""
    model(tmp_path, "q_proj", "v_proj")
    cuvilc.ok("build", "model.onnx", "--lora", "swap", "--vectors", "0", "-o", "s.cuvil")
    both = files.pair("a.q_proj", 2, K, N) | files.pair("bb.q_proj", 2, K, N)
    files.write(tmp_path / "sql", both)
    result = cuvilc("adapter", "build", "sql", "--base", "s.cuvil", "-o", "sql.cuvla")
    assert result.code == 1 and "CUV761" in result.err, result.err
    assert "`a.q_proj` and `bb.q_proj`, and both may be `q_proj`" in result.err
    assert not (tmp_path / "sql.cuvla").exists()


def test_modules_whose_paths_the_exporter_cut(cuvilc: Cuvilc, tmp_path: Path) -> None:
    """`a.proj` and `b.proj`, both called by the root: which one is `proj` of the package?"""
    held = {f"onnx::MatMul_{i}": graphs.values(K, K, seed=i) for i in (1, 2)}
    nodes = [
        graphs.node("MatMul", "x onnx::MatMul_1", "p", "/proj/MatMul"),
        graphs.node("MatMul", "p onnx::MatMul_2", "y", "/proj_1/MatMul"),
    ]
    inputs = [builders.tensor("x", ["n", K])]
    builders.saved(tmp_path, builders.model(nodes, inputs, ["y"], held))
    cuvilc.ok("build", "model.onnx", "--lora", "swap", "--vectors", "0", "-o", "s.cuvil")
    files.write(tmp_path / "sql", files.pair("b.proj", 2, K, K), target_modules=["proj"])
    result = cuvilc("adapter", "build", "sql", "--base", "s.cuvil", "-o", "sql.cuvla")
    assert result.code == 1 and "CUV761" in result.err, result.err


PREFIXED = ("q_proj", "block.q_proj", "block.v_proj")


@pytest.mark.parametrize("mode", ["swap", "batch"])
def test_a_module_that_may_not_change_is_not_taken_for_one_that_may(cuvilc, tmp_path, mode) -> None:
    """Of two modules that a prefix tells apart, the package exchanges one; then there is one."""
    w = model(tmp_path, *PREFIXED)
    files.write(tmp_path / "long", files.pair("block.q_proj", 2, K, N))
    files.write(tmp_path / "short", files.pair("q_proj", 2, K, N))
    build = ("build", "model.onnx", "--lora", mode, "--vectors", "0")
    for own, other in (("q_proj", "long"), ("block.q_proj", "short")):
        modules = f"({own})"  # an expression for the whole path
        cuvilc.ok(*build, "--lora-modules", modules, "-o", "p.cuvil")
        result = cuvilc("adapter", "build", other, "--base", "p.cuvil", "-o", "a.cuvla")
        assert result.code == 1 and "CUV761" in result.err, result.err
        assert "q_proj.weight`" in result.err and f"nearest: `{own}`" in result.err
    cuvilc.ok(*build, "-o", "p.cuvil")  # both may change: the very name counts
    for own, place in (("q_proj", "short"), ("block.q_proj", "long")):
        cuvilc.ok("adapter", "build", place, "--base", "p.cuvil", "-o", "a.cuvla")
        loaded = cuvil.load("p.cuvil")
        loaded.load_adapter("a.cuvla")
        if mode == "swap":
            loaded.use(place)
        found = loaded(X) if mode == "swap" else loaded(X, adapters=[place] * len(X))
        assert same(found, X @ (sum(w.values()) + delta(own))), own
        loaded.close()


def test_a_module_that_the_model_lacks_is_not_taken_for_another(cuvilc, tmp_path) -> None:
    """`block.v_proj` of another model is not `v_proj`: this one has a `block` too."""
    model(tmp_path, "v_proj", "block.k_proj")
    files.write(tmp_path / "sql", files.pair("block.v_proj", 2, K, N))
    cuvilc.ok("build", "model.onnx", "--lora", "swap", "--vectors", "0", "-o", "s.cuvil")
    result = cuvilc("adapter", "build", "sql", "--base", "s.cuvil", "-o", "sql.cuvla")
    assert result.code == 1 and "CUV761" in result.err, result.err
    result = cuvilc("build", "model.onnx", "--adapter", "sql")
    assert result.code == 1 and "CUV720" in result.err, result.err


@pytest.mark.parametrize("bias", [0, 0.5])
def test_biases_that_are_one_number(cuvilc: Cuvilc, tmp_path: Path, bias: float) -> None:
    """As layers are initialised: such a bias is no tensor in the program, but exchangeable."""
    w = model(tmp_path, "q_proj", "v_proj", bias=bias)
    trained = np.arange(N, dtype=np.float32) - 1
    tensors = files.pair("q_proj", 2, K, N) | {f"{files.PREFIX}q_proj.bias": trained}
    files.write(tmp_path / "sql", tensors, bias="lora_only")
    named = ("--adapter", "sql", "--vectors", "0")
    cuvilc.ok("build", "model.onnx", *named, "--lora", "swap", "-o", "s.cuvil")
    loaded = cuvil.load("s.cuvil")
    base = X @ (w["q_proj"] + w["v_proj"]) + 2 * bias
    before = loaded(X)
    assert same(before, base)
    loaded.use("sql")
    assert same(loaded(X), base + X @ delta("q_proj") + trained - bias)
    loaded.use(None)
    assert loaded(X).tobytes() == before.tobytes()
    loaded.close()
