"""A package of hand-written kernels runs in the real runtime."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.artifact import read_package
from cuvilc.diagnostics import CuvilError
from cuvilc.package.cache import Cache
from cuvilc.package.plan import Level, Step, StepKind
from cuvilc.package.runtime_source import find_runtime
from cuvilc.package.toolchain import Toolchain
from cuvilc.package.write import write_package

from .helpers import (
    pick_metadata,
    pick_object,
    pick_plan,
    scale_metadata,
    scale_object,
    scale_plan,
    scale_vectors,
    scale_weights,
)

RUNTIME = Path(__file__).parents[2] / "runtime"
LEVELS = (Level("fancy", ("avx2", "fma")), Level("plain", ()))


def build(path: Path, cache: Path, **more: Any) -> Path:
    plan = scale_plan(LEVELS)
    objects = [scale_object(0), scale_object(1, factor=10)]
    write_package(
        plan, objects, scale_weights(), scale_metadata(plan), path,
        vectors=scale_vectors(), cache=Cache(cache), **more,
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("packages")
    return build(directory / "scale.cuvil", directory / "cache")


@pytest.fixture
def cuvil(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RUNTIME))
    return pytest.importorskip("cuvil")


def test_a_flipped_bit_of_a_weight_is_found(tmp_path: Path, cuvil: Any) -> None:
    package = build(tmp_path / "scale.cuvil", tmp_path / "cache")
    file = package / "model.so"
    data = bytearray(file.read_bytes())
    data[data.index(np.array([1, 2, 3, 4], "<f4").tobytes())] ^= 1
    file.write_bytes(data)
    with pytest.raises(cuvil.CuvilError, match="corrupt model.so"):
        cuvil.load(package, check=True)
    with pytest.raises(CuvilError, match="CUV523"):
        read_package(package, check=True)


@pytest.mark.parametrize("rows", [1, 2, 64])
@pytest.mark.parametrize("level", ["plain", None])
def test_the_runtime_runs_what_was_packed(
    package: Path, cuvil: Any, rows: int, level: str | None
) -> None:
    model = cuvil.load(package, check=True, level=level, threads=2)
    x = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    [y] = model.run({"x": x}).values()
    scaled = x * np.array([1, 2, 3, 4], np.float32)
    assert any(np.array_equal(y, scaled * f) for f in ((10,) if level else (1, 10)))


def test_a_model_without_kernels(tmp_path: Path, cuvil: Any) -> None:
    plan = scale_plan()
    plan.kernels, plan.steps = [], [Step(StepKind.COPY, buffers=(0, 2), name="copy")]
    write_package(plan, [], scale_weights(), scale_metadata(plan), tmp_path / "a.cuvil")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(cuvil.load(tmp_path / "a.cuvil").run({"x": x})["y"], x)


def test_a_size_that_only_the_run_knows(tmp_path: Path, cuvil: Any) -> None:
    write_package(pick_plan(), [pick_object()], {}, pick_metadata(), tmp_path / "a.cuvil")
    model = cuvil.load(tmp_path / "a.cuvil")
    for size in (5, 900, 0, 7):
        x = np.arange(size) % 3
        np.testing.assert_array_equal(model(x), np.flatnonzero(x))
    with pytest.raises(cuvil.CuvilError, match=r"`count` is 1001, must be 0..1000"):
        model(np.ones(1001, np.int64))


def test_ranges_reach_the_runtime(package: Path, cuvil: Any) -> None:
    model = cuvil.load(package)
    with pytest.raises(Exception, match=r"64"):
        model.run({"x": np.zeros((65, 4), np.float32)})
    assert model.metadata["inputs"][0]["dims"] == ["n", 4]


def test_the_library_needs_the_c_library_alone(package: Path) -> None:
    output = subprocess.run(
        ["readelf", "-dV", str(package / "model.so")], check=True, capture_output=True, text=True
    ).stdout
    needed = {line.split("[")[1][:-1] for line in output.splitlines() if "(NEEDED)" in line}
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    assert "TEXTREL" not in output


APP = """
#include <stdio.h>
#include "cuvil.h"

int main(void)
{
    cuvil_model *model;
    if (cuvil_open(NULL, &model))
        return 1;
    printf("%d inputs\\n", cuvil_input_count(model));
    cuvil_close(model);
    return 0;
}
"""


def test_a_program_linked_with_a_model_starts_anywhere(package: Path, tmp_path: Path) -> None:
    """Built by the lines of the C example's README, then moved."""
    place, moved = tmp_path / "app", tmp_path / "moved"
    place.mkdir()
    (place / "app.c").write_text(APP)
    shutil.copytree(package, place / "NAME.cuvil")
    readme = (RUNTIME.parent / "examples" / "c" / "README.md").read_text()
    lines = [x for x in readme.splitlines() if x.endswith("-o app") or x.startswith("cp ")]
    script = " && ".join(lines).replace("../../runtime", str(RUNTIME))
    subprocess.run(script, shell=True, cwd=place, check=True)
    shutil.rmtree(place / "NAME.cuvil")
    place.rename(moved)
    assert len(lines) == 2
    assert subprocess.check_output([moved / "app"], cwd="/", text=True) == "1 inputs\n"


def test_packages_for_another_machine_link(tmp_path: Path) -> None:
    """With a compiler for another target all but running is the same. Skipped where none is."""
    pytest.importorskip("ziglang")
    command = (sys.executable, "-m", "ziglang", "cc")
    toolchain = Toolchain(command, "zig", "aarch64-linux-gnu", "2.17")
    plan, source = scale_plan(), "int scale__L0(void) { return 0; }"
    unit = tmp_path / "unit.c"
    unit.write_text(source)
    kernel = tmp_path / "unit.o"
    subprocess.run([*toolchain.arguments, "-fPIC", "-c", str(unit), "-o", str(kernel)], check=True)
    metadata = write_package(
        plan, [kernel], scale_weights(), scale_metadata(plan), tmp_path / "a.cuvil",
        toolchain=toolchain, runtime=find_runtime(),
    )  # fmt: skip
    assert metadata["target"]["min_glibc"] == "2.17"
