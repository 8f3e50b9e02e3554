"""Scales and shifts per channel end in the weights."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.passes import fold_batch_norm
from cuvilc.dialect.passes.context import PassContext
from tests.dialect.passes.programs import make, names, same


def _channels(m, n, rank=4):
    return m.weight(n, *[1] * (rank - 2), low=0.5, high=2)


def test_after_convolution() -> None:
    def body(m, x):
        y = m.conv(x, m.weight(6, 4, 3, 3), m.weight(6), pad=1)
        y = m.add(m.mul(y, _channels(m, 6)), _channels(m, 6))
        return m.relu(m.add(m.mul(y, 1.5), -0.25))

    program = make({"x": "[n,4,h,w]"}, body)
    same(program, fold_batch_norm)
    assert names(program) == ["conv", "relu"]
    assert any(k.endswith(".bias") for k in program.weights)


def test_after_transposed_convolution() -> None:
    def body(m, x):
        y = ir.build(
            "ai.conv_transpose", x, m.weight(4, 6, 2, 2), strides=(2, 2), pads_begin=(0, 0),
            pads_end=(0, 0), dilations=(1, 1),
        )  # fmt: skip
        return m.sub(m.div(y, _channels(m, 6)), _channels(m, 6))

    program = make({"x": "[n,4,5,5]"}, body)
    same(program, fold_batch_norm)
    assert names(program) == ["conv_transpose"]


def test_before_convolution() -> None:
    def body(m, x):
        x = m.add(m.mul(x, _channels(m, 4)), _channels(m, 4))
        return m.conv(x, m.weight(6, 2, 3, 3), groups=2)

    program = make({"x": "[n,4,7,7]"}, body)
    same(program, fold_batch_norm)
    assert names(program) == ["conv"]


def test_shift_before_padding_stays() -> None:
    def body(m, x):
        return m.conv(m.add(x, _channels(m, 4)), m.weight(6, 4, 3, 3), pad=1)

    program = make({"x": "[n,4,7,7]"}, body)
    context = same(program, fold_batch_norm)
    assert names(program) == ["add", "conv"]
    assert context.why("fold-before") == [
        "a shift before a padded convolution: the padding is not shifted"
    ]


NOT_FINITE = "a scale is infinite or no number, as when divided by 0"
OVERFLOW = "a weight would be beyond what its dtype holds"


@pytest.mark.parametrize(
    ("factor", "divides", "why"),
    [(0.0, True, NOT_FINITE), (np.inf, False, NOT_FINITE), (3e38, False, OVERFLOW)],
)
def test_what_would_not_stay_finite_stays(factor: float, divides: bool, why: str) -> None:
    """(1·x − 1·x) / 0 is NaN only where the sum is 0, not wherever a weight became infinite."""

    def scaled(m, x, n):
        c = ir.constant(m.program, np.full((n, 1, 1), factor, np.float32), "c")
        return m.div(x, c) if divides else m.mul(x, c)

    def after(m, x):
        return scaled(m, m.conv(x, m.weight(3, 2, 3, 3, low=2, high=4)), 3)

    def before(m, x):
        return m.conv(scaled(m, x, 2), m.weight(3, 2, 3, 3, low=2, high=4))

    def product(m, x):
        y = m.matmul(x, m.weight(5, 4, low=2, high=4))
        return m.div(y, factor) if divides else m.mul(y, factor)

    rules = {after: "fold-after", before: "fold-before", product: "fold-before-product"}
    for body, rule in rules.items():
        program = make({"x": "[2,2,5,5]" if body is not product else "[2,5]"}, body)
        expected = names(program)
        context = same(program, fold_batch_norm)
        assert names(program) == expected
        assert context.why(rule) == [why]


def test_weights_that_come_at_run_time_stay() -> None:
    program = make(
        {"x": "[1,2,5,5]", "w": "[3,2,3,3]"},
        lambda m, x, w: m.mul(m.conv(x, w), _channels(m, 3)),
    )
    assert same(program, fold_batch_norm).why("fold-after") == ["the weights are not constant"]


def test_product_takes_a_scale() -> None:
    program = make({"x": "[n,8]"}, lambda m, x: m.mul(m.matmul(x, m.weight(8, 5)), m.weight(5)))
    same(program, fold_batch_norm)
    assert names(program) == ["matmul"]


def test_product_used_twice_stays() -> None:
    def body(m, x):
        y = m.matmul(x, m.weight(8, 5))
        return m.mul(y, m.weight(5)), m.relu(y)

    program = make({"x": "[n,8]"}, body)
    context = same(program, fold_batch_norm)
    assert context.why("fold-before-product") == ["the product is used elsewhere too"]


def test_left_out_when_every_bit_counts() -> None:
    program = make({"x": "[n,8]"}, lambda m, x: m.mul(m.matmul(x, m.weight(8, 5)), m.weight(5)))
    fold_batch_norm.run(program, PassContext(math_exact=True))
    assert names(program) == ["matmul", "mul"]
