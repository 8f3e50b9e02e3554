"""The C compiler driver that compiles the runtime and links packages."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache

from cuvilc.diagnostics import CuvilError, fail
from cuvilc.package.codes import NO_COMPILER

_COMMANDS = ("cc", "gcc", "clang")


@dataclass(frozen=True)
class Toolchain:
    """How to call a C compiler for one target.

    `command` is the driver with its fixed arguments. `triple` and `glibc` choose another target
    than the driver's own; plain cc has none, a driver that can (`python -m ziglang cc`) gets them
    as `-target TRIPLE[.GLIBC]`. `identity` is what the driver says of itself, part of every cache
    key.
    """

    command: tuple[str, ...]
    identity: str
    triple: str = ""
    glibc: str = ""

    @property
    def arguments(self) -> list[str]:
        """The start of every command line."""
        if not self.triple:
            return list(self.command)
        return [
            *self.command,
            "-target",
            f"{self.triple}.{self.glibc}" if self.glibc else self.triple,
        ]


def find_toolchain() -> Toolchain:
    """The compiler that $CC names, else cc, gcc or clang from PATH. CUV501 when there is none."""
    wanted = os.environ.get("CC", "").strip()
    try:
        choices = [tuple(shlex.split(wanted))] if wanted else [(name,) for name in _COMMANDS]
    except ValueError as error:
        raise fail(NO_COMPILER, f"CC={wanted!r} is not a command: {error}") from error
    for command in choices:
        path = shutil.which(command[0])
        if path is not None:
            return Toolchain(command, identify((path, *command[1:])))
    where = (
        f"CC names `{choices[0][0]}`" if wanted else f"none of {', '.join(_COMMANDS)} is on PATH"
    )
    raise fail(
        NO_COMPILER,
        f"no C compiler was found: {where}{', which is not on PATH' if wanted else ''}",
        help="install one (Debian: `apt install gcc`) or set CC; see `cuvilc explain CUV501`",
    )


@lru_cache(maxsize=8)
def identify(command: tuple[str, ...]) -> str:
    """Version and target as the driver tells them (`-v`). CUV501 when it cannot be run."""
    result = run([*command, "-v"])
    if result.returncode != 0:
        raise fail(
            NO_COMPILER,
            f"`{shlex.join(command)}` does not work as a C compiler",
            evidence=result.stdout.strip()[-2000:],
        )
    return result.stdout


def run(arguments: list[str], cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool; stdout and stderr come together in `stdout`, in English, whatever its status."""
    try:
        return subprocess.run(
            arguments, cwd=cwd, text=True, errors="replace", check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except OSError as error:
        raise _cannot_run(arguments, error) from error


def _cannot_run(arguments: list[str], error: OSError) -> CuvilError:
    return fail(NO_COMPILER, f"cannot run `{arguments[0]}`: {error.strerror}")
