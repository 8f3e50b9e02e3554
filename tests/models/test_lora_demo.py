"""`make demo-lora`: every adapter does its task in every package, as PEFT's own does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TASKS = ("next", "mirror", "square")
ROW = re.compile(
    r"^(\w+) +(each row|\S+)((?: +\d+%)+) +(\S+) +([\d.]+) ms +(\d+) kB$", re.MULTILINE
)


@pytest.mark.slow
def test_the_demo_serves_what_peft_trained(tmp_path: Path) -> None:
    for module in ("peft", "transformers", "onnxscript"):
        pytest.importorskip(module)
    demo = subprocess.run(
        [sys.executable, ROOT / "examples" / "lora" / "demo.py", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime")])},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert demo.returncode == 0, demo.stderr
    losses = re.findall(r"^trained +\w+ +loss ([\d.]+) -> ([\d.]+)", demo.stdout, re.MULTILINE)
    assert len(losses) == len(TASKS) and all(float(a) > 2 > 0.2 > float(b) for a, b in losses)
    rows = ROW.findall(demo.stdout)
    assert [(package, adapter) for package, adapter, *_ in rows] == [
        ("base", "–"), ("fold", "next"), ("swap", "–"), *(("swap", task) for task in TASKS),
        ("batch", "–"), ("batch", "each row"),
    ]  # fmt: skip
    for package, adapter, hits, error, _, _ in rows:
        assert float(error) < 1e-4, package
        for task, hit in zip(TASKS, hits.split(), strict=True):
            right = float(hit.rstrip("%"))
            learned = adapter in (task, "each row")
            assert right >= 90 if learned else right < 50, (package, adapter, task)
    assert "bit-identical" in demo.stdout
    assert float(re.findall(r"^swaps +([\d.]+) ms", demo.stdout, re.MULTILINE)[0]) < 100
