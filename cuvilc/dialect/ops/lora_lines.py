"""Embeddings and biases whose rows have adapters of their own; see lora_batch for slots, table and
pool. A slot's change to such a parameter is one, in the table's first part, about all outputs.
"""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import wrapped
from cuvilc.dialect.ops._rules import need, need_axis, need_dtype, need_shape
from cuvilc.dialect.ops.lora_batch import (
    BIAS,
    GAIN,
    PANELS,
    RANK,
    A,
    B,
    check_held,
    rows_of,
    slot_of,
)
from cuvilc.dialect.types import PANEL


@op("ai.lora_gather", traits=("injective", "costly"))
class LoraGather:
    """Rows of an embedding table with what each row's adapter adds: y = gain · x + b · a[:, index].

    x: the rows of the base's table that `indices` name. Of a change, a is [rank, size], size being
    the table's rows; bias is not read. Rows of x without an adapter stay.  (Hu et al. 2021, eq. 3)
    """

    x: Tensor
    indices: Tensor
    slots: Tensor
    table: Tensor
    pool: Tensor
    size: int

    def shape(x, indices, slots, table, pool, *, size):
        check_held(x, slots, table, pool)
        need_dtype(indices, ("int32", "int64"), "indices")
        need_shape(indices, x.shape[:-1], "indices")
        need(size >= 0, f"size must not be negative: {size}")
        return x

    def reference(x, indices, slots, table, pool, *, size):
        y = x.reshape(-1, x.shape[-1]).copy()
        places = indices.reshape(-1)
        for m, slot in enumerate(rows_of(slots, len(y))):
            rank, a, b, gain, _, _, panels = table[0, slot, :7]
            width = panels * PANEL
            if not slot or not panels:
                continue
            if gain >= 0:
                y[m] *= pool[gain : gain + width][: len(y[m])]
            factor = pool[b : b + rank * width].reshape(panels, rank, PANEL)
            factor = np.swapaxes(factor, 0, 1).reshape(rank, width)
            left = pool[a : a + rank * size].reshape(rank, size)
            y[m] += (left[:, places[m]] @ factor)[: len(y[m])]
        return y.reshape(x.shape)

    def element(k, i, x, indices, slots, table, pool, *, size):
        slot = k.let(slot_of(k, i, x, slots))
        rank, a, b, gain, panels = (
            k.let(k.index(table[0, slot, c])) for c in (RANK, A, B, GAIN, PANELS)
        )
        mine = k.both(k.gt(slot, 0), k.gt(panels, 0))
        none = k.const(1.0, "float32")
        scale = k.guard(k.both(mine, k.ge(gain, 0)), lambda: pool[gain + i[-1],], none)
        row = k.let(wrapped(k, indices[tuple(i[:-1])], size))
        panel = k.floordiv(i[-1], PANEL)
        place = k.let(b + panel * (rank * PANEL) + k.mod(i[-1], PANEL))

        def step(j, total):
            return (total + pool[a + j[0] * size + row,] * pool[place + j[0] * PANEL,],)

        steps = k.let(k.select(mine, rank, k.const(0, "int64")))
        (change,) = k.fold((steps,), (k.const(0.0, "float32"),), step)
        return x[i] * scale + change

    samples = (
        sample("float32[3,4]", np.array([1, -7, 6]), np.array([1, 0, 2]), np.array([
            [[0] * 8, [2, 0, 14, -1, -1, 0, 1, 0], [1, 1, 30, 80, -1, 0, 1, 0]]]),
               "float32[112]", size=7),
        sample("float32[2,2,40]", np.array([[0, 1], [2, 2]], np.int32), np.array([2, 1]), np.array([
            [[0] * 8, [1, 0, 3, -1, -1, 0, 2, 0], [0] * 8]]), "float32[67]", size=3),
    )  # fmt: skip


@op("ai.lora_add", traits=("injective",))
class LoraAdd:
    """y = x + bias along `axis`, that of each row's adapter; rows without one stay.

    b: the bias that the base has, which x has in it already. It is not read: it stands here so that
    the model keeps it for those who make adapters.
    """

    x: Tensor
    b: Tensor
    slots: Tensor
    table: Tensor
    pool: Tensor
    axis: int

    def shape(x, b, slots, table, pool, *, axis):
        check_held(x, slots, table, pool)
        need_axis(axis, x.rank)
        need(axis > 0, "the bias must not lie along the rows")
        return x

    def reference(x, b, slots, table, pool, *, axis):
        y, size = x.copy(), x.shape[axis]
        rows = y.reshape(len(slots), -1, *x.shape[1:]) if len(slots) else ()
        for part, slot in zip(rows, slots, strict=True):
            bias, panels = table[0, slot, BIAS], table[0, slot, PANELS]
            if slot and panels and bias >= 0:
                line = pool[bias : bias + size]
                part += line.reshape(-1, *[1] * (x.ndim - axis - 1))
        return y

    def element(k, i, x, b, slots, table, pool, *, axis):
        slot = k.let(slot_of(k, i, x, slots))
        bias, panels = (k.let(k.index(table[0, slot, c])) for c in (BIAS, PANELS))
        has = k.both(k.both(k.gt(slot, 0), k.gt(panels, 0)), k.ge(bias, 0))
        none = k.const(0.0, "float32")
        return x[i] + k.guard(has, lambda: pool[bias + i[axis],], none)

    samples = (
        sample("float32[3,5]", "float32[5]", np.array([1, 0, 2]), np.array([
            [[0] * 8, [0, -1, -1, -1, 3, 0, 1, 0], [0] * 8]]), "float32[35]", axis=1),
        sample("float32[4,3,2]", "float32[3]", np.array([2, 1]), np.array([
            [[0] * 8, [0, -1, -1, -1, 32, 0, 1, 0], [0, -1, -1, -1, 0, 0, 1, 0]]]),
               "float32[64]", axis=1),
    )  # fmt: skip
