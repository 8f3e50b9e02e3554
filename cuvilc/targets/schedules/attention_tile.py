"""A tile of sums of outer products, its accumulators in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuvilc.targets.tir import KernelBuilder, const


def outer_product(
    b: KernelBuilder, rows: int, vectors: int, lanes: int, depth: Any, dtype: str,
    left: Callable[[int, Any], Any], right: Callable[[Any, Any], Any],
    before: Callable[[int, Any], Any] | None, store: Callable[[int, Any, Any], None],
) -> None:  # fmt: skip
    """store(r, c, before(r, c) + Σ left(r, i) · right(i, c)).

    r < rows, c < vectors · lanes, i < depth.
    """
    sums, line = b.local(rows * vectors * lanes, dtype), b.local(vectors * lanes, dtype)
    kind = "vectorized" if lanes > 1 else "serial"

    def each(action: Callable[[int, Any], None]) -> None:
        for r in range(rows):
            for n in range(vectors):
                with b.loop(lanes, kind) as lane:
                    action(r, lane + n * lanes)

    def start(r: int, c: Any) -> None:
        value = before(r, c) if before else const(0.0, dtype)
        b.store(sums, c + (r * vectors * lanes), value)

    each(start)
    with b.loop(depth) as i:
        for n in range(vectors):
            with b.loop(lanes, kind) as lane:
                b.store(line, lane + n * lanes, right(i, lane + n * lanes))
        weights = [b.let(left(r, i)) for r in range(rows)]

        def add(r: int, c: Any) -> None:
            place = c + (r * vectors * lanes)
            b.store(sums, place, b.load(sums, place) + weights[r] * b.load(line, c))

        each(add)
    each(lambda r, c: store(r, c, b.load(sums, c + (r * vectors * lanes))))
