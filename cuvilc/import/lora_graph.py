"""The adapter's graph: its modules as nodes, in the order in which a model computes them.

An adapter alone knows names, not the model's graph; the order here is told by the names: embedding
tables, then layer by layer (of an encoder before those of a decoder; attention before what follows
it, q, k and v beside one another), then heads. Each edge leads to a module and carries what the
adapter adds there: r, alpha, dropout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cuvilc.adapter import Adapter, ModuleChange

from .lora_modules import natural
from .lora_semantics import projection

INPUT = "input"

_BEFORE, _LAYERS, _AFTER = range(3)
_TABLES = re.compile(r"(embed|wte|wpe|word_emb|position_emb|patch_emb|shared$)")
_HEADS = re.compile(r"(^|[._])(lm_head|classifier|score|pooler|qa_outputs|embed_out|head)([._]|$)")
# Numbers behind these count no layers: members of a layer, or experts beside one another.
_MEMBERS = ("to_out", "out", "net", "experts")
_CROSS = re.compile(r"(cross|encoder_attn|encdec|attn2)", re.IGNORECASE)
_ATTENTION = re.compile(r"(attn|attention)", re.IGNORECASE)
# The last part of a path -> its stage within a layer, where no projection of attention.
_STAGES = (
    (1, re.compile(r"(o_proj|out_proj|to_out[._]0|out_lin|wo|proj|c_proj|dense)$")),
    (2, re.compile(
        r"(gate_proj|up_proj|gate_up_proj|fc1|c_fc|wi(_[01])?|w1|w3|lin1|dense_h_to_4h"
        r"|intermediate[._]dense)$")),
    (3, re.compile(
        r"(down_proj|fc2|w2|lin2|dense_4h_to_h|wo|c_proj|output[._]dense)$")),
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """Modules that stand beside one another, of one layer ("" for none)."""

    layer: str
    modules: tuple[ModuleChange, ...]


def steps(adapter: Adapter) -> list[Step]:
    """The adapter's modules in topological order."""
    ordered = sorted(adapter.changes, key=lambda c: (_order(c), natural(c.path)))
    return [
        Step(_layer(run[0].path), tuple(run))
        for _, group in groupby(ordered, key=_order)
        for run in [list(group)]
    ]


def edges(adapter: Adapter) -> list[dict[str, Any]]:
    """From each module of a step, or from the input, to each of the next."""
    before: tuple[str, ...] = (INPUT,)
    found = []
    for step in steps(adapter):
        for change in step.modules:
            said = carried(adapter, change)
            found += [{"from": source, "to": change.path, **said} for source in before]
        before = tuple(c.path for c in step.modules)
    return found


def carried(adapter: Adapter, change: ModuleChange) -> dict[str, Any]:
    """What an edge to the module carries; None where it has no low-rank part."""
    low_rank = change.low_rank
    if low_rank is None:
        return {"r": None, "alpha": None, "dropout": None}
    dropout = float(adapter.config.get("lora_dropout") or 0.0)
    return {"r": low_rank.rank, "alpha": low_rank.alpha, "dropout": dropout}


def _layer(path: str) -> str:
    """All up to the last number that counts layers: `model.layers.3`, "" where there is none."""
    if _HEADS.search(path):
        return ""
    parts = re.split("([._])", path)
    numbers = [
        at
        for at in range(2, len(parts), 2)
        if parts[at].isdecimal() and parts[at - 2] not in _MEMBERS
    ]
    return "".join(parts[: numbers[-1] + 1]) if numbers else ""


def _order(change: ModuleChange) -> tuple[Any, ...]:
    """What sorts the modules; those of equal order stand beside one another."""
    path = change.path
    layer = _layer(path)
    if not layer:
        place = _LAYERS
        if change.kind == "embedding" or _TABLES.search(path):
            place = _BEFORE
        elif _HEADS.search(path):
            place = _AFTER
        return (place, _stack(path), natural(path), 0, 0, [])
    rest = path[len(layer) :]
    held = projection(path)[1]
    cross = bool(_CROSS.search(rest))
    stage = 0 if held else _stage(rest)
    if stage is None:  # nothing known: on its own, after what is
        return (_LAYERS, _stack(path), natural(layer), 3, 0, natural(path))
    within = 2 if stage > 1 else int(cross)
    return (_LAYERS, _stack(path), natural(layer), within, stage, [])


def _stack(path: str) -> int:
    """Encoders come before decoders."""
    return 1 if "decoder" in path else 0


def _stage(rest: str) -> int | None:
    """0 projections of attention, 1 its output, 2 into the MLP, 3 out of it."""
    attention = bool(_ATTENTION.search(rest))
    for stage, ends in _STAGES:
        if ends.search(rest) and attention is (stage == 1):
            return stage
    return None
