"""`cuvil_dot` of schedules/dot_tile.py in x86 instructions: uint8 times int8, exact.

With VNNI it is one instruction. Without, bytes are widened to 16 bits, where the sum of two
products fits 32: pmaddubsw would be shorter but saturates at 16.
"""

from __future__ import annotations

_MULTIPLY_ADD = {
    4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512",
}  # fmt: skip
_DOT = {8: "llvm.x86.avx512.vpdpbusd.256", 16: "llvm.x86.avx512.vpdpbusd.512"}
_HEAD = """
define linkonce_odr hidden {n} @cuvil_dot({n} %c, i32 %a, {n} %b) alwaysinline nounwind readnone {{
  %i = insertelement {n} poison, i32 %a, i32 0
  %s = shufflevector {n} %i, {n} poison, <{lanes} x i32> zeroinitializer
"""
_ONE = """\
  %x = bitcast {n} %s to {bytes}
  %y = bitcast {n} %b to {bytes}
  %r = call {n} @{name}({n} %c, {bytes} %x, {bytes} %y)
  ret {n} %r
}}
declare {n} @{name}({n}, {bytes}, {bytes})
"""
_WIDENED = """\
  %x = bitcast {n} %s to {halves}
  %y = bitcast {n} %b to {halves}
  %x0 = and {halves} %x, splat (i16 255)
  %x1 = lshr {halves} %x, splat (i16 8)
  %u0 = shl {halves} %y, splat (i16 8)
  %y0 = ashr {halves} %u0, splat (i16 8)
  %y1 = ashr {halves} %y, splat (i16 8)
  %p0 = call {n} @{name}({halves} %x0, {halves} %y0)
  %p1 = call {n} @{name}({halves} %x1, {halves} %y1)
  %q = add {n} %c, %p0
  %r = add {n} %q, %p1
  ret {n} %r
}}
declare {n} @{name}({halves}, {halves})
"""


def dot(lanes: int, vnni: bool) -> str:
    """The function for vectors of so many int32 lanes."""
    names = _DOT if vnni else _MULTIPLY_ADD
    return (_HEAD + (_ONE if vnni else _WIDENED)).format(
        n=f"<{lanes} x i32>", bytes=f"<{4 * lanes} x i8>", halves=f"<{2 * lanes} x i16>",
        lanes=lanes, name=names[lanes],
    )  # fmt: skip
