"""Weights as bytes: streamed to a file one at a time, equal ones stored once."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from cuvilc.diagnostics import fail
from cuvilc.package.blocks import BlockWriter
from cuvilc.package.codes import BAD_PLAN

WEIGHT_ALIGN = 64
_CHUNK_BYTES = 4 << 20
_SAMPLE_BYTES = 64
AHEAD_BYTES = 32 << 20  # made, or written and not yet hashed, at any moment


@dataclass(frozen=True)
class LazyWeight:
    """A weight that is computed (packed, converted) when it is written, and then let go of."""

    nbytes: int
    make: Callable[[], NDArray[np.generic]]


Weight = NDArray[np.generic] | LazyWeight
Weights = Mapping[str, Weight]


@dataclass(frozen=True)
class WeightsSummary:
    """The weights section as written: `count` distinct weights, `size_bytes` with padding.

    `sha256` is "" where nobody asked for it.
    """

    sha256: str
    size_bytes: int
    count: int


class WeightsAhead:
    """Makes weights on a thread, in the order in which they will be asked for, a little ahead.

    A weight is packed while the library is linked and the one before it is written. Use as a
    context; an error of a weight is raised by `take`.
    """

    def __init__(self, weights: Weights, order: Iterable[str]) -> None:
        self.weights = weights
        self._order = iter(order)
        self._made: deque[tuple[str, Future[NDArray[np.uint8]]]] = deque()
        self._ahead_bytes = 0
        self._thread = ThreadPoolExecutor(1, "weights")
        self._fill()

    def __enter__(self) -> WeightsAhead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def take(self, key: str) -> NDArray[np.uint8]:
        """The bytes of the next weight, which is `key`."""
        expected, future = self._made.popleft()
        assert key == expected, f"weights are taken in order: {expected}, not {key}"
        self._ahead_bytes -= self.weights[key].nbytes
        self._fill()
        return future.result()

    def _fill(self) -> None:
        while self._ahead_bytes < AHEAD_BYTES and (key := next(self._order, None)) is not None:
            self._ahead_bytes += self.weights[key].nbytes
            self._made.append((key, self._thread.submit(_as_bytes, key, self.weights[key])))


class _Hasher:
    """SHA-256 on a thread of its own, over what is handed to it, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, "sha256")
        self._pending: deque[tuple[int, Future[None]]] = deque()
        self._pending_bytes = 0

    def update(self, data: bytes | memoryview) -> None:
        """Waits when too much is pending, since what is pending stays in memory."""
        self._pending.append((len(data), self._thread.submit(self._hash.update, data)))
        self._pending_bytes += len(data)
        while self._pending_bytes > AHEAD_BYTES:
            size_bytes, future = self._pending.popleft()
            future.result()
            self._pending_bytes -= size_bytes

    def finish(self) -> str:
        self._thread.shutdown()
        return self._hash.hexdigest()


def places_if_all_differ(sizes: Mapping[str, int]) -> tuple[dict[str, int], WeightsSummary]:
    """The offset of each weight, by its bytes, if no two of them are equal."""
    places, end = dict[str, int](), 0
    for key, size_bytes in sizes.items():
        places[key] = end + -end % WEIGHT_ALIGN
        end = places[key] + size_bytes
    return places, WeightsSummary("", end, len(places))


class WeightsWriter:
    """Appends weights to `file`, on disk, open for reading and writing, from its position on.

    `hashed`: the section's own hash is wanted. `told`: see BlockWriter.
    """

    def __init__(
        self, file: BinaryIO, hashed: bool = False, told: Callable[[int], None] = lambda end: None
    ) -> None:
        self._file = file
        self._blocks = BlockWriter(file, told)
        self._start = file.tell()
        self._size_bytes = 0
        self._hasher = _Hasher() if hashed else None
        self._stored: dict[bytes, list[int]] = {}
        self._count = 0

    def add(self, data: NDArray[np.uint8]) -> int:
        """Store a weight unless equal bytes are stored already; their offset in the section."""
        candidates = self._stored.setdefault(_fingerprint(data), [])
        for offset in candidates:
            if self._equals(offset, data):
                return offset
        self._put(bytes(-self._size_bytes % WEIGHT_ALIGN))
        offset = self._size_bytes
        for chunk in _chunks(data):
            self._put(chunk)
        candidates.append(offset)
        self._count += 1
        return offset

    def finish(self) -> WeightsSummary:
        self._blocks.flush()
        sha256 = self._hasher.finish() if self._hasher else ""
        return WeightsSummary(sha256, self._size_bytes, self._count)

    def _put(self, data: bytes | memoryview) -> None:
        self._blocks.write(data)
        if self._hasher:
            self._hasher.update(data)
        self._size_bytes += len(data)

    def _equals(self, offset: int, data: NDArray[np.uint8]) -> bool:
        """Whether the stored bytes at `offset` are `data`; fingerprints only made that likely."""
        self._blocks.flush()
        self._file.seek(self._start + offset)
        return all(self._file.read(len(chunk)) == chunk for chunk in _chunks(data))


def _as_bytes(key: str, weight: Weight) -> NDArray[np.uint8]:
    """The weight's bytes in C order, little-endian; no copy where it has this form already."""
    array = weight.make() if isinstance(weight, LazyWeight) else weight
    if array.nbytes != weight.nbytes:
        raise fail(
            BAD_PLAN,
            f"weight `{key}` has {array.nbytes} bytes and was announced with {weight.nbytes}",
        )
    if array.dtype.hasobject:
        raise fail(BAD_PLAN, f"weight `{key}` holds Python objects")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat: NDArray[np.uint8] = np.ascontiguousarray(little).reshape(-1).view(np.uint8)
    return flat


def _chunks(data: NDArray[np.uint8]) -> Iterator[memoryview]:
    for begin in range(0, data.size, _CHUNK_BYTES):
        yield memoryview(data[begin : begin + _CHUNK_BYTES])  # type: ignore[arg-type]


def _fingerprint(data: NDArray[np.uint8]) -> bytes:
    """Length and a few samples. Equal weights have equal fingerprints, different ones seldom do."""
    last = max(data.size - _SAMPLE_BYTES, 0)
    places = (i * last // 15 for i in range(16))
    samples = [data[begin : begin + _SAMPLE_BYTES].tobytes() for begin in places]
    return b"".join([data.size.to_bytes(8, "little"), *samples])
