"""The numbers and record layouts of runtime/src/image.h and cuvil.h, which tests/package ties to
these.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

MAGIC = 0x474D494C49565543  # "CUVILIMG"
VERSION = 2
NONE = 0xFFFFFFFF
API_VERSION = 1
MAX_RANK = 8

SECTION_ALIGN = 64
SEGMENT_ALIGN = 1 << 16  # the largest page size of the machines we link for

DTYPES = (
    "float32", "float64", "float16", "bfloat16",
    "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4", "uint4", "int2", "uint2",
)  # fmt: skip


class Section(IntEnum):
    STRINGS = 0
    METADATA = 1
    LEVELS = 2
    SYMBOLS = 3
    EXPRS = 4
    DIMS = 5
    INPUTS = 6
    OUTPUTS = 7
    BUFFERS = 8
    STEPS = 9
    OPERANDS = 10
    WEIGHTS = 11
    ADAPTABLE = 12
    LORA = 13
    ADAPTERS = 14


HEADER = Struct("<QIIQQ" + "QQ" * len(Section))  # followed by CHECKSUM
CHECKSUM = Struct("<II")
LEVEL = Struct("<IIQ")
SYMBOL = Struct("<IIIIqq")
EXPR = Struct("<IIIIq")
IO = Struct("<IIIIII")
BUFFER = Struct("<IIQ")
STEP = Struct("<12I")
INDEX = Struct("<I")
ADAPTABLE = Struct("<IIQQIIII")
LORA = Struct("<32sI28x")
