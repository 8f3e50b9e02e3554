"""Single operators beside onnxruntime: `python benchmarks/operators.py [WORD ...]`.

Times the models of operator_cases.py, or those whose names hold a WORD. Prints cuvil's median
beside onnxruntime's, then a table of the slower ones that marks those over 1.2. Both are loaded in
this process, timed in turn, and their answers compared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

import numpy as np
import onnx

from benchmarks.machine import machine, versions
from benchmarks.operator_cases import CASES
from benchmarks.operator_models import model
from benchmarks.pages import command, place, write_section
from benchmarks.peer import Peer, relative_error, slot
from benchmarks.peers import Cuvil, OnnxRuntime
from benchmarks.report import LIMIT, exit_code, ratio_table

# The largest difference: of floats over the largest magnitude, of 8 bits in steps.
# (Onnxruntime's Fourier transform of 1000 points is itself off by 3e-4.)
ERRORS = {"float16": 4e-3, "float32": 5e-4, "float64": 1e-9}
PAUSE_S = 0.005


class Built(Cuvil):
    """A package that this process builds: hundreds of compilers to start would take minutes."""

    def prepare(self, folder: Path) -> Path:
        from cuvilc.driver import BuildRequest, build

        package = folder / "model.cuvil"
        build(BuildRequest(folder / "model.onnx", package, cpu="host", vectors=0))
        return package

    def schedules(self) -> str:
        """Of the kernels, in the order of their steps."""
        names = (kernel["schedule"] for kernel in self.model.metadata["kernels"])
        return " ".join(dict.fromkeys(names))


def timed(peers: Sequence[Peer], rounds: int, seconds: float) -> list[float]:
    """Milliseconds of each: the median over the rounds of a slot's median, slots in turn."""
    found: list[list[float]] = [[] for _ in peers]
    for turn in range(rounds):
        for n in range(len(peers)):
            which = (n + turn) % len(peers)
            _wait_for_spinning()
            found[which].append(slot(peers[which], seconds)["median_ms"])
    return [statistics.median(f) for f in found]


def _wait_for_spinning() -> None:
    """Return when no thread of this process spins any more in wait for work: they do for 40 ms."""
    used = 1.0
    while used > PAUSE_S / 5:
        before = time.process_time()
        time.sleep(PAUSE_S)
        used = time.process_time() - before


def wrong(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> str:
    """In what the answers differ; "" where they agree."""
    for a, b in zip(found, wanted, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
        if limit := ERRORS.get(b.dtype.name):
            error = relative_error([a], [b.astype(np.float64)]) if b.size else 0.0
            if not error <= limit:
                return f"an error of {error:.1e}"
        elif b.size and (step := np.abs(a.astype(np.int64) - b).max()) > (b.dtype.itemsize == 1):
            return f"integers differ by {step}"
    return ""


def measure(name: str, folder: Path, options: Any) -> tuple[list[tuple[Any, ...]], str]:
    """(name, threads, cuvil's ms, onnxruntime's ms) of each number of threads; what is wrong."""
    made, feeds = model(CASES[name]())
    onnx.save(made, folder / "model.onnx")
    ours = Built()
    package = ours.prepare(folder)
    rows: list[tuple[Any, ...]] = []
    for threads in options.threads:
        peers = ours, OnnxRuntime()
        peers[0].load(package, threads, feeds)
        peers[1].load(folder / "model.onnx", threads, feeds)
        if difference := wrong(*(peer.run() for peer in peers)):
            return rows, f"{name}: {difference}"
        times = timed(peers, options.rounds, options.seconds)
        rows.append((name, threads, *times))
        shown = f"{times[0]:9.3f} {times[1]:9.3f} {times[0] / times[1]:6.2f}"
        print(f"{name:46} {threads} {shown}  {ours.schedules()}", flush=True)
        ours.model.close()
    return rows, ""


def chosen(words: Sequence[str]) -> list[str]:
    """Names that hold one of the words; all where there are none."""
    words = [word.lower() for word in words] or [""]
    return [name for name in CASES if any(word in name.lower() for word in words)]


def table(rows: Sequence[tuple[Any, ...]]) -> str:
    """One line a model and thread count that is over LIMIT, the worst ratio first."""
    if not rows:
        return "Nothing was measured."
    ratios = [row[2] / row[3] for row in rows]
    over, middle = sum(ratio > LIMIT for ratio in ratios), statistics.median(ratios)
    listed = f"{over} over {LIMIT}, which are listed"
    lines = [
        f"{len(rows)} times, {listed}; the middle ratio is {middle:.2f}.",
        "",
        *ratio_table([row for row in rows if row[2] > LIMIT * row[3]], "operator"),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="of a name [all]")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.03, help="of a slot")
    parser.add_argument("--write", action="store_true", help="put it into benchmarks/README.md")
    options = parser.parse_args()
    rows, mistakes = [], []
    for name in chosen(options.words):
        with tempfile.TemporaryDirectory(prefix="cuvil-bench-") as folder:
            try:
                found, mistake = measure(name, Path(folder), options)
            except Exception as error:
                found, mistake = [], f"{name}: {error}"
        rows += found
        mistakes += [mistake] * bool(mistake)
    where = {"machine": machine(), "versions": versions(["onnxruntime", "numpy"])}
    text = f"{table(rows)}\n\n{place({**where, 'command': command()})}"
    print(f"\n{text}")
    if options.write:
        write_section("operators", text)
    return exit_code(mistakes)


if __name__ == "__main__":
    sys.exit(main())
