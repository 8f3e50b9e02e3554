"""top_k: each line along the axis keeps its k best in a heap whose root is the worst of them.

Elements compare by an integer key that orders floats as the reference does: -0 equals 0, NaN is
above ∞. Of equal keys the lower index is the better. An element beats the heap only if its key is
above the root's, as it comes later. At the end the roots leave one by one, worst first, into the
result from its end. Where all of a long line is wanted, special_sort.py sorts it instead.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import product
from cuvilc.dialect.ir import Operation
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Region, Scheduled
from cuvilc.targets.schedules import special_sort
from cuvilc.targets.schedules.elementwise_loops import sweep
from cuvilc.targets.schedules.reduction_fold import Fold
from cuvilc.targets.schedules.special_common import argument, lone, register_elements, unravel
from cuvilc.targets.schedules.special_sort import Top
from cuvilc.targets.tir import const

_VECTORS = 4  # of a group


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """Takes one top_k alone; a task is a line along the axis."""
    anchor = lone(region, "ai.top_k")
    argument(region, anchor.operands[0])
    emitter = Emitter(region, name)
    shape = ir.type_of(anchor.operands[0]).shape
    axis = ir.attrs(anchor)["axis"]
    outside = (*shape[:axis], *shape[axis + 1 :])
    sorts = special_sort.pays(shape[axis], ir.attrs(anchor)["k"])
    width = register_elements(chip, ir.type_of(anchor.operands[0]).dtype)
    if axis != len(shape) - 1:
        width = 1  # neighbours along the axis lie apart
    top = special_sort.Sorted(emitter, anchor) if sorts else _Heap(emitter, anchor, width)
    with emitter.builder.tasks() as t:
        index = unravel(emitter, t, outside)
        top.line(lambda i: (*index[:axis], i, *index[axis:]))
    return emitter.finish("top-k", product(outside), product(shape))


class _Heap(Top):
    """The heap lies in scratch: keys, and int64 indices.

    Once it is full, elements are looked at in groups of vectors of `width`: few groups have one
    that is better than the root.
    """

    def __init__(self, emitter: Emitter, anchor: Operation, width: int) -> None:
        super().__init__(emitter, anchor)
        self.width = width
        room = ir.attrs(anchor)["k"] + 1  # room for one even if k = 0
        self.keys, self.indices = self.b.scratch(room, self.dtype), self.b.scratch(room, "int64")

    def line(self, at: Any) -> None:
        """at(i): the index of the line's element i."""
        b, size = self.b, self.size()
        with b.loop(size) as i:
            b.store(self.keys, i, self.key(self.x[at(i)]))
            b.store(self.indices, i, i)
        half = b.let(size >> const(1))
        with b.loop(half) as i:
            place = b.let(half - 1 - i)
            self._sift(place, size, b.let(self._key(place)), b.let(b.load(self.indices, place)))
        with b.when(size > const(0)):
            self._rest(at, size)
            with b.loop(size) as n:
                self._emit_worst(at, b.let(size - 1 - n))

    def _rest(self, at: Any, size: Any) -> None:
        """Elements from number `size` on take the root's place where they are better."""
        b, group = self.b, self.width * _VECTORS

        def one(i: Any) -> None:
            key = self.key(self.x[at(i)])
            with b.when(key > self._key(const(0))):
                self._sift(const(0), size, key, i)

        done = size
        if self.width > 1:
            groups = b.let(tirx.floordiv(self.extent - size, const(group)))
            with b.loop(groups) as n:
                start = b.let(size + n * group)
                fold = Fold(self.k, "max", self.dtype, self.width, _VECTORS)
                sweep(
                    self.emitter, start, group, self.width, _VECTORS,
                    lambda i, place: fold.add(place, self.key(self.x[at(i)])),
                )  # fmt: skip
                with b.when(fold.total() > self._key(const(0))), b.loop(group) as i:
                    one(b.let(start + i))
            done = b.let(size + groups * group)
        with b.loop(b.let(self.extent - done)) as i:
            one(b.let(done + i))

    def _key(self, place: Any) -> Any:
        return self.b.load(self.keys, place)

    def _worse(self, key: Any, index: Any, than_key: Any, than_index: Any) -> Any:
        later = tirx.And(tirx.EQ(key, than_key), index > than_index)
        return tirx.Or(key < than_key, later)

    def _sift(self, start: Any, size: Any, key: Any, index: Any) -> None:
        """Put (key, index) at `start` in a heap of `size`, or below where children are worse."""
        b = self.b
        hole = b.variable(start)
        child = b.variable(start * 2 + 1)
        with b.repeat(child.get() < size):
            left = b.let(child.get())
            right = b.let(tirx.min(left + 1, size - 1))
            left_key, left_index = b.let(self._key(left)), b.let(b.load(self.indices, left))
            right_key, right_index = b.let(self._key(right)), b.let(b.load(self.indices, right))
            pick = b.let(self._worse(right_key, right_index, left_key, left_index))
            worst_key = b.let(tirx.Select(pick, right_key, left_key))
            worst_index = b.let(tirx.Select(pick, right_index, left_index))
            with b.when(self._worse(worst_key, worst_index, key, index)):
                b.store(self.keys, hole.get(), worst_key)
                b.store(self.indices, hole.get(), worst_index)
                hole.set(tirx.Select(pick, right, left))
                child.set(hole.get() * 2 + 1)
            with b.otherwise():
                child.set(size)
        b.store(self.keys, hole.get(), key)
        b.store(self.indices, hole.get(), index)

    def _emit_worst(self, at: Any, place: Any) -> None:
        """Write the root as element `place` of the result, and shrink the heap to that size."""
        b = self.b
        index = b.let(b.load(self.indices, const(0)))
        self.emit(at, place, index)
        last = b.let(b.load(self.indices, place))
        self._sift(const(0), place, b.let(self._key(place)), last)
