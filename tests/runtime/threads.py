"""Several threads that call one model."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

THREADS = 6


def on_threads(work: Callable[[int], None]) -> None:
    """work(seed) on THREADS threads at once, seeds 0 and up. Raises what one of them raises."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
