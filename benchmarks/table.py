"""Results of compare.py as Markdown."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.pages import place

LARGE_ERROR = 1e-3


def peers_of(report: dict[str, Any], ours: str) -> list[str]:
    """Every peer that was measured, ours first."""
    names = dict.fromkeys(p for r in report["results"] for p in r["peers"])
    return [ours] * (ours in names) + [n for n in names if n != ours]


def markdown(report: dict[str, Any], ours: str) -> str:
    """Latency with its ratio to ours, memory, then the machine."""
    peers = peers_of(report, ours)
    lines = [
        "Latency in milliseconds, batch 1 (times as slow as " + ours + "):",
        "",
        "| model | threads | " + " | ".join(peers) + " |",
        "| --- | ---: |" + " ---: |" * len(peers),
    ]
    for row in report["results"]:
        own = row["peers"].get(ours, {}).get("median_ms")
        cells = [_cell(row["peers"].get(p, {}), own, p == ours) for p in peers]
        lines.append(f"| {row['model']} | {row['threads']} | " + " | ".join(cells) + " |")
    lines += ["", *_notes(report, peers)]
    lines += [
        "",
        "Memory of the process after its first answer, MB, one Python process each:",
        "",
        "| model | threads | " + " | ".join(peers) + " |",
        "| --- | ---: |" + " ---: |" * len(peers),
    ]
    for row in report["results"]:
        found = [row["peers"].get(p, {}).get("resident_mb") for p in peers]
        cells = ["–" if mb is None else f"{mb:.0f}" for mb in found]
        lines.append(f"| {row['model']} | {row['threads']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", place(report)]) + "\n"


def _cell(result: dict[str, Any], own: float | None, is_ours: bool) -> str:
    if "median_ms" not in result:
        return "failed" if "error" in result else "–"
    notes = [] if is_ours or own is None else [f"{result['median_ms'] / own:.2f}×"]
    error = result.get("relative_error", 0.0)
    if not error <= LARGE_ERROR:  # NaN is large
        notes.append(f"error {error:.1%}")
    return f"{result['median_ms']:.2f}" + (f" ({', '.join(notes)})" if notes else "")


def _notes(report: dict[str, Any], peers: list[str]) -> list[str]:
    """What the cells do not say: precision, errors, failures, peers that are missing."""
    found = []
    results = [(row, p, r) for row in report["results"] for p, r in row["peers"].items()]
    if "openvino" in peers:
        found.append("`openvino` chooses its precision itself: bfloat16 where the CPU has it.")
    if any(not r.get("relative_error", 0.0) <= LARGE_ERROR for _, _, r in results):
        found.append(
            "Error: the largest one over the largest magnitude of an output, where above "
            f"{LARGE_ERROR:.1%}."
        )
    for row, peer, result in results:
        if "error" in result:
            thread = f"{row['threads']} thread{'s' * (row['threads'] > 1)}"
            found.append(f"`{peer}` failed on {row['model']}, {thread}: {_brief(result['error'])}.")
    for peer, what in report.get("left_out", {}).items():
        found.append(f"`{peer}` is left out: {what} was not installed.")
    return found


def _brief(error: str) -> str:
    """One short line without the folders of this machine."""
    return re.sub(r"(?:/[\w.@+-]+)+/", "", error.splitlines()[0])[:160].rstrip(". ")
