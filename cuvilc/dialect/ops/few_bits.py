"""Products with weights of a few bits, which stay packed: several to a byte, lowest bits first."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.dims import floordiv
from cuvilc.dialect.narrow import unpack
from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import need, need_dtype, need_equal, need_rank, need_shape
from cuvilc.dialect.types import TensorType


@op("ai.matmul_nbits")
class MatMulNBits:
    """y[.., n] = Σ_k x[.., k] · (q[n, k] - zero[n, k // block]) · scale[n, k // block].

    q holds numbers of `bits` bits, 2, 4 or 8: packed[n, j] has numbers j·8/bits up to the next
    multiple, the first in its lowest bits. A missing zero is 2^(bits - 1). The block divides the
    rows of x, and a byte never spans two blocks.    (ONNX Runtime's MatMulNBits)
    """

    x: Tensor
    packed: Tensor
    scale: Tensor
    zero: Tensor | None
    bits: int
    block: int

    def shape(x, packed, scale, zero, *, bits, block):
        need(bits in (2, 4, 8), f"numbers of {bits} bits")
        need(block > 0 and block * bits % 8 == 0, f"blocks of {block} numbers")
        need_dtype(x, ("float32",), "x")
        need_dtype(packed, ("uint8",), "packed")
        need_dtype(scale, ("float32",), "scale")
        need(x.rank > 0, "x must have an axis")
        need_rank(packed, 2, "packed")
        rows, width = packed.shape
        need_equal(width * (8 // bits), x.shape[-1], "numbers of a row and the last axis of x")
        parts = floordiv(width * 8, bits * block)
        need_equal(parts * (bits * block), width * 8, "whole blocks and the numbers of a row")
        need_shape(scale, (rows, parts), "scale")
        if zero is not None:
            need_dtype(zero, ("uint8",), "zero")
            need_shape(zero, scale.shape, "zero")
        return TensorType((*x.shape[:-1], rows), x.dtype)

    def reference(x, packed, scale, zero, *, bits, block):
        levels = unpack(packed, bits)
        middle = np.full(scale.shape, 1 << bits - 1) if zero is None else zero.astype(np.int64)
        centred = levels - np.repeat(middle, block, axis=1)
        return np.matmul(x, (centred * np.repeat(scale, block, axis=1)).T)

    def domain(k, x, packed, scale, zero, *, bits, block):
        return (x.shape[-1],)

    def term(k, i, r, x, packed, scale, zero, *, bits, block):
        row, at = i[-1], r[0]
        byte = k.cast(packed[row, k.floordiv(at, 8 // bits)], "int32")
        shift = k.value_of_index(k.mod(at, 8 // bits) * bits, "int32")
        level = k.bit_and(k.shift_right(byte, shift), k.const((1 << bits) - 1, "int32"))
        part = k.floordiv(at, block)
        middle = k.const(1 << bits - 1, "int32")
        if zero is not None:
            middle = k.cast(zero[row, part], "int32")
        weight = k.cast(level - middle, "float32") * scale[row, part]
        return x[(*i[:-1], at)] * weight

    combine = "sum"
    samples = (
        sample("float32[3,32]", np.arange(80, dtype=np.uint8).reshape(5, 16) * 3,
               "float32[5,2]", bits=4, block=16),
        sample("float32[2,1,16]", np.arange(12, dtype=np.uint8).reshape(3, 4) * 21,
               "float32[3,2]", np.array([[0, 1], [2, 3], [3, 0]], np.uint8), bits=2, block=8),
        sample("float32[8]", np.arange(16, dtype=np.uint8).reshape(2, 8) * 16, "float32[2,1]",
               np.array([[7], [200]], np.uint8), bits=8, block=8),
        sample("float32[0,8]", np.zeros((4, 4), np.uint8), "float32[4,1]", bits=4, block=8),
    )  # fmt: skip
