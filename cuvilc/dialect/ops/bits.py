"""Logic on bools and on the bits of integers, elementwise."""

from __future__ import annotations

import numpy as np

from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import SIGNED, need_dtype, need_integer
from cuvilc.dialect.ops.elementwise import ELEMENTWISE, broadcast_type, declare_binary
from cuvilc.dialect.types import numpy_dtype

_BOOLS = (sample("bool[3,4]", "bool[4]", low=0, high=1), sample("bool[1,0]", "bool[2,1]"))
_BITS = (
    sample("uint8[3,4]", "uint8[4]", low=0, high=255),
    sample("int32[5]", "int32[1]", low=-99, high=99),
)


def _bool_type(lhs, rhs):
    need_dtype(lhs, ("bool",), "lhs")
    return broadcast_type(lhs, rhs)


def _integer_type(lhs, rhs):
    need_integer(lhs, "lhs")
    return broadcast_type(lhs, rhs)


def _logical(name, doc, reference, element):
    declare_binary(name, doc, _bool_type, reference, element, _BOOLS)


def _bitwise(name, doc, reference, element):
    declare_binary(name, doc, _integer_type, reference, element, _BITS)


_logical("logical_and", "lhs ∧ rhs.", np.logical_and, lambda k, a, b: k.both(a, b))
_logical("logical_or", "lhs ∨ rhs.", np.logical_or, lambda k, a, b: k.either(a, b))
_logical("logical_xor", "lhs ≠ rhs.", np.logical_xor, lambda k, a, b: k.ne(a, b))
_bitwise("bit_and", "The bits set in both.", np.bitwise_and, lambda k, a, b: k.bit_and(a, b))
_bitwise("bit_or", "The bits set in either.", np.bitwise_or, lambda k, a, b: k.bit_or(a, b))
_bitwise("bit_xor", "The bits set in one only.", np.bitwise_xor, lambda k, a, b: k.bit_xor(a, b))


@op("ai.logical_not", traits=ELEMENTWISE)
class LogicalNot:
    """¬x."""

    x: Tensor

    def shape(x):
        need_dtype(x, ("bool",), "x")
        return x

    def reference(x):
        return ~x

    def element(k, i, x):
        return k.invert(x[i])

    samples = (sample("bool[3,5]", low=0, high=1), sample("bool[0]"))


@op("ai.bit_not", traits=ELEMENTWISE)
class BitNot:
    """Every bit of x flipped."""

    x: Tensor

    def shape(x):
        need_integer(x, "x")
        return x

    def reference(x):
        return ~x

    def element(k, i, x):
        return k.bit_not(x[i])

    samples = (sample("uint8[7]", low=0, high=255), sample("int64[2,3]", low=-9, high=9))


_SHIFTS = (
    sample("uint8[2,3]", np.array([0, 3, 9], np.uint8), low=0, high=255),
    sample("uint32[4]", np.array([1], np.uint32), low=0, high=2**31),
    sample("int32[3]", np.array([0, 5, 31], np.int32), low=-99, high=99),
    sample(np.array([-8, 4, -1, 7, 1], np.int32), np.array([32, -1, 100, -(2**31), 31], np.int32)),
    sample(np.array([-8, 4, -1, 7, -2], np.int8), np.array([8, -1, 100, -128, 7], np.int8)),
)


def _amount(k, rhs, dtype):
    """rhs within the width of dtype; a negative one, like one beyond it, is the most."""
    most = k.const(numpy_dtype(dtype).itemsize * 8 - 1, dtype)
    amount = k.min(rhs, most)
    return k.select(k.lt(rhs, k.const(0, dtype)), most, amount) if dtype in SIGNED else amount


def _unless_outside(k, rhs, dtype, value):
    """The value, but 0 where rhs is negative or not less than the width of dtype."""
    zero, most = k.const(0, dtype), k.const(numpy_dtype(dtype).itemsize * 8 - 1, dtype)
    inside = k.select(k.gt(rhs, most), zero, value)
    return k.select(k.lt(rhs, zero), zero, inside) if dtype in SIGNED else inside


@op("ai.shift_left", traits=ELEMENTWISE)
class ShiftLeft:
    """lhs · 2^rhs in lhs's bits; a shift by all of them, by more or by less than 0 gives 0."""

    lhs: Tensor
    rhs: Tensor

    def shape(lhs, rhs):
        return _integer_type(lhs, rhs)

    def reference(lhs, rhs):
        return np.left_shift(lhs, rhs)

    def element(k, i, lhs, rhs):
        by, dtype = rhs.at(i), lhs.dtype
        shifted = k.shift_left(lhs.at(i), _amount(k, by, dtype))
        return _unless_outside(k, by, dtype, shifted)

    samples = _SHIFTS


@op("ai.shift_right", traits=ELEMENTWISE)
class ShiftRight:
    """⌊lhs / 2^rhs⌋; signed integers keep their sign. A negative rhs shifts out all bits."""

    lhs: Tensor
    rhs: Tensor

    def shape(lhs, rhs):
        return _integer_type(lhs, rhs)

    def reference(lhs, rhs):
        return np.right_shift(lhs, rhs)

    def element(k, i, lhs, rhs):
        by, dtype = rhs.at(i), lhs.dtype
        shifted = k.shift_right(lhs.at(i), _amount(k, by, dtype))
        return shifted if dtype in SIGNED else _unless_outside(k, by, dtype, shifted)

    samples = _SHIFTS
