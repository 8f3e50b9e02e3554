"""Weights as bytes: streamed to a file one at a time, equal ones stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from cuvilc.diagnostics import fail
from cuvilc.package.codes import BAD_PLAN

WEIGHT_ALIGN = 64
_CHUNK_BYTES = 4 << 20
_SAMPLE_BYTES = 64


@dataclass(frozen=True)
class LazyWeight:
    """A weight that is computed (packed, converted) when it is written, and then let go of."""

    nbytes: int
    make: Callable[[], NDArray[np.generic]]


Weight = NDArray[np.generic] | LazyWeight
Weights = Mapping[str, Weight]


@dataclass(frozen=True)
class WeightsSummary:
    """The weights section as written: `count` distinct weights, `size_bytes` with padding."""

    sha256: str
    size_bytes: int
    count: int


class WeightsWriter:
    """Appends weights to `file`, open for reading and writing, from the section's start on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = file.tell()
        self._size_bytes = 0
        self._hash = hashlib.sha256()
        self._stored: dict[bytes, list[int]] = {}
        self._count = 0

    def add(self, key: str, weight: Weight) -> int:
        """Store `weight` unless equal bytes are stored already; their offset in the section."""
        data = _as_bytes(key, weight)
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
        return WeightsSummary(self._hash.hexdigest(), self._size_bytes, self._count)

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._size_bytes += len(data)

    def _equals(self, offset: int, data: NDArray[np.uint8]) -> bool:
        """Whether the stored bytes at `offset` are `data`; fingerprints only made that likely."""
        self._file.seek(self._start + offset)
        equal = all(self._file.read(len(chunk)) == chunk for chunk in _chunks(data))
        self._file.seek(self._start + self._size_bytes)
        return equal


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
    places = np.linspace(0, max(data.size - _SAMPLE_BYTES, 0), num=16, dtype=np.int64)
    samples = [data[begin : begin + _SAMPLE_BYTES].tobytes() for begin in places]
    return b"".join([data.size.to_bytes(8, "little"), *samples])
