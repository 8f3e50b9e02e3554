"""With one core taken by another program: `python benchmarks/busy.py [--models NAME ...]`.

Each peer runs on as many threads as there are CPUs. In each round it is timed twice: by itself, and
while a process beside it keeps one core busy. Printed: the medians over the rounds, and how many
times as long an answer takes beside the other program. Writes results.json and table.md into --out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks import models
from benchmarks.compare import DISTURBED, PACKAGES, in_turn, present, running
from benchmarks.machine import wait_until_quiet
from benchmarks.pages import place, write_section
from benchmarks.report import begun, peer_option, save, timing_options


@contextmanager
def core_taken(wanted: bool = True) -> Iterator[None]:
    """Another program keeps one core busy while this lasts."""
    if not wanted:
        yield
        return
    # It ends by itself, should this program be killed: its parent is then another one.
    program = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        time.sleep(0.1)  # until it has started
        yield
    finally:
        child.kill()
        child.wait()


def measure(folder: Path, peers: list[str], options: Any) -> dict[str, Any]:
    """Of each peer its facts, alone_ms, busy_ms and slow_down, medians over the rounds."""
    with running(folder, options.threads, peers, together=True) as (processes, results):
        pairs: dict[str, list[dict[str, Any]]] = {peer: [] for peer in processes}
        for turn in range(options.rounds):
            for peer in in_turn(list(processes), turn):
                pair = {}
                for state in ("alone", "busy"):
                    wait_until_quiet(options.quiet)
                    with core_taken(state == "busy"):
                        pair[state] = processes[peer].slot(options.seconds)
                if error := next((s for s in pair.values() if "error" in s), None):
                    results[peer] = error
                    processes.pop(peer).close()
                else:
                    pairs[peer].append(pair)
        for peer in processes:
            results[peer] |= timings(pairs[peer])
    return results


def timings(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """The slow-down is that of a round, so that drift hurts both alike; its median over rounds.

    Rounds in which a third program ran too are left out where there are two without.
    """
    quiet = [p for p in pairs if p["alone"]["foreign"] <= DISTURBED]
    chosen = quiet if len(quiet) >= 2 else pairs
    alone, busy = ([p[k]["median_ms"] for p in chosen] for k in ("alone", "busy"))
    return {
        "alone_ms": statistics.median(alone),
        "busy_ms": statistics.median(busy),
        "slow_down": statistics.median(b / a for a, b in zip(alone, busy, strict=True)),
        "rounds": len(chosen),
        "rounds_disturbed": len(pairs) - len(quiet),
    }


def markdown(report: dict[str, Any]) -> str:
    """A line a model and peer."""
    lines = [
        "| model | threads | peer | alone, ms | one core taken, ms | times as slow | MB |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in report["results"]:
        for peer, found in row["peers"].items():
            cells = ["failed"] * 4
            if "alone_ms" in found:
                cells = [f"{found[key]:.2f}" for key in ("alone_ms", "busy_ms")]
                cells += [f"{found['slow_down']:.2f}×", f"{found['resident_mb']:.0f}"]
            lines.append(f"| {row['model']} | {row['threads']} | {peer} | {' | '.join(cells)} |")
    for peer, what in report["left_out"].items():
        lines += ["", f"`{peer}` is left out: {what} was not installed."]
    return "\n".join([*lines, "", place(report)]) + "\n"


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--models", nargs="+", default=["minilm"], metavar="NAME")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="[all CPUs]")
    peer_option(parser)
    timing_options(parser, "busy", rounds=5, seconds=0.5, quiet=5.0)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    peers, left_out = present(options.peers)
    report = begun(PACKAGES, left_out=left_out)
    for name in options.models:
        results = measure(models.ensure(name, options.folder), peers, options)
        report["results"].append({"model": name, "threads": options.threads, "peers": results})
    save(report, options.out, markdown(report))
    print(markdown(report))
    if options.write:
        write_section("busy", markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
