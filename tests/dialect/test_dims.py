"""Symbolic dimensions against Python's own integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuvilc.dialect import dims
from cuvilc.dialect.dims import Dim, bounds, broadcast, evaluate, symbol
from cuvilc.dialect.dims_text import parse

NAMES = ("a", "b", "c")
SIZES = st.fixed_dictionaries({n: st.integers(0, 40) for n in NAMES})

# Each expression comes twice: as a Dim, and as a function of sizes in plain integers.
LEAVES = st.one_of(
    st.integers(-9, 9).map(lambda v: (v, lambda s: v)),
    st.sampled_from(NAMES).map(lambda n: (symbol(n), lambda s: s[n])),
)


def _combine(children):
    def pair(op, plain):
        return st.tuples(children, children).map(
            lambda ab: (op(ab[0][0], ab[1][0]), lambda s: plain(ab[0][1](s), ab[1][1](s)))
        )

    def by_constant(op, plain):
        return st.tuples(children, st.integers(1, 7)).map(
            lambda ab: (op(ab[0][0], ab[1]), lambda s: plain(ab[0][1](s), ab[1]))
        )

    return st.one_of(
        pair(lambda a, b: a + b, lambda a, b: a + b),
        pair(lambda a, b: a - b, lambda a, b: a - b),
        pair(lambda a, b: a * b, lambda a, b: a * b),
        pair(dims.minimum, min),
        pair(dims.maximum, max),
        pair(dims.equal, lambda a, b: int(a == b)),
        pair(dims.less, lambda a, b: int(a < b)),
        by_constant(dims.floordiv, lambda a, b: a // b),
        by_constant(dims.mod, lambda a, b: a % b),
        by_constant(dims.ceildiv, lambda a, b: -(-a // b)),
    )


EXPRESSIONS = st.recursive(LEAVES, _combine, max_leaves=12)


@given(EXPRESSIONS, SIZES)
def test_value_is_pythons(expression, sizes):
    dim, plain = expression
    assert evaluate(dim, sizes) == plain(sizes)


@given(EXPRESSIONS)
def test_text_round_trip(expression):
    dim, _ = expression
    assert parse(str(dim)) == dim


@given(EXPRESSIONS, SIZES)
def test_bounds_enclose_the_value(expression, sizes):
    dim, plain = expression
    lo, hi = bounds(dim, dict.fromkeys(NAMES, (0, 40)))
    assert lo <= plain(sizes) <= hi


@given(EXPRESSIONS, SIZES)
def test_substitution_agrees_with_evaluation(expression, sizes):
    dim, plain = expression
    partly = dims.substitute(dim, {"a": sizes["a"]})
    assert evaluate(partly, sizes) == plain(sizes)
    assert "a" not in dims.symbols(partly)


def test_equal_polynomials_are_equal():
    a, b = symbol("a"), symbol("b")
    assert (a + b) * (a - b) == a * a - b * b
    assert hash(a + b) == hash(b + a)
    assert dims.floordiv(a * b * 12, b * 4) == a * 3
    assert dims.floordiv(dims.floordiv(a + 1, 2) + 1, 2) == dims.floordiv(a + 3, 4)


def test_broadcast_of_symbols():
    a, b = symbol("a"), symbol("b")
    assert broadcast((a, 1, 4), (3, 1)) == (a, 3, 4)
    (d,) = broadcast((a,), (b,))
    for x, y, want in ((1, 5, 5), (5, 1, 5), (5, 5, 5)):
        assert evaluate(d, {"a": x, "b": y}) == want
    with pytest.raises(ValueError, match="3 and 4"):
        broadcast((3,), (4,))


@pytest.mark.parametrize("text", ["a +", "__import__('os')", "a.b", "a if b else c", "(" * 500])
def test_parse_refuses_what_is_no_expression(text):
    with pytest.raises(ValueError, match="not a dimension expression"):
        parse(text)


def test_truth_of_an_expression_is_refused():
    d: Dim = symbol("a")
    with pytest.raises(TypeError, match="not known at compile time"):
        bool(d)
