"""Which schedule a kernel gets, and what is said when there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.diagnostics import CuvilError
from cuvilc.dialect import ir
from cuvilc.dialect.types import TensorType
from cuvilc.targets import schedules
from cuvilc.targets.kernels import schedule_kernel
from cuvilc.targets.schedules import empty
from tests.dialect.ops.one_op import all_samples, build, operand_types
from tests.targets.kernel_harness import V3, V4, Kernel, program_of


def conv(x: Any, w: Any) -> Any:
    return ir.build(
        "ai.conv", x, w, strides=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1)
    )


def test_results_without_elements_need_no_loops() -> None:
    types = [TensorType((0, 3, 5, 5), "float32"), TensorType((4, 3, 3, 3), "float32")]
    program = program_of(types, conv)
    with program:
        facts = schedule_kernel(program, program.function("main"), V4, "main").facts
    assert (facts.schedule, facts.tasks) == ("empty", 0)
    x, w = (np.zeros(t.shape, np.float32) for t in types)
    (y,) = Kernel(program, V4, empty.schedule).run({"x0": x, "x1": w})
    assert y.shape == (0, 4, 5, 5)


EMPTY = [s for s in all_samples() if any(t and 0 in t.shape for t in operand_types(s[2]))]


@pytest.mark.parametrize(("name", "number", "case"), EMPTY, ids=str)
def test_every_empty_sample_has_a_schedule(name: str, number: int, case: Any) -> None:
    program = build(name, operand_types(case), case.attrs)
    with program:
        facts = schedule_kernel(program, program.function("main"), V3, "main").facts
    assert facts.schedule


def test_no_schedule_is_a_diagnostic(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [s for s in schedules.SCHEDULES if s[0] in ("empty", "attention")]
    monkeypatch.setattr(schedules, "SCHEDULES", few)
    program = program_of([TensorType((2, 3), "float32")], lambda x: ir.build("ai.tanh", x))
    with program, pytest.raises(CuvilError) as caught:
        schedule_kernel(program, program.function("main"), V4, "main")
    (found,) = caught.value.diagnostics
    assert found.code == "CUV403"
    assert "ai.tanh" in found.evidence
    assert found.notes == ["empty: a result has elements", "attention: 0 attentions, not one"]
