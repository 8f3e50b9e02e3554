"""The fallback takes every operation with an `element` or a `term` facet."""

from __future__ import annotations

from cuvilc.dialect import ir
from cuvilc.targets.schedules import fallback
from tests.targets.kernel_harness import V4, check, program_of, tensor
from tests.targets.samples import check_sample, on_chips, on_samples


@on_chips
@on_samples(lambda o: o.facet("term"))
def test_samples(name, case, chip):
    check_sample(name, case, chip, fallback.schedule)


def test_two_reductions_and_arithmetic():
    def body(a, b):
        total = ir.build("ai.reduce_sum", ir.build("ai.matmul", a, b), axes=(2,), keepdims=True)
        return ir.build("ai.tanh", total)

    check(
        program_of([tensor("2,n,7"), tensor("2,7,5")], body),
        V4,
        fallback.schedule,
        [{"n": n} for n in (0, 1, 20)],
    )


def test_results_in_two_layouts():
    t = tensor("1,16,3,5", layout="NCHW16c")
    program = program_of(
        [t], lambda x: (ir.build("ai.relu", x), ir.build("ai.relayout", x, layout=""))
    )
    check(program, V4, fallback.schedule)
