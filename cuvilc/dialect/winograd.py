"""The matrices of Winograd's minimal filtering of 3 taps: tile outputs from tile + 2 products.

y = Aᵀ [(G g) ⊙ (Bᵀ d)] for an input d of tile + 2 elements and taps g; in two dimensions the same
along both axes (Lavin & Gray 2016, "Fast Algorithms for Convolutional Neural Networks", section 4).
Both are evaluated as polynomials at some points and at infinity, multiplied, and interpolated
(Toom and Cook; Barabasz et al. 2018, "Error analysis and improving the accuracy of Winograd
convolution"). Of the points ±a, ±b beside 0 that F(4, 3) needs, 5/8 and 3/2 have a quarter of the
largest error of the usual 1 and 2 and half of their mean one, and Bᵀ and Aᵀ are exact in float32.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

TAPS = 3
# Points by tile; infinity besides.
_POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}

Rows = tuple[tuple[float, ...], ...]


class Matrices(NamedTuple):
    """`output` Aᵀ [tile, n], `input` Bᵀ [n, n], `weights` G [n, 3], with n = tile + 2."""

    output: Rows
    input: Rows
    weights: Rows


def _matrices(tile: int) -> Matrices:
    """From the points: a row of Bᵀ is the polynomial that is 0 at all others, a column of Aᵀ and a
    row of G are the powers of its point.
    """
    at = _POINTS[tile]
    n = len(at) + 1
    rows, weights = [], []
    for p in at:
        others = [q for q in at if q != p]
        whole = prod((p - q for q in others), start=Fraction(1))
        rows.append([*_polynomial(others), Fraction(0)])
        weights.append([p**i / whole for i in range(TAPS)])
    rows.append(_polynomial(at))
    weights.append([Fraction(i == TAPS - 1) for i in range(TAPS)])
    output = [[*(p**i for p in at), Fraction(i == tile - 1)] for i in range(tile)]
    assert n == tile + TAPS - 1
    return Matrices(_floats(output), _floats(rows), _floats(weights))


def _polynomial(roots: Any) -> list[Fraction]:
    """Coefficients of Π (x - root), the constant one first."""
    made = [Fraction(1)]
    for root in roots:
        longer = [Fraction(0), *made], [*made, Fraction(0)]
        made = [a - root * b for a, b in zip(*longer, strict=True)]
    return made


def _floats(rows: list[list[Fraction]]) -> Rows:
    return tuple(tuple(float(x) for x in row) for row in rows)


MATRICES = {tile: _matrices(tile) for tile in _POINTS}
TILES = tuple(MATRICES)


def points(tile: int) -> int:
    """Products along one axis."""
    return tile + TAPS - 1


# Of a result relative to the largest one: this times the root of the number of channels that are
# added up. Measured, with what tests/targets/test_winograd_error.py allows to be generous.
_ERROR = {2: 2e-7, 4: 6e-7}


def error_bound(tile: int, channels: int) -> float:
    """The largest error of float32 results to expect, relative to the largest of them."""
    return _ERROR[tile] * sqrt(channels)


def transform(matrix: Rows, x: np.ndarray) -> np.ndarray:
    """matrix · x · matrixᵀ over the last two axes."""
    m = np.asarray(matrix, np.float64)
    return np.asarray(m @ x @ m.T)


def coefficient(k: Any, matrix: Rows, i: Any, j: Any) -> Any:
    """matrix[i][j] for indices in the notation of lowering facets: a chain of choices."""
    value = k.const(0.0, "float32")
    for row, numbers in enumerate(matrix):
        for column, number in enumerate(numbers):
            if number:
                here = k.both(k.eq(i, row), k.eq(j, column))
                value = k.select(here, k.const(float(number), "float32"), value)
    return value
