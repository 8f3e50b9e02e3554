"""Where commands print: results on stdout, the rest on stderr; text for people or JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cuvilc.diagnostics import CuvilError

_PIPE_WIDTH = 120  # where there is no terminal, and COLUMNS says nothing
_LEAST_LAST = 20  # characters that the last column of a table may be folded to
_NO_BREAK = "\N{NO-BREAK SPACE}"
_SECOND_COLUMN = " " * 11
_BETWEEN = 3  # characters between two columns


@dataclass
class Output:
    """How one command prints."""

    json: bool = False
    quiet: bool = False

    @staticmethod
    def of_arguments(arguments: Sequence[str]) -> Output:
        """As the command line asks, even where it cannot be parsed."""
        pairs = list(zip(arguments, [*arguments[1:], ""], strict=False))
        wanted = any(
            a in ("--json", "--format=json") or (a, b) == ("--format", "json") for a, b in pairs
        )
        return Output(wanted, any(a in ("-q", "--quiet") for a in arguments))

    def data(self, value: dict[str, Any]) -> None:
        """One JSON object on stdout."""
        print(json.dumps(finite(value), indent=2, ensure_ascii=False))

    def text(self, text: str) -> None:
        """A result for people."""
        if not self.json and not self.quiet:
            print(text)

    def asked(self, text: str) -> None:
        """A result that was asked for by an option of its own: `--quiet` hides others."""
        if not self.json:
            print(text)

    def wrapped(self, text: str) -> None:
        """A result of many words, within the width; what follows is indented under the second
        column of lines such as `  rank     8`.
        """
        if not self.json and not self.quiet:
            print(_filled(text, self.console().width, "", _SECOND_COLUMN))

    def draw(self, *tables: Any) -> None:
        """Tables, by rich, without the blanks that it pads lines with. One that begins with names
        and is too wide, apart from its last column, comes row by row: columns folded to a few
        letters cannot be read.
        """
        if self.json or self.quiet:
            return
        for one in tables:
            with self.console() as console, console.capture() as captured:
                names = one.columns[0].header and one.columns[0].justify == "left"
                if names and _width_but_last(one) > console.width:
                    console.print("\n".join(_rows_as_text(one, console.width)), soft_wrap=True)
                else:
                    console.print(one)
            lines = [line.rstrip() for line in captured.get().splitlines()]
            print("\n".join(["", *(line for line in lines if line)]))

    def console(self) -> Any:
        from rich.console import Console  # noqa: PLC0415  (only commands that draw need it)

        asked = os.environ.get("COLUMNS", "")
        width: int | None = int(asked) if asked.isdecimal() and int(asked) else _PIPE_WIDTH
        if sys.stdout.isatty():
            width = None  # rich asks the terminal
        return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)

    def complain(self, text: str) -> None:
        """A line that is no result."""
        print(text, file=sys.stderr)

    def notes(self, notes: Sequence[str]) -> None:
        if not self.json and not self.quiet:
            for note in notes:
                self.complain(f"note: {note}")

    def errors(self, error: CuvilError) -> None:
        """Every diagnostic of the error: as JSON on stdout where that was asked for."""
        if self.json:
            self.data({"errors": [d.to_json() for d in error.diagnostics]})
            return
        for number, diagnostic in enumerate(error.diagnostics):
            if number:
                self.complain("")
            self.complain(_coloured(printable(diagnostic.render())))


def _width_but_last(made: Any) -> int:
    """Of a table whose last column is folded to its least."""
    from rich.cells import cell_len  # noqa: PLC0415

    widths = [max(map(cell_len, map(str, [c.header, *c.cells]))) for c in made.columns]
    widths[-1] = min(widths[-1], _LEAST_LAST)
    return sum(widths) + _BETWEEN * len(widths)


def _rows_as_text(made: Any, width: int) -> Iterator[str]:
    """A table's rows one below the other: the first cell, then `column cell, column cell, …`."""
    if made.title:
        yield str(made.title)
    heads = [str(c.header) for c in made.columns]
    for cells in zip(*(list(c.cells) for c in made.columns), strict=True):
        first, *rest = zip(heads, map(str, cells), strict=True)
        yield first[1]
        parts = [f"{head} {cell}".strip() for head, cell in rest if cell.strip("–")]
        # Short ones are not broken, such as `size 4.0 KiB`.
        kept = [p.replace(" ", _NO_BREAK) if len(p) <= _LEAST_LAST else p for p in parts]
        yield _filled(", ".join(kept), width, "    ", "    ").replace(_NO_BREAK, " ")


def _filled(text: str, width: int, first: str, others: str) -> str:
    """Lines of whole words: a name is copied from the screen, so it is never broken."""
    import textwrap  # noqa: PLC0415

    return textwrap.fill(
        text, max(width, 2 * _LEAST_LAST), initial_indent=first, subsequent_indent=others,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _coloured(text: str) -> str:
    head, colon, rest = text.partition(": ")
    return f"\033[1;31m{head}{colon}\033[0m{rest}" if sys.stderr.isatty() else text


def printable(text: str) -> str:
    """Names come from model files: what would steer the terminal is shown as an escape."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value


def table(*columns: str, title: str = "", right: Sequence[int] = ()) -> Any:
    """A plain table; the columns numbered in `right` are aligned to the right."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for number, name in enumerate(columns):
        justify: Any = "right" if number in right else "left"
        made.add_column(name, justify=justify, overflow="fold")
    return made
