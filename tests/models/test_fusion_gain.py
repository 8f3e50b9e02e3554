"""`benchmarks/fusion_gain.py`: every form answers as torch does, and fusion moves less."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.fusion_gain import markdown, picture, problems

ROOT = Path(__file__).resolve().parents[2]


def test_every_form_is_measured_and_right(tmp_path: Path) -> None:
    for module in ("peft", "transformers", "onnxscript"):
        pytest.importorskip(module)
    command = [sys.executable, ROOT / "benchmarks" / "fusion_gain.py", "--quick"]
    command += ["--workloads", "prefill", "--rounds", "1", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "results.json").read_text())["results"]
    found = {r["level"]: r["forms"] for r in rows}
    adapter, kernel = found["adapter"], found["kernel"]
    assert list(adapter) == ["separate-unfused", "separate", "fused", "folded"]
    assert all(f["median_ms"] > 0 for forms in found.values() for f in forms.values())
    # What is fused starts fewer kernels and moves less; an adapter's own kernels add its factors.
    order = ("folded", "fused", "separate", "separate-unfused")
    for key in ("bytes", "launches"):
        assert kernel["fused-kernels"][key] < kernel["unfused"][key]
        values = [adapter[name][key] for name in order]
        assert values == sorted(values) and len(set(values)) == 4
    assert (tmp_path / "adapter.svg").is_file() and (tmp_path / "kernel.svg").is_file()


def row(**forms: dict[str, Any]) -> dict[str, Any]:
    return {"level": "kernel", "case": "net", "threads": 1, "forms": forms}


def test_tables_and_pictures() -> None:
    whole = {"median_ms": 2.0, "bytes": 4e6, "flops": 1e6, "launches": 3, "relative_error": 0.0}
    each = whole | {"median_ms": 3.0, "bytes": 6e6, "launches": 9, "relative_error": 1.0}
    whole["rounds"], each["rounds"] = [[2.0, 0.0], [1.0, 0.0]], [[3.0, 0.0], [1.5, 0.0]]
    place = {"cpu": "c", "cores": 2, "date": "d"}
    made = {"machine": place, "results": [row(unfused=each, **{"fused-kernels": whole})]}
    lines = markdown(made, "kernel").splitlines()
    assert "| net | 1 | unfused | 3.000 (+50.0%) | 6.00 (+50.0%) | 1.0 M | 9 |" in lines
    assert "| net | 1 | fused-kernels | 2.000 | 4.00 | 1.0 M | 3 |" in lines
    assert problems(made) == ["net unfused: off by 1.0e+00"]
    drawn = picture(made, "kernel")
    ElementTree.fromstring(drawn)
    assert ">3.0 ms<" in drawn and ">6.0 MB<" in drawn
    made["results"] = [row(unfused={"error": "x"}, **{"fused-kernels": whole})]
    assert "| net | 1 | unfused | failed | failed | failed | failed |" in markdown(made, "kernel")
    ElementTree.fromstring(picture(made, "kernel"))
