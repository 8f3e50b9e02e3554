"""Each model and kernel against what this machine can do at most: `python benchmarks/roofline.py`.

The limits of one core are measured by limits.c: float32 multiply-adds, and reads from memory of
three sizes. A kernel cannot be faster than its operations at that peak, nor than its bytes at the
rate of the smallest memory that holds them. Printed: the share of the limit reached, per model and
for the kernels that lose the most time against their limit. One thread. Operations are those that
a kernel does: of Winograd's convolutions fewer than of direct ones.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

import numpy as np

from benchmarks import models
from benchmarks.machine import machine
from benchmarks.pages import command, place, write_section

SIZES = (256 << 10, 8 << 20, 256 << 20)  # bytes; in the second level, the third, memory


@dataclass(frozen=True)
class Limits:
    """Of one core: GFLOP/s, and GB/s read from memory of each of SIZES."""

    gflops: float
    read_gbs: tuple[float, ...]

    def time_us(self, flops: float, size_bytes: float) -> float:
        """The least time for so many operations on so many bytes, each touched once."""
        rates = zip(SIZES, self.read_gbs, strict=True)
        rate = next((r for size, r in rates if size_bytes <= size), self.read_gbs[-1])
        return max(flops / self.gflops, size_bytes / rate) / 1e3


@dataclass
class Work:
    """What the calls of one kernel took in a run, and their limit."""

    kernel: str
    schedule: str
    calls: int
    flops: float
    size_bytes: float
    time_us: float
    limit_us: float

    @property
    def lost_us(self) -> float:
        return self.time_us - self.limit_us


def measure_limits(seconds: float) -> Limits:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        source = Path(__file__).with_name("limits.c")
        subprocess.run(["cc", "-O3", "-march=native", source, "-o", program], check=True)
        command = [program, str(seconds), *map(str, SIZES)]
        out = subprocess.run(command, check=True, capture_output=True, text=True)
    gflops, *rates = map(float, out.stdout.split())
    return Limits(gflops, tuple(rates))


def measure_model(folder: Path, limits: Limits, runs: int) -> list[Work]:
    """Build the model for this CPU, run it, and set each kernel beside its limit."""
    import cuvil

    from cuvilc.driver import BuildRequest, build

    with tempfile.TemporaryDirectory() as aside:
        package = Path(aside) / f"{folder.name}.cuvil"
        build(BuildRequest(folder / "model.onnx", package, cpu="host", vectors=0))
        model = cuvil.load(package, threads=1)
        with np.load(folder / "inputs.npz") as file:
            profile = model.profile({key: file[key] for key in file.files}, runs)
        facts: dict[str, dict[str, Any]] = {k["name"]: k for k in model.metadata["kernels"]}
        model.close()
    times: dict[str, float] = defaultdict(float)
    for row in profile:
        times[row.kernel] += row.time_us
    found = []
    for kernel, time_us in times.items():
        fact = facts.get(kernel, {"schedule": "copy", "calls": 1, "flops": 0, "bytes": 0})
        calls = max(fact["calls"], 1)
        flops, size = number(fact["flops"]), number(fact["bytes"])
        limit = calls * limits.time_us(flops / calls, size / calls)
        found.append(Work(kernel, fact["schedule"], calls, flops, size, time_us, limit))
    return sorted(found, key=lambda w: -w.lost_us)


def number(size: object) -> float:
    """A size that depends on the input's is left out: benchmark models have fixed shapes."""
    return float(size) if isinstance(size, int | float) else 0.0


def shares(models_works: dict[str, list[Work]]) -> str:
    """A line a model."""
    lines = ["| model | time, ms | limit, ms | of the limit | GFLOP/s |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for name, works in models_works.items():
        total = sum(w.time_us for w in works)
        limit = sum(w.limit_us for w in works)
        flops = sum(w.flops for w in works)
        lines.append(
            f"| {name} | {total / 1e3:.2f} | {limit / 1e3:.2f} | {limit / total:.0%} "
            f"| {flops / total / 1e3:.1f} |"
        )
    return "\n".join(lines)


def worst(models_works: dict[str, list[Work]], count: int) -> str:
    """The kernels that lose the most time against their limit."""
    lines = ["| model | kernel | schedule | calls | time, us | of the limit | GFLOP/s | lost, us |"]
    lines.append("| --- | --- | --- |" + " ---: |" * 5)
    rows = [(name, work) for name, works in models_works.items() for work in works]
    for name, w in sorted(rows, key=lambda row: -row[1].lost_us)[:count]:
        time_us = max(w.time_us, 1e-9)
        lines.append(
            f"| {name} | `{w.kernel}` | {w.schedule} | {w.calls} | {w.time_us:.0f} "
            f"| {w.limit_us / time_us:.0%} | {w.flops / time_us / 1e3:.1f} | {w.lost_us:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--models", nargs="+", default=list(models.NAMES), metavar="NAME")
    add("--folder", type=Path, default=models.cache_folder(), help="of the models")
    add("--runs", type=int, default=20)
    add("--seconds", type=float, default=1.0, help="of measuring a limit")
    add("--worst", type=int, default=10, help="kernels to list of each model, and of all")
    add("--write", action="store_true", help="put shares and worst into benchmarks/README.md")
    options = parser.parse_args()

    limits = measure_limits(options.seconds)
    sizes = ", ".join(
        f"{r:.0f} GB/s of {s >> 10} KiB" for r, s in zip(limits.read_gbs, SIZES, strict=True)
    )
    one_core = f"One core: {limits.gflops:.1f} GFLOP/s; reads {sizes}."
    print(f"{one_core}\n")
    found = {}
    for name in options.models:
        works = measure_model(models.ensure(name, options.folder), limits, options.runs)
        found[name] = works
        print(f"{shares({name: works})}\n\n{worst({name: works}, options.worst)}\n", flush=True)
    where = place({"machine": machine(), "command": command()})
    text = f"{one_core}\n\n{shares(found)}\n\nThe kernels that lose the most:\n\n"
    text += f"{worst(found, options.worst)}\n\n{where}\n"
    print(text)
    if options.write:
        write_section("roofline", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
