"""What programs that time peers in turn have in common: options, a report, files, an end."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.machine import machine, versions
from benchmarks.pages import command
from benchmarks.peers import PEERS, QUICK

ROOT = Path(__file__).resolve().parents[1]


LIMIT = 1.2  # of a ratio to onnxruntime's time; beyond it a line is marked


def ratio_table(rows: Sequence[tuple[str, int, float, float]], what: str) -> list[str]:
    """The lines of (name, threads, cuvil's ms, onnxruntime's ms), the worst ratio first; `what`
    the names are of.
    """
    lines = [
        f"| {what} | threads | cuvil, ms | onnxruntime, ms | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, threads, ours, theirs in sorted(rows, key=lambda row: -row[2] / row[3]):
        mark = " **slower**" if ours / theirs > LIMIT else ""
        lines.append(
            f"| {name} | {threads} | {ours:.3f} | {theirs:.3f} | {ours / theirs:.2f}{mark} |"
        )
    return lines


def timing_options(
    parser: argparse.ArgumentParser, name: str, rounds: int, seconds: float, quiet: float
) -> None:
    """Where models are, how long to measure, where the report goes: build/NAME."""
    add = parser.add_argument
    add("--folder", type=Path, default=models.cache_folder(), help="of the models")
    add("--rounds", type=int, default=rounds)
    add("--seconds", type=float, default=seconds, help="of a slot")
    add("--quiet", type=float, default=quiet, help="seconds to wait for a quiet CPU")
    add("--out", type=Path, default=ROOT / "build" / name)
    add("--write", action="store_true", help="put the result into benchmarks/README.md")


def peer_option(parser: argparse.ArgumentParser) -> None:
    """--peers, of which `chosen` makes names."""
    parser.add_argument(
        "--peers", nargs="+", default=list(QUICK), choices=[*PEERS, "all"], metavar="PEER",
        help=f"all, or of {', '.join(PEERS)} [{' '.join(QUICK)}]",
    )  # fmt: skip


def chosen(peers: Sequence[str]) -> list[str]:
    return list(PEERS) if "all" in peers else list(peers)


def quick_options(parser: argparse.ArgumentParser) -> None:
    """How long to measure, where --quick makes it short: `set_usual` fills in what is not given."""
    add = parser.add_argument
    add("--rounds", type=int, default=None, help="[11]")
    add("--seconds", type=float, default=None, help="of a slot [0.5]")
    add("--quiet", type=float, default=None, help="seconds to wait for a quiet CPU [5]")
    add("--quick", action="store_true", help="tiny models and no waiting: does it work at all?")


def set_usual(options: Any, usual: Mapping[str, tuple[Any, Any]]) -> None:
    """Options that were not given become what is usual: (in full, with --quick)."""
    for name, (full, quick) in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)


def begun(packages: Sequence[str], **more: Any) -> dict[str, Any]:
    """A report that has no results yet."""
    where = {"command": command(), "machine": machine(), "versions": versions(packages)}
    return {**where, **more, "results": []}


def save(report: Mapping[str, Any], folder: Path, table: str, **plots: str) -> str:
    """results.json, table.md and NAME.svg of each plot; returns the JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1)
    (folder / "results.json").write_text(text + "\n")
    (folder / "table.md").write_text(table)
    for name, plot in plots.items():
        (folder / f"{name}.svg").write_text(plot)
    return text


def exit_code(wrong: Sequence[str]) -> int:
    """Tell what went wrong; 1 where something did."""
    print("".join(f"wrong: {line}\n" for line in wrong), end="")
    return 1 if wrong else 0
