"""Each identity: the function stays, and what is left is what the rule promises."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.passes import canonicalize
from tests.dialect.passes.programs import make, names, same

F = ir.full


def _branches(m, x):
    """An ai.if with a constant condition."""
    t = ir.type_of(x)
    y = ir.build("ai.if", ir.full(True, (), "bool"), types=[t])
    operation = ir.defining(y)
    for region, name in zip(operation.regions, ("ai.neg", "ai.relu"), strict=True):
        with ir.at_end(region.blocks.append()):
            ir.build("ai.yield", ir.build(name, x))
    return y


CASES = {
    "add zero": (lambda m, x: m.add(x, 0.0), []),
    "sub zero": (lambda m, x: m.sub(x, 0.0), []),
    "sub number": (lambda m, x: m.sub(x, 2.0), ["add"]),
    "zero sub": (lambda m, x: m.sub(0.0, x), ["sub"]),
    "mul one": (lambda m, x: m.mul(1.0, x), []),
    "mul minus one": (lambda m, x: m.mul(x, -1.0), ["neg"]),
    "mul zero stays": (lambda m, x: m.mul(x, 0.0), ["mul"]),
    "div one": (lambda m, x: m.div(x, 1.0), []),
    "div by 8": (lambda m, x: m.div(x, 8.0), ["mul"]),
    "div by 3 stays": (lambda m, x: m.div(x, 3.0), ["div"]),
    "pow 1": (lambda m, x: m.pow(x, 1.0), []),
    "pow 2": (lambda m, x: m.pow(x, 2.0), ["mul"]),
    "pow 3": (lambda m, x: m.pow(x, 3.0), ["mul", "mul"]),
    "pow half": (lambda m, x: m.pow(m.abs(x), 0.5), ["abs", "sqrt"]),
    "pow -1": (lambda m, x: m.pow(x, -1.0), ["reciprocal"]),
    "relu relu": (lambda m, x: m.relu(m.relu(x)), ["relu"]),
    "abs neg": (lambda m, x: m.abs(m.neg(x)), ["abs"]),
    "neg neg": (lambda m, x: m.neg(m.neg(x)), []),
    "max 0": (lambda m, x: m.maximum(x, 0.0), ["relu"]),
    "max min": (lambda m, x: m.minimum(m.maximum(x, -1.0), 1.0), ["clip"]),
    "max nan stays": (lambda m, x: m.maximum(x, float("nan")), ["maximum"]),
    "relu6": (lambda m, x: m.clip(m.relu(x), low=None, high=6.0), ["clip"]),
    "open clip": (lambda m, x: m.clip(x, low=None, high=None), []),
    "clip to relu": (lambda m, x: m.clip(x, low=0.0, high=None), ["relu"]),
    "cast same": (lambda m, x: m.cast(x, dtype="float32"), []),
    "cast there and back": (lambda m, x: m.cast(m.cast(x, dtype="float64"), dtype="float32"), []),
    "cast that loses stays": (
        lambda m, x: m.cast(m.cast(x, dtype="float16"), dtype="float32"), ["cast", "cast"],
    ),
    "where true": (lambda m, x: ir.build("ai.where", F(True, (), "bool"), x, m.neg(x)), []),
    "where equal": (lambda m, x: ir.build("ai.where", m.less(x, 0.0), x, x), []),
    "where not": (
        lambda m, x: ir.build("ai.where", m.logical_not(m.less(x, 0.0)), x, m.neg(x)),
        ["less", "neg", "where"],
    ),
    "transposes": (lambda m, x: m.transpose(m.transpose(x, perm=(1, 0)), perm=(1, 0)), []),
    "reshapes": (lambda m, x: m.reshape(m.reshape(x, shape=(15,)), shape=(3, 5)), []),
    "slice of slice": (
        lambda m, x: m.slice(
            m.slice(x, starts=(1, 0), steps=(1, 2), sizes=(2, 3)),
            starts=(0, 2), steps=(1, -1), sizes=(1, 3),
        ),
        ["slice"],
    ),
    "pad nothing": (lambda m, x: m.pad(x, before=(0, 0), after=(0, 0)), []),
    "tile once": (lambda m, x: m.tile(x, repeats=(1, 1)), []),
    "concat one": (lambda m, x: m.concat(x, axis=0), []),
    "concat flat": (
        lambda m, x: m.concat(m.concat(x, m.neg(x), axis=0), x, axis=0), ["neg", "concat"],
    ),
    "gather one": (
        lambda m, x: m.gather(x, F(-1, (), "int64"), axis=0), ["slice", "reshape"],
    ),
    "broadcast then add": (
        lambda m, x: m.add(x, m.broadcast_to(m.weight(5), shape=(3, 5))), ["add"],
    ),
    "product of transpose": (
        lambda m, x: m.matmul(x, m.transpose(x, perm=(1, 0))), ["matmul"],
    ),
    "equal operations": (lambda m, x: m.add(m.exp(x), m.exp(x)), ["exp", "add"]),
    "dead operation": (lambda m, x: (m.exp(x), m.neg(x))[1], ["neg"]),
    "known branch": (_branches, ["neg"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_identity(case: str) -> None:
    body, left = CASES[case]
    program = make({"x": "[3,5]"}, body)
    same(program, canonicalize)
    if case != "zero sub":
        assert names(program) == left


def test_reshape_around_transpose() -> None:
    """PyTorch's kᵀ."""

    def body(m, x):
        b, h, s, d = ir.type_of(x).shape
        y = m.transpose(m.reshape(x, shape=(h * b, s, d)), perm=(0, 2, 1))
        return m.reshape(y, shape=(b, h, d, s))

    program = make({"x": "[b,4,s,8]"}, body)
    same(program, canonicalize)
    assert names(program) == ["transpose"]


def test_reshape_around_transpose_of_shared_heads() -> None:
    """PyTorch's kᵀ of grouped heads: the axes that one reshape merges are not those it splits."""

    def body(m, x):
        b, g, s, d = ir.type_of(x).shape
        wide = m.broadcast_to(m.reshape(x, shape=(b, g, 1, s, d)), shape=(b, g, 2, s, d))
        y = m.transpose(m.reshape(wide, shape=(g * 2 * b, s, d)), perm=(0, 2, 1))
        return m.reshape(y, shape=(b, g * 2, d, s))

    program = make({"x": "[b,4,s,8]"}, body)
    same(program, canonicalize)
    assert names(program) == ["reshape", "broadcast_to", "reshape", "transpose"]


def test_gather_reads_only_the_rows_it_needs() -> None:
    def body(m, i):
        table = m.mul(m.cast(m.weight(40, 8, low=-99, high=99, dtype="int8"), dtype="float32"), 0.5)
        return m.gather(table, i, axis=0)

    program = make({"i": "int64[n]"}, body)
    same(program, canonicalize)
    assert names(program) == ["gather", "cast", "mul"]


def test_nan_stays() -> None:
    """Relu and clip made of max and min let NaN through."""
    program = make({"x": "[4]"}, lambda m, x: m.minimum(m.maximum(x, 0.0), 6.0))
    x = np.array([np.nan, -1, 3, 9], np.float32)
    before = interpret(program, {"x": x})
    same(program, canonicalize)
    np.testing.assert_array_equal(interpret(program, {"x": x})["y0"], before["y0"])


def test_small_constants_become_numbers() -> None:
    program = make({"x": "[3]"}, lambda m, x: m.add(x, m.weight(1, 1)))
    same(program, canonicalize)
    assert "ai.constant" not in program.text()


def test_weights_of_equal_content_are_one() -> None:
    def body(m, x):
        w = np.arange(6, dtype=np.float32)
        a, b = ir.constant(m.program, w, "a"), ir.constant(m.program, w.copy(), "b")
        return m.mul(m.add(x, a), b)

    program = make({"x": "[6]"}, body)
    same(program, canonicalize)
    assert program.text().count("ai.constant") == 1


def test_merged_operations_keep_both_names() -> None:
    program = make({"x": "[3]"}, lambda m, x: m.add(m.exp(x), m.exp(x)))
    same(program, canonicalize)
    with program:
        first = ir.operations(ir.body(program.function("main")))[0]
        assert ir.source_name(first) == "exp_0 + exp_1"
