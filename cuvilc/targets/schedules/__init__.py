"""The schedules in the order they are tried: the first that does not miss takes the region."""

from __future__ import annotations

from collections.abc import Callable

from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Region, Scheduled
from cuvilc.targets.schedules import conv, depthwise, elementwise, fallback, gemm, pool, rows

Schedule = Callable[[Region, Chip, str], Scheduled]

SCHEDULES: tuple[tuple[str, Schedule], ...] = (
    ("gemm", gemm.schedule),
    ("conv", conv.schedule),
    ("depthwise", depthwise.schedule),
    ("pool", pool.schedule),
    ("rows", rows.schedule),
    ("elementwise", elementwise.schedule),
    ("fallback", fallback.schedule),
)
