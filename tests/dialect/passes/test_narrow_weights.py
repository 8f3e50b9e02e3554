"""--precision bf16: weights become bfloat16, and the error is that of its rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.passes import narrow_weights
from cuvilc.dialect.passes.context import PassContext
from tests.dialect.passes.programs import feeds, make, run
from tests.tolerances import RELATIVE


def network() -> Any:
    def body(m: Any, x: Any) -> Any:
        y = m.relu(m.conv(x, m.weight(8, 3, 3, 3), m.weight(8), pad=1))
        y = m.conv(y, m.weight(8, 4, 3, 3), groups=2)
        y = m.reduce_mean(y, axes=(2, 3), keepdims=False)
        return m.matmul(y, m.weight(5, 8), transpose_b=True), m.matmul(y, y, transpose_b=True)

    return make({"x": "[2,3,7,6]"}, body)


def names(program: Any) -> list[str]:
    with program:
        return [o.name for o in ir.walk(ir.body(program.function("main")))]


def test_only_when_asked_for() -> None:
    program = network()
    before = program.text()
    run(program, narrow_weights)
    assert program.text() == before


def test_weights_and_error() -> None:
    program = network()
    given = feeds(program)
    wanted = interpret(program, given)
    context = run(program, narrow_weights, context=PassContext(precision="bf16"))
    found = names(program)
    assert found.count("ai.matmul_mixed") == found.count("ai.conv_mixed") == 1
    assert found.count("ai.matmul") == found.count("ai.conv") == 1  # two inputs; groups
    (why,) = context.why("narrow-convolution")
    assert why == "groups of channels that fill no blocks, or not two spatial axes"
    worst = 0.0
    for a, b in zip(interpret(program, given).values(), wanted.values(), strict=True):
        assert a.dtype == np.float32
        worst = max(worst, float(np.abs(a - b).max() / np.abs(b).max()))
    assert 1e-6 < worst < RELATIVE["bfloat16"]


def test_groups_of_whole_blocks_become_narrow() -> None:
    def body(m: Any, x: Any) -> Any:
        return m.conv(x, m.weight(96, 32, 3, 3), groups=2)

    program = make({"x": "[1,64,5,6]"}, body)
    run(program, narrow_weights, context=PassContext(precision="bf16"))
    assert "ai.conv_mixed" in names(program)


def test_odd_channels_under_dilation_stay() -> None:
    def body(m: Any, x: Any) -> Any:
        return ir.build(
            "ai.conv", x, m.weight(4, 3, 1, 3), strides=(1, 1), pads_begin=(0, 0), pads_end=(0, 0),
            dilations=(1, 2),
        )  # fmt: skip

    context = run(
        make({"x": "[1,3,4,9]"}, body), narrow_weights, context=PassContext(precision="bf16")
    )
    assert context.why("narrow-convolution") == ["dilated taps of an odd number of channels"]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_stay(dtype: str) -> None:
    program = make({"x": f"{dtype}[3,4]"}, lambda m, x: m.matmul(x, m.weight(4, 5, dtype=dtype)))
    run(program, narrow_weights, context=PassContext(precision="bf16"))
    assert "ai.matmul_mixed" not in names(program)
