"""All that is wrong with an adapter, gathered, so that it is told in one go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cuvilc.diagnostics import CuvilError, Diagnostic

_SHOWN = 12  # of one code: a file of which all is wrong is not told line by line


@dataclass
class Problems:
    """`place`: the file that they are in. `first`: what is said before all of them; of an adapter
    of another model instead of them.
    """

    place: str
    found: dict[str, list[Diagnostic]] = field(default_factory=dict)
    first: list[Diagnostic] = field(default_factory=list)

    def add(self, code: str, message: str, **more: Any) -> None:
        self.put(Diagnostic(code, message, self.place, **more))

    def put(self, diagnostic: Diagnostic) -> None:
        self.found.setdefault(diagnostic.code, []).append(diagnostic)

    def settle(self) -> None:
        """Raise what was found, if anything was."""
        shown: list[Diagnostic] = [*self.first]
        told = {d.place for d in self.first}
        for code in sorted(self.found):
            same = [d for d in self.found[code] if d.place not in told]
            if len(same) > _SHOWN:
                same[_SHOWN - 1].notes.append(f"and {len(same) - _SHOWN} more of this kind")
            shown += same[:_SHOWN]
        if shown:
            raise CuvilError(*shown)
