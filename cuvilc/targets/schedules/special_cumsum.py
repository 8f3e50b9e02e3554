"""Running sums and products: one pass along the axis, what lies beside it in vectors."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, ceildiv, product
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import compute_dtype
from cuvilc.targets.region import Emitter, Region, Scheduled
from cuvilc.targets.schedules.elementwise_loops import Place, sweep
from cuvilc.targets.schedules.reduction_fold import combine, identity
from cuvilc.targets.schedules.special_common import argument, lone, register_elements
from cuvilc.targets.tir import as_expr, const

_CHUNK = 512  # sums that stay in the first cache level between steps
_TASK_ELEMENTS = 8192


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes one cumsum or cumprod alone. A task is a chunk of inner positions, or several lines."""
    anchor = lone(region, "ai.cumsum", "ai.cumprod")
    source = argument(region, anchor.operands[0])
    t = ir.type_of(anchor.operands[0])
    axis = ir.attrs(anchor)["axis"]
    scan = _Scan(Emitter(region, name), chip, anchor, source)
    outer, inner = product(t.shape[:axis]), product(t.shape[axis + 1 :])
    if isinstance(inner, int) and inner == 1:
        tasks = scan.lines(outer)
    else:
        tasks = scan.chunks(outer, inner)
    return scan.emitter.finish("cumsum", tasks, product(t.shape))


class _Scan:
    """Loops over positions off the axis; `_step` goes one further along it."""

    def __init__(self, emitter: Emitter, chip: Chip, anchor: Any, source: int) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        self.attrs = ir.attrs(anchor)
        self.how = "sum" if anchor.name == "ai.cumsum" else "prod"
        t = ir.type_of(anchor.operands[0])
        self.dtype, self.computed = t.dtype, compute_dtype(t.dtype)
        self.length = t.shape[self.attrs["axis"]]
        self.extent = self.b.scalar(self.length)
        self.x = self.b.buffer(source, t.dtype)
        self.out = self.b.buffer(len(emitter.region.arguments), t.dtype)
        self.width = register_elements(chip, t.dtype)

    def lines(self, outer: Dim) -> Dim:
        """The axis is the last: a line is contiguous."""
        b = self.b
        length = self.length if isinstance(self.length, int) else 64
        together = max(1, _TASK_ELEMENTS // max(length, 1))
        sums = b.scratch(1, self.computed)
        with b.tasks() as t:
            first = t * together
            rest = as_expr(b.scalar(outer)) - first
            with b.loop(b.let(tirx.min(rest, const(together)))) as r:
                start = b.let((first + r) * self.extent)
                b.store(sums, 0, identity(self.computed, self.how))
                with b.loop(self.extent) as j:
                    self._step(start + self._along(j), sums, 0)
        return ceildiv(outer, together)

    def chunks(self, outer: Dim, inner: Dim) -> Dim:
        """Vectors of `inner` positions; their sums wait in scratch, in the dtype of computation."""
        b, k = self.b, self.k
        chunk = self._chunk(inner)
        count = ceildiv(inner, chunk)
        single = isinstance(count, int) and count <= 1
        sums = b.scratch(min(inner, chunk) if isinstance(inner, int) else chunk, self.computed)
        extent = b.scalar(inner)
        with b.tasks() as t:
            chunks = b.scalar(count)
            outside = t if single else b.let(k.floordiv(t, chunks))
            begin = 0 if single else b.let(k.mod(t, chunks) * chunk)
            size = extent if single else b.let(tirx.min(as_expr(extent) - begin, const(chunk)))
            self._sweep(size, lambda i: b.store(sums, i, identity(self.computed, self.how)))
            with b.loop(self.extent) as j:
                row = b.let((outside * self.extent + self._along(j)) * extent + begin)
                self._sweep(size, lambda i: self._step(row + i, sums, i))
        return outer * count

    def _chunk(self, inner: Dim) -> int:
        """Inner positions of a task: about as many in each, whole vectors."""
        if not isinstance(inner, int) or inner <= _CHUNK:
            return _CHUNK
        even = -(-inner // -(-inner // _CHUNK))
        return -(-even // (2 * self.width)) * 2 * self.width

    def _along(self, j: Any) -> Any:
        return self.extent - 1 - j if self.attrs["reverse"] else j

    def _sweep(self, size: Any, each: Any) -> None:
        def element(i: Any, place: Place) -> None:
            each(i)

        sweep(self.emitter, 0, size, self.width, 2, element)

    def _step(self, at: Any, sums: Any, n: Any) -> None:
        b, k = self.b, self.k
        before = b.let(b.load(sums, n))
        after = b.let(combine(k, self.how, before, k.load(self.x, at, self.dtype)))
        b.store(sums, n, after)
        k.store(self.out, at, before if self.attrs["exclusive"] else after, self.dtype)
