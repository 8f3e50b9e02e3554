"""Memory of large outputs, used again once the caller has let go of the arrays.

New memory costs a page fault for every 4 KiB that a kernel writes first, some 2 µs each on a
virtual machine: with the key and value caches of a language model that was a quarter of a run.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np

_LEAST = 128 << 10  # bytes; smaller pieces the allocator keeps mapped itself
_IDLE = 2  # blocks to keep: a caller holds one while the next run writes the other
_LINE = 64  # bytes of a cache line


class _Lease:
    """Owns a block for as long as an array, or a view of one, looks at it.

    The array is of bytes without a meaning ("|V"), as the interface knows no bfloat16; a view of it
    has the dtype.
    """

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "version": 3, "shape": dims, "typestr": f"|V{dtype.itemsize}", "data": (address, False)
        }  # fmt: skip


class Blocks:
    """Blocks of one output. Any thread may take one, and any may let the last array go."""

    def __init__(self) -> None:
        self._idle: deque[np.ndarray] = deque(maxlen=_IDLE)  # its operations are atomic
        self._keeps = True
        self._weak = weakref.ref(self)  # arrays that outlive the model hold no idle memory

    def empty(self, dims: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """An array as of np.empty; its memory comes back here when nothing refers to it."""
        size = dtype.itemsize
        for d in dims:
            size *= d
        if size < _LEAST:
            return np.empty(dims, dtype)
        block = self._take(size)
        address = -(-block.ctypes.data // _LINE) * _LINE
        lease = _Lease(address, dims, dtype)
        back = weakref.finalize(lease, _give_back, self._weak, block)
        back.atexit = False
        return np.asarray(lease).view(dtype)

    def _take(self, size: int) -> np.ndarray:
        """One that fits without wasting half of itself; others are of shapes gone by."""
        while self._idle:
            try:
                block = self._idle.pop()
            except IndexError:  # another thread had it
                break
            if size <= block.nbytes - _LINE <= 2 * size:
                return block
        return np.empty(size + _LINE, np.uint8)

    def give(self, block: np.ndarray) -> None:
        """Take back a block that no array looks at any more."""
        if self._keeps:
            self._idle.append(block)
        if not self._keeps:  # another thread may have cleared meanwhile
            self._idle.clear()

    def clear(self) -> None:
        """Give idle memory back to the system, and from now on what comes back too."""
        self._keeps = False
        self._idle.clear()


def _give_back(owner: weakref.ref[Blocks], block: np.ndarray) -> None:
    blocks = owner()
    if blocks is not None:
        blocks.give(block)
