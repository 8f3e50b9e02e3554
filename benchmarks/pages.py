"""Output that stands between marks in a page: `<!-- NAME: begin -->`, `<!-- NAME: end -->`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("README.md")
# Options that say where output goes, and how many values each takes; a page names no folders.
WHERE = {"--out": 1, "--folder": 1, "--json": 0, "--readme": 0, "--write": 0, "--section": 1}


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between the marks of `name`. Raises ValueError where there are none."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text().partition(begin)
    _, also, after = rest.partition(end)
    if not (found and also):
        raise ValueError(f"{page.name} has no marks of {name}")
    page.write_text(f"{before}{begin}\n{text.rstrip()}\n{end}{after}")


def command(arguments: Sequence[str] | None = None) -> str:
    """The command that this program was started with, without where its output goes."""
    kept: list[str] = []
    words = iter(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in WHERE:
            kept.append(word)
        elif WHERE[option] and not equals:
            next(words, None)
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *kept])


def place(report: dict[str, Any]) -> str:
    """The line below a table: machine, date, versions, command, as far as they are known."""
    where = report["machine"]
    parts = [f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['date']}"]
    if report.get("versions"):
        parts.append(", ".join(f"{k} {v}" for k, v in report["versions"].items()))
    if report.get("command"):
        parts.append(f"`{report['command']}`")
    return "; ".join(parts) + "."
