"""Every diagnostic: its code, title and help; how one is carried, rendered and turned into an exit code.

A leaf: imports nothing of the project. Ranges: 1xx import, 2xx dialect, 3xx pass, 4xx schedule, 5xx build,
6xx runtime, 7xx adapters. `cuvilc explain CUVnnn` prints CODES[code].
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Code:
    """`title` is one line, `help` the page that `cuvilc explain` shows."""

    title: str
    help: str
    exit_code: int = 1  # 1 the model or package is at fault, 2 usage, 3 our fault


CODES: dict[str, Code] = {}


def define(code: str, title: str, help: str, exit_code: int = 1) -> str:
    """Register a diagnostic; returns the code, so that modules can name it as a constant."""
    if code in CODES:
        raise ValueError(f"{code} is defined twice")
    CODES[code] = Code(title, help, exit_code)
    return code


@dataclass
class Diagnostic:
    """Fact (`message`), place, evidence, notes, next step. Renders as text or as a JSON object."""

    code: str
    message: str
    place: str = ""
    evidence: str = ""
    notes: list[str] = field(default_factory=list)
    help: str = ""

    def render(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        if self.place:
            lines.append(f"  --> {self.place}")
        lines += [f"   |  {line}" for line in self.evidence.splitlines()]
        lines += [f"   = note: {note}" for note in self.notes]
        lines.append(f"   = help: {self.help or f'see `cuvilc explain {self.code}`'}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v}


class CuvilError(Exception):
    """One or more diagnostics that end the work at hand."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        self.diagnostics = list(diagnostics)
        super().__init__("\n".join(d.render() for d in diagnostics))

    @property
    def exit_code(self) -> int:
        return max(CODES[d.code].exit_code for d in self.diagnostics)


def fail(code: str, message: str, **more: Any) -> CuvilError:
    """`raise fail("CUV104", "…", place=…)`: a CuvilError with one diagnostic."""
    assert code in CODES, code
    return CuvilError(Diagnostic(code, message, **more))
