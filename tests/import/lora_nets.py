"""Adapters for tests: small nets with a module of each kind, trained by nobody, saved by PEFT.

`merged` is the float64 truth in NumPy; PEFT's own merge is the independent one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from cuvilc.adapter import ModuleChange


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(6, 8)
        self.k_proj = nn.Linear(6, 4)
        self.v_proj = nn.Linear(6, 4, bias=False)
        self.c_attn = Conv1D(10, 8)
        self.norm = nn.LayerNorm(6)


class Net(nn.Module):
    """No forward: only the weights matter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.layers = nn.ModuleList([Block() for _ in range(3)])
        self.conv1 = nn.Conv1d(3, 6, 3)
        self.conv2 = nn.Conv2d(4, 6, (3, 2))
        self.point = nn.Conv2d(4, 5, 1)
        self.conv3 = nn.Conv3d(2, 3, 2)
        self.batch_norm = nn.BatchNorm1d(5)
        self.classifier = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))


KINDS = ["embed", "q_proj", "k_proj", "v_proj", "c_attn", "conv1", "conv2", "point", "conv3"]


def adapted(seed: int = 0, net: type[nn.Module] = Net, dtype: Any = None, **options: Any) -> Any:
    """A net under PEFT with all trainable parameters random."""
    torch.manual_seed(seed)
    base = net().to(dtype)
    model = peft.get_peft_model(
        base, peft.LoraConfig(**options), autocast_adapter_dtype=dtype is None
    )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or "lora_" in name:
            parameter.data.uniform_(-1, 1)
        if "magnitude" in name:
            parameter.data.abs_()
    return model


def saved(folder: Path, seed: int = 0, **options: Any) -> Path:
    adapted(seed, **options).save_pretrained(folder)
    return folder


def weights_of(state: dict[str, Any]) -> dict[str, np.ndarray]:
    """A state_dict in float64, by name."""
    return {n: t.detach().double().numpy() for n, t in state.items()}


def delta(change: ModuleChange) -> np.ndarray:
    """ΔW in float64, as torch keeps the module's weight: see cuvilc/adapter.py."""
    assert change.low_rank is not None
    a = change.low_rank.a.astype(np.float64)
    b = change.low_rank.b.astype(np.float64)
    product = change.low_rank.scale * (b @ a.reshape(len(a), -1))
    if change.kind == "embedding":
        return product.T
    return product.reshape(len(b), *a.shape[1:])


def merged(change: ModuleChange, base: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The module's parameters with the change: replaced first, then ΔW and the magnitude."""
    after = {**base, **{n: np.asarray(v, np.float64) for n, v in change.replaced.items()}}
    if change.low_rank is None:
        return after
    d = delta(change)
    weight = after["weight"]
    # No layer of the nets is square, so the shape tells; the configuration's word is one for all
    # modules, though PEFT treats Conv1D otherwise than Linear whatever it says.
    flipped = change.kind == "linear" and weight.shape != d.shape
    total = (weight.T if flipped else weight) + d
    if change.low_rank.magnitude is not None:
        m = change.low_rank.magnitude.astype(np.float64)
        out = total.ndim - 1 if change.kind == "embedding" else 0
        rows = np.moveaxis(total, out, 0)
        norm = np.linalg.norm(rows.reshape(len(rows), -1), axis=1)
        total = np.moveaxis(rows * (m / norm).reshape(-1, *[1] * (rows.ndim - 1)), 0, out)
    after["weight"] = total.T if flipped else total
    if change.low_rank.bias is not None:
        bias = change.low_rank.bias.astype(np.float64)
        after["bias"] = after["bias"] + change.low_rank.scale * bias
    return after
