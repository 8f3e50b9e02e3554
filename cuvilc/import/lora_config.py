"""adapter_config.json of a LoRA adapter: read strictly; which module it selects, with which rank.

The rules are PEFT's: `target_modules` as a list names ends of paths, as a text it is a regular
expression of the whole path; keys of `rank_pattern` and `alpha_pattern` are expressions of the
path's end (peft/utils/other.py get_pattern_key, tuners/tuners_utils.py
check_target_module_exists, 0.21).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuvilc.adapter import GraphSemantics
from cuvilc.diagnostics import fail

from . import lora_codes as codes
from .lora_config_check import FIELDS, METHODS, REFUSED, STARTS_FROM_CHANGED_BASE, UNUSED
from .lora_patterns import BadPattern, matches, matches_end
from .lora_problems import Problems
from .lora_semantics import read_semantics

ALL_LINEAR = "all-linear"
_MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class LoraConfig:
    """What the configuration says, with PEFT's defaults where it says nothing.

    layers: None for all, or the numbers of `layers_to_transform`. tokens: whose rows are trained,
    by the end of a module's path; "" for that of the model's input.
    """

    r: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    rslora: bool
    dora: bool
    fan_in_fan_out: bool
    bias: str
    lora_bias: bool
    modules_to_save: tuple[str, ...]
    targets: str | tuple[str, ...]
    excluded: str | tuple[str, ...]
    layers: tuple[int, ...] | None
    layers_pattern: tuple[str, ...]
    tokens: Mapping[str, tuple[int, ...]]
    semantics: GraphSemantics
    raw: Mapping[str, Any]

    def rank(self, path: str) -> int:
        return next((n for p, n in self.rank_pattern.items() if matches_end(p, path)), self.r)

    def alpha_of(self, path: str) -> float:
        return next((a for p, a in self.alpha_pattern.items() if matches_end(p, path)), self.alpha)

    def scale(self, path: str) -> float:
        r = self.rank(path)
        return self.alpha_of(path) / (math.sqrt(r) if self.rslora else r)

    def selects(self, path: str) -> bool:
        """Whether PEFT would put LoRA on the module of this path."""
        if _named(self.excluded, path) or self.saves(path):
            return False
        if isinstance(self.targets, str):
            return self.targets == ALL_LINEAR or matches(self.targets, path)
        if path in self.targets:
            return True
        if not _named(self.targets, path):
            return False
        return self.layers is None or self._layer(path) in self.layers

    def saves(self, path: str) -> bool:
        """Whether the module lies in one of `modules_to_save`; names are ends, not whole parts."""
        parts = path.split(".")
        above = [".".join(parts[: n + 1]) for n in range(len(parts))]
        return any(p.endswith(name) for p in above for name in self.modules_to_save)

    def _layer(self, path: str) -> int | None:
        """The number of the layer, which is the first number in the path after another part."""
        parts = path.split(".")
        for at in range(1, len(parts) - 1):
            if not re.fullmatch("[0-9]{1,9}", parts[at]):
                continue
            above = ".".join(parts[:at])
            if not self.layers_pattern:
                if at > 1:
                    return int(parts[at])
            elif any(matches_end(pattern, above) for pattern in self.layers_pattern):
                return int(parts[at])
        return None


def _named(names: str | tuple[str, ...], path: str) -> bool:
    if isinstance(names, str):
        return bool(names) and matches(names, path)
    return path in names or any(path.endswith(f".{name}") for name in names)


def read_config(path: Path) -> LoraConfig:
    """Read and check it. CUV703 for what is not right, CUV704 for what cuvilc does not take."""
    return parse_config(_load(path), str(path))


def _load(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise fail(
            codes.NOT_AN_ADAPTER, f"cannot read the configuration: {reason}", place=str(path)
        ) from None
    if len(text) > _MOST_BYTES:
        message = f"the configuration is longer than {_MOST_BYTES} bytes"
        raise fail(codes.BAD_ADAPTER_CONFIG, message, place=str(path))
    try:
        config = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        message = f"the configuration is no JSON: {error}"
        raise fail(codes.BAD_ADAPTER_CONFIG, message, place=str(path)) from None
    if not isinstance(config, dict):
        message = "the configuration is no JSON object"
        raise fail(codes.BAD_ADAPTER_CONFIG, message, place=str(path))
    return config


def parse_config(raw: dict[str, Any], place: str) -> LoraConfig:
    """Check what adapter_config.json says; all problems at once."""
    problems = Problems(place)
    _check_method(raw, problems)
    problems.settle()  # nothing further is worth saying of another method
    values = {}
    for name, (default, wrong) in FIELDS.items():
        value = raw.get(name)
        if why := wrong(value) if value is not None else "":
            problems.add(codes.BAD_ADAPTER_CONFIG, f"`{name}` is {_short(value)}: {why}")
            value = None
        values[name] = default if value is None else value
    _check_options(raw, problems)
    _check_together(values, raw, problems)
    semantics = read_semantics(raw.get("graph_semantics"), problems)
    _check_patterns(values, problems)
    problems.settle()
    layers = values["layers_to_transform"]
    return LoraConfig(
        r=values["r"], alpha=float(values["lora_alpha"]), rank_pattern=values["rank_pattern"],
        alpha_pattern={k: float(v) for k, v in values["alpha_pattern"].items()},
        rslora=values["use_rslora"], dora=values["use_dora"],
        fan_in_fan_out=values["fan_in_fan_out"], bias=values["bias"],
        lora_bias=values["lora_bias"], modules_to_save=tuple(values["modules_to_save"]),
        targets=_names(values["target_modules"]), excluded=_names(values["exclude_modules"]),
        layers=((layers,) if isinstance(layers, int) else tuple(layers)) or None,
        layers_pattern=_list(values["layers_pattern"]), semantics=semantics, raw=raw,
        tokens=_by_module(values["trainable_token_indices"]),
    )  # fmt: skip


def _check_method(raw: dict[str, Any], problems: Problems) -> None:
    kind = raw.get("peft_type")
    if kind is None:
        problems.add(codes.BAD_ADAPTER_CONFIG, "`peft_type` is missing: what is this adapter?")
    elif isinstance(kind, str) and kind in METHODS:
        problems.add(codes.OTHER_METHOD, f"this is {METHODS[kind]}, not LoRA")
    elif kind != "LORA":
        problems.add(codes.OTHER_METHOD, f"the adapter's `peft_type` {_short(kind)} is not known")


def _check_options(raw: dict[str, Any], problems: Problems) -> None:
    for name, what in REFUSED.items():
        if raw.get(name):
            problems.add(codes.OTHER_METHOD, f"`{name}` is set: {what}")
    start = raw.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(STARTS_FROM_CHANGED_BASE):
        problems.add(
            codes.OTHER_METHOD,
            f"`init_lora_weights` is {_short(start)}: the adapter belongs to base weights that its"
            " initialisation changed; save it as an ordinary one",
        )
    known = {*FIELDS, *REFUSED, *UNUSED}
    for name, value in raw.items():
        if name not in known and value:
            problems.add(
                codes.BAD_ADAPTER_CONFIG,
                f"the option `{name}` is not known: it is {_short(value)}",
            )


def _check_together(values: dict[str, Any], raw: dict[str, Any], problems: Problems) -> None:
    bad = codes.BAD_ADAPTER_CONFIG
    if raw.get("target_modules") is None and not raw.get("target_parameters"):
        problems.add(bad, "`target_modules` is missing: which modules does it change?")
    if raw.get("r") is None:
        problems.add(bad, "`r` is missing: of which rank is it?")
    if raw.get("lora_alpha") is None:
        problems.add(bad, "`lora_alpha` is missing: of which scale is it?")
    if values["use_dora"] and values["lora_bias"]:
        problems.add(bad, "`use_dora` and `lora_bias` exclude one another")
    by_text = isinstance(values["target_modules"], str)
    if by_text and (values["layers_to_transform"] != [] or values["layers_pattern"]):
        problems.add(bad, "`layers_to_transform` goes with a list of `target_modules` only")


def _check_patterns(values: dict[str, Any], problems: Problems) -> None:
    """Every expression is tried once, so that later use of it cannot fail."""
    patterns = {
        "rank_pattern": [*values["rank_pattern"]],
        "alpha_pattern": [*values["alpha_pattern"]],
        "layers_pattern": _list(values["layers_pattern"]),
    }
    for name in ("target_modules", "exclude_modules"):
        text = values[name] if isinstance(values[name], str) else ""
        patterns[name] = [text] if text and text != ALL_LINEAR else []
    for name, found in patterns.items():
        for pattern in found:
            try:
                matches(pattern, "model.layers.0.self_attn.q_proj")
            except BadPattern as error:
                message = f"`{name}` has the pattern {_short(pattern)}: {error}"
                problems.add(codes.BAD_ADAPTER_CONFIG, message)


def _by_module(tokens: Any) -> dict[str, tuple[int, ...]]:
    found = tokens if isinstance(tokens, dict) else {"": tokens}
    return {name: tuple(numbers) for name, numbers in found.items() if numbers}


def _names(value: Any) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else tuple(value)


def _list(value: Any) -> tuple[str, ...]:
    return ((value,) if value else ()) if isinstance(value, str) else tuple(value)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:79] + "…"
