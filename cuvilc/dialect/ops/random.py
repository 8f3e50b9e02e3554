"""Random bits that follow from a seed and a place: the same on every run and every target."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuvilc.dialect.op import op, sample
from cuvilc.dialect.ops._index import flatten
from cuvilc.dialect.ops._rules import need, need_not_negative
from cuvilc.dialect.types import TensorType

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


@op("ai.random_bits", traits=("injective", "costly"))
class RandomBits:
    """uint32 numbers of Philox4x32-10.    (Salmon et al. 2011, §4.3)

    Element number f, row-major, is word f mod 4 of the block of counter (f // 4, 0, stream, 0) with
    the 64-bit key `seed`; of a tensor of more than 2³⁴ elements the numbers repeat.
    """

    shape: tuple
    seed: int
    stream: int = 0

    def shape(*, shape, seed, stream):
        need_not_negative(shape, "shape")
        need(-(2**63) <= seed < 2**63 and 0 <= stream <= _LOW, f"seed {seed}, stream {stream}")
        return TensorType(tuple(shape), "uint32")

    def reference(*, shape, seed, stream):
        flat = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64)
        zero = np.zeros_like(flat)
        counter = [flat // np.uint64(4) & np.uint64(_LOW), zero, zero + np.uint64(stream), zero]
        low = np.uint64(_LOW)
        for n in range(_ROUNDS):
            keys = [np.uint64(key) for key in _round_keys(seed, n)]
            products = [counter[2 * i] * np.uint64(m) for i, m in enumerate(_MULTIPLIERS)]
            highs, lows = ([f(p) for p in products] for f in (lambda p: p >> 32, lambda p: p & low))
            counter = [
                highs[1] ^ counter[1] ^ keys[0], lows[1], highs[0] ^ counter[3] ^ keys[1], lows[0],
            ]  # fmt: skip
        words = np.choose((flat % np.uint64(4)).astype(np.int64), counter)
        return words.astype(np.uint32).reshape(shape)

    def element(k, i, *, shape, seed, stream):
        flat = flatten(i, shape)
        word = lambda v: k.const(v, "uint32")  # noqa: E731
        block = k.value_of_index(k.floordiv(flat, 4), "uint32")
        counter = [block, word(0), word(stream), word(0)]
        for n in range(_ROUNDS):
            keys = [word(key) for key in _round_keys(seed, n)]
            (low0, high0), (low1, high1) = (
                _product(k, counter[2 * j], m) for j, m in enumerate(_MULTIPLIERS)
            )
            counter = [
                k.let(k.bit_xor(k.bit_xor(high1, counter[1]), keys[0])), low1,
                k.let(k.bit_xor(k.bit_xor(high0, counter[3]), keys[1])), low0,
            ]  # fmt: skip
        lane = k.value_of_index(k.mod(flat, 4), "int64")
        upper = k.select(k.eq(lane, 2), counter[2], counter[3])
        lower = k.select(k.eq(lane, 0), counter[0], counter[1])
        return k.select(k.lt(lane, 2), lower, upper)

    samples = (
        sample(shape=(3, 7), seed=0),
        sample(shape=(33,), seed=-1234567890123, stream=5),
        sample(shape=(), seed=1 << 40),
        sample(shape=(2, 0), seed=7),
    )


def _round_keys(seed: int, n: int) -> tuple[int, int]:
    """The two words of the key in round n."""
    return (seed + n * _WEYL[0]) & _LOW, ((seed >> 32) + n * _WEYL[1]) & _LOW


def _product(k: Any, a: Any, b: int) -> tuple[Any, Any]:
    """(low, high) words of the product of two words."""
    wide = k.let(k.cast(a, "uint64") * k.const(b, "uint64"))
    high = k.cast(k.shift_right(wide, k.const(32, "uint64")), "uint32")
    return k.let(k.cast(wide, "uint32")), k.let(high)
