"""The matrices of Winograd's minimal filtering of 3 taps: tile outputs from tile + 2 products, or,
with a stride of 2, from 2 tile + 1.

y = Aᵀ [(G g) ⊙ (Bᵀ d)] for an input d and taps g; in two dimensions the same along both axes
(Lavin & Gray 2016, "Fast Algorithms for Convolutional Neural Networks", section 4). Along an axis
where windows have one tap a tile is one output, and each matrix the number 1.
Both are evaluated as polynomials at some points and at infinity, multiplied, and interpolated
(Toom and Cook; Barabasz et al. 2018, "Error analysis and improving the accuracy of Winograd
convolution"). Of the points ±a, ±b beside 0 that F(4, 3) needs, 5/8 and 3/2 have a quarter of the
largest error of the usual 1 and 2 and half of their mean one, and Bᵀ and Aᵀ are exact in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

TAPS = 3
# Points by tile and number of taps; infinity besides.
_POINTS = {
    (2, 3): (Fraction(0), Fraction(1), Fraction(-1)),
    (4, 3): (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
    (2, 2): (Fraction(0), Fraction(1)),
    (4, 2): (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(2)),
}
TILES = (2, 4)
STRIDES = (1, 2)

WINDOWS = ((TAPS, TAPS), (1, TAPS), (TAPS, 1))
# Results of a tile along both axes: 1 where windows have one tap, else one of TILES.
Tile = tuple[int, int]
Rows = tuple[tuple[float, ...], ...]
_Matrix = list[list[Fraction]]


class Matrices(NamedTuple):
    """Of one axis: `output` Aᵀ [tile, n], `input` Bᵀ [n, n], `weights` G [tile + 2, 3]; n products,
    of which the last ones share the last row of G.
    """

    output: Rows
    input: Rows
    weights: Rows


def tile_of(size: int, window: Sequence[int]) -> Tile:
    """The tile of `size` results along each axis where the window has 3 taps."""
    down, across = (size if taps == TAPS else 1 for taps in window)
    return down, across


def window_of(tile: Tile) -> tuple[int, int]:
    """Taps along both axes."""
    return _taps(tile[0]), _taps(tile[1])


def points(tile: Tile, strides: tuple[int, int]) -> tuple[int, int]:
    """Products along both axes; also the inputs that a tile sees."""
    return _points(tile[0], strides[0]), _points(tile[1], strides[1])


def weight_points(tile: Tile) -> tuple[int, int]:
    """Rows of G along both axes."""
    return tile[0] + _taps(tile[0]) - 1, tile[1] + _taps(tile[1]) - 1


def matrices(tile: Tile, strides: tuple[int, int]) -> tuple[Matrices, Matrices]:
    """Of both axes."""
    return MATRICES[tile[0], strides[0]], MATRICES[tile[1], strides[1]]


def _taps(size: int) -> int:
    return 1 if size == 1 else TAPS


def _points(size: int, stride: int) -> int:
    return stride * (size - 1) + _taps(size)


def _filtering(tile: int, taps: int) -> tuple[_Matrix, _Matrix, _Matrix]:
    """Aᵀ, Bᵀ, G from the points: a row of Bᵀ is the polynomial that is 0 at all others, a column of
    Aᵀ and a row of G are the powers of its point.
    """
    at = _POINTS[tile, taps]
    rows, weights = [], []
    for p in at:
        others = [q for q in at if q != p]
        whole = prod((p - q for q in others), start=Fraction(1))
        rows.append([*_polynomial(others), Fraction(0)])
        weights.append([p**i / whole for i in range(taps)])
    rows.append(_polynomial(at))
    weights.append([Fraction(i == taps - 1) for i in range(taps)])
    output = [[*(p**i for p in at), Fraction(i == tile - 1)] for i in range(tile)]
    return output, rows, weights


def _matrices(tile: int, stride: int) -> Matrices:
    if tile == 1:
        return Matrices(((1.0,),), ((1.0,),), ((1.0,),))
    if stride == 1:
        return Matrices(*map(_floats, _filtering(tile, TAPS)))
    # Windows a stride of 2 apart see even inputs with the first and last tap, odd ones with the
    # middle one: F(tile, 2) on the even ones, and a product for each odd one.
    output, rows, weights = _filtering(tile, 2)
    n = _points(tile, stride)
    odd = [[Fraction(j == 2 * i + 1) for j in range(n)] for i in range(tile)]
    even = [[row[j // 2] if j % 2 == 0 else Fraction(0) for j in range(n)] for row in rows]
    output = [[*row, *(Fraction(i == j) for j in range(tile))] for i, row in enumerate(output)]
    first_last = [[row[0], Fraction(0), row[1]] for row in weights]
    middle = [Fraction(0), Fraction(1), Fraction(0)]
    return Matrices(_floats(output), _floats(even + odd), _floats([*first_last, middle]))


def _polynomial(roots: Any) -> list[Fraction]:
    """Coefficients of Π (x - root), the constant one first."""
    made = [Fraction(1)]
    for root in roots:
        longer = [Fraction(0), *made], [*made, Fraction(0)]
        made = [a - root * b for a, b in zip(*longer, strict=True)]
    return made


def _floats(rows: _Matrix) -> Rows:
    return tuple(tuple(float(x) for x in row) for row in rows)


SHAPES = tuple(tile_of(size, window) for window in WINDOWS for size in TILES)
MATRICES = {(tile, stride): _matrices(tile, stride) for tile in (1, *TILES) for stride in STRIDES}


# Of a result relative to the largest one: this times the root of the number of channels that are
# added up. Measured, with what tests/targets/test_winograd_error.py allows to be generous.
_ERROR = {(2, 2): 2e-7, (4, 4): 6e-7, (1, 2): 1.5e-7, (1, 4): 3e-7}


def error_bound(tile: Tile, channels: int) -> float:
    """The largest error of float32 results to expect, relative to the largest of them."""
    return _ERROR[min(tile), max(tile)] * sqrt(channels)


def transform(down: Rows, across: Rows, x: np.ndarray) -> np.ndarray:
    """down · x · acrossᵀ over the last two axes."""
    return np.asarray(np.asarray(down, np.float64) @ x @ np.asarray(across, np.float64).T)


def coefficient(k: Any, matrix: Rows, i: Any, j: Any) -> Any:
    """matrix[i][j] for indices in the notation of lowering facets: a chain of choices."""
    value = k.const(0.0, "float32")
    for row, numbers in enumerate(matrix):
        for column, number in enumerate(numbers):
            if number:
                here = k.both(k.eq(i, row), k.eq(j, column))
                value = k.select(here, k.const(float(number), "float32"), value)
    return value
