"""Blocked layouts: same values, relayouts only at the edges, weights marked."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ir import Program, at_end, build, constant, define_function, finish_function
from cuvilc.dialect.passes import choose_layouts
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import TensorType

RNG = np.random.default_rng(0)
ONES = {"strides": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1), "dilations": (1, 1)}


def weights(program: Program, out: int, per_group: int, size: int = 3):
    return constant(program, RNG.standard_normal((out, per_group, size, size), np.float32), "w")


def network(batch: object) -> Program:
    """conv → relu → depthwise → add of the first relu → pool → conv → global mean."""
    program = Program.create("net")
    with program:
        block = define_function(
            program, "main", [TensorType((batch, 3, 8, 8))], input_names=("x",), output_names=("y",)
        )
        with at_end(block):
            x = build("ai.conv", block.arguments[0], weights(program, 20, 3), **ONES)
            x = first = build("ai.relu", x)
            x = build("ai.conv", x, weights(program, 20, 1), groups=20, **ONES)
            x = build("ai.elemwise_add", x, first)
            scale = constant(program, RNG.standard_normal((20, 1, 1), np.float32), "scale")
            x = build("ai.elemwise_mul", x, scale)
            x = build(
                "ai.max_pool",
                x,
                kernel=(2, 2),
                strides=(2, 2),
                pads_begin=(0, 0),
                pads_end=(0, 0),
                dilations=(1, 1),
            )
            x = build(
                "ai.conv",
                x,
                weights(program, 33, 20, 1),
                strides=(1, 1),
                pads_begin=(0, 0),
                pads_end=(0, 0),
                dilations=(1, 1),
            )
            x = build("ai.reduce_mean", x, axes=(2, 3), keepdims=False)
        finish_function(block, [x])
    return program


def chosen(program: Program, feeds: dict[str, np.ndarray], name: str) -> str:
    """The layout of the only operation of this name after the pass, which must keep the result."""
    before = interpret(program, feeds)["y"]
    choose_layouts.run(program, PassContext())
    program.verify()
    np.testing.assert_array_equal(interpret(program, feeds)["y"], before)
    with program:
        block = ir.body(program.function("main"))
        (found,) = [o for o in ir.operations(block) if o.name == name]
        return ir.type_of(found.results[0]).layout


def test_values_stay_and_relayouts_vanish():
    feeds = {"x": RNG.standard_normal((2, 3, 8, 8), np.float32)}
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state
    wanted = interpret(network(symbol("n")), feeds)["y"]
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state
    program = network(symbol("n"))
    choose_layouts.run(program, PassContext())
    program.verify()
    with program:
        operations = ir.operations(ir.body(program.function("main")))
        assert [o.name for o in operations].count("ai.relayout") == 0
        layouts = {o.name: ir.type_of(o.results[0]).layout for o in operations if o.results}
        assert layouts["ai.conv"] == layouts["ai.relu"] == layouts["ai.max_pool"] == "NCHW16c"
        packed = {ir.attrs(o)["layout"] for o in operations if o.name == "ai.constant"}
        assert packed == {"pack0_32", "pack0_16", ""}
    assert np.array_equal(interpret(program, feeds)["y"], wanted)


def test_pass_is_idempotent():
    program = network(2)
    choose_layouts.run(program, PassContext())
    once = program.text()
    choose_layouts.run(program, PassContext())
    assert program.text() == once


@pytest.mark.parametrize(
    ("channels", "pad", "layout"), [(20, 1, "NCHW16c"), (20, 0, ""), (5, 1, "")]
)
def test_a_pool_that_begins_a_model(channels: int, pad: int, layout: str) -> None:
    """Blocked where windows hang over an edge and channels fill a block."""
    program = Program.create("pool")
    types = [TensorType((2, channels, 9, 7))]
    with program:
        block = define_function(program, "main", types, input_names=("x",), output_names=("y",))
        with at_end(block):
            y = build(
                "ai.max_pool", block.arguments[0], kernel=(3, 3), strides=(2, 2),
                pads_begin=(pad, pad), pads_end=(0, 0), dilations=(1, 1),
            )  # fmt: skip
        finish_function(block, [y])
    feeds = {"x": RNG.standard_normal((2, channels, 9, 7), np.float32)}
    assert chosen(program, feeds, "ai.max_pool") == layout


@pytest.mark.parametrize(("last", "layout"), [("ai.conv", "NCHW16c"), ("ai.exp", "")])
def test_a_residual_that_is_row_major(last: str, layout: str) -> None:
    """Blocked where a convolution reads what it is added to, or what is made of that."""
    program = Program.create("residual")
    types = [TensorType((2, 20, 6, 5))] * 2
    with program:
        block = define_function(program, "main", types, input_names=("x", "r"), output_names=("y",))
        with at_end(block):
            made = build("ai.conv", block.arguments[0], weights(program, 20, 20), **ONES)
            total = build("ai.elemwise_add", block.arguments[1], made)
            y = build("ai.relu", total)
            others = [weights(program, 16, 20)] if last == "ai.conv" else []
            y = build(last, y, *others, **(ONES if others else {}))
        finish_function(block, [y])
    feeds = {name: RNG.standard_normal((2, 20, 6, 5), np.float32) for name in "xr"}
    assert chosen(program, feeds, "ai.elemwise_add") == layout


@pytest.mark.parametrize(("channels", "layout"), [(32, "NCHW16c"), (20, "")])
def test_joined_channels(channels: int, layout: str) -> None:
    """Blocked where the second part begins with a block; both values of it are."""
    program = Program.create("dense")
    types = [TensorType((2, channels, 6, 5))]
    with program:
        block = define_function(program, "main", types, input_names=("x",), output_names=("y",))
        with at_end(block):
            x = build("ai.conv", block.arguments[0], weights(program, channels, channels), **ONES)
            new = build("ai.conv", x, weights(program, 24, channels), **ONES)
            joined = build("ai.concat", x, new, axis=1)
            y = build("ai.conv", joined, weights(program, 16, channels + 24), **ONES)
        finish_function(block, [y])
    feeds = {"x": RNG.standard_normal((2, channels, 6, 5), np.float32)}
    assert chosen(program, feeds, "ai.concat") == layout


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_constant_matrices_are_packed(transposed, dtype):
    program = Program.create("gemm")
    with program:
        block = define_function(
            program, "main", [TensorType((5, 7), dtype)], input_names=("x",), output_names=("y",)
        )
        with at_end(block):
            shape = (40, 7) if transposed else (7, 40)
            b = constant(program, RNG.standard_normal(shape, np.float32).astype(dtype), "b")
            y = build("ai.matmul", block.arguments[0], b, transpose_b=transposed)
        finish_function(block, [y])
        choose_layouts.run(program, PassContext())
        held, matmul, _ = ir.operations(ir.body(program.function("main")))  # and no row-major twin
        assert held.name == "ai.constant"
        assert ir.type_of(matmul.operands[1]).layout == ("pack0_32" if transposed else "pack1_32")
    program.verify()


@pytest.mark.parametrize("groups", [1, 16])
def test_weights_that_are_one_number(groups: int) -> None:
    """A box filter: its weights are an `ai.full`, which has no place in the package yet."""
    program = Program.create("blur")
    with program:
        x_type = TensorType((1, 16, 5, 5))
        block = define_function(program, "main", [x_type], input_names=("x",), output_names=("y",))
        with at_end(block):
            w = ir.full(0.25, (16, 16 // groups, 3, 3))
            finish_function(block, [build("ai.conv", block.arguments[0], w, groups=groups, **ONES)])
    x = RNG.standard_normal((1, 16, 5, 5), np.float32)
    before = interpret(program, {"x": x})["y"]
    choose_layouts.run(program, PassContext())
    program.verify()
    (packed,) = program.weights.values()
    assert (packed == 0.25).all()
    assert np.array_equal(interpret(program, {"x": x})["y"], before)


@pytest.mark.parametrize("prefer", ["size", "balanced", "speed"])
def test_a_table_that_is_the_head_too_is_held_once(prefer: str) -> None:
    """Rows gathered from the product's panels are the same; a table read otherwise stays."""
    program = Program.create("net")
    ids = TensorType((2, 3), "int64")
    with program:
        block = define_function(program, "main", [ids], input_names=("x",), output_names=("y", "z"))
        with at_end(block):
            table = constant(program, RNG.standard_normal((70, 16), np.float32), "table")
            other = constant(program, RNG.standard_normal((70, 16), np.float32), "other")
            rows = build("ai.gather", table, block.arguments[0])
            columns = build("ai.gather", other, build("ai.cast", rows, dtype="int64"), axis=1)
            logits = build("ai.matmul", rows, table, transpose_b=True)
        finish_function(block, [logits, columns])
    feeds = {"x": np.array([[0, 69, -1], [31, 32, -70]])}
    wanted = interpret(program, feeds)
    choose_layouts.run(program, PassContext(prefer=prefer))
    for name, value in interpret(program, feeds).items():
        np.testing.assert_array_equal(value, wanted[name])
    with program:
        operations = list(ir.walk(ir.body(program.function("main"))))
        held = [ir.attrs(o) for o in operations if o.name == "ai.constant"]
    own = {("table", "")} if prefer == "speed" else set()
    assert {(h["key"], h["layout"]) for h in held} == {("other", ""), ("table", "pack0_32"), *own}
