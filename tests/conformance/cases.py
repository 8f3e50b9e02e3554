"""The suite's cases, kept in a file: onnx computes them anew each time, which takes seconds."""

from __future__ import annotations

import os
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx

ROOT = Path(__file__).resolve().parents[2]
onnx_cases = import_module("tests.import.onnx_cases")  # the folder is named by a keyword


def all_cases() -> dict[str, Any]:
    """Every case by name, as tests/import/onnx_cases.py has them."""
    path = ROOT / "build" / "conformance" / f"cases-{onnx.__version__}.pickle"
    try:
        kept = pickle.loads(path.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):
        kept = [(c.name, c.model.SerializeToString(), c.data) for c in onnx_cases.iter_cases()]
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_bytes(pickle.dumps(kept))
        aside.rename(path)
    return {
        name: onnx_cases.Case(name, onnx.ModelProto.FromString(model), data)
        for name, model, data in kept
    }
