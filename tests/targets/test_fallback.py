"""The fallback takes every operation with an `element` or a `term` facet."""

from __future__ import annotations

import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.op import OPS
from cuvilc.targets.schedules import fallback
from tests.dialect.ops.one_op import all_samples, build, operand_arrays, operand_types
from tests.targets.kernel_harness import CHIPS, V4, check, program_of
from tests.targets.test_elementwise import _t, compare

CASES = [s for s in all_samples() if OPS[s[0]].facet("term")]


@pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("name", "number", "case"), CASES, ids=lambda v: v if isinstance(v, (str, int)) else ""
)
def test_samples(name, number, case, chip):
    program = build(name, operand_types(case), case.attrs)
    feeds = {f"x{n}": a for n, a in enumerate(operand_arrays(name, case))}
    compare(program, feeds, chip, fallback.schedule)


def test_two_reductions_and_arithmetic():
    def body(a, b):
        total = ir.build("ai.reduce_sum", ir.build("ai.matmul", a, b), axes=(2,), keepdims=True)
        return ir.build("ai.tanh", total)

    check(
        program_of([_t("2,n,7"), _t("2,7,5")], body),
        V4,
        fallback.schedule,
        [{"n": n} for n in (0, 1, 20)],
    )


def test_results_in_two_layouts():
    t = _t("1,16,3,5", layout="NCHW16c")
    program = program_of(
        [t], lambda x: (ir.build("ai.relu", x), ir.build("ai.relayout", x, layout=""))
    )
    check(program, V4, fallback.schedule)
