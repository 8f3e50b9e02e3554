"""Adapters of packages for batches: weights stay, so all is factors and differences of biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuvilc.adapter import LowRank, ModuleChange
from cuvilc.package.cuvla_pieces import Piece, merged, piece_of, row_factors
from cuvilc.package.plan import Adaptable, Part

Array = NDArray[Any]


def pieces_of_rows(
    number: int,
    site: Adaptable,
    changes: Mapping[str, ModuleChange],
    table: Sequence[Adaptable],
    read: Callable[[int], Array],
) -> list[Piece]:
    """What adapters of rows change in the outputs of one layer."""
    pieces = []
    for part in site.parts if site.kernel is not None else ():
        change = changes.get(part.module)
        if change is None:
            continue
        low = change.low_rank if part.parameter == "weight" else None
        if part.parameter == "weight" and "weight" in change.replaced:
            low = _exact_factors(site, part, changes, read(number))
        if part.parameter == "weight" and change.rows is not None:
            low = row_factors(site, part, change.rows, read(number))
        bias = None
        if part.parameter == "bias" or not _has_own_table(part.module, table):
            bias = _bias_change(part, change, table, read)
        if low is not None or bias is not None:
            pieces.append(piece_of(site, part, low, bias, lambda: read(number)))
    return pieces


def _exact_factors(
    site: Adaptable, part: Part, changes: Mapping[str, ModuleChange], base: Array
) -> LowRank:
    """The change ΔW [N, K] to a replaced weight as factors, one of which is the identity."""
    made = merged(site, [part], changes, base)
    own = slice(part.start, part.start + part.size)
    delta = np.moveaxis(made, site.out_axis, 0)[own] - np.moveaxis(base, site.out_axis, 0)[own]
    n, k = delta.shape
    a, b = (delta, np.eye(n)) if n < k else (np.eye(k), delta)
    return LowRank(a, b, 1.0, len(a), len(a))


def _has_own_table(module: str, table: Sequence[Adaptable]) -> bool:
    """Whether the module's bias is not its weight's line of outputs, but changed for itself."""
    own = (module, "bias")
    return any(
        site.kernel is not None and own in [(p.module, p.parameter) for p in site.parts]
        for site in table
    )


def _base_bias(
    module: str, table: Sequence[Adaptable], read: Callable[[int], Array]
) -> NDArray[np.float64]:
    number, part = next(
        (i, p)
        for i, site in enumerate(table)
        for p in site.parts
        if (p.module, p.parameter) == (module, "bias")
    )
    line = np.asarray(read(number), np.float64).reshape(-1)
    return line[part.start : part.start + part.size]


def _bias_change(
    part: Part, change: ModuleChange, table: Sequence[Adaptable], read: Callable[[int], Array]
) -> NDArray[np.float64] | None:
    """What is added to the outputs besides the base's own bias; None if nothing is."""
    low, new = change.low_rank, change.replaced.get("bias")
    total = np.zeros(part.size)
    if new is not None:
        total += np.asarray(new, np.float64).reshape(-1) - _base_bias(part.module, table, read)
    if low is not None and low.bias is not None:
        total += np.asarray(low.bias, np.float64).reshape(-1) * low.scale
    return total if new is not None or (low is not None and low.bias is not None) else None
