"""What a peer is, and the process that one is measured in.

A peer loads a model and runs it with nothing that a caller would not pay for.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmarks.machine import machine

Feeds = dict[str, np.ndarray]


class Peer:
    """`needs`: the modules it lives from; `programs`: the commands.

    `truth`: the file of the right answers; "": of none.
    """

    needs: ClassVar[tuple[str, ...]]
    programs: ClassVar[tuple[str, ...]] = ()
    truth: ClassVar[str] = "ref.npz"

    def prepare(self, folder: Path) -> Path:
        """Imports, and what is done once for all loads: compiling. Returns what `load` takes."""
        return folder / "model.onnx"

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        raise NotImplementedError

    def run(self) -> list[np.ndarray]:
        """The outputs in order, for the feeds given to `load`."""
        raise NotImplementedError

    def facts(self) -> dict[str, float]:
        """What else is worth writing down, once it has run."""
        return {}


COMPILE_S = 600.0  # a peer that compiles for longer fails; on a busy machine a minute is five


def compile_with(command: Sequence[str]) -> None:
    """Run a compiler; another process, since its memory is none of the runtime's.

    Raises RuntimeError with its message, or when it takes longer than COMPILE_S seconds.
    """
    try:
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=COMPILE_S
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"compiling takes over {COMPILE_S:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the compiler ended with {done.returncode}"]
        raise RuntimeError(next((x for x in lines if "error" in x.lower()), lines[-1]))


def kept(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """folder/compiled/NAME-CPU: what `make` wrote there once.

    For peers that compile for long. `name` says what it depends on: version, threads.
    """
    stem, _, ending = name.rpartition(".")
    cpu = hashlib.sha256(str(machine()["cpu"]).encode()).hexdigest()[:8]
    path = folder / "compiled" / f"{stem}-{cpu}.{ending}"
    if not path.exists():
        aside = path.with_name(f"{os.getpid()}-{path.name}")
        aside.parent.mkdir(exist_ok=True)
        try:
            make(aside)
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)
    return path


def resident_mb(key: str) -> float:
    """VmRSS or VmHWM of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def relative_error(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest error over the largest magnitude, of the worst output."""
    errors = (
        float(np.abs(a.astype(np.float64).reshape(b.shape) - b).max() / max(np.abs(b).max(), 1e-30))
        for a, b in zip(found, wanted, strict=True)
    )
    return max(errors, default=0.0)


def serve(peer: Peer, folder: Path, threads: int) -> None:
    """Load and say how that went; then one timing slot for each number of seconds read."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    clock = time.perf_counter
    try:
        feeds = arrays(folder / "inputs.npz")
        wanted = list(arrays(folder / peer.truth).values()) if peer.truth else []
        start = clock()
        path = peer.prepare(folder)
        prepared = clock()
        peer.load(path, threads, feeds)
        loaded = clock()
        first = [np.array(a) for a in peer.run()]
        answered = clock()
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        answers.write(json.dumps({"error": message}) + "\n")
        return
    facts = {
        "prepare_s": prepared - start,
        "load_s": loaded - prepared,
        "first_s": answered - loaded,
        "resident_mb": resident_mb("VmRSS"),
        "relative_error": relative_error(first, wanted),
        **peer.facts(),
    }
    answers.write(json.dumps(facts) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(slot(peer, float(line))) + "\n")


def arrays(path: Path) -> Feeds:
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def slot(peer: Peer, seconds: float) -> dict[str, float]:
    """Run for so long, three times at least; CPU and wall seconds tell how disturbed it was."""
    peer.run()
    times: list[float] = []
    cpu, start = time.process_time(), time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        peer.run()
        times.append(time.perf_counter() - before)
    return {
        "median_ms": statistics.median(times) * 1e3,
        "min_ms": min(times) * 1e3,
        "runs": len(times),
        "wall_s": time.perf_counter() - start,
        "cpu_s": time.process_time() - cpu,
    }
