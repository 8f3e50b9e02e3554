"""Side by side with other runtimes: `python benchmarks/compare.py [--models NAME ...]`.

Each peer runs in a process of its own; all stay loaded and are timed in turn, round after round,
so that a busy machine hurts all alike. A number is the median over the rounds of a slot's median.
Slots in which other programs used more than 0.15 cores are left out where two quiet ones exist.
Writes results.json, table.md and plot.svg into --out. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks import models
from benchmarks.machine import cpu_seconds, machine, versions, wait_until_quiet
from benchmarks.peers import PEERS, Peer
from benchmarks.plot import bars
from benchmarks.table import markdown

DISTURBED = 0.15
OURS = "cuvil"
PROGRAM = ROOT / "benchmarks" / "peers.py"
BEGIN, END = "<!-- compare: begin -->", "<!-- compare: end -->"  # in README.md


class Process:
    """A peer of a program in a child process, loaded."""

    def __init__(self, peer: str, folder: Path, threads: int, program: Path = PROGRAM) -> None:
        command = [sys.executable, program, peer, folder, str(threads)]
        quiet = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        self.child = subprocess.Popen(
            command,
            env={**os.environ, **quiet},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.facts = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.child.stdout
        line = self.child.stdout.readline()
        return json.loads(line) if line else {"error": f"the process ended: {self.child.wait()}"}

    def slot(self, seconds: float) -> dict[str, Any]:
        """Timings of one slot; `foreign`: cores that other programs used meanwhile."""
        assert self.child.stdin
        before = cpu_seconds()
        self.child.stdin.write(f"{seconds}\n")
        self.child.stdin.flush()
        result = self._answer()
        if "error" not in result:
            warm = 1 + 1 / result["runs"]  # one run before the clock started
            used = (cpu_seconds() - before) / warm - result["cpu_s"]
            result["foreign"] = max(0.0, used) / result["wall_s"]
        return result

    def close(self) -> None:
        assert self.child.stdin
        self.child.stdin.close()
        self.child.wait()


def measure(
    folder: Path, threads: int, peers: list[str], options: Any, program: Path = PROGRAM
) -> dict[str, Any]:
    """Facts and timings of each peer on one model; `rounds`: median_ms and foreign of each."""
    running: dict[str, Process] = {}
    results: dict[str, Any] = {}
    try:
        for peer in peers:
            process = Process(peer, folder, threads, program)
            results[peer] = process.facts
            if "error" in process.facts:
                process.close()
            else:
                running[peer] = process
        slots: dict[str, list[dict[str, Any]]] = {peer: [] for peer in running}
        for turn in range(options.rounds):
            order = list(running)
            shift = turn % max(len(order), 1)
            for peer in order[shift:] + order[:shift]:
                wait_until_quiet(options.quiet)
                slot = running[peer].slot(options.seconds)
                if "error" in slot:
                    results[peer] = slot
                    running.pop(peer).close()
                else:
                    slots[peer].append(slot)
    finally:
        for process in running.values():
            process.close()
    for peer in running:
        quiet = [s for s in slots[peer] if s["foreign"] <= DISTURBED]
        chosen = quiet if len(quiet) >= 2 else slots[peer]
        results[peer] |= {
            "median_ms": statistics.median(s["median_ms"] for s in chosen),
            "min_ms": min(s["min_ms"] for s in chosen),
            "slots": len(chosen),
            "slots_disturbed": len(slots[peer]) - len(quiet),
            "rounds": [[s["median_ms"], s["foreign"]] for s in slots[peer]],
        }
    return results


def available(wanted: list[str], known: Mapping[str, type[Peer]] = PEERS) -> list[str]:
    """The peers that can run here; says which cannot."""
    found = []
    for peer in wanted:
        missing = [m for m in known[peer].needs if find_spec(m) is None]
        if missing:
            print(f"{peer}: left out, {missing[0]} is not installed")
        else:
            found.append(peer)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(models.NAMES), metavar="NAME")
    parser.add_argument("--folder", type=Path, default=models.cache_folder(), help="of the models")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS, metavar="PEER")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a slot")
    parser.add_argument("--quiet", type=float, default=5.0, help="seconds to wait for a quiet CPU")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "compare")
    parser.add_argument("--readme", action="store_true", help="put table and plot into README.md")
    options = parser.parse_args()

    peers = available(options.peers)
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(["onnxruntime", "openvino", "torch", "apache-tvm", "numpy"]),
        "results": [],
    }
    for name in options.models:
        folder = models.ensure(name, options.folder)
        for threads in options.threads:
            results = measure(folder, threads, peers, options)
            report["results"].append({"model": name, "threads": threads, "peers": results})
            print(
                f"{name:14} {threads} thread{'s' * (threads > 1)}  " + summary(results), flush=True
            )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "table.md").write_text(markdown(report, OURS))
    (options.out / "plot.svg").write_text(bars(report, OURS))
    print("\n" + markdown(report, OURS))
    if options.readme:
        write_readme(report)
    print(f"results.json, table.md and plot.svg are in {options.out}")
    return 0


def write_readme(report: dict[str, Any]) -> None:
    """Replace what stands between the README's two marks, and docs/compare.svg."""
    (ROOT / "docs" / "compare.svg").write_text(bars(report, OURS))
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    _, after = rest.split(END)
    picture = "![Latency beside other runtimes](docs/compare.svg)"
    readme.write_text(f"{before}{BEGIN}\n{picture}\n\n{markdown(report, OURS)}{END}{after}")


def summary(results: dict[str, Any]) -> str:
    return "  ".join(
        f"{peer} {r['median_ms']:.2f} ms" if "median_ms" in r else f"{peer}: {r['error']}"
        for peer, r in results.items()
    )


if __name__ == "__main__":
    sys.exit(main())
