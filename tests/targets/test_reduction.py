"""Reductions: every sample, axes in every position, odd extents, prologues and epilogues, NaN."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import reduction
from tests.targets.kernel_harness import V3, V4, check, compare, program_of, tensor
from tests.targets.samples import check_sample, on_chips, on_samples

FOLDS = ("ai.reduce_sum", "ai.reduce_max", "ai.reduce_mean", "ai.reduce_prod", "ai.reduce_min")


@on_chips
@on_samples(lambda o: o.name in reduction.ANCHORS)
def test_samples(name, case, chip):
    check_sample(name, case, chip, reduction.schedule)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2)])
@on_chips
def test_axes(axes, chip):
    for shape, sizes in (
        ("3,17,33", [{}]),
        ("3,n,m", [{"n": n, "m": m} for n, m in ((1, 1), (5, 64), (0, 3), (9, 129))]),
    ):
        program = program_of(
            [tensor(shape)], lambda x: ir.build("ai.reduce_sum", x, axes=axes, keepdims=False)
        )
        check(program, chip, reduction.schedule, sizes)


@pytest.mark.parametrize("name", FOLDS)
def test_fused(name):
    """A computed operand, and a result that goes through a reshape and arithmetic."""

    def body(x, y):
        total = ir.build(name, ir.build("ai.elemwise_mul", x, y), axes=(2, 3), keepdims=True)
        return ir.build("ai.tanh", ir.build("ai.reshape", total, shape=(2, 6)))

    check(program_of([tensor("2,6,5,7"), tensor("6,1,1")], body), V4, reduction.schedule)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [2, 5, 64, 300])
@on_chips
def test_products_with_a_row_or_a_column(k, dtype, chip):
    for a, b, turned in (
        (f"7,{k}", f"{k},1", False), (f"3,1,{k}", f"3,{k},1", False), (f"2,5,{k}", f"{k},1", False),
        (f"1,{k}", f"9,{k}", True), (f"2,1,{k}", f"2,9,{k}", True), (f"7,{k}", f"1,{k}", True),
    ):  # fmt: skip

        def body(x, y, z, turned=turned):
            return ir.build("ai.elemwise_add", ir.build("ai.matmul", x, y, transpose_b=turned), z)

        types = [tensor(a, dtype), tensor(b, dtype), tensor("1,1", dtype)]
        check(program_of(types, body), chip, reduction.schedule)


def test_products_along_scattered_memory_are_refused():
    for a, b, attrs in (("7,8", "8,2", {}), ("8,7", "8,1", {"transpose_a": True})):
        program = program_of(
            [tensor(a), tensor(b)], lambda x, y, attrs=attrs: ir.build("ai.matmul", x, y, **attrs)
        )
        with pytest.raises(Miss):
            check(program, V4, reduction.schedule)


@pytest.mark.parametrize("channels", [32, 19])
@pytest.mark.parametrize("keepdims", [True, False])
@on_chips
def test_blocked_mean(channels, keepdims, chip):
    t = tensor(f"2,{channels},5,7", layout="NCHW16c")
    program = program_of(
        [t], lambda x: ir.build("ai.reduce_mean", x, axes=(2, 3), keepdims=keepdims)
    )
    check(program, chip, reduction.schedule)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("select_last", [False, True])
@on_chips
def test_arg(axis, select_last, chip):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (37, 67)).astype(np.float32)
    x[3, 5], x[3, 9], x[8, :] = np.nan, np.nan, -np.inf
    for name in ("ai.arg_max", "ai.arg_min"):

        def body(v, name=name):
            return ir.build(name, v, axis=axis, keepdims=False, select_last=select_last)

        compare(program_of([tensor("n,m")], body), {"x0": x}, chip, reduction.schedule)


def test_nan_wins():
    x = np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32)
    x[3, 17] = np.nan
    for axes in ((0,), (1,)):
        for name in ("ai.reduce_max", "ai.reduce_min"):
            body = lambda v, name=name: ir.build(name, v, axes=axes, keepdims=False)  # noqa: B023, E731
            compare(program_of([tensor("40,50")], body), {"x0": x}, V3, reduction.schedule)


@pytest.mark.parametrize("shape", ["3,5,7,7", "2,3,14,14", "4,9,1,6", "2,3,33,5"])
@on_chips
def test_axes_that_lie_one_in_the_other_are_one_loop(shape, chip):
    """Also behind a value that broadcasts along one of them, and where they do not."""
    t = tensor(shape)
    height, width = t.shape[2:]
    for axes in ((2, 3), (1, 2, 3), (1, 3)):
        for other in (f"{height},{width}", f"1,{width}", f"{height},1"):

            def body(x, y, axes=axes):
                made = ir.build("ai.elemwise_mul", x, y)
                return ir.build("ai.reduce_sum", made, axes=axes, keepdims=False)

            check(program_of([t, tensor(other)], body), chip, reduction.schedule)
        plain = program_of(
            [t], lambda x, a=axes: ir.build("ai.reduce_max", x, axes=a, keepdims=True)
        )
        check(plain, chip, reduction.schedule)
