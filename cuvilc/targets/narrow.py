"""Narrow dtypes inside a kernel: codes of floats as uint8, integers of 4 and 2 bits as 8.

Arithmetic on bits, so that it vectorises; every code and every float16 is tested against ml_dtypes
(tests/targets/test_narrow.py).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx

from cuvilc.dialect.narrow import E8M0, FORMATS, NARROW_FLOATS, STORED, Format, bits_of
from cuvilc.targets.tir import const

_ONE = 127  # exponent of 1.0 in a float32, whose mantissa has _MANTISSA bits
_MANTISSA = 23
_INFINITY, _QUIET_NAN = 0x7F800000, 0x7FC00000


def _u(value: int) -> Any:
    return const(value, "uint32")


def _float(bits: Any) -> Any:
    return tirx.reinterpret("float32", bits)


class Narrow:
    """The part of `k` that converts from and to narrow dtypes."""

    def let(self, value: Any) -> Any:
        """Name a value, so that it is computed once."""
        raise NotImplementedError

    def own_bits(self, value: Any, dtype: str) -> Any:
        """What is stored as a narrow element, without bits beyond its own (int4, int2: sign)."""
        bits, stored = bits_of(dtype), STORED[dtype]
        if bits == 8:
            return value
        low = value & const((1 << bits) - 1, stored)
        if stored == "uint8":
            return low
        sign = const(1 << (bits - 1), stored)
        return (low ^ sign) - sign

    def code_of(self, value: float, dtype: str) -> Any:
        """A number as a constant of a narrow dtype."""
        element = np.array(value, np.float32).astype(getattr(ml_dtypes, dtype))
        stored = STORED[dtype]
        code = element.view(np.uint8) if dtype in NARROW_FLOATS else element.astype(stored)
        return const(int(code), stored)

    def to_narrow_integer(self, value: Any, dtype: str) -> Any:
        """The low bits of an integer, or of a float's whole part."""
        if str(value.ty.dtype).startswith("float"):
            value = tirx.Cast("int32", value)
        return self.own_bits(tirx.Cast(STORED[dtype], value), dtype)

    def widen(self, value: Any, dtype: str) -> Any:
        """A value of `dtype`, narrow floats as a float32, which holds each exactly."""
        if dtype not in NARROW_FLOATS:
            return value
        code = self.let(tirx.Cast("uint32", value))
        if dtype == E8M0:
            return self._from_power(code)
        form = FORMATS[dtype]
        magnitude = self.let(code & _u(form.sign - 1))
        shift = _MANTISSA - form.mantissa
        whole = (magnitude << _u(shift)) + _u((_ONE - form.bias) << _MANTISSA)
        unit = const(2.0 ** (1 - form.bias - form.mantissa), "float32")
        small = tirx.Cast("float32", tirx.Cast("int32", magnitude)) * unit
        has_exponent = magnitude >= _u(1 << form.mantissa)
        bits = tirx.Select(has_exponent, whole, tirx.reinterpret("uint32", small))
        if form.infinity is not None:
            at = tirx.EQ(magnitude, _u(form.infinity))
            bits = tirx.Select(at, _u(_INFINITY), bits)
            bits = tirx.Select(magnitude > _u(form.infinity), _u(_QUIET_NAN), bits)
        elif form.nan is not None and not form.one_zero:
            bits = tirx.Select(tirx.EQ(magnitude, _u(form.nan)), _u(_QUIET_NAN), bits)
        signed = bits | ((code & _u(form.sign)) << _u(32 - form.bits))
        if form.one_zero:
            nan = _u(_QUIET_NAN | 1 << 31)
            signed = tirx.Select(tirx.EQ(code, _u(form.sign)), nan, signed)
        return _float(signed)

    @staticmethod
    def _from_power(code: Any) -> Any:
        bits = tirx.Select(tirx.EQ(code, _u(0)), _u(1 << (_MANTISSA - 1)), code << _u(_MANTISSA))
        return _float(tirx.Select(tirx.EQ(code, _u(0xFF)), _u(_QUIET_NAN), bits))

    def narrow(self, value: Any, dtype: str, saturate: bool, rounding: str) -> Any:
        """The code of a value as cuvilc.dialect.narrow.round_to says."""
        source = str(value.ty.dtype)
        if source == "bool":
            value = tirx.Cast("int32", value)
        if source != "float32":
            value = tirx.Cast("float32", value)
        bits = self.let(tirx.reinterpret("uint32", value))
        if dtype == E8M0:
            return tirx.Cast("uint8", self._to_power(bits, saturate, rounding))
        form = FORMATS[dtype]
        magnitude = self.let(bits & _u(0x7FFFFFFF))
        code = self.let(self._nearest(magnitude, form))
        sign = self.let((bits >> _u(32 - form.bits)) & _u(form.sign))
        return tirx.Cast("uint8", self._specials(code, magnitude, sign, form, saturate))

    def _nearest(self, magnitude: Any, form: Format) -> Any:
        """The code nearest to a float32 ≥ 0, ties to even; above `largest` where that is less."""
        shift = _MANTISSA - form.mantissa
        odd = (magnitude >> _u(shift)) & _u(1)
        whole = (magnitude + _u((1 << (shift - 1)) - 1) + odd) >> _u(shift)
        whole = whole - _u((_ONE - form.bias) << form.mantissa)
        # Below the least normal number the float adder rounds: 2ⁿ's last bit is worth one code.
        anchor = _u((_ONE + _MANTISSA + 1 - form.bias - form.mantissa) << _MANTISSA)
        small = tirx.reinterpret("uint32", _float(magnitude) + _float(anchor)) - anchor
        return tirx.Select(magnitude < _u((_ONE + 1 - form.bias) << _MANTISSA), small, whole)

    @staticmethod
    def _specials(code: Any, magnitude: Any, sign: Any, form: Format, saturate: bool) -> Any:
        """The whole code: what is too great, NaN, and the sign."""
        largest, is_nan = _u(form.largest), magnitude > _u(_INFINITY)
        beyond = form.infinity if form.infinity is not None else form.nan
        if saturate or beyond is None:
            beyond = form.largest
        code = tirx.Select(code > largest, _u(beyond), code)
        if form.nan is None:  # ml_dtypes gives a zero of the other sign
            zero = sign ^ _u(form.sign)
            return tirx.Select(is_nan, zero, code | sign)
        code = tirx.Select(is_nan, _u(form.nan), code)
        if not form.one_zero:
            return code | sign
        unsigned = tirx.Or(tirx.EQ(code, _u(0)), tirx.EQ(code, _u(form.nan)))
        return tirx.Select(unsigned, code, code | sign)

    def _to_power(self, bits: Any, saturate: bool, rounding: str) -> Any:
        power = self.let((bits >> _u(_MANTISSA)) & _u(0xFF))
        rest = self.let(bits & _u((1 << _MANTISSA) - 1))
        half = _u(1 << (_MANTISSA - 1))
        if rounding == "up":
            rises = rest > _u(0)
        else:
            rises = tirx.Or(rest > half, tirx.And(tirx.EQ(rest, half), power > _u(0)))
        code = power
        if rounding != "down":
            code = self.let(power + tirx.Select(rises, _u(1), _u(0)))
        if saturate:
            code = tirx.Select(code > _u(0xFE), _u(0xFE), code)
        return tirx.Select(tirx.EQ(power, _u(0xFF)), _u(0xFF), code)
