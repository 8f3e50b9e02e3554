"""Operators that no package can run, each with the reason: the import says it before all work."""

from __future__ import annotations

from typing import Any

from ._table import Refusal, importer
from .onnx_node import Node
from .onnx_nodes_ml import ML
from .onnx_nodes_training import TRAINING

_STRINGS = "strings are not supported: process them before the model"
_MAPS = "maps are not supported: give the model tensors"
_IMAGES = "files of images are not supported: decode them before the model"
_GRADIENT = "gradients are not computed: export the model with them worked out"

_REASONS = {
    ("", "StringConcat"): _STRINGS, ("", "StringNormalizer"): _STRINGS,
    ("", "StringSplit"): _STRINGS, ("", "RegexFullMatch"): _STRINGS,
    ("", "ImageDecoder"): _IMAGES, (ML, "CategoryMapper"): _STRINGS,
    (ML, "CastMap"): _MAPS, (ML, "DictVectorizer"): _MAPS, (TRAINING, "Gradient"): _GRADIENT,
}  # fmt: skip


def _always(reason: str) -> Refusal:
    def refuse(attributes: dict[str, Any]) -> str:
        return reason

    return refuse


def _never(n: Node) -> None:
    raise AssertionError(f"{n.op} is refused before it is imported")


for (_domain, _name), _reason in _REASONS.items():
    importer(_name, domain=_domain, refuse=_always(_reason))(_never)
