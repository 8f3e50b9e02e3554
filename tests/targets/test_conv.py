"""Convolutions of every geometry agree with the interpreter."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import TensorType
from cuvilc.targets.region import Miss, Region
from cuvilc.targets.schedules.conv import schedule
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.gemm_plan import PANEL
from tests.targets.kernel_harness import CHIPS, V2, V4, Kernel, check, program_of, random_feeds
from tests.targets.samples import on_chips
from tests.tolerances import mismatch

H, W, N = symbol("h"), symbol("w"), symbol("n")
BLOCKED = "NCHW16c"


def test_passes_lay_out_what_schedules_read() -> None:
    """The dialect cannot import the targets, so the numbers stand in both."""
    context = PassContext()
    assert (context.panel, context.channel_block) == (PANEL, BLOCK)


def conv(
    x: Any, outputs: int, kernel: Any = (3, 3), strides: Any = (1, 1), pads: Any = (1, 1, 1, 1),
    dilations: Any = (1, 1), groups: int = 1, layout: str = BLOCKED, tail: Any = None,
    stack: int = 1, stack_step: int = 1,
) -> Any:  # fmt: skip
    """A program of one convolution with bias, then `tail`, a chain of unary operations."""
    half = len(pads) // 2
    attrs = {
        "strides": strides, "pads_begin": pads[:half], "pads_end": pads[half:],
        "dilations": dilations, "groups": groups,
        "out_layout": BLOCKED if len(kernel) == 2 else "NCW16c", "stack": stack,
        "stack_step": stack_step,
    }  # fmt: skip
    types = [
        TensorType(x, layout=layout),
        TensorType((outputs, x[1] * stack // groups, *kernel), layout="pack0_32"),
        TensorType((outputs,)),
    ]

    def body(x: Any, w: Any, bias: Any) -> Any:
        value = ir.build("ai.conv", x, w, bias, **attrs)
        for name in tail or ():
            value = ir.build(name, value)
        return value

    return program_of(types, body)


@on_chips
@pytest.mark.parametrize("outputs", [1, 3, 8, 9, 16, 24, 30, 32, 48, 56, 70])
@pytest.mark.parametrize("inputs", [1, 3, 17, 32])
def test_channels(inputs: int, outputs: int, chip: Any) -> None:
    check(conv((1, inputs, 5, 17), outputs, tail=["ai.relu"]), chip, schedule)


@on_chips
@pytest.mark.parametrize("size", [(1, 1), (3, 7), (7, 14), (2, 29), (5, 56), (9, 75)])
def test_sizes(size: Any, chip: Any) -> None:
    check(conv((3, 17, *size), 40), chip, schedule)


@on_chips
@pytest.mark.parametrize(
    "geometry",
    [
        {"strides": (2, 2)},
        {"strides": (2, 2), "pads": (0, 0, 1, 1)},
        {"strides": (1, 3), "pads": (0, 2, 1, 0)},
        {"dilations": (2, 2), "pads": (2, 2, 2, 2)},
        {"dilations": (1, 3), "pads": (0, 1, 0, 4)},
        {"kernel": (7, 7), "strides": (2, 2), "pads": (3, 3, 3, 3)},
        {"kernel": (1, 1), "strides": (2, 2), "pads": (0, 0, 0, 0)},
        {"kernel": (1, 1), "pads": (0, 0, 0, 0)},
        {"kernel": (1, 1), "pads": (1, 1, 1, 1)},
        {"kernel": (1, 1), "pads": (0, 0, 2, 1)},
        {"kernel": (1, 5), "pads": (0, 2, 0, 2)},
        {"kernel": (2, 2), "pads": (0, 0, 0, 0)},
        {"kernel": (5, 3), "pads": (4, 2, 4, 2)},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(13, 31), (H, W)], ids=["static", "symbolic"])
def test_geometries(size: Any, geometry: Any, chip: Any) -> None:
    sizes = [{"h": h, "w": w} for h, w in ((13, 31), (9, 10), (8, 60), (40, 7))]
    check(conv((2, 20, *size), 36, **geometry), chip, schedule, sizes)


@on_chips
@pytest.mark.parametrize("length", [430, W], ids=["static", "symbolic"])
def test_many_taps(length: Any, chip: Any) -> None:
    """Taps that not all pixels have are loops: the code does not grow with the kernel."""
    program = conv((1, 1, 1, length), 1, (1, 256), (1, 2), (0, 127, 0, 127), layout="")
    sizes = [{"w": w} for w in (430, 3, 40, 131)]
    kernel = check(program, chip, schedule, sizes)
    assert kernel.code_bytes < 8000


@on_chips
@pytest.mark.parametrize(
    ("size", "kernel", "pads"),
    [
        (49, 128, (64, 64)), (15, 40, (20, 19)), (16, 21, (3, 12)), (33, 35, (34, 40)),
        (200, 50, (49, 2)), (7, 60, (30, 30)),
    ],
)  # fmt: skip
def test_long_windows(size: int, kernel: int, pads: Any, chip: Any) -> None:
    """A pixel has one tap more, and one less, than the one beside it."""
    program = conv((2, 32, 1, size), 48, (1, kernel), pads=(0, pads[0], 0, pads[1]))
    made = check(program, chip, schedule)
    assert made.code_bytes < 40_000
    program = conv((1, 20, 3, size), 40, (2, kernel), pads=(1, pads[0], 1, pads[1]))
    check(program, chip, schedule)


@on_chips
@pytest.mark.parametrize(("images", "stack", "stack_step"), [(5, 3, 1), (7, 2, 3), (N, 3, 2)])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("channels", "layout"), [(32, BLOCKED), (5, "")])
def test_stacks(
    channels: int, layout: str, kernel: int, images: Any, stack: int, stack_step: int, chip: Any
) -> None:
    """Slices of a volume, of which a window sees several: where they lie, and overlapping."""
    program = conv(
        (images, channels, 6, 9), 40, (kernel, kernel), pads=(kernel // 2,) * 4, layout=layout,
        tail=["ai.relu"], stack=stack, stack_step=stack_step,
    )  # fmt: skip
    check(program, chip, schedule, [{"n": n} for n in (3, 6)])


def test_stacks_of_partial_blocks_are_a_miss() -> None:
    program = conv((3, 20, 7, 9), 16, stack=2)
    with program, pytest.raises(Miss, match="a stack of images of 20 channels"):
        schedule(Region.of(program, program.function("main")), V4, "stack")


@on_chips
@pytest.mark.parametrize("length", [3000, W], ids=["static", "symbolic"])
def test_tasks_share_a_long_row(length: Any, chip: Any) -> None:
    """The only row, of few channels: else one thread would have it all."""
    program = conv((1, 32, 1, length), 16, (1, 11), pads=(0, 5, 0, 3), tail=["ai.relu"])
    sizes = [{"w": w} for w in (3000, 4, 9, 40, 57, 300)]
    kernel = check(program, chip, schedule, sizes)
    if length == 3000:
        assert 4 < kernel.scheduled.facts.tasks < 64


@on_chips
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(
    ("kernel", "pads"), [(3, (1, 1)), (5, (2, 1)), (9, (8, 0)), (20, (19, 19)), (31, (0, 15))]
)
def test_open_rows(kernel: int, pads: Any, stride: int, chip: Any) -> None:
    """Also rows shorter than a tile, and such that a tile's windows begin beyond their end."""
    program = conv((1, 17, 2, W), 24, (1, kernel), (1, stride), pads=(0, pads[0], 0, pads[1]))
    lengths = [w for w in (1, 4, 13, 17, 31, 32, 58, 100) if w + sum(pads) >= kernel]
    check(program, chip, schedule, [{"w": w} for w in lengths])


@on_chips
@pytest.mark.parametrize("kernel", [3, 7])
def test_plain_input(kernel: int, chip: Any) -> None:
    pad = kernel // 2
    for size in ((20, 32), (H, W)):
        program = conv(
            (2, 3, *size), 64, (kernel, kernel), (2, 2), (pad,) * 4, layout="", tail=["ai.relu"]
        )
        check(program, chip, schedule, [{"h": 20, "w": 32}, {"h": 11, "w": 5}])


@on_chips
@pytest.mark.parametrize(
    ("groups", "channels", "outputs"), [(2, 32, 32), (2, 32, 64), (3, 48, 144)]
)
def test_groups(groups: int, channels: int, outputs: int, chip: Any) -> None:
    check(conv((2, channels, 6, 20), outputs, groups=groups), chip, schedule)


@pytest.mark.parametrize("chip", [*CHIPS, V2], ids=lambda c: c.name)
@pytest.mark.parametrize("outputs", [8, 24, 40, 48, 64, 80])
@pytest.mark.parametrize("size", [(7, 7), (H, W)], ids=["static", "symbolic"])
def test_pointwise(size: Any, outputs: int, chip: Any) -> None:
    program = conv((N, 40, *size), outputs, (1, 1), pads=(0, 0, 0, 0), tail=["ai.hard_sigmoid"])
    sizes = [{"n": 1, "h": 7, "w": 7}, {"n": 3, "h": 7, "w": 7}]
    sizes += [{"n": 2, "h": 1, "w": 3}, {"n": 1, "h": 9, "w": 13}] if size[0] == H else []
    check(program, chip, schedule, sizes)


@on_chips
def test_one_dimension(chip: Any) -> None:
    for length in (50, W):
        program = conv(
            (2, 20, length), 40, (5,), (1,), (2, 2), (1,), layout="NCW16c", tail=["ai.gelu"]
        )
        check(program, chip, schedule, [{"w": 50}])
    check(conv((2, 20, 50), 40, (1,), (1,), (0, 0), (1,), layout="NCW16c"), chip, schedule)


@on_chips
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("size", [(9, 15), (H, W)], ids=["static", "symbolic"])
def test_residual_and_several_results(size: Any, kernel: int, chip: Any) -> None:
    pads = (kernel // 2,) * 2

    def body(x: Any, w: Any, other: Any, scale: Any) -> Any:
        value = ir.build(
            "ai.conv", x, w, strides=(1, 1), pads_begin=pads, pads_end=pads, dilations=(1, 1),
            out_layout=BLOCKED,
        )  # fmt: skip
        added = ir.build("ai.elemwise_add", value, other)
        return added, ir.build("ai.relu", ir.build("ai.elemwise_mul", added, scale))

    types = [
        TensorType((2, 20, *size), layout=BLOCKED),
        TensorType((40, 20, kernel, kernel), layout="pack0_32"),
        TensorType((2, 40, *size), layout=BLOCKED),
        TensorType((1, 40, 1, 1)),
    ]
    check(program_of(types, body), chip, schedule, [{"h": 9, "w": 15}])


@on_chips
def test_results_of_other_dtypes(chip: Any) -> None:
    """What follows may convert: to a half, or to levels of a quantised layer."""
    attrs = {
        "strides": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1), "dilations": (1, 1),
        "out_layout": "NCHW16c",
    }  # fmt: skip

    def body(x: Any, w: Any) -> Any:
        y = ir.build("ai.conv", x, w, **attrs)
        levels = ir.build("ai.quantize_linear", y, ir.full(0.25), ir.full(100, (), "uint8"), axis=0)
        return ir.build("ai.cast", y, dtype="float16"), levels

    types = [
        TensorType((1, 16, 6, 20), layout="NCHW16c"),
        TensorType((24, 16, 3, 3), layout="pack0_32"),
    ]
    kernel = Kernel(program_of(types, body), chip, schedule)
    feeds = random_feeds(kernel.program)
    half, levels = kernel.run(feeds)
    wanted = list(interpret(kernel.program, feeds).values())
    assert not mismatch(half, wanted[0])
    assert not mismatch(levels, wanted[1], quantised=True)


def test_refusals() -> None:
    with pytest.raises(Miss):
        check(conv((1, 8, 5, 5), 8, groups=2), V4, schedule)
