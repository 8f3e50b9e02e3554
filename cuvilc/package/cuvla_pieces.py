"""Changes to weights as kernels read them: factors in panels of 32 outputs, gains and biases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuvilc.adapter import LowRank, ModuleChange, Rows
from cuvilc.diagnostics import fail
from cuvilc.dialect import lora_values
from cuvilc.dialect.lora_codes import NO_PLACE
from cuvilc.dialect.types import PANEL
from cuvilc.package.plan import Adaptable, Part

Array = NDArray[Any]


@dataclass(frozen=True)
class Piece:
    """Factors of one part in the package's panels: a [r, rows], b [panels, r, 32]; gain and bias
    [32 · panels].
    """

    module: str
    a: NDArray[np.float32]
    b: NDArray[np.float32]
    gain: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None
    first: int

    @property
    def end(self) -> int:
        return self.first + len(self.b)


def piece_of(
    site: Adaptable,
    part: Part,
    low: LowRank | None,
    bias: Array | None,
    read: Callable[[], Array],
) -> Piece:
    """low: None where only a bias changes. read: the weight as the package has it."""
    a, b = np.zeros((0, prod(site.shape) // site.shape[site.out_axis])), np.zeros((part.size, 0))
    gain = None
    if low is not None:
        a = np.asarray(low.a, np.float64).reshape(len(low.a), -1)
        b = np.asarray(low.b, np.float64).reshape(part.size, -1) * low.scale
    if low is not None and low.magnitude is not None:
        gain = np.asarray(low.magnitude, np.float64).reshape(-1)
        gain = gain / _norms(read(), site, part, low)
        b = b * gain[:, None]
    whole = site.layout == ""  # a row-major weight is merged as a whole
    begin = 0 if whole else part.start // PANEL
    end = -(-(site.shape[site.out_axis] if whole else part.start + part.size) // PANEL)

    def columns(values: Array, others: float) -> NDArray[np.float32]:
        made = np.full(((end - begin) * PANEL, *values.shape[1:]), others, np.float32)
        at = part.start - begin * PANEL
        made[at : at + part.size] = values
        return made

    panels = columns(b, 0).reshape(end - begin, PANEL, b.shape[1]).transpose(0, 2, 1)
    return Piece(
        part.module, a.astype(np.float32), np.ascontiguousarray(panels),
        None if gain is None else columns(gain, 1), None if bias is None else columns(bias, 0),
        begin,
    )  # fmt: skip


def row_factors(site: Adaptable, part: Part, rows: Rows, base: Array) -> LowRank:
    """The change to rows of a table, or to outputs of a head, as factors; one has the indices."""
    weight = np.moveaxis(np.asarray(base, np.float64), site.out_axis, 0)
    weight = weight[part.start : part.start + part.size]  # [N, others]
    table = weight.T if part.kind == "embedding" else weight
    count = len(rows.indices)
    delta = np.asarray(rows.values, np.float64) - table[list(rows.indices)]
    places = np.zeros((count, len(table)), np.float32)
    places[range(count), list(rows.indices)] = 1
    a, b = (places, delta.T) if part.kind == "embedding" else (delta, places.T)
    return LowRank(a, b, 1.0, count, count)


def values_of(part: Part, low: LowRank) -> lora_values.Part:
    """The factors as `lora_values` adds them to a weight."""
    a, b = (np.asarray(m).reshape(len(m), -1) for m in (low.a, low.b))
    magnitude = None if low.magnitude is None else np.asarray(low.magnitude).reshape(-1)
    return lora_values.Part(a, b, magnitude, low.scale, part.start, module=part.module)


def _norms(weight: Array, site: Adaptable, part: Part, low: LowRank) -> NDArray[np.float64]:
    """‖W + ΔW‖ of each output of the part."""
    target = lora_values.Target(site.shape, site.out_axis, [values_of(part, low)])
    target.measure(weight.reshape(target.view))
    return target.norms[0]


def separate(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces that share no panel: those that meet in one become one piece of all their ranks."""
    joined: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: p.first):
        if joined and piece.first < joined[-1].end:
            joined[-1] = _both(joined[-1], piece)
        else:
            joined.append(piece)
    return joined


def _both(x: Piece, y: Piece) -> Piece:
    first, end = min(x.first, y.first), max(x.end, y.end)
    b = np.zeros((end - first, len(x.a) + len(y.a), PANEL), np.float32)
    b[x.first - first : x.end - first, : len(x.a)] = x.b
    b[y.first - first : y.end - first, len(x.a) :] = y.b

    def line(mine: Array | None, theirs: Array | None, none: float) -> Array | None:
        if mine is None and theirs is None:
            return None
        made = np.full((end - first) * PANEL, none, np.float32)
        for p, part in ((x, mine), (y, theirs)):
            span = slice((p.first - first) * PANEL, (p.end - first) * PANEL)
            if part is not None:  # outputs of neither part are `none` in both
                made[span] = made[span] * part if none else made[span] + part
        return made

    gain, bias = line(x.gain, y.gain, 1), line(x.bias, y.bias, 0)
    return Piece(f"{x.module} + {y.module}", np.concatenate([x.a, y.a]), b, gain, bias, first)


def merged(
    site: Adaptable, parts: Sequence[Part], changes: Mapping[str, ModuleChange], base: Array
) -> NDArray[np.float64]:
    """The weight with all changes in float64."""
    made = np.array(base, np.float64)
    line = np.moveaxis(made, site.out_axis, 0) if made.ndim else made.reshape(1)
    adapted = []
    for part in parts:
        change, span = changes[part.module], slice(part.start, part.start + part.size)
        low = change.low_rank
        if part.parameter in change.replaced:
            value = np.asarray(change.replaced[part.parameter])
            if part.parameter == "weight":
                value = lora_values.outputs_first(
                    value, part.kind, part.size, change.fan_in_fan_out
                )
            value = value.reshape(line[span].shape)
            if part.kind == "linear" and lora_values.is_turned(value, line[span]):
                raise fail(NO_PLACE, f"`{part.module}`: {lora_values.TURNED}")
            line[span] = value
        if change.rows is not None and part.parameter == "weight":
            own = made.swapaxes(0, site.out_axis)[span].swapaxes(0, site.out_axis)
            lora_values.set_rows(own, part.kind, site.out_axis, change.rows)
        if low is not None and part.parameter == "bias" and low.bias is not None:
            line[span] += np.asarray(low.bias, np.float64).reshape(line[span].shape) * low.scale
        if low is not None and part.parameter == "weight":
            adapted.append(values_of(part, low))
    if adapted:
        made, _ = lora_values.merge(made, site.out_axis, adapted)
    return made
