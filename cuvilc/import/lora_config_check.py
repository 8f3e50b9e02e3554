"""The fields of adapter_config.json: type and default of each that is used, and who is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Wrong = Callable[[Any], str]


def _boolean(value: Any) -> str:
    return "" if isinstance(value, bool) else "it must be true or false"


def _rank(value: Any) -> str:
    fine = type(value) is int and 0 < value < 1 << 31
    return "" if fine else "a rank is a whole number from 1"


def _number(value: Any) -> str:
    fine = type(value) in (int, float) and abs(value) < 1e30 and math.isfinite(value)
    return "" if fine else "it must be a finite number"


def _dropout(value: Any) -> str:
    return _number(value) or ("" if 0 <= value < 1 else "it must be at least 0 and below 1")


def _texts(value: Any) -> str:
    fine = isinstance(value, list) and all(isinstance(v, str) and v for v in value)
    return "" if fine else "it must be a list of names"


def _text_or_texts(value: Any) -> str:
    return "" if isinstance(value, str) or not _texts(value) else "it must be names or a text"


def _target(value: Any) -> str:
    return _text_or_texts(value) or ("" if value else "it is empty")


def _layers(value: Any) -> str:
    many = value if isinstance(value, list) else [value]
    fine = all(type(n) is int and n >= 0 for n in many)
    return "" if fine else "it must be numbers of layers"


def _ranks(value: Any) -> str:
    if not isinstance(value, dict):
        return "it must be an object, pattern to rank"
    return next((f"{k}: {why}" for k, v in value.items() if (why := _rank(v))), "")


def _alphas(value: Any) -> str:
    if not isinstance(value, dict):
        return "it must be an object, pattern to number"
    return next((f"{k}: {why}" for k, v in value.items() if (why := _number(v))), "")


def _bias(value: Any) -> str:
    return "" if value in ("none", "all", "lora_only") else "it must be none, all or lora_only"


def _tokens(value: Any) -> str:
    for tokens in value.values() if isinstance(value, dict) else [value]:
        numbers = isinstance(tokens, list) and all(type(n) is int and n >= 0 for n in tokens)
        if not numbers or len(set(tokens)) < len(tokens):
            return "it must be different numbers of tokens, or an object, module to such"
    return ""


def _start(value: Any) -> str:
    return "" if isinstance(value, (bool, str)) else "it must be true, false or a name"


# name: (default, what is wrong with a value). The defaults are PEFT's.
FIELDS: dict[str, tuple[Any, Wrong]] = {
    "r": (8, _rank),
    "lora_alpha": (8, _number),
    "lora_dropout": (0.0, _dropout),
    "rank_pattern": ({}, _ranks),
    "alpha_pattern": ({}, _alphas),
    "use_rslora": (False, _boolean),
    "use_dora": (False, _boolean),
    "fan_in_fan_out": (False, _boolean),
    "bias": ("none", _bias),
    "lora_bias": (False, _boolean),
    "modules_to_save": ([], _texts),
    "target_modules": ([], _target),
    "exclude_modules": ([], _text_or_texts),
    "layers_to_transform": ([], _layers),
    "layers_pattern": ([], _text_or_texts),
    "init_lora_weights": (True, _start),
    "trainable_token_indices": ([], _tokens),
}

# About training, origin or how PEFT holds the adapter: nothing that it computes.
UNUSED = (
    "peft_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode",
    "peft_version", "task_type", "corda_config", "eva_config", "loftq_config", "lora_ga_config",
    "megatron_config", "megatron_core", "runtime_config", "ensure_weight_tying",
    "qalora_group_size", "velora_config", "merge_weights", "graph_semantics",
)  # fmt: skip

# Prefixes of `init_lora_weights` whose initialisation takes something out of the base weights.
STARTS_FROM_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")

REFUSED = {
    "alora_invocation_tokens": "Activated LoRA switches on within a sequence",
    "arrow_config": "Arrow chooses among adapters by the input",
    "kasa_config": "KaSA cuts small singular values out of the base weights",
    "layer_replication": "layers of the base model are repeated",
    "monteclora_config": "MonteCLoRA draws its factors at random",
    "target_parameters": "of bare parameters, as of experts, files do not say which is which",
    "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QA-LoRA pools its input by groups",
}

METHODS = {
    "ADALORA": "AdaLoRA", "ADAMSS": "AdaMSS", "ADAPTION_PROMPT": "LLaMA-Adapter", "BEFT": "BEFT",
    "BOFT": "BOFT", "C3A": "C³A", "CARTRIDGE": "Cartridge", "CPT": "context-aware prompt tuning",
    "DEFT": "DEFT", "DELORA": "DeLoRA", "FOURIERFT": "FourierFT", "FROD": "FRoD",
    "GLORA": "GLoRA", "GRALORA": "GraLoRA", "HIRA": "HiRA", "HRA": "Householder reflection",
    "IA3": "IA³", "LILY": "Lily", "LN_TUNING": "tuning of layer norms", "LOHA": "LoHa",
    "LOKR": "LoKr", "MISS": "MiSS", "MULTITASK_PROMPT_TUNING": "multitask prompt tuning",
    "OFT": "OFT", "OSF": "OSF", "P_TUNING": "P-tuning", "PEANUT": "PEANuT", "POLY": "Polytropon",
    "PREFIX_TUNING": "prefix tuning", "PROMPT_TUNING": "prompt tuning", "PSOFT": "PSOFT",
    "PVERA": "PVeRA", "RANDLORA": "RandLoRA", "ROAD": "RoAd", "SHADOW": "Shadow",
    "SHIRA": "SHiRA", "SUPERTUNING": "supertuning", "TINYLORA": "TinyLoRA",
    "TRAINABLE_TOKENS": "trainable tokens", "UNILORA": "UniLoRA", "VBLORA": "VB-LoRA",
    "VERA": "VeRA", "WAVEFT": "WaveFT", "XLORA": "X-LoRA",
}  # fmt: skip
