"""Linear layers whose rows have adapters of their own: one run, one batch, many adapters.

Both operations read three tensors that the runtime provides for a run. slots, int64 [B]: the slot
of the adapter of each part of the batch, 0 for none; the rows of x, flattened, are B equal parts.
pool, float32: what the adapters hold. table, int64 [P, S, 8]: for each of the layer's P parts and
each slot the rank, where in pool a, b, gain and bias begin, and three numbers that nobody reads. A
gain or bias of -1 is none.

A part is a module's share of the layer's N outputs: `start` and `size`. It is held in whole panels
of 32 outputs from panel start // 32 on; in a panel that it does not fill b and bias are 0 and gain
is 1 for the outputs of others. a is [rank, K]; b is [panels, rank, 32] and has the scale multiplied
in; gain and bias are [32 · panels].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cuvilc.dialect.dims import Dim, Shape, floordiv, less, maximum, mod, product
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._index import flatten, same
from cuvilc.dialect.ops._rules import (
    need,
    need_dtype,
    need_equal,
    need_rank,
    need_shape,
    need_true,
)
from cuvilc.dialect.types import PANEL, TensorType

RANK, A, B, GAIN, BIAS = range(5)  # columns of table
COLUMNS = 8


class Share(NamedTuple):
    """The panels of 32 outputs that a part is held in."""

    first: int
    panels: int

    @property
    def columns(self) -> slice:
        """The outputs of these panels."""
        return slice(self.first * PANEL, (self.first + self.panels) * PANEL)


def shares(parts: tuple[tuple[int, int], ...]) -> list[Share]:
    """Of (start, size) of every part."""
    return [Share(s // PANEL, -(-(s + n) // PANEL) - s // PANEL) for s, n in parts]


def rows_per_slot(leading: Shape, slots: Dim) -> Dim:
    """How many of the rows, numbered by `leading`, share an element of slots."""
    if leading and leading[0] == slots:
        return product(leading[1:])
    return floordiv(product(leading), maximum(slots, 1))


def _check(x: TensorType, slots: TensorType, table: TensorType, pool: TensorType) -> None:
    need_dtype(x, ("float32",), "x")
    need(x.rank >= 2, "x must have rows")
    need_dtype(slots, ("int64",), "slots")
    need_rank(slots, 1, "slots")
    need_dtype(table, ("int64",), "table")
    need_rank(table, 3, "table")
    need_equal(table.shape[2], COLUMNS, "columns of table")
    need_dtype(pool, ("float32",), "pool")
    need_rank(pool, 1, "pool")
    rows, parts = product(x.shape[:-1]), slots.shape[0]
    if x.shape[0] != parts:
        need_equal(mod(rows, maximum(parts, 1)), 0, "rows of x that slots do not divide")


def _rows(slots: np.ndarray, count: int) -> np.ndarray:
    """The slot of each row."""
    return np.repeat(slots, count // max(len(slots), 1))


def _slot(k, index, x, slots):
    """The slot of the row of x at `index`."""
    if same(x.shape[0], slots.shape[0]):
        return k.index(slots[index[0],])
    leading, count = x.shape[:-1], 1
    for n in leading:
        count = count * n
    per = k.floordiv(count, slots.shape[0])
    return k.index(slots[k.floordiv(flatten(index[:-1], leading), per),])


@op("ai.lora_shrink")
class LoraShrink:
    """What every row's adapter makes of it first: x · aᵀ, for each part.

    t[.., p · rank + j] = Σ_k x[.., k] · a[j, k], where a is that of the row's slot and of part p;
    0 for a j that a does not reach, and for rows without an adapter. `rank`: the greatest that the
    run has; 0 where no row has an adapter.    (Hu et al. 2021, eq. 3)
    """

    x: Tensor
    slots: Tensor
    table: Tensor
    pool: Tensor
    rank: Dim

    def shape(x, slots, table, pool, *, rank):
        _check(x, slots, table, pool)
        need_true(less(-1, rank), f"rank {rank} is negative")
        return TensorType((*x.shape[:-1], table.shape[0] * rank), x.dtype)

    def reference(x, slots, table, pool, *, rank):
        rows = x.reshape(-1, x.shape[-1])
        made = np.zeros((len(rows), len(table), rank))
        for m, slot in enumerate(_rows(slots, len(rows))):
            for p, entry in enumerate(table[:, slot] if slot else ()):
                size = entry[RANK] * rows.shape[1]
                a = pool[entry[A] : entry[A] + size].reshape(entry[RANK], rows.shape[1])
                made[m, p, : entry[RANK]] = a @ rows[m]
        return made.reshape(*x.shape[:-1], len(table) * rank)

    def domain(k, x, slots, table, pool, *, rank):
        return (x.shape[-1],)

    def term(k, i, r, x, slots, table, pool, *, rank):
        slot = k.let(_slot(k, i, x, slots))
        part, j = k.let(k.floordiv(i[-1], rank)), k.let(k.mod(i[-1], rank))
        inside = k.both(k.gt(slot, 0), k.lt(j, k.index(table[part, slot, RANK])))
        place = k.index(table[part, slot, A]) + j * x.shape[-1] + r[0]
        none = k.const(0.0, "float32")
        return k.guard(inside, lambda: pool[place,], none) * x[(*i[:-1], r[0])]

    combine = "sum"
    samples = (
        sample("float32[3,7]", np.array([1, 0, 2]), np.zeros((1, 3, 8), np.int64)
               + np.array([[0], [2], [3]]) * (np.arange(8) < 2), "float32[40]", rank=3),
        sample("float32[4,2,5]", np.array([0, 1]), np.array([
            [[0] * 8, [2, 1, 0, -1, -1, 0, 0, 0]], [[0] * 8, [1, 12, 0, -1, -1, 0, 0, 0]]]),
               "float32[17]", rank=2),
        sample("float32[2,5]", np.array([0, 0]), np.zeros((1, 1, 8), np.int64), "float32[0]",
               rank=0),
    )  # fmt: skip


@op("ai.lora_matmul")
class LoraMatMul:
    """x · w, with what each row's adapter adds: y = gain · (x · w) + t · b + bias, part by part.

    Outputs outside every part, and rows without an adapter, are those of x · w alone. t is that of
    ai.lora_shrink. transpose_b: w is [N, K].    (Hu et al. 2021, eq. 3; Liu et al. 2024, eq. 5)
    """

    x: Tensor
    w: Tensor
    t: Tensor
    slots: Tensor
    table: Tensor
    pool: Tensor
    parts: tuple
    transpose_b: bool = False

    def shape(x, w, t, slots, table, pool, *, parts, transpose_b):
        _check(x, slots, table, pool)
        need_dtype(w, ("float32",), "w")
        need_rank(w, 2, "w")
        k, n = reversed(w.shape) if transpose_b else w.shape
        need_equal(x.shape[-1], k, "columns of x and rows of w")
        need_equal(table.shape[0], len(parts), "parts and those of table")
        for start, size in parts:
            need(start >= 0 and size > 0, f"{size} outputs from {start} on")
            need_true(less(start + size, n + 1), f"{size} outputs from {start} on of {n}")
        need_dtype(t, ("float32",), "t")
        need_shape(t, (*x.shape[:-1], t.shape[-1]), "t")
        need_equal(mod(t.shape[-1], max(len(parts), 1)), 0, "columns of t that parts do not divide")
        return TensorType((*x.shape[:-1], n), x.dtype)

    def reference(x, w, t, slots, table, pool, *, parts, transpose_b):
        rows = x.reshape(-1, x.shape[-1])
        y = np.matmul(rows, w.T if transpose_b else w)
        factors = t.reshape(len(rows), len(parts), t.shape[-1] // max(len(parts), 1))
        for m, slot in enumerate(_rows(slots, len(rows))):
            for p, share in enumerate(shares(parts) if slot else ()):
                rank, _, b, gain, bias = table[p, slot, : COLUMNS - 3]
                part, width = y[m, share.columns], share.panels * PANEL
                if gain >= 0:
                    part *= pool[gain : gain + width][: len(part)]
                panels = pool[b : b + rank * width].reshape(share.panels, rank, PANEL)
                change = np.swapaxes(panels, 0, 1).reshape(rank, width)
                part += (factors[m, p, :rank] @ change)[: len(part)]
                if bias >= 0:
                    part += pool[bias : bias + width][: len(part)]
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def domain(k, x, w, t, slots, table, pool, *, parts, transpose_b):
        return (x.shape[-1],)

    def term(k, i, r, x, w, t, slots, table, pool, *, parts, transpose_b):
        return x[(*i[:-1], r[0])] * (w[i[-1], r[0]] if transpose_b else w[r[0], i[-1]])

    combine = "sum"

    def finish(k, i, total, x, w, t, slots, table, pool, *, parts, transpose_b):
        slot = k.let(_slot(k, i, x, slots))
        rank = k.floordiv(t.shape[-1], len(parts)) if parts else 0
        y = k.let(total)
        for p, share in enumerate(shares(parts)):
            entry = [k.let(k.index(table[p, slot, c])) for c in range(COLUMNS - 3)]
            n = i[-1] - share.columns.start
            mine = k.both(k.gt(slot, 0), k.both(k.le(0, n), k.lt(n, share.panels * PANEL)))
            n = k.clamp_index(n, share.panels * PANEL)
            place = entry[B] + k.floordiv(n, PANEL) * (entry[RANK] * PANEL) + k.mod(n, PANEL)

            def at(which, none, n=n, entry=entry, mine=mine):
                has = k.both(mine, k.ge(entry[which], 0))
                return k.guard(has, lambda: pool[entry[which] + n,], k.const(none, "float32"))

            def step(j, sum_, p=p, mine=mine, place=place):
                b = k.guard(mine, lambda: pool[place + j[0] * PANEL,], k.const(0.0, "float32"))
                return (sum_ + t[(*i[:-1], p * rank + j[0])] * b,)

            count = k.select(k.gt(slot, 0), entry[RANK], k.const(0, "int64"))
            (change,) = k.fold((k.let(count),), (k.const(0.0, "float32"),), step)
            y = k.let(y * at(GAIN, 1.0) + change + at(BIAS, 0.0))
        return y

    samples = (
        sample("float32[3,4]", "float32[4,5]", "float32[3,2]", np.array([1, 0, 2]), np.array([
            [[0] * 8, [2, 0, 3, -1, -1, 0, 0, 0], [1, 0, 0, 70, 102, 0, 0, 0]]]),
               "float32[134]", parts=((0, 5),)),
        sample("float32[2,2,3]", "float32[70,3]", "float32[2,2,2]", np.array([1, 0]), np.array([
            [[0] * 8, [1, 0, 1, 33, -1, 0, 0, 0]], [[0] * 8, [0, 0, 0, -1, 65, 0, 0, 0]]]),
               "float32[140]", parts=((0, 30), (40, 30)), transpose_b=True),
        sample("float32[2,3]", "float32[3,40]", "float32[2,0]", np.array([0, 0]),
               np.zeros((1, 1, 8), np.int64), "float32[1]", parts=((2, 20),)),
    )  # fmt: skip
