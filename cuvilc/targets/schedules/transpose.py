"""Tiles for regions whose innermost axis is strided in an operand: both sides then touch whole cache lines."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect.dims import Dim
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter


def suits(piece: Any) -> bool:
    """Whether tiles pay."""
    return False


def tasks(piece: Any) -> Dim:
    raise NotImplementedError


def emit(emitter: Emitter, piece: Any, t: Any, chip: Chip, vector: bool) -> None:
    raise NotImplementedError
