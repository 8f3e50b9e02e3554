"""Functions that kernels share are compiled once, and found in the cache again."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.ir import Program
from cuvilc.dialect.passes import fuse, outline_kernels
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import TensorType
from cuvilc.dialect.winograd import weight_points
from cuvilc.package.cache import Cache
from cuvilc.targets import kernels
from cuvilc.targets.chip import Chip
from tests.targets.kernel_harness import V3, V4

ATTRS = {
    "tile": (4, 4), "strides": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1),
    "out_layout": "NCHW16c",
}  # fmt: skip


@pytest.fixture
def program() -> Program:
    """Two layers that differ in size, each a kernel."""
    return layers((16, 8), (32, 16))


def layers(*sizes: tuple[int, int]) -> Program:
    """Convolutions of (channels, size)."""
    program = Program.create("layers")
    types = []
    for channels, size in sizes:
        types.append(TensorType((1, channels, size, size), layout="NCHW16c"))
        weights = (channels, prod(weight_points((4, 4))), channels)
        types.append(TensorType(weights, layout="pack0_32"))
    with program:
        names = tuple(f"x{n}" for n in range(len(types)))
        block = ir.define_function(program, "main", types, input_names=names)
        x = block.arguments
        with ir.at_end(block):
            pairs = zip(x[::2], x[1::2], strict=True)
            made = [ir.build("ai.conv_winograd", *pair, **ATTRS) for pair in pairs]
        ir.finish_function(block, made)
        outputs = tuple(f"y{n}" for n in range(len(made)))
        program.function("main").attributes["output_names"] = ir.write_attr(outputs)
    for each in (fuse, outline_kernels):
        each.run(program, PassContext())
    return program


def compiled(
    program: Program, cache: Cache, chips: Sequence[Chip] = (V4,)
) -> dict[str, kernels.Kernel]:
    return kernels.compile_kernels(program, chips, cache, 2)


def code(made: dict[str, kernels.Kernel]) -> list[tuple[list[bytes], dict[str, bytes]]]:
    return [(kernel.objects, kernel.parts) for kernel in made.values()]


def test_kernels_share_parts(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not depend on a layer's sizes is one object."""
    compiled_symbols = []
    compile_one = kernels._compile

    def noted(function: Any, chip: Any, path: Path, *rest: Any) -> bytes:
        compiled_symbols.append(path.stem)
        return compile_one(function, chip, path, *rest)

    monkeypatch.setattr(kernels, "_compile", noted)
    first, second = compiled(program, Cache(tmp_path)).values()
    shared = first.parts.keys() & second.parts.keys()
    assert {
        "part_winograd_inputs_4_4_1_1_x86_64_v4",
        "part_winograd_results_4_4_1_1_x86_64_v4",
    } <= shared
    assert len(compiled_symbols) == len(set(compiled_symbols))
    assert set(compiled_symbols) == first.parts.keys() | second.parts.keys()


def test_layers_share_all_their_code(tmp_path: Path) -> None:
    """Layers that differ in sizes only are one function; the launch passes the sizes, and of parts
    that differ the numbers. From the cache too.
    """
    program = layers((32, 8), (64, 16), (96, 7))
    cache = Cache(tmp_path)
    for _ in range(2):
        made = list(compiled(program, cache, [V4, V3]).values())
        facts = [kernel.facts for kernel in made]
        assert len({kernel.codes for kernel in made}) == 1
        assert len(set(made[0].codes)) == len(made[0].codes) == 2
        assert not any(kernel.objects for kernel in made)
        assert len({f.scalars for f in facts}) == len(made)
        for kernel, f in zip(made, facts, strict=True):
            assert {*kernel.codes, *f.numbered()} == kernel.parts.keys()
        assert len({symbol for f in facts for symbol in f.numbered()}) > len(facts[0].numbered())
    assert all(kernel.cached for kernel in made)


def test_parts_are_cached(program: Program, tmp_path: Path) -> None:
    """A full cache gives the same code; a part that is missing is made again."""
    cache = Cache(tmp_path)
    made = compiled(program, cache)
    again = compiled(program, cache)
    assert code(again) == code(made)
    assert all(kernel.cached for kernel in again.values())
    lost = cache._path(kernels._part_key("part_winograd_inputs_4_4_1_1_x86_64_v4", V4))
    lost.unlink()
    repaired = compiled(program, cache)
    assert [kernel.cached for kernel in repaired.values()] == [False, True]
    assert code(repaired) == code(made)
    assert lost.exists()
