"""Compiling the runtime once, linking the same bytes anywhere, saying what went wrong."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from pathlib import Path

import pytest

from cuvilc.diagnostics import CuvilError
from cuvilc.package import link
from cuvilc.package.cache import Cache
from cuvilc.package.link import kernel_table, link_library, runtime_objects
from cuvilc.package.plan import PART_TABLE, Level
from cuvilc.package.runtime_source import RuntimeSource, feature_bits, find_runtime, runtime_at
from cuvilc.package.toolchain import Toolchain, find_toolchain

from .helpers import STUB_RUNTIME, compile_c, scale_object, scale_plan, stub_runtime

TWO_LEVELS = (Level("v4", ()), Level("v3", ()))
NO_CACHE = Cache(enabled=False)


def link_scale(directory: Path) -> bytes:
    directory.mkdir()
    runtime = runtime_objects(find_toolchain(), stub_runtime(), NO_CACHE)
    kernels = [scale_object(0, 10), scale_object(1, 100)]
    link_library(scale_plan(TWO_LEVELS), kernels, runtime, directory / "out.so", find_toolchain())
    assert [p.name for p in directory.iterdir()] == ["out.so"], "no intermediate file is left"
    return (directory / "out.so").read_bytes()


def test_the_same_bytes_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = link_scale(tmp_path / "one")
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(link, "_compiled", {})
    assert link_scale(tmp_path / "a longer name, with spaces") == first
    assert str(tmp_path).encode() not in first


def test_the_table_calls_the_kernel_of_each_level(tmp_path: Path) -> None:
    link_scale(tmp_path / "one")
    library = ctypes.CDLL(str(tmp_path / "one" / "out.so"))
    row = (ctypes.c_float * 4)(1, 2, 3, 4)
    result = (ctypes.c_float * 4)()
    buffers = (ctypes.c_void_p * 3)(*[ctypes.addressof(x) for x in (row, row, result)])
    for level, factor in ((0, 10), (1, 100)):
        begin, end = ctypes.c_int64(0), ctypes.c_int64(1)
        assert library.cuvil_stub_call(level, 0, buffers, begin, end) == 0
        assert list(result) == [factor * x * x for x in row]


def test_only_the_c_api_is_exported(tmp_path: Path) -> None:
    link_scale(tmp_path / "one")
    output = subprocess.run(
        ["nm", "-D", "--defined-only", str(tmp_path / "one" / "out.so")],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert {line.split()[-1] for line in output.splitlines()} == {
        "cuvil_stub_image", "cuvil_stub_call", "cuvil_stub_uses_libm",
    }  # fmt: skip


def test_objects_may_be_files(tmp_path: Path) -> None:
    kernels = []
    for level, factor in ((0, 10), (1, 100)):
        kernels.append(tmp_path / f"kernel{level}.o")
        kernels[-1].write_bytes(scale_object(level, factor))
    runtime = runtime_objects(find_toolchain(), stub_runtime(), NO_CACHE)
    link_library(scale_plan(TWO_LEVELS), kernels, runtime, tmp_path / "a.so", find_toolchain())
    assert (tmp_path / "a.so").read_bytes() == link_scale(tmp_path / "one")


def test_an_undefined_function_is_named(tmp_path: Path) -> None:
    kernel = compile_c(
        "int missing_function(void); int scale__L0(void) { return missing_function(); }"
    )
    runtime = runtime_objects(find_toolchain(), stub_runtime(), NO_CACHE)
    with pytest.raises(CuvilError, match="CUV504(.|\n)*missing_function"):
        link_library(scale_plan(), [kernel], runtime, tmp_path / "out.so", find_toolchain())
    assert list(tmp_path.iterdir()) == []


def test_the_table_holds_all_kernels_of_a_level_after_another() -> None:
    plan = scale_plan(TWO_LEVELS)
    plan.kernels = ["a", "b"]
    lines = [x.split()[1] for x in kernel_table(plan).splitlines() if ".quad" in x]
    assert lines == ["a__L0", "b__L0", "a__L1", "b__L1"]


def test_kernels_may_share_code_and_call_parts_by_number() -> None:
    plan = scale_plan(TWO_LEVELS)
    plan.kernels, plan.codes = ["a", "b", "c"], {"a": ("x", "y"), "b": ("x", "y")}
    assert PART_TABLE not in kernel_table(plan)
    plan.parts = ["q", "p"]
    table, parts = kernel_table(plan).split(f"{PART_TABLE}:")
    kernels = [x.split()[1] for x in table.splitlines() if ".quad" in x]
    assert kernels == ["x", "x", "c__L0", "y", "y", "c__L1"]
    assert [x.split()[1] for x in parts.splitlines() if ".quad" in x] == ["q", "p"]


def counting_compiler(directory: Path) -> tuple[Path, Path]:
    """A compiler that notes each call, and its notes."""
    calls, script = directory / "calls", directory / "counting-cc"
    script.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec cc "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script, calls


def test_the_runtime_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, calls = counting_compiler(tmp_path)
    monkeypatch.setenv("CC", str(script))
    toolchain, cache = find_toolchain(), Cache(tmp_path / "cache")

    def compiled() -> int:
        calls.write_text("")
        monkeypatch.setattr(link, "_compiled", {})  # as in a new process
        runtime_objects(toolchain, stub_runtime(), cache)
        return len(calls.read_text().splitlines())

    assert [compiled(), compiled()] == [2, 0]
    newer = Toolchain(toolchain.command, toolchain.identity + " newer")
    calls.write_text("")
    runtime_objects(newer, stub_runtime(), cache)
    assert len(calls.read_text().splitlines()) == 2


def test_a_runtime_that_does_not_compile(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "bad.c").write_text("#error this is bad\n")
    with pytest.raises(CuvilError, match="CUV502(.|\n)*this is bad"):
        runtime_objects(find_toolchain(), runtime_at(tmp_path), NO_CACHE)


@pytest.mark.parametrize(
    ("cc", "fact"),
    [
        ("no-such-compiler -m64", "CC names `no-such-compiler`"),
        ("false", "does not work"),
        ("'", "not a"),
    ],
)
def test_a_wrong_cc_is_refused(cc: str, fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", cc)
    with pytest.raises(CuvilError, match=f"CUV501.*{fact}"):
        find_toolchain()


def test_without_a_compiler_the_next_step_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CuvilError, match="CUV501.*cc, gcc, clang(.|\n)*apt install gcc"):
        find_toolchain()


def test_the_first_compiler_on_the_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, _ = counting_compiler(tmp_path)
    script.rename(tmp_path / "clang")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CC", raising=False)
    assert find_toolchain().command[0] in ("cc", "gcc", "clang")


def test_a_cross_target_is_an_argument() -> None:
    zig = ("python", "-m", "ziglang", "cc")
    assert Toolchain(zig, "", "aarch64-linux-gnu", "2.17").arguments[-2:] == [
        "-target", "aarch64-linux-gnu.2.17",
    ]  # fmt: skip
    assert Toolchain(zig, "").arguments == list(zig)


def test_the_real_runtime_is_found_and_its_features_are_known() -> None:
    source = find_runtime()
    assert isinstance(source, RuntimeSource)
    bits = feature_bits(source)
    assert len(set(bits.values())) == len(bits)
    assert bits["avx2"] < 64
    assert feature_bits(runtime_at(STUB_RUNTIME)) == {"sse3": 0, "avx2": 5}
