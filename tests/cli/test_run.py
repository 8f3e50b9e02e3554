"""`cuvilc run` and `cuvilc bench`, on machine code and on the interpreter alike."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.tolerances import mismatch

from .helpers import Cuvilc, gather, model, save

PACKAGES = ["net.cuvil", "null.cuvil"]
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)


def reference(x: np.ndarray) -> np.ndarray:
    import onnx
    from onnx import numpy_helper

    weights = {w.name: numpy_helper.to_array(w) for w in onnx.load("net.onnx").graph.initializer}
    return np.maximum(x @ weights["w"] + weights["b"], 0)


@pytest.mark.parametrize("package", PACKAGES)
def test_outputs_are_written_under_their_names(cuvilc: Cuvilc, folder: Path, package: str) -> None:
    np.savez("in.npz", x=X)
    result = cuvilc.ok("run", package, "--inputs", "in.npz", "--outputs", "out.npz")
    assert result.out == "out.npz: y, z\n"
    with np.load("out.npz", allow_pickle=False) as out:
        assert not mismatch(out["y"], reference(X))
        np.testing.assert_array_equal(out["z"], out["y"].reshape(3, 4, 5))


@pytest.mark.parametrize("package", PACKAGES)
def test_without_outputs_they_are_shown(cuvilc: Cuvilc, folder: Path, package: str) -> None:
    np.save("in.npy", X)
    result = cuvilc.ok("run", package, "--inputs", "in.npy", "--threads", 1)
    assert "float32[3, 4, 5]" in result.out
    assert "first values" in result.out
    data = cuvilc.ok("run", package, "--inputs", "in.npy", "--json").data
    assert set(data) == {"package", "outputs", "written"}
    keys = {"name", "dtype", "shape", "min", "mean", "max", "not_finite", "first"}
    assert set(data["outputs"][0]) == keys


def test_nan_in_a_result_is_pointed_out(cuvilc: Cuvilc, folder: Path) -> None:
    np.savez("in.npz", x=np.full((1, 8), np.inf, np.float32))
    result = cuvilc.ok("run", "null.cuvil", "--inputs", "in.npz")
    assert "NaN or infinite" in result.err
    data = cuvilc.ok("run", "null.cuvil", "--inputs", "in.npz", "--json").data
    assert data["outputs"][0]["first"][0] is None or data["outputs"][0]["not_finite"]


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "missing": ("CUV604", {}),
    "unknown": ("CUV604", {"x": X, "X": X}),
    "misspelt": ("CUV604", {"X": X}),
    "dtype": ("CUV605", {"x": X.astype(np.float64)}),
    "rank": ("CUV606", {"x": X[0]}),
    "size": ("CUV606", {"x": X[:, :7]}),
    "pickle": ("CUV620", {"x": np.array([{}], object)}),
}


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs(cuvilc: Cuvilc, folder: Path, package: str, case: str) -> None:
    code, arrays = WRONG[case]
    np.savez("in.npz", **arrays)
    result = cuvilc("run", package, "--inputs", "in.npz", "--outputs", "out.npz")
    assert result.code == 2
    assert result.err.startswith(f"error[{code}]")
    assert not Path("out.npz").exists()
    errors = cuvilc("run", package, "--inputs", "in.npz", "--json").data["errors"]
    assert errors[0]["code"] == code


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 damaged", b"\x93NUMPY\x01", b"text"])
def test_files_that_hold_no_arrays(cuvilc: Cuvilc, folder: Path, content: bytes | None) -> None:
    if content is not None:
        Path("in.npz").write_bytes(content)
    result = cuvilc("run", "null.cuvil", "--inputs", "in.npz")
    assert result.code == 2
    assert "CUV620" in result.err


def test_raw_numbers_and_how_to_give_them(cuvilc: Cuvilc, folder: Path) -> None:
    X.tofile("in.bin")
    result = cuvilc("run", "null.cuvil", "--inputs", "in.bin")
    assert (result.code, "it is no .npz or .npy file" in result.err) == (2, True)
    assert "pickle" not in result.err
    line = re.search(r"np\.savez\(.*\)", result.err.replace("\n", ""))
    assert line is not None
    exec(line[0], {"np": np, "SHAPE": X.shape})
    cuvilc.ok("run", "null.cuvil", "--inputs", "in.npz")


@pytest.mark.parametrize("target", ["x86", "null"])
def test_an_index_beyond_the_table(cuvilc: Cuvilc, tmp_path: Path, target: str) -> None:
    cuvilc.ok("build", save(tmp_path, gather()), "--target", target, "-o", "g.cuvil")
    np.savez("in.npz", i=np.array([0, 99], np.int64))
    result = cuvilc("run", "g.cuvil", "--inputs", "in.npz")
    assert result.code == 2
    assert "error[CUV609]" in result.err
    cuvilc.ok("bench", "g.cuvil", "--seconds", 0)  # its random indices fit


def test_other_files_are_not_overwritten(cuvilc: Cuvilc, folder: Path) -> None:
    """A result replaces a result, and nothing else; a file that is empty is nobody's work."""
    np.savez("in.npz", x=X)
    run = ("run", "null.cuvil", "--inputs", "in.npz", "--outputs")
    bench = ("bench", "null.cuvil", "--seconds", 0, "--trace")
    for command, own in ((run, "out.npz"), (bench, "trace.json")):
        (folder / "empty").touch()
        for _ in range(2):
            cuvilc.ok(*command, own)
            cuvilc.ok(*command, "empty")
        (folder / "empty").unlink()
        for other in ("net.onnx", "null.cuvil/metadata.json"):
            before = (folder / other).read_bytes()
            result = cuvilc(*command, other)
            assert result.code == 2 and "CUV507" in result.err and "not overwritten" in result.err
            assert (folder / other).read_bytes() == before
    assert not list(folder.glob(".*new*"))


def test_outputs_to_nowhere(cuvilc: Cuvilc, folder: Path) -> None:
    np.savez("in.npz", x=X)
    result = cuvilc("run", "null.cuvil", "--inputs", "in.npz", "--outputs", "no/such/out.npz")
    assert (result.code, "CUV621" in result.err) == (2, True)
    for folder_name in (".", ""):
        result = cuvilc("run", "null.cuvil", "--inputs", "in.npz", "--outputs", folder_name)
        assert (result.code, "Is a directory" in result.err) == (2, True)


def test_a_pipe_is_written_to_and_stays(cuvilc: Cuvilc, folder: Path) -> None:
    np.savez("in.npz", x=X)
    os.mkfifo("pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(Path("pipe").read_bytes)
        cuvilc.ok("run", "null.cuvil", "--inputs", "in.npz", "--outputs", "pipe")
        assert list(np.load(io.BytesIO(read.result(timeout=60)))) == ["y", "z"]
    assert Path("pipe").is_fifo()


def test_bench_of_sizes_beyond_memory(cuvilc: Cuvilc, folder: Path) -> None:
    for size in (10**12, 10**18 - 1):
        result = cuvilc("bench", "net.cuvil", "--dim", f"batch={size}")
        assert (result.code, "CUV608" in result.err) == (1, True)


def test_bench_of_damaged_metadata(cuvilc: Cuvilc, folder: Path) -> None:
    file = folder / "net.cuvil" / "metadata.json"
    file.write_text(file.read_text().replace('"symbols"', '"cymbals"'))
    result = cuvilc("bench", "net.cuvil", "--seconds", 0)
    assert (result.code, "CUV522" in result.err) == (1, True)
    assert "'symbols' is a required property" in result.err


@pytest.mark.parametrize("command", [["run", "--inputs", "x.npz"], ["bench"], ["verify"]])
def test_what_is_no_package(cuvilc: Cuvilc, folder: Path, command: list[str]) -> None:
    name, *options = command
    result = cuvilc(name, "net.onnx", *options)
    assert result.code == 1
    assert "error[CUV" in result.err
    assert cuvilc(name, "absent.cuvil", *options).code == 1


@pytest.mark.parametrize("package", PACKAGES)
def test_bench(cuvilc: Cuvilc, folder: Path, package: str) -> None:
    shown = cuvilc.ok("bench", package, "--seconds", 0.05, "--dim", "batch=5", "--threads", 1).out
    for word in ("min", "median", "p99", "arena", "batch=5", "1 thread"):
        assert word in shown
    data = cuvilc.ok("bench", package, "--seconds", 0, "--json", "--profile").data
    assert set(data) == {
        "package", "level", "threads", "sizes", "runs", "min_us", "median_us", "mean_us", "p99_us",
        "memory", "kernels", "trace",
    }  # fmt: skip
    assert data["sizes"] == {"batch": 1}
    assert data["runs"] >= 3
    assert data["min_us"] <= data["median_us"] <= data["p99_us"]
    kinds = ("arena", "scratch", "prepared", "weights")
    assert set(data["memory"]) == {f"{kind}_bytes" for kind in kinds}
    assert abs(sum(k["share"] for k in data["kernels"]) - 1) < 1e-6
    assert data["kernels"][0]["kernel"] in cuvilc.ok("inspect", package).out


def test_bench_of_a_library_alone(cuvilc: Cuvilc, folder: Path) -> None:
    alone = shutil.copy("net.cuvil/model.so", "alone.so")
    assert cuvilc.ok("bench", alone, "--seconds", 0, "--json", "--profile").data["kernels"]
    for command in (["inspect"], ["verify"]):
        result = cuvilc(*command, "net.cuvil/model.so")
        assert (result.code, "give its folder, net.cuvil" in result.err) == (1, True)


@pytest.mark.parametrize("package", PACKAGES)
def test_bench_trace_is_a_chrome_trace(cuvilc: Cuvilc, folder: Path, package: str) -> None:
    cuvilc.ok("bench", package, "--seconds", 0, "--trace", "trace.json", "--profile")
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert spans
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["args"]["kernel"] for e in spans)


@pytest.mark.parametrize("option", ["batch=-1", "batch=1..4", "size=3", "batch"])
def test_bench_sizes_that_do_not_exist(cuvilc: Cuvilc, folder: Path, option: str) -> None:
    result = cuvilc("bench", "null.cuvil", "--dim", option)
    assert (result.code, "CUV901" in result.err) == (2, True)


@pytest.mark.parametrize("target", ["x86", "null"])
def test_bench_finds_a_size_that_fits(cuvilc: Cuvilc, tmp_path: Path, target: str) -> None:
    """A 20x20 window without padding needs an image of 20 pixels at least."""
    weights = {"w": np.ones((1, 1, 20, 20), np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[20, 20])
    proto = model([node], {"x": ["n", 1, "h", "v"]}, ["y"], weights)
    cuvilc.ok("build", save(tmp_path, proto), "--target", target, "-o", "c.cuvil")
    data = cuvilc.ok("bench", "c.cuvil", "--seconds", 0, "--json").data
    assert data["sizes"] == {"n": 1, "h": 64, "v": 64}
