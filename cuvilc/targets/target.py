"""What a target is: it turns a program at the launch level into a package; the table of all
targets.

A target is a module of this folder with a `Target` of its own, registered here by name; `null.py`
is the skeleton to copy. Nothing outside such a module knows what machine it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from cuvilc.diagnostics import define, fail
from cuvilc.dialect.ir import Program

UNKNOWN_TARGET = define(
    "CUV401",
    "unknown target or CPU",
    """\
`--target` names one of the targets that `cuvilc targets` lists, and `--cpu` one of the CPU levels
or names listed there, `host`, or several joined by `+`.

Next step: `cuvilc targets` shows them with the CPU features that each needs.
""",
    exit_code=2,
)


@dataclass
class BuildOptions:
    """What the user asked of the target. `progress` hears each finished kernel: done, of, name.

    `destination`: where a package will be written, or beside it; None if none will be. `later`:
    ends when that is done or has failed.
    """

    cpu: str = ""
    jobs: int = 0
    cache: Any = None
    progress: Callable[[int, int, str], None] | None = None
    emit: str = ""  # "tir", "llvm", "asm": collect kernels' text in `texts`
    texts: dict[str, str] = field(default_factory=dict)
    vectors: Any = None
    adapters: Callable[[Any], Callable[[bytes], list[bytes]]] | None = None  # of the emitted plan
    destination: Path | None = None
    later: ExitStack = field(default_factory=ExitStack)


class Target(Protocol):
    """A machine to compile for."""

    name: str
    summary: str

    def describe(self) -> list[tuple[str, str]]:
        """Rows for `cuvilc targets`: CPU levels and the like, with what they need."""
        ...

    def check(self, options: BuildOptions) -> None:
        """Raise CuvilError at once if options or toolchain cannot work."""
        ...

    def lowering(self, program: Program, options: BuildOptions) -> None:
        """Begin what can be done beside the passes that lower the program; layouts are chosen."""
        ...

    def compile(self, program: Program, options: BuildOptions) -> Any:
        """Kernels to code; the result is what `write` takes."""
        ...

    def write(
        self, compiled: Any, metadata: dict[str, Any], destination: Path, options: BuildOptions
    ) -> Any:
        """Write the package aside and rename it; returns its metadata."""
        ...


_TARGETS = {"x86": "cuvilc.targets.x86", "null": "cuvilc.targets.null"}


def target_names() -> list[str]:
    return sorted(_TARGETS)


def find_target(name: str) -> Target:
    """The target called `name`. CUV401 with the list of those there are."""
    if name not in _TARGETS:
        raise fail(
            UNKNOWN_TARGET,
            f"there is no target `{name}`",
            help=f"targets: {', '.join(target_names())}",
        )
    return import_module(_TARGETS[name]).TARGET
