"""LLVM's options are the process's: compiling on several threads gives the code of one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tvm.target import Target

from cuvilc.targets import llvm
from cuvilc.targets.llvm_options import held
from cuvilc.targets.region import Region
from cuvilc.targets.schedules import winograd_weights
from tests.targets.kernel_harness import V4
from tests.targets.test_winograd import weights

PLAIN = Target({"kind": "llvm", "opt-level": 1, **V4.llvm})  # the same, without options


def function(tile: Any) -> Any:
    program = weights(64, 32, tile)
    with program:
        region = Region.of(program, program.function("main"))
        return winograd_weights.schedule(region, V4, "kernel").function


def compiled(code: Any, target: Target, path: Path) -> bytes:
    llvm.compile_object(code, target, str(path))
    return path.read_bytes()


def test_options_hold_for_everyone_until_the_last_ends(tmp_path: Path) -> None:
    code, path = function((4, 4)), tmp_path / "k.o"
    with_options = compiled(code, llvm.llvm_target(V4.llvm), path)
    without = compiled(code, PLAIN, path)
    assert without != with_options
    with held():
        assert compiled(code, PLAIN, path) == with_options
        with held():
            assert compiled(code, PLAIN, path) == with_options
        assert compiled(code, PLAIN, path) == with_options
    assert compiled(code, PLAIN, path) == without


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Of two kernels by turns: the shorter one ends while the longer is compiled."""
    codes, target = [function((2, 2)), function((4, 4))], llvm.llvm_target(V4.llvm)
    alone = [compiled(code, target, tmp_path / "k.o") for code in codes]

    def again(n: int) -> bool:
        return compiled(codes[n % 2], target, tmp_path / f"k{n}.o") == alone[n % 2]

    with held(), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(again, range(40)))
