"""Folds along axes, and the search for extremes.

The result's elements are looped over as elementwise ones are; what an element of the anchor's
result is, is a loop of its own. Where the reduced axes end contiguous, that loop has vector
accumulators ("along"); where the kept ones do, the loop over elements is vectorised and each lane
folds for itself ("across").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv, product
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.elementwise import outer_values, schedule_with
from cuvilc.targets.schedules.elementwise_access import Digit, logical_index, probe
from cuvilc.targets.schedules.elementwise_loops import sweep
from cuvilc.targets.schedules.reduction_fold import Fold, combine, identity
from cuvilc.targets.tir import as_expr, const

ANCHORS = (
    "ai.reduce_sum", "ai.reduce_prod", "ai.reduce_max", "ai.reduce_min", "ai.reduce_mean",
    "ai.arg_max", "ai.arg_min",
)  # fmt: skip
_PRODUCT = "ai.matmul"
_TASK_ELEMENTS = 8192
Term = Callable[[tuple[Any, ...]], Any]


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes regions with one reduction, or product of few elements along contiguous memory, whose
    result is a column or a row; everything else has `element` facets.
    """
    anchors = region.named(*ANCHORS, _PRODUCT)
    if len(anchors) != 1:
        raise Miss(f"{len(anchors)} reductions, not one")
    region.need_elements(anchors[0])
    if len({(ir.type_of(v).shape, ir.type_of(v).layout) for v in region.results}) != 1:
        raise Miss("results differ in shape or layout")
    plan = _Plan.of(region, anchors[0])
    if anchors[0].name == _PRODUCT and not plan.along:
        raise Miss("a product that sums over scattered elements")
    if not plan.along:
        return schedule_with(region, chip, name, "reduction-across", plan.across, plan.terms)
    return _along(region, plan, chip, name)


@dataclass
class _Plan:
    """What is reduced, and which way the vectors lie."""

    anchor: Any
    axes: tuple[int, ...]
    digits: list[Digit]  # of the reduced axes, numbered by their place in `axes`
    along: bool = False
    direct: bool = False  # the operand is an argument
    groups: list[list[int]] = field(default_factory=list)  # digits that one loop goes over

    @staticmethod
    def of(region: Region, anchor: Any) -> _Plan:
        attrs = ir.attrs(anchor)
        shape = ir.type_of(anchor.operands[0]).shape
        if anchor.name == _PRODUCT:
            axes: tuple[int, ...] = (len(shape) - (2 if attrs["transpose_a"] else 1),)
        else:
            axes = tuple(attrs["axes"]) if "axes" in attrs else (attrs["axis"],)
        plan = _Plan(anchor, axes, [Digit(n, shape[a]) for n, a in enumerate(axes)])
        plan.direct = region.argument(anchor.operands[0]) is not None
        plan.groups = [[n] for n in range(len(axes))]
        plan._study(region)
        return plan

    @property
    def terms(self) -> Dim:
        return product([d.extent for d in self.digits])

    def _study(self, region: Region) -> None:
        """Find the direction of contiguous memory, and merge reduced axes that lie together."""
        shape = ir.type_of(region.results[0]).shape
        kept = [Digit(axis, d) for axis, d in enumerate(shape)]
        if not self.axes or any(isinstance(d, int) and d == 0 for d in (*shape, self.terms)):
            return

        def define(emitter: Emitter) -> None:
            variables = emitter.builder.start(self.digits)  # type: ignore[attr-defined]
            term = self.term(emitter)
            result = self.anchor.results[0]
            dtype = ir.type_of(result).dtype  # an index has another than what it points at
            emitter.define(
                result, lambda index: emitter.k.cast(term(index, tuple(variables)), dtype)
            )

        report = probe(region, kept, define)
        loads = [a for a in report.accesses if not a.is_store and len(a.steps) > len(kept)]
        last = max((n for n, d in enumerate(self.digits) if d.extent != 1), default=0)
        ones = [a.steps[len(kept) + last] for a in loads]
        easy = [isinstance(s, int) and s in (0, 1) for s in ones]
        self._group([(a.steps[len(kept) :], a.guarded) for a in loads])
        many = all if self.anchor.name == _PRODUCT else any
        self.along = many(easy) and any(isinstance(s, int) and s == 1 for s in ones)

    def _group(self, loads: list[tuple[Sequence[Any], bool]]) -> None:
        """Let one loop go over axes that lie one in the other wherever they are read."""
        for n in reversed(range(len(self.axes) - 1)):
            extent = self.digits[n + 1].extent
            together = isinstance(extent, int) and all(
                not guarded and steps[n] is not None and steps[n] == steps[n + 1] * extent
                for steps, guarded in loads
                if isinstance(steps[n + 1], int)
            )
            known = all(isinstance(steps[n + 1], int) for steps, _ in loads)
            if loads and together and known and self.axes[n] + 1 == self.axes[n + 1]:
                self.groups[n : n + 2] = [self.groups[n] + self.groups[n + 1]]

    def places(self, k: Any, flat: Sequence[Any]) -> tuple[Any, ...]:
        """The digits of the groups' numbers. Where the operand lies in memory, the last digit may
        go beyond its extent: that is the same place.
        """
        found: list[Any] = []
        for group, number in zip(self.groups, flat, strict=True):
            if self.direct:
                found += [0] * (len(group) - 1) + [number]
                continue
            digits: list[Any] = []
            for n in reversed(group[1:]):
                extent = self.digits[n].extent
                digits.insert(0, k.mod(number, extent))
                number = k.floordiv(number, extent)
            found += [number, *digits]
        return tuple(found)

    def term(self, emitter: Emitter) -> Callable[[tuple[Any, ...], tuple[Any, ...]], Any]:
        """x's element at an index of the result and one of the reduced axes."""
        k = emitter.k
        x = emitter.accessor(self.anchor.operands[0])
        declared = ir.definition(self.anchor)
        assert declared is not None
        facet = declared.facet("term")
        attrs = emitter.attrs(self.anchor)
        if facet:
            operands = emitter.operands(self.anchor)
            return lambda i, r: facet(k, i, r, *operands, **attrs)
        axis, keep = attrs["axis"], attrs["keepdims"]
        return lambda i, r: x[(*i[:axis], r[0], *i[axis + (1 if keep else 0) :])]

    def fold_dtype(self, emitter: Emitter) -> str:
        dtype = emitter.accessor(self.anchor.operands[0]).dtype
        return "int8" if dtype == "bool" else dtype

    def finish(self, emitter: Emitter, index: tuple[Any, ...], total: Any) -> Any:
        declared = ir.definition(self.anchor)
        assert declared is not None
        facet = declared.facet("finish")
        if ir.type_of(self.anchor.results[0]).dtype == "bool":
            total = emitter.k.cast(total, "bool")
        if facet is None:
            return total
        return facet(
            emitter.k, index, total, *emitter.operands(self.anchor), **emitter.attrs(self.anchor)
        )

    def how(self) -> str:
        if self.anchor.name.startswith("ai.arg_"):
            return self.anchor.name.removeprefix("ai.arg_")
        declared = ir.definition(self.anchor)
        assert declared is not None
        return declared.combine

    # ---- across: every lane for itself

    def across(self, emitter: Emitter) -> None:
        k, b = emitter.k, emitter.builder
        dtype, how = self.fold_dtype(emitter), self.how()
        term = self.term(emitter)
        arg = self.anchor.name.startswith("ai.arg_")

        def load(index: tuple[Any, ...]) -> Any:
            total = b.variable(identity(dtype, how))
            place = b.variable(const(0)) if arg else None
            with b.loops([b.scalar(d.extent) for d in self.digits]) as r:
                value = self._as(emitter, term(index, r), dtype)
                if place is not None:
                    self._search(emitter, value, r[0], total, place)
                else:
                    total.set(combine(k, how, total.get(), value))
            if place is not None:
                return k.let(place.get())
            return k.let(self.finish(emitter, index, k.let(total.get())))

        emitter.define(self.anchor.results[0], load)

    def _search(self, emitter: Emitter, value: Any, i: Any, best: Any, place: Any) -> None:
        k = emitter.k
        value, last = k.let(value), ir.attrs(self.anchor)["select_last"]
        old = k.let(best.get())
        wins = k.gt(value, old) if self.how() == "max" else k.lt(value, old)
        if last:
            wins = k.either(wins, k.eq(value, old))
        if str(value.ty.dtype).startswith("float"):
            nan = k.isnan(value)
            nan = nan if last else k.both(nan, k.invert(k.isnan(old)))
            wins = k.either(wins, nan)
            if last:
                wins = k.either(k.both(wins, k.invert(k.isnan(old))), k.isnan(value))
        wins = k.let(wins)
        best.set(tirx.Select(wins, value, old))
        place.set(tirx.Select(wins, i, place.get()))

    @staticmethod
    def _as(emitter: Emitter, value: Any, dtype: str) -> Any:
        return emitter.k.cast(value, dtype) if str(value.ty.dtype) != dtype else value


def _along(region: Region, plan: _Plan, chip: Chip, name: str) -> Scheduled:
    shape = ir.type_of(region.results[0]).physical_shape
    rows, length = product(shape), plan.terms
    together = max(1, _TASK_ELEMENTS // max(length, 1)) if isinstance(length, int) else 8

    def build(vector: bool) -> Scheduled:
        emitter = Emitter(region, name)
        value = _row_value(emitter, plan, chip.lanes if vector else 1)
        emitter.define(plan.anchor.results[0], value)
        _loop_rows(emitter, rows, together)
        return emitter.finish("reduction-along", ceildiv(rows, together), rows * length)

    return vectorized(build)


def _loop_rows(emitter: Emitter, rows: Dim, together: int) -> None:
    b = emitter.builder
    shape = ir.type_of(emitter.region.results[0]).shape
    digits = [Digit(axis, d) for axis, d in enumerate(shape)]
    count = b.scalar(rows)
    with b.tasks() as t:
        first = t * together
        with b.loop(b.let(tirx.min(as_expr(count) - first, const(together)))) as r:
            loops = [n for n, d in enumerate(digits) if d.extent != 1]
            values = outer_values(emitter, digits, loops, b.let(first + r))
            emitter.store_all(
                logical_index(emitter, digits, [values.get(n, 0) for n in range(len(digits))])
            )


def _row_value(emitter: Emitter, plan: _Plan, width: int) -> Term:
    """The anchor's element by vector accumulators along the reduced axes."""
    k, b = emitter.k, emitter.builder
    dtype, how, term = plan.fold_dtype(emitter), plan.how(), plan.term(emitter)
    width = max(1, width // 2) if dtype in ("float64", "int64") and width > 1 else width

    def folded(how: str, dtype: str, value: Callable[[tuple[Any, ...]], Any]) -> Any:
        unroll = 4 if width > 1 else 1
        fold = Fold(k, how, dtype, width, unroll)
        extents = [product([plan.digits[n].extent for n in group]) for group in plan.groups]
        *outer, inner = (b.scalar(d) for d in extents)
        with b.loops(outer) as r:
            sweep(
                emitter, 0, inner, width, unroll,
                lambda i, at: fold.add(at, value(plan.places(k, (*r, i)))),
            )  # fmt: skip
        return fold.total()

    def load(index: tuple[Any, ...]) -> Any:
        total = folded(how, dtype, lambda r: plan._as(emitter, term(index, r), dtype))
        if not plan.anchor.name.startswith("ai.arg_"):
            return k.let(plan.finish(emitter, index, total))
        last = ir.attrs(plan.anchor)["select_last"]
        nowhere = const(-1 if last else 1 << 62)

        def place(r: tuple[Any, ...]) -> Any:
            value = k.let(term(index, r))
            hit = k.eq(value, total)
            if dtype.startswith("float"):
                hit = k.either(hit, k.both(k.isnan(value), k.isnan(total)))
            return k.let(tirx.Select(hit, k.value_of_index(r[0], "int64"), nowhere))

        return folded("max" if last else "min", "int64", place)

    return load
