"""Results of compare.py as Markdown."""

from __future__ import annotations

import math
import re
from typing import Any

from benchmarks.pages import place

LARGE_ERROR = 1e-3


def peers_of(report: dict[str, Any], ours: str) -> list[str]:
    """Every peer that was measured, ours first."""
    names = dict.fromkeys(p for r in report["results"] for p in r["peers"])
    return [ours] * (ours in names) + [n for n in names if n != ours]


def markdown(report: dict[str, Any], ours: str, compact: bool = False) -> str:
    """Latency with its ratio to ours, memory, then the machine; compact: one line a model."""
    peers = peers_of(report, ours)
    lines = _compact(report, ours, peers) if compact else _in_full(report, ours, peers)
    return "\n".join([*lines, "", place(report)]) + "\n"


def _in_full(report: dict[str, Any], ours: str, peers: list[str]) -> list[str]:
    """A table of latency and one of memory, a line for each model and thread count."""
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
    return lines


def _compact(report: dict[str, Any], ours: str, peers: list[str]) -> list[str]:
    """One table: all thread counts in a cell, memory with the most threads."""
    threads = sorted({row["threads"] for row in report["results"]})
    models: dict[str, dict[int, dict[str, Any]]] = {}
    for row in report["results"]:
        models.setdefault(row["model"], {})[row["threads"]] = row["peers"]
    counts = f"{' / '.join(map(str, threads))} thread{'s' * (threads != [1])}"
    lines = [
        f"Latency in milliseconds, batch 1, with {counts} (times as slow as {ours}), and memory of "
        "the process:",
        "",
        "| model | " + " | ".join([*peers, *(f"{p}, MB" for p in peers)]) + " |",
        "| --- |" + " ---: |" * 2 * len(peers),
    ]
    for model, measured in models.items():
        cells = [_times(measured, threads, peer, ours) for peer in peers]
        for peer in peers:
            found = measured[max(measured)].get(peer, {}).get("resident_mb")
            cells.append("–" if found is None else f"{found:.0f}")
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    notes = _notes(report, peers)
    return [*lines, *([""] if notes else []), *notes]


def _times(measured: dict[int, dict[str, Any]], threads: list[int], peer: str, ours: str) -> str:
    """A peer's times with each thread count, and the largest error where it is large."""
    cells = []
    for count in threads:
        peers = measured.get(count, {})
        result = {k: v for k, v in peers.get(peer, {}).items() if k != "relative_error"}
        cells.append(_cell(result, peers.get(ours, {}).get("median_ms"), peer == ours))
    errors = [peers.get(peer, {}).get("relative_error", 0.0) for peers in measured.values()]
    worst = max(errors, key=lambda error: math.inf if math.isnan(error) else error)
    return " / ".join(cells) + ("" if worst <= LARGE_ERROR else f", error {worst:.1%}")


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
