"""A recurrent layer of several rows: a task runs some rows of one direction through all steps.

The products are register tiles, rows × gates. For them W and R are packed into scratch when a task
begins, panels of gates by steps of the reduction: [k, width], which the steps then share. A gate is
padded to whole vectors, so that panels hold one gate's sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import product
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules import rnn_cells
from cuvilc.targets.schedules.gemm_plan import at_dtype
from cuvilc.targets.schedules.microkernel import RegisterTile, balanced, lesser, split, tile_rows
from cuvilc.targets.schedules.rnn_layer import Layer
from cuvilc.targets.schedules.special_common import argument
from cuvilc.targets.schedules.transpose_block import transpose_block
from cuvilc.targets.tir import KernelBuilder, as_expr, const

Part = tuple[int, Callable[[int, Any], Any]]  # W or R, and what a row has at k
_MOST_ROWS = 8  # of a task: more would leave few tasks
_OPEN_ROWS = 4  # of a task, where only the run knows the batch: fewer rows go one by one
_MOST_BYTES = 16 << 20  # of packed weights, of which each thread has its own
_LEAST_STEPS = 16  # rows and steps that share a packed element: fewer do not repay packing
_VECTORS = 8  # of sums in a row of a tile, at most


def rows_of(anchor: Any) -> int:
    """How many rows of the batch a task takes; 0 where each is better by itself.

    Where only the run knows how many there are: where there are so many.
    """
    shapes = [ir.type_of(v).shape for v in list(anchor.operands)[:3]]
    (time, batch, _), weights = shapes[0], product(shapes[1]) + product(shapes[2])
    if not isinstance(weights, int) or (isinstance(batch, int) and batch < 2):
        return 0
    if len(anchor.operands) > 4 and not _whole(anchor.operands[4]):
        return 0
    rows = _OPEN_ROWS
    if isinstance(batch, int):
        rows = balanced(batch, _MOST_ROWS)[0] if batch != _MOST_ROWS else _MOST_ROWS // 2
    shared = rows * time if isinstance(time, int) else _LEAST_STEPS
    directions = shapes[1][0]
    small = weights * 4 <= _MOST_BYTES * (directions if isinstance(directions, int) else 1)
    return rows if small and shared >= _LEAST_STEPS else 0


def _whole(lengths: Any) -> bool:
    """Whether every row has all steps: the lengths are a negative number."""
    made = ir.defining(lengths)
    return made is not None and made.name == "ai.full" and ir.attrs(made)["value"] < 0


def _element(b: KernelBuilder, buffer: Any, start: Any, lane: Any) -> Any:
    return b.load(buffer, start + lane)


class Tiled(Layer):
    """`rows` rows; every scratch holds them one after the other."""

    def __init__(self, emitter: Emitter, chip: Chip, anchor: Any, rows: int) -> None:
        self.rows, self.chip = rows, chip
        super().__init__(emitter, chip, anchor)
        self.seq_lens = None  # of all steps

    def _scratch(self, inputs: Any) -> None:
        b, dtype, rows = self.b, self.dtype, self.rows
        self.chip = at_dtype(self.chip, dtype)
        self.padded = -(-self.hidden // self.width) * self.width
        gates = self.gates * self.padded
        lstm, gru = self.anchor.name == "ai.lstm", self.anchor.name == "ai.gru"
        self.state = b.scratch(rows * self.hidden, dtype)
        self.cell = b.scratch(rows * self.hidden, dtype) if lstm else None
        # r ⊙ h; with linear_before_reset the product of the last gate with h, of padded rows
        self.reset = b.scratch(rows * self.padded, dtype) if gru else None
        self.apart = self.attrs.get("linear_before_reset", False)
        self.biases = b.scratch(gates + self.padded, dtype)
        self.sums = b.scratch(rows * gates, dtype)
        self.packs = [b.scratch(gates * n, dtype) for n in (inputs, self.hidden)]

    # ---- the loops

    def task(self, t: Any) -> None:
        self._run(*split(self.emitter, t, -(-self.batch // self.rows)))

    def task_of_row(self, t: Any) -> None:
        """A task for each row, as Layer has them; those with work lie evenly among them, for
        threads take neighbouring tasks together.
        """
        b, k = self.b, self.k
        blocks = b.let(k.floordiv(self.batch + (self.rows - 1), self.rows))
        row, direction = split(self.emitter, t, self.batch)
        block = b.let(k.floordiv(row * blocks, self.batch))
        with b.when(block < k.floordiv((row + 1) * blocks, self.batch)):
            self._run(block, direction)

    def enough(self) -> Any:
        """Whether so many rows and steps are there."""
        steps = -(-_LEAST_STEPS // self.rows)
        return tirx.And(as_expr(self.batch) >= self.rows, as_expr(self.time) >= steps)

    def _run(self, block: Any, direction: Any) -> None:
        b = self.b
        self.direction = direction if self.directions == 2 else const(0)
        self.first_row = b.let(lesser(block * self.rows, self.batch - self.rows))
        self.length = as_expr(self.time)
        for operand in (1, 2):
            self._pack(operand, self.packs[operand - 1])
        self._biases()
        self._rows(self._states)
        with b.loop(b.let(self.length)) as s:
            self.at = self._time(s)
            self._step()
        self._rows(self._end)

    def _rows(self, visit: Callable[[], None]) -> None:
        """visit() with `row`, and where each of its states begins."""
        b = self.b
        with b.loop(self.rows) as r:
            self.row = b.let(self.first_row + r)
            self.number = r
            self.place = b.let(r * self.hidden)
            self.step_sums = b.let(r * (self.gates * self.padded))
            visit()

    def _states(self) -> None:
        zero = self.k.const(0.0, self.dtype)
        for state, given in ((self.state, self.h0), (self.cell, self.c0)):
            if state is not None:
                read = (lambda j: zero) if given is None else self._reader(given)
                self._each(self.hidden, lambda j, s=state, read=read: self.write(s, j, read(j)))

    def _biases(self) -> None:
        """The sum of both biases of each gate; apart from the last one, of a GRU that wants it."""
        b, zero, rows = self.b, self.k.const(0.0, self.dtype), self.gates * self.hidden
        self._each((self.gates + 1) * self.padded, lambda j: b.store(self.biases, j, zero))
        if self.bias is None:
            return
        last = self.gates - 1

        def put(gate: int, to: int, *kinds: int) -> None:
            def total(j: Any) -> None:
                first, *more = (
                    self.bias[self.direction, j + (kind * rows + gate * self.hidden)]
                    for kind in kinds
                )
                value = first + more[0] if more else first
                b.store(self.biases, j + to * self.padded, value)

            self._each(self.hidden, total)

        for gate in range(self.gates):
            put(gate, gate, *((0,) if self.apart and gate == last else (0, 1)))
        if self.apart:
            put(last, self.gates, 1)

    # ---- packed weights

    @property
    def _panel(self) -> int:
        """Columns of a tile: a power of two of vectors, as many as the registers hold."""
        vectors = 1
        while vectors < _VECTORS and tile_rows(self.chip, 2 * vectors * self.width) >= self.rows:
            vectors *= 2
        return vectors * self.width

    def _panels(self, visit: Callable[[Any, int], None]) -> None:
        """visit(first column, columns) of the panels of a gate; the last one may have padding."""
        panel, at = self._panel, self.hidden // self._panel * self._panel
        if at:
            with self.b.loop(at // panel) as n:
                visit(n * panel, panel)
        while at < self.padded:
            while panel > self.padded - at:
                panel //= 2
            visit(const(at), panel)
            at += panel

    def _pack(self, operand: int, pack: Any) -> None:
        b, dtype = self.b, ir.type_of(self.anchor.operands[operand]).dtype
        source = b.buffer(argument(self.emitter.region, self.anchor.operands[operand]), dtype)
        length = b.scalar(ir.type_of(self.anchor.operands[operand]).shape[2])
        start = self.direction * (self.gates * self.hidden) * length
        with b.loop(self.gates) as gate:
            first = b.let(start + gate * self.hidden * length)
            to = b.let(gate * self.padded * length)

            def panel(column: Any, width: int) -> None:
                place = b.let(to + column * length)
                for j in range(0, width, self.width):
                    padding = isinstance(column, tirx.IntImm) and (
                        int(column.value) + j + self.width > self.hidden
                    )
                    squares = 0 if padding or dtype != self.dtype else length // self.width
                    if squares:
                        row = b.let(first + (column + j) * length)
                        with b.loop(squares) as n:
                            k = b.let(n * self.width)
                            transpose_block(
                                b, self.width, (source, row + k, as_expr(length)),
                                (pack, place + k * width + j, const(width)),
                            )  # fmt: skip
                    done = squares * self.width
                    with b.loop(length - done, start=done) as k, b.loop(self.width) as lane:
                        row = lesser(column + j + lane, self.hidden - 1)
                        value = self.k.load(source, first + row * length + k, dtype)
                        b.store(pack, place + k * width + j + lane, value)

            self._panels(panel)

    # ---- a step

    def _tiles(
        self, first: int, count: int, parts: Sequence[Part],
        biases: Any = None, target: Any = None,
    ) -> None:  # fmt: skip
        """Sums of `count` gates from `first`: biases, and of each part W or R times its rows."""
        b, target = self.b, self.sums if target is None else target
        stride = self.gates * self.padded if target is self.sums else self.padded
        with b.loop(count) as number:
            gate = b.let((number + first) * self.padded)
            bias = gate if biases is None else const(biases)
            to = gate if target is self.sums else const(0)

            def panel(column: Any, width: int) -> None:
                tile = RegisterTile(b, self.rows, width, dtype=self.dtype)
                tile.begin(lambda lane: b.load(self.biases, bias + column + lane))
                for which, scalar in parts:
                    length = (self.inputs, self.hidden)[which]
                    place = b.let((gate + column) * length)
                    with b.loop(length) as k:
                        start, pack = b.let(place + k * width), self.packs[which]
                        scalars = [scalar(r, k) for r in range(self.rows)]
                        tile.step(scalars, partial(_element, b, pack, start))
                with b.loop(width, "vectorized") as lane:
                    for r in range(self.rows):
                        b.store(target, to + column + lane + r * stride, tile.at(r, lane))

            self._panels(panel)

    def _step(self) -> None:
        b = self.b
        x: Part = (0, lambda r, k: self.x[self.at, self.first_row + r, k])
        h: Part = (1, lambda r, k: b.load(self.state, k + r * self.hidden))
        if self.anchor.name != "ai.gru":
            self._tiles(0, self.gates, [x, h])
            lstm = self.anchor.name == "ai.lstm"
            self._rows(lambda: self._cells(rnn_cells.lstm if lstm else rnn_cells.rnn))
            return
        self._tiles(0, 2, [x, h])
        if self.apart:
            self._tiles(2, 1, [x])
            self._tiles(2, 1, [h], self.gates * self.padded, self.reset)
        else:
            self._rows(lambda: self._cells(rnn_cells.gru_reset))
            reset: Part = (1, lambda r, k: b.load(self.reset, k + r * self.padded))
            self._tiles(2, 1, [x, reset])
        self._rows(lambda: self._cells(rnn_cells.gru))

    def gate(self, number: int, j: Any) -> Any:
        return self.b.load(self.sums, self.step_sums + (number * self.padded) + j)

    def _place(self, state: Any) -> Any:
        return self.number * self.padded if state is self.reset else self.place

    def read(self, state: Any, j: Any) -> Any:
        return self.b.load(state, self._place(state) + j)

    def write(self, state: Any, j: Any, value: Any) -> None:
        self.b.store(state, self._place(state) + j, value)
