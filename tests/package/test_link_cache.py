"""Linked libraries from the cache: the same bytes, and never after anything has changed."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from cuvilc.package import link_cache
from cuvilc.package.cache import Cache
from cuvilc.package.link import link_library, runtime_objects
from cuvilc.package.toolchain import Toolchain, find_toolchain

from .helpers import scale_object, scale_plan, stub_runtime

SCRIPT = """#!/bin/sh
case "$*" in
  *-print-prog-name=ld) echo {folder}/ld; exit;;
  *-shared*) echo "$*" >> {folder}/links;;
esac
exec cc "$@"
"""


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    """A compiler that notes what it links, and claims to use the linker tools/ld."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ld").write_text("a linker")
    script = tools / "counting-cc"
    script.write_text(SCRIPT.format(folder=tools))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    for name in ("COMPILER_PATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CC", str(script))
    return find_toolchain()


class Linker:
    """Links the same kernel again and again, and counts how often a linker was run for it."""

    def __init__(self, tmp_path: Path, toolchain: Toolchain) -> None:
        self.folder, self.toolchain = tmp_path, toolchain
        self.runtime = runtime_objects(toolchain, stub_runtime(), Cache(enabled=False))
        self.cache = Cache(tmp_path / "cache")
        self.notes = tmp_path / "tools" / "links"

    def link(self, factor: int = 10, cache: Cache | None = None) -> tuple[bytes, int]:
        self.notes.write_text("")
        out = self.folder / "out.so"
        out.unlink(missing_ok=True)
        kernels, use = [scale_object(0, factor)], cache or self.cache
        link_library(scale_plan(), kernels, self.runtime, out, self.toolchain, use)
        assert out.stat().st_mode & 0o111 == 0o111 & ~_umask()
        return out.read_bytes(), len(self.notes.read_text().splitlines())


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@pytest.fixture
def linker(tmp_path: Path, counting: Toolchain) -> Linker:
    return Linker(tmp_path, counting)


def test_a_library_is_linked_once_and_the_same_without_a_cache(linker: Linker) -> None:
    first, calls = linker.link()
    assert calls == 1
    assert linker.link() == (first, 0)
    assert linker.link(cache=Cache(enabled=False)) == (first, 1)


def test_other_objects_are_linked_anew(linker: Linker) -> None:
    first, _ = linker.link()
    second, calls = linker.link(factor=11)
    assert calls == 1
    assert second != first
    assert linker.link(factor=10) == (first, 0)


def test_another_linker_links_anew(linker: Linker) -> None:
    linker.link()
    tool = linker.folder / "tools" / "ld"
    tool.rename(tool.with_name("old"))
    assert [linker.link()[1] for _ in range(2)] == [1, 1], "it is not to be seen: nothing is kept"
    tool.write_text("a linker")
    assert linker.link()[1] == 1
    assert linker.link()[1] == 0
    tool.write_text("a linker, rewritten at once")
    assert linker.link()[1] == 1


@pytest.mark.parametrize(("name", "value"), [("LD_RUN_PATH", "/x"), ("SOURCE_DATE_EPOCH", "1")])
def test_what_the_linker_reads_of_the_environment_counts(
    linker: Linker, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    linker.link()
    monkeypatch.setenv(name, value)
    assert linker.link()[1] == 1


def test_nothing_is_kept_where_files_may_hide(
    linker: Linker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
    assert [linker.link()[1] for _ in range(2)] == [1, 1]


def test_nothing_is_kept_where_a_file_holds_options(linker: Linker) -> None:
    said = linker.toolchain.identity + "Configuration file: /etc/clang/clang.cfg\n"
    linker.toolchain = replace(linker.toolchain, identity=said)
    assert [linker.link()[1] for _ in range(2)] == [1, 1]


def test_a_linker_that_tells_nothing_links_all_the_same(
    linker: Linker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuvilc.package.link.TRACE", "-Wl,--no-such-option")
    first, calls = linker.link()
    assert calls == 2
    assert linker.link() == (first, 2)


def test_a_damaged_entry_is_a_miss(linker: Linker) -> None:
    first, _ = linker.link()
    paths = [p for p in (linker.folder / "cache").glob("??/*") if p.is_file()]
    assert len(paths) == 1
    kept = paths[0].read_bytes()
    paths[0].write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert linker.link() == (first, 1)
    assert linker.link() == (first, 0)


@pytest.mark.parametrize(
    "entry", [b"", b"\xff\xff\xff\xff{}", b"\2\0\0\0[]lib", b"\4\0\0\0nulllib"]
)
def test_an_entry_of_another_form_is_a_miss(linker: Linker, entry: bytes) -> None:
    links = link_cache.LinkCache(linker.cache, linker.toolchain)
    linker.cache.put("key", entry)
    assert links.get("key") is None
