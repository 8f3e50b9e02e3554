"""ELF64 little-endian, as much of it as packaging takes: a segment for the image, versions, symbol
sizes.

A program header cannot be added to a linked file, for the table is full and code follows it. But
one that nobody needs can be rewritten: the last PT_NOTE (note.S makes sure there is one) becomes
the PT_LOAD that maps the image, which stands behind everything the linker wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import pairwise
from struct import Struct
from struct import error as StructError
from typing import BinaryIO

from cuvilc.package.blocks import HUGE_PAGE

SEGMENT_ALIGN = 1 << 16

_HEADER = Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = Struct("<IIQQQQQQ")
_SECTION = Struct("<IIQQQQIIQQ")
_DYNAMIC = Struct("<qQ")
_VERNEED = Struct("<HHIII")
_VERNAUX = Struct("<IHHII")
_SYMBOL = Struct("<IBBHQQ")

_ET_REL, _ET_DYN = 1, 3
PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_PF_R = 4
_SHT_SYMTAB = 2
_STT_FUNC = 2
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 1, 5, 10
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF


class ElfError(ValueError):
    """The file is not the ELF that it must be; the text says why."""


@dataclass(frozen=True)
class Segment:
    """A program header; field names as in elf(5) without the prefix."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int


@dataclass(frozen=True)
class _Header:
    type: int
    phoff: int
    shoff: int
    phnum: int
    shnum: int


def _unpack(layout: Struct, data: bytes, offset: int) -> tuple:
    try:
        if offset < 0:
            raise ElfError("a table lies outside the file")
        return layout.unpack_from(data, offset)
    except StructError as error:
        raise ElfError("a table lies outside the file") from error


def _header(data: bytes, expected_type: int) -> _Header:
    ident, kind, _, version, _, phoff, shoff, _, _, phsize, phnum, shsize, shnum, _ = _unpack(
        _HEADER, data, 0
    )
    if ident[:4] != b"\x7fELF" or ident[4:6] != b"\x02\x01" or version != 1:
        raise ElfError("not a 64-bit little-endian ELF file")
    if kind != expected_type:
        raise ElfError(f"ELF file of type {kind}, not {expected_type}")
    if (phnum and phsize != _PROGRAM.size) or (shnum and shsize != _SECTION.size):
        raise ElfError("headers of an unknown size")
    return _Header(kind, phoff, shoff, phnum, shnum)


def segments(data: bytes) -> list[Segment]:
    """The program headers of a shared library that begins with `data`."""
    head = _header(data, _ET_DYN)
    table = []
    for i in range(head.phnum):
        kind, flags, offset, vaddr, paddr, filesz, memsz, align = _unpack(
            _PROGRAM, data, head.phoff + i * _PROGRAM.size
        )
        table.append(Segment(kind, flags, offset, vaddr, paddr, filesz, memsz, align))
    return table


def begin_segment(file: BinaryIO) -> int:
    """Pad the library to where the segment may begin; its offset, the file's new position.

    Raises ElfError when `end_segment` would.
    """
    size_bytes = file.seek(0, 2)
    check_segment(file, size_bytes, _align(size_bytes))
    file.seek(size_bytes)
    file.write(bytes(_align(size_bytes) - size_bytes))
    return _align(size_bytes)


def check_segment(file: BinaryIO, library_bytes: int, offset: int) -> None:
    """A segment may begin at `offset` of a file that begins with a library; else ElfError."""
    if offset < library_bytes or offset != _align(offset):
        raise ElfError("the segment begins in the library, or at no boundary")
    _with_image(file, library_bytes, offset, 1)


def end_segment(file: BinaryIO, offset: int) -> Segment:
    """Everything from `offset` to the file's end is mapped, read-only, when the library loads."""
    size_bytes = file.seek(0, 2) - offset
    if size_bytes <= 0:
        raise ElfError("the segment is empty")
    phoff, table = _with_image(file, offset, offset, size_bytes)
    file.seek(phoff)
    file.write(b"".join(_PROGRAM.pack(*astuple(s)) for s in table))
    return next(s for s in reversed(table) if s.type == PT_LOAD)


def _align(offset: int) -> int:
    return -(-offset // SEGMENT_ALIGN) * SEGMENT_ALIGN


def _with_image(
    file: BinaryIO, library_bytes: int, offset: int, size_bytes: int
) -> tuple[int, list[Segment]]:
    """(place of the program headers, these with the last PT_NOTE made the image's PT_LOAD)."""
    file.seek(0)
    start = file.read(min(library_bytes, SEGMENT_ALIGN))
    table = segments(start)
    loads = [s for s in table if s.type == PT_LOAD]
    notes = [i for i, s in enumerate(table) if s.type == _PT_NOTE]
    if not loads:
        raise ElfError("no PT_LOAD program header")
    if not notes:
        raise ElfError("no PT_NOTE program header to turn into the image's segment")
    for before, after in pairwise(loads):
        if before.vaddr + before.memsz > after.vaddr:
            raise ElfError("the PT_LOAD segments overlap or are not in order")
    for s in loads:
        if s.memsz < s.filesz or s.offset + s.filesz > library_bytes:
            raise ElfError("a PT_LOAD segment lies outside the file")
    vaddr = _align(loads[-1].vaddr + loads[-1].memsz)
    vaddr += (offset - vaddr) % HUGE_PAGE  # multiples of it in the file lie at such in memory
    image = Segment(PT_LOAD, _PF_R, offset, vaddr, vaddr, size_bytes, size_bytes, HUGE_PAGE)
    del table[notes[-1]]
    # The loader takes the last PT_LOAD of the table for the end of the library: keep them in order.
    last = max(i for i, s in enumerate(table) if s.type == PT_LOAD)
    table.insert(last + 1, image)
    return _header(start, _ET_DYN).phoff, table


@dataclass(frozen=True)
class Dependencies:
    """What a shared library asks of the system: libraries, and versions by library."""

    needed: tuple[str, ...]
    versions: dict[str, tuple[str, ...]]

    @property
    def min_glibc(self) -> str:
        """The least glibc that satisfies every GLIBC_x.y version; "" when none is asked for."""
        numbers = [
            tuple(map(int, v.removeprefix("GLIBC_").split(".")))
            for versions in self.versions.values()
            for v in versions
            if v.startswith("GLIBC_") and v[6:].replace(".", "").isdigit()
        ]
        return ".".join(map(str, max(numbers))) if numbers else ""


def dependencies(data: bytes) -> Dependencies:
    """Read DT_NEEDED and the version needs (.gnu.version_r) of a shared library."""
    table = segments(data)
    dynamic = next((s for s in table if s.type == _PT_DYNAMIC), None)
    if dynamic is None:
        return Dependencies((), {})
    places = range(dynamic.filesz // _DYNAMIC.size)
    entries = [_unpack(_DYNAMIC, data, dynamic.offset + i * _DYNAMIC.size) for i in places]
    tags = dict(entries)
    if _DT_STRTAB not in tags or _DT_STRSZ not in tags:
        raise ElfError("a dynamic section without strings")
    strings_at = _file_offset(table, tags[_DT_STRTAB])
    strings = data[strings_at : strings_at + tags[_DT_STRSZ]]
    needed = tuple(_string(strings, value) for tag, value in entries if tag == _DT_NEEDED)
    if _DT_VERNEED not in tags:
        return Dependencies(needed, {})
    at = _file_offset(table, tags[_DT_VERNEED])
    return Dependencies(needed, dict(_versions(data, at, tags.get(_DT_VERNEEDNUM, 0), strings)))


def _versions(
    data: bytes, at: int, count: int, strings: bytes
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for _ in range(count):
        _, names, library, first, following = _unpack(_VERNEED, data, at)
        versions, place = [], at + first
        for _ in range(names):
            _, _, _, name, step = _unpack(_VERNAUX, data, place)
            versions.append(_string(strings, name))
            place += step
        yield _string(strings, library), tuple(versions)
        at += following


def _file_offset(table: list[Segment], vaddr: int) -> int:
    for s in table:
        if s.type == PT_LOAD and s.vaddr <= vaddr < s.vaddr + s.filesz:
            return vaddr - s.vaddr + s.offset
    raise ElfError(f"the address {vaddr:#x} is not in the file")


def _string(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset)
    if not 0 <= offset <= end:
        raise ElfError("a string lies outside its table")
    return strings[offset:end].decode("utf-8", "replace")


def function_sizes(data: bytes) -> dict[str, int]:
    """Bytes of code of each function that an object file defines."""
    head = _header(data, _ET_REL)
    sections = [_unpack(_SECTION, data, head.shoff + i * _SECTION.size) for i in range(head.shnum)]
    sizes = {}
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind != _SHT_SYMTAB:
            continue
        if link >= len(sections):
            raise ElfError("a symbol table without strings")
        strings = data[sections[link][4] : sections[link][4] + sections[link][5]]
        for i in range(size // _SYMBOL.size):
            name, info, _, section, _, length = _unpack(_SYMBOL, data, offset + i * _SYMBOL.size)
            if info & 0xF == _STT_FUNC and section != 0:
                sizes[_string(strings, name)] = length
    return sizes
