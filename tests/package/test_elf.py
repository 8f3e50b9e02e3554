"""The appended segment is mapped by the real loader; foreign files are refused with a reason."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from io import BytesIO
from pathlib import Path

import pytest

from cuvilc.package.blocks import HUGE_PAGE
from cuvilc.package.elf import (
    SEGMENT_ALIGN,
    ElfError,
    begin_segment,
    dependencies,
    end_segment,
    function_sizes,
    segments,
)

from .helpers import STUB_RUNTIME, compile_c

SOURCE = "int answer(void) { return 42; }"
LOAD, NOTE = 1, 4


def build(directory: Path, *flags: str, source: str = SOURCE, note: bool = True) -> bytes:
    """A shared library of `source`."""
    library = directory / "library.so"
    (directory / "library.c").write_text(source)
    units = [str(directory / "library.c")] + [str(STUB_RUNTIME / "src" / "note.S")] * note
    command = ["cc", "-shared", "-fPIC", "-s", *flags, *units, "-o", str(library)]
    subprocess.run(command, check=True)
    return library.read_bytes()


def patched(library: bytes, payload: bytes) -> bytes:
    file = BytesIO(library)
    offset = begin_segment(file)
    assert file.tell() == offset
    file.write(payload)
    end_segment(file, offset)
    return file.getvalue()


def test_the_loader_maps_the_appended_bytes(tmp_path: Path) -> None:
    payload = os.urandom(100_000)
    source = (STUB_RUNTIME / "src" / "stub.c").read_text() + SOURCE
    tables = "const cuvil_kernel cuvil_kernel_table[1]; const uint32_t cuvil_kernel_count = 0;"
    library = build(tmp_path, f"-I{STUB_RUNTIME}/src", "-lm", source=source + tables)
    path = tmp_path / "patched.so"
    path.write_bytes(patched(library, payload))
    loaded = ctypes.CDLL(str(path))
    assert loaded.answer() == 42
    size_bytes = ctypes.c_uint64()
    loaded.cuvil_stub_image.restype = ctypes.c_void_p
    address = loaded.cuvil_stub_image(ctypes.byref(size_bytes))
    assert address % 4096 == 0
    assert size_bytes.value == len(payload)
    assert ctypes.string_at(address, len(payload)) == payload
    maps = Path("/proc/self/maps").read_text()
    [line] = [x for x in maps.splitlines() if x.startswith(f"{address:x}-".rjust(13, "0"))]
    offset = int(line.split()[2], 16)
    assert address % HUGE_PAGE == offset % HUGE_PAGE, "huge pages cannot map it"
    assert " r--p " in line, "the weights are mapped read-only"


@pytest.mark.parametrize("flags", [(), ("-Wl,-z,max-page-size=65536",), ("-fuse-ld=gold",)])
def test_one_note_becomes_the_last_load(tmp_path: Path, flags: tuple[str, ...]) -> None:
    try:
        library = build(tmp_path, *flags)
    except subprocess.CalledProcessError:
        pytest.skip(f"this cc does not take {flags}")
    before, after = segments(library), segments(patched(library, b"x" * 99))
    assert len(before) == len(after)
    kept = [s for s in after if s in before]
    assert len(kept) == len(before) - 1
    assert sum(s.type == NOTE for s in after) == sum(s.type == NOTE for s in before) - 1
    *others, image = [s for s in after if s.type == LOAD]
    assert (image.flags, image.filesz, image.memsz, image.align) == (4, 99, 99, HUGE_PAGE)
    assert image.offset % SEGMENT_ALIGN == 0
    assert image.offset % HUGE_PAGE == image.vaddr % HUGE_PAGE
    assert all(s.vaddr + s.memsz <= image.vaddr for s in others)
    assert image.offset >= len(library)


def test_what_cannot_be_patched_is_refused(tmp_path: Path) -> None:
    library = build(tmp_path)
    phoff = struct.unpack_from("<Q", library, 32)[0]

    def changed(at: int, value: bytes) -> bytes:
        return library[:at] + value + library[at + len(value) :]

    types = range(phoff, phoff + 56 * len(segments(library)), 56)
    notes = [at for at in types if library[at] == NOTE]
    without_notes = bytearray(library)
    for at in notes:
        without_notes[at] = 0
    for data, reason in (
        (library[:63], "outside the file"),
        (b"MZ" + library[2:], "not a 64-bit"),
        (changed(5, b"\2"), "not a 64-bit"),
        (changed(16, b"\2"), "type 2"),
        (changed(54, b"\1"), "unknown size"),
        (changed(32, b"\xff" * 7), "outside the file"),
        (changed(phoff + 32, b"\xff" * 6), "outside the file"),
        (changed(phoff + 40, b"\xff" * 6), "overlap"),
        (bytes(without_notes), "no PT_NOTE"),
    ):
        with pytest.raises(ElfError, match=reason):
            begin_segment(BytesIO(data))
    file = BytesIO(library)
    begun = begin_segment(file)
    with pytest.raises(ElfError, match="empty"):
        end_segment(file, begun)


def test_dependencies_are_those_that_the_linker_recorded(tmp_path: Path) -> None:
    calls = "double lgamma(double); double f(double x) { return lgamma(x); }"
    needs = dependencies(build(tmp_path, "-Wl,--no-as-needed", "-lm", source=calls))
    assert "libm.so.6" in needs.needed
    assert any(v.startswith("GLIBC_2.") for v in needs.versions["libm.so.6"])
    major, minor = needs.min_glibc.split(".")[:2]
    assert (int(major), int(minor)) >= (2, 2)
    alone = dependencies(build(tmp_path, "-nostdlib"))
    assert (alone.needed, alone.min_glibc) == ((), "")


def test_truncated_libraries_raise_only_elf_errors(tmp_path: Path) -> None:
    library = build(tmp_path)
    for length in range(0, len(library), 97):
        try:
            dependencies(library[:length])
        except ElfError:
            pass


def test_function_sizes_of_an_object() -> None:
    sizes = function_sizes(
        compile_c(SOURCE + " static int data; int *where(void) { return &data; }")
    )
    assert sizes.keys() == {"answer", "where"}
    assert all(0 < size < 64 for size in sizes.values())
    with pytest.raises(ElfError):
        function_sizes(b"not an object")
