"""Arithmetic on 8 bits by a table: every value, sizes around blocks, layouts, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.types import TensorType
from cuvilc.targets.region import Miss, Region
from cuvilc.targets.schedules import byte_table
from tests.targets.kernel_harness import V4, check, program_of, tensor
from tests.targets.samples import on_dot_chips


def _number(value: float, dtype: str) -> Any:
    return ir.build("ai.full", shape=(), value=value, dtype=dtype)


def _quantised(x: Any, name: str, dtype: str, to: str) -> Any:
    """The activation of dequantised levels, as levels again."""
    real = ir.build("ai.dequantize_linear", x, _number(0.06, "float32"), _number(5, dtype))
    value = ir.build(name, real)
    return ir.build("ai.quantize_linear", value, _number(0.02, "float32"), _number(3, to))


@pytest.mark.parametrize("shape", ["1024", "1025", "16447", "33,1100", "n"])
@pytest.mark.parametrize(("dtype", "to"), [("uint8", "uint8"), ("int8", "int8"), ("uint8", "int8")])
@on_dot_chips
def test_activations(dtype, to, shape, chip):
    body = lambda x: _quantised(x, "ai.sigmoid", dtype, to)  # noqa: E731
    sizes = [{"n": n} for n in (0, 1, 63, 64, 65, 20000)] if shape == "n" else [{}]
    kernel = check(program_of([tensor(shape, dtype)], body), chip, byte_table.schedule, sizes)
    assert kernel.scheduled.facts.schedule == "byte-table"


def test_blocked_channels_and_scales_of_the_run() -> None:
    types = [tensor("1,40,9,7", "int8", "NCHW16c"), TensorType(()), TensorType((), "int8")]

    def body(x: Any, scale: Any, zero: Any) -> Any:
        value = ir.build("ai.sigmoid", ir.build("ai.dequantize_linear", x, scale, zero))
        return ir.build("ai.quantize_linear", value, scale, zero)

    check(program_of(types, body), V4, byte_table.schedule)


def _refused(types: list[Any], body: Any) -> str:
    program = program_of(types, body)
    with program, pytest.raises(Miss) as refusal:
        byte_table.schedule(Region.of(program, program.function("main")), V4, "kernel")
    return str(refusal.value)


def test_refusals() -> None:
    byte = tensor("5000", "uint8")

    def both(x: Any, y: Any) -> Any:
        return _quantised(ir.build("ai.maximum", x, y), "ai.sigmoid", "uint8", "uint8")

    assert "2 operands" in _refused([byte, byte], both)
    short = lambda x: _quantised(x, "ai.sigmoid", "uint8", "uint8")  # noqa: E731
    assert "900 elements" in _refused([tensor("900", "uint8")], short)
    assert "float32 to" in _refused([tensor("5000")], lambda x: ir.build("ai.sigmoid", x))
    assert "too little" in _refused([byte], lambda x: ir.build("ai.maximum", x, x))
    turned = lambda x: ir.build("ai.transpose", short(x), perm=(1, 0))  # noqa: E731
    assert "move" in _refused([tensor("50,50", "uint8")], turned)
