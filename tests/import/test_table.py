"""The table of operators is whole for whoever asks it."""

from __future__ import annotations

import subprocess
import sys

# In a fresh process: the first question, from several threads at once.
_ASKED = """
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from threading import Barrier

table, together = import_module("cuvilc.import._table"), Barrier(4)

def ask(op):
    together.wait()
    return table.find("", op, 18) is not None

with ThreadPoolExecutor(4) as pool:
    print(all(pool.map(ask, ["ReduceMean", "Where", "Xor", "Unsqueeze"])))
"""


def test_the_first_build_may_be_several_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ASKED], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "True"
