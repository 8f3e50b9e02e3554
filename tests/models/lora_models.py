"""Small transformers and a convolutional net, exported by torch; adapters that PEFT makes of them.

The truth is PEFT's own model in float64.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from torch import nn

from cuvilc.driver import BuildRequest, build

logging.getLogger("torch.onnx").setLevel(logging.ERROR)


class Plain(nn.Module):
    """A transformer with one input and one output: no cache, nothing masked."""

    def __init__(self, model: nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        options: dict[str, Any] = {}
        if hasattr(self.model.config, "use_cache"):
            options |= {"use_cache": False, "attention_mask": torch.ones_like(x)}
        found: torch.Tensor = self.model(x, **options)[self.output]
        return found


class ConvNet(nn.Module):
    """Convolutions of each kind: strided, pointwise, in groups, of one axis; a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.point = nn.Conv2d(16, 24, 1, bias=False)
        self.wide = nn.Conv2d(24, 16, (3, 1), padding=(1, 0))
        self.line = nn.Conv1d(16, 12, 3, padding=1)
        self.head = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.wide(torch.relu(self.point(torch.relu(self.stem(x))))))
        return self.head(torch.relu(self.line(y.flatten(2))).mean(2))


def _ids() -> torch.Tensor:
    return torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(1))


def _image(side: int) -> torch.Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def _bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=80, max_position_embeddings=32, attn_implementation="eager",
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=32, n_embd=48, n_layer=2, n_head=4, attn_implementation="eager"
    )
    return transformers.GPT2LMHeadModel(config)


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=80,
        image_size=16, patch_size=8, num_labels=10, attn_implementation="eager",
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


@dataclass(frozen=True)
class Model:
    make: Callable[[], nn.Module]
    input: Callable[[], torch.Tensor]
    output: str = "logits"  # "" where the model gives a tensor

    def callable(self, model: nn.Module) -> nn.Module:
        """What is exported, and run for the truth."""
        return Plain(model, self.output) if self.output else model

    def base(self) -> nn.Module:
        """With biases as of a trained model: an exporter leaves out those that are zero."""
        torch.manual_seed(0)
        model = self.make().eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_(std=0.1)
        return model


MODELS = {
    "bert": Model(_bert, _ids), "gpt2": Model(_gpt2, _ids), "llama": Model(_llama, _ids),
    "vit": Model(_vit, lambda: _image(16)), "conv": Model(ConvNet, lambda: _image(12), ""),
}  # fmt: skip


def export(name: str, path: Path, dynamo: bool) -> None:
    """The base model as an exporter of torch's writes it, without the adapter."""
    model = MODELS[name]
    export_module(model.callable(model.base()), model.input(), path, dynamo)


def export_module(module: nn.Module, x: torch.Tensor, path: Path, dynamo: bool) -> None:
    """Any module, from `x` to `y`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (x,), str(path), dynamo=dynamo, input_names=["x"], output_names=["y"],
            verbose=False,
        )  # fmt: skip


def package_of(folder: Path, package: Path, mode: str, names: Sequence[str]) -> Path:
    """The package of a folder's model.onnx with adapters that lie beside it under their names."""
    places = [(folder / name, name) for name in names]
    build(BuildRequest(folder / "model.onnx", package, vectors=0, lora=mode, adapters=places))
    return package


def prepared(
    name: str, folder: Path, dynamo: bool, cases: list[tuple[str, dict[str, Any]]]
) -> dict[str, np.ndarray]:
    """Export the model, and save an adapter of each case in the folder; what each gives."""
    export(name, folder / "model.onnx", dynamo)
    return {case: adapt(name, folder / case, **options) for case, options in cases}


def adapt(
    name: str, folder: Path, seed: int = 0, merges: bool = True, std: float = 0.2, **options: Any
) -> np.ndarray:
    """Save a random adapter of the model; what PEFT's model then gives, in float64.

    merges: PEFT can merge it, and then gives the same; not so for tied weights. std: of A and B.
    """
    model = MODELS[name]
    torch.manual_seed(seed)
    adapted = peft.get_peft_model(copy.deepcopy(model.base()), peft.LoraConfig(**options))
    for parameter_name, parameter in adapted.named_parameters():
        if "lora_magnitude" in parameter_name:
            parameter.data *= torch.empty_like(parameter).uniform_(0.5, 1.5)
        elif "lora_" in parameter_name:
            torch.nn.init.normal_(parameter.data, std=std)
        elif parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(folder)
    return truth(name, adapted, merges)


def adapt_module(
    base: nn.Module, x: torch.Tensor, folder: Path, seed: int, std: float, **options: Any
) -> np.ndarray:
    """Save an adapter of a transformer, all of which is moved at random; its logits in float64."""
    torch.manual_seed(seed)
    adapted = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**options))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += std * torch.randn_like(parameter)
    adapted.save_pretrained(folder)
    with torch.no_grad():
        found: np.ndarray = Plain(adapted.double().eval().base_model.model, "logits")(x).numpy()
    return found


def truth(name: str, adapted: Any, merges: bool) -> np.ndarray:
    """The adapted model's output in float64, and the same when PEFT has merged it, if it can."""
    model = MODELS[name]
    wide = adapted.double().eval()
    x = model.input()
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad():
        apart: np.ndarray = model.callable(wide.base_model.model)(x).numpy()
        if merges:
            merged = model.callable(wide.merge_and_unload())(x).numpy()
            np.testing.assert_allclose(merged, apart, rtol=1e-6, atol=1e-7 * np.abs(apart).max())
    return apart
