"""Adapters that PEFT wrote: adapter_config.json and adapter_model.safetensors in one folder.

Names of tensors are paths in the model behind `base_model.model.`, with
`lora_A[.ADAPTER].weight`, `lora_B[.ADAPTER].weight` and `.bias`, `lora_embedding_A[.ADAPTER]`,
`lora_embedding_B[.ADAPTER]`, `lora_magnitude_vector[.ADAPTER][.weight]` or
`token_adapter.trainable_tokens_delta[.ADAPTER]` at their end, or else with a parameter of the model
itself: trained biases, modules_to_save, resized embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from cuvilc.adapter import Adapter, Array, ModuleChange, Rows
from cuvilc.diagnostics import fail

from . import lora_codes as codes
from .lora_config import LoraConfig, read_config
from .lora_modules import (
    BIAS,
    EMBEDDING_A,
    EMBEDDING_B,
    MAGNITUDE,
    A,
    B,
    Found,
    ModuleConfig,
    change,
    in_order,
)
from .lora_patterns import BadPattern
from .lora_problems import Problems
from .lora_semantics import check_dependency
from .lora_tensors import TensorFile, check_values, read_tensors

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."

_TRAINING = "of training"  # VeLoRA's: how activations were kept for the way back, nothing else
# Marker in a name -> roles by what stands behind it ("" where nothing may stand there).
_ROLES = {
    "lora_A": {"weight": A},
    "lora_B": {"weight": B, "bias": BIAS},
    "lora_embedding_A": {"": EMBEDDING_A},
    "lora_embedding_B": {"": EMBEDDING_B},
    "lora_magnitude_vector": {"": MAGNITUDE, "weight": MAGNITUDE},
    "lora_velora_embed": {"": _TRAINING},
}
# Of these PEFT saves the whole table where the vocabulary was resized, unasked.
_EMBEDDINGS = (
    "embed_tokens", "lm_head", "wte", "word_embeddings", "shared", "embed_in", "embed_out",
    "tok_embeddings", "tokens_embed",
)  # fmt: skip
# Heads that transformers ties to an embedding. With `ensure_weight_tying` PEFT adapts them unasked.
_TIED = (*_EMBEDDINGS, "decoder", "output", "output_projection", "proj_out")
_TOKENS = ["token_adapter", "trainable_tokens_delta"]  # the rows themselves, no difference
_WRAPPERS = ("modules_to_save", "original_module")
_COUNTER = "num_batches_tracked"  # of batch normalisation: counts training steps, computes nothing


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).exists()


def read(folder: Path, name: str) -> Adapter:
    """The adapter of one folder. CUV701 to CUV711."""
    config = read_config(folder / CONFIG)
    file = _tensors(folder)
    problems = Problems(str(file.path))
    values = {n: t for n, t in file.tensors.items() if not n.endswith(f".{_COUNTER}")}
    for diagnostic in check_values(values, problems.place):
        problems.put(diagnostic)
    try:
        found = _Reading(config, problems).modules(file.tensors)
        changes = [_change(f, config, problems) for f in found.values()]
    except BadPattern as error:
        place = str(folder / CONFIG)
        message = f"a pattern of the configuration is not taken: {error}"
        raise fail(codes.BAD_ADAPTER_CONFIG, message, place=place) from None
    if not file.tensors:
        problems.add(codes.INCOMPLETE_MODULE, "the adapter has no tensors: it changes nothing")
    problems.settle()
    whole = in_order(c for c in changes if c is not None)
    check_dependency(config.semantics, (c.path for c in whole), str(folder / CONFIG))
    return Adapter(name, folder, whole, file.sha256, config.semantics, config.raw)


def _tensors(folder: Path) -> TensorFile:
    path = folder / TENSORS
    if path.exists():
        return read_tensors(path)
    if (folder / "adapter_model.bin").exists():
        message = "the adapter's tensors are pickled"
        raise fail(codes.PICKLED, message, place=str(folder / "adapter_model.bin"))
    raise fail(
        codes.NOT_AN_ADAPTER, f"the folder has {CONFIG}, but no {TENSORS}", place=str(folder)
    )


def _change(found: Found, config: LoraConfig, problems: Problems) -> ModuleChange | None:
    path = found.path
    wanted = None
    if not found.roles and config.fan_in_fan_out and _may_be_turned(found):
        message = f"`{path}.weight`, saved whole, is square: with `fan_in_fan_out` it may be"
        problems.add(codes.BAD_TENSOR_SHAPE, f"{message} [outputs, inputs] or [inputs, outputs]")
    if found.roles:
        wanted = ModuleConfig(
            config.scale(path), config.alpha_of(path), config.rank(path), config.fan_in_fan_out,
            magnitude=config.dora, bias=config.lora_bias,
        )  # fmt: skip
    return change(found, wanted, problems)


def _may_be_turned(found: Found) -> bool:
    """Whether a saved weight of a Linear and one of GPT-2's Conv1D would look the same."""
    weight = found.replaced.get("weight")
    if weight is None or found.path.rpartition(".")[2] in _EMBEDDINGS:
        return False
    return weight.ndim == 2 and weight.shape[0] == weight.shape[1] > 1


class _Reading:
    """Sorts the tensors of a file by module."""

    def __init__(self, config: LoraConfig, problems: Problems) -> None:
        self._config = config
        self._problems = problems
        self._found: dict[str, Found] = {}
        self._adapters: dict[str, str] = {}
        self._rows: dict[str, Found] = {}  # modules of which rows are trained, by the names' ends

    def modules(self, tensors: dict[str, Array]) -> dict[str, Found]:
        """Tensors by the path of their module; CUV705 for what nothing explains."""
        parameters = []
        for name, tensor in tensors.items():
            parts = name.removeprefix(PREFIX).split(".")
            marker = next((i for i in reversed(range(len(parts))) if parts[i] in _ROLES), None)
            if _TOKENS in (parts[-2:], parts[-3:-1]):
                self._tokens(name, parts, tensor)
            elif marker is None:
                parameters.append((name, parts, tensor))
            else:
                self._factor(name, parts, marker, tensor)
        for name, parts, tensor in parameters:
            if not set(parts) & {*_WRAPPERS}:
                self._parameter(name, parts, tensor)
        for name, parts, tensor in parameters:
            if set(parts) & {*_WRAPPERS}:
                self._wrapped(name, parts, tensor)
        self._check_tokens()
        if len(self._adapters) > 1:
            names = ", ".join(sorted(self._adapters))
            message = f"the file holds tensors of several adapters: {names}"
            evidence = "\n".join(self._adapters.values())
            self._problems.add(codes.UNEXPLAINED_TENSOR, message, evidence=evidence)
        return self._found

    def _factor(self, name: str, parts: list[str], marker: int, tensor: Array) -> None:
        behind = parts[marker + 1 :]
        leaf = behind.pop() if behind and behind[-1] in ("weight", "bias") else ""
        role = _ROLES[parts[marker]].get(leaf)
        path = ".".join(p for p in parts[:marker] if p != "base_layer")
        if role is None or len(behind) > 1 or not path:
            self._unexplained(name, "it is no factor that PEFT writes")
            return
        if behind:
            self._adapters.setdefault(behind[0], name)
        if not self._selected(path):
            why = f"the configuration does not select `{path}` (target_modules)"
            self._unexplained(name, why)
            return
        if role == _TRAINING:
            self._at(path).others.append(name)
            return
        self._at(path).put(role, name, tensor, self._problems)
        if parts[:marker][-2:] == ["base_layer", "out_proj"]:
            # PEFT merges out_proj twice in MultiheadAttention.merge, through which every forward
            # goes, in training too: what was trained is this sum.
            self._at(path).times = 2

    def _tokens(self, name: str, parts: list[str], tensor: Array) -> None:
        """Rows of `trainable_token_indices`: PEFT trains them themselves (index_copy)."""
        at = len(parts) - 2 - (parts[-1] != _TOKENS[1])
        path = ".".join(p for p in parts[:at] if p != "base_layer")
        if parts[-1] != _TOKENS[1]:
            self._adapters.setdefault(parts[-1], name)
        ends = [end for end in self._config.tokens if path.endswith(end)]
        if not path or not ends or ("" in ends and len(self._rows) > 0):
            why = f"the configuration names no rows of `{path}` (trainable_token_indices)"
            self._unexplained(name, why)
            return
        end = max(ends, key=len)
        indices = self._config.tokens[end]
        if tensor.ndim != 2 or len(tensor) != len(indices):
            message = f"`{name}` is {list(tensor.shape)}, for {len(indices)} tokens"
            self._problems.add(codes.BAD_TENSOR_SHAPE, message)
            return
        found = self._at(path)
        found.names["rows"] = name
        found.rows = Rows(indices, tensor)
        self._rows[end] = found

    def _check_tokens(self) -> None:
        """PEFT leaves out the rows of a module that is tied to another and has the same."""
        for end, indices in self._config.tokens.items():
            if end in self._rows:
                continue
            alike = [f for f in self._rows.values() if f.rows and f.rows.indices == indices]
            if len(alike) == 1 and alike[0].rows is not None:
                rows = alike[0].rows
                alike[0].rows = replace(rows, tied=(*rows.tied, end))
            else:
                message = f"there are no rows of {f'`{end}`' if end else 'the input embedding'}"
                evidence = f"trainable_token_indices: {len(indices)} tokens"
                self._problems.add(codes.INCOMPLETE_MODULE, message, evidence=evidence)

    def _selected(self, path: str) -> bool:
        # torch.nn.MultiheadAttention: the module is selected, its out_proj changes with it.
        owner, _, last = path.rpartition(".")
        if self._config.selects(path) or (last == "out_proj" and self._config.selects(owner)):
            return True
        return bool(self._config.raw.get("ensure_weight_tying")) and last in _TIED

    def _parameter(self, name: str, parts: list[str], tensor: Array) -> None:
        """A parameter of the model itself: `….classifier.weight`."""
        parameter = parts[-1]
        path = ".".join(p for p in parts[:-1] if p != "base_layer")
        found = self._found.get(path)
        adapted = found is not None and bool(found.roles)
        whole = adapted and "base_layer" in parts
        if not path or not self._explained(path, parameter, adapted, whole):
            self._unexplained(name, "neither modules_to_save nor bias explains it")
            return
        found = self._at(path)
        found.others.append(name)
        if parameter == _COUNTER:
            return
        if parameter in found.replaced:
            message = f"`{name}` gives `{parameter}` of `{path}` a second time"
            self._problems.add(codes.UNEXPLAINED_TENSOR, message)
        found.replaced[parameter] = tensor

    def _wrapped(self, name: str, parts: list[str], tensor: Array) -> None:
        """`….classifier.modules_to_save[.ADAPTER].weight`, `….original_module.weight`.

        With `bias="all"` PEFT writes the biases of modules_to_save again under these names, the
        second being what was there before; its first versions had the first alone.
        """
        at = next(i for i, p in enumerate(parts) if p in _WRAPPERS)
        plain = [parts[:at] + parts[at + n :] for n in (2, 1)]
        places = [(".".join(p[:-1]), p[-1]) for p in plain if len(p) > 1 and len(p) > at]
        known = [self._found[p] for p, leaf in places if self._has(p, leaf)]
        if parts[at] == "original_module" and known:
            known[0].others.append(name)
        elif not known and parts[at] == "modules_to_save" and places:
            path, leaf = places[0]
            self._parameter(name, [*path.split("."), leaf], tensor)
        elif known and np.array_equal(known[0].replaced[parts[-1]], tensor):
            known[0].others.append(name)
        else:
            self._unexplained(name, "modules_to_save has another value or none for it")

    def _has(self, path: str, parameter: str) -> bool:
        return path in self._found and parameter in self._found[path].replaced

    def _explained(self, path: str, parameter: str, adapted: bool, whole: bool) -> bool:
        config = self._config
        if config.saves(path):
            return True
        if "bias" in parameter and config.bias != "none":
            return config.bias == "all" or adapted
        return parameter == "weight" and (whole or path.rpartition(".")[2] in _EMBEDDINGS)

    def _at(self, path: str) -> Found:
        return self._found.setdefault(path, Found(path))

    def _unexplained(self, name: str, why: str) -> None:
        message = f"nothing explains the tensor `{name}`: {why}"
        self._problems.add(codes.UNEXPLAINED_TENSOR, message)
