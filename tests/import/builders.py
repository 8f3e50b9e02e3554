"""Small ONNX models for tests."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvilc.diagnostics import CuvilError

registry = import_module("cuvilc.import.registry")
FLOAT = TensorProto.FLOAT


def tensor(name: str, shape: Sequence[int | str | None], elem: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    **more: Any,
) -> onnx.ModelProto:
    """A model with a graph `main`; outputs are declared without shape."""
    graph = helper.make_graph(
        nodes,
        "main",
        inputs,
        [helper.make_tensor_value_info(o, FLOAT, None) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, **{"ir_version": 10, **more})


def saved(folder: Path, proto: onnx.ModelProto, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def load(folder: Path, proto: onnx.ModelProto, **options: Any) -> Any:
    return registry.load(saved(folder, proto), registry.ImportOptions(**options))


def refusal(path: Path, **options: Any) -> CuvilError:
    """The error that loading raises."""
    with pytest.raises(CuvilError) as caught:
        registry.load(path, registry.ImportOptions(**options))
    return caught.value


def code(path: Path, **options: Any) -> str:
    return refusal(path, **options).diagnostics[0].code


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """`node("Add", "x y", "z")`."""
    return helper.make_node(
        op, inputs.split(), outputs.split(), name=f"{op}_{outputs}", **attributes
    )
