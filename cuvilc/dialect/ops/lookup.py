"""Tables that map numbers to numbers."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.op import ShapeError, Tensor, op, sample
from cuvilc.dialect.ops._rules import (
    need,
    need_number,
    need_rank,
    need_same_dtype,
    need_shape,
    spell,
)


@op("ai.lookup", traits=("injective", "costly"))
class Lookup:
    """values[j] where x is keys[j], `other` where it is no key.

    keys [K] ascend without repetition; they are of x's dtype, values [K] and other [] of the
    result's. NaN is found nowhere. A binary search of ⌈log₂ K⌉ steps.
    """

    x: Tensor
    keys: Tensor
    values: Tensor
    other: Tensor

    def shape(x, keys, values, other):
        need_number(x)
        need_same_dtype(x, keys)
        need_same_dtype(values, other)
        need_rank(keys, 1, "keys")
        need_shape(values, keys.shape, "values")
        need_shape(other, (), "other")
        if not isinstance(keys.shape[0], int):
            raise ShapeError(f"the number of keys must be a constant: {spell(keys.shape)}")
        need(keys.shape[0] > 0, "a table needs a key")
        return x.with_(dtype=values.dtype, layout="")

    def reference(x, keys, values, other):
        place = np.clip(np.searchsorted(keys, x), 0, len(keys) - 1)
        return np.where(keys[place] == x, values[place], other)

    def element(k, i, x, keys, values, other):
        count, wanted = keys.shape[0], k.let(x[i])
        place = k.value_of_index(0, "int64")
        for bit in reversed(range((count - 1).bit_length())):
            step = place + (1 << bit)
            there = k.let(k.clamp_index(step, count))
            ahead = k.both(k.lt(step, count), k.le(keys[there], wanted))
            place = k.let(k.select(ahead, there, place))
        return k.select(k.eq(keys[place], wanted), values[place], other[()])

    samples = (
        sample(
            np.array([[3, -1, 7], [8, 100, -9]]), np.array([-9, -1, 3, 5, 8]), "float32[5]",
            "float32[]",
        ),
        sample(
            np.array([0.5, np.nan, -0.0, np.inf], np.float32),
            np.array([-1, 0, 0.5, np.inf], np.float32), np.array([1, 2, 3, 4]), np.array(-1),
        ),
        sample(np.array([2, 1], np.int32), np.array([2], np.int32), "bool[1]", np.array(False)),
    )  # fmt: skip
