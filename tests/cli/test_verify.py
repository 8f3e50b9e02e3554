"""`cuvilc verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from cuvilc.package.vectors import Case, Vectors, write_vectors_file
from cuvilc.verify import difference

from .helpers import Cuvilc, dense, model, save

PACKAGES = ["net.cuvil", "null.cuvil"]
TOLERANCE = {"rtol": 1e-4, "atol": 1e-7}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_right_package(cuvilc: Cuvilc, folder: Path, package: str) -> None:
    result = cuvilc.ok("verify", package)
    assert "all within tolerance" in result.out
    data = cuvilc.ok("verify", package, "--json").data
    assert set(data) == {
        "package", "ok", "files", "checks", "levels_not_run", "notes", "errors",
    }  # fmt: skip
    assert data["ok"] is True
    assert set(data["checks"][0]) == {
        "case", "output", "level", "threads", "error", "limit", "problem", "ok",
    }  # fmt: skip
    if package == "net.cuvil":
        assert {c["threads"] for c in data["checks"]} == {1, 2}


@pytest.mark.parametrize("package", PACKAGES)
def test_against_onnxruntime_at_several_sizes(cuvilc: Cuvilc, folder: Path, package: str) -> None:
    pytest.importorskip("onnxruntime")
    data = cuvilc.ok("verify", package, "--against", "net.onnx", "--json").data
    cases = {c["case"] for c in data["checks"]}
    assert {"vector 0", "batch=1"} <= cases
    assert len(cases) == 4
    fixed = cuvilc.ok("verify", package, "--against", "net.onnx", "--dim", "batch=9", "--json")
    assert {c["case"] for c in fixed.data["checks"]} == {"vector 0", "batch=9"}


@pytest.mark.parametrize("target", ["null", "x86"])
def test_the_error_of_bfloat16_weights(cuvilc: Cuvilc, tmp_path: Path, target: str) -> None:
    """Greater than float32's, and within what bfloat16 allows."""
    path = save(tmp_path, dense())
    options = ("--target", target, "--vectors", "1", "--precision", "bf16", "-o", "b.cuvil")
    cuvilc.ok("build", path, *options)
    checks = cuvilc.ok("verify", "b.cuvil", "--json").data["checks"]
    assert all(1e-5 < c["error"] <= c["limit"] < 0.03 for c in checks)
    refused = cuvilc("build", path, "--precision", "fp8")
    assert refused.code == 2
    assert "`fp8` is not a precision" in refused.err


def test_sizes_that_the_package_refuses_are_not_compared(cuvilc: Cuvilc, tmp_path: Path) -> None:
    """y = x, but in the package with a window that adds 0, and does not fit h = 1."""
    pytest.importorskip("onnxruntime")
    sizes: dict[str, list[Any]] = {"x": [1, 1, "h"]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["windows"], name="/window"),
        helper.make_node("ReduceSum", ["windows"], ["zero"]),
        helper.make_node("Add", ["x", "zero"], ["y"]),
    ]
    ours = model(nodes, sizes, ["y"], {"w": np.zeros((1, 1, 3), np.float32)})
    save(tmp_path, model([helper.make_node("Identity", ["x"], ["y"])], sizes, ["y"]), "theirs.onnx")
    cuvilc.ok("build", save(tmp_path, ours), "--target", "null", "-o", "c.cuvil")
    data = cuvilc.ok("verify", "c.cuvil", "--against", "theirs.onnx", "--json").data
    assert "h=1: the package refuses these sizes: a window of 3" in " ".join(data["notes"])
    assert "h=1" not in {c["case"] for c in data["checks"]}
    assert len({c["case"] for c in data["checks"]}) >= 3


def test_against_another_model(cuvilc: Cuvilc, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    other = dense()
    values = np.frombuffer(other.graph.initializer[0].raw_data, np.float32) * 2
    other.graph.initializer[0].raw_data = values.tobytes()
    result = cuvilc("verify", "null.cuvil", "--against", save(folder, other, "other.onnx"))
    assert result.code == 1
    assert "error[CUV622]" in result.err
    assert "WRONG" in result.out


def test_levels_and_threads_that_agree_share_a_row(cuvilc: Cuvilc, folder: Path) -> None:
    result = cuvilc.ok("verify", "net.cuvil")
    assert [line.split()[0] for line in result.out.splitlines() if "vector 0" in line] == ["ok"] * 2
    compared = len(cuvilc.ok("verify", "net.cuvil", "--json").data["checks"])
    assert compared > 2
    assert f"{compared} comparisons" in result.out


@pytest.mark.parametrize("content", [None, b"no model"])
def test_an_oracle_that_refuses(cuvilc: Cuvilc, folder: Path, content: bytes | None) -> None:
    pytest.importorskip("onnxruntime")
    if content is not None:
        Path("bad.onnx").write_bytes(content)
    result = cuvilc("verify", "null.cuvil", "--against", "bad.onnx")
    assert (result.code, "CUV625" in result.err) == (1, True)


def test_without_onnxruntime(cuvilc: Cuvilc, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    result = cuvilc("verify", "null.cuvil", "--against", "net.onnx")
    assert result.code == 2
    assert "error[CUV623]" in result.err
    assert "pip install onnxruntime" in result.err


def test_without_the_runtime(cuvilc: Cuvilc, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuvil", None)
    result = cuvilc("verify", "net.cuvil")
    assert (result.code, "pip install cuvil" in result.err) == (2, True)
    cuvilc.ok("verify", "null.cuvil")


@pytest.mark.parametrize("name", ["program.mlir", "weights.npz", "vectors.npz"])
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_file(cuvilc: Cuvilc, folder: Path, name: str, damage: str) -> None:
    file = folder / "null.cuvil" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data if damage == "flip" else data[:-1])
    result = cuvilc("verify", "null.cuvil")
    assert (result.code, "CUV523" in result.err) == (1, True)
    assert cuvilc("verify", "null.cuvil", "--json").data["errors"][0]["code"] == "CUV523"


def test_a_package_without_vectors_says_so(cuvilc: Cuvilc, folder: Path) -> None:
    cuvilc.ok("build", "net.onnx", "--target", "null", "--vectors", 0)
    result = cuvilc.ok("verify", "net.cuvil")
    assert "no test vectors" in result.err
    assert "--vectors 1" in result.err


def test_wrong_vectors(cuvilc: Cuvilc, folder: Path) -> None:
    """A package whose vectors disagree, with hashes that fit."""
    import json

    from cuvilc import artifact
    from cuvilc.package.vectors import read_vectors

    package = artifact.read_package(folder / "null.cuvil")
    vectors = read_vectors(package)
    assert vectors is not None
    case = Case(vectors.cases[0].inputs, [a + 1 for a in vectors.cases[0].outputs])
    file = package.path / "vectors.npz"
    write_vectors_file(file, Vectors([case], vectors.tolerance))
    metadata = json.loads((package.path / "metadata.json").read_bytes())
    info = {"sha256": artifact.file_sha256(file), "bytes": file.stat().st_size}
    metadata["files"]["vectors.npz"] = info
    (package.path / "metadata.json").write_bytes(artifact.canonical(metadata))
    result = cuvilc("verify", "null.cuvil")
    assert (result.code, "CUV622" in result.err) == (1, True)
    data = cuvilc("verify", "null.cuvil", "--json")
    assert (data.code, data.data["ok"]) == (1, False)
    assert data.data["errors"][0]["code"] == "CUV622"


def test_dim_is_for_the_oracle(cuvilc: Cuvilc, folder: Path) -> None:
    assert cuvilc("verify", "null.cuvil", "--dim", "batch=3").code == 2


def test_difference() -> None:
    one = np.ones(3, np.float32)
    error, limit, problem = difference(one, one * np.float32(1.01), TOLERANCE)
    assert error > limit
    assert not problem
    assert difference(one, one[:2], TOLERANCE)[2].startswith("shape")
    nan = np.array([1, np.nan, np.inf], np.float32)
    assert difference(nan, nan.copy(), TOLERANCE)[0] == 0
    assert "other places" in difference(nan, one, TOLERANCE)[2]
    zeros = np.zeros(3, np.float32)
    assert difference(zeros, zeros, TOLERANCE)[0] == 0
    assert difference(zeros + np.float32(1e-3), zeros, TOLERANCE)[0] > limit
    small = np.array([1, 2], np.int8)
    error, limit, _ = difference(small, small + np.int8(1), TOLERANCE)
    assert error <= limit
    error, limit, _ = difference(small.astype(np.int32), small.astype(np.int32) + 1, TOLERANCE)
    assert error > limit
    assert difference(np.empty(0, np.float32), np.empty(0, np.float32), TOLERANCE)[0] == 0


def test_tolerances_are_those_of_the_tests() -> None:
    from cuvilc.vectors import RELATIVE
    from tests import tolerances

    assert tolerances.RELATIVE == RELATIVE


def test_the_oracle_of_sequences_and_maps(cuvilc: Cuvilc, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    row = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ["n", 3])
    maps = helper.make_map_type_proto(onnx.TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    nodes = [
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
        helper.make_node("SequenceInsert", ["s", "y"], ["t"]),
        helper.make_node("ZipMap", ["y"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[7, 2, 5]),
    ]
    graph = helper.make_graph(
        nodes, "lists",
        [helper.make_value_info("s", helper.make_sequence_type_proto(row))],
        [
            helper.make_value_info("t", helper.make_sequence_type_proto(row)),
            helper.make_value_info("m", helper.make_sequence_type_proto(maps)),
        ],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    cuvilc.ok("build", save(tmp_path, proto), "--elements", "s=2", "--target", "null")
    data = cuvilc.ok("verify", "net.cuvil", "--against", "net.onnx", "--json").data
    assert {c["output"] for c in data["checks"]} == {"t.0", "t.1", "t.2", "m"}
    cuvilc.ok("build", "net.onnx", "--elements", "s=3", "--target", "null")
    assert cuvilc("verify", "net.cuvil", "--against", save(tmp_path, dense(), "d.onnx")).code == 1


def test_a_package_without_vectors(cuvilc: Cuvilc, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    cuvilc.ok("build", "net.onnx", "-o", "bare.cuvil", "--target", "null", "--vectors", 0)
    assert "only the files were checked" in cuvilc.ok("verify", "bare.cuvil").err
    compared = cuvilc.ok("verify", "bare.cuvil", "--against", "net.onnx")
    assert "only the files" not in compared.err
    assert "all within tolerance" in compared.out
