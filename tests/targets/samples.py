"""The samples of operations' declarations as tests of a schedule, on every chip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cuvilc.dialect.op import OPS, OpDef, Sample
from cuvilc.targets.chip import Chip
from tests.dialect.ops.one_op import all_samples, build, operand_arrays, operand_types
from tests.targets.kernel_harness import CHIPS, Schedule, compare

on_chips = pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)


def on_samples(wanted: Callable[[OpDef], Any]) -> pytest.MarkDecorator:
    """Parametrise by (name, case): the samples of the operations for which `wanted` holds."""
    found = [s for s in all_samples() if wanted(OPS[s[0]])]
    assert found
    ids = [f"{name}-{number}" for name, number, _ in found]
    return pytest.mark.parametrize(("name", "case"), [(n, s) for n, _, s in found], ids=ids)


def check_sample(name: str, case: Sample, chip: Chip, schedule: Schedule) -> None:
    """Assert that the operation's kernel agrees with the interpreter on the sample."""
    feeds = {f"x{n}": a for n, a in enumerate(operand_arrays(name, case))}
    compare(build(name, operand_types(case), case.attrs), feeds, chip, schedule)
