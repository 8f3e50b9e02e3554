"""Facts about a chip that schedules ask for; they never ask for its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Chip:
    """One CPU level.

    `lanes`: float32 lanes of a vector register; `registers`: vector registers; `features`: what the
    runtime must find, by its names; `llvm`: options of TVM's LLVM target. Cache sizes in bytes are
    those of the smallest common machine of the level.

    `dots`: texts of LLVM functions by name (dots.py), for products of narrow numbers and what goes
    with them, where the chip has better ones than the portable; `fast_dots`: those that are one
    instruction. `base`: the levels that this one refines, nearest first, for kernels of the kinds
    in `refines` (kernels.py, kinds_of) only: others have one code for both.
    """

    name: str
    lanes: int
    registers: int
    features: tuple[str, ...]
    llvm: dict[str, Any] = field(default_factory=dict, hash=False)
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    dots: dict[str, str] = field(default_factory=dict, hash=False)
    fast_dots: tuple[str, ...] = ()
    base: tuple[str, ...] = ()
    refines: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        return feature in self.features
