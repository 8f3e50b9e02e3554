"""Kinds of products of narrow numbers that a chip may have an instruction for.

Without TVM: what says which levels refine a kernel needs them too.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

GROUP_BYTES = 4


@dataclass(frozen=True)
class Dots:
    """A kind of products: `matmul` and `conv` are its operations, `left` and `right` the dtypes of
    the operands, `laid` that of the left one in scratch memory, `sums` that of the sums; `function`
    adds a group's. Where a chip has them, `lanes` does so lane by lane, and `turns` makes a group
    of the i-th bytes of four rows; `rounds` makes `left` of a vector of float32, `pairs` groups of
    two such.
    """

    matmul: str
    conv: str
    left: str
    right: str
    sums: str
    function: str
    laid: str
    rounds: str = ""
    pairs: str = ""
    lanes: str = ""
    turns: str = ""

    @property
    def item(self) -> int:
        """Bytes of an element that lies in scratch memory."""
        return 1 if self.laid == "uint8" else 2

    @property
    def group(self) -> int:
        """Elements."""
        return GROUP_BYTES // (1 if self.right == "int8" else 2)

    @property
    def group_bytes(self) -> int:
        """Of a group of the left operand in scratch memory; of the right one it is GROUP_BYTES."""
        return self.group * self.item

    def on(self, functions: Container[str]) -> Dots:
        """The kind as a chip with these functions multiplies it best."""
        return WORDS if self is BYTES and WORDS.function in functions else self

    @property
    def label(self) -> str:
        return "int8" if self.sums == "int32" else "bf16"


BYTES = Dots(
    "ai.matmul_integer", "ai.conv_integer", "uint8", "int8", "int32", "cuvil_dot", "uint8",
    lanes="cuvil_dot_lanes", turns="cuvil_turn_bytes",
)  # fmt: skip
HALVES = Dots(
    "ai.matmul_mixed", "ai.conv_mixed", "bfloat16", "bfloat16", "float32", "cuvil_dot_bf16",
    "bfloat16", "cuvil_round_bf16", "cuvil_pair_bf16",
)  # fmt: skip
KINDS = (BYTES, HALVES)
# BYTES where no instruction multiplies groups of bytes: both operands are widened to 16 bits, the
# left one when it is copied, the right one when it is loaded.
WORDS = replace(BYTES, function="cuvil_dot_words", laid="int16", lanes="", turns="")
# Two of 16 bits by two, both as they are multiplied (schedules/conv_words.py).
PAIRS = Dots("", "", "int16", "int16", "int32", "cuvil_dot_pairs", "int16")
# 16 dwords as a matrix of 4 by 4, transposed; `turns` and the functions below call it.
TURN_DWORDS = "cuvil_turn_dwords"
# y[i] = table[x[i]] of a table of 256 bytes, for blocks of LOOK_UP_BLOCK.
LOOK_UP, LOOK_UP_BLOCK = "cuvil_look_up", 64
# Functions that store quantised float32, by dtype (schedules/conv_levels.py).
STORES_LEVELS = {"uint8": "cuvil_store_levels_uint8", "int8": "cuvil_store_levels_int8"}
