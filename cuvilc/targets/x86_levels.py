"""Quantised results, the function of schedules/conv_levels.py, in x86 instructions.

Packing saturates, so that of the limits only the upper one is compared with: beyond 2³¹ a float
becomes the least int32, as NaN does.
"""

from __future__ import annotations

from cuvilc.targets.dots import STORES_LEVELS, TURN_DWORDS

_VECTORS = 4
_TEXT = """
define linkonce_odr hidden i32 @{function}(ptr %from, i64 %f, ptr %to, i64 %t, i32 %zero)
    alwaysinline nounwind {{
  %high = sub i32 {high}, %zero
  %highf = sitofp i32 %high to float
  %highv = insertelement <16 x float> poison, float %highf, i32 0
  %highs = shufflevector <16 x float> %highv, <16 x float> poison, <16 x i32> zeroinitializer
  %low = sub i32 {low}, %zero
  %lowf = sitofp i32 %low to float
  %lowv = insertelement <16 x float> poison, float %lowf, i32 0
  %lows = shufflevector <16 x float> %lowv, <16 x float> poison, <16 x i32> zeroinitializer
  %zerov = insertelement <16 x i32> poison, i32 %zero, i32 0
  %zeros = shufflevector <16 x i32> %zerov, <16 x i32> poison, <16 x i32> zeroinitializer
  %p = getelementptr float, ptr %from, i64 %f
{vectors}
  %a = call <32 x i16> @llvm.x86.avx512.packssdw.512(<16 x i32> %z0, <16 x i32> %z1)
  %b = call <32 x i16> @llvm.x86.avx512.packssdw.512(<16 x i32> %z2, <16 x i32> %z3)
  %c = call <64 x i8> @llvm.x86.avx512.pack{kind}swb.512(<32 x i16> %a, <32 x i16> %b)
  %d = bitcast <64 x i8> %c to <16 x i32>
  %e = call <16 x i32> @{turn}(<16 x i32> %d)
  %q = getelementptr i8, ptr %to, i64 %t
  store <16 x i32> %e, ptr %q, align 1
  ret i32 0
}}
declare <32 x i16> @llvm.x86.avx512.packssdw.512(<16 x i32>, <16 x i32>)
declare <64 x i8> @llvm.x86.avx512.pack{kind}swb.512(<32 x i16>, <32 x i16>)
declare <16 x i32> @llvm.x86.avx512.mask.cvtps2dq.512(<16 x float>, <16 x i32>, i16, i32)
"""
_VECTOR = """\
  %p{i} = getelementptr float, ptr %p, i64 {first}
  %x{i} = load <16 x float>, ptr %p{i}, align 4
  %g{i} = fcmp ogt <16 x float> %x{i}, %highs
  %y{i} = select <16 x i1> %g{i}, <16 x float> %highs, <16 x float> %x{i}
{lower}\
  %n{i} = call <16 x i32> @llvm.x86.avx512.mask.cvtps2dq.512(<16 x float> {value},
      <16 x i32> undef, i16 -1, i32 4)
  %z{i} = add <16 x i32> %n{i}, %zeros
"""
# Less a negative zero point the least int32 would wrap.
_LOWER = """\
  %l{i} = fcmp ogt <16 x float> %y{i}, %lows
  %w{i} = select <16 x i1> %l{i}, <16 x float> %y{i}, <16 x float> %lows
"""


def level_stores() -> dict[str, str]:
    """The functions' texts by name, for 512-bit vectors."""
    return {
        STORES_LEVELS["uint8"]: _text("uint8", 0, 255, False),
        STORES_LEVELS["int8"]: _text("int8", -128, 127, True),
    }


def _text(dtype: str, low: int, high: int, signed: bool) -> str:
    value, lower = ("%w", _LOWER) if signed else ("%y", "")
    vectors = "".join(
        _VECTOR.format(i=i, first=16 * i, lower=lower.format(i=i), value=f"{value}{i}")
        for i in range(_VECTORS)
    )
    return _TEXT.format(
        function=STORES_LEVELS[dtype], low=low, high=high, vectors=vectors,
        kind="s" if signed else "u", turn=TURN_DWORDS,
    )  # fmt: skip
