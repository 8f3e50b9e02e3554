"""The transforms of Winograd's minimal filtering on vectors of channels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from cuvilc.dialect.winograd import Rows
from cuvilc.targets.notation import Notation
from cuvilc.targets.schedules.microkernel import opaque
from cuvilc.targets.tir import Buffer, KernelBuilder

Memory = tuple[Buffer, Any, Any]  # a buffer, the first index, and the step to the next


def turns(b: KernelBuilder, count: int, name: str) -> AbstractContextManager[Any]:
    """A loop over the points along an axis. LLVM shall not unroll it: that would take it long and
    gain nothing.
    """
    return b.loop(opaque(b, count), name=name)


def lines(b: KernelBuilder, matrix: Rows, source: Memory, to: Memory, lanes: int) -> None:
    """matrix · values, each a vector of `lanes`."""
    k = Notation(b)
    (x, start, step), (y, place, stride) = source, to
    with b.loop(lanes, "vectorized") as lane:
        values = [k.let(b.load(x, start + i * step + lane)) for i in range(len(matrix[0]))]
        for i, made in enumerate(combine(k, matrix, values)):
            b.store(y, place + i * stride + lane, made)


def combine(k: Notation, matrix: Rows, values: Sequence[Any]) -> list[Any]:
    """matrix · values: one sum a row.

    Two rows that differ in the signs of some terms only, as those of the points a and -a do, share
    two sums: what the rows have in common, and what they have of either sign. Where that holds of
    columns, their sum and difference are shared instead.
    """
    pairs = _column_pairs(matrix)
    if pairs:
        return _by_columns(k, matrix, values, pairs)
    results: list[Any] = []
    row = 0
    while row < len(matrix):
        here, after = matrix[row], matrix[row + 1] if row + 1 < len(matrix) else ()
        if after and all(abs(a) == abs(b) for a, b in zip(here, after, strict=True)):
            kept = tuple(a if a == b else 0.0 for a, b in zip(here, after, strict=True))
            turned = tuple(a if a != b else 0.0 for a, b in zip(here, after, strict=True))
            if any(kept) and any(turned):
                factor, turned = _common(turned)
                base = k.let(_sum(k, kept, values))
                other = k.let(_sum(k, turned, values))
                results += [_plus(k, base, factor, other), _plus(k, base, -factor, other)]
                row += 2
                continue
        results.append(_sum(k, here, values))
        row += 1
    return results


def _column_pairs(matrix: Rows) -> list[tuple[int, int]]:
    """Neighbouring columns equal but for signs, with some of either kind."""
    columns = list(zip(*matrix, strict=True))
    pairs, j = [], 0
    while j + 1 < len(columns):
        a, b = columns[j], columns[j + 1]
        if all(abs(x) == abs(y) for x, y in zip(a, b, strict=True)) and any(a) and a != b:
            pairs.append((j, j + 1))
            j += 1
        j += 1
    return pairs if len(matrix) < len(columns) else []


def _by_columns(
    k: Notation, matrix: Rows, values: Sequence[Any], pairs: Sequence[tuple[int, int]]
) -> list[Any]:
    sums = {p: k.let(values[p[0]] + values[p[1]]) for p in pairs}
    differences = {p: k.let(values[p[0]] - values[p[1]]) for p in pairs}
    paired = {j for p in pairs for j in p}
    results = []
    for row in matrix:
        numbers = [row[j] for j in range(len(row)) if j not in paired]
        terms = [values[j] for j in range(len(row)) if j not in paired]
        for p in pairs:
            a, b = row[p[0]], row[p[1]]
            numbers.append(a)
            terms.append(sums[p] if a == b else differences[p])
        results.append(_sum(k, tuple(numbers), terms))
    return results


def _common(numbers: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """The last factor, and all of them divided by it."""
    factor = next(n for n in reversed(numbers) if n)
    return factor, tuple(n / factor for n in numbers)


def _sum(k: Notation, numbers: Sequence[float], values: Sequence[Any]) -> Any:
    """Positive units first: what follows is then a multiply-add each."""
    terms = [(n, v) for n, v in zip(numbers, values, strict=True) if n]
    terms.sort(key=lambda t: t[0] != 1)
    (number, value), *rest = terms
    total = value if number == 1 else k.const(number, "float32") * value
    for number, value in rest:
        total = _plus(k, total, number, value)
    return total


def _plus(k: Notation, total: Any, number: float, value: Any) -> Any:
    if number == 1:
        return total + value
    return total - value if number == -1 else total + k.const(number, "float32") * value
