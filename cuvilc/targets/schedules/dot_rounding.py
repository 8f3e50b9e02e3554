"""Vectors of the left operand as scratch memory holds them for products of groups: float32 rounded,
bytes as they are or widened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import Dots
from cuvilc.targets.region import Emitter
from cuvilc.targets.tir import Buffer, as_expr

VECTOR = 16  # elements: a block of channels, a step of gemm_operands.py's packing


class Rounding:
    """Stores vectors in one instruction where the chip has it (`fast`), else as any value."""

    def __init__(self, emitter: Emitter, chip: Chip, dots: Dots, lanes: str = "vectorized") -> None:
        self.b, self.k, self.dots, self.lanes = emitter.builder, emitter.k, dots, lanes
        text = chip.dots.get(dots.rounds, "")
        self.fast = bool(text) and chip.lanes == VECTOR
        if self.fast:
            self.b.llvm(dots.rounds, text)

    def laid(self, value: Any) -> Any:
        """An element as scratch memory holds it."""
        return value if self.dots.laid == self.dots.left else self.k.cast(value, self.dots.laid)

    def store(self, buffer: Buffer, at: Any, value: Callable[[Any], Any]) -> None:
        """`value(lane)` of VECTOR lanes into elements of the buffer from `at` on."""
        b = self.b
        if not self.fast:
            with b.loop(VECTOR, self.lanes) as lane:
                self.k.store(buffer, at + lane, self.laid(value(lane)), self.dots.laid)
            return
        vector = b.local(VECTOR, "float32")  # in a register, once the function is inlined
        with b.loop(VECTOR, self.lanes) as lane:
            b.store(vector, lane, value(lane))
        call = tirx.call_extern(
            "int32", self.dots.rounds, vector.data, buffer.data, as_expr(b.simplify(at))
        )
        b.emit(tirx.Evaluate(call))
