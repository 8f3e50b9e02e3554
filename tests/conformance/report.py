"""The tables of outcomes as a page of the documentation."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import onnx

from tests.conformance.cases import CATEGORIES

KINDS = ("passed", "failed", "refused")
WIDTH = 140
Outcomes = Sequence[Mapping[str, str]]

_HEAD = """\
# Conformance

All cases of ONNX {version}'s backend suite: single operators (`node`), `simple` and `light` models,
`pytorch-converted` and `pytorch-operator`. Each is imported, compiled for target `{target}`, run by
`cuvil` and compared with the expected outputs (`tests/tolerances.py`). `make conformance` writes
this page{beside}.

**{total} cases: {counts}.**

Refused: a diagnostic names what is not supported, before anything is compiled. Where a case passes
shapes or axes as inputs, which decide the sizes of outputs, and is refused for that, they are made
constants, as in real models.
"""
_RIVAL = """\
onnxruntime runs the same models on the same inputs, compared by the same code and tolerances. What
it will not load or run counts as refused.
"""


def report(
    outcomes: Iterable[Mapping[str, str]],
    target: str,
    rival: Mapping[str, Mapping[str, str]] | None = None,
    not_at_hand: Sequence[str] = (),
) -> str:
    """docs/conformance.md: totals, a row per category and per operator, then every failure and
    refusal. rival: onnxruntime's outcomes by name, for columns beside.
    """
    results = sorted(outcomes, key=lambda o: (o["operator"], o["name"]))
    head = _HEAD.format(
        version=onnx.__version__, target=target, total=len(results),
        beside=", onnxruntime's columns too" if rival else "",
        counts=", ".join(f"{n} {k}" for k, n in _counts(results).items()),
    )  # fmt: skip
    lines = [head, *([_RIVAL] if rival else [])]
    lines += ["## By category", "", *_table("category", results, rival), ""]
    if not_at_hand:
        names = ", ".join(f"`{n}`" for n in not_at_hand)
        lines += [f"Not available, since their models must be downloaded: {names}.", ""]
    nodes = [o for o in results if o["category"] == "node"]
    lines += ["## By operator", "", "The `node` cases.", "", *_table("operator", nodes, rival)]
    for kind in ("failed", "refused"):
        lines += ["", f"## {kind.capitalize()}", "", *_reasons(results, kind)]
    return "\n".join(lines) + "\n"


def _counts(results: Outcomes) -> dict[str, int]:
    found = Counter(o["kind"] for o in results)
    return {k: found[k] for k in KINDS}


def _table(key: str, results: Outcomes, rival: Mapping[str, Mapping[str, str]] | None) -> list[str]:
    """A row of counts for every value of `key`, and one for all."""
    groups: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for outcome in results:
        groups[outcome[key]].append(outcome)
    order = [c for c in CATEGORIES if c in groups] if key == "category" else sorted(groups)
    heads = [key, *KINDS, *(f"onnxruntime {k}" for k in KINDS if rival)]
    lines = [_row(heads), _row(["---", *["---:"] * (len(heads) - 1)])]
    for name, rows in [*((n, groups[n]) for n in order), ("**all**", list(results))]:
        counts = [*_counts(rows).values()]
        if rival:
            counts += _counts([rival[o["name"]] for o in rows]).values()
        lines.append(_row([name, *(str(n or "") for n in counts)]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _reasons(results: Outcomes, kind: str) -> list[str]:
    """Each reason with the cases that ended so, the most frequent first."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for outcome in results:
        if outcome["kind"] == kind:
            reasons[_short(outcome["reason"])].append(outcome["name"])
    lines = []
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines += [f"- {reason}  ", f"  {', '.join(f'`{n}`' for n in names)}"]
    return lines or ["None."]


def _short(reason: str) -> str:
    text = re.sub(r"_[0-9a-f]{12}(__L\d+)?", "", reason)  # kernels' hashes
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
