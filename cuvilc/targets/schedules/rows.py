"""Softmax and the normalisations: each row passes through the first cache level two or three times.

Takes one anchor with any injective prologue (whose value may itself be a result) and an elementwise
epilogue. The prologue is computed once, into a row of scratch. Normalised axes last: vectors along
the row, accumulators in registers. Softmax along another axis: vectors across rows
(rows_across.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv, floordiv, product
from cuvilc.dialect.types import item_bytes
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules import rows_across
from cuvilc.targets.schedules.elementwise import outer_values
from cuvilc.targets.schedules.elementwise_access import Digit, Report, logical_index, merged, split
from cuvilc.targets.schedules.elementwise_loops import Place, sweep
from cuvilc.targets.schedules.reduction_fold import Fold
from cuvilc.targets.tir import as_expr, const

ANCHORS = (
    "ai.softmax", "ai.log_softmax", "ai.layer_norm", "ai.rms_norm",
    "ai.instance_norm", "ai.group_norm",
)  # fmt: skip
Load = Callable[[tuple[Any, ...]], Any]
_TASK_ELEMENTS = 8192
_UNROLL = 4


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes regions with exactly one anchor."""
    anchor = find_anchor(region)
    if anchor.name in ("ai.softmax", "ai.log_softmax"):
        behind = ir.type_of(anchor.operands[0]).shape[ir.attrs(anchor)["axis"] + 1 :]
        if any(d != 1 for d in behind):
            return rows_across.schedule(region, anchor, chip, name)
    return vectorized(
        lambda vector: _Rows(region, anchor, name, chip, chip.lanes if vector else 1).build()
    )


def find_anchor(region: Region) -> Any:
    """The region's anchor, if everything around it fits. Raises Miss."""
    anchors = region.named(*ANCHORS)
    if len(anchors) != 1:
        raise Miss(f"{len(anchors)} softmaxes and normalisations, not one")
    (anchor,) = anchors
    shape = ir.type_of(anchor.results[0]).shape
    after = {anchor.results[0], anchor.operands[0]}
    region.need_elements(anchor)
    for operation in region.operations:
        declared = ir.definition(operation)
        if operation == anchor or declared is None:
            continue
        if any(v in after for v in operation.operands) and operation.results[0] not in after:
            if "elementwise" not in declared.traits:
                raise Miss(f"{operation.name} moves elements of the normalised value")
            after.add(operation.results[0])
    if any(ir.type_of(v).shape != shape or ir.type_of(v).layout for v in region.results):
        raise Miss("a result has another shape or layout than the normalised value")
    return anchor


def _whole(digit: Digit, share: Dim) -> bool:
    """Whether a channel digit counts whole groups."""
    return digit.factor == share or (
        isinstance(share, int) and digit.factor % share == 0 and digit.extent != 1
    )


class _Rows:
    """One kernel along rows."""

    def __init__(self, region: Region, anchor: Any, name: str, chip: Chip, width: int) -> None:
        self.region, self.anchor, self.chip, self.width = region, anchor, chip, width
        self.source, self.result = anchor.operands[0], anchor.results[0]
        self.attrs = ir.attrs(anchor)
        self.outer, self.inner, self.report = self._digits()
        self.emitter = Emitter(region, name)
        self.b, self.k = self.emitter.builder, self.emitter.k
        self.dtype = "float64" if ir.type_of(self.source).dtype == "float64" else "float32"
        if self.dtype == "float64" and width > 1:
            self.width = width // 2
        self.staged = self.source not in region.arguments
        self.position: Any = 0

    def _digits(self) -> tuple[list[Digit], list[Digit], Report]:
        """Digits of the rows and those within a row, merged where accesses allow."""
        shape = ir.type_of(self.source).shape
        digits = [Digit(axis, d) for axis, d in enumerate(shape)]
        first = self.attrs.get("axis", 2)
        grouped = self.anchor.name == "ai.group_norm"
        if grouped:
            share = floordiv(shape[1], self.attrs["groups"])
            digits[1:2] = [Digit(1, self.attrs["groups"], share), Digit(1, share)]
        digits, _ = split(self.region, digits, self._dry)
        if grouped:
            lead = [d for d in digits if d.axis == 0 or (d.axis == 1 and _whole(d, share))]
        else:
            lead = [d for d in digits if d.axis < first]
        count = len(lead)
        digits, report = merged(self.region, digits, self._dry, barrier=count)
        return digits[:count], digits[count:], report

    def _dry(self, emitter: Emitter) -> None:
        """Stand-in for the anchor in dry runs: it reads all its operands at its index."""
        operands = [emitter.accessor(v) for v in self.anchor.operands]

        def load(index: tuple[Any, ...]) -> Any:
            value = operands[0][index]
            for extra in self._parameters(operands, index):
                value = value + extra
            return value

        emitter.define(self.result, load)

    def _parameters(self, operands: list[Any], index: tuple[Any, ...]) -> list[Any]:
        """Scale and bias at an index of the anchor."""
        if self.anchor.name in ("ai.instance_norm", "ai.group_norm"):
            return [x[index[1]] for x in operands[1:]]
        return [x.at(index[self.attrs["axis"] :]) for x in operands[1:]]

    # ---- loops

    def build(self) -> Scheduled:
        rows = product([d.extent for d in self.outer])
        length = product([d.extent for d in self.inner])
        together = max(1, _TASK_ELEMENTS // max(length, 1)) if isinstance(length, int) else 8
        tasks: Dim = ceildiv(rows, together)
        if isinstance(rows, int) and isinstance(length, int) and rows * length == 0:
            tasks = 0
        else:
            self._build(rows, length, together)
        work = len(self.region.operations) + 8
        return self.emitter.finish("rows", tasks, rows * length * work)

    def _build(self, rows: Dim, length: Dim, together: int) -> None:
        b = self.b
        self.line = b.scratch(length, self.dtype) if self.staged else None
        self.exponentials = self._exponentials(length)
        total = b.scalar(rows)
        self.length = b.scalar(length)
        with b.tasks() as t:
            first = t * together
            count = b.let(tirx.min(as_expr(total) - first, const(together)))
            with b.loop(count) as r:
                loops = [n for n, d in enumerate(self.outer) if d.extent != 1]
                row = b.let(first + r)
                self.start: Any = b.let(row * as_expr(self.length))
                self.fixed = outer_values(self.emitter, self.outer, loops, row)
                self.emitter.forget()
                self._row()

    def _exponentials(self, length: Dim) -> Any:
        """Where softmax keeps a row's: if it is long, and can, in the result itself, so that
        memory is waited for beside the arithmetic.
        """
        if self.anchor.name != "ai.softmax":
            return None
        fits = self.region.results == [self.result]
        fits = fits and ir.type_of(self.result).dtype == self.dtype
        long = isinstance(length, int) and length * item_bytes(self.dtype) >= self.chip.l1_bytes
        self.direct = fits and long
        if self.direct:
            return self.b.buffer(len(self.region.arguments), self.dtype)
        return self.line if self.staged else self.b.scratch(length, self.dtype)

    def each(
        self, element: Callable[[tuple[Any, ...], Place], None], unroll: int = _UNROLL
    ) -> None:
        """element(index, place) for the whole row; `self.position` is the element's place in it."""
        digits = [*self.outer, *self.inner]
        at = len(self.outer)
        values = {n: self.fixed.get(n, 0) for n in range(len(digits))}
        loops = [n for n in range(at, len(digits)) if digits[n].extent != 1]

        def nest(depth: int, before: Any) -> None:
            n = loops[depth] if loops else at
            extent = self.b.scalar(digits[n].extent) if loops else 1
            if depth < len(loops) - 1:
                with self.b.loop(extent) as i:
                    values[n] = i
                    inner = self.b.scalar(digits[loops[depth + 1]].extent)
                    nest(depth + 1, (before + i) * inner)
                return

            def visit(i: Any, place: Place) -> None:
                values[n] = i
                self.position = before + i
                element(
                    logical_index(self.emitter, digits, [values[m] for m in range(len(digits))]),
                    place,
                )

            sweep(self.emitter, 0, extent, self.width, unroll, visit)

        nest(0, 0)

    def fold(self, how: str, value: Load, exact: bool = True, unroll: int = _UNROLL) -> Any:
        """The fold of value(index) over the row."""
        unroll = unroll if self.width > 1 else 1
        fold = Fold(self.k, how, self.dtype, self.width, unroll, exact)
        self.each(lambda index, place: fold.add(place, value(index)), unroll)
        return fold.total()

    # ---- what a row is

    def _row(self) -> None:
        x = self.emitter.accessor(self.source)
        first: Load = x.load
        if self.staged:
            original = x

            def stage(index: tuple[Any, ...]) -> Any:
                value = self.k.let(original[index])
                self.b.store(self.line, self.position, value)
                return value

            self.emitter.define(self.source, lambda index: self.b.load(self.line, self.position))
            x = self.emitter.accessor(self.source)
            first = stage
        finish = _ROWS[self.anchor.name](self, first, lambda index: self.k.let(x[index]))
        operands = [None, *(self.emitter.accessor(v) for v in self.anchor.operands[1:])]
        self.emitter.define(
            self.result, lambda index: self.k.let(finish(index, self._parameters(operands, index)))
        )

        self.each(lambda index, _: self.emitter.store_all(index), 2)


def _softmax(rows: _Rows, first: Load, again: Load) -> Any:
    k, b = rows.k, rows.b
    top = rows.fold("max", first, exact=False)
    if rows.anchor.name == "ai.log_softmax":
        total = rows.fold("sum", lambda index: k.exp_below(again(index) - top), unroll=2)
        shift = b.let(k.log(total))
        return lambda index, _: again(index) - top - shift

    def place() -> Any:
        return rows.start + rows.position if rows.direct else rows.position

    def term(index: tuple[Any, ...]) -> Any:
        value = k.let(k.exp_below(again(index) - top))
        b.store(rows.exponentials, place(), value)
        return value

    total = rows.fold("sum", term, unroll=2)
    scale = b.let(const(1.0, rows.dtype) / total)
    return lambda index, _: b.load(rows.exponentials, place()) * scale


def _standardise(rows: _Rows, first: Load, again: Load) -> Any:
    k, b = rows.k, rows.b
    count = k.value_of_index(rows.length, rows.dtype)
    mean = b.let(rows.fold("sum", first) / count)

    def square(index: tuple[Any, ...]) -> Any:
        d = k.let(again(index) - mean)
        return d * d

    variance = b.let(rows.fold("sum", square) / count)
    scale = b.let(k.rsqrt(variance + const(rows.attrs["eps"], rows.dtype)))

    def finish(index: tuple[Any, ...], parameters: list[Any]) -> Any:
        y = (again(index) - mean) * scale * parameters[0]
        return y + parameters[1] if len(parameters) > 1 else y

    return finish


def _rms(rows: _Rows, first: Load, again: Load) -> Any:
    k, b = rows.k, rows.b

    def square(index: tuple[Any, ...]) -> Any:
        x = k.let(first(index))
        return x * x

    mean = rows.fold("sum", square) / k.value_of_index(rows.length, rows.dtype)
    scale = b.let(k.rsqrt(mean + const(rows.attrs["eps"], rows.dtype)))
    return lambda index, parameters: again(index) * scale * parameters[0]


_ROWS = {
    "ai.softmax": _softmax, "ai.log_softmax": _softmax, "ai.layer_norm": _standardise,
    "ai.instance_norm": _standardise, "ai.group_norm": _standardise, "ai.rms_norm": _rms,
}  # fmt: skip
