"""Quantise exported benchmark models with onnxruntime.quantization, as its users do.

A name ends in -int8 (static: QDQ, int8 activations and per-channel int8 weights, calibrated on the
model's own inputs) or -dynamic (activations quantised while running). The answers to compare with
are onnxruntime's on the quantised model, its optimisations off: what the model itself says.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def quantise(source: Path, kind: str, into: Path) -> None:
    """Write model.onnx, inputs.npz, ref.npz and meta.json of `source` quantised into a folder."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)
    with np.load(source / "inputs.npz") as file:
        feeds = {key: file[key] for key in file.files}
    model = into / "model.onnx"
    if kind == "int8":
        _static(source / "model.onnx", feeds, model)
    else:
        quantize_dynamic(source / "model.onnx", model, weight_type=QuantType.QInt8)
    np.savez(into / "inputs.npz", **feeds)
    np.savez(into / "ref.npz", **_answers(model, feeds))
    shutil.copy(source / "meta.json", into / "meta.json")


def _static(source: Path, feeds: dict[str, np.ndarray], model: Path) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Once(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows: Iterator[Any] = iter([feeds])

        def get_next(self) -> Any:
            return next(self.rows, None)

    ready = model.with_name("ready.onnx")
    quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
    quantize_static(
        str(ready), str(model), Once(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    ready.unlink()


def _answers(model: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))
