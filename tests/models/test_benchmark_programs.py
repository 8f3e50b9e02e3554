"""The programs of benchmarks/ run, on a small model, and their tables say what was measured."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from benchmarks import (
    busy,
    compare,
    models,
    operators,
    pages,
    peer,
    plot,
    roofline,
    table,
    techniques,
)
from benchmarks.peers import PEERS, VARIANTS

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("--rounds", "2", "--seconds", "0.02", "--quiet", "0")
PLACE = {"cpu": "c", "cores": 2, "memory_gib": 4, "date": "d"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Benchmark models with one model in it, `small`: relu(x · w), x [64, 96], float32."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((64, 96), (96, 128)))
    text = """<ir_version: 10, opset_import: ["" : 21]>
        small (float[64, 96] x, float[96, 128] w) => (float[64, 128] y) { p = MatMul(x, w)
            y = Relu(p) }"""
    model = onnx.parser.parse_model(text)
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    (folder / "small").mkdir()
    onnx.save(model, folder / "small" / "model.onnx")
    np.savez(folder / "small" / "inputs.npz", x=x)
    np.savez(folder / "small" / "ref.npz", y=np.maximum(x.astype(np.float64) @ w, 0))
    (folder / "small" / "meta.json").write_text('{"name": "small"}')
    return folder


def started(program: str, folder: Path, out: Path, *options: str) -> str:
    command = [sys.executable, ROOT / "benchmarks" / program, "--folder", folder]
    command += ["--models", "small", *options]
    command += [] if program == "roofline.py" else ["--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_compare_measures_every_peer_that_is_here(folder: Path, tmp_path: Path) -> None:
    wanted = ["cuvil", "cuvil-bf16", "onnxruntime", "openvino-f32", "iree"]
    peers = [p for p in wanted if not compare.lacking(PEERS[p])]
    options = ("--peers", *wanted, "--threads", "2", *SHORT, "--together", "--json")
    report = json.loads(started("compare.py", folder, tmp_path, *options))
    assert report == json.loads((tmp_path / "results.json").read_text())
    found = report["results"][0]["peers"]
    assert list(found) == peers and set(report["left_out"]) == set(wanted) - set(peers)
    for name, result in found.items():
        assert result["median_ms"] > 0 and result["resident_mb"] > 0
        assert result["relative_error"] < (2e-2 if name == "cuvil-bf16" else 1e-5)
    if "cuvil" in peers:
        # x, w and y; the product and the maximum share a kernel.
        assert found["cuvil"]["moved_mb"] == pytest.approx(
            4 * (64 * 96 + 96 * 128 + 64 * 128) / 1e6
        )
    assert "| small | 2 | " in (tmp_path / "table.md").read_text()
    ElementTree.parse(tmp_path / "plot.svg")


def test_busy_shows_a_slow_down_of_each(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    text = started("busy.py", folder, tmp_path, "--peers", "onnxruntime", "--threads", "1", *SHORT)
    found = json.loads((tmp_path / "results.json").read_text())["results"][0]["peers"]
    assert found["onnxruntime"]["alone_ms"] > 0 and found["onnxruntime"]["slow_down"] > 0
    assert "| small | 1 | onnxruntime | " in text


def test_one_core_is_taken_while_it_is_wanted() -> None:
    def children_s() -> float:
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime

    before = children_s()
    with busy.core_taken(False):
        pass
    assert children_s() == before
    with busy.core_taken():
        time.sleep(0.4)
    assert children_s() - before > 0.05  # 0.4 where no one else wants the core


def test_techniques_are_measured_without_and_with(folder: Path, tmp_path: Path) -> None:
    text = started("techniques.py", folder, tmp_path, "--techniques", "fusion", *SHORT)
    report = json.loads((tmp_path / "results.json").read_text())
    apart, fused = report["results"][0]["peers"].values()
    # Alone, the maximum reads and writes y once more.
    assert apart["moved_mb"] - fused["moved_mb"] == pytest.approx(4 * 2 * 64 * 128 / 1e6)
    assert "| fusion of kernels | small | 1 | " in text


def test_operators_are_timed_beside_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    command = [sys.executable, ROOT / "benchmarks" / "operators.py", "Split channels"]
    command += ["--threads", "1", "--rounds", "1", "--seconds", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Split channels 96x56x56 " in done.stdout and "1 times, " in done.stdout


def test_operators_shows_the_slower_ones() -> None:
    lines = operators.table([("a", 1, 2.0, 1.0), ("b", 2, 1.1, 1.0), ("c", 1, 1.0, 2.0)]).split(
        "\n"
    )
    assert lines[0] == "3 times, 1 over 1.2, which are listed; the middle ratio is 1.10."
    assert lines[4:] == ["| a | 1 | 2.000 | 1.000 | 2.00 **slower** |"]


def test_operators_that_answer_otherwise_are_named() -> None:
    one = np.ones((2, 3), np.float32)
    assert not operators.wrong([one], [one * np.float32(1 + 1e-6)])
    assert "error" in operators.wrong([one], [one * np.float32(1.01)])
    assert "error" in operators.wrong([one * np.float32(np.nan)], [one])
    assert "[3, 2]" in operators.wrong([one.T], [one])
    assert "differ by 1" in operators.wrong([np.arange(3)], [np.arange(3) + 1])
    assert not operators.wrong([np.arange(3, dtype="uint8")], [np.arange(1, 4, dtype="uint8")])


def test_every_technique_names_peers() -> None:
    for technique in techniques.TECHNIQUES.values():
        assert {technique.without, technique.of} <= {*PEERS, *VARIANTS}


def test_roofline_sets_kernels_beside_their_limit(folder: Path, tmp_path: Path) -> None:
    text = started("roofline.py", folder, tmp_path, "--runs", "2", "--seconds", "0.02")
    assert "One core: " in text and "| small | `" in text
    work = roofline.Work("k", "gemm", 2, 4e6, 8e3, 200.0, 50.0)
    made = {"net": [work], "other": [roofline.Work("j", "copy", 1, 0, 8, 2.0, 1.0)]}
    assert "| net | 0.20 | 0.05 | 25% | 20.0 |" in roofline.shares(made)
    line = "| net | `k` | gemm | 2 | 200 | 25% | 20.0 | 150 |"
    assert roofline.worst(made, 1).splitlines()[2:] == [line]


def row(**peers: dict[str, Any]) -> dict[str, Any]:
    named = {name.replace("_", "-"): found for name, found in peers.items()}
    return {"model": "net", "threads": 1, "peers": named}


def test_a_large_error_and_a_failure_are_shown() -> None:
    good = {"median_ms": 2.0, "resident_mb": 10.0, "relative_error": 1e-6}
    narrow = good | {"median_ms": 1.0, "relative_error": 0.031}
    worse = good | {"relative_error": math.nan}
    failed = {"error": "RuntimeError: cannot open /some/folder/net.mlir\nmore"}
    report = {"machine": PLACE, "versions": {"x": "1"}, "left_out": {"torch": "g++"}}
    report["results"] = [row(cuvil=good, cuvil_bf16=narrow, onnxruntime=worse, iree=failed)]
    text = table.markdown(report, "cuvil")
    cells = "| net | 1 | 2.00 | 1.00 (0.50×, error 3.1%) | 2.00 (1.00×, error nan%) | failed |"
    assert cells in text
    assert "`iree` failed on net, 1 thread: RuntimeError: cannot open net.mlir." in text
    assert "`torch` is left out: g++ was not installed." in text
    drawn = plot.bars(report, "cuvil")
    ElementTree.fromstring(drawn)
    assert ">1.0 ms<" in drawn and "iree" in drawn


def test_a_compact_table_has_a_line_for_each_model() -> None:
    def result(ms: float, error: float = 1e-6) -> dict[str, Any]:
        return {"median_ms": ms, "resident_mb": 10 * ms, "relative_error": error}

    failed = {"error": "RuntimeError: no"}
    one = row(cuvil=result(4.0), onnxruntime=result(6.0, 0.02), torch=result(8.0))
    two = row(cuvil=result(2.0), onnxruntime=result(5.0, 0.031), torch=failed) | {"threads": 2}
    other = row(cuvil=result(1.0, math.nan), onnxruntime=result(1.0)) | {"model": "other"}
    text = table.markdown({"machine": PLACE, "results": [one, two, other]}, "cuvil", compact=True)
    assert "with 1 / 2 threads (times as slow as cuvil)" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0].endswith(
        " cuvil | onnxruntime | torch | cuvil, MB | onnxruntime, MB | torch, MB |"
    )
    assert lines[2:] == [
        "| net | 4.00 / 2.00 | 6.00 (1.50×) / 5.00 (2.50×), error 3.1% | 8.00 (2.00×) / failed "
        "| 20 | 50 | – |",
        "| other | 1.00 / –, error nan% | 1.00 (1.00×) / – | – / – | 10 | 10 | – |",
    ]
    assert "`torch` failed on net, 2 threads: RuntimeError: no." in text


def test_further_stands_for_the_further_models() -> None:
    assert models.named(["resnet18", "further"]) == ["resnet18", *models.FURTHER]
    assert models.named(["minilm"]) == ["minilm"]


def test_bars_that_are_cut_say_so() -> None:
    report = {"results": [row(cuvil={"median_ms": 1.0}, torch={"median_ms": 9.0})]}
    drawn = plot.bars(report, "cuvil")
    assert ">9.0 ms (9.0×)<" in drawn and ">1.0 ms<" in drawn


def test_colours_of_peers_differ() -> None:
    assert set(plot.PEERS) == set(PEERS)
    assert len(set(plot.PEERS.values())) == len(PEERS)


def test_sections_are_replaced_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n")
    for text in ("new\n", "newer"):
        pages.write_section("x", text, page)
    assert page.read_text() == "a\n<!-- x: begin -->\nnewer\n<!-- x: end -->\nb\n"
    with pytest.raises(ValueError, match=r"page\.md has no marks of y"):
        pages.write_section("y", "", page)


def test_the_page_has_every_section() -> None:
    text = pages.PAGE.read_text()
    for name, line in pages.SECTIONS.items():
        assert text.index(f"<!-- {name}: begin -->") < text.index(f"<!-- {name}: end -->")
        assert (pages.PAGE.parent / line.split()[0]).is_file()
    assert compare.SECTIONS == ["compare", "quantised", "bf16", "further", "further-bf16"]
    assert set(compare.PLOTTED) < set(compare.SECTIONS)


def test_commands_name_no_folders() -> None:
    words = ["--models", "a", "--out", "/x", "--folder=/y", "--write", "--section", "bf16", "b"]
    assert pages.command(words).startswith("python benchmarks/")
    assert pages.command(words).endswith(" --models a b")


def test_a_module_or_program_that_is_missing_is_named() -> None:
    class Absent(PEERS["onnxruntime"]):  # type: ignore[misc]
        needs = ("no_such_package.part",)

    class Programless(Absent):
        needs, programs = (), ("no-such-program",)

    assert compare.lacking(Absent) == "no_such_package.part"
    assert compare.lacking(Programless) == "no-such-program"
    assert compare.available(["a"], {"a": Absent}) == []


def test_a_compiler_that_fails_or_never_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    python = [sys.executable, "-c"]
    peer.compile_with([*python, "print('fine')"])
    with pytest.raises(RuntimeError, match=r"^net\.mlir:3: error: no lowering$"):
        peer.compile_with([*python, "raise SystemExit('a\\nnet.mlir:3: error: no lowering\\nb')"])
    with pytest.raises(RuntimeError, match="^the compiler ended with 3$"):
        peer.compile_with([*python, "raise SystemExit(3)"])
    monkeypatch.setattr(peer, "COMPILE_S", 0.2)
    with pytest.raises(RuntimeError, match="^compiling takes over 0 s$"):
        peer.compile_with([*python, "import time; time.sleep(9)"])


def test_what_was_compiled_is_kept_whole(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("x")

    with pytest.raises(RuntimeError):
        peer.kept(tmp_path, "a-1.0.bin", fails)
    made = peer.kept(tmp_path, "a-1.0.bin", lambda path: path.write_text("whole") and None)
    assert made.name.startswith("a-1.0-") and made.suffix == ".bin"
    assert peer.kept(tmp_path, "a-1.0.bin", fails) == made and made.read_text() == "whole"
    assert list(made.parent.iterdir()) == [made]
