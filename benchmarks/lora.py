"""What adapters cost: `python benchmarks/lora.py [--workloads NAME ...] [--quick]`.

swap        time of a swap of BERT-base, r = 16 on query and value; the first one apart
prefill     latency of a Llama (hidden 512, 8 layers), 64 tokens, adapters on q and v
decode      of one token behind 64 cached ones
decode64    the same of 64 rows, also with 64 different adapters

Side by side: packages without an adapter, folded, swapped, and built for batches; torch with PEFT
and onnxruntime, merged and beside the weights. All stay loaded and are timed in turn (compare.py
says how); a percentage is the median over the rounds of what a peer took more than the one it is
compared with in the same round. Writes results.json and table.md into --out. Ends with 1 where a
peer fails, or its answer is not torch's.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks import lora_models
from benchmarks.compare import DISTURBED, available, measure, summary
from benchmarks.lora_peers import LORA_PEERS
from benchmarks.report import begun, exit_code, quick_options, save, set_usual

PROGRAM = ROOT / "benchmarks" / "lora_peers.py"
SWAP_RANK = 16
LARGEST_ERROR = 1e-4  # of the largest magnitude of an output


def build(folder: Path, package: str, count: int) -> str:
    """A package of a workload in its folder; "" or why there is none."""
    adapters = [folder / "adapters" / name for name in lora_models.names(count)]
    chosen = {"base": [], "fold": adapters[:1]}.get(package, adapters)
    command = [
        sys.executable,
        "-m",
        "cuvilc",
        "build",
        "--quiet",
        "--cpu",
        "host",
        "--vectors",
        "0",
    ]
    command += ["-o", str(folder / f"{package}.cuvil"), str(folder / "model.onnx")]
    command += [word for adapter in chosen for word in ("--adapter", str(adapter))]
    command += ["--lora", package] if chosen else []
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    return next(iter(done.stderr.splitlines()), "cuvilc failed") if done.returncode else ""


def one_workload(name: str, rank: int, peers: list[str], options: Any) -> list[dict[str, Any]]:
    """Build its packages, measure it for each number of threads, remove them."""
    folder = lora_models.ensure(name, rank, options.quick, options.folder)
    workload = (lora_models.QUICK if options.quick else lora_models.FULL)[name]
    failed: dict[str, str] = {}
    packages = {p: LORA_PEERS[p].package for p in peers if hasattr(LORA_PEERS[p], "package")}
    rows = []
    try:
        for package in dict.fromkeys(packages.values()):
            if why := build(folder, package, workload.adapters):
                failed |= {p: why for p, its in packages.items() if its == package}
        for peer, why in failed.items():
            print(f"{peer}: left out, {why}")
        ready = [p for p in peers if p not in failed]
        for threads in options.threads:
            results = measure(folder, threads, ready, options, PROGRAM)
            results |= {p: {"error": why} for p, why in failed.items()}
            add_overheads(results)
            rows.append({"workload": name, "rank": rank, "threads": threads, "peers": results})
            print(f"{name} r={rank} {threads} thr  {summary(results)}", flush=True)
        for row in rows:
            row["changed_mb"] = lora_models.changed_bytes(folder) / 1e6
    finally:
        for package in set(packages.values()):
            shutil.rmtree(folder / f"{package}.cuvil", ignore_errors=True)
    return rows


def add_overheads(results: dict[str, Any]) -> None:
    """`over`: (peer, share): what a peer took more, round by round, than another one."""
    for peer, result in results.items():
        base = results.get(LORA_PEERS[peer].over, {})
        if "rounds" in result and "rounds" in base:
            result["over"] = [LORA_PEERS[peer].over, *overhead(result, base)]


def overhead(result: dict[str, Any], base: dict[str, Any]) -> tuple[float, int]:
    """The median share that a peer took more in a round than another one in the same; how many
    rounds nobody disturbed, which alone count where there are two.
    """
    pairs = list(zip(result["rounds"], base["rounds"], strict=False))
    quiet = [(a, b) for a, b in pairs if max(a[1], b[1]) <= DISTURBED]
    chosen = quiet if len(quiet) >= 2 else pairs
    return statistics.median(a[0] / b[0] for a, b in chosen) - 1, len(quiet)


def markdown(report: dict[str, Any]) -> str:
    """Swaps, then a table of latencies for each workload: a row a peer."""
    lines: list[str] = []
    for name in dict.fromkeys(r["workload"] for r in report["results"]):
        rows = [r for r in report["results"] if r["workload"] == name]
        lines += _swaps(rows) if name == "swap" else _latencies(name, rows)
    where = report["machine"]
    packages = ", ".join(f"{k} {v}" for k, v in report["versions"].items())
    lines += [f"{where['cpu']}, {where['cores']} cores, {where['date']}; {packages}."]
    return "\n".join(lines) + "\n"


def _swaps(rows: list[dict[str, Any]]) -> list[str]:
    megabytes = rows[0]["changed_mb"]
    lines = [
        f"Swaps, r = {rows[0]['rank']}, {megabytes:.1f} MB of weights change, ms:", "",
        "| peer | threads | first | each | each, per MB |", "| --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in rows:
        for peer, r in row["peers"].items():
            cells = ["failed"] * 3 if "error" in r else [
                f"{r['first_s'] * 1e3:.2f}", f"{r['median_ms']:.2f}",
                f"{r['median_ms'] / megabytes:.4f}",
            ]  # fmt: skip
            lines.append(f"| {peer} | {row['threads']} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _latencies(name: str, rows: list[dict[str, Any]]) -> list[str]:
    heads = [f"r = {r['rank']}, {r['threads']} thr" for r in rows]
    lines = [
        f"{name}, ms (and what it took more than …):", "",
        "| peer | more than | " + " | ".join(heads) + " |",
        "| --- | --- |" + " ---: |" * len(rows),
    ]  # fmt: skip
    for peer in dict.fromkeys(p for r in rows for p in r["peers"]):
        cells = [_cell(r["peers"].get(peer, {})) for r in rows]
        lines.append(f"| {peer} | {LORA_PEERS[peer].over} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(result: dict[str, Any]) -> str:
    if "median_ms" not in result:
        return "failed" if "error" in result else "–"
    more = f" ({result['over'][1]:+.1%})" if "over" in result else ""
    return f"{result['median_ms']:.3f}{more}"


def problems(report: dict[str, Any]) -> list[str]:
    """Peers that failed, and those whose answers are not torch's."""
    found = []
    for row in report["results"]:
        for peer, result in row["peers"].items():
            if why := problem(result):
                found.append(f"{row['workload']} r={row['rank']} {peer}: {why}")
    return found


def problem(result: dict[str, Any]) -> str:
    """Why one peer failed, or that its answer is not torch's; "" where all is well."""
    error = result.get("relative_error", 0.0)
    return result.get("error") or (f"off by {error:.1e}" if error > LARGEST_ERROR else "")


def arguments() -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, known = parser.add_argument, list(lora_models.FULL)
    add("--workloads", nargs="+", default=known, choices=known, metavar="NAME")
    add("--peers", nargs="+", default=list(LORA_PEERS), choices=LORA_PEERS, metavar="PEER")
    add("--ranks", nargs="+", type=int, default=None, help="[8 16]; of swaps it is 16")
    add("--threads", nargs="+", type=int, default=None, help="[1 2]")
    quick_options(parser)
    add("--folder", type=Path, default=None, help="where the models are kept")
    add("--out", type=Path, default=ROOT / "build" / "lora-benchmark")
    options = parser.parse_args()
    usual = {"ranks": ([8, 16], [8]), "threads": ([1, 2], [1]), "rounds": (11, 2),
             "seconds": (0.5, 0.02), "quiet": (5.0, 0.0)}  # fmt: skip
    set_usual(options, usual)
    return options


def main() -> int:
    options = arguments()
    peers = available(options.peers, LORA_PEERS)
    report = begun(["onnxruntime", "torch", "peft", "transformers", "numpy"])
    with tempfile.TemporaryDirectory() as aside:
        options.folder = options.folder or (Path(aside) if options.quick else None)
        for name in options.workloads:
            its = [p for p in peers if name in LORA_PEERS[p].workloads]
            for rank in [SWAP_RANK] if name == "swap" else options.ranks:
                report["results"] += one_workload(name, rank, its, options)
    save(report, options.out, markdown(report))
    print("\n" + markdown(report))
    print(f"results.json and table.md are in {options.out}")
    return exit_code(problems(report))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    sys.exit(main())
