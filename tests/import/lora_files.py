"""Adapters written by hand, byte by byte where that matters: for tests of what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.1,
    "target_modules": ["q_proj", "v_proj"],
}  # fmt: skip
PREFIX = "base_model.model."
_NAMES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "bfloat16": "BF16"}


def pair(path: str, r: int = 2, inputs: int = 3, outputs: int = 4) -> dict[str, np.ndarray]:
    """A and B of a linear layer."""
    rng = np.random.default_rng(len(path))
    return {
        f"{PREFIX}{path}.lora_A.weight": rng.uniform(-1, 1, (r, inputs)).astype(np.float32),
        f"{PREFIX}{path}.lora_B.weight": rng.uniform(-1, 1, (outputs, r)).astype(np.float32),
    }


def tensors() -> dict[str, np.ndarray]:
    return pair("l.0.q_proj") | pair("l.0.v_proj")


def file_bytes(header: dict[str, Any] | bytes, data: bytes) -> bytes:
    """A safetensors file of a header, as it is, and data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def safetensors(
    values: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> tuple[dict[str, Any], bytes]:
    """Header and data."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, value in values.items():
        raw = value.tobytes()
        header[name] = {
            "dtype": _NAMES[value.dtype.name], "shape": list(value.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }  # fmt: skip
        data += raw
    return header, data


def write_file(
    path: Path, values: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> Path:
    path.write_bytes(file_bytes(*safetensors(values, metadata)))
    return path


def write(folder: Path, values: dict[str, np.ndarray] | None = None, **config: Any) -> Path:
    """A folder as PEFT writes it. A field given as None leaves the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {k: v for k, v in (CONFIG | config).items() if v is not None}
    (folder / "adapter_config.json").write_text(json.dumps(whole))
    write_file(folder / "adapter_model.safetensors", tensors() if values is None else values)
    return folder
