"""Memory of large outputs, used again once the caller has let go of the arrays.

New memory costs a page fault for every 4 KiB that a kernel writes first, some 2 µs each on a
virtual machine: with the key and value caches of a language model that was a quarter of a run.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np

_LEAST = 128 << 10  # bytes; smaller pieces the allocator keeps mapped itself
_IDLE = 2  # blocks to keep: a caller holds one while the next run writes the other
_LINE = 64  # bytes of a cache line


class _Block(NamedTuple):
    """Memory, and where its first whole line begins."""

    memory: np.ndarray
    address: int

    @staticmethod
    def of(size: int) -> _Block:
        """A new one with room for `size` bytes from the address on."""
        memory = np.empty(size + _LINE, np.uint8)
        return _Block(memory, -(-memory.ctypes.data // _LINE) * _LINE)


class _Lease:
    """Owns a block for as long as an array, or a view of one, looks at it.

    The array is of bytes without a meaning ("|V") where the interface does not know the dtype, as
    bfloat16; a view of it has the dtype. (A finaliser of `weakref` would cost as much as all else.)
    """

    __slots__ = ("__array_interface__", "_block", "_owner")

    def __init__(
        self, block: _Block, owner: weakref.ref[Blocks], dims: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._block, self._owner = block, owner
        spelled = dtype.str if dtype.isbuiltin == 1 else f"|V{dtype.itemsize}"
        self.__array_interface__ = {
            "version": 3, "shape": dims, "typestr": spelled, "data": (block.address, False)
        }  # fmt: skip

    def __del__(self) -> None:
        blocks = self._owner()
        if blocks is not None:
            blocks.give(self._block)


class Blocks:
    """Blocks of one output. Any thread may take one, and any may let the last array go."""

    def __init__(self) -> None:
        self._idle: deque[_Block] = deque(maxlen=_IDLE)  # its operations are atomic
        self._keeps = True
        self._weak = weakref.ref(self)  # arrays that outlive the model hold no idle memory

    def empty(self, dims: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """An array as of np.empty; its memory comes back here when nothing refers to it."""
        size = dtype.itemsize
        for d in dims:
            size *= d
        if size < _LEAST:
            return np.empty(dims, dtype)
        made = np.asarray(_Lease(self._take(size), self._weak, dims, dtype))
        return made if dtype.isbuiltin == 1 else made.view(dtype)

    def _take(self, size: int) -> _Block:
        """One that fits without wasting half of itself; others are of shapes gone by."""
        while self._idle:
            try:
                block = self._idle.pop()
            except IndexError:  # another thread had it
                break
            if size <= block.memory.nbytes - _LINE <= 2 * size:
                return block
        return _Block.of(size)

    def give(self, block: _Block) -> None:
        """Take back a block that no array looks at any more."""
        if self._keeps:
            self._idle.append(block)
        if not self._keeps:  # another thread may have cleared meanwhile
            self._idle.clear()

    def clear(self) -> None:
        """Give idle memory back to the system, and from now on what comes back too."""
        self._keeps = False
        self._idle.clear()
