"""Outlining and memory plan: the launch level computes what the graph level does, in one arena."""

from __future__ import annotations

import gc
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvilc._mlir import ir as mlir
from cuvilc.dialect import ir
from cuvilc.dialect import op as declarations
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ir import Program, at_end, build, define_function, finish_function
from cuvilc.dialect.passes import outline_kernels, plan_memory
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import TensorType
from cuvilc.dialect.verify_launch import LaunchError, verify_launch

N = symbol("n")


def one_kernel_each(program: Program) -> None:
    """Every computing operation of main in a fusion of its own."""
    with program:
        for o in list(ir.walk(ir.body(program.function("main")))):
            if o.name in (
                "ai.constant",
                "ai.if",
                "ai.yield",
                "ai.reshape",
                "ai.dim_values",
                "func.return",
            ):
                continue
            with ir.before(o):
                made = build(
                    "ai.fusion",
                    kind="single",
                    rule="test",
                    types=[ir.type_of(r) for r in o.results],
                )
            made = made if isinstance(made, tuple) else (made,)
            block = ir.defining(made[0]).regions[0].blocks.append()
            for old, new in zip(o.results, made, strict=True):
                old.replace_all_uses_with(new)
            with mlir.InsertionPoint(block):
                build("ai.yield", *o.results, types=[])
            o.move_before(ir.operations(block)[0])


def lowered(program: Program) -> Program:
    one_kernel_each(program)
    for each in (outline_kernels, plan_memory):
        each.run(program, PassContext())
        program.verify()
    return program


def random_program(
    choices: list[tuple[int, int, int]], outputs: list[int], dynamic: bool
) -> Program:
    """A DAG of elementwise operations and reshapes over values of two sizes."""
    program = Program.create("random")
    rows = N if dynamic else 3
    with program:
        types = [TensorType((rows, 4)), TensorType((rows, 4))]
        block = define_function(
            program,
            "main",
            types,
            input_names=("x", "y"),
            output_names=tuple(f"o{i}" for i in range(len(outputs))),
        )
        values = list(block.arguments)
        with at_end(block):
            for kind, i, j in choices:
                a, b = values[i % len(values)], values[j % len(values)]
                if kind == 0 and ir.type_of(a) == ir.type_of(b):
                    values.append(build("ai.elemwise_add", a, b))
                elif kind == 1:
                    values.append(build("ai.relu", a))
                elif kind == 2:
                    flat = (ir.type_of(a).shape[0] * 4,) if ir.type_of(a).rank == 2 else (rows, 4)
                    values.append(build("ai.reshape", a, shape=flat))
                else:
                    values.append(build("ai.neg", a))
        finish_function(block, [values[o % len(values)] for o in outputs])
    return program


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 30)), max_size=14),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.booleans(),
)
def test_random_programs_keep_their_meaning(choices, outputs, dynamic):
    feeds = {
        n: np.random.default_rng(i).standard_normal((3, 4), np.float32) for i, n in enumerate("xy")
    }
    wanted = interpret(random_program(choices, outputs, dynamic), feeds)
    found = interpret(lowered(random_program(choices, outputs, dynamic)), feeds)
    for name, array in wanted.items():
        assert np.array_equal(found[name], array)


def chain(length: int) -> Program:
    program = Program.create("chain")
    with program:
        block = define_function(
            program, "main", [TensorType((256, 4))], input_names=("x",), output_names=("y",)
        )
        value = block.arguments[0]
        with at_end(block):
            for _ in range(length):
                value = build("ai.neg", value)
        finish_function(block, [value])
    return program


def test_memory_is_reused_along_a_chain():
    program = lowered(chain(10))
    with program:
        # Each kernel writes over its operand: nine intermediate values of 4 KiB need one buffer.
        assert ir.attrs(program.function("main"))["arena_bytes"] == 4096


def test_only_elementwise_kernels_write_in_place():
    program = Program.create("turned")
    with program:
        block = define_function(
            program, "main", [TensorType((32, 32))], input_names=("x",), output_names=("y",)
        )
        value = block.arguments[0]
        with at_end(block):
            for _ in range(5):
                value = build("ai.transpose", value, perm=(1, 0))
        finish_function(block, [value])
    lowered(program)
    with program:
        assert ir.attrs(program.function("main"))["arena_bytes"] == 2 * 4096


def test_equal_kernels_are_one_and_sizes_are_renamed():
    program = Program.create("twice")
    with program:
        m = symbol("m")
        block = define_function(
            program,
            "main",
            [TensorType((N, 4)), TensorType((m, 4))],
            input_names=("x", "y"),
            output_names=("a", "b"),
        )
        with at_end(block):
            values = [build("ai.relu", v) for v in block.arguments]
        finish_function(block, values)
    lowered(program)
    with program:
        kernels = program.kernels()
        assert len(kernels) == 1
        assert ir.attrs(kernels[0])["symbols"] == ("s0",)


def conditional() -> Program:
    program = Program.create("if")
    with program:
        types = [TensorType((), "bool"), TensorType((N, 3))]
        block = define_function(
            program, "main", types, input_names=("c", "x"), output_names=("y", "z")
        )
        with at_end(block):
            shared = build("ai.neg", block.arguments[1])
            chosen = build("ai.if", block.arguments[0], types=[types[1]])
            operation = ir.defining(chosen)
            for number, name in enumerate(("ai.relu", "ai.exp")):
                branch = operation.regions[number].blocks.append()
                with at_end(branch):
                    build("ai.yield", build(name, build("ai.neg", shared)), types=[])
            out = build("ai.elemwise_add", chosen, shared)
        finish_function(block, [out, block.arguments[1]])
    return program


@pytest.mark.parametrize("condition", [True, False])
def test_branches_share_their_results_memory(condition):
    feeds = {
        "c": np.array(condition),
        "x": np.random.default_rng(0).standard_normal((5, 3), np.float32),
    }
    wanted = interpret(conditional(), feeds)
    found = interpret(lowered(conditional()), feeds)
    assert np.array_equal(found["y"], wanted["y"])
    assert np.array_equal(found["z"], feeds["x"])


def broken(change) -> Program:
    """A lowered conditional program whose text `change` has spoilt."""
    program = lowered(conditional())
    text = program.text()
    changed = change(text)
    assert changed != text
    return Program.parse(changed, program.weights)


def all_at_zero(text: str) -> str:
    return re.sub(r'\["arena", [^\]]*\]>\]|\["arena", [^\]]*\]', '["arena", 0]', text)


def test_a_bad_plan_gives_wrong_results_in_the_interpreter():
    """The check can fail: two live values at one offset are noticed."""
    feeds = {"c": np.array(True), "x": np.ones((2, 3), np.float32)}
    right = interpret(lowered(conditional()), feeds)["y"]
    assert not np.array_equal(interpret(broken(all_at_zero), feeds)["y"], right)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (all_at_zero, "share bytes"),
        (lambda t: re.sub(r'kernel = "neg', 'kernel = "gone', t), "there is no kernel"),
        (
            lambda t: re.sub(r"arena_bytes = #ai.dims<[^>]*>", "arena_bytes = 64", t),
            "of an arena of 64",
        ),
    ],
    ids=["overlap", "kernel", "arena"],
)
def test_the_verifier_refuses(change, message):
    with pytest.raises(LaunchError, match=message):
        verify_launch(broken(change))


def test_programs_are_freed():
    """A program's context goes with it: a service that builds many models does not grow."""
    program = chain(3)
    before = len(declarations._State.tables)
    key = id(program.context)
    assert key in declarations._State.tables
    del program
    gc.collect()
    assert len(declarations._State.tables) < before
