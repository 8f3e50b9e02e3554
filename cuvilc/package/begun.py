"""A package that is begun before its library is linked: weights are packed, written and hashed
while kernels still compile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cuvilc import artifact
from cuvilc.package.check import check_plan
from cuvilc.package.destination import os_errors, sibling
from cuvilc.package.elf import SEGMENT_ALIGN, check_segment, end_segment
from cuvilc.package.image import ImageWriter, weight_order
from cuvilc.package.plan import Plan
from cuvilc.package.weights import Weights, WeightsAhead, WeightsSummary

# Of weights, from which on it pays, and the room for the library, which is mostly a hole in the
# file, is little beside them.
_WORTH_BYTES = 32 << 20
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
        self._ahead = WeightsAhead(weights, weight_order(plan))
        self._thread = ThreadPoolExecutor(1, "image")
        self._stored = self._thread.submit(self._store)

    def _store(self) -> None:
        self.image.store(self._ahead)
        self._thread.submit(os.fsync, self.file.fileno())  # the disk need not wait; see `_finish`

    def finish(
        self,
        library: bytes,
        metadata: Callable[[WeightsSummary], bytes],
        adapters: Callable[[bytes], Sequence[bytes]],
    ) -> None:
        """Write what is missing, as `write_image` would; raises ElfError, and what `store` did."""
        self._stored.result()
        self.file.seek(0)
        self.file.write(library)
        check_segment(self.file, len(library), self.offset)
        self.file.seek(self.offset)
        self.image.finish(metadata, adapters)
        end_segment(self.file, self.offset)
        self.file.flush()

    def close(self) -> None:
        """End all work, done or not."""
        self._ahead.__exit__(None, None, None)
        self._thread.shutdown()
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
