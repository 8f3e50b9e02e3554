"""Convolutions of three axes and of small groups in the form that has a schedule: same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ir import Program, at_end, build, constant, define_function, finish_function
from cuvilc.dialect.passes import plan_convolutions
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import TensorType
from tests.tolerances import mismatch

N, D = symbol("n"), symbol("d")


def convolution(
    x: tuple[Any, ...], w: tuple[int, ...], groups: int = 1, bias: bool = True, **attrs: Any
) -> Program:
    """One convolution; attrs: strides, pads_begin, pads_end, dilations, where not the usual."""
    rng = np.random.default_rng(0)
    program = Program.create("convolution")
    ones, nothing = (1,) * (len(w) - 2), (0,) * (len(w) - 2)
    usual = {"strides": ones, "dilations": ones, "pads_begin": nothing, "pads_end": nothing}
    with program:
        block = define_function(
            program, "main", [TensorType(x)], input_names=("x",), output_names=("y",)
        )
        with at_end(block):
            held = [constant(program, rng.standard_normal(w, np.float32), "w")]
            if bias:
                held.append(constant(program, rng.standard_normal(w[0], np.float32), "b"))
            y = build("ai.conv", block.arguments[0], *held, groups=groups, **{**usual, **attrs})
        finish_function(block, [y])
    return program


def planned(program: Program, size: tuple[int, ...]) -> tuple[Any, PassContext]:
    """The convolution that is left; the results must be the same."""
    feeds = {"x": np.random.default_rng(1).standard_normal(size, np.float32)}
    wanted = interpret(program, feeds)["y"]
    context = PassContext()
    plan_convolutions.run(program, context)
    program.verify()
    found = interpret(program, feeds)["y"]
    assert found.shape == wanted.shape and not mismatch(found, wanted)
    with program:
        (left,) = (
            o for o in ir.operations(ir.body(program.function("main"))) if o.name == "ai.conv"
        )
        kind = (ir.type_of(left.operands[0]).rank, ir.attrs(left)["groups"])
    return kind, context


SMALL = st.tuples(*(st.integers(0, 2) for _ in range(3)))
POSITIVE = st.tuples(*(st.integers(1, 2) for _ in range(3)))


@settings(deadline=None, max_examples=40)
@given(
    st.tuples(*(st.integers(1, 3) for _ in range(3))),
    *(POSITIVE, POSITIVE, SMALL, SMALL, st.sampled_from([1, 2]), st.booleans()),
)
def test_three_axes(kernel, strides, dilations, begin, end, groups, bias):
    program = convolution(
        (N, 4, D, 7, 6), (6, 4 // groups, *kernel), groups, bias, strides=strides,
        dilations=dilations, pads_begin=begin, pads_end=end,
    )  # fmt: skip
    kind, _ = planned(program, (2, 4, 5, 7, 6))
    assert kind == (4, 1)  # two groups of two or six channels fill no block: joined too


@settings(deadline=None, max_examples=30)
@given(
    st.tuples(*(st.integers(1, 3) for _ in range(3))),
    *(POSITIVE, POSITIVE, SMALL, SMALL, st.sampled_from([4, 16, 20])),
)
def test_slices_of_one_volume(kernel, strides, dilations, begin, end, channels):
    """They are channels where they lie, if a window's follow each other and fill blocks or none."""
    program = convolution(
        (1, channels, D, 7, 6), (6, channels, *kernel), strides=strides, dilations=dilations,
        pads_begin=begin, pads_end=end,
    )  # fmt: skip
    planned(program, (1, channels, 5, 7, 6))
    with program:
        operations = ir.operations(ir.body(program.function("main")))
        (attrs,) = (ir.attrs(o) for o in operations if o.name == "ai.conv")
    lie = kernel[0] > 1 and dilations[0] == 1 and channels != 20
    assert (attrs["stack"], attrs["stack_step"]) == ((kernel[0], strides[0]) if lie else (1, 1))


@settings(deadline=None, max_examples=20)
@given(
    st.tuples(*(st.integers(1, 3) for _ in range(3))),
    *(POSITIVE, POSITIVE, SMALL, SMALL, st.integers(1, 2), st.booleans()),
)
def test_depthwise_along_three_axes(kernel, strides, dilations, begin, end, images, bias):
    """Of one image, without a stride along the depth: a convolution of all frames a tap."""
    strides = (1, *strides[1:])
    program = convolution(
        (images, 6, D, 7, 6), (6, 1, *kernel), 6, bias, strides=strides, dilations=dilations,
        pads_begin=begin, pads_end=end,
    )  # fmt: skip
    feeds = {"x": np.random.default_rng(1).standard_normal((images, 6, 5, 7, 6), np.float32)}
    wanted = interpret(program, feeds)["y"]
    plan_convolutions.run(program, PassContext())
    program.verify()
    assert not mismatch(interpret(program, feeds)["y"], wanted)
    with program:
        left = [o for o in ir.walk(ir.body(program.function("main"))) if o.name == "ai.conv"]
        assert len(left) == (kernel[0] if images == 1 else 1)
        assert all(ir.type_of(o.operands[0]).rank == 4 for o in left)


def test_too_many_taps_along_the_depth_are_left():
    kind, context = planned(convolution((1, 2, 40, 3, 3), (2, 2, 33, 1, 1)), (1, 2, 40, 3, 3))
    assert kind == (5, 1)
    assert context.misses


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "left"),
    [
        (64, 64, 16, 4),  # 4 and 4: four together fill a block
        (24, 48, 3, 1),  # 8 and 16: two would, but three are not made of twos
        (48, 96, 6, 3),  # 8 and 16
        (32, 64, 32, 64),  # 1 and 2: each twice
        (5, 15, 5, 15),
        (3, 96, 3, 1),  # few: joined all the same
        (12, 8, 4, 1),  # 3 and 2: all of them
        (32, 32, 2, 2),  # whole blocks already
        (32, 32, 32, 32),  # each channel alone has a schedule of its own
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_small_groups(channels, outputs, groups, left, bias):
    program = convolution(
        (N, channels, 6, 5), (outputs, channels // groups, 3, 2), groups, bias, pads_begin=(1, 0)
    )
    kind, _ = planned(program, (2, channels, 6, 5))
    assert kind == (4, left)


def test_too_many_small_groups_are_left():
    kind, context = planned(convolution((1, 111, 4, 4), (37 * 2, 3, 3, 3), 37), (1, 111, 4, 4))
    assert kind == (4, 37)
    assert context.misses


def test_groups_of_one_axis():
    kind, _ = planned(convolution((N, 32, 30), (32, 4, 5), 8), (2, 32, 30))
    assert kind == (4, 2)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["ai.max_pool", "ai.avg_pool"]),
    st.tuples(*(st.integers(2, 3) for _ in range(3))),
    *(POSITIVE, POSITIVE, SMALL, SMALL, st.booleans(), st.booleans()),
)
def test_pools_of_three_axes(name, kernel, strides, dilations, begin, end, ceil, padding):
    begin, end = (
        tuple(min(p, k - 1) for p, k in zip(ps, kernel, strict=True)) for ps in (begin, end)
    )
    attrs = {
        "kernel": kernel, "strides": strides, "dilations": dilations, "pads_begin": begin,
        "pads_end": end, "ceil_mode": ceil,
    }  # fmt: skip
    if name == "ai.avg_pool":
        attrs["count_include_pad"] = padding
    program = Program.create("pool")
    with program:
        block = define_function(
            program, "main", [TensorType((N, 3, D, 7, 6))], input_names=("x",), output_names=("y",)
        )
        with at_end(block):
            y = build(name, block.arguments[0], **attrs)
        finish_function(block, [y])
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 8, 7, 6), np.float32)}
    wanted = interpret(program, feeds)["y"]
    plan_convolutions.run(program, PassContext())
    program.verify()
    found = interpret(program, feeds)["y"]
    assert found.shape == wanted.shape and not mismatch(found, wanted)
    with program:
        left = [o for o in ir.operations(ir.body(program.function("main"))) if o.name == name]
        assert [ir.type_of(o.operands[0]).rank for o in left] == [4, 4]
