"""A package that is begun before its library is linked: weights are packed, written and hashed
while kernels still compile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from mmap import ACCESS_READ, ALLOCATIONGRANULARITY, mmap
from pathlib import Path
from threading import Condition, Event

from cuvilc import artifact
from cuvilc.package.check import check_plan
from cuvilc.package.destination import os_errors, sibling
from cuvilc.package.elf import SEGMENT_ALIGN, check_segment, end_segment
from cuvilc.package.image import ImageWriter, Stored, weight_order
from cuvilc.package.plan import Plan
from cuvilc.package.weights import Weights, WeightsAhead, WeightsSummary, places_if_all_differ

# Of weights, from which on it pays, and the room for the library, which is mostly a hole in the
# file, is little beside them.
_WORTH_BYTES = 32 << 20
_HASHED_BYTES = 16 << 20  # between two looks at how far the file is written
_RUNTIME_BYTES = 192 << 10  # the runtime, with a third to spare
_KERNEL_BYTES = 6 << 10  # of code and its unwinding tables, on one level; most have half of it


class Begun:
    """The folder that becomes the package, and in it the library's file with the weights in their
    place. What stands before `offset` is for `write_package` to write.
    """

    def __init__(
        self, staging: Path, plan: Plan, weights: Weights, features: Mapping[str, int]
    ) -> None:
        self.staging, self.offset = staging, _room(plan)
        path = staging / artifact.LIBRARY_FILE
        # With the permissions that a linker gives.
        self.file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o777), "r+b")
        self.file.seek(self.offset)
        self.image = ImageWriter(self.file, plan, features)
        self._plan, self._weights = plan, weights
        self._ahead = WeightsAhead(weights, weight_order(plan))
        self._progress, self._written, self._ended = Condition(), 0, False
        self._abandoned = Event()  # by those who want the hash
        self._thread, self._hasher = ThreadPoolExecutor(1, "image"), ThreadPoolExecutor(1, "sha256")
        self._stored = self._thread.submit(self._store)

    def _store(self) -> None:
        try:
            self.image.store(self._ahead, self._told)
        finally:
            with self._progress:
                self._ended = True
                self._progress.notify()
        self._thread.submit(os.fsync, self.file.fileno())  # the disk need not wait; see `_finish`

    def _told(self, end: int) -> None:
        with self._progress:
            self._written = end
            self._progress.notify()

    def finish(
        self,
        library: bytes,
        metadata: Callable[[WeightsSummary], bytes],
        adapters: Callable[[bytes], Sequence[bytes]],
    ) -> str:
        """Write what is missing, as `write_image` would; the file's SHA-256, or "" where that would
        have to be computed yet. Raises ElfError, and what `store` did.
        """
        if self._plan.adaptable:  # their hash is part of what is missing
            self._stored.result()
            self._write_rest(library, self._known(), metadata, adapters)
            return ""
        sizes = {key: self._weights[key].nbytes for key in weight_order(self._plan)}
        expected = places_if_all_differ(sizes)
        self._write_rest(library, expected, metadata, adapters)
        digest = self._hasher.submit(self._sha256, self.image.weights_at + expected[1].size_bytes)
        self._stored.result()
        if self._known() == expected:
            return digest.result()
        self._abandoned.set()
        digest.result()  # or it would read what is cut off
        os.ftruncate(self.file.fileno(), self.image.weights_at + self._known()[1].size_bytes)
        self._write_rest(library, self._known(), metadata, adapters)
        return ""

    def _known(self) -> Stored:
        assert self.image.stored is not None, "the thread has ended without an error"
        return self.image.stored

    def _write_rest(
        self,
        library: bytes,
        weights: Stored,
        metadata: Callable[[WeightsSummary], bytes],
        adapters: Callable[[bytes], Sequence[bytes]],
    ) -> None:
        """By a handle of its own, for the weights may still be on their way."""
        with (self.staging / artifact.LIBRARY_FILE).open("r+b") as file:
            file.write(library)
            check_segment(file, len(library), self.offset)
            file.seek(self.offset)
            self.image.write_rest(file, weights, metadata, adapters)
            end_segment(file, self.offset)

    def _sha256(self, weights_end: int) -> str:
        """Of the file, which is complete but for weights: read as far as they are written."""
        digest, done = sha256(), 0
        descriptor = self.file.fileno()
        size_bytes = os.fstat(descriptor).st_size
        while done < size_bytes and not self._abandoned.is_set():
            end = self._readable(done, weights_end, size_bytes)
            low = done - done % ALLOCATIONGRANULARITY
            # Where the page cache has it, uncopied, and no more at once than it takes.
            with (
                mmap(descriptor, end - low, access=ACCESS_READ, offset=low) as content,
                memoryview(content)[done - low :] as piece,
            ):
                digest.update(piece)
            done = end
        return digest.hexdigest()

    def _readable(self, done: int, weights_end: int, size_bytes: int) -> int:
        """Up to where the file can be read by now, further than `done`."""
        if done < self.image.weights_at:
            return self.image.weights_at
        with self._progress:
            self._progress.wait_for(lambda: self._ended or self._written > done)
            end = size_bytes if self._ended or self._written >= weights_end else self._written
        return min(end, done + _HASHED_BYTES)

    def close(self) -> None:
        """End all work, done or not."""
        self._abandoned.set()
        self._ahead.__exit__(None, None, None)
        self._thread.shutdown()
        self._hasher.shutdown()
        self.file.close()


@contextmanager
def begun(
    plan: Plan, weights: Weights, features: Mapping[str, int], destination: Path
) -> Iterator[Begun | None]:
    """The package begun for `destination`, or None where that would not pay.

    What `write_package` has not put in its place is gone after the block. CUV507 to CUV511.
    """
    if sum(weights[key].nbytes for key in weight_order(plan) if key in weights) < _WORTH_BYTES:
        yield None
        return
    check_plan(plan, weights, features)
    with os_errors(destination):
        staging = sibling(destination, "new")
        staging.mkdir()
    try:
        with os_errors(destination):
            made = Begun(staging, plan, weights, features)
        try:
            yield made
        finally:
            made.close()
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _room(plan: Plan) -> int:
    """Where the image begins: a guess of the library's size, from nothing but the plan."""
    codes = {plan.code_symbol(k, i) for i in range(len(plan.levels)) for k in plan.kernels}
    guess = _RUNTIME_BYTES + _KERNEL_BYTES * len(codes)
    return -(-guess // SEGMENT_ALIGN) * SEGMENT_ALIGN
