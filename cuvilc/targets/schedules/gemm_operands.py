"""Where a register tile's operands come from: memory as it lies, or packed into scratch first."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.gemm_plan import COPIES, LINE, PANEL, Plan
from cuvilc.targets.schedules.microkernel import lesser
from cuvilc.targets.schedules.transpose_block import transpose_block
from cuvilc.targets.tir import as_expr, const

_STEP = 16  # elements that packing moves at once
_EVERY = 4  # steps between fetches of a panel as wide as a line
FEW_ROWS = 4  # in a tile: so few are bound by memory, and a step has no time for another load


class Left:
    """Rows of A: `at(r, k)` is element k of row r of the tile begun last."""

    def __init__(self, emitter: Emitter, plan: Plan, lanes: str) -> None:
        self.emitter, self.plan, self.b, self.lanes = emitter, plan, emitter.builder, lanes
        self.k = self.b.scalar(plan.k)
        self.stride = self.b.scalar(self._row_stride())
        self.batch: list[Any] = []
        self._base: Any = 0  # first row in the scratch
        self._tile: Any = 0
        self.dtype = self._scratch_dtype()
        if plan.a_direct:
            self._buffer = emitter.argument(plan.a)
        else:
            count: Dim = plan.k if plan.transposed_a else plan.tile_group * plan.rows
            self._buffer = self.b.scratch(self._row_stride() * count, self.dtype)

    def _scratch_dtype(self) -> str:
        return self.plan.dtype

    def _row_stride(self) -> Dim:
        return self.plan.row_stride

    def begin_task(self, batch: list[Any]) -> None:
        self.batch = batch
        if self.plan.a_direct:
            t = ir.type_of(self.plan.a)
            zeros = (0,) * min(t.rank, 2)
            index = (*_of_operand(t.shape[:-2], batch), *zeros) if batch else (0,) * t.rank
            self._task = self.b.let(self.emitter.k.flat_index(t, index))

    def pack_rows(self, low: Any, high: Any) -> None:
        """Compute rows [low, high) of A into the scratch, unless A is read where it lies."""
        if self.plan.a_direct:
            return
        self._base = low
        if self.plan.transposed_a:
            self._pack_columns(low, high)
            return
        b, whole = self.b, self.k - self.k % _STEP if isinstance(self.k, int) else 0
        with b.loop(high - low, start=low, name="r") as row:
            to = b.let((row - low) * self.stride)
            if whole:
                with b.loop(whole // _STEP) as step:
                    self._pack_step(to, row, step * _STEP)
            with b.loop(self.k - whole, start=whole) as k:
                self._pack(to, row, k)

    def _pack_columns(self, low: Any, high: Any) -> None:
        """Columns of A, whose rows lie beside each other in memory and in the scratch."""
        b = self.b
        whole = b.let(self.emitter.k.floordiv(high - low, _STEP))
        with b.loop(self.k, name="k") as k:
            to = b.let(k * self.stride)
            with b.loop(whole) as step, b.loop(_STEP, self.lanes) as lane:
                place = step * _STEP + lane
                self._store(to + place, low + place, k)
            with b.loop(high - low - whole * _STEP, start=whole * _STEP) as rest:
                self._store(to + rest, low + rest, k)

    def _pack_step(self, to: Any, row: Any, first: Any) -> None:
        """_STEP elements of a row, from `first` on."""
        with self.b.loop(_STEP, self.lanes) as lane:
            self._pack(to, row, first + lane)

    def _pack(self, to: Any, row: Any, k: Any) -> None:
        self._store(to + k, row, k)

    def _store(self, place: Any, row: Any, k: Any) -> None:
        self.emitter.k.store(self._buffer, place, self._element(row, k), self.dtype)

    def _element(self, row: Any, k: Any) -> Any:
        a = self.emitter.accessor(self.plan.a)
        if len(a.shape) == 1:
            return a[k]
        if self.plan.transposed_a:
            return a.at((*self.batch, k, row))
        rows = [row] if self.plan.batch else self.plan.row_index(self.emitter, row)
        return a.at((*self.batch, *rows, k))

    def begin_tile(self, row: Any) -> None:
        if self.plan.a_direct:
            self._tile = self.b.let(row * self.stride + self._task)
        elif self.plan.transposed_a:
            self._tile = self.b.let(row - self._base)
        else:
            self._tile = self.b.let((row - self._base) * self.stride)

    def begin_step(self, k: Any) -> None:
        """Column k is next."""

    def at(self, r: int, k: Any) -> Any:
        far = k * self.stride + r if self.plan.transposed_a else r * self.stride + k
        return self.b.load(self._buffer, self._tile + far)


class Right:
    """A panel of B: `at(k, lane)` is element k of the panel's column `lane`."""

    def __init__(self, emitter: Emitter, plan: Plan, lanes: str = "serial") -> None:
        self.emitter, self.plan, self.b, self.lanes = emitter, plan, emitter.builder, lanes
        self.k, self.n = self.b.scalar(plan.k), self.b.scalar(plan.n)
        self.dtype = ir.type_of(plan.b).dtype
        self.batch: list[Any] = []
        self._task: Any = 0
        self._panel: Any = 0
        if plan.b_kind in ("gather", *COPIES):
            self.dtype = plan.dtype
            self._buffer = self.b.scratch(plan.k * plan.width, plan.dtype)
        else:
            self._buffer = emitter.argument(plan.b)
        self._stride: Any = {"packed": PANEL, "rows": self.n}.get(plan.b_kind, plan.width)

    def begin_task(self, batch: list[Any]) -> None:
        self.batch = batch
        t = ir.type_of(self.plan.b)
        if self.plan.b_kind in ("rows", "turned"):
            index = (*_of_operand(t.shape[:-2], batch), 0, 0)
            self._task = self.b.let(self.emitter.k.flat_index(t, index))

    def column(self, panel: Any) -> Any:
        """First column of a panel: the last one overlaps where rows of B are read or copied."""
        column = panel * self.plan.width
        return lesser(column, self.n - self.plan.last_width) if self.plan.overlaps else column

    def begin_panel(self, panel: Any, width: int) -> None:
        """A panel is next, of which the tiles are `width` wide."""
        kind = self.plan.b_kind
        if kind == "packed" and self.plan.width == PANEL:
            self._panel = self.b.let(panel * (self.k * PANEL))
        elif kind == "packed":
            self._panel = self.b.let(self._part(panel))
            self._number = panel
        elif kind == "rows":
            self._panel = self.b.let(self._task + self.column(panel))
        elif kind == "copied":
            self._copy(self.b.let(self.column(panel)), width)
        elif kind == "turned":
            self._turn(self.b.let(self.column(panel)), width)
        else:
            self._pack(panel)

    def _part(self, panel: Any) -> Any:
        """Where a panel of the tile's width begins, of which a packed one holds several."""
        share = PANEL // self.plan.width
        block = self.emitter.k.floordiv(panel, share)
        return block * (self.k * PANEL) + (panel - block * share) * self.plan.width

    def begin_tile(self, number: Any, rows: int) -> None:
        """Row tile `number` of the panel, of `rows` rows, is next."""
        plan = self.plan
        several = not isinstance(plan.m, int) or plan.m > plan.rows
        streams = plan.b_kind == "packed" and plan.width in (PANEL, LINE)
        streams = streams and ir.type_of(plan.b).dtype == "float32"
        self._ahead: Any = None
        if streams and several and rows == plan.rows > FEW_ROWS:
            if plan.width == PANEL:
                half = lesser(number, 1) * (self.k * LINE)
                ahead = self._panel + self.k * PANEL + half
            else:
                turn = number - self.emitter.k.floordiv(number, _EVERY) * _EVERY
                ahead = self._part(self._number + 1) + turn * PANEL
            self._ahead = self.b.let(ahead)
            self._steps = 0

    def begin_step(self, k: Any) -> None:
        """Row k is next. The first row tile fetches one half of the next panel, a line a step, the
        others the other half, so that it is there in time: the hardware's prefetchers stop at the
        end of each page. Of a panel as wide as a line, whose steps are short, each row tile fetches
        some of the lines.
        """
        if self._ahead is None:
            return
        if self.plan.width == PANEL:
            self.b.prefetch(self._buffer, self._ahead + k * LINE)
        elif self._steps % _EVERY == 0:
            self.b.prefetch(self._buffer, self._ahead + k * PANEL)
        self._steps += 1

    def _copy(self, column: Any, width: int) -> None:
        """`width` columns from `column` on into scratch."""
        b, far = self.b, self.plan.width
        matrix = self.emitter.accessor(self.plan.b)
        with b.loop(self.k, name="k") as k, b.loop(width, self.lanes) as lane:
            b.store(self._buffer, k * far + lane, matrix.at((*self.batch, k, column + lane)))

    def _turn(self, column: Any, width: int) -> None:
        """`width` columns from `column` on, which lie as rows, into scratch."""
        b, far = self.b, self.plan.width
        side = min(self.plan.side, width)  # half a panel may be less than a vector
        matrix = self.emitter.argument(self.plan.b)
        first = b.let(self._task + column * self.k)
        squares = self.emitter.k.floordiv(self.k, side)
        squares = squares if isinstance(squares, int) else b.let(squares)
        for j in range(0, width, side):
            line = b.let(first + self.k * j) if j else first
            with b.loop(squares) as square:
                k = b.let(square * side)
                transpose_block(
                    b, side, (matrix, line + k, as_expr(self.k)),
                    (self._buffer, k * far + j, const(far)),
                )  # fmt: skip
            rest = self.k - squares * side
            with b.loop(rest, start=squares * side) as k, b.loop(side) as lane:
                value = b.load(matrix, line + lane * self.k + k)
                b.store(self._buffer, k * far + (lane + j), value)

    def _pack(self, panel: Any) -> None:
        """The panel into scratch; columns beyond the last repeat it, their sums are not stored."""
        b, width = self.b, self.plan.width
        matrix = self.emitter.accessor(self.plan.b)
        with b.loop(width, name="j") as j:
            column = b.let(lesser(panel * width + j, self.n - 1))
            with b.loop(self.k, name="k") as k:
                place = (column, k) if self.plan.transposed_b else (k, column)
                b.store(self._buffer, k * width + j, matrix.at((*self.batch, *place)))

    def at(self, k: Any, lane: Any) -> Any:
        offset = self._panel + k * self._stride + lane
        return self.emitter.k.load(self._buffer, offset, self.dtype)


def _of_operand(shape: Any, batch: list[Any]) -> list[Any]:
    """Batch indices of an operand: an extent of 1 stays at 0."""
    mine = batch[len(batch) - len(shape) :]
    return [0 if d == 1 else i for d, i in zip(shape, mine, strict=True)]
