"""`--lora batch` on transformers whose attention mask is an input, as torch's exporters write
them: a row of its own mask and adapter gives what the package with this adapter alone gives.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import pytest

from tests.tolerances import mismatch

pytest.importorskip("peft")
pytest.importorskip("transformers")

import torch
import transformers

from tests.models import lora_models

NAMES = ("one", "two")


class Masked(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        options = {"use_cache": False} if hasattr(self.model.config, "use_cache") else {}
        found: torch.Tensor = self.model(input_ids=x, attention_mask=mask, **options).logits
        return found


def _export(model: torch.nn.Module, path: Path, form: str) -> None:
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=32)}
    x = torch.ones((2, 9), dtype=torch.int64)
    options: dict[str, Any] = {"dynamo": form != "legacy"}
    if form == "open":
        options["dynamic_shapes"] = {"x": axes, "mask": axes}
    elif form == "legacy":
        names = {0: "batch", 1: "seq"}
        options["dynamic_axes"] = {"x": names, "mask": names, "y": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Masked(model), (x, x), str(path), verbose=False,
            input_names=["x", "mask"], output_names=["y"], **options,
        )  # fmt: skip


def _llama_classifier() -> torch.nn.Module:
    """It picks the last token of each row by `logits[batch index, place]`."""
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForSequenceClassification(config)


CASES: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    "bert eager": (lora_models.MODELS["bert"].make, "eager", "open", {"task_type": "SEQ_CLS"}),
    "bert sdpa": (lora_models.MODELS["bert"].make, "sdpa", "open", {}),
    "bert of fixed sizes": (lora_models.MODELS["bert"].make, "sdpa", "fixed", {}),
    "bert of the legacy exporter": (lora_models.MODELS["bert"].make, "eager", "legacy", {}),
    "llama": (lora_models.MODELS["llama"].make, "sdpa", "open", {}),
    "llama classifier": (_llama_classifier, "eager", "open", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_with_masks_of_their_own(tmp_path: Path, case: str) -> None:
    make, attention, form, options = CASES[case]
    torch.manual_seed(0)
    model = make().eval()
    model.config._attn_implementation = attention
    _export(model, tmp_path / "model.onnx", form)
    attended = ["query", "value"] if "bert" in case else ["q_proj", "v_proj"]
    for seed, name in enumerate(NAMES):
        lora_models.adapt_module(
            model, lora_models.MODELS["bert"].input(), tmp_path / name, seed, 0.2,
            r=4 * seed + 4, target_modules=attended, **options,
        )  # fmt: skip
    batched = cuvil.load(lora_models.package_of(tmp_path, tmp_path / "batch.cuvil", "batch", NAMES))
    alone: dict[str | None, Any] = {}
    for name in (None, *NAMES):
        chosen = [name] if name else []
        path = lora_models.package_of(tmp_path, tmp_path / f"{name}.cuvil", "", chosen)
        alone[name] = cuvil.load(path)
    rng = np.random.default_rng(0)
    sizes = ((2, 9),) * 3 if form == "fixed" else ((1, 9), (3, 7), (5, 5), (9, 4))
    for batch, length in sizes:
        x = rng.integers(1, 60, (batch, length))
        mask = (np.arange(length) < rng.integers(1, length + 1, (batch, 1))).astype(np.int64)
        feeds = {"x": x * mask, "mask": mask}
        assert mismatch(alone["one"].run(feeds)["y"], alone[None].run(feeds)["y"])
        rows = [[None, *NAMES][i] for i in rng.integers(0, 3, batch)]
        found = batched.run(feeds, adapters=rows)["y"]
        for i, name in enumerate(rows):
            assert not mismatch(found[i], alone[name].run(feeds)["y"][i]), (batch, length, i, name)
