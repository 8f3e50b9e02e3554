"""Run the command line in this process; small models; goldens."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvilc.cli import main

GOLDENS = Path(__file__).parents[1] / "goldens"


@dataclass
class Result:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


class Cuvilc:
    """cuvilc("build", path, …) → Result."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd

    def __call__(self, *arguments: object) -> Result:
        self.capfd.readouterr()
        code = main([str(a) for a in arguments])
        out, err = self.capfd.readouterr()
        return Result(code, out, err)

    def ok(self, *arguments: object) -> Result:
        result = self(*arguments)
        assert result.code == 0, result.err or result.out
        return result


def dense() -> onnx.ModelProto:
    """y = relu(x · w + b) for x: float32[batch, 8]; z = y in another shape."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 20)).astype(np.float32),
        "b": rng.standard_normal(20).astype(np.float32),
        "s": np.array([0, 4, 5], np.int64),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="/fc/matmul"),
        helper.make_node("Add", ["m", "b"], ["a"], name="/fc/add"),
        helper.make_node("Relu", ["a"], ["y"], name="/act"),
        helper.make_node("Reshape", ["y", "s"], ["z"], name="/reshape"),
    ]
    return model(nodes, {"x": ["batch", 8]}, ["y", "z"], weights)


def gather() -> onnx.ModelProto:
    """y = table[i]: an index can be wrong."""
    weights = {"table": np.arange(12, dtype=np.float32).reshape(4, 3)}
    node = helper.make_node("Gather", ["table", "i"], ["y"], name="/embed")
    return model([node], {"i": ["n"]}, ["y"], weights, {"i": TensorProto.INT64})


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    types: dict[str, int] | None = None,
) -> onnx.ModelProto:
    kinds = types or {}
    graph = helper.make_graph(
        nodes,
        "main",
        [
            helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), s)
            for n, s in inputs.items()
        ],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def save(folder: Path, proto: onnx.ModelProto, name: str = "net.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def check_golden(name: str, text: str, folder: Path) -> None:
    """`text`, with the test's folder as DIR, is tests/goldens/NAME.txt.

    CUVILC_UPDATE_GOLDEN=1 writes the file instead.
    """
    found = text.replace(str(folder), "DIR").rstrip() + "\n"
    found = re.sub(r"\b[0-9a-f]{64}\b", "SHA256", found)
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("CUVILC_UPDATE_GOLDEN"):
        path.write_text(found, "utf-8")
    assert path.exists(), f"no {path.name}: run with CUVILC_UPDATE_GOLDEN=1"
    assert found == path.read_text("utf-8")
