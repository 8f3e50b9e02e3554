"""The table of outcomes as a page of the documentation."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import onnx

KINDS = ("passed", "failed", "refused")
WIDTH = 140


def report(outcomes: Iterable[dict[str, str]], target: str) -> str:
    """docs/conformance.md: totals, a row per operator, then every failure and every refusal."""
    results = sorted(outcomes, key=lambda o: (o["operator"], o["name"]))
    totals = Counter(o["kind"] for o in results)
    lines = [
        "# Conformance",
        "",
        f"ONNX {onnx.__version__}'s operator cases, each imported, compiled for target `{target}`,",
        "run by `cuvil` and compared with the expected outputs (`tests/tolerances.py`).",
        "`make conformance` writes this page.",
        "",
        f"**{len(results)} cases: " + ", ".join(f"{totals[k]} {k}" for k in KINDS) + ".**",
        "",
        "Refused: a diagnostic names what is not supported, before anything is compiled. Where a",
        "case passes shapes or axes as inputs, which decide the sizes of outputs, they are made",
        "constants, as in real models.",
        "",
        "| operator | passed | failed | refused |",
        "| --- | ---: | ---: | ---: |",
    ]
    operators: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in results:
        operators[outcome["operator"]][outcome["kind"]] += 1
    lines += [
        f"| {name} | " + " | ".join(str(counts[k] or "") for k in KINDS) + " |"
        for name, counts in sorted(operators.items())
    ]
    for kind in ("failed", "refused"):
        reasons = defaultdict(list)
        for outcome in results:
            if outcome["kind"] == kind:
                reasons[_short(outcome["reason"])].append(outcome["name"])
        lines += ["", f"## {kind.capitalize()}", ""]
        for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
            lines.append(f"- {reason}  ")
            lines.append(f"  {', '.join(f'`{n}`' for n in names)}")
        if not reasons:
            lines.append("None.")
    return "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    text = re.sub(r"_[0-9a-f]{12}(__L\d+)?", "", reason)  # kernels' hashes
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"
