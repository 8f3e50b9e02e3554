"""Results of compare.py as Markdown."""

from __future__ import annotations

from typing import Any


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
    if "openvino" in peers:
        lines += ["", "`openvino` chooses its precision itself: bfloat16 where the CPU has it."]
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
    where = report["machine"]
    packages = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
    lines += [
        "",
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['date']}; "
        f"{packages}.",
    ]
    return "\n".join(lines) + "\n"


def _cell(result: dict[str, Any], own: float | None, is_ours: bool) -> str:
    if "median_ms" not in result:
        return "failed" if "error" in result else "–"
    value = f"{result['median_ms']:.2f}"
    return value if is_ours or own is None else f"{value} ({result['median_ms'] / own:.2f}×)"
