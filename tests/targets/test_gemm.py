"""Matrix products of every shape, operand form and epilogue agree with the interpreter."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.types import TensorType
from cuvilc.targets.region import Miss, Region
from cuvilc.targets.schedules.gemm import schedule
from cuvilc.targets.schedules.gemm_plan import plan_of
from cuvilc.targets.schedules.microkernel import moved_back
from tests.targets.kernel_harness import (
    V3,
    V4,
    check,
    program_of,
)
from tests.targets.samples import on_chips

M, N, K = symbol("m"), symbol("n"), symbol("k")


def t(*shape: Any, dtype: str = "float32", layout: str = "") -> TensorType:
    return TensorType(shape, dtype, layout)


def product(a: TensorType, b: TensorType, **attrs: Any) -> Any:
    return program_of([a, b], lambda x, y: ir.build("ai.matmul", x, y, **attrs))


def biased(a: TensorType, b: TensorType, n: int, *activations: str) -> Any:
    def body(x: Any, y: Any, bias: Any) -> Any:
        value = ir.build("ai.elemwise_add", ir.build("ai.matmul", x, y), bias)
        for name in activations:
            value = ir.build(name, value)
        return value

    return program_of([a, b, t(n)], body)


@on_chips
@pytest.mark.parametrize(("n", "k"), [(33, 5), (1000, 64), (32, 1), (3, 64)])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 7, 8, 13, 14, 15, 29, 127, 129])
def test_static_rows(m: int, n: int, k: int, chip: Any) -> None:
    check(biased(t(m, k), t(k, n, layout="pack1_32"), n, "ai.relu"), chip, schedule)


@on_chips
@pytest.mark.parametrize(("k", "dtype"), [(1024, "float32"), (3072, "float32"), (512, "float64")])
@pytest.mark.parametrize("m", [1, 8, 9, 17, 29, M])
def test_rows_that_alias_in_the_cache(m: Any, k: int, dtype: str, chip: Any) -> None:
    """Rows of A a multiple of 4096 bytes apart."""
    sizes = [{"m": n} for n in (1, 8, 13, 27)] if m == M else [{}]
    check(product(t(m, k, dtype=dtype), t(k, 40, dtype=dtype)), chip, schedule, sizes)
    if dtype == "float32":
        check(product(t(m, k), t(k, 40, layout="pack1_32")), chip, schedule, sizes)


@pytest.mark.parametrize("m", [8, 9, 128, M])
def test_a_tile_has_no_more_rows_than_stay_in_the_cache(m: Any) -> None:
    def plan(k: int) -> Any:
        program = product(t(m, k), t(k, 64, layout="pack1_32"))
        with program:
            return plan_of(Region.of(program, program.function("main")), V4)

    aliased, free = plan(1024), plan(1040)
    assert aliased.a_direct
    assert aliased.rows <= 8
    assert free.a_direct
    assert free.rows > 8 or m == 8


@on_chips
@pytest.mark.parametrize("n", [1, 16, 31, 96])
def test_columns(n: int, chip: Any) -> None:
    check(biased(t(9, 64), t(k := 64, n, layout="pack1_32"), n, "ai.gelu"), chip, schedule)
    assert k == 64


@on_chips
@pytest.mark.parametrize(
    "shape", [(M, 64), (2, M, 64), (1, 1, M, 64), (M, 3, 64), (symbol("b"), M, 64)]
)
def test_symbolic_rows(shape: Any, chip: Any) -> None:
    program = biased(t(*shape), t(64, 40, layout="pack1_32"), 40, "ai.silu")
    sizes = [{"m": m, "b": 3} for m in (*range(17), 22, 26, 29, 130)]
    check(program, chip, schedule, sizes)


@on_chips
@pytest.mark.parametrize("n", [16, 40])
def test_symbolic_rows_are_the_same_bits_in_any_order_of_tasks(n: int, chip: Any) -> None:
    program = product(t(M, 4096), t(4096, n, layout="pack1_32"))
    check(program, chip, schedule, [{"m": m} for m in (*range(17, 24), 31, 34, 35, 45, 50)])


@on_chips
@pytest.mark.parametrize("n", [20, 40, 104])
@pytest.mark.parametrize("m", [2, 4, 7])
def test_overlapping_panels_are_the_same_bits_in_any_order_of_tasks(
    m: int, n: int, chip: Any
) -> None:
    for k in (4096, 4099):
        check(product(t(m, k), t(n, k), transpose_b=True), chip, schedule)
        check(product(t(m, k), t(k, n)), chip, schedule)


@pytest.mark.parametrize("sizes", [[14, 7, 4, 2, 1], [14, 5, 1], [6, 3, 2, 1], [2, 1], [1]])
def test_tiles_moved_back_cost_least(sizes: list[int]) -> None:
    """Against every way to cover the rows with smaller tiles."""

    def cheapest(rows: int, among: list[int]) -> int:
        return min(n + 1 + cheapest(rows - n, among) for n in among) if rows > 0 else 0

    for i, (size, least) in enumerate(zip(sizes, moved_back(sizes), strict=True)):
        for rows in range(1, size):
            assert (rows >= least) == (size + 1 <= cheapest(rows, sizes[i + 1 :])), (size, rows)


@on_chips
def test_transposed_weights(chip: Any) -> None:
    program = product(t(5, 30), t(70, 30, layout="pack0_32"), transpose_b=True)
    check(program, chip, schedule)


@on_chips
def test_vector_times_matrix(chip: Any) -> None:
    check(product(t(64), t(64, 50, layout="pack1_32")), chip, schedule)


@on_chips
@pytest.mark.parametrize("n", [3, 16, 20, 31, 32, 33, 100])
def test_plain_right_operand(n: int, chip: Any) -> None:
    check(product(t(2, 3, 19, 24), t(2, 3, 24, n)), chip, schedule)


@on_chips
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [8, 15, 16, 33, 49, 100])
@pytest.mark.parametrize("transposed", [False, True])
def test_many_rows_share_a_copied_panel(transposed: bool, n: int, dtype: str, chip: Any) -> None:
    for k in (1, 16, 37):
        b = t(2, *((n, k) if transposed else (k, n)), dtype=dtype)
        check(product(t(2, 67, k, dtype=dtype), b, transpose_b=transposed), chip, schedule)


@on_chips
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_few_rows_take_wide_pieces_of_a_plain_operand(m: int, dtype: str, chip: Any) -> None:
    for n in (9, 31, 64, 131, 300):
        check(product(t(m, 29, dtype=dtype), t(29, n, dtype=dtype)), chip, schedule)
        check(product(t(3, m, 8, dtype=dtype), t(3, 8, n, dtype=dtype)), chip, schedule)


@on_chips
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [3, 16, 35, 70])
def test_columns_of_a_transposed_left_operand(m: int, dtype: str, chip: Any) -> None:
    check(
        product(t(2, 37, m, dtype=dtype), t(37, 41, dtype=dtype), transpose_a=True), chip, schedule
    )


@on_chips
def test_float64(chip: Any) -> None:
    def wide(*shape: Any) -> TensorType:
        return t(*shape, dtype="float64")

    for m, n, k in ((1, 2, 1), (5, 33, 7), (29, 64, 128), (15, 3, 512), (9, 20, 1024)):
        check(product(wide(m, k), wide(k, n)), chip, schedule)
    sizes = [{"m": m, "n": n, "k": k} for m, n, k in ((1, 1, 1), (5, 33, 7), (29, 64, 5))]
    check(product(wide(2, M, K), wide(2, K, N)), chip, schedule, sizes)
    check(product(wide(2, M, K), wide(2, K, 48)), chip, schedule, sizes)


@on_chips
def test_float64_beside_other_operations(chip: Any) -> None:
    def body(x: Any, scale: Any, w: Any, bias: Any) -> Any:
        value = ir.build("ai.matmul", ir.build("ai.elemwise_mul", x, scale), w)
        return ir.build("ai.sigmoid", ir.build("ai.elemwise_add", value, bias))

    types = [t(*shape, dtype="float64") for shape in ((2, 50, 24), (24,), (24, 70), (70,))]
    check(program_of(types, body), chip, schedule)


@on_chips
def test_batches_broadcast(chip: Any) -> None:
    check(product(t(2, 1, 19, 24), t(3, 24, 40)), chip, schedule)
    check(product(t(19, 24), t(2, 24, 40)), chip, schedule)


@on_chips
def test_transposed_operands(chip: Any) -> None:
    check(product(t(2, 19, 24), t(2, 40, 24), transpose_b=True), chip, schedule)
    check(product(t(24, 19), t(24, 40, layout="pack1_32"), transpose_a=True), chip, schedule)
    check(product(t(2, 24, 19), t(2, 24, 40), transpose_a=True), chip, schedule)


@on_chips
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [5, 9, 20])
def test_transposed_columns_of_less_than_a_vector(n: int, dtype: str, chip: Any) -> None:
    a, b = (t(2, rows, 23, dtype=dtype) for rows in (19, n))
    check(product(a, b, transpose_b=True), chip, schedule)


@on_chips
def test_every_size_symbolic(chip: Any) -> None:
    sizes = [
        {"m": m, "n": n, "k": k} for m, n, k in ((1, 1, 1), (5, 33, 7), (29, 64, 5), (15, 20, 64))
    ]
    check(product(t(2, M, K), t(2, K, N)), chip, schedule, sizes)
    check(product(t(2, M, K), t(2, N, K), transpose_b=True), chip, schedule, sizes)
    check(product(t(2, M, K), t(2, K, 48)), chip, schedule, sizes)


@on_chips
@pytest.mark.parametrize("m", [37, M])
def test_prologue_and_several_results(m: Any, chip: Any) -> None:
    def body(x: Any, scale: Any, w: Any, residual: Any) -> Any:
        product = ir.build("ai.matmul", ir.build("ai.elemwise_mul", x, scale), w)
        added = ir.build("ai.elemwise_add", product, residual)
        return added, ir.build("ai.sigmoid", added)

    types = [t(2, m, 24), t(24), t(24, 70, layout="pack1_32"), t(2, m, 70)]
    check(program_of(types, body), chip, schedule, [{"m": n} for n in (1, 5, 37)])


@on_chips
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_storage(dtype: str, chip: Any) -> None:
    program = product(t(9, 40, dtype=dtype), t(40, 36, dtype=dtype, layout="pack1_32"))
    check(program, chip, schedule)


@pytest.mark.parametrize(
    ("rows", "b", "wanted"),
    [
        (8, t(70, 8, layout="pack1_32"), 16),
        (8, t(70, 40, layout="pack1_32"), 16),
        (50, t(70, 40), 16),
        (50, t(70, 60), 32),
    ],
)
def test_few_columns_take_half_a_panel(rows: int, b: TensorType, wanted: int) -> None:
    program = product(t(rows, 70), b)
    with program:
        plan = plan_of(Region.of(program, program.function("main")), V4)
    assert (plan.last_width, plan.width) == (wanted, 32)


@pytest.mark.parametrize("m", [(5000,), (8, 100), (1,)])
def test_small_products_have_tasks_for_several_threads(m: Any) -> None:
    k, n = (512, 1024) if m == (1,) else (100, 64)
    kernel = check(product(t(*m, k), t(*m[:-1], k, n)), V4, schedule)
    assert kernel.scheduled.facts.tasks >= 8


def test_wide_vectors_are_used() -> None:
    program = product(t(28, 64), t(64, 64, layout="pack1_32"))
    assert "%zmm" in check(program, V4, schedule).assembly()
    assert "%zmm" not in check(program, V3, schedule).assembly()


def test_refusals() -> None:
    column = (t(3, 4), t(4, 1))  # a reduction
    for a, b in ((t(3, 4, dtype="int32"), t(4, 5, dtype="int32")), (t(3, 4), t(4)), column):
        with pytest.raises(Miss):
            check(product(a, b), V4, schedule)
