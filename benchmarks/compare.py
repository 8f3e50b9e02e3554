"""Side by side with other runtimes: `python benchmarks/compare.py [--models NAME ...]`.

Each peer runs in a process of its own; all stay loaded and are timed in turn, round after round,
so that a busy machine hurts all alike. A number is the median over the rounds of a slot's median.
Slots in which other programs used more than 0.15 cores are left out where two quiet ones exist.
Ratios are to cuvil, or where it is not among them to the first peer.
`--models further` measures 24 more networks.
Writes results.json, table.md and plot.svg into --out. Peers that cannot run here are left out and
named; `--peers all` adds those that compile for long, `--together` lets all compile at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks import models, pages
from benchmarks.machine import cpu_seconds, wait_until_quiet
from benchmarks.pages import PAGE, write_section
from benchmarks.peers import PEERS, Peer
from benchmarks.plot import bars
from benchmarks.report import begun, chosen, peer_option, save, timing_options
from benchmarks.table import markdown

DISTURBED = 0.15
OURS = "cuvil"
PROGRAM = ROOT / "benchmarks" / "peers.py"
PLOTTED = ("compare", "quantised", "bf16")  # sections with few enough models
SECTIONS = [name for name, line in pages.SECTIONS.items() if line.startswith("compare.py")]
PACKAGES = (
    "onnxruntime", "openvino", "torch", "iree-base-compiler", "apache-tvm", "numpy",
)  # fmt: skip


class Process:
    """A peer of a program in a child process, loaded."""

    def __init__(self, peer: str, folder: Path, threads: int, program: Path = PROGRAM) -> None:
        command = [sys.executable, program, peer, folder, str(threads)]
        quiet = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        self.loaded: dict[str, Any] | None = None
        self.child = subprocess.Popen(
            command,
            env={**os.environ, **quiet},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """How loading went; waits until it is over."""
        if self.loaded is None:
            self.loaded = self._answer()
        return self.loaded

    def _answer(self) -> dict[str, Any]:
        assert self.child.stdout
        line = self.child.stdout.readline()
        return json.loads(line) if line else {"error": f"the process ended: {self.child.wait()}"}

    def slot(self, seconds: float) -> dict[str, Any]:
        """Timings of one slot; `foreign`: cores that other programs used meanwhile."""
        assert self.child.stdin
        before = cpu_seconds()
        try:
            self.child.stdin.write(f"{seconds}\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            return {"error": f"the process ended: {self.child.wait()}"}
        result = self._answer()
        if "error" not in result:
            warm = 1 + 1 / result["runs"]  # one run before the clock started
            used = (cpu_seconds() - before) / warm - result["cpu_s"]
            result["foreign"] = max(0.0, used) / result["wall_s"]
        return result

    def close(self) -> None:
        assert self.child.stdin
        with suppress(BrokenPipeError):
            self.child.stdin.close()
        self.child.wait()


@contextmanager
def running(
    folder: Path,
    threads: int,
    peers: Sequence[str],
    program: Path = PROGRAM,
    together: bool = False,
) -> Iterator[tuple[dict[str, Process], dict[str, Any]]]:
    """The peers that loaded, and the facts of all; those that fail later are to be taken out.

    together: all load at the same time, which is quicker, but their loading times say nothing.
    """
    processes: dict[str, Process] = {}
    facts: dict[str, Any] = {}
    try:
        for peer in peers:
            processes[peer] = Process(peer, folder, threads, program)
            if not together:
                facts[peer] = processes[peer].facts
        for peer in peers:
            facts[peer] = processes[peer].facts
            if "error" in facts[peer]:
                processes.pop(peer).close()
        yield processes, facts
    finally:
        for process in processes.values():
            process.close()


def measure(
    folder: Path,
    threads: int,
    peers: list[str],
    options: Any,
    program: Path = PROGRAM,
    together: bool = False,
) -> dict[str, Any]:
    """Facts and timings of each peer on one model; `rounds`: median_ms and foreign of each."""
    with running(folder, threads, peers, program, together) as (processes, results):
        slots: dict[str, list[dict[str, Any]]] = {peer: [] for peer in processes}
        for turn in range(options.rounds):
            for peer in in_turn(list(processes), turn):
                wait_until_quiet(options.quiet)
                slot = processes[peer].slot(options.seconds)
                if "error" in slot:
                    results[peer] = slot
                    processes.pop(peer).close()
                else:
                    slots[peer].append(slot)
        for peer in processes:
            results[peer] |= timings(slots[peer])
    return results


def in_turn(peers: list[str], turn: int) -> list[str]:
    """The order of a round: another one is first in each."""
    shift = turn % max(len(peers), 1)
    return peers[shift:] + peers[:shift]


def timings(slots: list[dict[str, Any]]) -> dict[str, Any]:
    """One peer's figures from its slots: the quiet ones where there are two."""
    quiet = [s for s in slots if s["foreign"] <= DISTURBED]
    chosen = quiet if len(quiet) >= 2 else slots
    return {
        "median_ms": statistics.median(s["median_ms"] for s in chosen),
        "min_ms": min(s["min_ms"] for s in chosen),
        "slots": len(chosen),
        "slots_disturbed": len(slots) - len(quiet),
        "rounds": [[s["median_ms"], s["foreign"]] for s in slots],
    }


def available(wanted: Sequence[str], known: Mapping[str, type[Peer]] = PEERS) -> list[str]:
    """The peers that can run here; says which cannot."""
    missing = {peer: lacking(known[peer]) for peer in wanted}
    for peer, what in missing.items():
        if what:
            print(f"{peer}: left out, {what} is not installed", file=sys.stderr)
    return [peer for peer, what in missing.items() if not what]


def present(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The peers of `--peers` that can run here; of the others what is missing."""
    wanted = chosen(names)
    peers = available(wanted)
    return peers, {peer: lacking(PEERS[peer]) for peer in wanted if peer not in peers}


def lacking(peer: type[Peer]) -> str:
    """The first module or program of a peer that is not here; "" when all are."""
    for module in peer.needs:
        try:
            spec = find_spec(module)
        except ModuleNotFoundError:  # of the package that it is in
            spec = None
        if spec is None:
            return module
    return next((program for program in peer.programs if which(program) is None), "")


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add(
        "--models", nargs="+", default=list(models.NAMES), metavar="NAME",
        help=f"of models.py; `further` stands for {', '.join(models.FURTHER)}",
    )  # fmt: skip
    add("--threads", nargs="+", type=int, default=[1, 2])
    peer_option(parser)
    timing_options(parser, "compare", rounds=7, seconds=0.5, quiet=5.0)
    add("--together", action="store_true", help="load all at once: quick, loading times are off")
    add("--compact", action="store_true", help="one table, a line a model")
    add("--json", action="store_true", help="print the report as JSON, nothing else")
    add("--readme", action="store_true", help="put table and plot into README.md")
    add("--section", default="compare", choices=SECTIONS, help="where in it [compare]")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    log = sys.stderr if options.json else sys.stdout
    peers, left_out = present(options.peers)
    report = begun(PACKAGES, left_out=left_out)
    for name in models.named(options.models):
        folder = models.ensure(name, options.folder)
        for threads in options.threads:
            results = measure(folder, threads, peers, options, together=options.together)
            report["results"].append({"model": name, "threads": threads, "peers": results})
            line = f"{name:14} {threads} thread{'s' * (threads > 1)}  {summary(results)}"
            print(line, file=log, flush=True)
    ours = OURS if OURS in peers or not peers else peers[0]
    table = markdown(report, ours, options.compact)
    text = save(report, options.out, table, plot=bars(report, ours))
    print(text if options.json else "\n" + table)
    if options.readme:
        write_plotted("compare", table, bars(report, ours), ROOT / "README.md", "docs/")
    if options.write and options.section in PLOTTED:
        write_plotted(options.section, table, bars(report, ours), PAGE)
    elif options.write:
        write_section(options.section, table)
    print(f"results.json, table.md and plot.svg are in {options.out}", file=log)
    return 0


def write_plotted(section: str, table: str, plot: str, page: Path, beside: str = "") -> None:
    """A section of a page: a plot, kept in the folder `beside` the page, and a table."""
    (page.parent / f"{beside}{section}.svg").write_text(plot)
    picture = f"![Latency beside other runtimes]({beside}{section}.svg)"
    write_section(section, f"{picture}\n\n{table}", page)


def summary(results: dict[str, Any]) -> str:
    return "  ".join(
        f"{peer} {r['median_ms']:.2f} ms {r['resident_mb']:.0f} MB"
        if "median_ms" in r
        else f"{peer}: {r['error']}"
        for peer, r in results.items()
    )


if __name__ == "__main__":
    sys.exit(main())
