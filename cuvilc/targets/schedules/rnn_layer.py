"""A recurrent layer row by row: a task runs one direction of one row through all its steps.

x·Wᵀ is done for several steps at once, so that a row of W serves them all; h·Rᵀ is bound by reading
R once a step. The gates' sums, the states and the steps' x wait in scratch, in the dtype of
computation.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.targets.chip import Chip
from cuvilc.targets.notation import compute_dtype
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules import rnn_cells
from cuvilc.targets.schedules.elementwise_loops import Place, sweep
from cuvilc.targets.schedules.rnn_dots import Matrix, multiply
from cuvilc.targets.schedules.special_common import argument, outputs, register_elements
from cuvilc.targets.tir import as_expr, const

GATES = {"ai.lstm": 4, "ai.gru": 3, "ai.rnn": 1}
_STEP_ROWS = 8  # rows of R side by side: independent sums that hide a multiply-add's latency
_BLOCK_ROWS = 4


class Layer:
    """One layer in one kernel. Sizes: T steps, B rows, I inputs, H hidden, G gates."""

    def __init__(self, emitter: Emitter, chip: Chip, anchor: Any) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        self.anchor, self.attrs = anchor, ir.attrs(anchor)
        self.places = outputs(emitter.region, anchor)
        self.gates, self.hidden = GATES[anchor.name], int(self.attrs["hidden"])
        self.directions = 2 if self.attrs["direction"] == "bidirectional" else 1
        operands = [*emitter.operands(anchor), None, None]
        self.x, self.bias, self.seq_lens, self.h0 = (operands[n] for n in (0, 3, 4, 5))
        lstm = anchor.name == "ai.lstm"
        self.c0: Any = operands[6] if lstm else None
        self.peephole: Any = operands[7] if lstm else None
        t = ir.type_of(anchor.operands[0])
        self.dtype, self.width = compute_dtype(t.dtype), register_elements(chip, t.dtype)
        self.time, self.batch, self.inputs = self.x.shape
        self.steps = 4 if chip.registers >= 32 else 2  # of a block: as many sums as registers hold
        self.functions = rnn_cells.activations(self.k, self.attrs, self.dtype)
        self._scratch(t.shape[2])

    def _scratch(self, inputs: Any) -> None:
        b, dtype, rows = self.b, self.dtype, self.gates * self.hidden
        self.state = b.scratch(self.hidden, dtype)
        self.cell = b.scratch(self.hidden, dtype) if self.anchor.name == "ai.lstm" else None
        # r ⊙ h, or with linear_before_reset the product of the last gate with h
        self.reset = b.scratch(self.hidden, dtype) if self.anchor.name == "ai.gru" else None
        self.biases = b.scratch(rows, dtype)
        self.sums = b.scratch(self.steps * rows, dtype)
        self.block = b.scratch(inputs * self.steps, dtype)

    # ---- the loops

    def task(self, t: Any) -> None:
        """Task number t: a row of the batch, in the second half of its other direction."""
        b, k = self.b, self.k
        self.direction, self.row = const(0), t
        if self.directions == 2:
            self.direction = b.let(k.floordiv(t, self.batch))
            self.row = b.let(k.mod(t, self.batch))
        self.length = self._length()
        self.w, self.r = (self._matrix(n) for n in (1, 2))
        self._start()
        blocks = b.let(tirx.floordiv(self.length + (self.steps - 1), const(self.steps)))
        with b.loop(blocks) as block:
            first = b.let(block * self.steps)
            count = b.let(tirx.min(self.length - first, const(self.steps)))
            self._inputs(first, count)
            with b.loop(count) as s:
                self.step_sums = b.let(s * (self.gates * self.hidden))
                self.at = self._time(b.let(first + s))
                self._step()
        self._end()

    def _length(self) -> Any:
        time = as_expr(self.time)
        if self.seq_lens is None:
            return time
        given: Any = self.b.let(self.k.index(self.seq_lens[self.row]))
        return self.b.let(tirx.Select(given < const(0), time, tirx.min(given, time)))

    def _time(self, t: Any) -> Any:
        """Where in x and y step number t of this direction lies."""
        if self.attrs["direction"] == "forward":
            return t
        back = self.length - 1 - t
        if self.directions == 1:
            return self.b.let(back)
        return self.b.let(tirx.Select(tirx.EQ(self.direction, const(1)), back, t))

    def _matrix(self, operand: int) -> Matrix:
        """This direction's W or R."""
        b, k = self.b, self.k
        value = self.anchor.operands[operand]
        dtype = ir.type_of(value).dtype
        buffer = b.buffer(argument(self.emitter.region, value), dtype)
        length = self.hidden if operand == 2 else self.inputs
        start = b.let(self.direction * (self.gates * self.hidden) * length)
        return Matrix(
            lambda row, i: k.load(buffer, start + row * length + i, dtype),
            length, self.dtype, self.width,
        )  # fmt: skip

    def _each(self, extent: Any, visit: Any) -> None:
        def element(i: Any, place: Place) -> None:
            visit(i)

        sweep(self.emitter, 0, extent, self.width, 1, element)

    def _start(self) -> None:
        """States and biases."""
        b, zero = self.b, self.k.const(0.0, self.dtype)
        for scratch, given in ((self.state, self.h0), (self.cell, self.c0)):
            if scratch is not None:
                read = (lambda j: zero) if given is None else self._reader(given)
                self._each(self.hidden, lambda j, s=scratch, read=read: b.store(s, j, read(j)))
        rows = self.gates * self.hidden
        last_apart = self.attrs.get("linear_before_reset", False)
        both = rows - self.hidden if last_apart else rows

        def total(j: Any, recurrent: bool) -> Any:
            if self.bias is None:
                return zero
            value = self.bias[self.direction, j]
            return value + self.bias[self.direction, j + rows] if recurrent else value

        self._each(both, lambda j: b.store(self.biases, j, total(j, True)))
        if last_apart:
            apart = lambda j: b.store(self.biases, j + both, total(j + both, False))  # noqa: E731
            self._each(self.hidden, apart)

    def _reader(self, given: Any) -> Any:
        return lambda j: given[self.direction, self.row, j]

    def _inputs(self, first: Any, count: Any) -> None:
        """sums[s] = W·x + biases for the steps of a block."""
        b = self.b
        with b.loop(count) as s:
            at, start = self._time(b.let(first + s)), b.let(s * self.inputs)
            self._each(
                self.inputs, lambda i: b.store(self.block, start + i, self.x[at, self.row, i])
            )
        with b.when(tirx.EQ(count, const(self.steps))):
            self._products([const(s) for s in range(self.steps)])
        with b.otherwise(), b.loop(count) as s:
            self._products([s])

    def _products(self, steps: list[Any]) -> None:
        b, rows = self.b, self.gates * self.hidden
        columns = [lambda i, s=s: b.load(self.block, s * self.inputs + i) for s in steps]

        def out(row: Any, c: int, value: Any) -> None:
            b.store(self.sums, steps[c] * rows + row, value + b.load(self.biases, row))

        tile = _BLOCK_ROWS if len(steps) > 1 else _STEP_ROWS
        multiply(b, self.w, 0, rows, tile, columns, out)

    # ---- a step

    def _step(self) -> None:
        gates, lstm = self.gates, self.anchor.name == "ai.lstm"
        if self.anchor.name != "ai.gru":
            self._recur(0, gates, self.state, self._add)
            self._cells(rnn_cells.lstm if lstm else rnn_cells.rnn)
            return
        if self.attrs["linear_before_reset"]:
            self._recur(0, 2, self.state, self._add)
            self._recur(2, 1, self.state, self._put_apart)
        else:
            self._recur(0, 2, self.state, self._add)
            self._cells(rnn_cells.gru_reset)
            self._recur(2, 1, self.reset, self._add)
        self._cells(rnn_cells.gru)

    def _recur(self, gate: int, gates: int, vector: Any, out: Any) -> None:
        rows = gates * self.hidden
        column = lambda i: self.b.load(vector, i)  # noqa: E731
        multiply(self.b, self.r, gate * self.hidden, rows, _STEP_ROWS, [column], out)

    def _add(self, row: Any, c: int, value: Any) -> None:
        place = self.step_sums + row
        self.b.store(self.sums, place, self.b.load(self.sums, place) + value)

    def _put_apart(self, row: Any, c: int, value: Any) -> None:
        if self.bias is not None:
            value = value + self.bias[self.direction, row + 3 * self.hidden]
        self.b.store(self.reset, row - 2 * self.hidden, value)

    def _cells(self, cell: Any) -> None:
        """cell(…) for every j, with the activations of the direction."""
        each = len(self.functions) // self.directions
        names = self.attrs["activations"]
        same = self.directions == 1 or (
            names[:each] == names[each:] and not self.attrs["alphas"] and not self.attrs["betas"]
        )

        def visit(d: int) -> None:
            functions = self.functions[d * each : (d + 1) * each]
            self._each(self.hidden, lambda j: cell(self, functions, j))

        if same:
            visit(0)
            return
        with self.b.when(tirx.EQ(self.direction, const(0))):
            visit(0)
        with self.b.otherwise():
            visit(1)

    def gate(self, number: int, j: Any) -> Any:
        """The sum of a gate at this step."""
        return self.b.load(self.sums, self.step_sums + (number * self.hidden) + j)

    def read(self, state: Any, j: Any) -> Any:
        """Element j of a state."""
        return self.b.load(state, j)

    def write(self, state: Any, j: Any, value: Any) -> None:
        self.b.store(state, j, value)

    def hole(self, number: int, j: Any) -> Any:
        """A peephole's weight."""
        return self.peephole[self.direction, j + number * self.hidden]

    def put_state(self, j: Any, value: Any) -> None:
        """Element j of h, which is also that of y."""
        value = self.b.let(value)
        self.write(self.state, j, value)
        if 0 in self.places:
            self._put_y(self.at, j, value)

    def _put_y(self, at: Any, j: Any, value: Any) -> None:
        self.emitter.store(self.places[0], (at, self.direction, self.row, j), value)

    def _end(self) -> None:
        """Zeros after the row's length, and the last states."""
        b = self.b
        if 0 in self.places and self.seq_lens is not None:
            with b.loop(b.let(as_expr(self.time) - self.length)) as t:
                at, zero = b.let(self.length + t), self.k.const(0.0, self.dtype)
                self._each(self.hidden, lambda j: self._put_y(at, j, zero))
        for number, scratch in ((1, self.state), (2, self.cell)):
            if number in self.places:
                index = lambda j: (self.direction, self.row, j)  # noqa: E731
                self._each(
                    self.hidden,
                    lambda j, n=number, s=scratch, index=index: self.emitter.store(
                        self.places[n], index(j), self.read(s, j)
                    ),
                )
