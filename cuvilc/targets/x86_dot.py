"""The functions of schedules/dot_tile.py in x86 instructions.

`cuvil_dot`, uint8 times int8, is one instruction with VNNI. Without, `cuvil_dot_words` and
`cuvil_dot_pairs` have both in 16 bits, where the sum of two products fits 32, so they are exact
too: pmaddubsw would have half as many instructions but saturates at 16.
`cuvil_dot_bf16` is one instruction with AVX512-BF16, and the portable one serves without.
`cuvil_round_bf16` and `cuvil_pair_bf16` are there with AVX512-BF16 only. All three take subnormal
numbers for zeros.
"""

from __future__ import annotations

from cuvilc.targets.dots import BYTES, HALVES, PAIRS, TURN_DWORDS, WORDS
from cuvilc.targets.x86_levels import level_stores

_MULTIPLY_ADD = {
    4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512",
}  # fmt: skip
_DOT = {8: "llvm.x86.avx512.vpdpbusd.256", 16: "llvm.x86.avx512.vpdpbusd.512"}
_DOT_BF16 = {16: "llvm.x86.avx512bf16.dpbf16ps.512"}
_ROUND_BF16 = {16: "llvm.x86.avx512bf16.cvtneps2bf16.512"}
_PAIR_BF16 = {16: "llvm.x86.avx512bf16.cvtne2ps2bf16.512"}
_HEAD = """
define linkonce_odr hidden {sums} @{function}({sums} %c, i32 %a, {n} %b)
    alwaysinline nounwind readnone {{
  %i = insertelement {n} poison, i32 %a, i32 0
  %s = shufflevector {n} %i, {n} poison, <{lanes} x i32> zeroinitializer
"""
_LANES = """
define linkonce_odr hidden {n} @{function}({n} %c, {n} %s, {n} %b)
    alwaysinline nounwind readnone {{
"""
_ONE = """\
  %x = bitcast {n} %s to {items}
  %y = bitcast {n} %b to {items}
  %r = call {sums} @{name}({sums} %c, {items} %x, {items} %y)
  ret {sums} %r
}}
declare {sums} @{name}({sums}, {items}, {items})
"""
# LLVM shall not know the sum: it would first add the products of several steps, to shorten the
# chain of additions, and have no registers for them.
_WIDE = """
define linkonce_odr hidden {n} @{function}({n} %c, {group} %a, {given} %b)
    alwaysinline nounwind readnone {{
  %i = insertelement <{count} x {group}> poison, {group} %a, i32 0
  %s = shufflevector <{count} x {group}> %i, <{count} x {group}> poison,
      <{count} x i32> zeroinitializer
  %x = bitcast <{count} x {group}> %s to {items}
  %y = bitcast {given} %b to {items}
  %p = call {n} @{name}({items} %x, {items} %y)
  %q = add {n} %c, %p
  %r = call {n} asm "", "=v,0"({n} %q)
  ret {n} %r
}}
declare {n} @{name}({items}, {items})
"""
# Dword r of quarter q becomes dword q of quarter r. LLVM makes more instructions of a shuffle that
# it knows, so it shall not know this one.
_TURN_DWORDS = """
define linkonce_odr hidden <16 x i32> @{function}(<16 x i32> %v) alwaysinline nounwind readnone {{
  %o = call <16 x i32> asm "", "=v,0"(<16 x i32> <{order}>)
  %d = call <16 x i32> @llvm.x86.avx512.permvar.si.512(<16 x i32> %v, <16 x i32> %o)
  ret <16 x i32> %d
}}
declare <16 x i32> @llvm.x86.avx512.permvar.si.512(<16 x i32>, <16 x i32>)
"""
# Four rows of 16 bytes: the dwords of each quarter come together, then the bytes of each channel.
_TURN = """
define linkonce_odr hidden <16 x i32> @{function}(<16 x i32> %v) alwaysinline nounwind readnone {{
  %d = call <16 x i32> @{dwords}(<16 x i32> %v)
  %e = bitcast <16 x i32> %d to <64 x i8>
  %f = shufflevector <64 x i8> %e, <64 x i8> poison, <64 x i32> <{items}>
  %g = bitcast <64 x i8> %f to <16 x i32>
  ret <16 x i32> %g
}}
"""
_ROUND = """
define linkonce_odr hidden i32 @{function}(ptr %from, ptr %to, i64 %i) alwaysinline nounwind {{
  %v = load <{lanes} x float>, ptr %from, align 4
  %r = call <{lanes} x bfloat> @{name}(<{lanes} x float> %v)
  %q = getelementptr bfloat, ptr %to, i64 %i
  store <{lanes} x bfloat> %r, ptr %q, align 2
  ret i32 0
}}
declare <{lanes} x bfloat> @{name}(<{lanes} x float>)
"""
_PAIR = """
define linkonce_odr hidden i32 @{function}(ptr %from, ptr %to, i64 %i) alwaysinline nounwind {{
  %p = getelementptr float, ptr %from, i64 {lanes}
  %x = load <{lanes} x float>, ptr %from, align 4
  %y = load <{lanes} x float>, ptr %p, align 4
  %r = call <{both} x bfloat> @{name}(<{lanes} x float> %y, <{lanes} x float> %x)
  %s = shufflevector <{both} x bfloat> %r, <{both} x bfloat> poison, <{both} x i32> <{order}>
  %q = getelementptr i32, ptr %to, i64 %i
  store <{both} x bfloat> %s, ptr %q, align 2
  ret i32 0
}}
declare <{both} x bfloat> @{name}(<{lanes} x float>, <{lanes} x float>)
"""


def dots(lanes: int, vnni: bool = False, bf16: bool = False) -> dict[str, str]:
    """The functions' texts by name for vectors of so many 32-bit lanes."""
    n = f"<{lanes} x i32>"
    found = {}
    if vnni:
        items, name = f"<{4 * lanes} x i8>", _DOT[lanes]
        found[BYTES.function] = (_HEAD + _ONE).format(
            n=n, sums=n, items=items, lanes=lanes, name=name, function=BYTES.function
        )
    else:
        items = f"<{2 * lanes} x i16>"
        for kind, group, count, given in (
            (WORDS, "i64", lanes // 2, items), (PAIRS, "i32", lanes, n),
        ):  # fmt: skip
            found[kind.function] = _WIDE.format(
                n=n, items=items, given=given, group=group, count=count,
                name=_MULTIPLY_ADD[lanes], function=kind.function,
            )  # fmt: skip
    if lanes == 16:
        found |= level_stores()
        order = ", ".join(f"i32 {4 * r + q}" for q in range(4) for r in range(4))
        found[TURN_DWORDS] = _TURN_DWORDS.format(function=TURN_DWORDS, order=order)
    if vnni and lanes == 16:
        found[BYTES.lanes] = (_LANES + _ONE).format(
            n=n, sums=n, items=items, name=name, function=BYTES.lanes
        )
        items = ", ".join(
            f"i32 {16 * q + 4 * r + i}" for q in range(4) for i in range(4) for r in range(4)
        )
        found[BYTES.turns] = _TURN.format(function=BYTES.turns, dwords=TURN_DWORDS, items=items)
    if bf16:
        found[HALVES.function] = (_HEAD + _ONE).format(
            n=n, sums=f"<{lanes} x float>", items=f"<{2 * lanes} x bfloat>", lanes=lanes,
            name=_DOT_BF16[lanes], function=HALVES.function,
        )  # fmt: skip
        found[HALVES.rounds] = _ROUND.format(
            function=HALVES.rounds, lanes=lanes, name=_ROUND_BF16[lanes]
        )
        order = ", ".join(f"i32 {i}, i32 {lanes + i}" for i in range(lanes))
        found[HALVES.pairs] = _PAIR.format(
            function=HALVES.pairs, lanes=lanes, both=2 * lanes, name=_PAIR_BF16[lanes], order=order
        )
    return found
