"""The transforms of conv_words.py in LLVM IR, on 16-bit and 32-bit integers.

F(2×2, 3×3) of Winograd (Lavin & Gray 2016, eq. 8) with G doubled, so that all are integers:

    Bᵀ = 1  0 -1  0     2G = 2  0  0     Aᵀ = 1  1  1  0
         0  1  1  0          1  1  1          0  1 -1 -1
         0 -1  1  0          1 -1  1
         0  1  0 -1          0  0  2

    4 y = Aᵀ ((2G w 2Gᵀ) ⊙ (Bᵀ x B)) A
"""

from __future__ import annotations

from collections.abc import Sequence

from cuvilc.dialect.winograd import TAPS
from cuvilc.targets.schedules.conv_window import BLOCK

TILE, SEEN = 2, 4
POINTS = SEEN**2
# Of four neighbouring channels: widened by shifts, bytes 0 and 2 of an int32 come together.
ORDER = (0, 2, 1, 3)


class Text:
    """Lines of a function on vectors `item`; a method adds some and returns its value's name."""

    def __init__(self, head: str, item: str) -> None:
        self.lines, self.item, self._count = [head], item, 0

    def value(self, text: str) -> str:
        self._count += 1
        self.lines.append(f"  %v{self._count} = {text}")
        return f"%v{self._count}"

    def add(self, a: str, b: str) -> str:
        return self.value(f"add {self.item} {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.value(f"sub {self.item} {a}, {b}")

    def index(self, base: str, stride: str, number: int) -> str:
        """base + number · stride, an i64."""
        if number == 0:
            return base
        step = self.value(f"mul i64 {stride}, {number}")
        return self.value(f"add i64 {base}, {step}")

    def load(self, item: str, vector: str, pointer: str, index: str) -> str:
        at = self.value(f"getelementptr {item}, ptr {pointer}, i64 {index}")
        return self.value(f"load {vector}, ptr {at}, align 1")

    def store(self, item: str, value: str, pointer: str, index: str) -> None:
        at = self.value(f"getelementptr {item}, ptr {pointer}, i64 {index}")
        self.lines.append(f"  store {self.item} {value}, ptr {at}, align 1")

    def widened(self, pointer: str, index: str, pair: int) -> str:
        """int16 of the int8 that lie there in fours: numbers 0 and 2 of each, or 1 and 3."""
        value = self.load("i8", self.item, pointer, index)
        if pair == 0:
            value = self.value(f"shl {self.item} {value}, splat (i16 8)")
        return self.value(f"ashr {self.item} {value}, splat (i16 8)")

    def ordered(self, pointer: str, index: str) -> str:
        """A block of bytes, each four of them as ORDER has them."""
        item = f"<{BLOCK} x i8>"
        order = ", ".join(f"i32 {4 * n + i}" for n in range(BLOCK // 4) for i in ORDER)
        block = self.load("i8", item, pointer, index)
        return self.value(f"shufflevector {item} {block}, {item} poison, <{BLOCK} x i32> <{order}>")

    def finish(self) -> str:
        return "\n".join([*self.lines, "  ret i32 0", "}", ""])


def head(name: str, arguments: str) -> str:
    return f"define linkonce_odr hidden i32 @{name}({arguments}) alwaysinline nounwind {{"


def _inputs(t: Text, d: Sequence[str]) -> list[str]:
    """Bᵀ d."""
    return [t.sub(d[0], d[2]), t.add(d[1], d[2]), t.sub(d[2], d[1]), t.sub(d[1], d[3])]


def _weights(t: Text, w: Sequence[str]) -> list[str]:
    """2G w."""
    ends = t.add(w[0], w[2])
    return [t.add(w[0], w[0]), t.add(ends, w[1]), t.sub(ends, w[1]), t.add(w[2], w[2])]


def _results(t: Text, m: Sequence[str]) -> list[str]:
    """Aᵀ m."""
    return [t.add(t.add(m[0], m[1]), m[2]), t.sub(t.sub(m[1], m[2]), m[3])]


def inputs_text(name: str) -> str:
    """name(x, i, line, to, o, point): 4×4 pixels of 16 uint8 channels, rows `line` bytes apart,
    become the int16 of 16 points, `point` elements apart.
    """
    t = Text(
        head(name, "ptr %x, i64 %i, i64 %line, ptr %to, i64 %o, i64 %point"),
        f"<{BLOCK} x i16>",
    )
    rows = [t.index("%i", "%line", r) for r in range(SEEN)]
    made = []
    for c in range(SEEN):
        column = []
        for r in range(SEEN):
            at = t.index(rows[r], str(BLOCK), c)
            pixel = t.load("i8", f"<{BLOCK} x i8>", "%x", at)
            column.append(t.value(f"zext <{BLOCK} x i8> {pixel} to {t.item}"))
        made.append(_inputs(t, column))
    for r in range(SEEN):
        for c, value in enumerate(_inputs(t, [made[j][r] for j in range(SEEN)])):
            t.store("i16", value, "%to", t.index("%o", "%point", r * SEEN + c))
    return t.finish()


def weights_text(name: str, lanes: int) -> str:
    """name(w, i, tap, to, o, point): 3×3 taps, `tap` bytes apart, of `lanes` output channels of
    four int8 become the int16 of 16 points, `point` elements apart: of the pairs of input channels
    that ORDER has, with 16 output channels between them.
    """
    t = Text(
        head(name, "ptr %w, i64 %i, i64 %tap, ptr %to, i64 %o, i64 %point"),
        f"<{2 * lanes} x i16>",
    )
    places = [t.index("%i", "%tap", n) for n in range(TAPS**2)]
    for pair in range(2):
        wide = [t.widened("%w", place, pair) for place in places]
        columns = [_weights(t, wide[c::TAPS]) for c in range(TAPS)]
        first = t.index("%o", "1", pair * 2 * BLOCK)
        for r in range(SEEN):
            for c, value in enumerate(_weights(t, [column[r] for column in columns])):
                t.store("i16", value, "%to", t.index(first, "%point", r * SEEN + c))
    return t.finish()


def pixel_text(name: str) -> str:
    """name(x, i, to, o): 16 uint8 channels, each four of them in the order ORDER."""
    t = Text(head(name, "ptr %x, i64 %i, ptr %to, i64 %o"), f"<{BLOCK} x i8>")
    t.store("i8", t.ordered("%x", "%i"), "%to", "%o")
    return t.finish()


def results_text(name: str, point: int) -> str:
    """name(m, i, to): the sums of 16 points of 16 channels, `point` elements apart, become 2×2
    pixels, a quarter of Aᵀ m A.
    """
    t = Text(head(name, "ptr %m, i64 %i, ptr %to"), f"<{BLOCK} x i32>")
    made = []
    for c in range(SEEN):
        column = [
            t.load("i32", t.item, "%m", t.index("%i", "1", (r * SEEN + c) * point))
            for r in range(SEEN)
        ]
        made.append(_results(t, column))
    for r in range(TILE):
        for c, value in enumerate(_results(t, [made[j][r] for j in range(SEEN)])):
            quarter = t.value(f"ashr {t.item} {value}, splat (i32 2)")
            t.store("i32", quarter, "%to", str((r * TILE + c) * BLOCK))
    return t.finish()
