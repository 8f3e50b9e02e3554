"""Rank 3 and transposed convolutions in the form that has a schedule: same values."""

from __future__ import annotations

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
from cuvilc.dialect.types import TensorType, numpy_dtype
from tests.tolerances import mismatch

N = symbol("n")


def transposed(kernel, strides, begin, end, extra, with_bias, size=(5, 4), groups=1):
    rng = np.random.default_rng(0)
    program = Program.create("transposed")
    with program:
        block = define_function(
            program,
            "main",
            [TensorType((N, 3 * groups, *size))],
            input_names=("x",),
            output_names=("y",),
        )
        with at_end(block):
            weights = rng.standard_normal((3 * groups, 4, *kernel), np.float32)
            w, bias = constant(program, weights, "w"), rng.standard_normal(4 * groups, np.float32)
            more = [constant(program, bias, "b")] if with_bias else []
            y = build(
                "ai.conv_transpose",
                *(block.arguments[0], w, *more),
                strides=strides,
                pads_begin=begin,
                pads_end=end,
                dilations=(1, 1),
                output_padding=extra,
                groups=groups,
            )
        finish_function(block, [y])
    return program


SMALL = st.tuples(st.integers(0, 1), st.integers(0, 1))


@settings(deadline=None, max_examples=40)
@given(
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    *(SMALL, SMALL, SMALL, st.booleans(), st.integers(1, 3)),
)
def test_transposed_convolutions(kernel, strides, begin, end, extra, with_bias, groups):
    extra = tuple(min(e, s - 1) for e, s in zip(extra, strides, strict=True))
    begin = tuple(min(p, k - 1) for p, k in zip(begin, kernel, strict=True))
    end = tuple(min(p, k - 1) for p, k in zip(end, kernel, strict=True))
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3 * groups, 5, 4), np.float32)}
    program = transposed(kernel, strides, begin, end, extra, with_bias, groups=groups)
    wanted = interpret(program, feeds)["y"]
    context = PassContext()
    plan_convolutions.run(program, context)
    program.verify()
    found = interpret(program, feeds)["y"]
    assert not mismatch(found, wanted)
    with program:
        left = [o.name for o in ir.operations(ir.body(program.function("main")))]
    assert ("ai.conv_transpose" in left) == bool(context.misses)


def test_the_common_upsampling_is_decomposed():
    program = transposed((2, 2), (2, 2), (0, 0), (0, 0), (0, 0), True)
    context = PassContext()
    plan_convolutions.run(program, context)
    assert context.applied[plan_convolutions.NAME] == 1


def chain(last=()):
    rng = np.random.default_rng(0)
    program = Program.create("one axis")
    with program:
        block = define_function(
            program,
            "main",
            [TensorType((N, 3, 20, *last))],
            input_names=("x",),
            output_names=("y",),
        )
        pads = (1, *(0 for _ in last))
        one = {"strides": (2, *last), "pads_begin": pads, "pads_end": pads, "dilations": (1, *last)}
        with at_end(block):
            x = block.arguments[0]
            for channels, inputs in ((4, 3), (5, 4)):
                w = constant(
                    program, rng.standard_normal((channels, inputs, 3, *last), np.float32), "w"
                )
                x = build("ai.relu", build("ai.conv", x, w, **one))
                slope = constant(
                    program, rng.standard_normal((channels, 1, *last), np.float32), "slope"
                )
                x = build("ai.elemwise_mul", x, slope)
            x = build("ai.max_pool", x, kernel=(2, *last), **one)
        finish_function(block, [x])
    return program


@pytest.mark.parametrize("last", [(), (1,)])
def test_one_axis_is_reshaped_at_the_ends_only(last):
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 20, *last), np.float32)}
    wanted = interpret(chain(last), feeds)["y"]
    program = chain(last)
    plan_convolutions.run(program, PassContext())
    program.verify()
    assert np.array_equal(interpret(program, feeds)["y"], wanted)
    with program:
        operations = ir.operations(ir.body(program.function("main")))
        data = [
            o for o in operations if o.name == "ai.reshape" and ir.type_of(o.operands[0]).rank >= 3
        ]
        assert len(data) == 2
        assert all(
            ir.type_of(o.results[0]).shape[2] == 1 for o in operations if o.name == "ai.conv"
        )


@pytest.mark.parametrize(
    "make", [chain, lambda: transposed((3, 3), (2, 2), (1, 1), (1, 1), (0, 0), False)]
)
def test_pass_is_idempotent(make):
    program = make()
    plan_convolutions.run(program, PassContext())
    once = program.text()
    plan_convolutions.run(program, PassContext())
    assert program.text() == once


def test_a_constant_along_the_batch_is_not_taken_for_channels():
    rng = np.random.default_rng(0)
    program = Program.create("batch")
    with program:
        block = define_function(
            program, "main", [TensorType((3, 3, 8))], input_names=("x",), output_names=("y",)
        )
        with at_end(block):
            w = constant(program, rng.standard_normal((3, 3, 1), np.float32), "w")
            one = {"strides": (1,), "pads_begin": (0,), "pads_end": (0,), "dilations": (1,)}
            x = build("ai.conv", block.arguments[0], w, **one)
            scale = constant(program, rng.standard_normal((3, 1, 1), np.float32), "scale")
            x = build("ai.elemwise_mul", x, scale)
        finish_function(block, [x])
    feeds = {"x": rng.standard_normal((3, 3, 8), np.float32)}
    wanted = interpret(program, feeds)["y"]
    plan_convolutions.run(program, PassContext())
    assert np.array_equal(interpret(program, feeds)["y"], wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["ai.conv", "ai.conv_transpose"])
def test_halves_are_summed_in_float32(name: str, dtype: str) -> None:
    """Constant weights are converted now, everything else on the way; values round once, at the
    end.
    """
    rng = np.random.default_rng(0)
    program = Program.create("half")
    types = [TensorType((N, 3, 5, 4), dtype), TensorType((3,), dtype)]
    with program:
        block = define_function(program, "main", types, input_names=("x", "b"), output_names=("y",))
        with at_end(block):
            w = rng.standard_normal((3, 3, 3, 3)).astype(numpy_dtype(dtype))
            x, bias = block.arguments
            ones = {"strides": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1)}
            y = build(name, x, constant(program, w, "w"), bias, dilations=(1, 1), **ones)
        finish_function(block, [y])
    feeds = {
        "x": rng.standard_normal((2, 3, 5, 4)).astype(numpy_dtype(dtype)),
        "b": rng.standard_normal(3).astype(numpy_dtype(dtype)),
    }
    (wanted,) = interpret(program, feeds).values()
    plan_convolutions.run(program, PassContext())
    program.verify()
    (found,) = interpret(program, feeds).values()
    assert not mismatch(found, wanted)
    with program:
        operations = list(ir.walk(ir.body(program.function("main"))))
        (conv,) = (o for o in operations if o.name.startswith("ai.conv"))
        assert ir.type_of(conv.results[0]).dtype == "float32"
        assert ir.defining(conv.operands[1]).name == "ai.constant"
