"""What a .cuvla file says of itself: read back without the package that it is for.

The record layout is runtime/src/adapter.h; cuvla.py writes it. Numbers of the factors stay unread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from zlib import adler32

from cuvilc.codes_runtime import BAD_CUVLA
from cuvilc.diagnostics import CuvilError, fail
from cuvilc.package.cuvla import CHECKSUM_AT, ENTRY, FACTORS, HEADER, MAGIC, VERSION, WHOLE


@dataclass(frozen=True)
class Change:
    """One entry: what is done to weight `site` of the package, in the name of `modules`.

    rank: of factors; 0 for a bias alone and for what is exchanged whole. gain: DoRA's.
    """

    site: int
    modules: tuple[str, ...]
    whole: bool
    rank: int
    gain: bool
    bias: bool


@dataclass(frozen=True)
class Shipped:
    """A file. base: fingerprint of its package; source: SHA-256 of the tensors it was built from.

    Both are of lower-case hexadecimal digits; `bytes` is the file's size.
    """

    name: str
    path: Path
    bytes: int
    base: str
    source: str
    changes: tuple[Change, ...]


def read_cuvla(path: Path) -> Shipped:
    """The file's own account, its checksum compared. CUV611."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _bad(path, f"it cannot be read: {error.strerror}") from error
    try:
        return _parsed(path, data)
    except (struct.error, ValueError) as error:  # a name without an end, or not of UTF-8
        raise _bad(path, "its tables are damaged") from error


def _parsed(path: Path, data: bytes) -> Shipped:
    magic, version, count, size, base, source, name, strings, _, checksum = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _bad(path, "it is no file of `cuvilc adapter build`")
    if version != VERSION:
        raise _bad(path, f"it is of version {version}, this cuvilc reads {VERSION}")
    if size != len(data):
        raise _bad(path, f"it has {len(data)} bytes of {size}")
    blank = bytes(4)
    if adler32(data[CHECKSUM_AT + 4 :], adler32(data[:CHECKSUM_AT] + blank)) != checksum:
        raise _bad(path, "its checksum is another")
    first = HEADER.size + count * ENTRY.size
    texts = data[first : first + strings]

    def text(at: int) -> str:
        return texts[at : texts.index(b"\0", at)].decode()

    rows = ENTRY.iter_unpack(data[HEADER.size : first])
    changes = tuple(
        Change(site, tuple(text(module).split(" + ")), kind == WHOLE, own, bool(gain), bool(bias))
        for site, kind, own, _, _, module, _, _, gain, bias in rows
        if kind in (WHOLE, FACTORS)
    )
    return Shipped(text(name), path, size, base.hex(), source.hex(), changes)


def _bad(path: Path, why: str) -> CuvilError:
    return fail(BAD_CUVLA, f"the adapter's file is not right: {why}", place=str(path))
