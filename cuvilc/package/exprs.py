"""Dims as the runtime evaluates them: one table of operations on int64 in which equal values are
shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from cuvilc.diagnostics import fail
from cuvilc.dialect.dims import Dim, Expr
from cuvilc.package.codes import BAD_PLAN
from cuvilc.package.plan import CPU_LEVEL


class Op(IntEnum):
    """enum cuvil_expr_op of runtime/src/image.h."""

    CONST = 0
    SYMBOL = 1
    ADD = 2
    SUB = 3
    MUL = 4
    FLOORDIV = 5
    MOD = 6
    MIN = 7
    MAX = 8
    EQ = 9
    LT = 10
    SELECT = 11
    CEILDIV = 12
    LEVEL = 13


_BINARY = {
    "floordiv": Op.FLOORDIV, "mod": Op.MOD, "min": Op.MIN, "max": Op.MAX, "eq": Op.EQ, "lt": Op.LT,
}  # fmt: skip


class Record(NamedTuple):
    """One row: what cuvil_expr holds. For SELECT, `imm` is the row of the second choice."""

    op: Op
    a: int = 0
    b: int = 0
    imm: int = 0


class ExprTable:
    """Rows so far, operands before their users, no row twice."""

    def __init__(self, symbols: Iterable[str]) -> None:
        self.rows: list[Record] = []
        self._symbols = {name: i for i, name in enumerate(symbols)}
        self._numbers: dict[Record, int] = {}
        self._known: dict[Dim, int] = {}

    def number(self, dim: Dim) -> int:
        """The row that computes `dim`, added if there is none yet."""
        found = self._known.get(dim)
        if found is None:
            found = self._constant(dim) if isinstance(dim, int) else self._sum(dim)
            self._known[dim] = found
        return found

    def _row(self, op: Op, a: int = 0, b: int = 0, imm: int = 0) -> int:
        record = Record(op, a, b, imm)
        number = self._numbers.setdefault(record, len(self.rows))
        if number == len(self.rows):
            self.rows.append(record)
        return number

    def _constant(self, value: int) -> int:
        if not -(2**63) <= value < 2**63:
            raise fail(BAD_PLAN, f"the size {value} does not fit into 64 bits")
        return self._row(Op.CONST, imm=int(value))

    def _sum(self, expr: Expr) -> int:
        """Positive terms first, so that the sum starts without a negation where possible."""
        total: int | None = None
        for monomial, c in sorted(expr.terms, key=lambda term: term[1] < 0):
            if total is None:
                total = self._monomial(monomial, c)
            else:
                op = Op.SUB if c < 0 else Op.ADD
                total = self._row(op, total, self._monomial(monomial, abs(c)))
        assert total is not None, "an Expr has at least one term"
        return total

    def _monomial(self, monomial: tuple[tuple, ...], coefficient: int) -> int:
        """Atoms first, the coefficient last: `n*c` and `2*n*c` share `n*c`."""
        value: int | None = None
        for atom in monomial:
            factor = self._atom(atom)
            value = factor if value is None else self._row(Op.MUL, value, factor)
        if value is None:
            return self._constant(coefficient)
        return value if coefficient == 1 else self._row(Op.MUL, value, self._constant(coefficient))

    def _atom(self, atom: tuple) -> int:
        op = atom[0]
        if op == "symbol":
            if atom[1] == CPU_LEVEL:
                return self._row(Op.LEVEL)
            if atom[1] not in self._symbols:
                raise fail(BAD_PLAN, f"the symbol `{atom[1]}` is used but not declared")
            return self._row(Op.SYMBOL, self._symbols[atom[1]])
        arguments = [self.number(x) for x in atom[1:]]
        if op == "select":
            return self._row(Op.SELECT, arguments[0], arguments[1], arguments[2])
        return self._row(_BINARY[op], arguments[0], arguments[1])
