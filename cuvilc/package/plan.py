"""The execution plan: what the launch level becomes, and what package/image.py writes for the
runtime.

Every size is a `Dim` over the plan's symbols. The record layout on disk is runtime/src/image.h.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from cuvilc.dialect.dims import Dim, Expr, substitute

# The symbol that stands for the number of the CPU level in use: levels may divide a kernel into
# other tasks.
CPU_LEVEL = "cpu_level"
# The symbol of the table of functions that kernels call by number.
PART_TABLE = "cuvil_part_table"
TYPICAL_RANK = 8  # of adapters, where one must be told beforehand


class BufferKind(IntEnum):
    ARENA = 0
    WEIGHT = 1
    INPUT = 2
    OUTPUT = 3
    HEAP = 4
    ADAPTED = 5
    PREPARED = 6


class StepKind(IntEnum):
    KERNEL = 0
    COPY = 1
    DIMS = 2
    BRANCH = 3
    JUMP = 4
    REQUIRE = 5
    BIND = 6
    PREPARE = 7


@dataclass(frozen=True)
class Level:
    """One variant of all kernels, for CPUs with all `features` (the runtime's names: "avx512f")."""

    name: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class Symbol:
    """A symbolic dimension, lo..hi inclusive, bound at run time to `axis` of input `input`.

    With input -1 it is computed: a BIND step gives it its value while the model runs. Computed
    symbols come last in the plan, in the order in which the program first binds them.
    """

    name: str
    input: int = -1
    axis: int = 0
    lo: int = 0
    hi: int | None = None

    @property
    def computed(self) -> bool:
        """Whether a BIND step gives it its value, not an input's shape."""
        return self.input == -1


@dataclass(frozen=True)
class Port:
    """An input or output of the model: NumPy's or ml_dtypes' dtype name, shape, buffer number."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    buffer: int


@dataclass(frozen=True)
class Buffer:
    """`place`: arena offset in bytes (a Dim), key of a weight, number of an input, an output or (of
    an ADAPTED buffer) an exchangeable weight, offset in bytes in prepared memory, or, of a HEAP
    buffer, the slot's number and the offset in it in bytes.

    A heap slot is a block of its own that grows to hold its buffers, and keeps what is in it.
    """

    kind: BufferKind
    bytes: Dim
    place: Dim | str | tuple[int, Dim]


@dataclass(frozen=True)
class Part:
    """What an exchangeable weight holds of one module: `size` outputs from `start` on."""

    module: str
    parameter: str
    kind: str
    start: int
    size: int


@dataclass(frozen=True)
class Adaptable:
    """A weight that adapters may exchange: logical shape, dtype and layout, the axis of its
    outputs.

    `weight`: its key among the weights. `kernel`: number of the kernel that merges factors into it;
    None: it is exchanged whole.
    """

    weight: str
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    layout: str
    out_axis: int
    parts: tuple[Part, ...]
    kernel: int | None = None

    def describe(self) -> dict[str, Any]:
        """For the metadata, and for the fingerprint that adapters carry."""
        parts = [
            {"module": p.module, "parameter": p.parameter, "kind": p.kind, "start": p.start,
             "size": p.size}
            for p in self.parts
        ]  # fmt: skip
        return {
            "weight": self.weight, "shape": list(self.shape), "dtype": self.dtype,
            "layout": self.layout, "out_axis": self.out_axis, "merged": self.kernel is not None,
            "parts": parts,
        }  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One entry of the program. `target`: kernel number, step number for BRANCH and JUMP, number of
    the symbol for BIND.

    BRANCH jumps when the bool in its buffer is false or, without a buffer, when its scalar is 0.
    REQUIRE: its one scalar must not be 0; `name` is what to say then.
    PREPARE: a kernel that runs when the package is opened. These come first.
    BIND: the computed symbol becomes its one scalar or, with a buffer, the element of that number
    of the buffer, which holds int64. Everything that follows from the symbol is sized anew.
    """

    kind: StepKind
    target: int = 0
    buffers: tuple[int, ...] = ()
    scalars: tuple[Dim, ...] = ()
    tasks: Dim = 1
    scratch_bytes: Dim = 0
    cost: Dim = 0
    name: str = ""
    layer: str = ""


@dataclass
class Plan:
    """A whole model. `kernels[i]` is the name of kernel i; for each level the objects define the
    symbol that `codes` has for it, by default `kernel_symbol(name, i)`. `parts`: symbols of the
    functions that kernels call by number.
    """

    symbols: list[Symbol] = field(default_factory=list)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    adaptable: list[Adaptable] = field(default_factory=list)
    hidden_inputs: int = 0  # the last of them: the runtime sets them itself
    arena_bytes: Dim = 0
    codes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)

    def visible(self) -> tuple[Plan, dict[str, int]]:
        """The plan as a user sees it, without inputs of the runtime's own, and typical values of
        the symbols that are read from those.
        """
        count = len(self.inputs) - self.hidden_inputs
        own = [s for s in self.symbols if not s.computed and s.input >= count]
        typical = {s.name: TYPICAL_RANK for s in own}
        if not typical:
            return self, {}

        def known(d: Any) -> Any:
            return substitute(d, typical) if isinstance(d, Expr) else d

        return replace(
            self,
            inputs=self.inputs[:count],
            symbols=[s for s in self.symbols if s not in own],
            buffers=[replace(b, bytes=known(b.bytes), place=_known(b.place, known))
                     for b in self.buffers],
            steps=[replace(s, tasks=known(s.tasks), scratch_bytes=known(s.scratch_bytes),
                           cost=known(s.cost)) for s in self.steps],
            arena_bytes=known(self.arena_bytes),
        ), typical  # fmt: skip

    @property
    def prepared_bytes(self) -> int:
        """Of the memory that PREPARE steps fill."""
        ends = [
            b.place + b.bytes
            for b in self.buffers
            if b.kind == BufferKind.PREPARED and isinstance(b.place, int)
            and isinstance(b.bytes, int)
        ]  # fmt: skip
        return max(ends, default=0)

    def code_symbol(self, kernel: str, level: int) -> str:
        """The symbol of the code that a level runs."""
        codes = self.codes.get(kernel)
        return codes[level] if codes else kernel_symbol(kernel, level)


def _known(place: Any, known: Any) -> Any:
    """A buffer's place with typical sizes in it."""
    return (place[0], known(place[1])) if isinstance(place, tuple) else known(place)


def kernel_symbol(kernel: str, level: int) -> str:
    """The symbol that an object defines for `kernel` as compiled for level number `level`."""
    return f"{kernel}__L{level}"
