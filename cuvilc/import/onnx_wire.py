"""Reads an ONNX file's protobuf without copying its weights.

`read` walks the wire format, takes the big `raw_data` of the main graph's initialisers out of the
message and remembers where in the file they lie; what remains is small and goes to protobuf. So
weights are only ever a view of the mapped file, and a file above protobuf's 2 GiB still loads.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from cuvilc.diagnostics import CuvilError, fail

from . import codes

BIG_BYTES = 4096  # smaller raw_data stays in the message
# Between two looks at whether the digest is still wanted. Each waits for the interpreter, which the
# importer keeps busy: with 4 MiB the digest of a large file took twice as long.
_HASHED_BYTES = 32 << 20
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # field numbers in ModelProto, GraphProto, TensorProto
# ModelProto's fields and their wire types, by onnx.proto.
MODEL_FIELDS = {
    1: VARINT, 2: LENGTH, 3: LENGTH, 4: LENGTH, 5: VARINT, 6: LENGTH, 7: LENGTH, 8: LENGTH,
    14: LENGTH,
    20: LENGTH, 25: LENGTH, 26: LENGTH,
}  # fmt: skip
Buffer = mmap.mmap | bytes


class WireError(ValueError):
    """The bytes are no protobuf message; `offset` says where they stop being one."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass
class WireModel:
    """A file's message without big weights, where those lie, and the mapped file itself."""

    message: bytes
    buffer: Buffer
    blobs: dict[int, tuple[int, int]] = field(default_factory=dict)  # initialiser: offset, length
    initializers: int = 0  # met so far


def varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """(value, offset after it)."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError("a number breaks off", at)


def fields(data: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, wire type, start, start of content, end) for each field of a message."""
    while at < end:
        start = at
        tag, at = varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        content = at
        if wire == VARINT:
            _, at = varint(data, at, end)
        elif wire == LENGTH:
            size, content = varint(data, at, end)
            at = content + size
        elif wire in (FIXED64, FIXED32):
            at += 8 if wire == FIXED64 else 4
        else:
            raise WireError(f"field {number} has wire type {wire}", start)
        if number == 0 or at > end:
            raise WireError(
                f"field {number} needs {at - content} bytes, {max(end - content, 0)} are left",
                start,
            )
        yield number, wire, start, content, at


def looks_like_model(path: Path, head: bytes) -> int:
    """0 to 100: how surely the file is a ModelProto. 50: it begins like one but breaks off."""
    if not head or head[0] & 7 not in (VARINT, LENGTH):
        return 0
    seen: list[int] = []
    try:
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for number, wire, *_ in fields(data, 0, len(data)):
                if MODEL_FIELDS.get(number) != wire:
                    return 50 if seen[:1] == [1] and len(seen) > 1 else 0
                seen.append(number)
    except (WireError, OSError, ValueError):
        return 50 if seen[:1] == [1] else 0
    return 90 if GRAPH in seen else 0


def read(path: Path) -> WireModel:
    """Map the file and take its message apart. CuvilError for what is not a whole message."""
    try:
        with open(path, "rb") as f:
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise fail(codes.UNREADABLE, f"cannot read the model: {error}", place=str(path)) from None
    model = WireModel(b"", data)
    parts: list[bytes] = []
    try:
        for number, wire, start, content, end in fields(data, 0, len(data)):
            if number == GRAPH and wire == LENGTH:
                graph = b"".join(_graph_parts(model, content, end))
                parts += [data[start : start + 1], _varint_bytes(len(graph)), graph]
            else:
                parts.append(data[start:end])
    except WireError as error:
        raise corrupt(path, str(error), error.offset, len(data)) from None
    model.message = b"".join(parts)
    return model


@contextmanager
def digest(data: Buffer) -> Iterator[Future[str]]:
    """SHA-256 of a mapped file, computed on a thread that has ended where the block ends.

    If it went on after a refusal, and the file was cut meanwhile, reading a page beyond its end
    would end the process.
    """
    stopped = Event()

    def compute() -> str:
        hasher = hashlib.sha256()
        for at in range(0, len(data), _HASHED_BYTES):
            if stopped.is_set():
                break
            hasher.update(memoryview(data)[at : at + _HASHED_BYTES])
        return hasher.hexdigest()

    with ThreadPoolExecutor(1, "sha256") as pool:
        try:
            yield pool.submit(compute)
        finally:
            stopped.set()


def corrupt(path: Path, why: str, offset: int, size_bytes: int) -> CuvilError:
    return fail(
        codes.CORRUPT, f"the model is truncated or damaged: {why}", place=f"{path}: byte {offset}",
        evidence=f"the file has {size_bytes} bytes",
    )  # fmt: skip


def _graph_parts(model: WireModel, at: int, end: int) -> Iterator[bytes]:
    data = model.buffer
    kept = at  # everything from here on is copied as it stands
    for number, wire, start, content, stop in fields(data, at, end):
        if number != INITIALIZER or wire != LENGTH:
            continue
        if stop - content >= BIG_BYTES:
            tensor = _tensor_without_blob(model, content, stop)
            if tensor is not None:
                yield data[kept:start]
                yield data[start : start + 1] + _varint_bytes(len(tensor)) + tensor
                kept = stop
        model.initializers += 1
    yield data[kept:end]


def _tensor_without_blob(model: WireModel, at: int, end: int) -> bytes | None:
    data, rest, found = model.buffer, [], False
    for number, wire, start, content, stop in fields(data, at, end):
        if number == RAW_DATA and wire == LENGTH and stop - content >= BIG_BYTES:
            model.blobs[model.initializers] = (content, stop - content)
            found = True
        else:
            rest.append(data[start:stop])
    return b"".join(rest) if found else None


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
