"""Register tiles whose steps add the products of groups of narrow numbers, four bytes a group.

A row's group of A is one int32 that meets a vector of as many groups of B. A chip's function does
it, in one instruction where it has that, or else a portable one. In WordTile a row's group is four
int16 that meet bytes of B, which loading widens. In LaneTile vectors of groups meet lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm import tirx

from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import BYTES, GROUP_BYTES, HALVES, PAIRS, TURN_DWORDS, WORDS, Dots
from cuvilc.targets.schedules.gemm_operands import FEW_ROWS
from cuvilc.targets.schedules.gemm_plan import LINE, PANEL
from cuvilc.targets.schedules.microkernel import RegisterTile, tile_rows
from cuvilc.targets.tir import Buffer, KernelBuilder, PrimExpr, as_expr, const

# Groups of weights, each of a panel's columns, that are fetched before they are multiplied: 12 KiB,
# and about as many cycles as memory takes. The hardware's prefetchers stop at the end of each page.
_AHEAD = 96
# Vectors that widening needs besides, where no instruction multiplies groups.
_WIDENED = 4
_FEW_SUMS = 8  # vectors of sums of a WordPart of few rows, at most
# For two vectors of B, a row's group and a product: where no register is left LLVM spills sums.
_SPARE_ROWS = 1

# Loads without a type, which may follow stores of any.
_LOADS = """
define linkonce_odr hidden i32 @cuvil_load_group(ptr %p, i64 %i) alwaysinline nounwind readonly {{
  %q = getelementptr i8, ptr %p, i64 %i
  %v = load i32, ptr %q, align 1
  ret i32 %v
}}
define linkonce_odr hidden <{n} x i32> @cuvil_load_groups(ptr %p, i64 %i)
    alwaysinline nounwind readonly {{
  %q = getelementptr i8, ptr %p, i64 %i
  %v = load <{n} x i32>, ptr %q, align 4
  ret <{n} x i32> %v
}}
"""


def _head(name: str, sums: str, lanes: int) -> list[str]:
    """A function's beginning; %v is the row's group in every lane."""
    n = f"<{lanes} x i32>"
    return [
        f"define linkonce_odr hidden {sums} @{name}({sums} %c0, i32 %a, {n} %b)"
        " alwaysinline nounwind readnone {",
        f"  %s = insertelement {n} poison, i32 %a, i32 0",
        f"  %v = shufflevector {n} %s, {n} poison, {n} zeroinitializer",
    ]


def portable_dot(lanes: int) -> str:
    """`<lanes x i32> cuvil_dot(sums, four uint8 of a row, int8 groups of B)` in plain LLVM IR."""
    n = f"<{lanes} x i32>"
    lines = _head(BYTES.function, n, lanes)
    for i in range(BYTES.group):
        lines += [
            f"  %l{i} = lshr {n} %v, splat (i32 {8 * i})",
            f"  %x{i} = and {n} %l{i}, splat (i32 255)",
            f"  %h{i} = shl {n} %b, splat (i32 {24 - 8 * i})",
            f"  %y{i} = ashr {n} %h{i}, splat (i32 24)",
            f"  %p{i} = mul {n} %x{i}, %y{i}",
            f"  %c{i + 1} = add {n} %c{i}, %p{i}",
        ]
    return "\n".join([*lines, f"  ret {n} %c{BYTES.group}", "}", ""])


def portable_dot_bf16(lanes: int) -> str:
    """`<lanes x float> cuvil_dot_bf16(sums, two bfloat16 of a row, groups of B)`: bits become the
    upper half of a float32.
    """
    n, f = f"<{lanes} x i32>", f"<{lanes} x float>"
    lines = _head(HALVES.function, f, lanes)
    for i, half in enumerate(("shl {n} {v}, splat (i32 16)", "and {n} {v}, splat (i32 -65536)")):
        lines += [
            f"  %l{i} = {half.format(n=n, v='%v')}",
            f"  %h{i} = {half.format(n=n, v='%b')}",
            f"  %x{i} = bitcast {n} %l{i} to {f}",
            f"  %y{i} = bitcast {n} %h{i} to {f}",
            f"  %p{i} = fmul contract {f} %x{i}, %y{i}",
            f"  %c{i + 1} = fadd contract {f} %c{i}, %p{i}",
        ]
    return "\n".join([*lines, f"  ret {f} %c2", "}", ""])


# Bytes that become int16, and pairs of lanes that become one.
_WORDS = """
define linkonce_odr hidden i64 @cuvil_load_words(ptr %p, i64 %i) alwaysinline nounwind readonly {{
  %q = getelementptr i8, ptr %p, i64 %i
  %v = load i64, ptr %q, align 2
  ret i64 %v
}}
define linkonce_odr hidden <{items} x i16> @cuvil_load_widened(ptr %p, i64 %i)
    alwaysinline nounwind readonly {{
  %q = getelementptr i8, ptr %p, i64 %i
  %v = load <{items} x i8>, ptr %q, align 1
  %w = sext <{items} x i8> %v to <{items} x i16>
  ret <{items} x i16> %w
}}
define linkonce_odr hidden <{lanes} x i32> @cuvil_add_pairs(
    <{lanes} x i32> %c, <{lanes} x i32> %a, <{lanes} x i32> %b) alwaysinline nounwind readnone {{
  %e = shufflevector <{lanes} x i32> %a, <{lanes} x i32> %b, <{lanes} x i32> <{even}>
  %o = shufflevector <{lanes} x i32> %a, <{lanes} x i32> %b, <{lanes} x i32> <{odd}>
  %s = add <{lanes} x i32> %e, %o
  %r = add <{lanes} x i32> %c, %s
  ret <{lanes} x i32> %r
}}
"""

_PORTABLE = {BYTES.function: portable_dot, HALVES.function: portable_dot_bf16}


def _column_text(name: str, rows: Sequence[int]) -> str:
    """`<16 x i32> name(p, offsets of 16 bytes)`: lane i has the i-th byte of each in the places
    `rows`, 0 in others.
    """
    offsets = "".join(f", i64 %i{r}" for r in rows)
    lines = [
        f"define linkonce_odr hidden <16 x i32> @{name}(ptr %p{offsets})"
        " alwaysinline nounwind readonly {",
    ]
    for r in range(4):
        value = "zeroinitializer"
        if r in rows:
            lines += [
                f"  %q{r} = getelementptr i8, ptr %p, i64 %i{r}",
                f"  %r{r} = load <16 x i8>, ptr %q{r}, align 1",
            ]
            value = f"%r{r}"
        lines.append(f"  %v{r} = bitcast <16 x i8> {value} to <4 x i32>")
    first = ", ".join(f"i32 {i}" for i in range(8))
    every = ", ".join(f"i32 {i}" for i in range(16))
    lines += [
        f"  %a = shufflevector <4 x i32> %v0, <4 x i32> %v1, <8 x i32> <{first}>",
        f"  %b = shufflevector <4 x i32> %v2, <4 x i32> %v3, <8 x i32> <{first}>",
        f"  %c = shufflevector <8 x i32> %a, <8 x i32> %b, <16 x i32> <{every}>",
        f"  %g = call <16 x i32> @{BYTES.turns}(<16 x i32> %c)",
        "  ret <16 x i32> %g",
        "}",
        "",
    ]
    return "\n".join(lines)


def column_of(b: KernelBuilder, chip: Chip, buffer: Buffer, places: Sequence[Any]) -> PrimExpr:
    """16 groups: what lies at up to four byte offsets, 16 bytes each; 0 where there is None."""
    for function in (TURN_DWORDS, BYTES.turns):
        b.llvm(function, chip.dots[function])
    rows = [r for r, place in enumerate(places) if place is not None]
    name = "cuvil_column_" + "".join(map(str, rows))
    b.llvm(name, _column_text(name, rows))
    offsets = [as_expr(places[r]) for r in rows]
    return tirx.call_pure_extern("int32x16", name, buffer.data, *offsets)


def lanes_of(buffer: Buffer, n: int) -> PrimExpr:
    """The n-th 16 numbers of a local array."""
    return tirx.BufferLoad(buffer, [tirx.Ramp(const(n * 16), const(1), 16)])


def store_lanes(b: KernelBuilder, buffer: Buffer, n: int, value: PrimExpr) -> None:
    """Write them."""
    b.emit(tirx.BufferStore(buffer, value, [tirx.Ramp(const(n * 16), const(1), 16)]))


def dot_lanes(b: KernelBuilder, chip: Chip, sums: PrimExpr, a: PrimExpr, w: PrimExpr) -> PrimExpr:
    """sums + the products of 16 groups of bytes with as many; the chip has an instruction."""
    b.llvm(BYTES.lanes, chip.dots[BYTES.lanes])
    return tirx.call_pure_extern("int32x16", BYTES.lanes, sums, a, w)


def dot_rows(chip: Chip, kind: Dots, width: int) -> int:
    """How many rows of `width` sums fit into the registers."""
    if kind in (WORDS, PAIRS):
        columns = width if kind is PAIRS else 2 * chip.lanes
        return tile_rows(chip, columns) - _SPARE_ROWS
    rows = tile_rows(chip, width)
    if kind.function in chip.fast_dots:
        return rows
    return max(rows - -(-_WIDENED * chip.lanes // width), 1)


def load_group(b: KernelBuilder, buffer: Buffer, offset: Any, kind: Dots = BYTES) -> PrimExpr:
    """A row's group from a byte offset on, as an integer."""
    if kind is WORDS:
        offset = b.simplify(as_expr(offset))
        return tirx.call_pure_extern("int64", "cuvil_load_words", buffer.data, offset)
    return tirx.call_pure_extern("int32", "cuvil_load_group", buffer.data, as_expr(offset))


def streams(rows: int, width: int) -> bool:
    """Whether the weights of a tile are fetched ahead: not where memory is what decides anyway."""
    return rows > FEW_ROWS and width == PANEL


def fetch_ahead(b: KernelBuilder, weights: Buffer, group: Any) -> None:
    """Let the panel's groups come that lie _AHEAD behind those beginning at the `group`-th."""
    for line in range(0, PANEL, LINE):
        b.prefetch(weights, group + _AHEAD * PANEL + line)


class DotTile(RegisterTile):
    """rows × width sums; `step` takes a row's group as an int32."""

    def __init__(
        self, b: KernelBuilder, chip: Chip, kind: Dots, rows: int, width: int, sets: int = 1
    ) -> None:
        super().__init__(b, rows, width, sets, 0, kind.sums)
        self.lanes, self._function = min(chip.lanes, width), kind.function
        b.llvm("cuvil_load_group", _LOADS.format(n=self.lanes))
        text = chip.dots.get(kind.function) or _PORTABLE[kind.function](self.lanes)
        b.llvm(kind.function, text)
        self._vector = f"{kind.sums}x{self.lanes}"

    def step(self, scalars: Sequence[Any], vector: Callable[[Any], Any], s: int = 0) -> None:
        """sums[r] += scalars[r] · vector; `vector(lane)` is the buffer and byte offset of groups
        from that lane on.
        """
        columns = range(0, self.width, self.lanes)
        groups = [self._groups(*vector(first)) for first in columns]
        for r, scalar in enumerate(scalars):
            if scalar is None:
                continue
            for first, group in zip(columns, groups, strict=True):
                at = const((s * self.rows + r) * self.width + first)
                place = [tirx.Ramp(at, const(1), self.lanes)]
                total = tirx.call_pure_extern(
                    self._vector, self._function, tirx.BufferLoad(self._sums, place), scalar, group
                )
                self.b.emit(tirx.BufferStore(self._sums, total, place))

    def _groups(self, buffer: Buffer, offset: Any) -> PrimExpr:
        return tirx.call_pure_extern(
            f"int32x{self.lanes}", "cuvil_load_groups", buffer.data, as_expr(offset)
        )

    def parts(self) -> Iterator[DotTile]:
        """The tile itself, as a WordTile gives what is to be summed one after the other."""
        yield self


class WordTile(RegisterTile):
    """rows × width sums of WORDS. A vector of B is the groups of half as many columns as it has
    lanes, so each sum comes in two lanes. The registers hold the columns of one part at a time.
    """

    def __init__(self, b: KernelBuilder, chip: Chip, rows: int, width: int) -> None:
        super().__init__(b, rows, width, dtype=WORDS.sums)
        self.chip = chip
        self.lanes = min(chip.lanes, width)
        b.llvm(WORDS.function, chip.dots[WORDS.function])
        order = [", ".join(f"i32 {2 * i + odd}" for i in range(self.lanes)) for odd in (0, 1)]
        text = _WORDS.format(lanes=self.lanes, items=2 * self.lanes, even=order[0], odd=order[1])
        b.llvm("cuvil_load_words", text)

    def parts(self) -> Iterator[WordPart]:
        """The columns in parts, each of which is added to the sums when it is complete. Few rows
        are bound by memory and have registers left: their parts are wide, so that a line of B is
        read once.
        """
        columns = self.lanes
        while self.rows * columns * 4 <= _FEW_SUMS * self.lanes and columns < self.width:
            columns *= 2
        for first in range(0, self.width, columns):
            part = WordPart(self, first, columns)
            yield part
            part.gather_sets()
            for r in range(self.rows):
                for c in range(0, columns, self.lanes):
                    place = [tirx.Ramp(const(r * self.width + first + c), const(1), self.lanes)]
                    total = tirx.call_pure_extern(
                        f"int32x{self.lanes}", "cuvil_add_pairs",
                        tirx.BufferLoad(self._sums, place), *part.halves(r, c),
                    )  # fmt: skip
                    self.b.emit(tirx.BufferStore(self._sums, total, place))


class WordPart(RegisterTile):
    """The sums of some columns of a WordTile, two lanes each."""

    def __init__(self, tile: WordTile, first: int, columns: int) -> None:
        self.lanes, self.first = tile.lanes, first
        width = 2 * columns
        sets = RegisterTile.sets_for(tile.chip, tile.rows, width)
        super().__init__(tile.b, tile.rows, width, sets, dtype=WORDS.sums)

    def step(self, scalars: Sequence[Any], vector: Callable[[Any], Any], s: int = 0) -> None:
        """sums[r] += scalars[r] · vector; `vector(lane)` is the buffer and byte offset of groups
        from that column of the tile on.
        """
        buffer, offset = vector(self.first)
        size = self.lanes // 2 * GROUP_BYTES
        items = [
            tirx.call_pure_extern(
                f"int16x{2 * self.lanes}", "cuvil_load_widened", buffer.data,
                self.b.simplify(as_expr(offset + v * size)),
            )
            for v in range(self.width // self.lanes)
        ]  # fmt: skip
        for r, scalar in enumerate(scalars):
            if scalar is None:
                continue
            for v, item in enumerate(items):
                place = self._place(r, v, s)
                total = tirx.call_pure_extern(
                    f"int32x{self.lanes}", WORDS.function, tirx.BufferLoad(self._sums, place),
                    scalar, item,
                )  # fmt: skip
                self.b.emit(tirx.BufferStore(self._sums, total, place))

    def halves(self, row: int, column: int) -> list[PrimExpr]:
        """The two vectors of a row that hold as many columns as a vector has lanes."""
        first = 2 * column // self.lanes
        return [tirx.BufferLoad(self._sums, self._place(row, v)) for v in (first, first + 1)]

    def _place(self, row: int, v: int, s: int = 0) -> list[PrimExpr]:
        at = const((s * self.rows + row) * self.width + v * self.lanes)
        return [tirx.Ramp(at, const(1), self.lanes)]


def dot_tile(b: KernelBuilder, chip: Chip, kind: Dots, rows: int, width: int, sets: int = 0) -> Any:
    """The tile of a kind of products; `sets`: as many as hide the latency, unless given."""
    if kind is WORDS:
        return WordTile(b, chip, rows, width)
    return DotTile(b, chip, kind, rows, width, sets or DotTile.sets_for(chip, rows, width))


class LaneTile(RegisterTile):
    """rows × 16 sums, to which groups of bytes are multiplied lane by lane."""

    def __init__(self, b: KernelBuilder, chip: Chip, rows: int) -> None:
        super().__init__(b, rows, 16, dtype=BYTES.sums)
        self.chip = chip

    @property
    def memory(self) -> Buffer:
        """The sums, row after row."""
        return self._sums

    def add_products(self, row: int, a: PrimExpr, w: PrimExpr) -> None:
        """sums[row] += a · w."""
        total = dot_lanes(self.b, self.chip, lanes_of(self._sums, row), a, w)
        store_lanes(self.b, self._sums, row, total)
