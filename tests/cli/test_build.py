"""`cuvilc build`: every flag."""

from __future__ import annotations

import filecmp
import json
import re
from pathlib import Path

import cuvil
import numpy as np
import pytest

from .helpers import Cuvilc, gather, save

NULL = ("--target", "null")


def test_default_output_is_named_after_the_model(
    cuvilc: Cuvilc, model: Path, tmp_path: Path
) -> None:
    result = cuvilc.ok("build", model)
    assert (tmp_path / "net.cuvil" / "model.so").is_file()
    assert "net.cuvil" in result.out
    assert "x86-64-v4, x86-64-v3" in result.out
    assert result.err == ""


def test_output_target_and_identical_bytes(cuvilc: Cuvilc, model: Path, tmp_path: Path) -> None:
    cuvilc.ok("build", model, *NULL, "-o", "a.cuvil")
    cuvilc.ok("build", model, *NULL, "--output", tmp_path / "b.cuvil", "--jobs", 1)
    names = ["metadata.json", "program.mlir", "vectors.npz", "weights.npz"]
    assert sorted(p.name for p in Path("a.cuvil").iterdir()) == names
    assert filecmp.cmpfiles("a.cuvil", "b.cuvil", names, shallow=False) == (names, [], [])


def test_json_has_stable_keys(cuvilc: Cuvilc, model: Path) -> None:
    data = cuvilc.ok("build", model, *NULL, "--format", "json").data
    assert set(data) == {
        "package", "size_bytes", "target", "levels", "kernels", "seconds", "program", "fusion",
        "checks", "texts", "notes",
    }  # fmt: skip
    assert data["package"] == "net.cuvil"
    assert data["levels"] == ["interpreter"]
    assert set(data["kernels"]) == {"built", "cached"}
    phases = {"import", "verify", "vectors", "optimise", "lower", "schedule", "pack", "total"}
    assert set(data["seconds"]) == phases
    assert set(data["fusion"]) == {"applied", "refused"}


def test_quiet_and_verbose(cuvilc: Cuvilc, model: Path) -> None:
    quiet = cuvilc.ok("build", model, *NULL, "-q")
    assert (quiet.out, quiet.err) == ("", "")
    assert "canonicalize" in cuvilc.ok("build", model, *NULL, "-v").out


def test_cpu_narrows_the_levels(cuvilc: Cuvilc, model: Path) -> None:
    data = cuvilc.ok("build", model, "--cpu", "x86-64-v3", "--format", "json").data
    assert data["levels"] == ["x86-64-v3"]


def test_a_second_build_takes_kernels_from_the_cache(cuvilc: Cuvilc, model: Path) -> None:
    arguments = ("build", model, "--cpu", "x86-64-v2", "--format", "json")
    built = cuvilc.ok(*arguments, "--no-cache").data["kernels"]
    assert built["cached"] == 0
    cuvilc.ok(*arguments)
    again = cuvilc.ok(*arguments).data["kernels"]
    assert again == {"built": 0, "cached": built["built"]}


def test_shape_and_dim(cuvilc: Cuvilc, model: Path) -> None:
    def symbols(*arguments: str) -> object:
        data = cuvilc.ok("build", model, "--dry-run", "--format", "json", *arguments).data
        return data["program"]["symbols"], data["program"]["inputs"][0]["dims"]

    assert symbols("--dim", "batch=2..64") == (
        [{"name": "batch", "lo": 2, "hi": 64}],
        ["batch", 8],
    )
    assert symbols("--dim", "batch=4")[1] == [4, 8]  # type: ignore[index]
    assert symbols("--shape", "x=3,8")[1] == [3, 8]  # type: ignore[index]
    assert symbols("--shape", "x=?,8")[1] == ["batch", 8]  # type: ignore[index]


@pytest.mark.parametrize(
    "option",
    [
        ("--shape", "x"), ("--shape", "x=1,b"), ("--shape", "=1"), ("--shape", "x=1,-8"),
        ("--dim", "batch"), ("--dim", "batch=a"), ("--dim", "batch=9..3"), ("--dim", "batch=.."),
        ("--jobs", "0"), ("--vectors", "-1"), ("--cpu", "i386"), ("--target", "abacus"),
        ("--stop-after", "lunch"), ("--emit", "poem"), ("--dump-after", "nothing"),
        ("--format", "xml"), ("--nonsense",), ("--shape", "y=1,8"), ("--dim", "size=8"),
    ],
    ids="=".join,
)  # fmt: skip
def test_wrong_options_are_usage_errors(
    cuvilc: Cuvilc, model: Path, tmp_path: Path, option: tuple[str, ...]
) -> None:
    result = cuvilc("build", model, *option)
    assert result.code == 2
    assert result.err.startswith("error[CUV")
    assert "Traceback" not in result.err
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_the_same_name_twice_is_refused(cuvilc: Cuvilc, model: Path) -> None:
    assert cuvilc("build", model, "--dim", "batch=1", "--dim", "batch=2").code == 2
    assert cuvilc("build", model, "--shape", "x=1,8", "--shape", "x=2,8").code == 2


def test_dry_run_writes_nothing(cuvilc: Cuvilc, model: Path, tmp_path: Path) -> None:
    result = cuvilc.ok("build", model, "--dry-run")
    for word in ("nothing was compiled", "batch = 0..", "ai.matmul 1", "weights", "arena", "/act"):
        assert word in result.out
    data = cuvilc.ok("build", model, "--dry-run", "--format", "json").data
    assert data["package"] is None
    assert set(data["program"]) == {
        "model", "operations", "symbols", "weights", "inputs", "outputs", "kernels", "arena_bytes",
    }  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize("phase", ["import", "verify", "optimise", "lower", "schedule"])
def test_stop_after(cuvilc: Cuvilc, model: Path, tmp_path: Path, phase: str) -> None:
    result = cuvilc.ok("build", model, *NULL, "--stop-after", phase)
    assert f"stopped after `{phase}`" in result.out
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_stop_after_the_last_phase_is_a_whole_build(cuvilc: Cuvilc, model: Path) -> None:
    cuvilc.ok("build", model, *NULL, "--stop-after", "pack")
    assert Path("net.cuvil").is_dir()


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("ai", "ai.matmul"), ("layout", "ai.fusion"), ("launch", "ai.cpu.launch"),
        ("tir", "T.prim_func"), ("llvm", "define"), ("asm", ".text"),
    ],
)  # fmt: skip
def test_emit_prints_a_form_and_packs_nothing(
    cuvilc: Cuvilc, model: Path, tmp_path: Path, form: str, word: str
) -> None:
    result = cuvilc.ok("build", model, "--emit", form, "--cpu", "x86-64-v3")
    assert word in result.out
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    assert word in cuvilc.ok("build", model, "--emit", form, "--cpu", "x86-64-v3", "-q").out


def test_emitted_texts_are_told_apart_by_comments(cuvilc: Cuvilc, model: Path) -> None:
    for form, mark in (("tir", "# "), ("llvm", "; "), ("asm", "# ")):
        lines = cuvilc.ok("build", model, "--emit", form).out.splitlines()
        for level in ("x86-64-v3", "x86-64-v4"):
            found = [x for x in lines if x.startswith(mark) and x.endswith(f".{level}")]
            assert len(found) == 1, (form, level)
    both = cuvilc.ok("build", model, "--emit", "asm", "--dump-after", "fuse", "--cpu", "host").out
    assert re.search("^// after fuse$", both, re.M) and re.search("^# matmul", both, re.M)


def test_a_form_that_is_not_named(cuvilc: Cuvilc, model: Path) -> None:
    assert "see `cuvilc build --help`" in cuvilc("build", model, "--emit").err
    assert "see `cuvilc adapter build --help`" in cuvilc("adapter", "build", "a", "--base").err
    assert "see `cuvilc --help`" in cuvilc("--nothing").err


def test_a_package_called_like_a_library(cuvilc: Cuvilc, model: Path) -> None:
    result = cuvilc.ok("build", model, "-o", "net.so", "--cpu", "x86-64-v3")
    assert "net.so is a folder, as packages are; load net.so/model.so" in result.err
    assert "is a folder" not in cuvilc.ok("build", model, "-o", "null.so", *NULL).err


def test_dumps(cuvilc: Cuvilc, model: Path, tmp_path: Path) -> None:
    result = cuvilc.ok(
        "build", model, *NULL, "--dump-ir", "ir/here", "--dump-after", "import",
        "--dump-after", "canonicalize",
    )  # fmt: skip
    names = sorted(p.name for p in (tmp_path / "ir" / "here").iterdir())
    assert names[0] == "00-import.mlir"
    assert names[-1].endswith("-add-merges.mlir")
    assert "// after import" in result.out
    assert "// after canonicalize\n" in result.out
    assert "// after canonicalize (2)" in result.out


def test_no_fusion(cuvilc: Cuvilc, model: Path) -> None:
    """Every operation is a kernel, and the answers are the same."""
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    found = []
    for name, options in (("fused.cuvil", []), ("each.cuvil", ["--no-fusion"])):
        data = cuvilc.ok("build", model, "-o", name, "--verify", *options, "--json").data
        assert bool(data["fusion"]["applied"]) == (not options)
        loaded = cuvil.load(name)
        found.append(loaded(x)[0])
        loaded.close()
        kernels = json.loads((Path(name) / "metadata.json").read_text())["kernels"]
        assert sum(k["calls"] for k in kernels) == (3 if options else 1)
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_explain_fusion(cuvilc: Cuvilc, model: Path) -> None:
    result = cuvilc.ok("build", model, *NULL, "--explain-fusion")
    assert "rule applied" in result.out
    refused = cuvilc.ok("build", model, *NULL, "--format", "json").data["fusion"]["refused"]
    assert all(set(r) == {"rule", "place", "why"} and r["why"] for r in refused)


def test_verify_compares_before_the_package_takes_its_place(cuvilc: Cuvilc, model: Path) -> None:
    data = cuvilc.ok("build", model, *NULL, "--verify", "--format", "json").data
    assert data["checks"]
    assert all(c["ok"] for c in data["checks"])


def test_a_package_that_computes_wrongly_is_not_left(
    cuvilc: Cuvilc, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuvilc.targets.null_model import InterpretedModel

    right = InterpretedModel.run

    def wrong(self: InterpretedModel, *feeds: object) -> dict[str, np.ndarray]:
        return {n: a + 1 for n, a in right(self, *feeds).items()}  # type: ignore[arg-type]

    monkeypatch.setattr(InterpretedModel, "run", wrong)
    result = cuvilc("build", model, *NULL, "--verify")
    assert result.code == 1
    assert "CUV622" in result.err
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_vectors_by_number(cuvilc: Cuvilc, model: Path) -> None:
    from cuvilc.artifact import read_package

    for count in (0, 3):
        cuvilc.ok("build", model, *NULL, "--vectors", count)
        info = read_package(Path("net.cuvil")).metadata.get("vectors")
        assert (info["cases"] if info else 0) == count


def test_vectors_of_a_large_model_are_left_out_and_that_is_said(
    cuvilc: Cuvilc, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuvilc.vectors.AUTO_LIMIT", 10)
    result = cuvilc.ok("build", model, *NULL)
    assert "note: no test vectors" in result.err
    assert "--vectors 1" in result.err
    asked = cuvilc.ok("build", model, *NULL, "--vectors", 1)
    assert asked.err == ""


def test_vectors_of_a_small_table_use_small_indices(cuvilc: Cuvilc, tmp_path: Path) -> None:
    cuvilc.ok("build", save(tmp_path, gather()), *NULL, "--verify")


def test_progress_is_drawn_on_a_terminal_and_removed(model: Path, tmp_path: Path) -> None:
    import os
    import pty
    import sys

    root = Path(__file__).parents[2]
    process, terminal = pty.fork()
    if process == 0:
        os.environ |= {"TERM": "xterm", "PYTHONPATH": f"{root}:{root / 'runtime'}"}
        arguments = ["-m", "cuvilc", "build", str(model), *NULL]
        os.execv(sys.executable, [sys.executable, *arguments])
    drawn = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        drawn += part
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert b"schedule" in drawn
    last = drawn.rpartition(b"\x1b[2K")[2]
    assert last.startswith(b"net.cuvil")


def test_help_names_the_default_levels(cuvilc: Cuvilc) -> None:
    from cuvilc.targets.x86 import DEFAULT_CPU

    assert f"[default: {DEFAULT_CPU}]" in cuvilc.ok("build", "--help").out


def test_json_has_two_spellings(cuvilc: Cuvilc, model: Path) -> None:
    data = cuvilc.ok("build", model, *NULL, "--json").data
    assert data["levels"] == ["interpreter"]
