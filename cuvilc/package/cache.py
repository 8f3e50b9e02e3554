"""A content-addressed cache on disk: bytes by key, shared by all builds of a user.

A cache can only make a build faster: whatever goes wrong with it (not writable, full, damaged) is a
miss.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

DEFAULT_LIMIT_BYTES = 2 << 30
_DIGEST_BYTES = 32
_PRUNE_INTERVAL_S = 24 * 3600
_ABANDONED_S = 3600
_TEMPORARY = ".tmp-"


def default_directory() -> Path:
    """$CUVILC_CACHE_DIR, else $XDG_CACHE_HOME/cuvilc, else ~/.cache/cuvilc."""
    if chosen := os.environ.get("CUVILC_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):
        base = os.devnull  # no home directory: what cannot be written is not cached
    return Path(base) / "cuvilc"


def digest(*parts: bytes | str) -> str:
    """A key for content that depends on all of `parts`; where one part ends matters."""
    h = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        h.update(len(data).to_bytes(8, "little"))
        h.update(data)
    return h.hexdigest()


class Cache:
    """Safe under concurrent builds: an entry appears whole, by rename, and is verified when read.

    `enabled=False` makes every get a miss and every put nothing. `note` says, once the first write
    failed, why nothing is cached.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        enabled: bool = True,
    ) -> None:
        self.directory = directory or default_directory()
        self.limit_bytes = limit_bytes
        self.enabled = enabled
        self.note = ""
        self._written_bytes = 0

    def get(self, key: str) -> bytes | None:
        """The bytes last put under `key`, or None. A damaged entry is removed."""
        if not self.enabled:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = data[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() != data[:_DIGEST_BYTES]:
            _remove(path)
            return None
        try:
            os.utime(path)  # the time of last use: what pruning goes by
        except OSError:
            pass  # a cache that is only readable still serves
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store `payload`, unless the cache cannot be written: then `note` says why."""
        if not self.enabled or self.note:
            return
        path = self._path(key)
        temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(hashlib.sha256(payload).digest())
                file.write(payload)
            temporary.replace(path)
        except OSError as error:
            self.note = f"builds are not cached: {self.directory}: {error.strerror}"
            _remove(temporary)
            return
        self._written_bytes += len(payload)
        if self._prune_is_due():
            self.prune()

    def prune(self) -> None:
        """When over the limit, remove the entries used longest ago until a quarter is free."""
        entries = sorted(self._entries())
        total = sum(size_bytes for _, size_bytes, _ in entries)
        if total <= self.limit_bytes:
            return
        for _, size_bytes, path in entries:
            if total <= self.limit_bytes * 3 // 4:
                break
            _remove(path)
            total -= size_bytes

    def clear(self) -> None:
        """Remove every entry."""
        for _, _, path in self._entries():
            _remove(path)

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.directory / name[:2] / name[2:]

    def _prune_is_due(self) -> bool:
        """Once a day by a shared stamp, or after this process wrote an eighth of the limit."""
        stamp = self.directory / "pruned"
        now = time.time()
        try:
            recent = now - stamp.stat().st_mtime < _PRUNE_INTERVAL_S
        except OSError:
            recent = False
        if recent and self._written_bytes < self.limit_bytes // 8:
            return False
        self._written_bytes = 0
        try:
            stamp.touch()
        except OSError:
            return False
        return True

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """(time of last use, bytes, path) of each; removes what dead builds left behind."""
        for path in self.directory.glob("[0-9a-f][0-9a-f]/*"):
            try:
                status = path.stat()
            except OSError:
                continue  # another build pruned it
            if not path.name.startswith(_TEMPORARY):
                yield status.st_mtime, status.st_size, path
            elif time.time() - status.st_mtime > _ABANDONED_S:
                _remove(path)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass  # gone already, or not ours to remove
