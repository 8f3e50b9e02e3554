"""Depthwise convolutions of every geometry agree with the interpreter."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import ceildiv, symbol
from cuvilc.dialect.types import TensorType
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules.conv_rows import cut_rows
from cuvilc.targets.schedules.depthwise import schedule
from tests.targets.kernel_harness import V3, V4, check, program_of
from tests.targets.samples import on_chips

H, W = symbol("h"), symbol("w")


@pytest.mark.parametrize("channels", [16, 37, 48, 96, 240, 1000])
@pytest.mark.parametrize("chip", [V3, V4], ids=lambda c: c.name)
def test_few_tasks_are_an_even_number(channels, chip):
    """One alone aside, and where neither rows nor blocks can be cut so."""
    for size in (1, 2, 7, 14, 28, 35, 56, 112, 113, 300):
        rows, blocks = cut_rows(size, size, 9, chip, channels)
        tasks = ceildiv(size, rows) * ceildiv(ceildiv(channels, 16), blocks)
        assert rows >= 1
        assert blocks >= 1
        assert tasks == 1 or tasks % 2 == 0 or tasks > 8 or size == 1, (size, tasks)


def depthwise(
    x: Any, kernel: Any = (3, 3), strides: Any = (1, 1), pads: Any = (1, 1, 1, 1),
    dilations: Any = (1, 1), multiplier: int = 1, tail: Any = ("ai.relu",),
) -> Any:  # fmt: skip
    half = len(pads) // 2
    layout = "NCHW16c" if len(kernel) == 2 else "NCW16c"
    attrs = {
        "strides": strides, "pads_begin": pads[:half], "pads_end": pads[half:],
        "dilations": dilations, "groups": x[1], "out_layout": layout,
    }  # fmt: skip
    outputs = x[1] * multiplier
    types = [
        TensorType(x, layout=layout),
        TensorType((outputs, 1, *kernel), layout="pack0_16"),
        TensorType((outputs,)),
    ]

    def body(x: Any, w: Any, bias: Any) -> Any:
        value = ir.build("ai.conv", x, w, bias, **attrs)
        for name in tail:
            value = ir.build(name, value)
        return value

    return program_of(types, body)


@on_chips
@pytest.mark.parametrize("channels", [2, 16, 17, 24, 30, 48])
def test_channels(channels: int, chip: Any) -> None:
    check(depthwise((3, channels, 7, 19)), chip, schedule)


@on_chips
@pytest.mark.parametrize(("size", "kernel"), [(49, 31), (12, 31), (100, 15), (20, 64)])
def test_long_windows(size: int, kernel: int, chip: Any) -> None:
    """A pixel has one tap more, and one less, than the one beside it."""
    pads = (0, kernel // 2, 0, (kernel - 1) // 2)
    check(depthwise((2, 20, 2, size), (1, kernel), pads=pads), chip, schedule)


@on_chips
@pytest.mark.parametrize("strides", [(1, 1), (1, 2)])
@pytest.mark.parametrize("sizes", [(2, 9), (3, 5), (23, 9), (41, 112)])
def test_rows_in_pairs(sizes: Any, strides: Any, chip: Any) -> None:
    for kernel, pads in (((3, 3), (1, 1, 1, 1)), ((2, 3), (0, 1, 0, 0)), ((3, 1), (2, 0, 0, 0))):
        check(depthwise((1, 20, *sizes), kernel, strides, pads), chip, schedule)


@on_chips
@pytest.mark.parametrize(
    "geometry",
    [
        {},
        {"strides": (2, 2)},
        {"strides": (2, 2), "pads": (0, 0, 1, 1)},
        {"dilations": (2, 2), "pads": (2, 2, 2, 2)},
        {"kernel": (5, 5), "pads": (2, 2, 2, 2)},
        {"kernel": (7, 7), "pads": (3, 3, 3, 3), "tail": ("ai.silu",)},
        {"kernel": (1, 3), "strides": (1, 3), "pads": (0, 2, 0, 1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(13, 31), (H, W)], ids=["static", "symbolic"])
def test_geometries(size: Any, geometry: Any, chip: Any) -> None:
    sizes = [{"h": h, "w": w} for h, w in ((13, 31), (9, 10), (8, 60), (7, 7))]
    check(depthwise((2, 40, *size), **geometry), chip, schedule, sizes)


@on_chips
@pytest.mark.parametrize("size", [1, 7, 14, 28, 56])
def test_sizes(size: int, chip: Any) -> None:
    check(depthwise((1, 16, size, size)), chip, schedule)


@on_chips
def test_one_dimension(chip: Any) -> None:
    check(depthwise((2, 20, 50), (5,), (1,), (4, 0), (1,)), chip, schedule)


def test_refusals() -> None:
    with pytest.raises(Miss):
        check(depthwise((1, 16, 5, 5), multiplier=2), V4, schedule)
