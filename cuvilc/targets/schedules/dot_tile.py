"""Register tiles of int32 sums of bytes: a step adds the products of four bytes each.

A row's four bytes of A are one int32 that meets a vector of as many groups of B. The chip's
function `cuvil_dot` does it, uint8 times int8, exactly; where the chip has none, a portable one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from cuvilc.targets.chip import Chip
from cuvilc.targets.schedules.microkernel import RegisterTile, tile_rows
from cuvilc.targets.tir import Buffer, KernelBuilder, PrimExpr, as_expr, const

GROUP = 4  # bytes
# Vectors that widening bytes needs besides, where no instruction multiplies them.
_WIDENED = 4

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


def portable_dot(lanes: int) -> str:
    """`<lanes x i32> cuvil_dot(sums, four uint8 of a row, int8 groups of B)` in plain LLVM IR."""
    n = f"<{lanes} x i32>"
    splats = f"shufflevector {n} %s, {n} poison, {n} zeroinitializer"
    lines = [
        f"define linkonce_odr hidden {n} @cuvil_dot({n} %c0, i32 %a, {n} %b)"
        " alwaysinline nounwind readnone {",
        f"  %s = insertelement {n} poison, i32 %a, i32 0",
        f"  %v = {splats}",
    ]
    for i in range(GROUP):
        lines += [
            f"  %l{i} = lshr {n} %v, splat (i32 {8 * i})",
            f"  %x{i} = and {n} %l{i}, splat (i32 255)",
            f"  %h{i} = shl {n} %b, splat (i32 {24 - 8 * i})",
            f"  %y{i} = ashr {n} %h{i}, splat (i32 24)",
            f"  %p{i} = mul {n} %x{i}, %y{i}",
            f"  %c{i + 1} = add {n} %c{i}, %p{i}",
        ]
    return "\n".join([*lines, f"  ret {n} %c{GROUP}", "}", ""])


def dot_rows(chip: Chip, width: int) -> int:
    """How many rows of `width` sums fit into the registers."""
    rows = tile_rows(chip, width)
    if chip.has_dot:
        return rows
    return max(rows - -(-_WIDENED * chip.lanes // width), 1)


def load_group(b: KernelBuilder, buffer: Buffer, offset: Any) -> PrimExpr:
    """Four bytes from a byte offset on, as an int32."""
    return tirx.call_pure_extern("int32", "cuvil_load_group", buffer.data, as_expr(offset))


class DotTile(RegisterTile):
    """rows × width int32 sums; `step` takes a row's group as an int32."""

    def __init__(self, b: KernelBuilder, chip: Chip, rows: int, width: int, sets: int = 1) -> None:
        super().__init__(b, rows, width, sets, 0, "int32")
        self.lanes = min(chip.lanes, width)
        b.llvm("cuvil_load_group", _LOADS.format(n=self.lanes))
        b.llvm("cuvil_dot", chip.dot or portable_dot(self.lanes))
        self._vector = f"int32x{self.lanes}"

    def step(self, scalars: Sequence[Any], vector: Callable[[Any], Any], s: int = 0) -> None:
        """sums[r] += scalars[r] · vector; `vector(lane)` is the byte offset and buffer of groups
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
                    self._vector, "cuvil_dot", tirx.BufferLoad(self._sums, place), scalar, group
                )
                self.b.emit(tirx.BufferStore(self._sums, total, place))

    def _groups(self, buffer: Buffer, offset: Any) -> PrimExpr:
        return tirx.call_pure_extern(
            self._vector, "cuvil_load_groups", buffer.data, as_expr(offset)
        )
