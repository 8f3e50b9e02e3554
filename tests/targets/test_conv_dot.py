"""Convolutions of bytes of every geometry agree with the interpreter, on every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.types import TensorType
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import conv_dot, depthwise, depthwise_dot
from tests.targets.kernel_harness import V4, check, compare, program_of, random_feeds
from tests.targets.samples import VNNI, needs, on_dot_chips

H, W, B = symbol("h"), symbol("w"), symbol("b")
BLOCKS = "NCHW16c"


def attributes(groups: int, strides: Any, pads: Any, dilations: Any) -> dict[str, Any]:
    return {
        "strides": strides, "pads_begin": pads[:2], "pads_end": pads[2:], "dilations": dilations,
        "groups": groups, "out_layout": BLOCKS,
    }  # fmt: skip


def conv(
    x: Any, w: Any, strides: Any = (1, 1), pads: Any = (1, 1, 1, 1), dilations: Any = (1, 1),
    groups: int = 1, layout: str = BLOCKS,
) -> Any:  # fmt: skip
    """A quantised layer: what lies beyond the edge is an operand."""
    attrs = attributes(groups, strides, pads, dilations)

    def body(x: Any, w: Any, outside: Any, scale: Any) -> Any:
        total = ir.build("ai.conv_integer", x, w, outside, centred=False, **attrs)
        y = ir.build("ai.elemwise_mul", ir.build("ai.cast", total, dtype="float32"), scale)
        return total, ir.build("ai.quantize_linear", y, ir.full(9.0), ir.full(3, (), "uint8"))

    types = [
        TensorType(x, "uint8", layout), TensorType(w, "int8", "dot0_32x4"),
        TensorType((), "uint8"), TensorType((w[0], 1, 1)),
    ]  # fmt: skip
    return program_of(types, body)


GEOMETRIES = {
    "first layer": ((1, 3, 30, 30), (20, 3, 7, 7), (2, 2), (3, 3, 3, 3)),
    "four planes": ((1, 4, 5, 40), (16, 4, 3, 3)),
    "one plane": ((2, 1, 5, 33), (16, 1, 3, 3)),
    "3x3": ((2, 32, 9, 9), (40, 32, 3, 3)),
    "short rows": ((1, 64, 7, 7), (64, 64, 3, 3)),
    "odd channels": ((1, 20, 7, 5), (33, 20, 3, 3), (2, 1), (0, 2, 1, 3)),
    "one tap": ((1, 48, 14, 30), (32, 48, 1, 1), (1, 1), (0, 0, 0, 0)),
    "one tap, channels of a half block": ((1, 20, 9, 14), (9, 20, 1, 1), (1, 1), (0, 0, 0, 0)),
    "one tap, strides": ((2, 16, 15, 14), (32, 16, 1, 1), (2, 2), (0, 0, 0, 0)),
    "one tap, padded": ((1, 16, 5, 4), (32, 16, 1, 1), (1, 1), (1, 0, 0, 2)),
    "one tap, padded at the end": ((1, 16, 5, 4), (32, 16, 1, 1), (1, 2), (0, 0, 1, 2)),
    "dilated": ((1, 16, 15, 14), (32, 16, 3, 3), (1, 1), (2, 2, 2, 2), (2, 2)),
    "groups": ((1, 64, 8, 28), (64, 32, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "groups of a block and a half": (
        (1, 96, 5, 9), (96, 48, 3, 3), (2, 1), (1, 1, 1, 1), (1, 1), 2,
    ),
    "four blocks": ((1, 64, 3, 5), (64, 16, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 4),
    "large, one tap with padding": ((1, 16, 40, 8), (288, 16, 1, 1), (1, 1), (0, 0, 0, 1)),
    "narrower than its window": ((1, 21, 8, 3), (7, 21, 5, 3)),
    "a line": ((1, 5, 1, 40), (7, 5, 1, 3), (1, 1), (0, 1, 0, 0)),
    "a line turned": ((2, 48, 1, 61), (40, 48, 1, 3), (1, 2), (0, 1, 0, 2)),
    "a long line": ((1, 16, 1, 700), (64, 16, 1, 5), (1, 1), (0, 2, 0, 2), (1, 1)),
    "a dilated line": ((1, 32, 1, 50), (20, 32, 1, 4), (1, 3), (0, 4, 0, 1), (1, 2)),
    "a line in groups": ((1, 64, 1, 33), (96, 32, 1, 8), (1, 1), (0, 4, 0, 3), (1, 1), 2),
}  # fmt: skip


@on_dot_chips
@pytest.mark.parametrize("layout", [BLOCKS, ""], ids=["blocked", "plain"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometry(geometry: str, layout: str, chip: Any) -> None:
    check(conv(*GEOMETRIES[geometry], layout=layout), chip, conv_dot.schedule)


def layer(
    x: Any, w: Any, strides: Any, pads: Any, dtype: str, zero: int, added: bool, groups: int = 1
) -> Any:
    """A whole layer: biases, scales a channel, levels of `dtype`; `added`: to such levels of
    another layer.
    """
    attrs = attributes(groups, strides, pads, (1, 1))
    packed = "dot0_32x4" if groups == 1 else "pack0_16"
    result = TensorType((x[0], w[0], *x[2:]), "uint8", BLOCKS)
    types = [
        TensorType(x, "uint8", BLOCKS), TensorType(w, "int8", packed),
        TensorType((w[0], 1, 1), "int32"), TensorType((w[0], 1, 1)), *[result] * added,
    ]  # fmt: skip

    def body(x: Any, w: Any, bias: Any, scale: Any, *other: Any) -> Any:
        outside, point = ir.full(0, (), "uint8"), ir.full(zero, (), dtype)
        total = ir.build("ai.conv_integer", x, w, outside, centred=groups > 1, **attrs)
        total = ir.build("ai.elemwise_add", total, bias)
        y = ir.build("ai.elemwise_mul", ir.build("ai.cast", total, dtype="float32"), scale)
        y = ir.build("ai.elemwise_mul", y, ir.full(3e-2))
        y = ir.build("ai.quantize_linear", y, ir.full(1.0), point)
        for levels in other:
            y = ir.build("ai.dequantize_linear", y, ir.full(0.5), point)
            y = ir.build("ai.elemwise_add", y, ir.build("ai.cast", levels, dtype="float32"))
            y = ir.build("ai.quantize_linear", y, ir.full(1.5), point)
        return y

    return program_of(types, body)


LAYERS = {
    "rows": ((2, 32, 9, 21), (48, 32, 3, 3), (1, 1), (1, 1, 1, 1)),
    "tiles of rows": ((1, 16, 7, 7), (32, 16, 1, 1), (1, 1), (0, 0, 0, 0)),
    "pixels that are left": ((1, 16, 5, 5), (16, 16, 3, 3), (1, 1), (1, 1, 1, 1)),
    "narrow": ((1, 16, 9, 3), (32, 16, 3, 3), (1, 1), (1, 1, 1, 1)),
    "long sums": ((1, 272, 3, 14), (32, 272, 1, 1), (1, 1), (0, 0, 0, 0)),
    "odd channels": ((1, 16, 5, 9), (20, 16, 3, 3), (1, 1), (1, 1, 1, 1)),
    "channels alone": ((1, 32, 7, 15), (32, 1, 3, 3), (1, 1), (1, 1, 1, 1)),
}


@on_dot_chips
@pytest.mark.parametrize("added", [False, True], ids=["", "added"])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 255), ("int8", -128)])
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str, dtype: str, zero: int, added: bool, chip: Any) -> None:
    alone = name == "channels alone"
    groups = 32 if alone else 1
    program = layer(*LAYERS[name], dtype, zero, added, groups)
    feeds = random_feeds(program)
    feeds["x2"] = np.random.default_rng(1).integers(-(2**31), 2**31, feeds["x2"].shape, np.int32)
    feeds["x2"] >>= np.arange(len(feeds["x2"]), dtype=np.int32).reshape(-1, 1, 1) % 31
    schedule = conv_dot.schedule
    if alone:
        schedule = depthwise_dot.schedule if chip is VNNI else depthwise.schedule
    compare(program, feeds, chip, schedule)


@on_dot_chips
def test_symbolic(chip: Any) -> None:
    sizes = [{"b": b, "h": h, "w": w} for b, h, w in ((1, 1, 1), (2, 7, 30), (1, 16, 15))]
    check(conv((B, 32, H, W), (40, 32, 3, 3)), chip, conv_dot.schedule, sizes)
    program = conv((1, 3, H, W), (40, 3, 3, 3), strides=(2, 2), layout="")
    check(program, chip, conv_dot.schedule, sizes)
    program = conv((1, 32, H, W), (40, 32, 1, 1), pads=(0, 0, 0, 0))
    check(program, chip, conv_dot.schedule, sizes)
    line = conv((B, 32, 1, W), (40, 32, 1, 3), strides=(1, 2), pads=(0, 1, 0, 1))
    check(line, chip, conv_dot.schedule, sizes)


def alone(
    x: Any, kernel: Any, dtypes: tuple[str, str], points: int | None = None, strides: Any = (1, 1),
    pads: Any = (1, 1, 1, 1), zero: Any = "input",
) -> Any:  # fmt: skip
    """A depthwise convolution, centred; `points`: as many zero points of the weights, or one;
    `zero`: x's zero point, where it is none of the inputs.
    """
    attrs = attributes(x[1], strides, pads, (1, 1))
    types = [
        TensorType(x, dtypes[0], BLOCKS), TensorType((x[1], 1, *kernel), dtypes[1], "pack0_16"),
    ]  # fmt: skip
    if zero == "input":
        types.append(TensorType((), dtypes[0]))
    if points is not None:
        types.append(TensorType((points,) if points else (), dtypes[1]))

    def body(*operands: Any) -> Any:
        more = [ir.full(zero, (), dtypes[0])] if isinstance(zero, int) else []
        total = ir.build("ai.conv_integer", *operands, *more, **attrs)
        y = ir.build("ai.cast", total, dtype="float32")
        return total, ir.build("ai.quantize_linear", y, ir.full(99.0), ir.full(3, (), "uint8"))

    return program_of(types, body)


@on_dot_chips
def test_depthwise(chip: Any) -> None:
    for program in (
        alone((1, 32, 9, 20), (3, 3), ("uint8", "int8")),
        alone((2, 20, 9, 9), (3, 3), ("int8", "uint8"), 20, (2, 2)),
        alone((1, 5, 9, 30), (5, 5), ("uint8", "uint8"), 0, pads=(2, 2, 2, 2)),
    ):
        check(program, chip, depthwise.schedule)


ALONE = {
    "3x3": ((2, 32, 9, 20), (3, 3)),
    "a row that is left": ((1, 48, 7, 7), (3, 3)),
    "stride 2": ((1, 20, 9, 31), (3, 3), (2, 2)),
    "stride 2 from a pad of 0": ((1, 16, 8, 14), (3, 3), (2, 2), (0, 0, 1, 1)),
    "5x5": ((1, 5, 9, 30), (5, 5), (1, 1), (2, 2, 2, 2)),
    "7x7, little input": ((1, 16, 3, 4), (7, 7), (1, 1), (3, 3, 3, 3)),
    "no padding": ((1, 16, 6, 12), (2, 3), (1, 1), (0, 0, 0, 0)),
    "a line": ((1, 16, 1, 40), (1, 3), (1, 3), (0, 1, 0, 0)),
    "any batch": ((B, 40, 9, 10), (3, 3)),
}


@needs(VNNI)
@pytest.mark.parametrize("zero", [None, 0, 5, "input"])
@pytest.mark.parametrize("geometry", ALONE)
def test_depthwise_in_groups(geometry: str, zero: Any) -> None:
    x, kernel, *more = ALONE[geometry]
    program = alone(x, kernel, ("uint8", "int8"), None, *more, zero=zero)
    sizes = [{"b": b} for b in (1, 3)] if B in x else [{}]
    check(program, VNNI, depthwise_dot.schedule, sizes)


def test_refusals() -> None:
    dilated = conv((1, 6, 9, 9), (8, 6, 3, 3), dilations=(1, 2))
    groups = conv((1, 8, 9, 9), (8, 4, 3, 3), groups=2)
    for program in (dilated, groups, alone((1, 16, 5, 5), (3, 3), ("uint8", "int8"))):
        with pytest.raises(Miss):
            check(program, V4, conv_dot.schedule)
