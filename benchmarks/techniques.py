"""What single techniques bring: `python benchmarks/techniques.py [--techniques NAME ...]`.

A technique that a switch of `cuvilc build` turns on or off is measured on a few models without and
with it, both packages loaded and timed in turn (compare.py says how). Printed: latency, its ratio
(the median over the rounds), resident memory, package, and what the kernels read and write in a
run; and the error against torch's answer. Writes results.json and table.md into --out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks import models
from benchmarks.compare import available, measure
from benchmarks.pages import place, write_section
from benchmarks.report import begun, save, timing_options


@dataclass(frozen=True)
class Technique:
    """`without` and `of`: peers of peers.py. `switch`: how a build chooses."""

    title: str
    switch: str
    without: str
    of: str
    models: tuple[str, ...]


TECHNIQUES = {
    "fusion": Technique(
        "fusion of kernels", "`--no-fusion` against none", "cuvil-no-fusion", "cuvil",
        ("resnet18", "mobilenetv2", "minilm", "llama_decode"),
    ),
    "winograd": Technique(
        "Winograd's convolutions", "`--math exact` against `fast`", "cuvil-exact", "cuvil",
        ("resnet18", "resnet50"),
    ),
    "bf16": Technique(
        "bfloat16 weights", "none against `--precision bf16`", "cuvil", "cuvil-bf16",
        ("resnet18", "mobilenetv2", "minilm", "llama_decode"),
    ),
    "size": Technique(
        "memory before time", "none against `--prefer size`", "cuvil", "cuvil-size",
        ("resnet18", "minilm"),
    ),
    "speed": Technique(
        "time before memory", "none against `--prefer speed`", "cuvil", "cuvil-speed",
        ("resnet18", "minilm"),
    ),
}  # fmt: skip


def ratio(without: dict[str, Any], found: dict[str, Any]) -> float:
    """How much of the time is left: the median over the rounds of the ratio in a round."""
    pairs = zip(without["rounds"], found["rounds"], strict=True)
    return statistics.median(new[0] / old[0] for old, new in pairs)


def markdown(report: dict[str, Any]) -> str:
    """A line a technique, model and number of threads: `without → with`."""
    lines = [
        "| technique | model | threads | latency, ms | times as fast | resident, MB | package, MB "
        "| moved in a run, MB | error |",
        "| --- | --- | ---: |" + " ---: |" * 6,
    ]
    for row in report["results"]:
        technique = TECHNIQUES[row["technique"]]
        old, new = (row["peers"][peer] for peer in (technique.without, technique.of))
        cells = ["failed"] * 6
        if "median_ms" in old and "median_ms" in new:
            cells = [
                f"{old['median_ms']:.2f} → {new['median_ms']:.2f}",
                f"{1 / ratio(old, new):.2f}×",
                f"{old['resident_mb']:.0f} → {new['resident_mb']:.0f}",
                f"{old['package_mb']:.1f} → {new['package_mb']:.1f}",
                f"{old['moved_mb']:.1f} → {new['moved_mb']:.1f}",
                f"{old['relative_error']:.0e} → {new['relative_error']:.0e}",
            ]
        head = f"{technique.title} | {row['model']} | {row['threads']}"
        lines.append(f"| {head} | {' | '.join(cells)} |")
    names = dict.fromkeys(row["technique"] for row in report["results"])
    switches = "; ".join(f"{TECHNIQUES[n].title}: {TECHNIQUES[n].switch}" for n in names)
    notes = [
        f"Without → with. Switches: {switches}.",
        "Error: the largest over the largest magnitude of an output.",
        *(f"{row['technique']} on {row['model']}, `{peer}` failed: {found['error']}."
          for row in report["results"] for peer, found in row["peers"].items()
          if "error" in found),
    ]  # fmt: skip
    return "\n".join([*lines, "", *notes, "", place(report)]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--techniques", nargs="+", default=list(TECHNIQUES), choices=TECHNIQUES, metavar="NAME",
        help=f"of {', '.join(TECHNIQUES)}")  # fmt: skip
    add("--models", nargs="+", metavar="NAME", help="[of each technique its own]")
    add("--threads", nargs="+", type=int, default=[1])
    timing_options(parser, "techniques", rounds=5, seconds=0.3, quiet=2.0)
    options = parser.parse_args()

    if not available(["cuvil"]):
        return 1
    report = begun(["apache-tvm", "numpy"])
    for name in options.techniques:
        technique = TECHNIQUES[name]
        for model in options.models or technique.models:
            folder = models.ensure(model, options.folder)
            for threads in options.threads:
                found = measure(folder, threads, [technique.without, technique.of], options)
                row = {"technique": name, "model": model, "threads": threads, "peers": found}
                report["results"].append(row)
    save(report, options.out, markdown(report))
    print(markdown(report))
    if options.write:
        write_section("techniques", markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
