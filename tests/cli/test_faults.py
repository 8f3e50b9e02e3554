"""What goes wrong on the way: the disk, the user's impatience, ourselves."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cuvilc.diagnostics import fail
from cuvilc.driver_steps import TOO_COMPLEX

from .helpers import Cuvilc

NULL = ("--target", "null")
ROOT = Path(__file__).parents[2]


def test_our_own_fault_is_a_diagnostic_with_a_report(
    cuvilc: Cuvilc, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuvilc.dialect.passes import fuse

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(fuse, "run", broken)
    result = cuvilc("build", model, *NULL, "-o", tmp_path / "x.cuvil")
    assert result.code == 3
    assert result.err.startswith("error[CUV900]: internal error: ZeroDivisionError: division")
    assert "Traceback" not in result.err
    report = (tmp_path / "x.crash.txt").read_text()
    assert "Traceback" in report
    assert "pass fuse" in report
    assert "ai.matmul" in (tmp_path / "x.reproducer.mlir").read_text()
    assert not (tmp_path / "x.cuvil").exists()


def test_a_pass_that_breaks_the_program_leaves_a_reproducer(
    cuvilc: Cuvilc, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuvilc.dialect import ir
    from cuvilc.dialect.passes import fuse

    def broken(program: Any, _: Any) -> None:
        with program:
            block = ir.body(program.function("main"))
            matmul = next(o for o in ir.walk(block) if o.name == "ai.matmul")
            del matmul.attributes["transpose_a"]

    monkeypatch.setattr(fuse, "run", broken)
    result = cuvilc("build", model, *NULL)
    assert result.code == 3
    assert "error[CUV302]: the program is not valid after `fuse`" in result.err
    assert "transpose_a" in (tmp_path / "net.reproducer.mlir").read_text()
    assert not (tmp_path / "net.cuvil").exists()


@pytest.mark.parametrize("later", [None, RuntimeError("boom"), fail(TOO_COMPLEX, "no")])
def test_the_pass_that_broke_the_program_is_told_also_when_others_ran_since(
    cuvilc: Cuvilc, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    later: Exception | None,
) -> None:  # fmt: skip
    """The verifier runs once for several passes; one after the culprit may stumble."""
    from cuvilc.dialect import ir
    from cuvilc.dialect.passes import choose_layouts, fuse, plan_convolutions

    def broken(program: Any, _: Any) -> None:
        with program:
            block = ir.body(program.function("main"))
            matmul = next(o for o in ir.walk(block) if o.name == "ai.matmul")
            del matmul.attributes["transpose_a"]

    def stumbles(*_: Any) -> None:
        if later is not None:
            raise later

    monkeypatch.setattr(plan_convolutions, "run", broken)
    monkeypatch.setattr(choose_layouts, "run", stumbles)
    monkeypatch.setattr(fuse, "run", lambda *_: None)
    result = cuvilc("build", model, *NULL)
    assert result.code == 3
    assert "error[CUV302]: the program is not valid after `plan-convolutions`" in result.err
    assert "transpose_a" in (tmp_path / "net.reproducer.mlir").read_text()
    assert not (tmp_path / "net.cuvil").exists()


def test_a_fault_outside_a_build_is_a_diagnostic_too(
    cuvilc: Cuvilc, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("cuvilc.inspect.report", broken)
    result = cuvilc("inspect", built / "net.cuvil")
    assert result.code == 3
    assert "CUV900" in result.err
    assert "cuvilc inspect" in Path("cuvilc.crash.txt").read_text()


def test_the_report_goes_elsewhere_where_it_cannot_be_written(tmp_path: Path) -> None:
    from cuvilc.diagnostics import write_report

    elsewhere = write_report(tmp_path / "missing" / "report.txt", "text")
    assert elsewhere.read_text() == "text"


def _disk_full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_disk_full(cuvilc: Cuvilc, model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    import cuvilc.targets.null as null

    monkeypatch.setattr(null, "write_weights", _disk_full)
    result = cuvilc("build", model, *NULL)
    assert result.code == 1
    assert "CUV508" in result.err
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_disk_full_while_outputs_are_written(
    cuvilc: Cuvilc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    np.savez("in.npz", x=np.zeros((2, 8), np.float32))

    monkeypatch.setattr(np.lib.format, "write_array", _disk_full)
    result = cuvilc("run", "null.cuvil", "--inputs", "in.npz", "--outputs", "out.npz")
    assert (result.code, "CUV621" in result.err) == (2, True)
    assert not list(folder.glob("*out.npz*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_unwritable_output(cuvilc: Cuvilc, model: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    result = cuvilc("build", model, *NULL, "-o", locked / "x.cuvil")
    assert result.code == 1
    assert "CUV509" in result.err


def test_a_refusing_file_system(
    cuvilc: Cuvilc, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("cuvilc.targets.null.write_weights", refuse)
    result = cuvilc("build", model, *NULL)
    assert (result.code, "CUV509" in result.err) == (1, True)
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_missing_folder_and_a_file_in_the_way(cuvilc: Cuvilc, model: Path, tmp_path: Path) -> None:
    result = cuvilc("build", model, *NULL, "-o", tmp_path / "no" / "x.cuvil")
    assert (result.code, "CUV506" in result.err) == (2, True)
    (tmp_path / "mine").write_text("precious")
    result = cuvilc("build", model, *NULL, "-o", "mine")
    assert (result.code, "CUV507" in result.err) == (2, True)
    assert (tmp_path / "mine").read_text() == "precious"


def test_dump_folder_that_is_a_file(cuvilc: Cuvilc, model: Path) -> None:
    result = cuvilc("build", model, *NULL, "--dump-ir", model)
    assert "CUV510" in result.err


def test_a_failed_build_keeps_the_older_package(
    cuvilc: Cuvilc, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuvilc.ok("build", model, *NULL)
    before = (tmp_path / "net.cuvil" / "metadata.json").read_bytes()

    def broken(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("cuvilc.targets.null.write_weights", broken)
    assert cuvilc("build", model, *NULL, "--vectors", 2).code == 3
    assert (tmp_path / "net.cuvil" / "metadata.json").read_bytes() == before


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_builds_leave_nothing(
    model: Path, tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    """Stopped in the middle of packing, with files written already."""
    program = (
        "import signal, sys, time, cuvilc.targets.null as null\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it\n"
        "def slow(path, weights):\n"
        "    path.write_bytes(b'half')\n"
        "    print('packing', flush=True)\n"
        "    time.sleep(60)\n"
        "null.write_weights = slow\n"
        "from cuvilc.cli import main\n"
        "sys.exit(main(['build', 'net.onnx', '--target', 'null', '-q']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "packing\n"
    time.sleep(0.1)
    process.send_signal(sent)
    assert process.wait(30) == code
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_without_a_c_compiler(cuvilc: Cuvilc, model: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    result = cuvilc("build", model)
    assert (result.code, "CUV501" in result.err) == (1, True)
    cuvilc.ok("build", model, "--dry-run")
    cuvilc.ok("build", model, *NULL)


def test_without_the_runtimes_sources(cuvilc: Cuvilc, model: Path, monkeypatch: Any) -> None:
    from cuvilc.package import runtime_source

    monkeypatch.setattr(runtime_source, "_candidates", list)
    runtime_source.find_runtime.cache_clear()
    result = cuvilc("build", model)
    runtime_source.find_runtime.cache_clear()
    assert (result.code, "CUV503" in result.err) == (1, True)
    assert not Path("net.cuvil").exists()
