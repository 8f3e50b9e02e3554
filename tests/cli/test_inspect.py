"""`cuvilc inspect`, `targets`, `explain`, `--version`, `--help`, and what they load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuvilc import __version__
from cuvilc.cli_text import bytes_text, count_text, range_text, time_text

from .helpers import Cuvilc, gather, save

ROOT = Path(__file__).parents[2]
COMMANDS = ["build", "run", "bench", "verify", "inspect", "targets", "explain"]
HEAVY = ["tvm", "torch_mlir", "onnx", "onnxruntime", "numpy", "jsonschema", "cuvil", "torch"]


def loaded_by(*arguments: str) -> set[str]:
    """The heavy modules that a command has loaded when it is over."""
    program = (
        "import sys, io, contextlib\n"
        "from cuvilc.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    code = main({list(arguments)!r})\n"
        f"print(code, *(m for m in {HEAVY!r} if m in sys.modules))\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"}
    out = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert out[0] == "0"
    return set(out[1:])


@pytest.mark.parametrize(
    "arguments", [["--help"], *([c, "--help"] for c in COMMANDS)], ids=" ".join
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    assert loaded_by(*arguments) == set()


def test_explain_and_version_load_nothing_heavy() -> None:
    assert loaded_by("explain") == set()
    assert loaded_by("explain", "CUV402") == set()
    assert loaded_by("--version") == set()


def test_inspect_loads_no_compiler(built: Path) -> None:
    assert loaded_by("inspect", str(built / "net.cuvil")) <= {"jsonschema"}


def test_of_a_table_the_rows_that_are_read_count(cuvilc: Cuvilc, tmp_path: Path) -> None:
    cuvilc.ok("build", save(tmp_path, gather()), "--cpu", "host", "-o", "g.cuvil")
    row, index = 3 * 4, 8
    assert cuvilc.ok("inspect", "g.cuvil", "--json").data["totals"]["bytes"] == index + 2 * row


def test_run_loads_no_compiler(folder: Path) -> None:
    import numpy as np

    np.savez("in.npz", x=np.zeros((1, 8), np.float32))
    assert loaded_by("run", "net.cuvil", "--inputs", "in.npz") <= {"numpy", "cuvil"}


def test_help_is_quick() -> None:
    """Best of five, measured against an empty Python so that a busy machine does not decide."""

    def best(*arguments: str) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=ROOT)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best("-m", "cuvilc", "--help") < 0.25 + 10 * best("-c", "pass")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(cuvilc: Cuvilc, command: str) -> None:
    lines = cuvilc.ok(command, "--help").out.splitlines()
    assert any(line.startswith(f"    cuvilc {command}") for line in lines)
    assert all(line.count("cuvilc ") <= 1 for line in lines)
    assert max(map(len, lines)) <= 100


def test_the_list_of_commands_is_not_cut(cuvilc: Cuvilc) -> None:
    assert "..." not in cuvilc.ok("--help").out.replace("[ARGS]...", "")


def test_version(cuvilc: Cuvilc) -> None:
    assert cuvilc.ok("--version").out == f"cuvilc {__version__}\n"


def test_usage_errors(cuvilc: Cuvilc) -> None:
    for arguments in (["bild"], ["--frobnicate"], ["build"], ["run", "x"], ["inspect", "a", "b"]):
        result = cuvilc(*arguments)
        assert (result.code, result.err.startswith("error[CUV901]")) == (2, True), arguments
    data = cuvilc("build", "--format", "json", "--wrong").data
    assert data["errors"][0]["code"] == "CUV901"


def test_no_arguments_show_the_help(cuvilc: Cuvilc) -> None:
    result = cuvilc()
    assert result.code == 2
    assert "cuvilc build resnet18.onnx" in result.out + result.err


@pytest.mark.parametrize("package", ["net.cuvil", "null.cuvil"])
def test_inspect(cuvilc: Cuvilc, built: Path, package: str) -> None:
    shown = cuvilc.ok("inspect", built / package).out
    for word in (
        "x: float32[batch, 8]", "y: float32[batch, 20]", "batch = 0..", "read from axis 0 of x",
        "/fc/matmul", "vectors", "weights", "opset 17",
    ):  # fmt: skip
        assert word in shown
    data = cuvilc.ok("inspect", built / package, "--json").data
    assert set(data) == {"path", "size_bytes", "metadata", "totals"}
    assert data["metadata"] == json.loads((built / package / "metadata.json").read_bytes())
    assert set(data["totals"]) == {
        "sizes", "kernels", "launches", "flops", "bytes", "arena_bytes", "scratch_bytes",
    }  # fmt: skip


def test_inspect_truncates_long_tables(cuvilc: Cuvilc, folder: Path) -> None:
    from cuvilc import artifact

    path = folder / "null.cuvil" / "metadata.json"
    metadata = json.loads(path.read_bytes())
    first = metadata["kernels"][0]
    metadata["kernels"] = [{**first, "name": f"kernel_{i}"} for i in range(40)]
    path.write_bytes(artifact.canonical(metadata))
    shown = cuvilc.ok("inspect", "null.cuvil").out
    assert "28 more kernels, see --all" in shown
    assert "kernel_39" in cuvilc.ok("inspect", "null.cuvil", "--all").out


def test_names_cannot_steer_the_terminal(cuvilc: Cuvilc, folder: Path) -> None:
    from cuvilc import artifact

    path = folder / "null.cuvil" / "metadata.json"
    metadata = json.loads(path.read_bytes())
    metadata["model"]["name"] = "a\x1b[2Jb"
    metadata["kernels"][0]["layers"] = ["\x1b]0;title\x07[bold]layer[/bold]"]
    path.write_bytes(artifact.canonical(metadata))
    shown = cuvilc.ok("inspect", "null.cuvil").out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[bold]" in shown


def test_inspect_of_a_model_gives_a_hint(cuvilc: Cuvilc, built: Path) -> None:
    result = cuvilc("inspect", built / "net.onnx")
    assert result.code == 1
    assert "cuvilc build net.onnx" in result.err


def test_targets(cuvilc: Cuvilc) -> None:
    shown = cuvilc.ok("targets").out
    assert "x86-64-v4" in shown
    assert "interpreter" in shown
    names = [t["name"] for t in cuvilc.ok("targets", "--json").data["targets"]]
    assert names == ["null", "x86"]


def test_explain(cuvilc: Cuvilc) -> None:
    assert "Next step" in cuvilc.ok("explain", "CUV104").out
    assert cuvilc.ok("explain", "cuv104").out == cuvilc.ok("explain", "104").out
    assert set(cuvilc.ok("explain", "CUV104", "--json").data) == {
        "code", "title", "help", "exit_code",
    }  # fmt: skip
    listed = cuvilc.ok("explain", "--json").data["codes"]
    shown = cuvilc.ok("explain").out
    assert all(code in shown for code in listed)
    assert cuvilc("explain", "CUV999").code == 2


def test_amounts() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1536, 3 << 30)] == [
        "0 B", "1023 B", "1.5 KiB", "3.0 GiB",
    ]  # fmt: skip
    assert [count_text(n, "FLOP") for n in (0, 7, 1000, 3.63e9)] == [
        "–", "7 FLOP", "1 KFLOP", "3.63 GFLOP",
    ]  # fmt: skip
    assert [range_text(*r) for r in ((1, 64), (4, 4), (1, None))] == ["1..64", "4", "1.."]
    assert [time_text(t) for t in (1.5, 1500, 2.5e6)] == ["1.5 µs", "1.50 ms", "2.50 s"]
