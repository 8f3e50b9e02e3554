"""The transforms of conv_strassen.py in LLVM IR, on 16-bit and 32-bit integers.

Winograd's variant of Strassen's product of matrices of 2×2 parts, 7 products for 8:

    S1 = A21 + A22   T1 = B12 - B11   P1 = A11 B11   P5 = S1 T1   C11 = P1 + P2
    S2 = S1 - A11    T2 = B22 - T1    P2 = A12 B21   P6 = S2 T2   C12 = P1 + P6 + P5 + P3
    S3 = A11 - A21   T3 = B22 - B12   P3 = S4 B22    P7 = S3 T3   C21 = P1 + P6 + P7 - P4
    S4 = A12 - S2    T4 = T2 - B21    P4 = A22 T4                 C22 = P1 + P6 + P7 + P5

A part of A is 16 channels of a pixel, of B 16 channels of 16 outputs, of C 16 outputs of a pixel.
`depth` is 1, or 0 for the one part that is multiplied as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuvilc.targets.dots import GROUP_BYTES
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.schedules.conv_words_texts import Text, head
from cuvilc.targets.schedules.gemm_plan import PANEL

FORMS = 7  # products of parts: what of A and of B is multiplied


def _left(t: Text, parts: Sequence[str]) -> Sequence[str]:
    """What of A is multiplied."""
    if len(parts) == 1:
        return parts
    a11, a12, a21, a22 = parts
    s1 = t.add(a21, a22)
    s2 = t.sub(s1, a11)
    return [a11, a12, t.sub(a12, s2), a22, s1, s2, t.sub(a11, a21)]


def _right(t: Text, parts: Sequence[str]) -> Sequence[str]:
    """What of B it is multiplied with."""
    if len(parts) == 1:
        return parts
    b11, b12, b21, b22 = parts
    t1 = t.sub(b12, b11)
    t2 = t.sub(b22, t1)
    return [b11, b21, b22, t.sub(t2, b21), t1, t2, t.sub(b22, b12)]


def _result(t: Text, products: Sequence[str]) -> Sequence[str]:
    """C."""
    if len(products) == 1:
        return products
    p1, p2, p3, p4, p5, p6, p7 = products
    u2 = t.add(p1, p6)
    u3 = t.add(u2, p7)
    u4 = t.add(u2, p5)
    return [t.add(p1, p2), t.add(u4, p3), t.sub(u3, p4), t.add(u3, p5)]


def _places(depth: int) -> list[tuple[int, int]]:
    """(row, column) of the parts of a matrix."""
    return [(i, j) for i in range(1 << depth) for j in range(1 << depth)]


def left_text(name: str, depth: int) -> str:
    """name(x, i.., plane, to, o, point): pixels at bytes i.. of uint8, blocks of 16 channels
    `plane` bytes apart, become int16, `point` elements apart, four channels each in ORDER.
    """
    count = 1 << depth
    places = "".join(f", i64 %i{n}" for n in range(count))
    item = f"<{BLOCK} x i16>"
    t = Text(head(name, f"ptr %x{places}, i64 %plane, ptr %to, i64 %o, i64 %point"), item)
    parts = []
    for row, column in _places(depth):
        pixel = t.ordered("%x", t.index(f"%i{row}", "%plane", column))
        parts.append(t.value(f"zext <{BLOCK} x i8> {pixel} to {item}"))
    for n, value in enumerate(_left(t, parts)):
        t.store("i16", value, "%to", t.index("%o", "%point", n))
    return t.finish()


def right_text(name: str, lanes: int, depth: int) -> str:
    """name(w, i, to, o, point): four int8 of `lanes` outputs, of a block of channels and the next
    one, of a block of outputs and the next one, become int16, `point` elements apart: pairs of
    channels as ORDER has them, 16 outputs between them.
    """
    t = Text(head(name, "ptr %w, i64 %i, ptr %to, i64 %o, i64 %point"), f"<{2 * lanes} x i16>")
    for pair in range(2):
        parts = []
        for channels, outputs in _places(depth):
            at = channels * (BLOCK * PANEL) + outputs * (BLOCK * GROUP_BYTES)
            parts.append(t.widened("%w", t.index("%i", "1", at), pair))
        first = t.index("%o", "1", pair * 2 * BLOCK)
        for n, value in enumerate(_right(t, parts)):
            t.store("i16", value, "%to", t.index(first, "%point", n))
    return t.finish()


def sums_text(name: str, depth: int, point: int) -> str:
    """name(m, i, to): products of 16 outputs, `point` elements apart, become sums [pixel, block of
    outputs, 16].
    """
    t = Text(head(name, "ptr %m, i64 %i, ptr %to"), f"<{BLOCK} x i32>")
    products = [
        t.load("i32", t.item, "%m", t.index("%i", "1", n * point)) for n in range(FORMS**depth)
    ]
    for (row, column), value in zip(_places(depth), _result(t, products), strict=True):
        t.store("i32", value, "%to", str(((row << depth) + column) * BLOCK))
    return t.finish()
