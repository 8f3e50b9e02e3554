"""Softmax and normalisations on every sample, odd row lengths, prologues that are results, special
values.
"""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import rows
from tests.targets.kernel_harness import V3, V4, Kernel, check, compare, program_of, tensor
from tests.targets.samples import check_sample, on_chips, on_samples

LENGTHS = (1, 15, 16, 17, 31, 33, 64, 127, 129, 200)


@on_chips
@on_samples(lambda o: o.name in rows.ANCHORS)
def test_samples(name, case, chip):
    check_sample(name, case, chip, rows.schedule)


@on_chips
@pytest.mark.parametrize("name", ["ai.softmax", "ai.log_softmax"])
def test_symbolic_rows(name, chip):
    program = program_of([tensor("n,m")], lambda x: ir.build(name, x, axis=1))
    check(program, chip, rows.schedule, [{"n": 9, "m": m} for m in (0, *LENGTHS)])


@pytest.mark.parametrize("length", LENGTHS)
def test_static_rows(length):
    program = program_of([tensor(f"3,{length}")], lambda x: ir.build("ai.softmax", x, axis=1))
    check(program, V4, rows.schedule)


@on_chips
@pytest.mark.parametrize("around", ["", "before", "both"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_rows_longer_than_the_first_cache_level(dtype, around, chip):
    """Their exponentials wait in the result, where its dtype is what is computed with."""

    def body(x, y):
        made = ir.build("ai.softmax", ir.build("ai.elemwise_add", x, y) if around else x, axis=2)
        return ir.build("ai.elemwise_mul", made, y) if around == "both" else made

    program = program_of([tensor("2,3,9001", dtype), tensor("3,9001", dtype)], body)
    check(program, chip, rows.schedule)


@on_chips
def test_residual_is_also_a_result(chip):
    def body(x, y, scale, bias):
        total = ir.build("ai.elemwise_add", x, y)
        return ir.build("ai.layer_norm", total, scale, bias, axis=2), total

    program = program_of([tensor("b,s,100"), tensor("b,s,100"), tensor("100"), tensor("100")], body)
    check(program, chip, rows.schedule, [{"b": 1, "s": 1}, {"b": 2, "s": 19}])


@on_chips
def test_scaled_masked_softmax(chip):
    def body(x, mask):
        scaled = ir.build("ai.elemwise_mul", x, ir.full(0.125))
        return ir.build("ai.softmax", ir.build("ai.elemwise_add", scaled, mask), axis=3)

    program = program_of([tensor("b,4,s,t"), tensor("b,1,1,t")], body)
    check(program, chip, rows.schedule, [{"b": 2, "s": 5, "t": t} for t in (1, 37, 128)])


def test_epilogue():
    def body(x, scale, y):
        return ir.build(
            "ai.elemwise_mul", ir.build("ai.silu", ir.build("ai.rms_norm", x, scale, axis=1)), y
        )

    check(
        program_of([tensor("n,77"), tensor("77"), tensor("n,77")], body),
        V3,
        rows.schedule,
        [{"n": 13}],
    )


@pytest.mark.parametrize("shape", ["2,6,3,5", "1,4,37", "2,n,m", "1,6,17,33"])
@on_chips
def test_group_and_instance(shape, chip):
    channels = shape.split(",")[1]
    types = [tensor(shape), tensor(channels), tensor(channels)]
    sizes = [{"n": n, "m": 40} for n in (2, 6)] if "n" in shape else [{}]
    check(
        program_of(types, lambda *a: ir.build("ai.instance_norm", *a)), chip, rows.schedule, sizes
    )
    check(
        program_of(types, lambda *a: ir.build("ai.group_norm", *a, groups=2)),
        chip,
        rows.schedule,
        sizes,
    )


@pytest.mark.parametrize("name", ["ai.softmax", "ai.log_softmax"])
@pytest.mark.parametrize("axis", [0, 1])
@on_chips
def test_softmax_across(name, axis, chip):
    program = program_of(
        [tensor("n,7,m")], lambda x: ir.build(name, ir.build("ai.relu", x), axis=axis)
    )
    check(program, chip, rows.schedule, [{"n": 3, "m": m} for m in (1, 16, 35)])


def test_special_values():
    x = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32) * 50
    x[0, 3], x[1, :], x[2, 5], x[3, 1:] = np.nan, -np.inf, np.inf, -np.inf
    x[4] = 1e30
    for name in ("ai.softmax", "ai.log_softmax"):
        for axis, values in ((1, x), (0, x.T.copy())):
            shape = ",".join(map(str, values.shape))
            program = program_of(
                [tensor(shape)], lambda x, name=name, axis=axis: ir.build(name, x, axis=axis)
            )
            compare(program, {"x0": values}, V4, rows.schedule)


def test_epilogue_that_moves_elements_is_refused():
    def body(x):
        return ir.build("ai.transpose", ir.build("ai.softmax", x, axis=1), perm=(1, 0))

    with pytest.raises(Miss, match="moves elements"):
        Kernel(program_of([tensor("4,4")], body), V4, rows.schedule)
