"""Ctrl-C in the middle of a call: later calls are right, and nothing is left running."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import cuvil
import fake_models
import numpy as np
import pytest

from tests.tolerances import mismatch

# Each test with both ways into the library.
pytestmark = pytest.mark.usefixtures("way")
LOADER = os.path.dirname(cuvil.__file__)


def interrupt(line: int) -> Callable[..., Any]:
    """For sys.settrace: KeyboardInterrupt before the loader's line of that number, as they run."""
    left = line

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal left
        if LOADER not in frame.f_code.co_filename:
            return None
        left -= event == "line"
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    return trace


def test_an_interrupt_at_any_line_leaves_later_runs_right(make):
    model, before = cuvil.load(make(fake_models.mlp()), threads=1), sys.gettrace()
    few, many = (np.full((size, fake_models.K), size, np.float32) for size in (2, 60))
    line, interrupted = 0, True
    while interrupted:
        model(few)
        sys.settrace(interrupt(line))
        try:
            model(many)
            interrupted = False
        except KeyboardInterrupt:
            line += 1
        finally:
            sys.settrace(before)
        for x in (many, few):
            assert not mismatch(model(x).y, fake_models.mlp_reference(x)), line
    assert line > 10


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="counts threads as Linux does")
def test_a_context_that_is_not_finished_leaves_no_threads(make, monkeypatch):
    """They would run code of a library that is unloaded."""

    def fail(*arguments: object) -> None:
        raise KeyboardInterrupt

    path, before = make(fake_models.mlp()), os.listdir("/proc/self/task")
    monkeypatch.setattr("cuvil._quick.make", fail)
    with pytest.raises(KeyboardInterrupt):
        cuvil.load(path, threads=4)
    assert os.listdir("/proc/self/task") == before
