"""The register tile that products and convolutions share: rows × width sums kept in registers.

Every index into the sums is a constant, so LLVM's SROA turns the array into registers. A row is cut
into vectors of powers of two (others are slow in LLVM's code), the rows are as many as the chip's
registers hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region
from cuvilc.targets.tir import KernelBuilder, PrimExpr, as_expr, const

# Independent multiply-adds needed to hide their latency: 4 cycles on two units.
_CHAINS = 8
# Registers for a row's scalar and the streamed vectors; the others hold sums.
_RESERVED = 3
_MOST_ROWS = 16  # beyond, a tile only grows the code
# An epilogue of more operations than this goes over the rows in a loop: unrolled it would be slow
# to compile. So does any that follows a reduction of more steps than this: the loop's stores and
# loads of the sums then cost less than 1 %.
_UNROLLED_OPERATIONS = 4
_UNROLLED_STEPS = 256
_CHEAP = frozenset(
    f"ai.{n}"
    for n in (
        "elemwise_add", "elemwise_sub", "elemwise_mul", "maximum", "minimum", "clip",
        "relu", "neg", "abs", "leaky_relu", "hard_sigmoid", "hard_swish", "cast", "quantize_linear",
    )
)  # fmt: skip


def tile_rows(chip: Chip, width: int) -> int:
    """How many rows of `width` sums fit into the registers."""
    return min((chip.registers - _RESERVED) // -(-width // chip.lanes), _MOST_ROWS)


def unrolled_steps(chip: Chip, rows: int, width: int, sets: int) -> int:
    """Steps of the reduction in a loop's body: short ones are repeated, or the loop itself would
    cost.
    """
    per_step = rows * -(-width // chip.lanes)
    return max(sets, 4 if per_step <= 12 else 2 if per_step <= 16 else 1)


def balanced(total: int, most: int) -> list[int]:
    """`total` cut into the fewest parts of at most `most`, sizes differing by at most one, larger
    first.
    """
    count = -(-total // most)
    return [total // count + (i < total % count) for i in range(count)] if count else []


def halvings(most: int) -> list[int]:
    """most, ⌈most/2⌉, … 1: sizes such that overlapping tiles of one of them cover any extent in
    two.
    """
    sizes = [most]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sizes


def moved_back(sizes: Sequence[int]) -> list[int]:
    """Of each size, larger first and 1 last: how many rows one more tile of it covers for less than
    tiles of smaller sizes would. A tile costs its rows and, for what it loads, one more.
    """
    costs = [0] + [2 * sizes[0] ** 2] * sizes[0]  # of that many rows; at first more than any
    found: list[int] = []
    for size in reversed(sizes):
        least = next((rows for rows in range(1, size) if size + 1 <= costs[rows]), size)
        for rows in range(least, sizes[0]):
            below = rows // size * (size + 1) + costs[rows % size]
            costs[rows] = min(costs[rows], below) if rows >= size else size + 1
        found.insert(0, least)
    return found


class Piece(NamedTuple):
    """`count` tiles of `size` rows from row `start` on; the last one may reach beyond the rows."""

    size: int
    start: Any
    count: Any


def cut_tiles(b: KernelBuilder, total: Any, sizes: Sequence[int], fits: bool) -> list[Piece]:
    """`total` rows, known only at run time, as tiles of `sizes` rows (see moved_back).

    fits: no tile is larger than all rows, so that one that reaches beyond them can be moved back.
    """
    pieces: list[Piece] = []
    left = total
    for size, least in zip(sizes, moved_back(sizes), strict=True):
        start = b.let(total - left) if pieces else 0
        if size == 1:
            pieces.append(Piece(1, start, left))
            break
        whole = b.let(tirx.floordiv(left, const(size)))
        rest = b.let(left - whole * size)
        beyond = rest >= least
        beyond = b.let(tirx.And(beyond, total >= size) if fits else beyond)
        pieces.append(Piece(size, start, b.let(whole + select(beyond, 1, 0))))
        left = b.let(select(beyond, 0, rest))
    return pieces


def powers_of_two(total: int) -> list[tuple[int, int]]:
    """(offset, width) of power-of-two pieces that make up `total`, wide ones first."""
    pieces, at = [], 0
    while at < total:
        width = 1 << ((total - at).bit_length() - 1)
        pieces.append((at, width))
        at += width
    return pieces


_OPAQUE = """
define linkonce_odr hidden i64 @cuvil_opaque(i64 %x) alwaysinline nounwind readnone {
  %r = call i64 asm "", "=r,0"(i64 %x)
  ret i64 %r
}
"""


def opaque(b: KernelBuilder, value: Any) -> PrimExpr:
    """The same index, of which LLVM knows nothing: it then neither unrolls a loop nor shares loads
    by it.

    Shared loads stay in registers, and the sums are spilled for them. As the address of what a
    loop's body reads, it also keeps loop strength reduction, which is exponential in the address
    expressions of nested loops, from the loops around: it took two thirds of a kernel's compile
    time.
    """
    b.llvm("cuvil_opaque", _OPAQUE)
    return b.let(tirx.call_extern("int64", "cuvil_opaque", as_expr(value)))


def named(b: KernelBuilder, value: Any, tap: Any) -> PrimExpr:
    """The index, opaque for one known tap, which must not share loads with others."""
    return opaque(b, value) if isinstance(tap, int) else b.let(value)


class RegisterTile:
    """rows × width sums; `sets` of them take turns so that few rows still keep the units busy."""

    def __init__(
        self, b: KernelBuilder, rows: int, width: int, sets: int = 1, start: float = 0.0,
        dtype: str = "float32",
    ) -> None:  # fmt: skip
        self.b, self.rows, self.width, self.sets, self.dtype = b, rows, width, sets, dtype
        self._sums = b.local(rows * width * sets, dtype)
        for s in range(sets):
            for lane in self._vectors():
                for r in range(rows):
                    self.put(r, lane, const(start, dtype), s)

    @staticmethod
    def sets_for(chip: Chip, rows: int, width: int) -> int:
        """Turns that give enough independent sums: a power of two."""
        sets = 1
        while sets * rows * -(-width // chip.lanes) < _CHAINS:
            sets *= 2
        return sets

    def _vectors(self) -> Iterator[Any]:
        """The lanes of a row, vector by vector, each inside its loop."""
        for offset, lanes in powers_of_two(self.width):
            with self.b.loop(lanes, "vectorized") as lane:
                yield lane + offset if offset else lane

    def at(self, row: int, lane: Any, s: int = 0) -> PrimExpr:
        return self.b.load(self._sums, const((s * self.rows + row) * self.width) + lane)

    def put(self, row: int, lane: Any, value: Any, s: int = 0) -> None:
        self.b.store(self._sums, const((s * self.rows + row) * self.width) + lane, value)

    def add(self, row: int, lane: Any, value: Any, s: int = 0) -> None:
        self.put(row, lane, self.at(row, lane, s) + value, s)

    def step(self, scalars: Sequence[Any], vector: Callable[[Any], Any], s: int = 0) -> None:
        """sums[r] += scalars[r] · vector for every row whose scalar is not None."""
        rows = [(r, scalar) for r, scalar in enumerate(scalars) if scalar is not None]
        # Of several vectors row by row, or the scalars of all rows would be kept for the next.
        for some in [rows] if len(powers_of_two(self.width)) == 1 else [[row] for row in rows]:
            for lane in self._vectors():
                v = self.b.let(vector(lane))
                for r, scalar in some:
                    self.add(r, lane, scalar * v, s)

    def begin(self, value: Callable[[Any], Any]) -> None:
        """Let each row's sums begin at `value(lane)` instead."""
        for lane in self._vectors():
            first = self.b.let(value(lane))
            for r in range(self.rows):
                self.put(r, lane, first)

    def gather_sets(self) -> None:
        """Add the sets up into the first."""
        for s in range(1, self.sets):
            for lane in self._vectors():
                for r in range(self.rows):
                    self.add(r, lane, self.at(r, lane, s))

    def spill(self) -> Any:
        """The sums as an array [rows, width] in memory, for a loop over rows."""
        memory = self.b.local(self.rows * self.width, self.dtype)
        for lane in self._vectors():
            for r in range(self.rows):
                self.b.store(memory, const(r * self.width) + lane, self.at(r, lane))
        return memory


class Epilogue:
    """What follows the anchor: stores every result of the region, given the anchor's value."""

    def __init__(self, emitter: Emitter, anchor: Any, steps: Any = 0) -> None:
        """`steps`: of the anchor's reduction, if known."""
        self.emitter, self.anchor = emitter, anchor
        self._value: Any = None
        emitter.define(anchor.results[0], lambda index: self._value)
        region = emitter.region
        self.terms: Any = None  # what `absorb` found
        others = [o for o in region.operations if o.name not in (anchor.name, "ai.full")]
        few = isinstance(steps, int) and steps <= _UNROLLED_STEPS
        few = few and len(others) <= _UNROLLED_OPERATIONS
        self.unrolls = few and all(o.name in _CHEAP for o in others)

    def absorb(self) -> None:
        """Let the anchor's sums begin at `terms`, an operand of one number a channel, where an
        int32 anchor is only added to such: then `store` takes the sum of both.
        """
        emitter, total = self.emitter, self.anchor.results[0]
        users = [o for o in emitter.region.operations if total in o.operands]
        result = ir.type_of(total)
        kept = total in emitter.region.results or result.dtype != "int32"
        if kept or [o.name for o in users] != ["ai.elemwise_add"]:
            return
        (term,) = [v for v in users[0].operands if v != total] or [total]
        shape = ir.type_of(term).shape
        line = (result.shape[1], *[1] * (result.rank - 2))
        if emitter.region.argument(term) is not None and shape == line:
            self.terms = emitter.accessor(term)
            emitter.define(users[0].results[0], lambda index: self._value)

    def store(self, index: Sequence[Any], value: Any) -> None:
        """Store all results at a logical index where the anchor is `value`."""
        self.define(value)
        self.emitter.store_all(index)

    def define(self, value: Any) -> None:
        """Let the anchor be `value` from now on."""
        self._value = value


def anchor_of(region: Region, *names: str) -> Any:
    """The one operation that the schedule is about."""
    found = region.named(*names)
    if len(found) != 1:
        raise Miss(f"{len(found)} anchors")
    shape = ir.type_of(found[0].results[0]).shape
    for result in region.results:
        if ir.type_of(result).shape != shape:
            raise Miss("a result of another shape than the anchor's")
    return found[0]


def first_of(b: KernelBuilder, cases: Sequence[tuple[Any, Callable[[], None]]]) -> None:
    """if/else-if chain: emits the body of the first condition that holds (None always holds).

    Of conditions that are known already, True and False, no code is emitted.
    """
    (condition, body), *rest = cases
    if condition is None or condition is True:
        body()
        return
    if condition is False:
        if rest:
            first_of(b, rest)
        return
    with b.when(condition):
        body()
    if rest:
        with b.otherwise():
            first_of(b, rest)


def split(emitter: Emitter, flat: Any, extent: Any) -> tuple[Any, Any]:
    """(flat mod extent, flat div extent) of an index that is not negative, computed once."""
    if isinstance(extent, int) and extent == 1:
        return 0, flat
    whole = emitter.builder.let(emitter.k.floordiv(flat, extent))
    return emitter.builder.let(flat - whole * extent), whole


def lesser(a: Any, b: Any) -> Any:
    """min of two indices."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return tirx.min(as_expr(a), as_expr(b))


def greater(a: Any, b: Any) -> Any:
    """max of two indices."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return tirx.max(as_expr(a), as_expr(b))


def select(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b: indices."""
    if isinstance(condition, bool):
        return a if condition else b
    return tirx.Select(condition, as_expr(a), as_expr(b))
