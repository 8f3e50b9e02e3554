"""float32 times bfloat16: products and convolutions agree with the interpreter on every level."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.types import TensorType
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import conv_dot, fallback, gemm_dot
from tests.targets.kernel_harness import V3, V4, check, program_of
from tests.targets.samples import BF16, on_bf16_chips

M = symbol("m")


def product(a: Any, n: int, layout: str = "dot1_32x2") -> Any:
    def body(x: Any, w: Any, bias: Any) -> Any:
        return ir.build(
            "ai.relu", ir.build("ai.elemwise_add", ir.build("ai.matmul_mixed", x, w), bias)
        )

    types = [TensorType(a), TensorType((a[-1], n), "bfloat16", layout), TensorType((n,))]
    return program_of(types, body)


def conv(
    x: Any, w: Any, pads: Any, layout: str = "NCHW16c", strides: Any = (1, 1), groups: int = 1,
    stack: Any = (1, 1),
) -> Any:  # fmt: skip
    attrs = {
        "strides": strides, "pads_begin": pads, "pads_end": pads, "dilations": (1, 1),
        "groups": groups, "out_layout": "NCHW16c", "stack": stack[0], "stack_step": stack[1],
    }  # fmt: skip
    types = [
        TensorType(x, layout=layout), TensorType(w, "bfloat16", "dot0_32x2"), TensorType(w[:1]),
    ]  # fmt: skip
    return program_of(types, lambda *v: ir.build("ai.relu", ir.build("ai.conv_mixed", *v, **attrs)))


@on_bf16_chips
@pytest.mark.parametrize(("n", "k"), [(33, 7), (64, 64), (5, 65), (650, 40)])
@pytest.mark.parametrize("m", [1, 14, 29])
def test_products(m: int, n: int, k: int, chip: Any) -> None:
    check(product((m, k), n), chip, gemm_dot.schedule)


@on_bf16_chips
def test_any_number_of_rows(chip: Any) -> None:
    sizes = [{"m": m} for m in (0, 1, 5, 30)]
    check(product((2, M, 64), 40), chip, gemm_dot.schedule, sizes)


@on_bf16_chips
@pytest.mark.parametrize(
    "program",
    [
        conv((1, 3, 30, 30), (20, 3, 7, 7), (3, 3), "", (2, 2)),
        conv((2, 32, 9, 9), (40, 32, 3, 3), (1, 1)),
        conv((1, 20, 7, 5), (33, 20, 1, 1), (0, 0)),
        conv((1, 32, 40, 8), (280, 32, 1, 1), (0, 0)),
        conv((1, 96, 7, 9), (96, 48, 3, 3), (1, 1), groups=2),
        conv((2, 40, 1, 61), (33, 40, 1, 3), (0, 1), strides=(1, 2)),
        conv((1, 7, 1, 30), (16, 7, 1, 3), (0, 1)),
        conv((5, 32, 9, 9), (40, 96, 3, 3), (1, 1), stack=(3, 1)),
        conv((7, 32, 6, 9), (40, 64, 1, 1), (0, 0), stack=(2, 3)),
        conv((6, 5, 9, 7), (33, 15, 3, 3), (1, 1), "", stack=(3, 2)),
    ],
    ids=[
        "first layer", "3x3", "one tap", "many outputs", "groups", "a line", "an odd line",
        "a stack", "a stack of one tap", "a plain stack",
    ],
)  # fmt: skip
def test_convolutions(program: Any, chip: Any) -> None:
    check(program, chip, conv_dot.schedule)


@on_bf16_chips
@pytest.mark.parametrize(
    "program", [product((65,), 33), conv((1, 3, 5, 6), (33, 3, 2, 3), (1, 0), "")],
    ids=["vector", "convolution"],
)  # fmt: skip
def test_what_has_no_tiles_reads_the_same_weights(program: Any, chip: Any) -> None:
    check(program, chip, fallback.schedule)


def test_one_instruction_multiplies() -> None:
    program = product((28, 64), 64)
    assert "vdpbf16ps" in check(program, BF16, gemm_dot.schedule, []).assembly()
    assert "vdpbf16ps" not in check(program, V4, gemm_dot.schedule, []).assembly()
    assert "vfmadd" in check(program, V3, gemm_dot.schedule, []).assembly()


def test_one_instruction_rounds() -> None:
    for program, schedule in (
        (product((28, 64), 64), gemm_dot.schedule),
        (conv((2, 32, 9, 9), (40, 32, 3, 3), (1, 1)), conv_dot.schedule),
    ):
        assert "vcvtneps2bf16" in check(program, BF16, schedule, []).assembly()
        assert "vcvtneps2bf16" not in check(program, V4, schedule, []).assembly()


def test_refusals() -> None:
    with pytest.raises(Miss):
        check(product((3, 4), 5, ""), V4, gemm_dot.schedule)
