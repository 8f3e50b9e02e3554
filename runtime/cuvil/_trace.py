"""What each step of a run took."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple


class Event(NamedTuple):
    """One executed step. Times are CLOCK_MONOTONIC; cost: FLOPs or 4 x bytes moved, the larger."""

    step: int
    kernel: str
    layer: str
    threads: int
    begin_ns: int
    end_ns: int
    cost: int

    @property
    def time_us(self) -> float:
        return (self.end_ns - self.begin_ns) / 1000


class Row(NamedTuple):
    """A step of a profile. time_us: median over the runs of its total in one run."""

    step: int
    kernel: str
    layer: str
    threads: int
    time_us: float
    cost: int


class Profile(tuple[Row, ...]):
    """Rows of a model's steps, the slowest first. `print` shows a table.

    thr: threads that took part; Gcost/s: an Event's cost over its time, near the CPU's FLOP/s where
    a kernel is good.
    """

    __slots__ = ()

    @classmethod
    def of(cls, runs: list[list[Event]]) -> Profile:
        """Sum each step over one run (a loop executes it often), then take the median over runs."""
        totals: dict[int, list[float]] = {}
        last: dict[int, Event] = {}
        for number, events in enumerate(runs):
            for event in events:
                totals.setdefault(event.step, [0.0] * len(runs))[number] += event.time_us
                last[event.step] = event
        rows = [
            Row(e.step, e.kernel, e.layer, e.threads, median(totals[e.step]), e.cost)
            for e in last.values()
        ]
        return cls(sorted(rows, key=lambda row: -row.time_us))

    @property
    def total_us(self) -> float:
        return sum(row.time_us for row in self)

    def __str__(self) -> str:
        total = self.total_us or 1.0
        lines = [f"{'time':>10}  {'share':>6}  thr  {'Gcost/s':>8}  kernel  layer"]
        for row in self:
            rate = row.cost / row.time_us / 1000 if row.time_us else 0.0
            lines.append(
                f"{row.time_us:>7.1f} µs  {row.time_us / total:>6.1%}  {row.threads:>3}  "
                f"{rate:>8.1f}  {row.kernel}  {_ends(row.layer)}"
            )
        return "\n".join([*lines, f"{self.total_us:>7.1f} µs  in {len(self)} steps"])


def _ends(layer: str) -> str:
    """The first and the last of the nodes that one kernel computes."""
    nodes = layer.split(" + ")
    return layer if len(nodes) < 4 else f"{nodes[0]} + … + {nodes[-1]}"
