"""Functions that kernels call: each is compiled once, however many kernels of a package share it.

A kernel's code is as long to compile as it is; what its layers have in common, and takes their
sizes as arguments, is compiled for all of them at once. A part may be a whole kernel, which finds
the sizes of its layer among the launch's scalars (Facts.code); it then calls those parts that
differ from layer to layer by number, which is a scalar too: `symbol(part.symbol)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import PointerType, PrimType, Var

from cuvilc.package.plan import PART_TABLE
from cuvilc.targets.chip import Chip
from cuvilc.targets.tir import Buffer, KernelBuilder, PrimExpr, as_expr, var


@dataclass(frozen=True)
class Part:
    """`symbol` says all that decides the code; `build()` makes it (tirx.PrimFunc)."""

    symbol: str
    build: Callable[[], Any]


def part(chip: Chip, build: Callable[[Chip, str], Any], name: str, *decides: int) -> Part:
    """The part that `build(chip, symbol)` makes, where `decides` and the chip decide its code."""
    words = ["part", name, *map(str, decides), chip.name]
    symbol = "_".join(words).replace("-", "_")
    return Part(symbol, lambda: build(chip, symbol))


_TABLE = f"@{PART_TABLE} = external hidden global [0 x ptr]\n"
_CALL = """
define linkonce_odr hidden i32 @{name}({parameters}) alwaysinline {{
  %p = getelementptr ptr, ptr @{table}, i64 %n
  %f = load ptr, ptr %p, align 8, !invariant.load !0
  %r = call i32 %f({arguments})
  ret i32 %r
}}
"""


def call_numbered(
    b: KernelBuilder, number: Any, buffers: Sequence[Buffer], indices: Sequence[Any]
) -> None:
    """Call the part of that number with the addresses of buffers, then with indices."""
    name = f"cuvil_call_{len(buffers)}_{len(indices)}"
    arguments = [f"ptr %a{i}" for i in range(len(buffers))]
    arguments += [f"i64 %i{i}" for i in range(len(indices))]
    words = {"parameters": ", ".join(["i64 %n", *arguments]), "arguments": ", ".join(arguments)}
    b.llvm(PART_TABLE, _TABLE)
    b.llvm(name, _CALL.format(table=PART_TABLE, name=name, **words))
    values = [as_expr(number), *(each.data for each in buffers), *map(as_expr, indices)]
    b.emit(tirx.Evaluate(tirx.call_extern("int32", name, *values)))


class PartBuilder(KernelBuilder):
    """Builds a part, statement by statement, as a kernel is built.

    Its parameters are in the order in which they are asked for; callers pass them so. Memory that
    pointers lead to must not overlap.
    """

    def __init__(self, symbol: str) -> None:
        super().__init__(symbol)
        self.uses_half = False
        self._parameters: list[Any] = []

    def floats(self, *names: str) -> list[Buffer]:
        """Parameters that are addresses of float32, as flat buffers."""
        return self.buffers("float32", *names)

    def buffers(self, dtype: str, *names: str) -> list[Buffer]:
        """Parameters that are addresses, as flat buffers."""
        made = []
        for name in names:
            pointer = Var(name, PointerType(PrimType(dtype)))
            found = tirx.decl_buffer((1 << 40,), dtype, name=f"{name}_", layout=None)
            self._parameters.append(pointer)
            self._head.append(tirx.DeclBuffer(found, data=pointer))
            made.append(found)
        return made

    def indices(self, *names: str) -> list[PrimExpr]:
        """Parameters that are int64."""
        made = [var(name) for name in names]
        self._parameters += made
        return made

    def finish(self) -> Any:
        """The function. Call once, when all statements are there."""
        return self._function(self._parameters, [], self.name)
