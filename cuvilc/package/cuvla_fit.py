"""Whether a change fits the exchangeable weight that it is for: kind, sizes, and finite sums.

A build compares these when it attaches; for a package that was shipped before, this is all that
does. Factors of other sizes would be read as panels that they are not.
"""

from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np

from cuvilc.adapter import LowRank, ModuleChange, Rows
from cuvilc.dialect.types import numpy_dtype
from cuvilc.package.plan import Adaptable, Part


def misfit(change: ModuleChange, part: Part, site: Adaptable) -> str:
    """Why the change cannot be made to this part of a weight; "" if it can."""
    replaced, low = change.replaced.get(part.parameter), change.low_rank
    if replaced is not None:
        wrong = _replaced(replaced.shape, part, site)
        if wrong:
            return wrong
    if change.rows is not None and part.parameter == "weight":
        return _rows(change.rows, part, site)
    if low is None or (part.parameter == "bias" and low.bias is None):
        return ""
    if part.parameter == "bias":
        n = low.bias.size if low.bias is not None else 0
        return "" if n == part.size else f"{n} biases for {part.size} outputs"
    return _factors(change.kind, low, part, site) if part.parameter == "weight" else ""


def _factors(kind: str, low: LowRank, part: Part, site: Adaptable) -> str:
    if kind != part.kind:
        return f"it is {part.kind or 'another'} weight, the adapter's is {kind}"
    n, inputs = low.b.shape[0], tuple(low.a.shape[1:])
    whole = tuple(d for i, d in enumerate(site.shape) if i != site.out_axis)
    same = inputs == whole if len(inputs) == len(whole) else prod(inputs) == prod(whole)
    if n == part.size and same:
        return ""
    return f"it has {part.size} outputs of {list(whole)}, the adapter's has {n} of {list(inputs)}"


def _rows(rows: Rows, part: Part, site: Adaptable) -> str:
    """As find_place has it: a table [V, D], or a head of V outputs."""
    others = prod(site.shape) // site.shape[site.out_axis]
    table = (others, part.size) if part.kind == "embedding" else (part.size, others)
    if part.kind and rows.values.shape[1] == table[1] and max(rows.indices) < table[0]:
        return ""
    return f"it is {list(table)}, the adapter's rows are of {rows.values.shape[1]}"


def _replaced(shape: tuple[int, ...], part: Part, site: Adaptable) -> str:
    """As find_place has it: axes of size 1 do not count; torch's axes are in another order, those
    of GPT-2's Conv1D in that of a product.
    """
    line = [part.size if i == site.out_axis else d for i, d in enumerate(site.shape)]
    wanted = line
    if part.parameter == "weight" and part.kind and part.kind != "embedding":
        inputs = line[: site.out_axis] + line[site.out_axis + 1 :]
        wanted = [part.size, *inputs]
        if part.kind == "linear" and list(shape) == [*inputs, part.size]:
            return ""
    if [d for d in shape if d != 1] == [d for d in wanted if d != 1]:
        return ""
    return f"{list(shape)} against the package's {wanted}"


def is_finite(low: LowRank, site: Adaptable) -> bool:
    """Whether |ΔW| surely fits the weight's dtype: |b·a| <= |b| |a| (Cauchy, Schwarz). DoRA's
    magnitude bounds W' itself.
    """
    largest = float(ml_dtypes.finfo(numpy_dtype(site.dtype)).max)
    if low.magnitude is not None:
        bound = float(np.abs(low.magnitude.astype(np.float64)).max(initial=0))
    else:
        a = low.a.astype(np.float64).reshape(len(low.a), -1)
        b = low.b.astype(np.float64).reshape(len(low.b), -1) * low.scale
        bound = _longest(b, 1) * _longest(a, 0)
        if bound > largest / 2:
            bound = max(float(np.abs(row @ a).max(initial=0)) for row in b)
    factors = np.abs(low.b.astype(np.float64)).max(initial=0) * abs(low.scale)
    return bound <= largest / 2 and float(factors) <= float(np.finfo(np.float32).max)


def _longest(x: np.ndarray, axis: int) -> float:
    return float(np.sqrt((x * x).sum(axis)).max(initial=0))
