"""Adapters and small ONNX graphs for tests of attaching; no torch needed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import save_file

from cuvilc.adapter import Adapter, LowRank, ModuleChange
from cuvilc.diagnostics import CuvilError, Diagnostic
from cuvilc.dialect.lora_sites import Site, Sites

from .builders import load, model, tensor

attach = import_module("cuvilc.import.lora_attach")
RANK = 2


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def linear(path: str, n: int, k: int, bias: bool = False, **more: Any) -> ModuleChange:
    """A change of a linear layer of N outputs and K inputs; `bias` trains its bias too."""
    a, b = np.ones((RANK, k), np.float32), np.ones((n, RANK), np.float32)
    replaced = {"bias": values(n, seed=9)} if bias else {}
    low = LowRank(a, b, 1.0, RANK, float(RANK))
    return ModuleChange(path, "linear", low, replaced, tensors=(f"{path}.lora_A.weight",), **more)


def embedding(path: str, v: int, d: int) -> ModuleChange:
    low = LowRank(np.ones((RANK, v), np.float32), np.ones((d, RANK), np.float32), 1.0, RANK, 2.0)
    return ModuleChange(path, "embedding", low, tensors=(f"{path}.lora_embedding_A",))


def convolution(path: str, n: int, *rest: int) -> ModuleChange:
    low = LowRank(
        np.ones((RANK, *rest), np.float32), np.ones((n, RANK), np.float32), 1.0, RANK, 2.0
    )
    return ModuleChange(path, "convolution", low, tensors=(f"{path}.lora_A.weight",))


def adapter(*changes: ModuleChange, name: str = "x") -> Adapter:
    return Adapter(name, Path(name), changes, "0" * 64)


def node(op: str, inputs: str, output: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    """`inputs` and `output` are names joined by blanks."""
    return helper.make_node(op, inputs.split(), output.split(), name=name, **attributes)


def scoped(proto: onnx.NodeProto, path: str) -> onnx.NodeProto:
    """As torch's dynamo exporter marks a node of the module `path`."""
    parts = path.split(".")
    scopes = ["", *(".".join(parts[: i + 1]) for i in range(len(parts))), "linear"]
    classes = ["Model", *["Module"] * len(parts), "aten.linear.default"]
    for key, value in (("name_scopes", scopes), ("class_hierarchy", classes)):
        entry = proto.metadata_props.add()
        entry.key, entry.value = f"pkg.torch.onnx.{key}", str(value)
    return proto


def program(
    folder: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    inputs: dict[str, list[int | str]],
    output: str = "y",
    **more: Any,
) -> Any:
    """The imported program. Inputs are float32; one called `ids` is int64."""
    infos = [
        tensor(n, s, TensorProto.INT64 if n == "ids" else TensorProto.FLOAT)
        for n, s in inputs.items()
    ]
    proto = model(nodes, infos, [output], weights, **more)
    if any(n.domain for n in nodes):
        proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return load(folder, proto)


def found(made: Any, *changes: ModuleChange, **options: Any) -> Sites:
    sites: Sites = attach.find_sites(made, [adapter(*changes)], **options)
    return sites


def one(made: Any, change: ModuleChange, **options: Any) -> Site:
    """The only site of a change."""
    (site,) = found(made, change, **options)
    return site


def array(made: Any, site: Site) -> np.ndarray:
    """The module's part of the constant at a site, outputs first."""
    with made:
        whole = np.moveaxis(made.constant_array(site.value), site.out_axis, 0)
    part: np.ndarray = whole[site.start : site.start + site.size]
    return part


def consumers(made: Any, site: Site) -> list[tuple[str, int]]:
    with made:
        return [(operation.name, i) for operation, i in site.uses]


def refused(made: Any, *changes: ModuleChange, **options: Any) -> Diagnostic:
    """The one thing that is wrong."""
    with pytest.raises(CuvilError) as caught:
        found(made, *changes, **options)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def checkpoint(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    path = folder / "base.safetensors"
    save_file({n: np.ascontiguousarray(t) for n, t in tensors.items()}, path)
    return path
