"""Adapters folded into quantised models: the change is there, and the same kernels run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import onnx
import pytest

from cuvilc.driver import BuildRequest, build
from tests.models.test_lora_fold import work

pytest.importorskip("peft")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime.quantization", exc_type=ImportError)

from tests.models import lora_models

TARGETS = {"bert": ["query", "key", "dense"], "conv": ["stem", "point", "wide", "line", "head"]}
# What is left of the adapter's effect on the outputs that the quantised model does not show: 4-bit
# weights have 16 levels, and quantised activations keep the ranges that the base was given.
LEFT_OVER = {"blocks": 0.1, "blocks-asymmetric": 0.1, "qdq": 0.3}


def quantise(form: str, source: Path, path: Path, x: np.ndarray) -> None:
    """As onnxruntime's quantisers do it."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits

    if form == "qdq":
        feeds = iter([{"x": x}])
        reader = type("Reader", (), {"get_next": lambda self: next(feeds, None)})()
        quantize_static(
            str(source), str(path), reader, quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
        return
    options = nbits.DefaultWeightOnlyQuantConfig(block_size=16, is_symmetric=form == "blocks")
    quantizer = nbits.MatMulNBitsQuantizer(onnx.load(source), algo_config=options)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path))


def run(package: Path, x: np.ndarray) -> np.ndarray:
    model = cuvil.load(package)
    found: np.ndarray = model.run({"x": x})["y"]
    model.close()
    return found


@pytest.mark.parametrize(
    ("name", "form"),
    [("bert", "blocks"), ("bert", "blocks-asymmetric"), ("bert", "qdq"), ("conv", "qdq")],
)
def test_adapter_in_a_quantised_model(name: str, form: str, tmp_path: Path) -> None:
    x = lora_models.MODELS[name].input().numpy()
    lora_models.export(name, tmp_path / "float.onnx", dynamo=False)
    model = tmp_path / "model.onnx"
    quantise(form, tmp_path / "float.onnx", model, x)
    wanted = lora_models.adapt(
        name, tmp_path / "adapter", r=4, target_modules=TARGETS[name], std=0.03
    )
    plain = build(BuildRequest(model, tmp_path / "base.cuvil", vectors=0))
    request = BuildRequest(
        model, tmp_path / "folded.cuvil", adapters=[(tmp_path / "adapter", "")], verify=True
    )
    folded = build(request)
    assert folded.checks  # the package computes what the interpreter does
    assert work(folded.metadata) == work(plain.metadata)
    (adapter,) = folded.metadata["adapters"]
    narrow = [w for w in adapter["weights"] if w["dtype"] in ("int8", "uint4")]
    assert len(narrow) >= len(adapter["weights"]) - 1  # a Gemm of BERT's stays in float32
    for weight in narrow:
        assert 0 < weight["rms_error"] < 1.25 * weight["base_rms_error"]
    if name == "bert":
        effect = np.abs(wanted - run(tmp_path / "base.cuvil", x)).max()
        left: Any = np.abs(wanted - run(tmp_path / "folded.cuvil", x)).max()
        assert left < LEFT_OVER[form] * effect
