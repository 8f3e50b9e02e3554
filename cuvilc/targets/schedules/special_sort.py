"""What the ways of top_k share, and the one that sorts a line: by bytes of keys, the lowest first.

Each pass keeps the order of what has one byte (Knuth 1998, 5.2.5), so equal keys stay in the order
of their indices. A byte that all keys share takes no pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.ir import Operation
from cuvilc.targets.notation import FAULTS, Accessor, compute_dtype
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.special_common import outputs
from cuvilc.targets.tir import as_expr, const

_LEAST = 128  # elements: of shorter lines a heap is quicker than clearing the counters
_BYTES = 256


def pays(extent: Dim, count: Dim) -> bool:
    """Whether to sort a line of so many elements when so many are wanted."""
    if isinstance(extent, int) and isinstance(count, int):
        return extent >= _LEAST and 2 * count >= extent
    return extent == count


class Top:
    """A line at a time: keys, the result."""

    def __init__(self, emitter: Emitter, anchor: Operation) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        attrs = ir.attrs(anchor)
        self.largest = attrs["largest"]
        self.x: Accessor = emitter.accessor(anchor.operands[0])
        self.places = outputs(emitter.region, anchor)
        source = compute_dtype(ir.type_of(anchor.operands[0]).dtype)
        self.dtype = source.replace("float", "int") if source.startswith("float") else source
        self.extent = as_expr(
            emitter.builder.scalar(ir.type_of(anchor.operands[0]).shape[attrs["axis"]])
        )
        self.count: Any = as_expr(self.b.scalar(attrs["k"]))

    def key(self, value: Any) -> Any:
        """An integer that is greater for a better element."""
        b, k, dtype = self.b, self.k, self.dtype
        value = b.let(value)
        if not str(value.ty.dtype).startswith("float"):
            return b.let(value if self.largest else ~value)
        limits = np.iinfo(dtype)
        # a negative float's magnitude bits run the other way; -0 is 0
        zero = k.const(0.0, str(value.ty.dtype))
        value = b.let(tirx.Select(tirx.EQ(value, zero), zero, value))
        bits: Any = b.let(tirx.reinterpret(dtype, value))
        ordered = tirx.Select(bits < const(0, dtype), bits ^ const(int(limits.max), dtype), bits)
        ordered = tirx.Select(k.isnan(value), const(int(limits.max), dtype), ordered)
        return b.let(ordered if self.largest else ~ordered)

    def size(self) -> Any:
        """How many are wanted; a fault where there are fewer."""
        b = self.b
        with b.when(self.count > self.extent):
            b.fault(FAULTS["index"])
        return b.let(tirx.min(self.count, self.extent))

    def emit(self, at: Any, place: Any, index: Any) -> None:
        """Element `index` of the line is number `place` of the result."""
        if 0 in self.places:
            self.emitter.store(self.places[0], at(place), self.x[at(index)])
        if 1 in self.places:
            self.emitter.store(self.places[1], at(place), index)


class Sorted(Top):
    """Keys as unsigned numbers, the best the least, and indices; a pass fills the other half."""

    def __init__(self, emitter: Emitter, anchor: Operation) -> None:
        super().__init__(emitter, anchor)
        attrs = ir.attrs(anchor)
        extent = ir.type_of(anchor.operands[0]).shape[attrs["axis"]]
        self.unsigned = "u" * (not self.dtype.startswith("u")) + self.dtype
        self.passes = np.dtype(self.dtype).itemsize
        self.keys = self.b.scratch(extent * 2, self.unsigned)
        self.indices = self.b.scratch(extent * 2, "int64")
        self.counts = self.b.scratch(self.passes * _BYTES, "int64")

    def _least_first(self, value: Any) -> Any:
        key = self.key(value)
        if self.unsigned == self.dtype:
            return self.b.let(~key)
        flipped = key ^ const(int(np.iinfo(self.dtype).max), self.dtype)
        return self.b.let(tirx.reinterpret(self.unsigned, flipped))

    def _counter(self, key: Any, number: int) -> Any:
        """Where byte `number` of the key is counted."""
        byte = (key >> const(8 * number, self.unsigned)) & const(_BYTES - 1, self.unsigned)
        return self.b.let(tirx.Cast("int64", byte) + number * _BYTES)

    def line(self, at: Any) -> None:
        """at(i): the index of the line's element i."""
        b, size = self.b, self.size()
        with b.loop(self.passes * _BYTES) as i:
            b.store(self.counts, i, const(0))
        with b.loop(self.extent) as i:
            key = self._least_first(self.x[at(i)])
            b.store(self.keys, i, key)
            b.store(self.indices, i, i)
            for number in range(self.passes):
                counter = self._counter(key, number)
                b.store(self.counts, counter, b.load(self.counts, counter) + const(1))
        first = b.variable(const(0))  # of the half that is sorted so far
        with b.when(self.extent > const(0)):
            for number in range(self.passes):
                some = self._counter(b.load(self.keys, first.get()), number)
                with b.when(b.load(self.counts, some) < self.extent):
                    self._pass(number, b.let(first.get()), b.let(self.extent - first.get()))
                    first.set(self.extent - first.get())
        with b.loop(size) as i:
            self.emit(at, i, b.let(b.load(self.indices, first.get() + i)))

    def _pass(self, number: int, source: Any, target: Any) -> None:
        b = self.b
        before = b.variable(const(0))
        with b.loop(_BYTES) as i:
            place = number * _BYTES + i
            count = b.let(b.load(self.counts, place))
            b.store(self.counts, place, before.get())
            before.set(before.get() + count)
        with b.loop(self.extent) as i:
            key = b.let(b.load(self.keys, source + i))
            counter = self._counter(key, number)
            place = b.let(b.load(self.counts, counter))
            b.store(self.counts, counter, place + 1)
            b.store(self.keys, target + place, key)
            b.store(self.indices, target + place, b.load(self.indices, source + i))
