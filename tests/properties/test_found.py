"""Models that random ones were once wrong on, each of its own kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.properties import check
from tests.properties.draws import Case, Model


def _case(op: str, opset: int, arrays: list[np.ndarray], out: list[str], **more: object) -> Case:
    made = Model(op, opset)
    return made.case([made.input(a) for a in arrays], out, **more)


def _channels() -> Case:
    """No element, but sizes beside: which the reference of the operation could not divide."""
    x = np.zeros((0, 4, 1, 1), np.float32)
    return _case("DepthToSpace", 13, [x], ["float32"], blocksize=2)


FOUND: dict[str, Callable[[], Case]] = {
    "indices of one element, compared": lambda: _case(
        "Hardmax", 13, [np.ones((2, 1), np.float32)], ["float32"], axis=1
    ),
    "a sign without sign": lambda: _case("Sign", 13, [np.array([0, 3, 255], np.uint8)], ["uint8"]),
    "integers that shrink": lambda: _case(
        "Shrink", 9, [np.array([-3, 0, 4], np.int32)], ["int32"], bias=1.5, lambd=1.0
    ),
    "more parts than elements are left for": lambda: _case(
        "Split", 18, [np.arange(5, dtype=np.float32)], ["float32"] * 4, num_outputs=4
    ),
    "channels of nothing": _channels,
}


@pytest.mark.parametrize("name", FOUND)
def test_is_right_now(name: str) -> None:
    case = FOUND[name]()
    wanted = check.answers(case)
    assert wanted
    for run in (check.by_interpreter, check.by_package):
        assert not check.different(case, run(case), wanted)
