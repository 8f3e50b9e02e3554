"""The expression table computes what dims.evaluate computes, and shares what is equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuvilc.diagnostics import CuvilError
from cuvilc.dialect import dims
from cuvilc.dialect.dims import Dim
from cuvilc.package.exprs import ExprTable, Op

NAMES = ("batch", "n", "k")


def run(table: ExprTable, values: tuple[int, ...]) -> list[int]:
    """What the runtime does: all rows in order."""
    got: list[int] = []
    binary: dict[Op, Callable[[int, int], int]] = {
        Op.ADD: lambda a, b: a + b,
        Op.SUB: lambda a, b: a - b,
        Op.MUL: lambda a, b: a * b,
        Op.FLOORDIV: lambda a, b: a // b,
        Op.MOD: lambda a, b: a % b,
        Op.MIN: min,
        Op.MAX: max,
        Op.EQ: lambda a, b: int(a == b),
        Op.LT: lambda a, b: int(a < b),
        Op.CEILDIV: lambda a, b: -(-a // b),
    }
    for row in table.rows:
        if row.op == Op.CONST:
            got.append(row.imm)
        elif row.op == Op.SYMBOL:
            got.append(values[row.a])
        elif row.op == Op.SELECT:
            got.append(got[row.b] if got[row.a] else got[row.imm])
        else:
            got.append(binary[row.op](got[row.a], got[row.b]))
    return got


LEAF = st.one_of(st.integers(-9, 9), st.sampled_from(NAMES).map(dims.symbol))


def combine(part: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    divisor = st.one_of(st.integers(1, 9), st.sampled_from(NAMES).map(lambda n: dims.symbol(n) + 1))
    return st.one_of(
        st.tuples(part, part).map(lambda p: p[0] + p[1]),
        st.tuples(part, part).map(lambda p: p[0] - p[1]),
        st.tuples(part, part).map(lambda p: p[0] * p[1]),
        st.tuples(part, divisor).map(lambda p: dims.floordiv(*p)),
        st.tuples(part, divisor).map(lambda p: dims.ceildiv(*p)),
        st.tuples(part, divisor).map(lambda p: dims.mod(*p)),
        st.tuples(part, part).map(lambda p: dims.minimum(*p)),
        st.tuples(part, part).map(lambda p: dims.maximum(*p)),
        st.tuples(part, part, part).map(lambda p: dims.select(dims.less(p[0], p[1]), p[2], p[0])),
        st.tuples(part, part).map(lambda p: dims.equal(*p)),
    )


DIMS = st.recursive(LEAF, combine, max_leaves=8)


@settings(max_examples=150, deadline=None)
@given(st.lists(DIMS, min_size=1, max_size=4), st.tuples(*[st.integers(0, 50)] * len(NAMES)))
def test_the_table_computes_what_evaluate_does(
    expressions: list[Dim], values: tuple[int, ...]
) -> None:
    table = ExprTable(NAMES)
    numbers = [table.number(e) for e in expressions]
    results = run(table, values)
    sizes = dict(zip(NAMES, values, strict=True))
    assert [results[i] for i in numbers] == [dims.evaluate(e, sizes) for e in expressions]
    assert len(set(table.rows)) == len(table.rows)


def test_equal_parts_are_shared() -> None:
    n, k = dims.symbol("n"), dims.symbol("k")
    table = ExprTable(NAMES)
    first = table.number(n * k * 4)
    assert table.number(k * n * 4) == first
    rows = len(table.rows)
    table.number(n * k * 8)
    assert len(table.rows) == rows + 2, "the constant 8 and one product"


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_constant_beyond_64_bits_is_refused(value: int) -> None:
    with pytest.raises(CuvilError, match="CUV511.*64 bits"):
        ExprTable(NAMES).number(value)


def test_an_unknown_symbol_is_refused() -> None:
    with pytest.raises(CuvilError, match="CUV511.*`other`"):
        ExprTable(NAMES).number(dims.symbol("other"))
