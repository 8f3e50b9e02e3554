"""Layers that differ in numbers only share a kernel that reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ir import Program
from cuvilc.dialect.passes import canonicalize, fuse, outline_kernels
from cuvilc.dialect.passes.context import PassContext
from tests.dialect.passes.programs import make


def quantised(m: Any, x: Any, scale: float, zero: int) -> Any:
    """Quantise and dequantise, a layer of a quantised model."""
    by, point = ir.full(scale), ir.full(zero, (), "uint8")
    levels = ir.build("ai.quantize_linear", x, by, point, axis=0)
    return ir.build("ai.dequantize_linear", levels, by, point, axis=0)


def kernels(program: Program) -> list[str]:
    """What is left of a program; its results must stay."""
    shape = (3, 8)
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    before = interpret(program, feeds)
    for each in (canonicalize, fuse, outline_kernels):
        each.run(program, PassContext())
        program.verify()
    after = interpret(program, feeds)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    with program:
        return [ir.attrs(k)["sym_name"] for k in program.kernels()]


def chain(*layers: tuple[float, int]) -> Program:
    """Quantised layers with a softmax between them, so that each is a kernel of its own."""

    def body(m: Any, x: Any) -> Any:
        for scale, zero in layers:
            x = m.softmax(quantised(m, x, scale, zero), axis=1)
        return x

    return make({"x": "[3,8]"}, body)


def constants(program: Program) -> int:
    with program:
        main = ir.body(program.function("main"))
        return len([o for o in ir.operations(main) if o.name == "ai.constant"])


@pytest.mark.parametrize("zeros", [(3, 3, 3, 3), (3, 4, 5, 6)])
@pytest.mark.parametrize("scales", [(0.1, 0.1, 0.1, 0.1), (0.1, 0.2, 0.3, 0.4)])
def test_equal_layers_share_a_kernel(scales: Any, zeros: Any) -> None:
    """Only numbers that differ are read."""
    program, alike = chain(*zip(scales, zeros, strict=True)), chain(*[(0.1, 3)] * 4)
    assert len(kernels(program)) == len(kernels(alike)) < 4
    differ = (len({*scales}) > 1) + (len({*zeros}) > 1)
    assert constants(alike) == 0
    assert (constants(program) > 0) == (differ > 0)


def test_one_layer_keeps_its_numbers() -> None:
    program = chain((0.1, 3))
    kernels(program)
    assert constants(program) == 0


def test_numbers_that_shape_the_work_stay() -> None:
    """The number of a `where` is read by nothing that takes it from memory as well."""

    def body(m: Any, x: Any) -> Any:
        for limit in (0.1, 0.2):
            small = ir.build("ai.less", x, ir.full(limit))
            x = m.softmax(ir.build("ai.where", small, ir.full(limit), x), axis=1)
        return x

    program = make({"x": "[3,8]"}, body)
    assert len(kernels(program)) == 2
