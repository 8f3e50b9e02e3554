"""couple_probabilities: a task is a row; the iteration's matrix and vectors lie in scratch."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region, Scheduled
from cuvilc.targets.schedules.special_common import argument, lone
from cuvilc.targets.tir import const

_STEPS = 100  # the least of the iteration's most


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes one couple_probabilities alone."""
    anchor = lone(region, "ai.couple_probabilities")
    argument(region, anchor.operands[0])
    emitter = Emitter(region, name)
    coupling = _Coupling(emitter, anchor)
    with emitter.builder.tasks() as row:
        coupling.row(row)
    rows, classes = ir.type_of(anchor.operands[0]).shape[0], coupling.classes
    return emitter.finish("coupling", rows, rows * classes * classes * classes)


class _Coupling:
    """One row at a time."""

    def __init__(self, emitter: Emitter, anchor: Any) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        self.classes: int = ir.attrs(anchor)["classes"]
        self.x = emitter.accessor(anchor.operands[0])
        n = self.classes
        self.r, self.q = (self.b.scratch(n * n, self.x.dtype) for _ in range(2))
        self.p, self.change = (self.b.scratch(n, self.x.dtype) for _ in range(2))

    def _real(self, value: float) -> Any:
        return const(value, self.x.dtype)

    def row(self, row: Any) -> None:
        """Set up, iterate, store."""
        b = self.b
        self._pairs(row)
        self._matrix()
        rounds, goes_on = b.variable(const(0)), b.variable(const(1))
        most = max(_STEPS, self.classes)
        with b.repeat(tirx.And(goes_on.get() > const(0), rounds.get() < const(most))):
            mean, error = self._errors()
            with b.when(error < self._real(0.005 / self.classes)):
                goes_on.set(const(0))
            with b.otherwise(), b.loop(self.classes) as t:
                self._step(t, mean)
            rounds.set(rounds.get() + const(1))
        with b.loop(self.classes) as t:
            self.emitter.store(0, (row, t), b.load(self.p, t))

    def _pairs(self, row: Any) -> None:
        b, n = self.b, self.classes
        pair = b.variable(const(0))
        with b.loop(n) as i, b.loop(const(n - 1) - i) as after:
            j = b.let(i + 1 + after)
            value = b.let(self.x[row, pair.get()])
            b.store(self.r, i * n + j, value)
            b.store(self.r, j * n + i, self._real(1.0) - value)
            pair.set(pair.get() + const(1))

    def _matrix(self) -> None:
        """q[t, j] = -r[j, t] · r[t, j], on the diagonal Σ r[j, t]²; p all equal."""
        b, n = self.b, self.classes
        with b.loop(n) as t:
            total = b.variable(self._real(0.0))
            with b.loop(n) as j, b.when(tirx.NE(j, t)):
                there = b.let(b.load(self.r, j * n + t))
                b.store(self.q, t * n + j, self._real(0.0) - there * b.load(self.r, t * n + j))
                total.set(total.get() + there * there)
            b.store(self.q, t * n + t, total.get())
            b.store(self.p, t, self._real(1.0 / n))

    def _errors(self) -> tuple[Any, Any]:
        """change = q·p; (variable of p·change, greatest distance of a change from it)."""
        b, n = self.b, self.classes
        mean, error = b.variable(self._real(0.0)), b.variable(self._real(0.0))
        with b.loop(n) as t:
            total = b.variable(self._real(0.0))
            with b.loop(n) as j:
                total.set(total.get() + b.load(self.q, t * n + j) * b.load(self.p, j))
            b.store(self.change, t, total.get())
            mean.set(mean.get() + b.load(self.p, t) * total.get())
        with b.loop(n) as t:
            error.set(self.k.max(error.get(), self.k.abs(b.load(self.change, t) - mean.get())))
        return mean, b.let(error.get())

    def _step(self, t: Any, mean: Any) -> None:
        b, n = self.b, self.classes
        here, own = b.let(b.load(self.change, t)), b.let(b.load(self.q, t * n + t))
        step = b.let((mean.get() - here) / own)
        scale = b.let(self._real(1.0) + step)
        grown = mean.get() + step * (step * own + self._real(2.0) * here)
        mean.set(grown / scale / scale)
        b.store(self.p, t, b.load(self.p, t) + step)
        with b.loop(n) as j:
            changed = b.load(self.change, j) + step * b.load(self.q, t * n + j)
            b.store(self.change, j, changed / scale)
            b.store(self.p, j, b.load(self.p, j) / scale)
