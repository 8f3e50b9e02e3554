"""Tensors of a safetensors file, mapped: checked before anything in it is believed, never copied.

Format: 8 bytes, little endian, the header's length; the header, JSON, name -> {dtype, shape,
data_offsets} and `__metadata__`, texts by text; the data, tensor after tensor without gaps.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from cuvilc.adapter import Array
from cuvilc.diagnostics import CuvilError, Diagnostic, fail

from . import lora_codes as codes
from .registry import identify

_DTYPES: dict[str, Any] = {
    "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64,
    "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64,
    "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64, "BOOL": np.bool_,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip
FLOATS = tuple(np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16))

# A header beyond these bounds costs more memory than the largest adapter has reason for.
_HEADER_BYTES = 32 << 20
_BRACKETS = 1_000_000
_RANK = 8
_ENTRY = ("dtype", "shape", "data_offsets")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class TensorFile:
    """tensors: by name, read-only views of the mapped file; metadata: what its header says."""

    path: Path
    sha256: str
    tensors: dict[str, Array]
    metadata: dict[str, str] = field(default_factory=dict)


def read_tensors(path: Path, whose: str = "the adapter's tensors") -> TensorFile:
    """Map a safetensors file. CUV701 unreadable, CUV702 damaged, CUV709 unknown dtype, CUV710.

    whose: what the file holds, for messages.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise fail(codes.NOT_AN_ADAPTER, "this is no file", place=str(path))
            return _read(path, file)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot read {whose}: {reason}"
        raise fail(codes.NOT_AN_ADAPTER, message, place=str(path)) from None


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe where a file should be must not hang us."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read(path: Path, file: BinaryIO) -> TensorFile:
    head = file.read(8)
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(head, "little")
    if size < 10 or length > size - 8 or length < 2:
        rest = file.read(4096)
        raise _damaged(path, _why_no_header(head + rest, length, size))
    if length > _HEADER_BYTES:
        raise _damaged(path, f"its header of {length} bytes is beyond the {_HEADER_BYTES} allowed")
    header, metadata = _header(path, file.read(length))
    places = _places(path, header, size - 8 - length)
    file.seek(0)
    digest = sha256()
    while block := file.read(_CHUNK):
        digest.update(block)
    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tensors = {}
    for name, (dtype, shape, begin) in places.items():
        count = math.prod(shape)
        try:
            flat = np.frombuffer(data, dtype, count, 8 + length + begin if count else 0)
            tensors[name] = flat.reshape(shape)
        except ValueError:  # no elements, yet sizes that no array can have
            raise _damaged(path, f"`{name}` has the shape {list(shape)}") from None
    return TensorFile(path, digest.hexdigest(), tensors, metadata)


def _why_no_header(head: bytes, length: int, size: int) -> str:
    kind = identify(head)
    if "pickle" in kind or "PyTorch" in kind:
        return f"it is {kind}"
    if head[8:9] == b"{":
        return f"it ends within its header: {length} bytes announced, {size - 8} there"
    return f"it is {kind}"


def _header(path: Path, text: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The header's tensors and its metadata."""
    if text.count(b"[") + text.count(b"{") > _BRACKETS or text.count(b",") > 4 * _BRACKETS:
        raise _damaged(path, "its header holds more entries than any adapter has")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not right: {error}") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, "`__metadata__` of its header is not texts by name")
    return header, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"`{name}` stands there twice")
        made[name] = value
    return made


def _places(path: Path, header: dict[str, Any], size: int) -> dict[str, tuple[Any, Any, int]]:
    """dtype, shape and first byte by name. Tensors fill the data one after another."""
    places: dict[str, tuple[Any, Any, int]] = {}
    spans = []
    unknown = []
    for name, entry in header.items():
        fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
        dtype, shape, span = (fields.get(k, ()) for k in _ENTRY)
        if not isinstance(dtype, str) or not _sizes(shape, _RANK) or not _sizes(span, 2):
            raise _damaged(path, f"the entry of `{name}` is not dtype, shape and data_offsets")
        if dtype not in _DTYPES:
            unknown.append(Diagnostic(codes.BAD_TENSOR_DTYPE, f"`{name}` is {dtype}", str(path)))
            continue
        kind = np.dtype(_DTYPES[dtype])
        if len(span) != 2 or span[1] - span[0] != math.prod(shape) * kind.itemsize:
            detail = f"{dtype}{shape} does not take the bytes {span}"
            raise _damaged(path, f"the place of `{name}` is not right: {detail}")
        places[name] = (kind, tuple(shape), span[0])
        spans.append((span[0], span[1], name))
    if unknown:
        raise CuvilError(*unknown)
    at, before = 0, "the header"
    for begin, end, name in sorted(spans):
        if begin != at:
            kind = "overlaps" if begin < at else "leaves a gap after"
            raise _damaged(path, f"`{name}` {kind} {before}: it begins at byte {begin}, not {at}")
        at, before = end, f"`{name}`"
    if at != size:
        raise _damaged(path, f"its tensors take {at} bytes, but {size} are there")
    return places


def _sizes(value: Any, most: int) -> bool:
    """A list of at most `most` sizes that fit 63 bits."""
    if not isinstance(value, list) or len(value) > most:
        return False
    return all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _damaged(path: Path, why: str) -> CuvilError:
    if "pickle" in why or "PyTorch" in why:
        return fail(codes.PICKLED, f"the tensors are pickled: {why}", place=str(path))
    return fail(codes.BAD_TENSOR_FILE, f"no whole safetensors file: {why}", place=str(path))


def check_values(tensors: dict[str, Array], place: str) -> Iterator[Diagnostic]:
    """CUV709 and CUV708 for tensors that are no floats or hold values that are not finite."""
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            yield Diagnostic(codes.BAD_TENSOR_DTYPE, f"`{name}` is {tensor.dtype}", place)
            continue
        flat = tensor.reshape(-1)
        for at in range(0, flat.size, _CHUNK):
            wrong = ~np.isfinite(flat[at : at + _CHUNK])
            if wrong.any():
                first = int(np.argmax(wrong)) + at
                index = [int(i) for i in np.unravel_index(first, tensor.shape)]
                message = f"`{name}` holds {flat[first]} at {index}"
                yield Diagnostic(codes.NOT_FINITE, message, place)
                break
