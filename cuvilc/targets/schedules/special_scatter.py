"""scatter_elements and scatter_nd: the operand is copied in vectors, then updated one by one.

The updates' order decides what stays, so one task does all; scatter_elements along an axis other
than the first has a task for each index of the first axis. An index out of range is a fault and
writes nothing.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, product
from cuvilc.dialect.types import item_bytes
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import FAULTS
from cuvilc.targets.region import Emitter, Region, Scheduled
from cuvilc.targets.schedules.elementwise_loops import Place, sweep
from cuvilc.targets.schedules.reduction_fold import combine
from cuvilc.targets.schedules.special_common import argument, lone
from cuvilc.targets.tir import as_expr, const

_FOLDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes one scatter_elements or scatter_nd alone."""
    anchor = lone(region, "ai.scatter_elements", "ai.scatter_nd")
    places = [argument(region, v) for v in anchor.operands]
    types = [ir.type_of(v) for v in anchor.operands]
    tasks: Dim = 1
    if anchor.name == "ai.scatter_elements" and ir.attrs(anchor)["axis"] > 0:
        tasks = types[0].shape[0]
    scatter = _Scatter(Emitter(region, name), chip, anchor, places)
    with scatter.b.tasks() as t:
        if anchor.name == "ai.scatter_nd":
            scatter.copy(0, product(types[0].shape))
            scatter.slices()
        elif tasks == 1 and ir.attrs(anchor)["axis"] == 0:
            scatter.copy(0, product(types[0].shape))
            scatter.elements([])
        else:
            row = product(types[0].shape[1:])
            scatter.copy(scatter.b.let(t * scatter.b.scalar(row)), row)
            with scatter.b.when(t < as_expr(scatter.b.scalar(types[1].shape[0]))):
                scatter.elements([t])
    return scatter.emitter.finish("scatter", tasks, product(types[2].shape))


class _Scatter:
    """The parts of such a kernel."""

    def __init__(self, emitter: Emitter, chip: Chip, anchor: Any, places: list[int]) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        self.attrs = ir.attrs(anchor)
        self.types = [ir.type_of(v) for v in anchor.operands]
        self.dtype = self.types[0].dtype
        self.x, self.indices, self.updates = (
            self.b.buffer(n, t.dtype) for n, t in zip(places, self.types, strict=True)
        )
        self.out = self.b.buffer(len(emitter.region.arguments), self.dtype)
        self.width = chip.lanes * 4 // min(item_bytes(self.dtype), 8)

    def copy(self, start: Any, count: Dim) -> None:
        """out = x in a range of the elements."""

        def element(i: Any, place: Place) -> None:
            self.b.store(self.out, i, self.b.load(self.x, i))

        sweep(self.emitter, start, self.b.scalar(count), self.width, 4, element)

    def _update(self, where: Any, source: Any) -> None:
        """Fold updates[source] into out[where], both flat."""
        how = _FOLDS.get(self.attrs["reduction"])
        if how is None:
            self.b.store(self.out, where, self.b.load(self.updates, source))
            return
        before = self.k.load(self.out, where, self.dtype)
        update = self.k.load(self.updates, source, self.dtype)
        self.k.store(self.out, where, combine(self.k, how, before, update), self.dtype)

    def _index(self, place: Any, extent: Any) -> tuple[Any, Any]:
        """indices[place], counted from the start, and whether it is in range."""
        i: Any = self.b.let(tirx.Cast("int64", self.b.load(self.indices, place)))
        i = self.b.let(tirx.Select(i < const(0), i + extent, i))
        return i, tirx.And(i >= const(0), i < as_expr(extent))

    def elements(self, first: list[Any]) -> None:
        """All updates of scatter_elements whose index begins with `first`."""
        b, axis = self.b, self.attrs["axis"]
        x, indices = self.types[0], self.types[1]
        with b.loops([b.scalar(d) for d in indices.shape[len(first) :]]) as rest:
            index = [*first, *rest]
            source = b.let(self.k.flat_index(indices, index))
            at, inside = self._index(source, b.scalar(x.shape[axis]))
            with b.when(inside):
                where = [*index[:axis], at, *index[axis + 1 :]]
                self._update(b.let(self.k.flat_index(x, where)), source)
            with b.otherwise():
                b.fault(FAULTS["index"])

    def slices(self) -> None:
        """All updates of scatter_nd."""
        b = self.b
        x, indices = self.types[0], self.types[1]
        depth = indices.shape[-1]
        assert isinstance(depth, int)  # the shape rule asks for it
        inner = b.scalar(product(x.shape[depth:]))
        with b.loop(b.scalar(product(indices.shape[:-1]))) as row:
            flat: Any = const(0)
            valid: Any = const(1, "bool")
            for j in range(depth):
                extent = b.scalar(x.shape[j])
                at, inside = self._index(row * depth + j, extent)
                flat, valid = b.let(flat * extent + at), b.let(tirx.And(valid, inside))
            with b.when(valid):
                self._slice(b.let(flat * inner), b.let(row * inner), inner)
            with b.otherwise():
                b.fault(FAULTS["index"])

    def _slice(self, target: Any, source: Any, count: Any) -> None:
        def element(i: Any, place: Place) -> None:
            self._update(target + i, source + i)

        sweep(self.emitter, 0, count, self.width, 1, element)
