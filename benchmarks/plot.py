"""Results of compare.py as bars in an SVG, each model's times relative to ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.table import peers_of

COLOURS = ("#c2410c", "#1d4ed8", "#0f766e", "#5eada5", "#7c3aed", "#64748b")
PEERS = {  # one hue a runtime; other names take COLOURS in their order
    "cuvil": "#c2410c", "cuvil-bf16": "#fdba74", "onnxruntime": "#1d4ed8",
    "openvino-f32": "#0f766e", "openvino": "#5eead4", "torch": "#6d28d9",
    "torch-compile": "#c084fc", "aot-inductor": "#db2777", "iree": "#737373",
}  # fmt: skip
LABEL, WIDTH, BAR, GAP, ROW = 150, 560, 11, 12, 18
LEGEND = 5  # names a row
LONGEST = 4.0  # times ours; a bar that is cut says how many


@dataclass
class Group:
    """A label; of each peer its ratio to ours, and the value that stands beside its bar."""

    label: str
    ratios: dict[str, float]
    values: dict[str, str]


def bars(report: dict[str, Any], ours: str) -> str:
    """A group of bars a row of the report; shorter is faster, ours has length 1.

    A row: model, threads, peers {name: {median_ms}}; or label, unit, peers {name: {value}}.
    """
    peers = peers_of(report, ours)
    groups = _groups(report, ours, peers)
    ratios = [r for group in groups for r in group.ratios.values()]
    longest = min(max(ratios, default=1.0), LONGEST)
    top = 28 + ROW * -(-len(peers) // LEGEND)
    parts, y = [], top
    for group in groups:
        label, shares = group.label, group.ratios
        middle = y + len(shares) * BAR / 2 + 4
        parts.append(
            f'<text x="{LABEL - 8}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>'
        )
        for peer, ratio in shares.items():
            width = min(ratio, longest) / longest * WIDTH
            parts.append(
                f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR - 1}" '
                f'fill="{_colour(peers, peer)}"/>'
                f'<text x="{LABEL + width + 4:.1f}" y="{y + BAR - 2}" class="value">'
                f"{group.values[peer]}{f' ({ratio:.1f}×)' if ratio > longest else ''}</text>"
            )
            y += BAR
        y += GAP
    one = LABEL + WIDTH / longest
    parts.append(f'<line x1="{one:.1f}" y1="{top - 6}" x2="{one:.1f}" y2="{y - GAP + 4}"/>')
    width, height = LABEL + WIDTH + 80, y + 4
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12" fill="#222">\n'
        "<style>.value{font-size:9px;fill:#555} line{stroke:#222;stroke-dasharray:3 3}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{_legend(peers)}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _groups(report: dict[str, Any], ours: str, peers: Sequence[str]) -> list[Group]:
    """What `ours` ran; a peer that did not is left out of its group."""
    groups = []
    for row in report["results"]:
        unit, key = row.get("unit", "ms"), "value" if "unit" in row else "median_ms"
        found = {p: row["peers"].get(p, {}).get(key) for p in (*peers, ours)}
        own = found[ours]
        if own:
            label = row.get("label") or f"{row['model']}, {row['threads']} thr"
            ratios = {p: found[p] / own for p in peers if found[p] is not None}
            groups.append(Group(label, ratios, {p: f"{found[p]:.1f} {unit}" for p in ratios}))
    return groups


def _colour(peers: Sequence[str], peer: str) -> str:
    return PEERS.get(peer) or COLOURS[peers.index(peer) % len(COLOURS)]


def _legend(peers: Sequence[str]) -> str:
    parts = []
    for i, peer in enumerate(peers):
        x, y = LABEL + i % LEGEND * 118, 14 + i // LEGEND * ROW
        parts.append(
            f'<rect x="{x}" y="{y}" width="10" height="10" fill="{_colour(peers, peer)}"/>'
            f'<text x="{x + 14}" y="{y + 9}">{escape(peer)}</text>'
        )
    return "".join(parts)
