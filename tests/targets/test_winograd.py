"""Convolutions by Winograd's filtering agree with the interpreter, whatever the sizes."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import evaluate, floordiv, symbol
from cuvilc.dialect.types import TensorType
from cuvilc.dialect.winograd import MATRICES, SHAPES, STRIDES, TILES, weight_points, window_of
from cuvilc.targets import x86
from cuvilc.targets.region import Miss, Region
from cuvilc.targets.schedules import SCHEDULES
from cuvilc.targets.schedules.winograd import schedule
from cuvilc.targets.schedules.winograd_transforms import combine
from cuvilc.targets.schedules.winograd_weights import schedule as weights_schedule
from tests.targets.kernel_harness import (
    V2,
    V4,
    Kernel,
    Launch,
    agrees,
    check,
    program_of,
    random_feeds,
)
from tests.targets.samples import on_chips

H, W, N = symbol("h"), symbol("w"), symbol("n")
BLOCKED = "NCHW16c"
on_tiles = pytest.mark.parametrize("tile", SHAPES)
on_squares = pytest.mark.parametrize("tile", [(t, t) for t in TILES])
LINES = [tile for tile in SHAPES if 1 in tile]
on_strided = pytest.mark.parametrize(
    ("tile", "strides"),
    [
        ((2, 2), (1, 1)), ((2, 2), (2, 2)), ((4, 4), (1, 1)), ((4, 4), (2, 2)), ((4, 4), (1, 2)),
        ((1, 2), (1, 1)), ((1, 4), (1, 1)), ((1, 4), (2, 2)), ((2, 1), (1, 1)), ((2, 1), (2, 1)),
        ((4, 1), (1, 1)),
    ],
)  # fmt: skip


def conv(
    x: Any, outputs: int, tile: Any, pads: Any = (1, 1, 1, 1), layout: str = BLOCKED,
    tail: Any = None, residual: bool = False, strides: Any = (1, 1), stack: int = 1,
    stack_step: int = 1,
) -> Any:  # fmt: skip
    """A program of one convolution with bias, then an addition, then `tail`, unary operations."""
    attrs = {
        "tile": tile, "strides": strides, "pads_begin": pads[:2], "pads_end": pads[2:],
        "out_layout": BLOCKED, "stack": stack, "stack_step": stack_step,
    }  # fmt: skip
    size = tuple(
        floordiv(n + pads[i] + pads[i + 2] - w, stride) + 1
        for i, (n, w, stride) in enumerate(zip(x[2:], window_of(tile), strides, strict=True))
    )
    types = [
        TensorType(x, layout=layout),
        TensorType((outputs, prod(weight_points(tile)), x[1] * stack), layout="pack0_32"),
        TensorType((outputs,)),
        *[TensorType((x[0], outputs, *size), layout=BLOCKED)] * residual,
    ]

    def body(x: Any, u: Any, bias: Any, *more: Any) -> Any:
        value = ir.build("ai.conv_winograd", x, u, bias, **attrs)
        for other in more:
            value = ir.build("ai.elemwise_add", value, other)
        for name in tail or ():
            value = ir.build(name, value)
        return value

    return program_of(types, body)


@pytest.mark.parametrize("outputs", [32, 40], ids=["shared", "own"])
def test_after_sizes_of_another_level(outputs: int) -> None:
    """What a launch passes for another level, numbers and sizes twice too, is passed over."""

    def second(region: Region, chip: Any, name: str) -> Any:
        return schedule(replace(region, scalars=(5, 5, N, N, symbol("h") * 2)), chip, name)

    kernel = check(
        conv((N, 16, H, 9), outputs, (4, 4), tail=["ai.relu"]), V4, second, [{"n": 2, "h": 6}]
    )
    assert kernel.scheduled.facts.scalars[:5] == (5, 5, N, N, symbol("h") * 2)


@on_chips
@on_squares
@pytest.mark.parametrize("outputs", [1, 16, 30, 48, 70])
@pytest.mark.parametrize("inputs", [1, 17, 32, 45])
def test_channels(inputs: int, outputs: int, tile: Any, chip: Any) -> None:
    check(conv((1, inputs, 5, 9), outputs, tile, tail=["ai.relu"]), chip, schedule)


@on_chips
@pytest.mark.parametrize("tile", LINES)
@pytest.mark.parametrize("outputs", [8, 24, 40, 61, 64])
def test_lines(outputs: int, tile: Any, chip: Any) -> None:
    """Windows of 3 taps along one axis: all lengths up to two tiles and a bit, odd channels, pads
    that differ, several images, and an epilogue.
    """
    pads = (1, 2, 2, 1) if tile[0] == 1 else (2, 0, 1, 1)
    for length in range(1, 10):
        size = (3, length) if tile[0] == 1 else (length, 3)
        program = conv((3, 17, *size), outputs, tile, pads, residual=True, tail=["ai.relu"])
        check(program, chip, schedule)


@on_chips
@on_strided
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (5, 5), (7, 7), (14, 14), (3, 29), (13, 60)])
def test_sizes(size: Any, strides: Any, tile: Any, chip: Any) -> None:
    check(conv((3, 20, *size), 40, tile, strides=strides), chip, schedule)


@on_chips
@on_strided
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (0, 1, 2, 3), (2, 2, 2, 2), (5, 0, 0, 6)])
@pytest.mark.parametrize("size", [(9, 14), (H, W)], ids=["static", "symbolic"])
def test_pads(size: Any, pads: Any, strides: Any, tile: Any, chip: Any) -> None:
    sizes = [{"h": h, "w": w} for h, w in ((9, 14), (3, 3), (8, 60), (40, 7))]
    check(conv((2, 18, *size), 36, tile, pads, strides=strides), chip, schedule, sizes)


@on_chips
@on_tiles
def test_batches(tile: Any, chip: Any) -> None:
    """Tiles of several images share a task; more tasks than one."""
    sizes = [{"n": n} for n in (1, 3, 40)]
    check(conv((N, 16, 7, 7), 48, tile, tail=["ai.relu"]), chip, schedule, sizes)
    check(conv((5, 16, 30, 31), 33, tile), chip, schedule)
    check(conv((N, 16, 14, 13), 33, tile, strides=(2, 2)), chip, schedule, sizes)


@pytest.mark.parametrize("chip", [V4, x86.CHIPS["x86-64-v3"], V2], ids=lambda c: c.name)
@on_tiles
@pytest.mark.parametrize("size", [(8, 8), (7, 9), (H, W)], ids=["whole", "odd", "symbolic"])
@pytest.mark.parametrize("outputs", [64, 72])
def test_epilogues(outputs: int, size: Any, tile: Any, chip: Any) -> None:
    """A residual addition and an activation, cheap enough to be unrolled and not."""
    sizes = [{"h": 8, "w": 8}, {"h": 5, "w": 3}]
    for tail in (["ai.relu"], ["ai.sigmoid", "ai.tanh"]):
        program = conv((2, 16, *size), outputs, tile, tail=tail, residual=True)
        check(program, chip, schedule, sizes)


@on_chips
@pytest.mark.parametrize("tile", [(4, 4), (1, 4)])
def test_input_transformed_once_a_call(tile: Any, chip: Any) -> None:
    """Tasks that differ in their output channels alone: also where a call begins among them."""
    kernel = check(conv((1, 64, 7, 7), 512, tile), chip, schedule)
    feeds = random_feeds(kernel.program)
    assert int(kernel.scheduled.facts.tasks) > 2
    agrees(kernel, feeds)


@pytest.mark.parametrize(("images", "stack", "stack_step"), [(5, 3, 1), (7, 2, 3), (N, 3, 2)])
@pytest.mark.parametrize("tile", [(4, 4), (1, 2)])
@on_chips
def test_stacks(tile: Any, images: Any, stack: int, stack_step: int, chip: Any) -> None:
    """Slices of a volume, of which a window sees several: where they lie, and overlapping."""
    pads = (1, 1, 1, 1) if tile == (4, 4) else (0, 1, 0, 1)
    program = conv((images, 32, 7, 9), 40, tile, pads, stack=stack, stack_step=stack_step)
    check(program, chip, schedule, [{"n": n} for n in (3, 6)])


def test_stacks_of_partial_blocks_are_a_miss() -> None:
    program = conv((3, 20, 7, 9), 16, (2, 2), stack=2)
    with program, pytest.raises(Miss, match="a stack of images of 20 channels"):
        schedule(Region.of(program, program.function("main")), V4, "stack")


@on_chips
@pytest.mark.parametrize("batch", [1, N], ids=["static", "symbolic"])
def test_small_layers_have_tasks(batch: Any, chip: Any) -> None:
    """Where its few output channels make no tasks of 10 us, a layer's rows do."""
    kernel = check(conv((batch, 48, 34, 16), 48, (4, 1)), chip, schedule, [{"n": 1}, {"n": 3}])
    tasks = kernel.scheduled.facts.tasks
    assert evaluate(tasks, {"n": 1}) == 4
    tiny = Kernel(conv((batch, 16, 9, 8), 16, (4, 1)), chip, schedule)
    assert evaluate(tiny.scheduled.facts.tasks, {"n": 1}) == 1


def test_row_major_input_is_a_miss() -> None:
    program = conv((1, 16, 8, 8), 32, (4, 4), layout="")
    with program, pytest.raises(Miss, match="row-major"):
        schedule(Region.of(program, program.function("main")), V4, "kernel")


def weights(outputs: int, channels: int, tile: Any, strides: Any = (1, 1)) -> Any:
    w = TensorType((outputs, channels, *window_of(tile)), layout="pack0_32")
    attrs = {"tile": tile, "strides": strides, "out_layout": "pack0_32"}
    return program_of([w], lambda w: ir.build("ai.winograd_weights", w, **attrs))


@on_chips
@on_strided
@pytest.mark.parametrize(("outputs", "channels"), [(1, 1), (32, 16), (70, 37), (128, 200)])
def test_weights(outputs: int, channels: int, strides: Any, tile: Any, chip: Any) -> None:
    check(weights(outputs, channels, tile, strides), chip, weights_schedule)


def test_weights_beyond_the_last_output_stay_zero() -> None:
    """A convolution multiplies the whole panel."""
    kernel = Kernel(weights(5, 3, (4, 4)), V4, weights_schedule)
    array = np.ones((5, 3, 3, 3), np.float32)
    launch = Launch(kernel, {"x0": array})
    launch(0, launch.tasks)
    assert not launch.buffers[1][..., 5:].any()


@pytest.mark.parametrize("tile", [1, *TILES])
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("part", ["output", "input", "weights"])
def test_transforms_are_the_matrices(part: str, stride: int, tile: int) -> None:
    """The sums that share terms are the rows of the matrices."""

    class Numbers:
        @staticmethod
        def let(value: Any) -> Any:
            return value

        @staticmethod
        def const(value: float, dtype: str) -> float:
            return value

    matrix = getattr(MATRICES[tile, stride], part)
    x = np.random.default_rng(0).standard_normal((len(matrix[0]), 9))
    found = combine(Numbers(), matrix, list(x))  # type: ignore[arg-type]
    np.testing.assert_allclose(found, np.asarray(matrix) @ x, rtol=1e-12, atol=1e-12)


def test_registered() -> None:
    names = [name for name, _ in SCHEDULES]
    assert names.index("winograd") < names.index("fallback")
    assert names.index("winograd-weights") < names.index("fallback")
