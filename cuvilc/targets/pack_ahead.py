"""Weights that are packed beside the passes which lower the program: by the time that the package
asks for the first ones, they lie as its kernels read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.ir import Program
from cuvilc.dialect.types import to_layout

_WEIGHTS = ("ai.constant", "ai.parameter")
_MOST_BYTES = 64 << 20  # that wait to be asked for


@contextmanager
def packed_ahead(program: Program) -> Iterator[None]:
    """Until the block ends, `packed` finds the program's first weights made, or being made.

    The program's layouts are chosen. Where a later pass chooses otherwise, the work was in vain.
    """
    with program:
        found = [o for o in ir.walk(ir.body(program.function("main"))) if o.name in _WEIGHTS]
        wanted = dict.fromkeys((ir.attrs(o)["key"], ir.attrs(o)["layout"]) for o in found)
    total = 0
    with ThreadPoolExecutor(1, "pack") as pool:
        for key, layout in wanted:
            array = program.weights.get(key)
            if not layout or array is None:
                continue
            total += array.nbytes
            if total > _MOST_BYTES:
                break
            program.packing[key, layout] = pool.submit(to_layout, array, layout)
        try:
            yield
        finally:
            program.packing.clear()
            pool.shutdown(cancel_futures=True)


def packed(program: Program, key: str, layout: str) -> np.ndarray:
    """The weight `key` as it lies in memory in `layout`."""
    future: Future[np.ndarray] | None = program.packing.pop((key, layout), None)
    return to_layout(program.weights[key], layout) if future is None else future.result()
