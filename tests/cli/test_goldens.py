"""Diagnostics as users see them. CUVILC_UPDATE_GOLDEN=1 rewrites tests/goldens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from cuvilc.driver import BuildRequest, build

from .helpers import Cuvilc, check_golden, model, save

Arguments = list[object]


def no_model(folder: Path) -> Arguments:
    (folder / "page.onnx").write_text("<html>not found</html>")
    return ["build", "page.onnx"]


def unknown_operators(folder: Path) -> Arguments:
    nodes = [
        helper.make_node("Fandango", ["x"], ["y"], name="/dance", domain="music"),
        helper.make_node("Bolero", ["y"], ["z"], name="/slow", domain="music"),
    ]
    proto = model(nodes, {"x": [1, 2]}, ["z"])
    proto.opset_import.append(helper.make_opsetid("music", 1))
    save(folder, proto, "dance.onnx")
    return ["build", "dance.onnx"]


def outside_range(folder: Path) -> Arguments:
    dims: dict[str, tuple[int, int | None]] = {"batch": (1, 4)}
    small = folder / "small.cuvil"
    build(BuildRequest(folder / "net.onnx", small, target="null", dims=dims, vectors=0))
    np.savez(folder / "in.npz", x=np.zeros((5, 8), np.float32))
    return ["run", "small.cuvil", "--inputs", "in.npz"]


def inputs(**arrays: np.ndarray) -> Callable[[Path], Arguments]:
    def make(folder: Path) -> Arguments:
        np.savez(folder / "in.npz", **arrays)  # type: ignore[arg-type]
        return ["run", "null.cuvil", "--inputs", "in.npz"]

    return make


def damaged(folder: Path) -> Arguments:
    file = folder / "null.cuvil" / "weights.npz"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return ["verify", "null.cuvil"]


def newer(folder: Path) -> Arguments:
    file = folder / "null.cuvil" / "metadata.json"
    file.write_text(file.read_text().replace('"schema_version": "1.', '"schema_version": "9.'))
    return ["inspect", "null.cuvil"]


def occupied(folder: Path) -> Arguments:
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("precious")
    return ["build", "net.onnx", "-o", "mine"]


def given(*arguments: object) -> Callable[[Path], Arguments]:
    return lambda _: list(arguments)


CASES: dict[str, Callable[[Path], Arguments]] = {
    "no-model": no_model,
    "missing-model": given("build", "absent.onnx"),
    "unknown-operators": unknown_operators,
    "bad-shape-option": given("build", "net.onnx", "--shape", "x=1,9,9"),
    "unknown-size": given("build", "net.onnx", "--dim", "batsch=1..4"),
    "bad-dim-syntax": given("build", "net.onnx", "--dim", "batch=4..1"),
    "bad-shape-syntax": given("build", "net.onnx", "--shape", "x=1,three"),
    "unknown-pass": given("build", "net.onnx", "--dump-after", "fusion"),
    "unknown-phase": given("build", "net.onnx", "--stop-after", "lunch"),
    "unknown-form": given("build", "net.onnx", "--emit", "poem"),
    "unknown-target": given("build", "net.onnx", "--target", "abacus"),
    "unknown-cpu": given("build", "net.onnx", "--cpu", "i386"),
    "no-cpu-levels": given("build", "net.onnx", "--target", "null", "--cpu", "host"),
    "bad-destination": given("build", "net.onnx", "-o", "no/such/net.cuvil"),
    "occupied-destination": occupied,
    "inspect-a-model": given("inspect", "net.onnx"),
    "no-package": given("inspect", "absent.cuvil"),
    "newer-package": newer,
    "damaged-package": damaged,
    "missing-input": inputs(),
    "unknown-input": inputs(X=np.zeros((1, 8), np.float32)),
    "wrong-dtype": inputs(x=np.zeros((1, 8))),
    "wrong-rank": inputs(x=np.zeros(8, np.float32)),
    "wrong-size": inputs(x=np.zeros((1, 7), np.float32)),
    "outside-range": outside_range,
    "pickled-inputs": inputs(x=np.array([None])),
    "no-inputs-file": given("run", "null.cuvil", "--inputs", "absent.npz"),
    "unknown-option": given("build", "net.onnx", "--cpus", "host"),
    "unknown-command": given("bild"),
    "unknown-code": given("explain", "CUV199"),
}


@pytest.mark.parametrize("name", CASES)
def test_diagnostic(cuvilc: Cuvilc, folder: Path, name: str) -> None:
    result = cuvilc(*CASES[name](folder))
    assert result.code in (1, 2)
    assert result.out == ""
    check_golden(name, result.err + f"exit code {result.code}\n", folder)


@pytest.mark.parametrize("name", ["build-null", "inspect-null", "dry-run", "verify-null"])
def test_page(cuvilc: Cuvilc, folder: Path, name: str) -> None:
    """What the commands show when all is well. Kernel names carry a hash of their text."""
    import re

    arguments = {
        "build-null": ["build", "net.onnx", "--target", "null"],
        "inspect-null": ["inspect", "null.cuvil"],
        "dry-run": ["build", "net.onnx", "--dry-run"],
        "verify-null": ["verify", "null.cuvil"],
    }[name]
    shown = cuvilc.ok(*arguments).out
    shown = re.sub(r"\d+\.\d\d\b", "T", shown)
    shown = re.sub(r"[a-z_]+_[0-9a-f]{12}", "KERNEL", shown)
    shown = re.sub(r"\d+(\.\d+)? (B|KiB)\b", "SIZE", shown)
    shown = re.sub(r"\d+\.?\d*%|\d\.?\d*e-\d+", "N", shown)
    check_golden(name, re.sub(r" {2,}|─+", "  ", shown), folder)
