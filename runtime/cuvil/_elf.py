"""Check a model.so before the dynamic linker does, whose errors say little or are a SIGBUS."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

from ._error import CuvilError

MACHINES = {62: "x86_64", 183: "aarch64", 40: "arm", 243: "riscv64", 3: "i386", 22: "s390x"}
ALIASES = {"amd64": "x86_64", "arm64": "aarch64", "armv7l": "arm", "i686": "i386"}
PT_LOAD = 1
SECTION_WEIGHTS = 11  # runtime/src/image.h


def check_library(path: Path) -> tuple[int, int]:
    """Offset and size of the image in the file; CuvilError unless this machine can load it."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            size = file.seek(0, 2)
            _check_head(path, head)
            (table,) = struct.unpack_from("<Q", head, 32)
            entry, count = struct.unpack_from("<HH", head, 54)
            file.seek(min(table, size))
            headers = file.read(entry * count)
    except OSError as error:
        raise CuvilError(
            "CUV601", f"cannot read the library: {error.strerror}", str(path)
        ) from error
    if entry != 56 or len(headers) < entry * count:
        raise CuvilError("CUV601", f"truncated: {size} bytes hold no program headers", str(path))
    loads = []
    for i in range(count):
        kind, _, offset, _, _, bytes_ = struct.unpack_from("<IIQQQQ", headers, i * entry)
        if kind == PT_LOAD:
            loads.append((offset, bytes_))
    end = max((offset + bytes_ for offset, bytes_ in loads), default=0)
    if not loads or end > size:
        raise CuvilError("CUV601", f"truncated: {size} bytes, its segments need {end}", str(path))
    return loads[-1]


def _check_head(path: Path, head: bytes) -> None:
    if len(head) < 64 or head[:4] != b"\x7fELF":
        what = f"begins with {head[:8].hex(' ')}" if head else "it is empty"
        raise CuvilError(
            "CUV601",
            f"not a shared library (ELF): {what}",
            str(path),
            "give a package, that is a folder NAME.cuvil with model.so and metadata.json",
        )
    if head[4:6] != b"\x02\x01":
        raise CuvilError(
            "CUV603", "a 32-bit or big-endian library, which cuvil does not load", str(path)
        )
    kind, machine = struct.unpack_from("<HH", head, 16)
    here = platform.machine().lower()
    here = ALIASES.get(here, here)
    there = MACHINES.get(machine, f"ELF machine {machine}")
    if there != here:
        raise CuvilError("CUV603", f"built for {there}, this machine is {here}", str(path))
    if kind != 3:
        raise CuvilError("CUV601", "an ELF file, but no shared library", str(path))


def weights_place(path: Path) -> tuple[int, int]:
    """Offset and size of the weights in the file."""
    offset, size = check_library(path)
    with path.open("rb") as file:
        file.seek(offset)
        header = file.read(232)
    if len(header) < 232 or header[:8] != b"CUVILIMG":
        raise CuvilError("CUV601", "no cuvil image in this file", str(path))
    start, bytes_ = struct.unpack_from("<QQ", header, 32 + 16 * SECTION_WEIGHTS)
    if start + bytes_ > size:
        raise CuvilError("CUV601", "the weights lie outside the image", str(path))
    return offset + start, bytes_
