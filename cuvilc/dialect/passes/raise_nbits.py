"""Products by weights that are quantised alone, and dequantised first → ai.matmul_nbits.

The weights stay numbers of few bits. Folding would make floats of them, four to sixteen times the
bytes: in the package, in memory, and to read for every product of few rows. What is taken:
constants of 8, 4 or 2 bits that `ai.dequantize_linear`, or a cast, an optional difference and a
product with constants, turn into floats, with one scale and zero point for the whole matrix, for
each column of the result, or for blocks of a column. Many rows cost some 15 % more than with
floats, so with `prefer` "speed" only products of known few rows are taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuvilc.dialect.dims import product
from cuvilc.dialect.ir import Program, Value
from cuvilc.dialect.narrow import pack
from cuvilc.dialect.passes.context import Miss, PassContext
from cuvilc.dialect.passes.raise_integers_levels import known
from cuvilc.dialect.passes.rules_graph import Graph, Node, rewrite

NAME = "raise-nbits"
VERSION = 1

_FEW_BITS = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
_SIGNS = {"ai.elemwise_sub": 1, "ai.elemwise_add": -1}  # of a zero point, as the second operand
_LEAST_BYTES = 64 << 10  # that it must spare
_FEW_ROWS = 16


def run(program: Program, context: PassContext) -> None:
    """After it no product's weights are folded to floats from numbers that take far less."""

    def raise_nbits(g: Graph, node: Node) -> Any:
        """x · dequantise(numbers) → ai.matmul_nbits(x, numbers, scales, zeros)."""
        x, w = node.operands
        if node.attr("transpose_a") or g.type(x).dtype != "float32" or g.type(w).rank != 2:
            return None
        numbers = _read(g, w)
        if numbers is None:
            return None
        if any(u.name != "ai.matmul" or u.operands[1] != w for u in g.users(w)):
            raise Miss("others than products read the floats too")
        rows = product(g.type(x).shape[:-1])
        few = isinstance(rows, int) and rows <= _FEW_ROWS
        if context.prefer == "speed" and not few:
            raise Miss("--prefer speed, and the rows are many or not known")
        numbers = numbers if node.attr("transpose_b") else numbers.turned()
        return _build(g, node, numbers.by_rows())

    with program:
        rewrite(Graph(program), {"ai.matmul": (raise_nbits,)}, context)


@dataclass(frozen=True)
class _Numbers:
    """(levels - zero) · scale. levels [R, C] are integers, scale and zero [r, c] with r a divisor
    of R and c one of C: each stands for R/r × C/c levels.
    """

    levels: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    key: str

    def turned(self) -> _Numbers:
        return replace(self, levels=self.levels.T, scale=self.scale.T, zero=self.zero.T)

    def by_rows(self) -> _Numbers:
        """With a scale and a zero point for each row, or for each block of it. Raises Miss."""
        rows = len(self.levels)
        grid = np.broadcast_shapes(self.scale.shape, self.zero.shape)
        if grid[0] not in (1, rows) or any(s not in (1, grid[1]) for s in _widths(self)):
            raise Miss("one scale is for several columns of the result, but not for all")
        scale, zero = (np.broadcast_to(v, (rows, grid[1])) for v in (self.scale, self.zero))
        return replace(self, scale=scale, zero=zero)


def _widths(numbers: _Numbers) -> tuple[int, int]:
    return numbers.scale.shape[1], numbers.zero.shape[1]


def _build(g: Graph, node: Node, numbers: _Numbers) -> Value:
    """The product by numbers [N, K]."""
    n, k = numbers.levels.shape
    block = k // numbers.scale.shape[1]
    bits, low = _range(numbers, block)
    levels, zero, middle = numbers.levels - low, numbers.zero - low, 1 << bits - 1
    packed = pack(levels, bits)
    operands = [packed, np.ascontiguousarray(numbers.scale, dtype=np.float32)]
    names = ["numbers", "scale"]
    if (zero != middle).any():
        operands.append(np.ascontiguousarray(zero, dtype=np.uint8))
        names.append("zero")
    if 4 * n * k - sum(a.nbytes for a in operands) < _LEAST_BYTES:
        raise Miss(f"it would spare less than {_LEAST_BYTES >> 10} KB")
    values = [
        g.constant(a, f"{numbers.key}.{name}") for a, name in zip(operands, names, strict=True)
    ]
    return g.build(
        "ai.matmul_nbits", node.operands[0], *values, bits=bits, block=block, origin=(node,)
    )


def _range(numbers: _Numbers, block: int) -> tuple[int, int]:
    """(bits, lowest level) of the fewest bits that hold levels and zero points. Raises Miss."""
    held = (numbers.levels, numbers.zero)
    least, most = min(a.min(initial=0) for a in held), max(a.max(initial=0) for a in held)
    for bits in (2, 4, 8):
        for low in (-(1 << bits - 1), 0):
            if block * bits % 8 == 0 and low <= least and most < low + (1 << bits):
                return bits, low
    raise Miss("levels or zero points beyond 8 bits")


# ---- what makes floats of numbers


def _read(g: Graph, value: Value) -> _Numbers | None:
    node = g.producer(value)
    if node is None:
        return None
    if node.name == "ai.transpose" and node.attr("perm") == (1, 0):
        inner = _read(g, node.operands[0])
        return None if inner is None else inner.turned()
    if node.name == "ai.dequantize_linear":
        return _dequantised(g, node)
    if node.name == "ai.elemwise_mul":
        for levels, scale in (node.operands, node.operands[::-1]):
            found = _scaled(g, levels, scale)
            if found is not None:
                return found
    return None


def _levels(g: Graph, value: Value) -> tuple[np.ndarray, str] | None:
    """A constant matrix of few bits: its integers and its key."""
    t, array = g.type(value), g.array(value)
    if t.dtype not in _FEW_BITS or t.rank != 2 or not g.is_constant(value) or array is None:
        return None
    return np.asarray(array).astype(np.int16), g.key(value)


def _dequantised(g: Graph, node: Node) -> _Numbers | None:
    found = _levels(g, node.operands[0])
    scale = known(g, node.operands[1])
    if found is None or scale is None or g.type(node.operands[1]).dtype != "float32":
        return None
    zero = known(g, node.operands[2]) if len(node.operands) > 2 else np.zeros((), np.int8)
    if zero is None:
        return None
    levels, key = found
    axis, block = node.attr("axis"), node.attr("block")
    if block and levels.shape[axis] % block:
        return None
    grids = [_grid(np.asarray(v), axis, block) for v in (scale, zero)]
    return _Numbers(levels, grids[0], grids[1].astype(np.int16), key)


def _grid(values: np.ndarray, axis: int, block: int) -> np.ndarray:
    """Scales or zero points of a matrix's dequantisation as [r, c]."""
    if values.size == 1:
        return values.reshape(1, 1)
    if block:
        return values
    return values.reshape((-1, 1) if axis == 0 else (1, -1))


def _scaled(g: Graph, value: Value, factor: Value) -> _Numbers | None:
    """cast(levels) · scale or (cast(levels) - zero) · scale."""
    scale, zero = known(g, factor), np.zeros((1, 1))
    cast = g.producer(value)
    if cast is not None and cast.name in _SIGNS:
        sign = _SIGNS[cast.name]
        less = known(g, cast.operands[1])
        if less is None or less.ndim > 2 or (less != np.round(less)).any():
            return None
        zero, cast = sign * _matrix(less), g.producer(cast.operands[0])
    if cast is None or cast.name != "ai.cast" or scale is None or scale.ndim > 2:
        return None
    found = _levels(g, cast.operands[0])
    if found is None or g.type(value).dtype != "float32":
        return None
    levels, key = found
    if g.type(value).shape != levels.shape or np.abs(zero).max(initial=0) > 255:
        return None
    return _Numbers(levels, _matrix(scale), zero.astype(np.int16), key)


def _matrix(values: np.ndarray) -> np.ndarray:
    """With two axes, as it broadcasts to a matrix."""
    return values.reshape((1,) * (2 - values.ndim) + values.shape)
