"""Every diagnostic: its code, title and help; how one is carried, rendered, made an exit code.

A leaf: imports nothing of the project. Ranges: 1xx import, 2xx dialect, 3xx pass, 4xx schedule,
5xx build, 6xx runtime, 7xx adapters, 9xx cuvilc itself. `cuvilc explain CUVnnn` prints a code's
page.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
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


INTERNAL = define(
    "CUV900",
    "internal error",
    """\
cuvilc met something that its authors did not foresee. The fault is not yours. A report file was
written, and its path stands in the message: it holds the traceback, the versions and the command
line; where a model was being compiled, a reproducer (.mlir, without the weights) stands beside
it.

Next step: report it with these files. Both are plain text: look through them for names you would
rather not publish. A build that fails this way leaves no package, and an older one at the
destination stays.
""",
    exit_code=3,
)


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


def internal_error(
    error: BaseException, report: Path, facts: dict[str, str], notes: list[str] | None = None
) -> CuvilError:
    """CUV900 for an exception that nobody foresaw; the traceback goes to the file `report`.

    `facts` (command line, versions, phase) head the file. Where it cannot be written, a temporary
    folder serves.
    """
    import traceback  # noqa: PLC0415  (only when something went wrong)

    lines = [f"{key}: {value}" for key, value in facts.items()]
    text = "\n".join([*lines, "", *traceback.format_exception(error)])
    kind = type(error).__name__
    first = next(iter(str(error).splitlines()), "")
    return fail(
        INTERNAL,
        f"internal error: {kind}: {first}" if first else f"internal error: {kind}",
        place=facts.get("phase", ""),
        evidence=_last_frame(error),
        notes=[f"report: {write_report(report, text)}", *(notes or [])],
        help="please report it with these files; see `cuvilc explain CUV900`",
    )


def write_report(path: Path, text: str) -> Path:
    """Write a report beside what was to be made, or where that fails in a temporary folder."""
    import tempfile  # noqa: PLC0415

    try:
        path.write_text(text, "utf-8", "replace")
        return path
    except OSError:
        fallback = Path(tempfile.mkdtemp(prefix="cuvilc-")) / path.name
        fallback.write_text(text, "utf-8", "replace")
        return fallback


def _last_frame(error: BaseException) -> str:
    """Where it happened: `module.py:12 in function`, the innermost frame of our own."""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        path = Path(code.co_filename)
        if not found or "cuvilc" in path.parts:
            found = f"{path.name}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return found
