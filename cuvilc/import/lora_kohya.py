"""Adapters in one file, as kohya's scripts and diffusers write them.

kohya:      lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight, .lora_up.weight, .alpha
            lora_te_text_model_encoder_layers_0_self_attn_q_proj.…   (lora_te1_, lora_te2_ of SDXL)
diffusers:  unet.down_blocks.0.….to_q.lora_A.weight, .lora_B.weight, .lora.down.weight,
            unet.….attn1.processor.to_q_lora.down.weight, text_encoder.….lora_linear_layer.up.weight

Convention for what becomes of these names: a path begins with the model's part (`unet`,
`text_encoder`, `text_encoder_2`, `transformer`) where the file names one; an exported model, which
usually is one of the parts, has paths without it. kohya writes `_` for every dot, and which is
which cannot be told: such an adapter has `"naming": "underscored"` in its `config`, and its paths
keep the underscores behind the part. `lora_spelling` spells them as a model does.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from cuvilc.adapter import Adapter, Array, ModuleChange
from cuvilc.diagnostics import fail

from . import lora_codes as codes
from .lora_config import ALL_LINEAR, LoraConfig, parse_config
from .lora_modules import BIAS, MAGNITUDE, A, B, Found, ModuleConfig, change, in_order
from .lora_patterns import BadPattern
from .lora_problems import Problems
from .lora_semantics import check_dependency, read_semantics
from .lora_tensors import TensorFile, check_values

UNDERSCORED = "underscored"
PARTS = ("unet", "text_encoder", "text_encoder_2", "text_encoder_3", "transformer", "prior",
         "diffusion_model")  # fmt: skip
_KOHYA = {
    "lora_unet": "unet", "lora_te": "text_encoder", "lora_te1": "text_encoder",
    "lora_te2": "text_encoder_2", "lora_te3": "text_encoder_3",
    "lora_transformer": "transformer", "lora_prior_unet": "prior",
}  # fmt: skip
ALPHA = "alpha"
# End of a name -> role. Longer ends first.
_ENDS = {
    ".lora_linear_layer.down.weight": A, ".lora_linear_layer.up.weight": B,
    ".lora.down.weight": A, ".lora.up.weight": B, ".lora.alpha": ALPHA,
    "_lora.down.weight": A, "_lora.up.weight": B,
    ".lora_down.weight": A, ".lora_up.weight": B,
    ".lora_A.weight": A, ".lora_B.weight": B, ".lora_B.bias": BIAS,
    ".lora_A.default.weight": A, ".lora_B.default.weight": B, ".lora_B.default.bias": BIAS,
    ".lora_magnitude_vector.weight": MAGNITUDE, ".lora_magnitude_vector": MAGNITUDE,
    ".dora_scale": MAGNITUDE, ".alpha": ALPHA,
}  # fmt: skip
# Last part of a name, without `.weight` -> the method of LyCORIS that writes it.
_METHODS = {
    "hada_.*": "LoHa", "lokr_.*": "LoKr", "oft_.*": "OFT", "boft_.*": "BOFT",
    "lora_mid": "a LoCon with a middle factor", "on_input": "IA³", "[ab][12]": "GLoRA",
    "diff|diff_b": "a full difference of weights", "[wb]_norm": "trained norms",
}  # fmt: skip
_METADATA = "lora_adapter_metadata"  # of diffusers: LoRA configurations, "unet.r": 8


def is_adapter(names: list[str]) -> bool:
    return any(_role(n) or _other_method(n) for n in names)


def read(file: TensorFile, name: str) -> tuple[Adapter, ...]:
    """The adapters of one file: one, or one for each part of the model, named as the part.

    The parts are exported as models of their own, and each takes its adapter. CUV704 to CUV711.
    """
    problems = Problems(str(file.path))
    underscored = any(n.startswith(tuple(f"{p}_" for p in _KOHYA)) for n in file.tensors)
    configs = _configs(file, problems)
    alphas: dict[str, float] = {}
    found: dict[str, Found] = {}
    floats = {n: t for n, t in file.tensors.items() if _role(n) != ALPHA}
    for diagnostic in check_values(floats, problems.place):
        problems.put(diagnostic)
    for tensor_name, tensor in file.tensors.items():
        _sort(tensor_name, tensor, found, alphas, problems)
    for path in sorted(alphas.keys() - found.keys()):
        message = f"nothing explains the alpha of `{path}`: no factors belong to it"
        problems.add(codes.UNEXPLAINED_TENSOR, message)
    try:
        changes = [_change(f, alphas, configs, problems) for f in found.values()]
    except BadPattern as error:
        message = f"a pattern of the file's metadata is not taken: {error}"
        raise fail(codes.BAD_ADAPTER_CONFIG, message, place=problems.place) from None
    semantics = read_semantics(_json(file, "graph_semantics", problems), problems)
    problems.settle()
    whole = in_order(c for c in changes if c is not None)
    check_dependency(semantics, (c.path for c in whole), problems.place)
    parts = sorted({_part(c.path) for c in whole})
    made = []
    for part in parts:
        own = tuple(c for c in whole if _part(c.path) == part)
        config = _described(file, own, configs, underscored)
        called = name if len(parts) == 1 else part or name
        made.append(Adapter(called, file.path, own, file.sha256, semantics, config))
    return tuple(made)


def _part(path: str) -> str:
    part = path.partition(".")[0]
    return part if part in PARTS else ""


def _role(name: str) -> str:
    return next((role for end, role in _ENDS.items() if name.endswith(end)), "")


def _other_method(name: str) -> str:
    last = name.removesuffix(".weight").rpartition(".")[2]
    return next((what for key, what in _METHODS.items() if re.fullmatch(key, last)), "")


def _sort(
    name: str, tensor: Array, found: dict[str, Found], alphas: dict[str, float], problems: Problems
) -> None:
    role = _role(name)
    if not role:
        other = _other_method(name)
        if other:
            problems.add(codes.OTHER_METHOD, f"`{name}` belongs to {other}, not to LoRA")
        else:
            message = f"nothing explains the tensor `{name}`: no name of kohya's or diffusers'"
            problems.add(codes.UNEXPLAINED_TENSOR, message)
        return
    path = module_path(name)
    if role != ALPHA:
        found.setdefault(path, Found(path)).put(role, name, tensor, problems)
    elif tensor.size != 1 or not np.isfinite(float(tensor.reshape(-1)[0])):
        problems.add(codes.BAD_TENSOR_SHAPE, f"`{name}` is no finite number")
    else:
        alphas[path] = float(tensor.reshape(-1)[0])


def module_path(name: str) -> str:
    """The path of the module that a tensor of this name belongs to; see the head of this file."""
    end = next(end for end in _ENDS if name.endswith(end))
    stem = name.removesuffix(end)
    prefix = next((p for p in sorted(_KOHYA, key=len)[::-1] if stem.startswith(f"{p}_")), "")
    if prefix:
        return f"{_KOHYA[prefix]}.{stem[len(prefix) + 1 :]}"
    if end.startswith("_lora"):  # diffusers' attention processors
        stem = re.sub(r"\.to_out$", ".to_out.0", stem.replace(".processor.", "."))
    if stem.startswith("text_encoder") and ".self_attn.to_" in stem:
        stem = stem.replace(".to_out.0", ".out_proj")
        stem = re.sub(r"\.to_([qkv])$", r".\1_proj", stem)
    return stem


def _change(
    found: Found, alphas: dict[str, float], configs: dict[str, LoraConfig], problems: Problems
) -> ModuleChange | None:
    a = found.roles.get(A)
    rank = max(a.shape[0], 1) if a is not None and a.ndim else 1
    part, _, rest = found.path.partition(".")
    config = configs.get(part)
    alpha = alphas.get(found.path, float(rank))
    scale = alpha / rank
    if config is not None:
        rank = config.rank(rest)
        if found.path not in alphas:
            alpha, scale = config.alpha_of(rest), config.scale(rest)
    wanted = ModuleConfig(scale, alpha, rank, magnitude=MAGNITUDE in found.roles,
                    bias=BIAS in found.roles)  # fmt: skip
    return change(found, wanted, problems)


def _configs(file: TensorFile, problems: Problems) -> dict[str, LoraConfig]:
    """diffusers' metadata: the configuration of each part of the model."""
    said = _json(file, _METADATA, problems)
    parts: dict[str, dict[str, Any]] = {}
    for key, value in (said or {}).items():
        part, _, field = key.partition(".")
        parts.setdefault(part, {})[field] = value
    made = {}
    for part, fields in parts.items():
        whole = {"peft_type": "LORA", "target_modules": ALL_LINEAR, **fields}
        made[part] = parse_config(whole, f"{file.path}, {_METADATA} of {part}")
    return made


def _json(file: TensorFile, key: str, problems: Problems) -> dict[str, Any] | None:
    if key not in file.metadata:
        return None
    try:
        value = json.loads(file.metadata[key])
    except (ValueError, RecursionError) as error:
        problems.add(codes.BAD_ADAPTER_CONFIG, f"`{key}` of the file is no JSON: {error}")
        return None
    if not isinstance(value, dict):
        problems.add(codes.BAD_ADAPTER_CONFIG, f"`{key}` of the file is no JSON object")
        return None
    return value


def _described(
    file: TensorFile, changes: tuple[ModuleChange, ...], configs: dict[str, LoraConfig],
    underscored: bool,
) -> dict[str, Any]:  # fmt: skip
    """What takes the configuration's place in reports."""
    ranks = sorted({c.low_rank.rank for c in changes if c.low_rank})
    alphas = sorted({c.low_rank.alpha for c in changes if c.low_rank})
    kept = {k: v for k, v in file.metadata.items() if k.startswith(("ss_network_", "modelspec."))}
    dropouts = [float(c.raw.get("lora_dropout") or 0) for c in configs.values()]
    return {
        "peft_type": "LORA",
        "format": "kohya" if underscored else "diffusers",
        "naming": UNDERSCORED if underscored else "dotted",
        "r": ranks[0] if len(ranks) == 1 else ranks,
        "lora_alpha": alphas[0] if len(alphas) == 1 else alphas,
        "lora_dropout": max(dropouts, default=0.0),
        "metadata": kept,
    }
