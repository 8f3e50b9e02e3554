"""Pools and global means on channel-blocked activations agree with the interpreter."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.types import TensorType
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules.pool import schedule
from tests.targets.kernel_harness import V4, check, program_of
from tests.targets.samples import on_chips

H, W = symbol("h"), symbol("w")
SIZES = [{"h": h, "w": w} for h, w in ((13, 31), (9, 10), (8, 60), (7, 7))]


def pool(
    name: str, x: Any, kernel: Any = (3, 3), strides: Any = (2, 2), pads: Any = (1, 1, 1, 1),
    dilations: Any = (1, 1), layout: str = "NCHW16c", **attrs: Any,
) -> Any:  # fmt: skip
    half = len(pads) // 2
    attrs |= {
        "kernel": kernel, "strides": strides, "pads_begin": pads[:half],
        "pads_end": pads[half:], "dilations": dilations,
    }  # fmt: skip

    def body(x: Any) -> Any:
        return ir.build("ai.leaky_relu", ir.build(name, x, **attrs))

    return program_of([TensorType(x, layout=layout)], body)


GEOMETRIES = [
    {},
    {"kernel": (2, 2), "pads": (0, 0, 0, 0)},
    {"kernel": (2, 2), "pads": (0, 0, 0, 0), "ceil_mode": True},
    {"kernel": (5, 5), "strides": (1, 1), "pads": (2, 2, 2, 2)},
    {"kernel": (3, 4), "strides": (2, 3), "pads": (1, 2, 1, 0), "ceil_mode": True},
    {"dilations": (2, 1), "pads": (2, 0, 1, 1)},
]
GEOMETRY = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
SIZE = pytest.mark.parametrize("size", [(13, 31), (H, W)], ids=["static", "symbolic"])


@on_chips
@GEOMETRY
@SIZE
def test_max(size: Any, geometry: Any, chip: Any) -> None:
    check(pool("ai.max_pool", (2, 24, *size), **geometry), chip, schedule, SIZES)


@on_chips
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@GEOMETRY
@SIZE
def test_max_of_bytes(size: Any, geometry: Any, dtype: str, chip: Any) -> None:
    attrs = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    attrs |= geometry
    pads = attrs.pop("pads")
    attrs |= {"pads_begin": pads[:2], "pads_end": pads[2:]}
    x = TensorType((2, 24, *size), dtype, "NCHW16c")
    program = program_of([x], lambda x: ir.build("ai.max_pool", x, **attrs))
    check(program, chip, schedule, SIZES)


@on_chips
@pytest.mark.parametrize("include", [False, True])
@GEOMETRY
@SIZE
def test_average(size: Any, geometry: Any, include: bool, chip: Any) -> None:
    program = pool("ai.avg_pool", (2, 24, *size), count_include_pad=include, **geometry)
    check(program, chip, schedule, SIZES)


@on_chips
def test_one_dimension(chip: Any) -> None:
    program = pool("ai.max_pool", (2, 20, 50), (3,), (2,), (1, 0), (1,), "NCW16c")
    check(program, chip, schedule)


@on_chips
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("channels", [1, 16, 30, 48])
@SIZE
def test_global_mean(size: Any, channels: int, keepdims: bool, chip: Any) -> None:
    def body(x: Any) -> Any:
        return ir.build("ai.relu", ir.build("ai.reduce_mean", x, axes=(2, 3), keepdims=keepdims))

    program = program_of([TensorType((3, channels, *size), layout="NCHW16c")], body)
    check(program, chip, schedule, [*SIZES, {"h": 1, "w": 1}])


def test_refusals() -> None:
    with pytest.raises(Miss):
        check(pool("ai.max_pool", (1, 16, 9, 9), layout=""), V4, schedule)
