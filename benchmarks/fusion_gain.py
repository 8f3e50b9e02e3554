"""What fusion brings, in latency and bytes moved: `python benchmarks/fusion_gain.py [--quick]`.

adapter level   one LoRA adapter on q and v of a Llama (hidden 512, 8 layers; lora_models.py):
                its two products and a sum in the graph, without and with fusion of kernels;
                its fused kernels (`--lora batch`); folded into the weights.
kernel level    models of models.py: every operation a kernel of its own, and as they are built.

All forms of a model stay loaded and are timed in turn (compare.py says how); a percentage of time
is the median over the rounds of what a form took more than the best one in the same round. Bytes
moved, FLOPs and kernels started are the plan's: of every kernel what it reads and writes, weights
included.
Writes results.json, table.md and a plot for each level into --out. Ends with 1 where a form fails,
or its answer is not torch's.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks import lora_models, models
from benchmarks.compare import measure, summary
from benchmarks.fusion_peers import ADAPTER_LEVEL, GAIN, KERNEL_LEVEL, AsBuilt, Folded, Form
from benchmarks.lora import overhead, problem
from benchmarks.plot import bars
from benchmarks.report import begun, exit_code, quick_options, save, set_usual

PROGRAM = ROOT / "benchmarks" / "fusion_peers.py"
MODELS = ("resnet18", "mobilenetv2", "minilm", "llama_decode")
WORKLOADS = ("prefill", "decode")
# level -> its forms, and the one that the others are compared with
LEVELS: dict[str, tuple[Sequence[type[Form]], type[Form]]] = {
    "adapter": (ADAPTER_LEVEL, Folded), "kernel": (KERNEL_LEVEL, AsBuilt),
}  # fmt: skip


def write_separate(folder: Path) -> None:
    """gain/separate.onnx: the base, and beside each adapted weight a0's factors with a sum."""
    import numpy as np
    import onnx

    from benchmarks.lora_peers import beside

    model = onnx.load(folder / "model.onnx")
    sites = json.loads((folder / "sites.json").read_text())
    for module, (a, b) in lora_models.factors(folder, "a0").items():
        beside(model.graph, sites[module], module)
        for name, factor in (("A", a), ("B", b)):
            array = np.ascontiguousarray(factor.T)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, f"{module}.{name}"))
    onnx.save(model, folder / GAIN / "separate.onnx")


def build(folder: Path, form: type[Form]) -> dict[str, Any]:
    """A form's package in the folder; its plan's facts, or the error."""
    inside = folder / GAIN
    model = folder / form.model if form.model == "model.onnx" else inside / form.model
    command = [sys.executable, "-m", "cuvilc", "build", "--quiet", "--cpu", "host"]
    command += ["--vectors", "0", *form.options, str(model)]
    command += ["-o", str(inside / f"{form.package}.cuvil")]
    command += ["--adapter", str(folder / "adapters" / "a0")] if form.adapted else []
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return {"error": next(iter(done.stderr.splitlines()), "cuvilc failed")}
    return facts(inside / f"{form.package}.cuvil")


def facts(package: Path) -> dict[str, Any]:
    """bytes, flops, launches of a run, from the package's metadata."""
    from cuvilc import inspect
    from cuvilc.artifact import read_package

    totals = inspect.report(read_package(package))["totals"]
    return {key: totals[key] for key in ("bytes", "flops", "launches")}


def one_case(level: str, case: str, folder: Path, options: Any) -> list[dict[str, Any]]:
    """Build all forms, measure them for each number of threads, remove them."""
    forms, _ = LEVELS[level]
    inside = folder / GAIN
    shutil.rmtree(inside, ignore_errors=True)
    inside.mkdir()
    rows = []
    try:
        if level == "adapter":
            write_separate(folder)
        built = {form.package: build(folder, form) for form in forms}
        ready = [name for name, found in built.items() if "error" not in found]
        for threads in options.threads:
            timed = measure(folder, threads, ready, options, PROGRAM)
            found = {name: built[name] | timed.get(name, {}) for name in built}
            rows.append({"level": level, "case": case, "threads": threads, "forms": found})
            print(f"{case} {threads} thr  {summary(found)}", flush=True)
    finally:
        shutil.rmtree(inside, ignore_errors=True)
    return rows


def markdown(report: dict[str, Any], level: str) -> str:
    """A row a form: time, bytes and kernels, each beside the form that others are compared with."""
    _, best = LEVELS[level]
    lines = [
        f"| {level} level | threads | form | latency, ms | bytes moved, MB | FLOP | kernels |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in report["results"]:
        if row["level"] != level:
            continue
        own = row["forms"][best.package]
        for name, found in row["forms"].items():
            cells = ["failed"] * 4
            if "median_ms" in found:
                slower, larger = _more(found, own)
                cells = [
                    f"{found['median_ms']:.3f}{slower}", f"{found['bytes'] / 1e6:.2f}{larger}",
                    f"{found['flops'] / 1e6:.1f} M", str(found["launches"]),
                ]  # fmt: skip
            lines.append(f"| {row['case']} | {row['threads']} | {name} | {' | '.join(cells)} |")
    where = report["machine"]
    return (
        "\n".join([*lines, "", f"{where['cpu']}, {where['cores']} cores, {where['date']}."]) + "\n"
    )


def _more(found: dict[str, Any], own: dict[str, Any]) -> tuple[str, str]:
    """How much longer than the best form it took, in the same rounds, and moves more."""
    if found is own or "rounds" not in own:
        return "", ""
    return f" ({overhead(found, own)[0]:+.1%})", f" ({found['bytes'] / own['bytes'] - 1:+.1%})"


def picture(report: dict[str, Any], level: str) -> str:
    """Bars of latency and of bytes moved, a group a case."""
    _, best = LEVELS[level]
    rows: list[dict[str, Any]] = []
    for row in report["results"]:
        if row["level"] == level:
            label = f"{row['case']}, {row['threads']} thr"
            rows += [
                {"label": f"{label}", "unit": "ms", "peers": _values(row, "median_ms", 1)},
                {"label": "bytes moved", "unit": "MB", "peers": _values(row, "bytes", 1e6)},
            ]
    return bars({"results": rows}, best.package)


def _values(row: dict[str, Any], key: str, unit: float) -> dict[str, Any]:
    return {n: {"value": f[key] / unit} for n, f in row["forms"].items() if key in f}


def problems(report: dict[str, Any]) -> list[str]:
    """Forms that failed, and those whose answers are not torch's."""
    found = []
    for row in report["results"]:
        for name, form in row["forms"].items():
            if why := problem(form):
                found.append(f"{row['case']} {name}: {why}")
    return found


def arguments() -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--levels", nargs="+", default=list(LEVELS), choices=LEVELS, metavar="LEVEL")
    add("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS, metavar="NAME")
    add("--models", nargs="+", default=list(MODELS), choices=models.ALL, metavar="NAME")
    add("--ranks", nargs="+", type=int, default=[8])
    add("--threads", nargs="+", type=int, default=[1])
    quick_options(parser)
    add("--out", type=Path, default=ROOT / "build" / "fusion-gain")
    options = parser.parse_args()
    set_usual(options, {"rounds": (11, 2), "seconds": (0.5, 0.05), "quiet": (5.0, 0.0)})
    return options


def run_all(options: Any, aside: Path) -> list[dict[str, Any]]:
    """Every case of every level; with --quick the small Llama is the one model of kernels."""
    into, rows = aside if options.quick else None, []
    if "adapter" in options.levels:
        for name in options.workloads:
            for rank in options.ranks:
                folder = lora_models.ensure(name, rank, options.quick, into)
                rows += one_case("adapter", f"{name}, r = {rank}", folder, options)
    if "kernel" in options.levels and options.quick:
        folder = lora_models.ensure("prefill", options.ranks[0], True, into)
        shutil.copyfile(folder / "base.npz", folder / "ref.npz")
        rows += one_case("kernel", "small Llama", folder, options)
    elif "kernel" in options.levels:
        for name in options.models:
            rows += one_case("kernel", name, models.ensure(name), options)
    return rows


def main() -> int:
    options = arguments()
    report = begun(["torch", "peft", "transformers", "numpy"])
    with tempfile.TemporaryDirectory() as aside:
        report["results"] = run_all(options, Path(aside))
    text = "\n".join(markdown(report, level) for level in options.levels)
    save(report, options.out, text, **{level: picture(report, level) for level in options.levels})
    print(f"\n{text}\nresults.json, table.md and the plots are in {options.out}")
    return exit_code(problems(report))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    sys.exit(main())
