"""What a pass may ask about the target, and where it writes what it did and what it refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cuvilc.dialect import ir
from cuvilc.dialect.lora_values import Loss
from cuvilc.dialect.types import PANEL


class Miss(Exception):
    """Why a rule does not apply where its pattern matched. Raised before anything is changed."""


@dataclass(frozen=True)
class Missed:
    """One refusal, as `--explain-fusion` prints it: the rule, the layer, the reason."""

    rule: str
    place: str
    why: str


@dataclass(frozen=True)
class MergedWeight:
    """A weight that merge-lora folded adapters into: whose they are, and what storing it lost.

    key: of the base weight. changes: (adapter, module). dtype, size_bytes: as it is stored.
    """

    key: str
    changes: tuple[tuple[str, str], ...]
    dtype: str
    size_bytes: int
    loss: Loss


@dataclass
class PassContext:
    """Facts about the target, options, and the log of one run through the pipeline.

    panel: columns of a packed GEMM weight panel. channel_block: channels of a blocked layout.
    precision: "bf16": see narrow-weights.
    math_exact: leave out raise-patterns, fold-batch-norm and choose-convolutions, which may change
    a float's last bits.
    fusion: whether rules may join operations into one kernel: see fuse.
    prefer: "size", "balanced" or "speed", where one costs the other: see choose-convolutions.
    memory_bytes_per_step: what comes from memory while a core does one multiply-add of
    `vector_lanes` floats, on a chip as packages are made for.
    merged: the weights with adapters in them. progress(done, of, what): told by passes that take
    long.
    """

    panel: int = PANEL
    channel_block: int = 16
    math_exact: bool = False
    precision: str = ""
    fusion: bool = True
    prefer: str = "balanced"
    vector_lanes: int = 16
    memory_bytes_per_step: float = 7.0
    misses: list[Missed] = field(default_factory=list)
    applied: Counter[str] = field(default_factory=Counter)
    merged: list[MergedWeight] = field(default_factory=list)
    progress: Callable[[int, int, str], None] | None = None
    _seen: set[Missed] = field(default_factory=set, repr=False)

    def fills_blocks(self, outputs: int, channels: int, groups: int) -> bool:
        """Whether a convolution's groups, of `channels` inputs each, are whole blocks of channels;
        a single group need not be.
        """
        block = self.channel_block
        return groups == 1 or (channels % block == 0 and outputs // groups % block == 0)

    def miss(self, rule: str, operation: ir.Operation, why: str) -> None:
        """Record a refusal once."""
        missed = Missed(rule, ir.source_name(operation) or operation.name, why)
        if missed not in self._seen:
            self._seen.add(missed)
            self.misses.append(missed)

    def apply(self, rule: str, count: int = 1) -> None:
        self.applied[rule] += count

    def why(self, rule: str) -> Sequence[str]:
        """The reasons recorded for one rule."""
        return [m.why for m in self.misses if m.rule == rule]
