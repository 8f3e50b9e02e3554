"""Symbolic dimensions: integers, symbols and exact arithmetic on them in one normal form.

A `Dim` is an int or an `Expr`. An `Expr` is a polynomial with integer coefficients over atoms; an
atom is a symbol or an operation that has no polynomial form (`//`, `%`, min, max, ==, <, select).
Equal polynomials compare and hash equal, so "same shape" is `==`. Symbols stand for sizes, hence
are never negative.

`str(expr)` is Python syntax and `parse` reads it back: `parse(str(e)) == e`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import inf, prod

_MOST = 1 << 62  # the largest size
MOST_PARTS = 4000  # the arena of a small detector with open height and width has 2400
Atom = tuple  # (operator, *arguments): ("symbol", name) or (op, Dim, Dim[, Dim])
Monomial = tuple[Atom, ...]


class TooComplex(ValueError):
    """An expression on sizes grew beyond what anyone could use."""


class Expr:
    """A non-constant integer expression over symbols, built with operators and functions below.

    `parts` counts its terms and atoms, those inside atoms too. TooComplex beyond MOST_PARTS.
    """

    __slots__ = ("_hash", "_text", "parts", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self.parts = sum(1 + sum(map(_parts, monomial)) for monomial, _ in terms)
        if self.parts > MOST_PARTS:
            raise TooComplex(f"a size is an expression of {self.parts} parts")
        self._hash = hash(terms)
        self._text = ""  # spelled once: the order of terms goes by it, so it is asked for often

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __str__(self) -> str:
        if not self._text:
            self._text = _spell(self)
        return self._text

    def __add__(self, other: Dim) -> Dim:
        return _sum((self, 1), (other, 1))

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _sum((self, 1), (other, -1))

    def __rsub__(self, other: Dim) -> Dim:
        return _sum((other, 1), (self, -1))

    def __neg__(self) -> Dim:
        return _sum((self, -1))

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of `{self} != 0` is not known at compile time")


Dim = int | Expr
Shape = tuple[Dim, ...]


def _parts(atom: Atom) -> int:
    return 1 + sum(a.parts for a in atom[1:] if isinstance(a, Expr))


def symbol(name: str) -> Expr:
    """The symbol `name`, which must be a Python identifier."""
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not an identifier")
    return Expr((((("symbol", name),), 1),))


def is_static(dims: Iterable[Dim]) -> bool:
    return all(isinstance(d, int) for d in dims)


def _terms(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(d, Expr):
        return d.terms
    return (((), int(d)),) if d else ()


def _of_terms(terms: Mapping[Monomial, int]) -> Dim:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Expr(tuple(sorted(kept.items(), key=_order)))


def _order(term: tuple[Monomial, int]) -> tuple[int, str]:
    return (-len(term[0]), str([_print_atom(a) for a in term[0]]))


def _sum(*scaled: tuple[Dim, int]) -> Dim:
    total: dict[Monomial, int] = {}
    for d, factor in scaled:
        for monomial, c in _terms(d):
            total[monomial] = total.get(monomial, 0) + c * factor
    return _of_terms(total)


def _product(a: Dim, b: Dim) -> Dim:
    total: dict[Monomial, int] = {}
    if len(_terms(a)) * len(_terms(b)) > MOST_PARTS:
        raise TooComplex(f"a product of {len(_terms(a))} by {len(_terms(b))} terms of sizes")
    for ma, ca in _terms(a):
        for mb, cb in _terms(b):
            monomial = tuple(sorted(ma + mb, key=_print_atom))
            total[monomial] = total.get(monomial, 0) + ca * cb
    return _of_terms(total)


def _atom(op: str, *args: Dim) -> Expr:
    return Expr(((((op, *args),), 1),))


def floordiv(a: Dim, b: Dim) -> Dim:
    """⌊a / b⌋, as Python's `//`; the part of `a` that `b` divides is taken out exactly."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == b:
        return 1
    whole, rest = _split_multiple(a, b)
    if rest == 0:
        return whole
    return _sum((whole, 1), (_nested_floordiv(rest, b), 1))


def _nested_floordiv(a: Dim, b: Dim) -> Dim:
    """⌊(⌊x/m⌋ + c)/n⌋ = ⌊(x + c·m)/(m·n)⌋ for positive m, n: strided layers keep one form.

    Not where that would take numbers that an int64 does not hold.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(a, Expr) and isinstance(b, int) and b > 0:
        constant = sum(c for monomial, c in a.terms if not monomial)
        rest = [(monomial, c) for monomial, c in a.terms if monomial]
        if len(rest) == 1 and rest[0][1] == 1 and len(rest[0][0]) == 1:
            atom = rest[0][0][0]
            divides = atom[0] == "floordiv" and isinstance(atom[2], int) and atom[2] > 0
            if divides and max(abs(constant), b) * atom[2] <= _MOST:
                return floordiv(_sum((atom[1], 1), (constant * atom[2], 1)), atom[2] * b)
    return _atom("floordiv", a, b)


def _split_multiple(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """(q, r) with a = q·b + r, where q takes every term of `a` that `b` divides."""
    divisor = _terms(b)
    if len(divisor) != 1:
        return 0, a
    (mb, cb) = divisor[0]
    if cb == 0:
        return 0, a
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for ma, ca in _terms(a):
        left = list(ma)
        fits = True
        for atom in mb:
            if atom in left:
                left.remove(atom)
            else:
                fits = False
        if not fits:
            rest[ma] = ca
        elif ca % cb == 0:
            quotient[tuple(left)] = ca // cb
        elif not mb:
            quotient[ma], rest[ma] = ca // cb, ca % cb
        else:
            rest[ma] = ca
    return _of_terms(quotient), _of_terms(rest)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """⌈a / b⌉ for positive b."""
    return floordiv(_sum((a, 1), (b, 1), (1, -1)), b)


def mod(a: Dim, b: Dim) -> Dim:
    """a - b·⌊a / b⌋, as Python's `%`."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    _, rest = _split_multiple(a, b)
    if isinstance(rest, int) and isinstance(b, int):
        return rest % b
    return 0 if rest == 0 else _atom("mod", rest, b)


def _extreme(op: str, pick: Callable[[int, int], int], a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return pick(a, b)
    if a == b:
        return a
    difference = _sum((a, 1), (b, -1))
    lo, hi = bounds(difference, {})
    if lo >= 0:
        return a if op == "max" else b
    if hi <= 0:
        return b if op == "max" else a
    first, second = sorted((a, b), key=str)
    return _atom(op, first, second)


def minimum(a: Dim, b: Dim) -> Dim:
    return _extreme("min", min, a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    return _extreme("max", max, a, b)


def equal(a: Dim, b: Dim) -> Dim:
    """1 when a = b, else 0."""
    difference = _sum((a, 1), (b, -1))
    if isinstance(difference, int):
        return int(difference == 0)
    lo, hi = bounds(difference, {})
    return 0 if lo > 0 or hi < 0 else _atom("eq", a, b)


def less(a: Dim, b: Dim) -> Dim:
    """1 when a < b, else 0."""
    difference = _sum((a, 1), (b, -1))
    if isinstance(difference, int):
        return int(difference < 0)
    lo, hi = bounds(difference, {})
    if hi < 0:
        return 1
    return 0 if lo >= 0 else _atom("lt", a, b)


def select(condition: Dim, a: Dim, b: Dim) -> Dim:
    if isinstance(condition, int):
        return a if condition else b
    return a if a == b else _atom("select", condition, a, b)


def product(dims: Iterable[Dim]) -> Dim:
    result: Dim = 1
    for d in dims:
        result = result * d
    return result


def broadcast(a: Shape, b: Shape) -> Shape:
    """NumPy's broadcast of two shapes.

    Two different symbolic sizes give `select(a == 1, b, a)`: right whenever the run-time sizes
    broadcast at all. A symbol against a constant above 1 gives the constant. Raises ValueError when
    they cannot broadcast.
    """
    out: list[Dim] = []
    for i in range(max(len(a), len(b))):
        x = a[len(a) - 1 - i] if i < len(a) else 1
        y = b[len(b) - 1 - i] if i < len(b) else 1
        if x == y or y == 1:
            out.append(x)
        elif x == 1:
            out.append(y)
        elif isinstance(x, int) and isinstance(y, int):
            raise ValueError(f"sizes {x} and {y} do not broadcast")
        elif isinstance(x, int):
            out.append(x)
        elif isinstance(y, int):
            out.append(y)
        else:
            out.append(select(equal(x, 1), y, x))
    return tuple(reversed(out))


FUNCTIONS: dict[str, Callable[..., Dim]] = {
    "floordiv": floordiv,
    "mod": mod,
    "min": minimum,
    "max": maximum,
    "eq": equal,
    "lt": less,
    "select": select,
}


def _map_atoms(d: Dim, leaf: Callable[[Atom], Dim]) -> Dim:
    """Rebuild `d` with every atom replaced by leaf(atom), which sees arguments not yet mapped."""
    if isinstance(d, int):
        return d
    total: Dim = 0
    for monomial, c in d.terms:
        value: Dim = c
        for atom in monomial:
            value = value * leaf(atom)
        total = total + value
    return total


def substitute(d: Dim, values: Mapping[str, Dim]) -> Dim:
    """`d` with symbols replaced; those not in `values` stay."""
    done: dict[Atom, Dim] = {}  # sizes of strided layers nest, and share most of what is in them

    def leaf(atom: Atom) -> Dim:
        found = done.get(atom)
        if found is None:
            if atom[0] == "symbol":
                found = values.get(atom[1], Expr((((atom,), 1),)))
            else:
                found = FUNCTIONS[atom[0]](*(_map_atoms(x, leaf) for x in atom[1:]))
            done[atom] = found
        return found

    return _map_atoms(d, leaf)


def evaluate(d: Dim, values: Mapping[str, int]) -> int:
    """The number that `d` is for these sizes. KeyError names a missing symbol."""
    result = substitute(d, values)
    if isinstance(result, int):
        return result
    missing = sorted(symbols(result) - values.keys())
    raise KeyError(missing[0] if missing else str(result))


def symbols(d: Dim) -> set[str]:
    """Names of the symbols in `d`."""
    names: set[str] = set()
    if isinstance(d, Expr):
        for monomial, _ in d.terms:
            for atom in monomial:
                if atom[0] == "symbol":
                    names.add(atom[1])
                else:
                    for x in atom[1:]:
                        names |= symbols(x)
    return names


def symbols_of(shape: Shape) -> set[str]:
    """Names of the symbols in all sizes of `shape`."""
    return {name for d in shape for name in symbols(d)}


Range = tuple[float, float]


def bounds(d: Dim, ranges: Mapping[str, tuple[int, int | None]]) -> Range:
    """(lo, hi) that surely enclose `d` when every symbol lies in its range (default: 0 or more).

    Interval arithmetic, so it may be wider than the truth; ±inf where unbounded.
    """
    return _Bounds(ranges).of(d) if ranges else _unbounded_bounds(d)


@lru_cache(maxsize=65536)
def _unbounded_bounds(d: Dim) -> Range:
    return _Bounds({}).of(d)


class _Bounds:
    """Interval arithmetic under some ranges; shared parts are looked at once."""

    def __init__(self, ranges: Mapping[str, tuple[int, int | None]]) -> None:
        self.ranges = ranges
        self.known: dict[Atom, Range] = {}

    def of(self, d: Dim) -> Range:
        if isinstance(d, int):
            return d, d
        return _sum_bounds(d, self.atom)

    def atom(self, atom: Atom) -> Range:
        found = self.known.get(atom)
        if found is None:
            if atom[0] == "symbol":
                lo, hi = self.ranges.get(atom[1], (0, None))
                found = (lo, inf if hi is None else hi)
            else:
                found = _atom_bounds(atom[0], [self.of(x) for x in atom[1:]])
            self.known[atom] = found
        return found


def _sum_bounds(d: Expr, atom_bounds: Callable[[Atom], Range]) -> Range:
    lo = hi = 0.0
    for monomial, c in d.terms:
        spans = [atom_bounds(a) for a in monomial]
        low = high = 1.0
        for a, b in spans:
            corners = [_times(x, y) for x in (low, high) for y in (a, b)]
            low, high = min(corners), max(corners)
        corners = [_times(c, low), _times(c, high)]
        lo, hi = lo + min(corners), hi + max(corners)
    return lo, hi


def _times(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


def _atom_bounds(op: str, spans: list[Range]) -> Range:
    if op == "select":
        return min(spans[1][0], spans[2][0]), max(spans[1][1], spans[2][1])
    (a, b), (c, e) = spans
    if op == "lt":
        return int(b < c), int(a < e)
    if op == "eq":
        return int(a == b == c == e), int(a <= e and c <= b)
    if op == "min":
        return min(a, c), min(b, e)
    if op == "max":
        return max(a, c), max(b, e)
    if c <= 0:
        return -inf, inf
    if op == "mod":
        return (a, b) if a >= 0 and b < c else (0, e - 1)
    corners = [x / y if x not in (inf, -inf) else x for x in (a, b) for y in (c, e)]
    lo, hi = min(corners), max(corners)
    return (lo if lo == -inf else lo // 1), (hi if hi == inf else hi // 1)


def _spell(d: Expr) -> str:
    text = ""
    for monomial, c in d.terms:
        factors = [_print_atom(a) for a in monomial]
        if abs(c) != 1 or not factors:
            factors.insert(0, str(abs(c)))
        sign = "-" if c < 0 else "+"
        text += f" {sign} " + "*".join(factors)
    return text[3:] if text.startswith(" +") else "-" + text[3:]


def _print_atom(atom: Atom) -> str:
    if atom[0] == "symbol":
        return str(atom[1])
    return f"{atom[0]}({', '.join(map(str, atom[1:]))})"


def plain(d: Dim | str) -> int | str:
    """As JSON holds it: a number, or the text of an expression."""
    return d if isinstance(d, int) else str(d)


def size(shape: Shape) -> int:
    """Number of elements of a static shape; TypeError for others."""
    if not is_static(shape):
        raise TypeError(f"shape {shape} is not static")
    return prod(int(d) for d in shape if isinstance(d, int))
