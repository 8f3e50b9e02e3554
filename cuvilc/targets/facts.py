"""What a launch must know of a kernel, apart from its code: also what the cache keeps of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuvilc.dialect.dims import Dim, symbols
from cuvilc.dialect.dims_text import parse


@dataclass(frozen=True)
class Facts:
    """One kernel on one level; sizes over the kernel's own symbols.

    scalars: what the launch passes, in this order; the symbol of a part stands for its number among
    the package's. misses: why the schedules tried before did not take it. parts: symbols of the
    functions that it calls (part.py). code: the one of them that is the kernel itself, "" where it
    has a function of its own.
    """

    schedule: str
    scalars: tuple[Dim, ...]
    tasks: Dim
    scratch_bytes: Dim
    flops: Dim
    bytes: Dim
    misses: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    code: str = ""

    def numbered(self) -> list[str]:
        """The parts whose numbers are among the scalars."""
        used = {name for d in self.scalars for name in symbols(d)}
        return [symbol for symbol in self.parts if symbol in used]

    def to_json(self) -> dict[str, Any]:
        values = {k: str(getattr(self, k)) for k in ("tasks", "scratch_bytes", "flops", "bytes")}
        scalars = [str(s) for s in self.scalars]
        return {
            "schedule": self.schedule,
            "scalars": scalars,
            "misses": list(self.misses),
            "parts": list(self.parts),
            "code": self.code,
            **values,
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> Facts:
        sizes = {k: parse(values[k]) for k in ("tasks", "scratch_bytes", "flops", "bytes")}
        scalars = tuple(parse(s) for s in values["scalars"])
        misses, parts = tuple(values["misses"]), tuple(values["parts"])
        return Facts(
            values["schedule"], scalars, misses=misses, parts=parts, code=values["code"], **sizes
        )
