"""Linked libraries in the cache, by everything that they were linked from.

The key says what cuvilc gives to the linker. What the linker finds by itself (the C library, the
compiler's own files) it tells with --trace; an entry lists those files, the linker and the
assembler, and holds only as long as none of them has changed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuvilc.package.cache import Cache, digest
from cuvilc.package.toolchain import Toolchain, run

TRACE = "-Wl,--trace"
# Where these point, a file that the linker would prefer may appear unseen.
_HIDDEN_PLACES = ("COMPILER_PATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH")
# What else in the environment compilers and linkers obey.
_VARIABLES = ("GNUTARGET", "PATH", "SOURCE_DATE_EPOCH")
_PREFIXES = ("CCC_", "COLLECT_", "GCC_", "LD")
# How clang and gcc say that a file holds options of theirs.
_SETTINGS = ("Configuration file:", "Reading specs from")
_PROGRAMS = ("as", "ld")


@dataclass
class LinkCache:
    """Libraries that `toolchain` links, in `cache`; none where something might go unnoticed."""

    cache: Cache
    toolchain: Toolchain

    @property
    def enabled(self) -> bool:
        hidden = any(os.environ.get(name) for name in _HIDDEN_PLACES)
        hidden |= any(words in self.toolchain.identity for words in _SETTINGS)
        return self.cache.enabled and not self.toolchain.triple and not hidden

    def key(self, command: Sequence[str], contents: Iterable[bytes | str]) -> str:
        """Of the linker's command line and of the contents of the files that it names."""
        obeyed = sorted(
            f"{name}={value}"
            for name, value in os.environ.items()
            if name in _VARIABLES or name.startswith(_PREFIXES)
        )
        said = (self.toolchain.identity, *command, "", *obeyed, "")
        return digest("linked library", *said, *contents)

    def get(self, key: str) -> bytes | None:
        """The library, if all that it was linked from is as it was."""
        entry = self.cache.get(key)
        if entry is None:
            return None
        size = int.from_bytes(entry[:4], "little")
        try:
            found = json.loads(entry[4 : 4 + size])
            same = found and all(_identity(name) == known for name, known in found.items())
        except (ValueError, AttributeError):
            return None
        return entry[4 + size :] if same else None

    def put(self, key: str, library: bytes, trace: str) -> None:
        """Keep the library, if `trace` tells what the linker has found; it printed that."""
        # What is gone by now was the compiler's own, made of table.s.
        files = [x for x in trace.splitlines() if x.startswith("/") and os.path.exists(x)]
        if not any(os.path.basename(name).startswith("libc.") for name in files):
            return
        programs = [self._program(name) for name in _PROGRAMS]
        folders = [os.path.dirname(name) for name in files]  # where a file may come to stand before
        names = dict.fromkeys([self.toolchain.command[0], *programs, *files, *folders])
        identities = {name: _identity(name) for name in names}
        if None not in identities.values():
            header = json.dumps(identities).encode()
            self.cache.put(key, len(header).to_bytes(4, "little") + header + library)

    def _program(self, name: str) -> str:
        """What the compiler calls for `name`: a path, or a name to look for along PATH."""
        done = run([*self.toolchain.arguments, f"-print-prog-name={name}"])
        return done.stdout.strip() if done.returncode == 0 else ""


def _identity(name: str) -> list[int | str] | None:
    """Where a file is and what changes when it is written, replaced or renamed; None: not there."""
    path = name if os.path.isabs(name) else shutil.which(name)
    if not path:
        return None
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return [
        os.path.realpath(path), status.st_ino, status.st_size, status.st_mtime_ns,
        status.st_ctime_ns,
    ]  # fmt: skip
