"""The samples of operations' declarations as tests of a schedule, on every chip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cuvilc.dialect.op import OPS, OpDef, Sample
from cuvilc.targets import x86
from cuvilc.targets.chip import Chip
from tests.dialect.ops.one_op import all_samples, build, operand_arrays, operand_types
from tests.targets.kernel_harness import CHIPS, V3, V4, Schedule, compare


def needs(chip: Chip) -> pytest.MarkDecorator:
    """Skips where this machine cannot run the chip's code."""
    absent = chip.name in x86.CHIPS and not x86.runs_here(x86.CHIPS[chip.name])
    return pytest.mark.skipif(absent, reason=f"no {chip.name} here")


on_chips = pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)
VNNI = x86.CHIPS["x86-64-v4-vnni"]
# The levels with their own instructions for products of bytes, and one that has none.
_DOT_CHIPS = [V4, *(x86.CHIPS[f"x86-64-{v}"] for v in ("v4", "v3", "v2")), VNNI]
BF16 = x86.CHIPS["x86-64-v4-bf16"]


def _on(chips: list[Chip]) -> pytest.MarkDecorator:
    cases = [
        pytest.param(c, id=c.name + ("" if c.dots else "-portable"), marks=needs(c)) for c in chips
    ]
    return pytest.mark.parametrize("chip", cases)


on_dot_chips, on_bf16_chips = _on(_DOT_CHIPS), _on([BF16, V4, V3])


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
