"""Sites: where the parameters that an adapter changes stand in an imported program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import ir


@dataclass(frozen=True)
class Site:
    """One parameter of one module of the base model.

    module: its path, as the adapter spells it. parameter: "weight", "bias", or another's name.
    kind: "linear", "convolution", "embedding", "" for any other parameter.
    value: the SSA value that is the parameter: an ai.constant (or the ai.dequantize_linear of
    one), before any transpose, reshape or cast that the exporter left.
    uses: the uses of `value` (operation, operand index) that belong to this module; of a weight
    tied to other modules' only its own.
    out_axis: the axis of `value` that holds the module's N outputs: 0 for torch's [N, K] and
    [N, K / groups, *kernel], 1 for [K, N]; the width D of an embedding table [V, D] is axis 1.
    start, size: the part of out_axis that is this module's: all of it, or its part of a merged
    matrix (Q, K, V).
    evidence: why this value was taken, in words for reports.
    """

    module: str
    parameter: str
    kind: str
    value: ir.Value
    uses: tuple[ir.Use, ...]
    out_axis: int
    start: int
    size: int
    evidence: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's own sizes, of all modules that share it; asked for in `with program`."""
        sizes = ir.type_of(self.value).shape
        return tuple(d for d in sizes if isinstance(d, int))

    @property
    def is_whole(self) -> bool:
        """The module owns all of the value, not a part of a merged one; in `with program`."""
        return self.start == 0 and self.size == self.shape[self.out_axis]


@dataclass(frozen=True)
class Sites:
    """All sites of a build, in the order of the changes; several of one parameter only where the
    graph holds it several times. others: the model's modules with a weight that is no site's.
    tied: (adapter, module, other): the other has the module's table, and so the adapter's rows."""

    sites: tuple[Site, ...]
    others: tuple[str, ...] = ()
    tied: tuple[tuple[str, str, str], ...] = ()

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def numbered(self, module: str, parameter: str) -> list[tuple[int, Site]]:
        """The sites of one parameter, each with its number among all."""
        wanted = (module, parameter)
        return [(n, s) for n, s in enumerate(self.sites) if (s.module, s.parameter) == wanted]
