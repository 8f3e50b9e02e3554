"""TensorProto → NumPy array: inline data as a view, external data mapped and confined."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from cuvilc.diagnostics import CuvilError, fail

from . import codes
from .onnx_wire import WireModel

_T = onnx.TensorProto
DTYPES: dict[int, np.dtype[Any]] = {
    _T.FLOAT: np.dtype("float32"), _T.DOUBLE: np.dtype("float64"), _T.FLOAT16: np.dtype("float16"),
    _T.BFLOAT16: np.dtype(ml_dtypes.bfloat16), _T.BOOL: np.dtype("bool"),
    _T.INT8: np.dtype("int8"), _T.INT16: np.dtype("int16"), _T.INT32: np.dtype("int32"),
    _T.INT64: np.dtype("int64"), _T.UINT8: np.dtype("uint8"), _T.UINT16: np.dtype("uint16"),
    _T.UINT32: np.dtype("uint32"), _T.UINT64: np.dtype("uint64"),
    _T.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    _T.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    _T.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    _T.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    _T.FLOAT8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    _T.FLOAT6E2M3: np.dtype(ml_dtypes.float6_e2m3fn),
    _T.FLOAT6E3M2: np.dtype(ml_dtypes.float6_e3m2fn),
    _T.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
    _T.INT4: np.dtype(ml_dtypes.int4), _T.UINT4: np.dtype(ml_dtypes.uint4),
    _T.INT2: np.dtype(ml_dtypes.int2), _T.UINT2: np.dtype(ml_dtypes.uint2),
}  # fmt: skip
# Bits of elements that a file packs, the first in the lowest bits; here each takes a byte.
_PACKED = {
    _T.INT4: 4, _T.UINT4: 4, _T.FLOAT4E2M1: 4, _T.INT2: 2, _T.UINT2: 2,
    _T.FLOAT6E2M3: 6, _T.FLOAT6E3M2: 6,
}  # fmt: skip
# Whose int32_data are bits, not numbers; those of 4 and 2 bits are bytes as in raw_data.
_BITS = {
    _T.FLOAT16: 16, _T.BFLOAT16: 16, _T.FLOAT6E2M3: 6, _T.FLOAT6E3M2: 6,
    _T.FLOAT8E4M3FN: 8, _T.FLOAT8E4M3FNUZ: 8, _T.FLOAT8E5M2: 8, _T.FLOAT8E5M2FNUZ: 8,
    _T.FLOAT8E8M0: 8, _T.FLOAT4E2M1: 4,
}  # fmt: skip
MAX_ELEMENTS = 1 << 42


def type_name(elem_type: int) -> str:
    """ "FLOAT" and so on; the number where onnx has no name for it."""
    try:
        return str(_T.DataType.Name(elem_type))
    except ValueError:
        return f"type {elem_type}"


@dataclass
class TensorReader:
    """Reads the tensors of one model file."""

    path: Path
    wire: WireModel
    _files: dict[Path, mmap.mmap] = field(default_factory=dict)

    def read(self, tensor: Any, blob: tuple[int, int] | None = None) -> np.ndarray:
        """The tensor's array, read-only. `blob`: where in the file its bytes lie. CuvilError."""
        dtype, count = self._dtype(tensor), self._count(tensor)
        if tensor.data_location == _T.EXTERNAL:
            return self._external(tensor, dtype, count)
        if blob is not None:
            offset, length = blob
            self._check_bytes(tensor, dtype, count, length)
            return self._view(tensor, self.wire.buffer, offset, dtype, count)
        if tensor.HasField("raw_data"):
            raw = tensor.raw_data
            self._check_bytes(tensor, dtype, count, len(raw))
            return self._view(tensor, raw, 0, dtype, count)
        return self._typed(tensor, dtype, count)

    def _dtype(self, tensor: Any) -> np.dtype[Any]:
        found = DTYPES.get(tensor.data_type)
        if found is None:
            raise self.error(
                codes.BAD_TYPE, tensor, f"has elements of type {type_name(tensor.data_type)}"
            )
        return found

    def _count(self, tensor: Any) -> int:
        dims = list(tensor.dims)
        if any(d < 0 for d in dims) or prod(d for d in dims if d) > MAX_ELEMENTS:
            raise self.error(codes.BAD_TENSOR, tensor, f"has impossible dimensions {dims}")
        return prod(dims)

    def _check_bytes(self, tensor: Any, dtype: np.dtype[Any], count: int, length: int) -> None:
        bits = _PACKED.get(tensor.data_type, 8 * dtype.itemsize)
        want = (count * bits + 7) // 8
        if length != want:
            raise self.error(
                codes.BAD_TENSOR, tensor,
                f"has dimensions {list(tensor.dims)} of {dtype.name}, {want} bytes, "
                f"but {length} bytes of data",
            )  # fmt: skip

    def _view(
        self, tensor: Any, buffer: Any, offset: int, dtype: np.dtype[Any], count: int
    ) -> np.ndarray:
        shape = tuple(tensor.dims)
        if count == 0:
            return np.empty(shape, dtype)
        bits = _PACKED.get(tensor.data_type)
        if bits is not None:
            packed = np.frombuffer(buffer, np.uint8, (count * bits + 7) // 8, offset)
            return _unpack(packed, bits, dtype, count).reshape(shape)
        # np.frombuffer knows no ml_dtypes: take the bits, then view them.
        plain = dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
        return np.frombuffer(buffer, plain, count, offset).view(dtype).reshape(shape)

    def _typed(self, tensor: Any, dtype: np.dtype[Any], count: int) -> np.ndarray:
        """Data in float_data, int32_data and so on, as onnx.proto assigns them to types."""
        source: Any
        match tensor.data_type:
            case _T.FLOAT:
                source = tensor.float_data
            case _T.DOUBLE:
                source = tensor.double_data
            case _T.INT64:
                source = tensor.int64_data
            case _T.UINT32 | _T.UINT64:
                source = tensor.uint64_data
            case _:
                source = tensor.int32_data
        values = np.array(source, dtype=np.int64 if source is tensor.int32_data else None)
        bits = _PACKED.get(tensor.data_type, 8)
        if bits < 6 and len(values) == (count * bits + 7) // 8:
            packed = values.astype(np.uint8)
            return _unpack(packed, bits, dtype, count).reshape(tuple(tensor.dims))
        if len(values) != count:
            raise self.error(
                codes.BAD_TENSOR,
                tensor,
                f"has dimensions {list(tensor.dims)}, but {len(values)} elements",
            )
        if tensor.data_type in _BITS:
            stored = values & ((1 << _BITS[tensor.data_type]) - 1)
            return stored.astype(f"u{dtype.itemsize}").view(dtype).reshape(tuple(tensor.dims))
        return values.astype(dtype).reshape(tuple(tensor.dims))

    def _external(self, tensor: Any, dtype: np.dtype[Any], count: int) -> np.ndarray:
        entries = {e.key: e.value for e in tensor.external_data}
        if not all(isinstance(text, str) for pair in entries.items() for text in pair):
            raise self.error(codes.BAD_EXTERNAL, tensor, "has a location that is not UTF-8")
        data = self._open(tensor, entries.get("location", ""))
        try:
            offset = int(entries.get("offset", 0))
            length = int(entries.get("length", len(data) - offset))
        except ValueError:
            raise self.error(
                codes.BAD_EXTERNAL, tensor, "has an offset or length that is no number"
            ) from None
        if offset < 0 or length < 0 or offset + length > len(data):
            raise self.error(
                codes.BAD_EXTERNAL, tensor,
                f"lies at bytes {offset} to {offset + length} of a file of {len(data)} bytes",
            )  # fmt: skip
        self._check_bytes(tensor, dtype, count, length)
        return self._view(tensor, data, offset, dtype, count)

    def _open(self, tensor: Any, location: str) -> mmap.mmap:
        file = confined(self.path, location)
        if isinstance(file, str):
            raise self.error(
                codes.BAD_EXTERNAL, tensor, f"has external data at {location!r}: {file}"
            )
        if file not in self._files:
            try:
                handle = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
                try:
                    self._files[file] = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
                finally:
                    os.close(handle)
            except (OSError, ValueError) as error:
                raise self.error(
                    codes.BAD_EXTERNAL, tensor, f"has external data at {location!r}: {error}"
                ) from None
        return self._files[file]

    def error(self, code: str, tensor: Any, what: str) -> CuvilError:
        return fail(
            code,
            f"weight `{tensor.name}` {what}",
            place=f"{self.path}: initialiser `{tensor.name}`",
        )


def _unpack(packed: np.ndarray, bits: int, dtype: np.dtype[Any], count: int) -> np.ndarray:
    """Elements of 2, 4 or 6 bits, the first in the lowest; 6 bits go on in the next byte."""
    if bits == 6:
        padded = np.zeros((-(-len(packed) // 3), 4), np.uint8)  # 4 elements in 3 bytes
        whole = np.zeros(3 * len(padded), np.uint8)
        whole[: len(packed)] = packed
        padded[:, :3] = whole.reshape(-1, 3)
        packed = padded.view("<u4").reshape(-1)
    together = 8 * (3 if bits == 6 else 1) // bits
    codes = np.empty((len(packed), together), np.uint8)
    for n in range(together):
        codes[:, n] = (packed >> (n * bits)) & ((1 << bits) - 1)
    return codes.reshape(-1)[:count].view(dtype)


def confined(model: Path, location: str) -> Path | str:
    """The file that `location` means, if it truly lies beside the model; else why not."""
    parts = Path(location).parts
    if not location or "\0" in location or "\\" in location or Path(location).is_absolute():
        return "only a relative path is allowed"
    if ".." in parts:
        return "`..` is not allowed"
    # A model reached by a link (as in download caches) has its data beside the link or beside its
    # target.
    roots = {model.parent.resolve(), model.resolve().parent}
    try:
        real = (model.parent / location).resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError) as error:
        return getattr(error, "strerror", None) or str(error)
    if not any(real.is_relative_to(root) for root in roots):
        return "a symbolic link leaves the model's folder"
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_nlink > 1 and _links_inside(real.parent, status) < status.st_nlink:
        return "a hard link: the file also exists outside the model's folder"
    return real


def _links_inside(folder: Path, status: os.stat_result) -> int:
    with os.scandir(folder) as entries:
        return sum(e.inode() == status.st_ino and not e.is_symlink() for e in entries)
