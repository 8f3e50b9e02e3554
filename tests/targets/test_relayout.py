"""Relayouts of channels that do not fill a block agree with the interpreter, both ways."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules.relayout import schedule
from tests.targets.kernel_harness import (
    V2,
    V4,
    Kernel,
    Launch,
    check,
    program_of,
    random_feeds,
    tensor,
)
from tests.targets.samples import on_chips

LAYOUT = "NCHW16c"


@on_chips
@pytest.mark.parametrize("channels", [1, 3, 8, 9, 17, 30, 37])
@pytest.mark.parametrize("size", ["4,4", "5,7", "1,33", "25,41"])
@pytest.mark.parametrize("into", [LAYOUT, ""])
def test_sizes(into: str, size: str, channels: int, chip: Any) -> None:
    t = tensor(f"n,{channels},{size}", layout="" if into else LAYOUT)
    program = program_of([t], lambda x: ir.build("ai.relayout", x, layout=into))
    check(program, chip, schedule, [{"n": n} for n in (1, 3)])


@on_chips
def test_channels_that_do_not_exist_are_zeros(chip: Any) -> None:
    t = tensor("2,21,6,5")
    program = program_of([t], lambda x: ir.build("ai.relayout", x, layout=LAYOUT))
    launch = Launch(Kernel(program, chip, schedule), random_feeds(program))
    launch(0, launch.tasks)
    blocks = launch.buffers[1]
    assert blocks.shape == (2, 2, 6, 5, 16)
    assert not blocks[:, 1, ..., 5:].any() and blocks[:, 1, ..., :5].all()


@pytest.mark.parametrize("into", [LAYOUT, ""])
def test_integers_and_narrow_vectors(into: str) -> None:
    t = tensor("2,21,6,5", "int32", layout="" if into else LAYOUT)
    check(program_of([t], lambda x: ir.build("ai.relayout", x, layout=into)), V2, schedule)


@pytest.mark.parametrize(("shape", "dtype"), [("1,32,8,8", "float32"), ("1,3,8,8", "float16")])
def test_refusals(shape: str, dtype: str) -> None:
    program = program_of(
        [tensor(shape, dtype)], lambda x: ir.build("ai.relayout", x, layout=LAYOUT)
    )
    with pytest.raises(Miss):
        check(program, V4, schedule)
