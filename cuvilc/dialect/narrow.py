"""Dtypes that NumPy does not have, most of 8 bits and fewer: what their codes mean, how to round.

An element takes one byte everywhere, also those of 4 and 2 bits (docs/adr/008-narrow-dtypes.md).
Names are ml_dtypes', and so is what NumPy does with arrays of them; `round_to` is ONNX's Cast.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

NARROW_INTEGERS = ("int4", "uint4", "int2", "uint2")
ROUNDINGS = ("nearest", "up", "down")
E8M0 = "float8_e8m0fnu"  # a power of two, 2^(code - 127); 255 is NaN; it has no sign and no zero
_E8M0_NAN, _E8M0_LARGEST = 0xFF, 0xFE


@dataclass(frozen=True)
class Format:
    """A float with a sign bit: (1 + m / 2^mantissa) · 2^(e - bias), where e = 0 instead
    m / 2^mantissa · 2^(1 - bias).

    largest: code of the greatest finite number. infinity, nan: their codes without sign, None where
    the format has none. one_zero: 0 has no sign, and the code of -0 is the only NaN.
    """

    bits: int
    mantissa: int
    bias: int
    largest: int
    infinity: int | None = None
    nan: int | None = None
    one_zero: bool = False

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)


FORMATS = {
    "float8_e4m3fn": Format(8, 3, 7, 0x7E, nan=0x7F),
    "float8_e4m3fnuz": Format(8, 3, 8, 0x7F, nan=0x80, one_zero=True),
    "float8_e5m2": Format(8, 2, 15, 0x7B, infinity=0x7C, nan=0x7E),
    "float8_e5m2fnuz": Format(8, 2, 16, 0x7F, nan=0x80, one_zero=True),
    "float6_e2m3fn": Format(6, 3, 1, 0x1F),
    "float6_e3m2fn": Format(6, 2, 3, 0x1F),
    "float4_e2m1fn": Format(4, 1, 1, 0x07),
}
NARROW_FLOATS = (*FORMATS, E8M0)
NARROW = (*NARROW_FLOATS, *NARROW_INTEGERS)
# NumPy's dtype of the byte: a float's code, an integer's value.
STORED = dict.fromkeys(NARROW_FLOATS, "uint8") | {
    name: "uint8" if name.startswith("u") else "int8" for name in NARROW_INTEGERS
}
# As what arrays of dtypes that NumPy does not have go to a file.
AS_NUMPY = {"bfloat16": "uint16", **STORED}


def as_numpy(array: np.ndarray) -> np.ndarray:
    """The array in a dtype of NumPy's: a float's codes, an integer's values; others as they are."""
    name = array.dtype.name
    if name in NARROW_INTEGERS:
        return array.astype(STORED[name])
    return array.view(AS_NUMPY[name]) if name in AS_NUMPY else array


def from_numpy(array: np.ndarray, name: str) -> np.ndarray:
    """Inverse of as_numpy: an array of the dtype of this name."""
    return array.view(numpy_dtype(name)) if name in AS_NUMPY else array


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a dtype name; bfloat16 and the narrow ones come from ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name) if name in AS_NUMPY else name)


def widened(array: np.ndarray) -> np.ndarray:
    """Narrow elements in a dtype that holds each: from there ml_dtypes converts to all others."""
    name = array.dtype.name
    if name in NARROW_FLOATS:
        return array.astype(np.float32)
    return array.astype(STORED[name]) if name in STORED else array


def pack(levels: np.ndarray, bits: int) -> np.ndarray:
    """Levels [N, K], 0 and up, as uint8 [N, K·bits/8]: several to a byte, the first one lowest."""
    each = widened(levels).reshape(len(levels), -1, 8 // bits)
    packed: np.ndarray = np.bitwise_or.reduce(each << _shifts(bits), axis=-1).astype(np.uint8)
    return packed


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """Inverse of pack: uint8 [N, K]."""
    levels = packed[..., None] >> _shifts(bits) & (1 << bits) - 1
    return levels.reshape(len(packed), -1)


def _shifts(bits: int) -> np.ndarray:
    return np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits)


def bits_of(name: str) -> int:
    """Bits of a narrow dtype's element; the rest of its byte is 0, or the sign's for int4, int2."""
    if name in FORMATS:
        return FORMATS[name].bits
    return 8 if name == E8M0 else int(name[-1])


def round_to(x: np.ndarray, name: str, saturate: bool, rounding: str) -> np.ndarray:
    """x as an array of a narrow float, by the rules of ONNX's Cast.

    A float64 or integer goes through float32, as in ml_dtypes. `saturate`: what is beyond the
    largest number, infinities included, becomes that; else infinity or NaN, whichever the format
    has first (one with neither saturates always). `rounding` matters to float8_e8m0fnu alone.
    """
    with np.errstate(all="ignore"):
        single = widened(x).astype(np.float32)
    if name == E8M0:
        return _power_of_two(single, saturate, rounding)
    dtype = numpy_dtype(name)
    if saturate:
        limit = np.float32(ml_dtypes.finfo(dtype).max)
        single = np.clip(single, -limit, limit)
    with np.errstate(all="ignore"):
        return single.astype(dtype)


def _power_of_two(x: np.ndarray, saturate: bool, rounding: str) -> np.ndarray:
    """The exponent of |x|, rounded: onnx.numpy_helper.to_float8e8m0, bit for bit.

    So infinities are NaN, and 0 is 2^-127, whether it saturates or not.
    """
    bits = x.view(np.uint32)
    power, rest = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    half = 1 << 22
    rises = {
        "up": rest > 0,
        "down": np.zeros(x.shape, bool),
        "nearest": (rest > half) | ((rest == half) & (power > 0)),
    }[rounding]
    code = power + rises
    code = np.minimum(code, _E8M0_LARGEST) if saturate else code
    code = np.where(power == _E8M0_NAN, _E8M0_NAN, code)
    return code.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
