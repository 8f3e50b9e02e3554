"""Products of bytes: every shape and operand form agrees with the interpreter, on every level."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.types import TensorType
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules.gemm_dot import schedule
from tests.targets.kernel_harness import V4, check, program_of
from tests.targets.samples import VNNI, on_dot_chips

M, N, K = symbol("m"), symbol("n"), symbol("k")
PACKED = "dot1_32x4"


def t(*shape: Any, dtype: str = "uint8", layout: str = "") -> TensorType:
    return TensorType(shape, dtype, layout)


def product(a: TensorType, b: TensorType) -> Any:
    return program_of([a, b], lambda x, y: ir.build("ai.matmul_integer", x, y))


def requantised(m: Any, k: int, n: int, residual: bool) -> Any:
    """The epilogue of a quantised layer: bias, scales, a dequantised residual, rounding."""

    def body(a: Any, b: Any, bias: Any, scale: Any, more: Any) -> Any:
        total = ir.build("ai.elemwise_add", ir.build("ai.matmul_integer", a, b), bias)
        y = ir.build("ai.elemwise_mul", ir.build("ai.cast", total, dtype="float32"), scale)
        if residual:
            zero = ir.full(7, (), "uint8")
            other = ir.build("ai.dequantize_linear", more, ir.full(0.25), zero, axis=0)
            y = ir.build("ai.relu", ir.build("ai.elemwise_add", y, other))
        zero = ir.full(100, (), "uint8")
        return ir.build("ai.quantize_linear", y, ir.full(1.0), zero, axis=0)

    types = [
        t(m, k), t(k, n, dtype="int8", layout=PACKED), t(n, dtype="int32"), t(n, dtype="float32"),
        t(m, n),
    ]  # fmt: skip
    return program_of(types, body)


@on_dot_chips
@pytest.mark.parametrize("layout", [PACKED, ""])
@pytest.mark.parametrize(("n", "k"), [(33, 5), (100, 64), (3, 66), (16, 1)])
@pytest.mark.parametrize("m", [1, 5, 29])
def test_static(m: int, n: int, k: int, layout: str, chip: Any) -> None:
    check(product(t(m, k), t(k, n, dtype="int8", layout=layout)), chip, schedule)


@on_dot_chips
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("m", [13, M])
def test_epilogue(m: Any, residual: bool, chip: Any) -> None:
    sizes = [{"m": s} for s in (1, 2, 13, 40)]
    check(requantised(m, 36, 40, residual), chip, schedule, sizes)


@on_dot_chips
def test_batches(chip: Any) -> None:
    check(product(t(2, 3, 19, 24), t(2, 3, 24, 40, dtype="int8")), chip, schedule)
    check(product(t(2, 1, 19, 24), t(3, 24, 40, dtype="int8")), chip, schedule)
    check(product(t(2, 3, 5, 24), t(24, 40, dtype="int8", layout=PACKED)), chip, schedule)


@on_dot_chips
def test_symbolic(chip: Any) -> None:
    sizes = [
        {"m": m, "n": n, "k": k} for m, n, k in ((1, 1, 1), (5, 33, 7), (29, 64, 6), (15, 20, 64))
    ]
    check(product(t(2, M, K), t(2, K, N, dtype="int8")), chip, schedule, sizes)
    few = [{"m": m} for m in (0, 1, 2, 5, 13, 30)]
    check(product(t(2, M, 64), t(64, 40, dtype="int8", layout=PACKED)), chip, schedule, few)


def test_one_instruction_multiplies() -> None:
    program = product(t(28, 64), t(64, 64, dtype="int8", layout=PACKED))
    assert "vpdpbusd" in check(program, VNNI, schedule, []).assembly()
    assert "vpdpbusd" not in check(program, V4, schedule, []).assembly()


def test_refusals() -> None:
    a, b = t(3, 4), t(4, 5, dtype="int8")
    zero = TensorType((), "uint8")
    centred = program_of([a, b, zero], lambda x, y, z: ir.build("ai.matmul_integer", x, y, z))
    for program in (product(t(3, 4, dtype="int8"), b), product(t(4), b), centred):
        with pytest.raises(Miss):
            check(program, V4, schedule)
