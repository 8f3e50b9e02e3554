"""How a region reads and writes memory: a dry run of its values at symbolic indices.

The iteration space of a result is a list of digits: axis j's index is Σ digit · factor. The dry run
finds, for every access, the distance in memory between neighbours along each digit; adjacent digits
that look like one to every access are then merged, an axis that is read through `//` and `%` is
split, and a digit that conditions compare with a limit gets segments in which those conditions are
constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.sym import detect_linear_equation

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, floordiv, mod
from cuvilc.targets.notation import is_zero
from cuvilc.targets.region import Emitter, Region
from cuvilc.targets.tir import Buffer, KernelBuilder, PrimExpr, Variable, const, var


@dataclass(frozen=True)
class Digit:
    """One loop: (start + i) · factor of the index of `axis`, for i in [0, extent).

    A digit that was merged away has extent 1, and its old one as `span`: only what holds for all i
    in [0, span) may be relied on.
    """

    axis: int
    extent: Dim
    factor: Dim = 1
    start: Dim = 0
    span: Dim = 1


@dataclass
class Access:
    """A load or store of a launch buffer: distance along each digit, None if irregular; whether it
    is done only where a condition holds.
    """

    buffer: str
    dtype: str
    steps: list[Dim | None]
    is_store: bool
    guarded: bool = False


@dataclass
class Report:
    """What a dry run saw."""

    accesses: list[Access] = field(default_factory=list)
    used: set[int] = field(default_factory=set)  # digits whose value matters beyond addresses
    splits: dict[int, int] = field(default_factory=dict)  # digit -> a constant it is divided by
    limits: dict[int, list[Dim]] = field(default_factory=dict)  # digit -> where conditions change
    work: int = 0  # operations an element takes, roughly
    decisions: list[bool | None] = field(default_factory=list)  # about conditions, in order


class _Unknown(Variable):
    """A variable of the dry run: all that was ever put into it."""

    def __init__(self, probe: _Probe, value: PrimExpr) -> None:
        self._probe, self._dtype = probe, str(value.ty.dtype)
        self._through: set[int] = set()
        self._direct: set[int] = set()
        self.set(value)

    def get(self) -> PrimExpr:
        return self._probe._opaque(self._dtype, self._through, self._direct)

    def set(self, value: PrimExpr) -> None:
        through, direct = self._probe._depends(value)
        self._through |= through
        self._direct |= direct


class _Probe(KernelBuilder):
    """Builds nothing: loads and named values become variables that know their origin."""

    def __init__(self) -> None:
        super().__init__("probe")
        self.digits: list[PrimExpr] = []
        self.extents: list[Dim] = []
        self.report = Report()
        self._number: dict[str, int] = {}
        self._origin: dict[
            str, tuple[set[int], set[int]]
        ] = {}  # opaque -> (through addresses, as values)
        self._vars = -1
        self._guards = 0  # conditions open

    def start(self, digits: Sequence[Digit]) -> list[PrimExpr]:
        """Variables for more digits; accesses report steps along them from now on."""
        made = []
        for digit in digits:
            v = var(f"digit{len(self.digits)}")
            self.bind(v, self.scalar(digit.extent))
            self._number[v.name] = len(self.digits)
            self.digits.append(v)
            self.extents.append(digit.extent)
            made.append(v)
        return made

    def _depends(self, e: Any) -> tuple[set[int], set[int]]:
        through: set[int] = set()
        direct: set[int] = set()
        if isinstance(e, (int, float, bool)):
            return through, direct
        for v in tirx.analysis.undefined_vars(tirx.Evaluate(e), []):
            if v.name in self._number:
                direct.add(self._number[v.name])
            elif v.name in self._origin:
                through |= self._origin[v.name][0]
                direct |= self._origin[v.name][1]
        return through, direct

    def _opaque(self, dtype: str, through: set[int], direct: set[int]) -> PrimExpr:
        self._vars += 1
        made = var(f"opaque{self._vars}", dtype)
        self._origin[made.name] = (through, direct)
        return made

    def load(self, buffer: Buffer, index: Any) -> PrimExpr:
        index = self.simplify(index)
        through, direct = self._depends(index)
        # What a named value makes of a digit no equation shows: it must stay a digit of its own.
        named = (v.name for v in tirx.analysis.undefined_vars(tirx.Evaluate(index), []))
        self.report.used |= set().union(*(self._origin[n][1] for n in named if n in self._origin))
        if buffer.name.startswith("b"):
            self._record(buffer, index, through, is_store=False)
        return self._opaque(str(buffer.dtype), through | direct, set())

    def store(self, buffer: Buffer, index: Any, value: Any) -> None:
        if buffer.name.startswith("b"):
            self._record(buffer, self.simplify(index), set(), is_store=True)
            self.report.used |= self._depends(value)[1]

    def _record(self, buffer: Buffer, index: PrimExpr, through: set[int], is_store: bool) -> None:
        steps: list[Any] = []
        for n, digit in enumerate(self.digits):
            parts = detect_linear_equation(index, [digit]) if n not in through else []
            regular = bool(parts) and not (set().union(*self._depends(parts[0])))
            steps.append(self.dim(self.simplify(parts[0])) if regular else None)
            if not regular:
                self._find_splits(index, n)
        self.report.accesses.append(
            Access(buffer.name, str(buffer.dtype), steps, is_store, self._guards > 0)
        )

    def _find_splits(self, e: Any, digit: int) -> None:
        divides = isinstance(e, (tirx.FloorDiv, tirx.FloorMod)) and isinstance(e.b, tirx.IntImm)
        if divides and e.a.same_as(self.digits[digit]):
            self.report.splits.setdefault(digit, int(e.b.value))
        elif divides:
            self._find_step(e, digit)
        for side in ("a", "b"):
            if hasattr(e, side):
                self._find_splits(getattr(e, side), digit)

    def _find_step(self, e: Any, digit: int) -> None:
        """Where the quotient of digit + constant steps, if it does so once: lanes of a block that
        lie in two blocks of an operand.
        """
        extent, by = self.extents[digit], int(e.b.value)
        parts = detect_linear_equation(e.a, [self.digits[digit]])
        if not parts or not all(isinstance(p, tirx.IntImm) for p in parts):
            return
        step, ahead = (int(p.value) for p in parts)
        if step == 1 and isinstance(extent, int) and extent <= by and -ahead % by:
            self._add_limit(digit, -ahead % by)

    def let(self, value: Any, name: str = "v") -> PrimExpr:
        if isinstance(value, (Var, int, float, tirx.IntImm, tirx.FloatImm)):
            return value
        self.report.work += 1
        return self._opaque(str(value.ty.dtype), *self._depends(value))

    def decide(self, condition: PrimExpr) -> bool | None:
        self.report.decisions.append(super().decide(condition))
        return self.report.decisions[-1]

    def variable(self, value: PrimExpr) -> _Unknown:
        return _Unknown(self, value)

    def pick(self, condition: PrimExpr, inside: Callable[[], Any], otherwise: Any) -> PrimExpr:
        self._condition(condition)
        self._guards += 1
        with self._block():  # what was computed in there is not known after it
            value = inside()
        self._guards -= 1
        through, direct = self._depends(value)
        for other in (condition, otherwise):
            if isinstance(other, Expr):
                more = self._depends(other)
                through, direct = through | more[0], direct | more[1]
        return self._opaque(str(value.ty.dtype), through, direct)

    @contextmanager
    def when(self, condition: PrimExpr) -> Iterator[None]:
        self._condition(condition)
        self._guards += 1
        yield
        self._guards -= 1

    def _condition(self, e: Any) -> None:
        if isinstance(e, (tirx.And, tirx.Or)):
            self._condition(e.a)
            self._condition(e.b)
            return
        e = e.a if isinstance(e, tirx.Not) else e
        for depends in self._depends(e):
            self.report.used |= depends
        if isinstance(e, (tirx.LT, tirx.LE, tirx.GT, tirx.GE)):
            self._limit(e)

    def _limit(self, e: Any) -> None:
        """Remember where a comparison changes its outcome along a digit: its only one, or that of
        blocks, where the lanes beside it make no difference.
        """
        difference = self.simplify(e.a - e.b)
        through, direct = self._depends(difference)
        if through or not 1 <= len(direct) <= 2:
            return
        numbers = sorted(direct)
        *parts, rest = detect_linear_equation(difference, [self.digits[n] for n in numbers]) or [0]
        steps = [int(p.value) for p in map(self.simplify, parts) if isinstance(p, tirx.IntImm)]
        if len(steps) != len(numbers) or abs(steps[-1]) != 1:
            return
        block, step = 1, steps[-1]
        if len(steps) == 2:
            lanes = self.extents[numbers[1]]
            if not isinstance(lanes, int) or steps[0] != step * lanes:
                return
            block = lanes
        strict = isinstance(e, (tirx.LT, tirx.GE)) == (step > 0)
        found = self.dim(self.simplify(rest * const(-step) + const(0 if strict else 1)))
        if found is None:
            return
        whole, inside = (found, 0) if block == 1 else (floordiv(found, block), mod(found, block))
        self._add_limit(numbers[0], whole)
        if inside != 0:
            self._add_limit(numbers[0], whole + 1)
            self._add_limit(numbers[1], inside)

    def _add_limit(self, digit: int, limit: Dim) -> None:
        self.report.limits.setdefault(digit, []).append(limit)

    def dim(self, e: Any) -> Dim | None:
        """The index expression as a dimension, if it is made of sizes."""
        if isinstance(e, tirx.IntImm):
            return int(e.value)
        if isinstance(e, Var):
            return next((d for d, v in self._scalar_vars.items() if v.same_as(e)), None)
        if isinstance(e, (tirx.Add, tirx.Sub, tirx.Mul)):
            a, b = self.dim(e.a), self.dim(e.b)
            if a is None or b is None:
                return None
            return a + b if isinstance(e, tirx.Add) else a - b if isinstance(e, tirx.Sub) else a * b
        return None


Define = Callable[[Emitter], None]


class _ProbeEmitter(Emitter):
    builder: _Probe

    def __init__(self, region: Region) -> None:
        super().__init__(region, "probe", _Probe())


def probe(region: Region, digits: Sequence[Digit], define: Define | None = None) -> Report:
    """Dry-run the region's results at the digits' indices. `define` may define values first."""
    emitter = _ProbeEmitter(region)
    variables = emitter.builder.start(digits)
    if define:
        define(emitter)
    # The loops will have 0 there: what is loaded twice, or once, must be so here too.
    values = [0 if d.extent == 1 else v for d, v in zip(digits, variables, strict=True)]
    emitter.store_all(logical_index(emitter, digits, values))
    emitter.builder.report.work += len(region.operations)
    return emitter.builder.report


def logical_index(
    emitter: Emitter, digits: Sequence[Digit], values: Sequence[Any]
) -> tuple[Any, ...]:
    """Index per axis of the result from the digits' loop variables."""
    shape = ir.type_of(emitter.region.results[0]).shape
    b = emitter.builder
    index: list[Any] = [0] * len(shape)
    for digit, value in zip(digits, values, strict=True):
        if digit.span != 1:
            value = b.zero(digit.span)
        part = value if is_zero(digit.start) else value + b.scalar(digit.start)
        part = part if digit.factor == 1 else part * b.scalar(digit.factor)
        index[digit.axis] = part if is_zero(index[digit.axis]) else index[digit.axis] + part
    for axis, i in enumerate(index):
        b.note_span(i, shape[axis])
    return tuple(index)


def split(
    region: Region, digits: list[Digit], define: Define | None = None
) -> tuple[list[Digit], Report]:
    """Split digits until every division has a digit of its own, where extents divide."""
    for _ in range(4):
        report = probe(region, digits, define)
        change = {}
        for n, by in report.splits.items():
            whole = mod(digits[n].extent, by)
            if isinstance(whole, int) and whole == 0 and is_zero(digits[n].start) and by > 1:
                change[n] = by
        if not change:
            break
        made: list[Digit] = []
        for n, digit in enumerate(digits):
            if n not in change:
                made.append(digit)
                continue
            by = change[n]
            high = Digit(digit.axis, floordiv(digit.extent, by), digit.factor * by)
            made += [high, Digit(digit.axis, by, digit.factor)]
        digits = made
    return digits, report


def merged(
    region: Region, digits: list[Digit], define: Define | None = None, barrier: int = 0
) -> tuple[list[Digit], Report]:
    """The digits with neighbours merged where every access allows, and how those look.

    barrier: digits before this number do not merge with those from it on.
    """
    report = probe(region, digits, define)
    closed: set[int] = set()
    while True:
        made = [
            *_merge(digits[:barrier], 0, report, closed),
            *_merge(digits[barrier:], barrier, report, closed),
        ]
        seen = probe(region, made, define) if made != digits else report
        changed = [n for n in range(len(made)) if made[n] != digits[n]]
        if len(seen.accesses) != len(report.accesses):
            # Of a digit beside one of the same axis a condition is open again that was decided.
            grown = {max(n for n in changed if made[n].extent != 1)}
        else:
            # A division by the extent, or a comparison with it, simplified away before, is back
            # where a digit grew.
            pairs = list(zip(report.accesses, seen.accesses, strict=True))
            grown = {
                n for n in changed
                if n in seen.used
                or any(b.steps[n] is None and a.steps[n] is not None for a, b in pairs)
            }  # fmt: skip
        if not grown:
            return made, seen
        closed |= grown


def _merge(digits: list[Digit], first: int, report: Report, closed: set[int]) -> list[Digit]:
    """Merge neighbours that every access sees as one axis; the outer one stays with extent 1.

    first: the number in `report` of the first digit.
    """
    made = list(digits)
    inner = len(digits) - 1
    for n in range(len(digits) - 2, -1, -1):
        if made[n].extent == 1:
            continue
        extent = made[inner].extent
        fits = not ({n + first, inner + first} & report.used) and inner + first not in closed
        steps = [(a.steps[n + first], a.steps[inner + first]) for a in report.accesses]
        if extent != 1 and fits and all(_continues(*s, extent) for s in steps):
            made[inner] = replace(made[inner], extent=extent * made[n].extent)
            made[n] = replace(made[n], extent=1, span=made[n].extent)
        else:
            inner = n
    return made


def _continues(outer: Dim | None, inner: Dim | None, extent: Dim) -> bool:
    return outer is not None and inner is not None and outer == inner * extent
