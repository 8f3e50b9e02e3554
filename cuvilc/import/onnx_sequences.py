"""Sequences and optionals during import: they exist only there, what a package holds is tensors.

A sequence is a list of parts. A part is one tensor, or the slices of a tensor: what a loop
appended, one each round, or what a tensor was split into. How many there are may be known only
while the model runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvilc.dialect.dims import Dim, ceildiv
from cuvilc.dialect.op import ShapeError

from .onnx_values import Val


@dataclass(frozen=True)
class Slices:
    """The elements of a sequence that are `step` long slices of a tensor along `axis`, one after
    the other; the last may be shorter. Without `keep` (then the step is 1) they lack the axis.
    """

    val: Val
    axis: int = 0
    step: int = 1
    keep: bool = False

    @property
    def count(self) -> Dim:
        return ceildiv(self.val.shape[self.axis], self.step)


@dataclass(frozen=True)
class Woven:
    """The elements of a sequence that are the rows of several tensors in turn: a[0], b[0], a[1], …
    What a loop appended that takes in several tensors each round, not surely of one shape.
    """

    vals: tuple[Val, ...]

    @property
    def count(self) -> Dim:
        return self.vals[0].shape[0] * len(self.vals)


Part = Val | Slices | Woven


class SequenceVal(Val):
    """A sequence. `round_of` is the loop that carries it, while the loop's body is imported: then
    `parts` holds what this round has appended to what came in.
    """

    __slots__ = ("parts", "round_of")

    def __init__(self, parts: Sequence[Part], round_of: Any = None) -> None:
        super().__init__((), "sequence")
        self.parts = list(parts)
        self.round_of = round_of

    @property
    def spelled(self) -> str:
        return "sequence"

    def length(self) -> Dim:
        """How many elements. ShapeError inside a loop that carries the sequence along."""
        self.require_whole()
        total: Dim = 0
        for part in self.parts:
            total = total + (1 if isinstance(part, Val) else part.count)
        return total

    def items(self) -> list[Val]:
        """The elements, where each is a tensor of its own. ShapeError otherwise."""
        self.require_whole()
        if not all(isinstance(part, Val) for part in self.parts):
            raise ShapeError("the sequence's length is known only while the model runs")
        return [part for part in self.parts if isinstance(part, Val)]

    def appended(self, val: Val) -> SequenceVal:
        return SequenceVal([*self.parts, val], self.round_of)

    def require_whole(self) -> None:
        if self.round_of is not None:
            raise ShapeError("a loop may only append to a sequence that it carries along")

    def materialise(self, program: Any) -> Any:
        raise ShapeError("a sequence stands where a tensor is needed")


class OptionalVal(Val):
    """An optional: `item` is None when it is empty."""

    __slots__ = ("item",)

    def __init__(self, item: Val | None) -> None:
        super().__init__((), "optional")
        self.item = item

    @property
    def spelled(self) -> str:
        return "optional"

    def materialise(self, program: Any) -> Any:
        raise ShapeError("an optional stands where a tensor is needed")


def tensors_of(name: str, val: Val) -> list[tuple[str, Val]]:
    """The tensors that stand for a value at a package's boundary, by name.

    A sequence's elements are NAME.0, NAME.1, …; one whose length is known only while the model runs
    is the stack NAME of its elements. An absent optional is nothing. ShapeError for others.
    """
    if isinstance(val, OptionalVal):
        return [] if val.item is None else tensors_of(name, val.item)
    if not isinstance(val, SequenceVal):
        return [(name, val)]
    if len(val.parts) == 1 and isinstance(val.parts[0], Slices) and val.parts[0].axis == 0:
        return [(name, val.parts[0].val)]
    return [(f"{name}.{i}", item) for i, item in enumerate(val.items())]


def known(value: Any, dtype: str, key: str) -> Val:
    """A scalar with known content."""
    content = np.empty((), object)
    content[()] = value
    return Val.known(content, dtype, key)
