"""The suite's cases of every category, kept in a file: onnx computes many anew, in seconds."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
CATEGORIES = ("node", "simple", "light", "pytorch-converted", "pytorch-operator")
_LOCAL = "onnx/backend/test/data/light/"  # where a model of the suite's `real` kind is at hand
onnx_cases = import_module("tests.import.onnx_cases")  # the folder is named by a keyword


def all_cases() -> dict[str, Any]:
    """Every case by name, as tests/import/onnx_cases.py has them."""
    path = ROOT / "build" / "conformance" / f"suite-{onnx.__version__}.pickle"
    try:
        kept = pickle.loads(path.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):
        found = (*onnx_cases.iter_cases(), *stored_cases())
        kept = [(c.name, c.model.SerializeToString(), c.data, c.category) for c in found]
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_bytes(pickle.dumps(kept))
        aside.rename(path)
    return {
        name: onnx_cases.Case(name, onnx.ModelProto.FromString(model), data, category)
        for name, model, data, category in kept
    }


def stored_cases() -> Iterator[Any]:
    """The cases whose models onnx's package carries as files."""
    for category in CATEGORIES[1:]:
        for test in _tests(category):
            if test.model_dir is not None:
                folder = Path(test.model_dir)
                model = onnx.load(folder / "model.onnx")
                sets = [_stored(model, d) for d in sorted(folder.glob("test_data_set_*"))]
            elif not _is_local(test):
                continue
            else:
                path = Path(onnx.__file__).parents[1] / test.url
                model = onnx.load(path)
                sets = [(_made_inputs(model), _outputs(model, path))]
            yield onnx_cases.Case(test.name, model, tuple(sets), category)


def not_at_hand() -> list[str]:
    """Cases whose models would have to be downloaded."""
    return sorted(t.name for t in _tests("light") if t.model_dir is None and not _is_local(t))


def _tests(category: str) -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    return load_model_tests(kind="real" if category == "light" else category)


def _is_local(test: Any) -> bool:
    return str(test.url).startswith(_LOCAL)


def _stored(model: onnx.ModelProto, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    def values(kind: str, infos: Any) -> list[Any]:
        files = [folder / f"{kind}_{i}.pb" for i in range(len(infos))]
        return [_value(p, i.type) for p, i in zip(files, infos, strict=True) if p.exists()]

    inputs, outputs = values("input", model.graph.input), values("output", model.graph.output)
    return onnx_cases.by_name(model, (inputs, outputs))


def _value(path: Path, declared: onnx.TypeProto) -> Any:
    """A file's tensor; a list of arrays for a sequence."""
    if declared.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def _made_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Element i of n is i/n: what onnx's own runner feeds these models."""
    weights = {t.name for t in model.graph.initializer}
    found = {}
    for info in model.graph.input:
        if info.name not in weights:
            shape = [d.dim_value or 1 for d in info.type.tensor_type.shape.dim]
            count = int(np.prod(shape))
            found[info.name] = (np.arange(count).reshape(shape) / count).astype(np.float32)
    return found


def _outputs(model: onnx.ModelProto, path: Path) -> dict[str, Any]:
    return {
        info.name: _value(path.with_name(f"{path.stem}_output_{i}.pb"), info.type)
        for i, info in enumerate(model.graph.output)
    }
