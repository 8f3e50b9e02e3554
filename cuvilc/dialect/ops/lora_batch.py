"""Linear layers whose rows have adapters of their own: one run, one batch, many adapters.

Both operations read three tensors that the runtime provides for a run. slots, int64 [B]: the slot
of the adapter of each part of the batch, 0 for none; the rows of x, flattened, are B equal parts.
pool, float32: what the adapters hold. table, int64 [P, S, 8]: for each slot up to P changes to the
layer's outputs; a layer that is several modules of the model has as many. A change is: its rank;
where in pool its a, b, gain and bias begin, -1 for no gain or bias; the first panel of 32 outputs
that it is about and how many (0: no change); a number that nobody reads.

a is [rank, K]; b is [panels, rank, 32] and has the scale multiplied in; gain and bias are
[32 · panels]. Changes of a slot share no panel. Where a module's outputs do not fill a panel, b and
bias are 0 and gain is 1 for the others.
"""

from __future__ import annotations

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

RANK, A, B, GAIN, BIAS, FIRST, PANELS = range(7)  # columns of table
COLUMNS = 8


def rows_per_slot(leading: Shape, slots: Dim) -> Dim:
    """How many of the rows, numbered by `leading`, share an element of slots."""
    if leading and leading[0] == slots:
        return product(leading[1:])
    return floordiv(product(leading), maximum(slots, 1))


def check_held(x: TensorType, slots: TensorType, table: TensorType, pool: TensorType) -> None:
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


def rows_of(slots: np.ndarray, count: int) -> np.ndarray:
    """The slot of each row."""
    return np.repeat(slots, count // max(len(slots), 1))


def slot_of(k, index, x, slots):
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
    """What every row's adapter makes of it first: x · aᵀ, for each change.

    t[.., p · rank + j] = Σ_k x[.., k] · a[j, k], where a is that of change p of the row's slot;
    0 for a j that a does not reach, and for rows without an adapter. `rank`: the greatest that the
    run has; 0 where no row has an adapter.    (Hu et al. 2021, eq. 3)
    """

    x: Tensor
    slots: Tensor
    table: Tensor
    pool: Tensor
    rank: Dim

    def shape(x, slots, table, pool, *, rank):
        check_held(x, slots, table, pool)
        need_true(less(-1, rank), f"rank {rank} is negative")
        return TensorType((*x.shape[:-1], table.shape[0] * rank), x.dtype)

    def reference(x, slots, table, pool, *, rank):
        rows = x.reshape(-1, x.shape[-1])
        made = np.zeros((len(rows), len(table), rank))
        for m, slot in enumerate(rows_of(slots, len(rows))):
            for p, entry in enumerate(table[:, slot] if slot else ()):
                size = entry[RANK] * rows.shape[1]
                a = pool[entry[A] : entry[A] + size].reshape(entry[RANK], rows.shape[1])
                made[m, p, : entry[RANK]] = a @ rows[m]
        return made.reshape(*x.shape[:-1], len(table) * rank)

    def domain(k, x, slots, table, pool, *, rank):
        return (x.shape[-1],)

    def term(k, i, r, x, slots, table, pool, *, rank):
        slot = k.let(slot_of(k, i, x, slots))
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
    """x · w, with what each row's adapter adds: y = gain · (x · w) + t · b + bias.

    Outputs that no change is about, and rows without an adapter, are those of x · w alone. t is
    that of ai.lora_shrink. transpose_b: w is [N, K].    (Hu et al. 2021, eq. 3; Liu et al. 2024,
    eq. 5)
    """

    x: Tensor
    w: Tensor
    t: Tensor
    slots: Tensor
    table: Tensor
    pool: Tensor
    transpose_b: bool = False

    def shape(x, w, t, slots, table, pool, *, transpose_b):
        check_held(x, slots, table, pool)
        need_dtype(w, ("float32",), "w")
        need_rank(w, 2, "w")
        k, n = reversed(w.shape) if transpose_b else w.shape
        need_equal(x.shape[-1], k, "columns of x and rows of w")
        need_dtype(t, ("float32",), "t")
        need_shape(t, (*x.shape[:-1], t.shape[-1]), "t")
        changes = maximum(table.shape[0], 1)
        need_equal(mod(t.shape[-1], changes), 0, "columns of t that changes do not divide")
        return TensorType((*x.shape[:-1], n), x.dtype)

    def reference(x, w, t, slots, table, pool, *, transpose_b):
        rows = x.reshape(-1, x.shape[-1])
        y = np.matmul(rows, w.T if transpose_b else w)
        factors = t.reshape(len(rows), len(table), t.shape[-1] // max(len(table), 1))
        for m, slot in enumerate(rows_of(slots, len(rows))):
            for p, change in enumerate(table[:, slot] if slot else ()):
                rank, _, b, gain, bias, first, panels = change[: COLUMNS - 1]
                width = panels * PANEL
                part = y[m, first * PANEL : first * PANEL + width]
                if gain >= 0:
                    part *= pool[gain : gain + width][: len(part)]
                factor = pool[b : b + rank * width].reshape(panels, rank, PANEL)
                factor = np.swapaxes(factor, 0, 1).reshape(rank, width)
                part += (factors[m, p, :rank] @ factor)[: len(part)]
                if bias >= 0:
                    part += pool[bias : bias + width][: len(part)]
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def domain(k, x, w, t, slots, table, pool, *, transpose_b):
        return (x.shape[-1],)

    def term(k, i, r, x, w, t, slots, table, pool, *, transpose_b):
        return x[(*i[:-1], r[0])] * (w[i[-1], r[0]] if transpose_b else w[r[0], i[-1]])

    combine = "sum"

    def finish(k, i, total, x, w, t, slots, table, pool, *, transpose_b):
        slot = k.let(slot_of(k, i, x, slots))
        y, panel = k.let(total), k.floordiv(i[-1], PANEL)
        for p in range(table.shape[0]):
            rank, _, b, gain, bias, first, panels = (
                k.let(k.index(table[p, slot, c])) for c in range(COLUMNS - 1)
            )
            inside = k.both(k.le(first, panel), k.lt(panel, first + panels))
            mine = k.both(k.gt(slot, 0), inside)
            n, within = k.let(i[-1] - first * PANEL), k.mod(i[-1], PANEL)

            def line(start, none, n=n, mine=mine):
                has = k.both(mine, k.ge(start, 0))
                return k.guard(has, lambda: pool[start + n,], k.const(none, "float32"))

            def step(
                j,
                total,
                p=p,
                rank=rank,
                place=b + (panel - first) * (rank * PANEL) + within,
                mine=mine,
            ):
                factor = k.guard(mine, lambda: pool[place + j[0] * PANEL,], k.const(0.0, "float32"))
                column = p * k.floordiv(t.shape[-1], table.shape[0]) + j[0]
                return (total + t[(*i[:-1], column)] * factor,)

            steps = k.let(k.select(k.gt(slot, 0), rank, k.const(0, "int64")))
            (change,) = k.fold((steps,), (k.const(0.0, "float32"),), step)
            y = k.let(y * line(gain, 1.0) + change + line(bias, 0.0))
        return y

    samples = (
        sample("float32[3,4]", "float32[4,5]", "float32[3,2]", np.array([1, 0, 2]), np.array([
            [[0] * 8, [2, 0, 3, -1, -1, 0, 1, 0], [1, 0, 0, 70, 102, 0, 1, 0]]]), "float32[134]"),
        sample("float32[2,2,3]", "float32[70,3]", "float32[2,2,2]", np.array([1, 0]), np.array([
            [[0] * 8, [1, 0, 1, 33, -1, 0, 1, 0]], [[0] * 8, [0, 0, 0, -1, 65, 1, 2, 0]]]),
               "float32[140]", transpose_b=True),
        sample("float32[2,3]", "float32[3,40]", "float32[2,0]", np.array([0, 0]),
               np.zeros((1, 1, 8), np.int64), "float32[1]"),
    )  # fmt: skip
