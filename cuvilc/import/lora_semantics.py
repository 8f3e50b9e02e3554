"""`graph_semantics` of an adapter: its contract with the compiler, and whether it is kept.

    {"dependency_level": "cross-attention", "fusion_strategy": "additive"}

Which projection of attention a module is, is told by the last part of its path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cuvilc.adapter import ADDITIVE, CROSS_ATTENTION, Adapter, GraphSemantics
from cuvilc.diagnostics import Diagnostic, fail

from . import lora_codes as codes
from .lora_problems import Problems

_VALUES = {"dependency_level": (CROSS_ATTENTION,), "fusion_strategy": (ADDITIVE,)}

_WORDS = {
    "q": ("q", "query", "queries", "wq", "to_q"), "k": ("k", "key", "keys", "wk", "to_k"),
    "v": ("v", "value", "values", "wv", "to_v"),
}  # fmt: skip
_ENDS = ("", "_proj", "_lin", "_layer", "_projection")
_NAMES = {
    "query_key_value": "qkv", "in_proj_qkv": "qkv", "qkv_proj": "qkv", "to_qkv": "qkv",
    "add_q_proj": "q", "add_k_proj": "k", "add_v_proj": "v", "c_attn": "qkv", "kv_proj": "kv",
    "W_pack": "qkv", "in_proj": "qkv", "to_kv": "kv", "q_attn": "q", "Wqkv": "qkv", "qkv": "qkv",
    **{f"{word}{end}": held for held, words in _WORDS.items() for word in words for end in _ENDS},
}  # fmt: skip
# The last part of a path -> the projections that the module holds. Longest names first.
_PROJECTIONS = {name: _NAMES[name] for name in sorted(_NAMES, key=len, reverse=True)}


def read_semantics(value: Any, problems: Problems) -> GraphSemantics:
    """`graph_semantics` as read; values that are not known become CUV703."""
    if value is None:
        return GraphSemantics()
    if not isinstance(value, dict):
        problems.add(codes.BAD_ADAPTER_CONFIG, "`graph_semantics` is no JSON object")
        return GraphSemantics()
    known = {}
    for name, said in value.items():
        if name not in _VALUES:
            message = f"`graph_semantics` has the unknown field `{name}`"
            problems.add(codes.BAD_ADAPTER_CONFIG, message)
        elif said not in (None, "", *_VALUES[name]):
            allowed = ", ".join(_VALUES[name])
            message = f"`graph_semantics.{name}` is {said!r}; known values: {allowed}"
            problems.add(codes.BAD_ADAPTER_CONFIG, message)
        else:
            known[name] = said or ""
    return GraphSemantics(**known)


def projection(path: str) -> tuple[str, str]:
    """The layer that a module of attention belongs to, and which of q, k, v it holds ("" for none).

    `h.0.attn.c_attn` -> (`h.0.attn`, `qkv`); names of kohya's, where `_` stands for `.`, too.
    """
    for name, held in _PROJECTIONS.items():
        if path == name:
            return "", held
        if path.endswith(f".{name}") or (len(name) > 2 and path.endswith(f"_{name}")):
            return path[: -len(name) - 1], held
    return path, ""


def check_dependency(semantics: GraphSemantics, paths: Iterable[str], place: str) -> None:
    """CUV711 where "cross-attention" is declared and a layer lacks q and v, or k and v."""
    if semantics.dependency_level != CROSS_ATTENTION:
        return
    layers: dict[str, list[str]] = {}
    for path in paths:
        layer, held = projection(path)
        if held:
            layers.setdefault(layer, []).append(held)
    problems = Problems(place)
    if not layers:
        message = "`cross-attention` is declared, but no projection of attention is changed"
        problems.add(codes.BROKEN_DEPENDENCY, message)
    for layer, found in layers.items():
        there = set("".join(found))
        if not ("v" in there and there & {"q", "k"}):
            message = (
                f"`cross-attention` needs q and v, or k and v, of one layer: "
                f"`{layer}` has {', '.join(sorted(there))} only"
            )
            problems.put(Diagnostic(codes.BROKEN_DEPENDENCY, message, place))
    problems.settle()


def forbid_scale_fusion(adapter: Adapter, what: str) -> None:
    """CUV712 where the adapter is "additive" and `what` ("--lora fold") would fuse its scale."""
    if adapter.semantics.fusion_strategy == ADDITIVE:
        message = f"the adapter `{adapter.name}` is additive, so {what} must not fuse its scale"
        raise fail(codes.SCALE_FUSION, message, place=str(adapter.place))
