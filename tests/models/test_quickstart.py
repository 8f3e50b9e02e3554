"""`make demo`: what the quick start prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.models
def test_the_demo_recognises_files() -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    demo = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart" / "demo.py"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "is there a network?" in demo.stderr:
        pytest.skip(demo.stderr.strip())
    assert demo.returncode == 0, demo.stderr
    answers = dict(re.findall(r"^answer +(\S+) -> (\w+)", demo.stdout, re.MULTILINE))
    assert answers["examples/quickstart/demo.py"] == "python"
    assert answers["runtime/src/pool.c"] == "c"
    assert answers["Makefile"] == "makefile"
    assert float(re.findall(r"-> python \(([\d.]+)\)", demo.stdout)[0]) > 0.99
    assert re.search(r"^latency +[\d.]+ ms", demo.stdout, re.MULTILINE)
