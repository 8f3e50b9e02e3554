"""Live progress of a build, on stderr, when that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Report = Callable[[str, int, int, str], None]


@contextmanager
def watching(wanted: bool) -> Iterator[Report | None]:
    """A callback that draws phases and kernels; None where nobody would see it."""
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns: list[Any] = [
        SpinnerColumn(), TextColumn("{task.description:<9}"), BarColumn(24), TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    ]  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("start", total=None, detail="")

        def report(phase: str, done: int, of: int, detail: str) -> None:
            progress.update(
                task, description=phase, completed=done, total=of or None, detail=detail[:60]
            )

        yield report
