"""Results of compare.py as bars in an SVG, each model's times relative to ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.table import peers_of

COLOURS = ("#c2410c", "#1d4ed8", "#0f766e", "#5eada5", "#7c3aed", "#64748b")
LABEL, WIDTH, BAR, GAP, TOP = 150, 560, 11, 12, 46


Group = tuple[str, dict[str, float], dict[str, float]]  # label; ratio and ms of each peer


def bars(report: dict[str, Any], ours: str) -> str:
    """A group of bars a model and thread count; shorter is faster, ours has length 1."""
    peers = peers_of(report, ours)
    groups = _groups(report, ours, peers)
    longest = min(max([r for _, ratios, _ in groups for r in ratios.values()], default=1.0), 4.0)
    parts, y = [], TOP
    for label, ratios, times in groups:
        middle = y + len(ratios) * BAR / 2 + 4
        parts.append(
            f'<text x="{LABEL - 8}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>'
        )
        for peer, ratio in ratios.items():
            width = min(ratio, longest) / longest * WIDTH
            colour = COLOURS[peers.index(peer) % len(COLOURS)]
            parts.append(
                f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR - 1}" '
                f'fill="{colour}"/>'
                f'<text x="{LABEL + width + 4:.1f}" y="{y + BAR - 2}" class="value">'
                f"{times[peer]:.1f} ms</text>"
            )
            y += BAR
        y += GAP
    one = LABEL + WIDTH / longest
    parts.append(f'<line x1="{one:.1f}" y1="{TOP - 6}" x2="{one:.1f}" y2="{y - GAP + 4}"/>')
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
        times = {p: row["peers"].get(p, {}).get("median_ms") for p in (*peers, ours)}
        own = times[ours]
        if own:
            ratios = {p: times[p] / own for p in peers if times[p] is not None}
            groups.append((f"{row['model']}, {row['threads']} thr", ratios, times))
    return groups


def _legend(peers: Sequence[str]) -> str:
    return "".join(
        f'<rect x="{LABEL + i * 118}" y="14" width="10" height="10" '
        f'fill="{COLOURS[i % len(COLOURS)]}"/>'
        f'<text x="{LABEL + 14 + i * 118}" y="23">{escape(peer)}</text>'
        for i, peer in enumerate(peers)
    )
