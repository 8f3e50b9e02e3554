"""Trained models that packages carry, at sizes of use: `python benchmarks/zoo.py [NAME ...]`.

Prints cuvil's median beside onnxruntime's for each, the slowest ratio first, and marks those over
1.2. compare.py takes the same models as zoo-NAME.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

import numpy as np

from benchmarks import compare, models
from benchmarks.machine import machine, versions
from benchmarks.pages import command, place, write_section
from benchmarks.report import ratio_table
from tests.zoo.fetch import FetchError, fetch
from tests.zoo.inputs import feeds
from tests.zoo.models import BY_NAME, Shape

# Where the tests' sizes are smaller than what the model is used for.
SIZES: dict[str, dict[str, Shape]] = {
    "ppocrv4_det": {"x": (1, 3, 480, 640)},
    "ppocrv4_rec": {"x": (1, 3, 48, 320)},
    "mtcnn_pnet": {"input_1": (1, 180, 320, 3)},
    "swift_f0": {"audio": (1, 16000), "fmin": (), "fmax": ()},
    "minilm_int8": dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 64)),
    "oww_melspectrogram": {"input": (1, 1280)},
}


def take(name: str, folder: Path) -> None:
    """A benchmark model's files from the zoo. Raises FetchError."""
    import onnxruntime

    model, source = BY_NAME[name], fetch(name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    inputs = feeds(model, SIZES.get(name, model.inputs[0]), session)
    answers = session.run(None, inputs)
    shutil.copyfile(source, folder / "model.onnx")
    np.savez(folder / "inputs.npz", **inputs)
    np.savez(folder / "ref.npz", **{f"{i:02}": np.asarray(a) for i, a in enumerate(answers)})
    meta = {"name": name, "flops": 0, "weight_bytes": source.stat().st_size}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def table(rows: list[tuple[str, int, dict[str, Any]]]) -> str:
    """One line a model and thread count, the worst ratio first."""

    def times(name: str, threads: int, results: dict[str, Any]) -> tuple[str, int, float, float]:
        ours, theirs = (results[p]["median_ms"] for p in ("cuvil", "onnxruntime"))
        return name, threads, ours, theirs

    return "\n".join(ratio_table([times(*row) for row in rows], "model"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BY_NAME)}")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a slot")
    parser.add_argument("--quiet", type=float, default=2.0, help="seconds to wait for a quiet CPU")
    parser.add_argument("--write", action="store_true", help="put it into benchmarks/README.md")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BY_NAME):
        parser.error(f"no model {', '.join(sorted(unknown))}")
    peers = compare.available(["cuvil", "onnxruntime"])
    rows, missing = [], []
    for name in options.names or BY_NAME:
        try:
            folder = models.ensure(models.ZOO + name)
        except FetchError as error:
            print(f"{name}: left out, {error}")
            missing.append(name)
            continue
        for threads in options.threads:
            results = compare.measure(folder, threads, peers, options)
            print(f"{name:22} {threads}  {compare.summary(results)}", flush=True)
            if all("median_ms" in results[p] for p in peers):
                rows.append((name, threads, results))
            else:
                missing.append(f"{name} ({threads})")
    packages = versions(["onnxruntime", "numpy"])
    where = place({"machine": machine(), "versions": packages, "command": command()})
    notes = [f"Not measured: {', '.join(missing)}.", ""] if missing else []
    text = "\n".join([table(rows), "", *notes, where])
    print(f"\n{text}")
    if options.write:
        write_section("zoo", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
