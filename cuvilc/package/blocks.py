"""Files of which the kernel's page cache can be mapped in huge pages.

A run reads weights once, in order, and of a mapping in pages of 4 KiB it spends up to a quarter of
its time on address translation. ext4 (Linux 6.16), XFS and btrfs hold what one call writes in
folios as large as its length and place allow; a folio of 2 MiB that is mapped at a multiple of that
is one entry of the page table. (docs/adr/011-huge-pages.md)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO

HUGE_PAGE = 2 << 20  # bytes: x86-64, and AArch64 with pages of 4 KiB
_PENDING_BYTES = 4 * HUGE_PAGE
_PIECES = 1000  # of one call; Linux takes 1024


class BlockWriter:
    """Appends to a file in calls that begin and end at multiples of HUGE_PAGE, without a copy.

    `file` is open for writing and has a descriptor; its position is the end only after `flush`.
    What is given to `write` must not change before that. `told` hears up to where the file is
    written.
    """

    def __init__(self, file: BinaryIO, told: Callable[[int], None] = lambda end: None) -> None:
        file.flush()
        self._file, self._end, self._told = file, file.tell(), told
        self._pending: list[memoryview] = []
        self._pending_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        """Take `data`, and write whole blocks once there are some. Raises OSError."""
        if not len(data):
            return
        self._pending.append(memoryview(data))
        self._pending_bytes += len(data)
        if self._pending_bytes >= _PENDING_BYTES:
            self._write(self._pending_bytes - (self._end + self._pending_bytes) % HUGE_PAGE)
        elif len(self._pending) >= _PIECES:
            self._pending = [memoryview(b"".join(self._pending))]

    def flush(self) -> None:
        """Write what is left; the file's position is behind it. Raises OSError."""
        self._write(self._pending_bytes)
        self._file.seek(self._end)

    def _write(self, size_bytes: int) -> None:
        """Write the first bytes of what is pending."""
        while size_bytes:
            pieces, taken = list[memoryview](), 0
            for piece in self._pending:
                pieces.append(piece[: size_bytes - taken])
                taken += len(pieces[-1])
                if taken == size_bytes:
                    break
            written = os.pwritev(self._file.fileno(), pieces, self._end)
            self._drop(written)
            self._told(self._end)
            size_bytes -= written

    def _drop(self, size_bytes: int) -> None:
        """Forget the first bytes of what is pending: they are in the file."""
        self._end += size_bytes
        self._pending_bytes -= size_bytes
        whole = 0
        while whole < len(self._pending) and len(self._pending[whole]) <= size_bytes:
            size_bytes -= len(self._pending[whole])
            whole += 1
        del self._pending[:whole]
        if size_bytes:
            self._pending[0] = self._pending[0][size_bytes:]
