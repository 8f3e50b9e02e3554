"""Quantised results of a convolution, stored four pixels at a time by a function of the chip.

Four vectors of 16 float32, the quotients that ai.quantize_linear rounds, become 64 bytes: rounding,
zero point and saturation are one instruction a vector each, or less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import product
from cuvilc.dialect.types import channel_block
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import STORES_LEVELS, TURN_DWORDS
from cuvilc.targets.region import Emitter
from cuvilc.targets.schedules.conv_window import BLOCK
from cuvilc.targets.tir import Buffer, as_expr

TOGETHER = 4  # pixels


class LevelStore:
    """Stores the region's one result, an ai.quantize_linear."""

    def __init__(self, emitter: Emitter, quantisation: Any, chip: Chip) -> None:
        self.emitter, self.b, self.k = emitter, emitter.builder, emitter.k
        self._x, self._scale, self._zero = quantisation.operands
        self._type = ir.type_of(quantisation.results[0])
        self._function = STORES_LEVELS[self._type.dtype]
        for name in (TURN_DWORDS, self._function):
            self.b.llvm(name, chip.dots[name])

    @staticmethod
    def of(emitter: Emitter, chip: Chip) -> LevelStore | None:
        """For this region, if it ends so and the chip has the function."""
        region = emitter.region
        last = [o for o in region.operations if o.results[0] in region.results]
        if len(region.results) != 1 or [o.name for o in last] != ["ai.quantize_linear"]:
            return None
        (quantisation,) = last
        t, attrs = ir.type_of(quantisation.results[0]), ir.attrs(quantisation)
        one = product(ir.type_of(quantisation.operands[1]).shape) == 1
        fits = one and attrs["precision"] == "float32" and not attrs["block"]
        fits = fits and STORES_LEVELS.get(t.dtype) in chip.dots
        if not fits or not t.layout or channel_block(t.layout) != BLOCK:
            return None
        return LevelStore(emitter, quantisation, chip)

    def quotient(self, index: Sequence[Any]) -> Any:
        """What is rounded at a logical index, once the anchor's value there is defined."""
        x = self.k.cast(self.emitter.accessor(self._x)[tuple(index)], "float32")
        return self.k.div(x, self.k.cast(self._number(self._scale), "float32"))

    def _number(self, value: Any) -> Any:
        number = self.emitter.accessor(value)
        return number[(0,) * len(number.shape)]

    def store(self, quotients: Buffer, first: Any, index: Sequence[Any]) -> None:
        """Those of TOGETHER pixels from element `first` of a local array on, to a channel of lane 0
        and the pixels from `index` on, which lie side by side.
        """
        emitter, b = self.emitter, self.b
        result = b.buffer(len(emitter.region.arguments), self._type.dtype)
        at = b.simplify(self.k.flat_index(self._type, index))
        zero = self.k.cast(self._number(self._zero), "int32")
        call = tirx.call_extern(
            "int32", self._function, quotients.data, as_expr(first), result.data, as_expr(at), zero
        )
        b.emit(tirx.Evaluate(call))
