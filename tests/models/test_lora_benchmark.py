"""`benchmarks/lora.py --quick`: every peer answers as torch does, and the tables are whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.lora import add_overheads, markdown

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_peer_is_measured_and_right(tmp_path: Path) -> None:
    for module in ("peft", "transformers", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    command = [sys.executable, ROOT / "benchmarks" / "lora.py", "--quick", "--out", tmp_path]
    command += ["--workloads", "swap", "decode64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "results.json").read_text())
    assert [r["workload"] for r in report["results"]] == ["swap", "decode64"]
    for row in report["results"]:
        failed = {p: r["error"] for p, r in row["peers"].items() if "error" in r}
        assert not failed
        assert all(r["median_ms"] > 0 for r in row["peers"].values())
    assert "failed" not in (tmp_path / "table.md").read_text()


def test_an_overhead_is_of_the_same_round() -> None:
    """A machine that slows down meanwhile slows both down; rounds that others disturb are out."""
    results = {
        "fold": {"median_ms": 2.0, "rounds": [[1.0, 0.0], [2.0, 0.0], [9.0, 0.5]]},
        "swap": {"median_ms": 2.2, "rounds": [[1.1, 0.0], [2.2, 0.1], [0.1, 0.0]]},
        "base": {"error": "x"},
    }
    add_overheads(results)
    over, share, quiet = results["swap"]["over"]
    assert (over, quiet) == ("fold", 2) and share == pytest.approx(0.1)
    row = {"workload": "decode", "rank": 8, "threads": 1, "peers": results}
    report = {"machine": {"cpu": "c", "cores": 2, "date": "d"}, "versions": {}, "results": [row]}
    lines = markdown(report).splitlines()
    assert "| swap | fold | 2.200 (+10.0%) |" in lines
    assert "| base | fold | failed |" in lines
