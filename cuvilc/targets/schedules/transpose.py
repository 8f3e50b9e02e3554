"""Tiles for regions whose innermost axis is strided in an operand: both sides then touch whole
cache lines.

An operand that is contiguous along another loop than the result is read in squares of a vector's
lanes or half of them, which are transposed in registers into a small local square; the region's
arithmetic then reads that. A region that only moves elements transposes straight into its result.
A square that the end of a loop would cut is moved back to be whole, where enough of it is new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx

from cuvilc.dialect.dims import Dim, ceildiv, product
from cuvilc.dialect.types import item_bytes
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.elementwise_access import Access, logical_index
from cuvilc.targets.schedules.transpose_block import transpose_block
from cuvilc.targets.tir import Buffer, KernelBuilder, PrimExpr, as_expr, const, is_load

_TASK_ELEMENTS = 4096
_LEAST = 8  # shorter loops are not worth tiles
_LINE_BYTES = 64
_WORTH = 4  # a square is worth moving back if more than one in so many of its rows is new


class TileBuilder(KernelBuilder):
    """A builder that can note loads of launch buffers, and later replace some of them.

    Meanwhile it decides conditions as the dry run did, which knew what indices the piece has: loads
    then come in the dry run's order, whatever can be proved of the indices of a square.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.noted: list[tuple[Buffer, PrimExpr]] | None = None
        self._replaced: dict[int, Callable[[], Any]] | None = None
        self._loads = 0
        self.decisions: list[bool | None] = []
        self._decided = 0
        self._repeats = False

    def load(self, buffer: Buffer, index: Any) -> PrimExpr:
        if (self.noted is None and self._replaced is None) or not buffer.name.startswith("b"):
            return super().load(buffer, index)
        number, self._loads = self._loads, self._loads + 1
        if self._replaced is not None:
            return (
                self._replaced[number]()
                if number in self._replaced
                else super().load(buffer, index)
            )
        assert self.noted is not None
        self.noted.append((buffer, self.simplify(index)))
        return super().load(buffer, index)

    def note(self) -> list[tuple[Buffer, PrimExpr]]:
        """From now on note loads, in the list returned."""
        self._loads, self._decided, self.noted = 0, 0, []
        return self.noted

    def replace(self, values: dict[int, Callable[[], Any]] | None) -> None:
        """Give values[n]() for load number n, as they are counted from now on; None ends it."""
        self._loads, self._decided, self.noted, self._replaced = 0, 0, None, values

    def decide_again(self, decisions: list[bool | None] | None) -> None:
        """Decide the conditions from now on as the dry run did; None ends it."""
        self.decisions, self._decided, self._repeats = decisions or [], 0, decisions is not None

    def decide(self, condition: PrimExpr) -> bool | None:
        if self.noted is None and self._replaced is None and not self._repeats:
            return super().decide(condition)
        self._decided += 1
        return self.decisions[self._decided - 1]


@dataclass
class _Tiling:
    """The loops of a tiled piece: `o` (contiguous in the operand), the innermost, the rest."""

    o: int
    inner: int
    others: list[int]
    strided: list[int]  # which loads, in order
    buffers: list[str]  # of all loads, in order


def _tiling(piece: Any) -> _Tiling | None:
    loops = piece.loops
    if len(loops) < 2 or not piece.movable:
        return None
    inner = loops[-1]
    loads = [a for a in piece.report.accesses if not a.is_store]
    if any(a.is_store and a.steps[inner] != 1 for a in piece.report.accesses):
        return (
            None  # squares are written along the innermost loop; a blocked result may lie otherwise
        )
    strided = [n for n, a in enumerate(loads) if not _easy(a, inner)]
    for o in reversed(loops[:-1]):
        if strided and all(_turns(loads[n], o, inner) for n in strided) and _long(piece, o, inner):
            others = [n for n in loops if n not in (o, inner)]
            return _Tiling(o, inner, others, strided, [a.buffer for a in loads])
    return None


def _easy(access: Access, inner: int) -> bool:
    step = access.steps[inner]
    return isinstance(step, int) and step in (0, 1)


def _turns(access: Access, o: int, inner: int) -> bool:
    step = access.steps[o]
    return (
        isinstance(step, int) and step == 1 and access.steps[inner] is not None
        and not access.guarded  # a square is read without asking
    )  # fmt: skip


def _long(piece: Any, *loops: int) -> bool:
    extents = [piece.digits[n].extent for n in loops]
    free = not any(n in piece.report.limits for n in loops)
    return free and all(not isinstance(e, int) or e >= _LEAST for e in extents)


def suits(piece: Any) -> bool:
    """Whether tiles pay."""
    return _tiling(piece) is not None


def tasks(piece: Any, chip: Chip) -> Dim:
    """A task is a strip: a square's side along `o`, along the innermost loop everything, or of a
    long one a part.
    """
    tiling = _tiling(piece)
    assert tiling is not None
    rest = product([piece.digits[n].extent for n in tiling.others])
    along, inner = (piece.digits[n].extent for n in (tiling.o, tiling.inner))
    n = _side(piece, tiling, chip)
    return rest * ceildiv(along, n) * _parts(inner, n)


def _side(piece: Any, tiling: _Tiling, chip: Chip) -> int:
    """Of the squares: a vector's lanes, or half of them where a loop is shorter; of wide elements
    as many as a cache line holds.
    """
    loads = [a for a in piece.report.accesses if not a.is_store]
    most = _LINE_BYTES // max(item_bytes(loads[n].dtype) for n in tiling.strided)
    extents = (piece.digits[n].extent for n in (tiling.o, tiling.inner))
    short = any(isinstance(d, int) and d < chip.lanes for d in extents)
    return max(min(chip.lanes // 2 if short else chip.lanes, most), 1)


def _parts(inner: Dim, n: int) -> int:
    """Of how many parts a strip is; each has whole squares, but for the last."""
    return max(inner // _part(n), 1) if isinstance(inner, int) else 1


def _part(n: int) -> int:
    return max(_TASK_ELEMENTS // n // n, 1) * n


def _moves_back(b: KernelBuilder, extent: Dim, n: int) -> bool:
    """Whether what whole squares leave of a loop is worth one that overlaps them."""
    rest = extent % n if isinstance(extent, int) and extent >= n and not b.in_place else 0
    return rest * _WORTH > n


def emit(emitter: Emitter, piece: Any, t: Any, chip: Chip, vector: bool, outer_values: Any) -> None:
    """The loops of one task."""
    tiling = _tiling(piece)
    assert tiling is not None
    b, k = emitter.builder, emitter.k
    assert isinstance(b, TileBuilder)
    b.decisions = piece.report.decisions
    along = piece.digits[tiling.o].extent
    n = _side(piece, tiling, chip)
    strips = b.scalar(ceildiv(along, n))
    inner = b.scalar(piece.digits[tiling.inner].extent)
    begin: Any = 0
    length = inner
    parts = _parts(inner, n)
    if parts > 1:
        begin = b.let(k.mod(t, parts) * _part(n))
        last = tirx.EQ(begin, const((parts - 1) * _part(n)))
        length = b.let(tirx.Select(last, inner - begin, const(_part(n))))
        t = b.let(k.floordiv(t, parts))
    values = outer_values(emitter, piece.digits, tiling.others, b.let(k.floordiv(t, strips)))
    first = b.let(k.mod(t, strips) * n)
    # A square that holds enough is moved back to be whole, also over another task's: both write
    # the same bits.
    if vector and _moves_back(b, along, n):
        first = b.let(tirx.min(as_expr(first), const(along - n)))
    count = b.let(tirx.min(as_expr(b.scalar(along)) - first, const(n)))
    squares = length // n if isinstance(length, int) else b.let(tirx.floordiv(length, const(n)))

    def index(o: Any, i: Any) -> tuple[Any, ...]:
        at = {**values, tiling.o: o, tiling.inner: i}
        return logical_index(
            emitter, piece.digits, [at.get(m, 0) for m in range(len(piece.digits))]
        )

    def scalar(start: Any) -> None:
        rest = length - start if isinstance(length, int) else b.let(as_expr(length) - start)
        with b.loop(count) as o, b.loop(rest) as i:
            emitter.store_all(index(first + o, i + (begin + start)))

    if not vector:
        scalar(0)
        return
    with b.when(tirx.EQ(count, const(n))):
        with b.loop(squares) as tile:
            _tile(emitter, tiling, n, index, first, b.let(tile * n + begin))
        emitter.forget()
        left = length - squares * n
        if _moves_back(b, inner, n):
            with b.when(as_expr(left) > const(0)):
                _tile(emitter, tiling, n, index, first, b.let(as_expr(begin + length - n)))
            emitter.forget()
        else:
            scalar(squares * n)
    with b.otherwise():
        emitter.forget()
        scalar(0)


def _tile(emitter: Emitter, tiling: _Tiling, n: int, index: Any, o: Any, i: Any) -> None:
    """One square: transpose what is strided, then compute with vectors along the innermost loop."""
    b = emitter.builder
    assert isinstance(b, TileBuilder)
    emitter.forget()
    noted = b.note()
    value = [emitter.accessor(v)[index(o, i)] for v in emitter.region.results]
    corner = list(noted)
    assert [buffer.name for buffer, _ in corner] == tiling.buffers, "not what the dry run loaded"
    b.replace(None)
    emitter.forget()
    stepped = _loads(emitter, index, o, i + 1)
    moved = len(value) == 1 and len(corner) == 1 and is_load(value[0])
    if moved and value[0].source.same_as(corner[0][0]) and _same_bits(emitter):
        _straight(emitter, n, corner[0], stepped[0], index, o, i)
        return
    at = squares(emitter, n, tiling.strided, b.decisions, index, o, i)
    with b.loop(n) as row, b.loop(n, "vectorized") as lane:
        b.replace(at(row, lane))
        emitter.store_all(index(o + row, i + lane))
        b.replace(None)
    emitter.forget()


def _element(square: Buffer, n: int, lanes: dict[str, Any]) -> Any:
    return tirx.BufferLoad(square, [lanes["o"] * n + lanes["i"]])


def squares(
    emitter: Emitter, n: int, strided: Sequence[int], decisions: list[bool | None], index: Any,
    o: Any, i: Any,
) -> Callable[[Any, Any], dict[int, Callable[[], Any]]]:  # fmt: skip
    """Transpose what the strided loads read of the square at index(o, i) into local memory.

    Returns what stands for those loads (TileBuilder.replace) at lanes of `o` and of `i`.
    """
    b = emitter.builder
    assert isinstance(b, TileBuilder)
    b.decisions = decisions
    emitter.forget()
    corner, stepped = (_loads(emitter, index, o, at) for at in (i, i + 1))
    made: dict[int, Buffer] = {}
    for number in strided:
        buffer, first = corner[number]
        made[number] = b.local(n * n, str(buffer.dtype))
        source = (buffer, first, b.simplify(stepped[number][1] - first))
        transpose_block(b, n, source, (made[number], const(0), const(n)))
    return lambda row, lane: {
        number: partial(_element, square, n, {"o": row, "i": lane})
        for number, square in made.items()
    }


def _loads(emitter: Emitter, index: Any, o: Any, i: Any) -> list[tuple[Buffer, PrimExpr]]:
    """Of all results, in order."""
    b = emitter.builder
    assert isinstance(b, TileBuilder)
    noted = b.note()
    for v in emitter.region.results:
        emitter.accessor(v)[index(o, i)]
    found = list(noted)
    b.replace(None)
    emitter.forget()
    return found


def _same_bits(emitter: Emitter) -> bool:
    """Whether the result has the dtype of the operand: then its bits are moved."""
    types = emitter.region.types()
    return len({t.dtype for t in types}) == 1 and len(types) == 2


def _straight(
    emitter: Emitter, n: int, corner: Any, stepped: Any, index: Any, o: Any, i: Any
) -> None:
    b, k = emitter.builder, emitter.k
    t = emitter.region.types()[-1]
    target = b.buffer(len(emitter.region.arguments), t.dtype)
    here, below = (b.simplify(k.flat_index(t, index(at, i))) for at in (o, o + 1))
    source = (corner[0], corner[1], stepped[1] - corner[1])
    transpose_block(b, n, source, (target, here, below - here))
