"""Transposes sink and cancel, pads go into convolutions."""

from __future__ import annotations

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.passes import simplify_shapes
from tests.dialect.passes.programs import make, names, same


def test_nhwc_elementwise_between_transposes() -> None:
    def body(m, x):
        y = m.transpose(x, perm=(0, 2, 3, 1))
        y = m.relu(m.add(m.mul(y, 2.0), m.weight(4)))
        return m.transpose(y, perm=(0, 3, 1, 2))

    program = make({"x": "[n,4,h,w]"}, body)
    same(program, simplify_shapes)
    assert sorted(names(program)) == ["add", "mul", "relu", "reshape"]
    assert names(program)[-1] == "relu"


def test_two_operands_through_one_transpose() -> None:
    def body(m, x, y):
        return m.add(m.transpose(x, perm=(1, 0)), m.transpose(y, perm=(1, 0)))

    program = make({"x": "[3,n]", "y": "[3,n]"}, body)
    same(program, simplify_shapes)
    assert names(program) == ["add", "transpose"]


def test_shared_transpose_stays() -> None:
    def body(m, x):
        y = m.transpose(x, perm=(1, 0))
        return m.relu(y), y

    program = make({"x": "[3,4]"}, body)
    context = same(program, simplify_shapes)
    assert context.why("sink-transpose") == ["the transposed value is used elsewhere too"]
    assert "relu" in names(program)


def test_transpose_of_ones_is_a_reshape() -> None:
    program = make({"x": "[n,1,5]"}, lambda m, x: m.transpose(x, perm=(1, 0, 2)))
    same(program, simplify_shapes)
    assert names(program) == ["reshape"]


def test_pad_goes_into_convolution() -> None:
    def body(m, x):
        x = m.pad(x, before=(0, 0, 1, 2), after=(0, 0, 0, 1))
        return m.conv(x, m.weight(4, 3, 3, 3), pad=1)

    program = make({"x": "[n,3,6,7]"}, body)
    same(program, simplify_shapes)
    assert names(program) == ["conv"]


def test_pad_reaches_a_convolution_through_a_reshape() -> None:
    def body(m, x):
        n, c, w = ir.type_of(x).shape
        x = m.pad(x, before=(0, 0, 2), after=(0, 0, 3))
        return m.conv(m.reshape(x, shape=(n, c, 1, w + 5)), m.weight(4, 3, 1, 4))

    program = make({"x": "[n,3,w]"}, body)
    same(program, simplify_shapes)
    assert names(program) == ["reshape", "conv"]


@pytest.mark.parametrize(
    ("pads", "why"),
    [
        ({"before": (0, 1, 0, 0)}, "the pad also widens the batch or the channels"),
        ({"before": (0, 0, 1, 1), "value": 1.5}, "the pad's value is 1.5, not 0"),
    ],
)  # fmt: skip
def test_pad_refusals(pads, why) -> None:
    def body(m, x):
        y = m.pad(x, after=(0, 0, 0, 0), **pads)
        return m.conv(y, m.weight(4, ir.type_of(y).shape[1], 3, 3))

    program = make({"x": "[2,3,6,7]"}, body)
    assert same(program, simplify_shapes).why("pad-into-conv") == [why]
