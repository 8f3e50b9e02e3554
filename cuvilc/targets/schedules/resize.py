"""Images in row-major order resampled along their last two axes, one axis after the other.

A task is some rows of a plane, or some small planes. Which elements a column is made of, and their
weights, are worked out once a task. Where rows become more, the source rows are resampled along the
row first, each once, and kept while the rows around need them; where they become fewer, the rows of
a result are added up first. Where rows and columns are only repeated, a source row's vectors go
straight into all the rows that they make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv, product
from cuvilc.dialect.ops.resize import Arrays, Notation, taps, untouched
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled, vectorized
from cuvilc.targets.schedules.elementwise_loops import sweep
from cuvilc.targets.schedules.microkernel import Epilogue, anchor_of, lesser, powers_of_two
from cuvilc.targets.schedules.special_common import argument, unravel
from cuvilc.targets.tir import Buffer, KernelBuilder, as_expr, const

_TASK_ELEMENTS = 16384
_MOST_REPEATS = 8  # copies of an element that shuffles make
Read = Callable[[Any], Any]  # an element of a row


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes ai.resize of float32 by nearest or linear interpolation, with an elementwise epilogue.

    The last two sizes must be known, and the others stay.
    """
    anchor = anchor_of(region, "ai.resize")
    attrs = ir.attrs(anchor)
    x = ir.type_of(anchor.operands[0])
    argument(region, anchor.operands[0])
    if x.dtype != "float32" or attrs["mode"] not in ("nearest", "linear") or x.rank < 2:
        raise Miss(f"{attrs['mode']} of {x.dtype} {x.rank}")
    if any(ir.type_of(v).layout for v in region.results):
        raise Miss("a result in a blocked layout")
    scales = attrs["scales"] or (None,) * x.rank
    axes = list(zip(x.shape, attrs["sizes"], scales, strict=True))
    if not all(untouched(*axis) for axis in axes[:-2]):
        raise Miss("another axis than the last two is resampled")
    known = all(isinstance(d, int) and d for n, m, _ in axes[-2:] for d in (n, m))
    if not known:
        raise Miss("sizes known only at run time")
    for operation in region.operations:
        declared = ir.definition(operation)
        if operation != anchor and (declared is None or "elementwise" not in declared.traits):
            raise Miss(f"{operation.name} moves elements")
    return vectorized(
        lambda vector: _Resize(
            region, chip, name, anchor, axes, chip.lanes if vector else 1
        ).build()
    )


class _Resize:
    def __init__(
        self, region: Region, chip: Chip, name: str, anchor: Any, axes: list[Any], width: int
    ) -> None:
        self.emitter = Emitter(region, name)
        self.b, self.k, self.width = self.emitter.builder, self.emitter.k, width
        self.epilogue = Epilogue(self.emitter, anchor)
        self.x = self.emitter.accessor(anchor.operands[0])
        attrs = ir.attrs(anchor)
        words = ("mode", "coordinate", "nearest", "cubic_a", "exclude_outside")
        self.how = {word: attrs[word] for word in words}
        self.leading = tuple(ir.type_of(anchor.results[0]).shape[:-2])
        self.down, self.across = axes[-2:]
        self.count = 1 if attrs["mode"] == "nearest" else 2  # of elements that make one
        self.rows_first = self.down[1] < self.down[0]

    def _taps(self, axis: Any, i: Any) -> list[tuple[Any, Any]]:
        if untouched(*axis):
            return [(i, None)]
        return taps(Notation(self.k), i, *axis, **self.how)

    # ---- the loops

    def build(self) -> Scheduled:
        b, k = self.b, self.k
        height, width = self.down[1], self.across[1]
        planes = product(self.leading)
        self.repeats = self._repeats(self.across)
        copies = self._copies()
        parts = max(1, height * width // _TASK_ELEMENTS)
        rows = -(-height // parts)
        rows += -rows % max(copies, 1)
        parts = -(-height // rows)
        group = max(1, _TASK_ELEMENTS // (height * width))
        if not copies:
            self._scratch()
        total = b.scalar(planes)
        with b.tasks() as t:
            if not copies:
                self._tables()
            first = b.let(k.mod(t, parts) * rows)
            many = b.let(lesser(height - first, rows))
            plane = b.let(k.floordiv(t, parts) * group)
            with b.loop(b.let(lesser(as_expr(total) - plane, group))) as p:
                self.lead = unravel(self.emitter, b.let(plane + p), self.leading)
                if copies:
                    self._copy_rows(first, many, copies)
                else:
                    self._rows(first, many)
        tasks: Dim = ceildiv(planes, group) * parts
        return self.emitter.finish("resize", tasks, planes * height * width * 4 * self.count)

    def _rows(self, first: Any, many: Any) -> None:
        for slot in range(2):
            self.b.store(self.tags, const(slot), const(-1))
        with self.b.loop(many) as r:
            self._row(self.b.let(first + r))

    def _copies(self) -> int:
        """How many rows each source row makes, where they are all that is made; else 0."""
        anchor, region = self.epilogue.anchor, self.emitter.region
        alone = region.results == [anchor.results[0]] and self.width > 1 and self.repeats > 0
        return self._repeats(self.down) if alone else 0

    def _copy_rows(self, first: Any, many: Any, copies: int) -> None:
        """Rows from `first` on, each source row `copies` times."""
        b, k = self.b, self.k
        anchor = self.epilogue.anchor
        result = ir.type_of(anchor.results[0])
        target = b.buffer(len(self.emitter.region.arguments), result.dtype)
        with b.loop(b.let(k.floordiv(many, copies))) as r:
            row = b.let(first + r * copies)
            to = b.let(k.flat_index(result, (*self.lead, row, 0)))
            self._spread(k.floordiv(row, copies), (target, to), copies)

    def _scratch(self) -> None:
        b = self.b
        self.tags = b.local(2, "int64")  # which source row each half of the scratch holds
        if self.rows_first:
            self.line = b.scratch(self.across[0], "float32")
        else:
            self.line = b.scratch(self.across[1] * 2, "float32")
        self.places: list[Buffer] = []
        self.weights: list[Buffer] = []
        if not untouched(*self.across) and not self.repeats:
            self.places = [b.scratch(self.across[1], "int32") for _ in range(self.count)]
            if self.count > 1:
                self.weights = [b.scratch(self.across[1], "float32") for _ in range(self.count)]

    def _repeats(self, axis: Any) -> int:
        """How many times each element of an axis stands in the result if that is all; else 0."""
        before, after, scale = axis
        times, rest = divmod(after, before)
        if self.count > 1 or self.rows_first or rest or not 2 <= times <= _MOST_REPEATS:
            return 0
        ((found, _),) = taps(Arrays(), np.arange(after), before, after, scale, **self.how)
        return times if np.array_equal(found, np.arange(after) // times) else 0

    def _each(self, extent: int, visit: Callable[[Any], None], unroll: int = 1) -> None:
        sweep(self.emitter, 0, extent, self.width, unroll, lambda i, _: visit(i))

    def _tables(self) -> None:
        b, k = self.b, self.k
        if not self.places:
            return

        def visit(i: Any) -> None:
            for n, (place, weight) in enumerate(self._taps(self.across, i)):
                b.store(self.places[n], i, k.cast(as_expr(place), "int32"))
                if self.weights:
                    b.store(self.weights[n], i, weight)

        self._each(self.across[1], visit)

    # ---- a row of the result

    def _row(self, row: Any) -> None:
        b = self.b
        found = self._taps(self.down, row)
        rows = [(b.let(p), None if w is None else b.let(w)) for p, w in found]
        if self.rows_first:
            self._each(
                self.across[0],
                lambda i: b.store(self.line, i, self._blend(rows, lambda p: self._source(p)(i))),
            )
            self._store(row, self._resampled(lambda i: b.load(self.line, i)))
            return
        halves = {}
        for place, _ in rows:
            slot = b.let(self.k.mod(place, 2))
            halves[place] = b.let(slot * self.across[1])
            with b.when(tirx.NE(b.load(self.tags, slot), as_expr(place))):
                self._keep(place, halves[place])
                b.store(self.tags, slot, as_expr(place))
        self._store(row, lambda i: self._blend(rows, lambda p: b.load(self.line, halves[p] + i)))

    def _source(self, row: Any) -> Read:
        return lambda i: self.x[(*self.lead, row, i)]

    def _keep(self, place: Any, start: Any) -> None:
        """Source row `place`, resampled along the row, into the scratch from `start` on."""
        b = self.b
        if not self.repeats or self.width == 1:
            read = self._resampled(self._source(place))
            self._each(self.across[1], lambda i: b.store(self.line, start + i, read(i)))
            return
        self._spread(place, (self.line, start), 1)

    def _spread(self, place: Any, target: tuple[Buffer, Any], copies: int) -> None:
        """Source row `place`, each element repeated, into `copies` rows of the target."""
        b = self.b
        first = b.let(self.k.flat_index(self.x.type, (*self.lead, place, 0)))
        source = self.emitter.argument(self.epilogue.anchor.operands[0])
        buffer, start = target
        rows = copies, self.across[1]

        def vector(at: Any, width: int) -> None:
            to = start + at * self.repeats
            _repeat(b, width, self.repeats, (source, first + at), (buffer, to), rows)

        whole, rest = divmod(self.across[0], self.width)
        with b.loop(whole) as n:
            vector(b.let(n * self.width), self.width)
        for offset, width in powers_of_two(rest):
            vector(whole * self.width + offset, width)

    def _resampled(self, read: Read) -> Read:
        """The elements of a row resampled along it."""
        b = self.b
        if not self.places and not self.repeats:
            return read

        def value(i: Any) -> Any:
            if self.repeats:
                return read(self.k.floordiv(i, self.repeats))
            found = [self.k.index(b.load(places, i)) for places in self.places]
            weights = [b.load(w, i) for w in self.weights] or [None] * len(found)
            return self._blend(list(zip(found, weights, strict=True)), read)

        return value

    def _blend(self, found: list[tuple[Any, Any]], read: Read) -> Any:
        """The sum of the elements, or rows, at some places, each times its weight."""
        total = None
        for place, weight in found:
            part = read(place) if weight is None else read(place) * weight
            total = part if total is None else total + part
        return total

    def _store(self, row: Any, read: Read) -> None:
        self._each(self.across[1], lambda i: self.epilogue.store((*self.lead, row, i), read(i)), 2)


def _repeat(
    b: KernelBuilder, n: int, times: int, source: tuple[Buffer, Any], target: tuple[Buffer, Any],
    rows: tuple[int, int],
) -> None:  # fmt: skip
    """Each of n consecutive floats `times` times beside itself; `rows`: into how many rows of the
    target, and their distance.
    """
    copies, distance = rows
    name = f"cuvil_repeat{n}x{times}" + (f"x{copies}by{distance}" if copies > 1 else "")
    vector, lines = f"<{n} x float>", [f"  %x = load <{n} x float>, ptr %s, align 4"]
    for part in range(times):
        picks = ", ".join(f"i32 {(part * n + lane) // times}" for lane in range(n))
        lines.append(f"  %v{part} = shufflevector {vector} %x, {vector} %x, <{n} x i32> <{picks}>")
    for row in range(copies):
        for part in range(times):
            place = f"%p{row}_{part}"
            lines += [
                f"  {place} = getelementptr float, ptr %t, i64 {row * distance + part * n}",
                f"  store {vector} %v{part}, ptr {place}, align 4",
            ]
    head = f"define linkonce_odr hidden i32 @{name}(ptr %s, ptr %t) alwaysinline nounwind {{"
    b.llvm(name, "\n".join([head, *lines, "  ret i32 0", "}"]))
    pointers = (
        tirx.address_of(tirx.BufferLoad(buffer, [b.simplify(at)]))
        for buffer, at in (source, target)
    )
    b.emit(tirx.Evaluate(tirx.call_extern("int32", name, *pointers)))
