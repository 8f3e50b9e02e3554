"""A cache is fast or absent, never wrong: damage, races, limits and read-only directories."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from cuvilc.package.cache import Cache, default_directory, digest


def entries(cache: Cache) -> list[Path]:
    return sorted(cache.directory.glob("??/*"))


def test_what_was_put_is_got(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "new" / "cache")
    assert cache.get("key") is None
    cache.put("key", b"value")
    cache.put("../../outside", b"")
    assert (cache.get("key"), cache.get("../../outside")) == (b"value", b"")
    assert Cache(cache.directory).get("key") == b"value"
    cache.put("key", b"other")
    assert cache.get("key") == b"other"
    cache.clear()
    assert cache.get("key") is None


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-1], lambda d: d[:40] + b"!" + d[41:], lambda d: b""]
)
def test_a_damaged_entry_is_a_miss_and_removed(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    cache = Cache(tmp_path)
    cache.put("key", b"some bytes of value")
    [path] = entries(cache)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get("key") is None
    assert not path.exists()
    cache.put("key", b"again")
    assert cache.get("key") == b"again"


def test_disabled_is_always_a_miss(tmp_path: Path) -> None:
    Cache(tmp_path).put("key", b"value")
    off = Cache(tmp_path, enabled=False)
    off.put("other", b"")
    assert (off.get("key"), Cache(tmp_path).get("other")) == (None, None)


def test_where_nothing_can_be_written_builds_go_on(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    cache = Cache(blocker / "cache")
    cache.put("key", b"value")
    assert cache.get("key") is None
    assert cache.note.startswith("builds are not cached: ")
    note = cache.note
    cache.put("key", b"value")
    assert cache.note == note


def test_a_full_disk_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    cache = Cache(tmp_path)
    cache.put("key", b"value")
    assert "No space left" in cache.note
    assert entries(cache) == []


def test_the_longest_unused_are_pruned(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for i in range(12):
        cache.put(f"key{i}", bytes(1000))
        os.utime(cache._path(f"key{i}"), (i, i))
    assert cache.get("key0") == bytes(1000), "used last of all"
    Cache(tmp_path, limit_bytes=10_000).prune()
    kept = [i for i in range(12) if cache._path(f"key{i}").exists()]
    assert kept == [0, 6, 7, 8, 9, 10, 11]


def test_pruning_comes_by_itself_and_removes_what_dead_builds_left(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=8_000)
    cache.put("first", b"")
    dead, alive = (cache._path("first").with_name(f".tmp-{x}") for x in ("dead", "alive"))
    for path in (dead, alive):
        path.write_bytes(b"")
    os.utime(dead, (0, time.time() - 7200))
    for i in range(20):
        cache.put(f"key{i}", bytes(1000))
    assert sum(p.stat().st_size for p in entries(cache)) <= 9_200
    assert (dead.exists(), alive.exists()) == (False, True)


def hammer(directory: str) -> int:
    """Put and get the same few keys; how many reads gave wrong bytes."""
    cache = Cache(Path(directory), limit_bytes=200_000)
    wrong = 0
    for i in range(150):
        key = f"key{i % 7}"
        cache.put(key, key.encode() * 5000)
        got = cache.get(key)
        wrong += got is not None and got != key.encode() * 5000
        if i % 20 == 0:
            cache.prune()
    return wrong + bool(cache.note)


def test_builds_share_a_cache_without_locks(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(hammer, [str(tmp_path)] * 3)) == [0, 0, 0]
    assert not [p for p in entries(Cache(tmp_path)) if p.name.startswith(".tmp-")]


def test_the_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUVILC_CACHE_DIR", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert default_directory() == Path("/a")
    monkeypatch.delenv("CUVILC_CACHE_DIR")
    assert default_directory() == Path("/b/cuvilc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert default_directory() == Path("/c/.cache/cuvilc")


def test_digests_tell_where_parts_end() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("é") == digest("é".encode())
