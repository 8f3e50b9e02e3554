"""schedules/byte_table.py's look-up in x86 instructions.

AVX-512 (BW) picks words of a table of 128 from two registers each, so a table of 256 bytes is four
registers: of 64 bytes the even ones and the odd ones pick a word, and the byte in it.
"""

from __future__ import annotations

from cuvilc.targets.dots import LOOK_UP

_WORDS = "<32 x i16>"
_PICK = "llvm.x86.avx512.vpermi2var.hi.512"


def look_ups() -> dict[str, str]:
    """The function by its name."""
    return {LOOK_UP: _text()}


def _text() -> str:
    """y[i] = table[x[i]] for `n` times 64 bytes. A call, for the constants of a kernel's arithmetic
    would take the table's registers.
    """
    lines = [
        f"define linkonce_odr hidden i32 @{LOOK_UP}(ptr %table, ptr %x, ptr %y, i64 %n)",
        "    noinline nounwind {",
        "start:",
    ]
    for part in range(4):
        lines += [
            f"  %p{part} = getelementptr i8, ptr %table, i64 {part * 64}",
            f"  %t{part} = load {_WORDS}, ptr %p{part}, align 1",
        ]
    lines += [
        "  %some = icmp sgt i64 %n, 0",
        "  br i1 %some, label %blocks, label %end",
        "blocks:",
        "  %i = phi i64 [ 0, %start ], [ %next, %blocks ]",
        "  %at = shl i64 %i, 6",
        "  %px = getelementptr i8, ptr %x, i64 %at",
        f"  %b = load {_WORDS}, ptr %px, align 1",
        f"  %even = lshr {_WORDS} %b, {_all(1)}",
        f"  %odd = lshr {_WORDS} %b, {_all(9)}",
        f"  %evenbit = and {_WORDS} %b, {_all(1)}",
        f"  %evenshift = shl {_WORDS} %evenbit, {_all(3)}",
        f"  %oddbit = lshr {_WORDS} %b, {_all(5)}",
        f"  %oddshift = and {_WORDS} %oddbit, {_all(8)}",
        f"  %evenhigh = and {_WORDS} %b, {_all(128)}",
        f"  %evenupper = icmp ne {_WORDS} %evenhigh, zeroinitializer",
        f"  %oddupper = icmp slt {_WORDS} %b, zeroinitializer",
    ]
    for which in ("even", "odd"):
        lines += [
            f"  %{which}0 = call {_WORDS} @{_PICK}({_WORDS} %t0, {_WORDS} %{which}, {_WORDS} %t1)",
            f"  %{which}1 = call {_WORDS} @{_PICK}({_WORDS} %t2, {_WORDS} %{which}, {_WORDS} %t3)",
            f"  %{which}w = select <32 x i1> %{which}upper, {_WORDS} %{which}1, {_WORDS} %{which}0",
            f"  %{which}b = lshr {_WORDS} %{which}w, %{which}shift",
        ]
    return "\n".join([
        *lines,
        f"  %low = and {_WORDS} %evenb, {_all(255)}",
        f"  %high = shl {_WORDS} %oddb, {_all(8)}",
        f"  %r = or {_WORDS} %low, %high",
        "  %py = getelementptr i8, ptr %y, i64 %at",
        f"  store {_WORDS} %r, ptr %py, align 1",
        "  %next = add i64 %i, 1",
        "  %more = icmp slt i64 %next, %n",
        "  br i1 %more, label %blocks, label %end",
        "end:",
        "  ret i32 0",
        "}",
        f"declare {_WORDS} @{_PICK}({_WORDS}, {_WORDS}, {_WORDS})",
        "",
    ])  # fmt: skip


def _all(value: int) -> str:
    return f"<{', '.join([f'i16 {value}'] * 32)}>"
