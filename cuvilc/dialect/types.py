"""Tensor types as passes see them, and their spelling in MLIR.

`TensorType((batch, 3, 224, 224), "float32")` is `tensor<?x3x224x224xf32, #ai.dims<["batch", "3",
"224", "224"]>>`. The logical shape never changes with the layout: `layout="NCHW16c"` says that
memory holds [N, ⌈C/16⌉, H, W, 16], the last block filled up with unspecified values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from cuvilc._mlir import ir
from cuvilc.dialect.dims import Dim, Expr, Shape, ceildiv, is_static, product
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.dot_layout import dot_shape, from_dot, to_dot
from cuvilc.dialect.narrow import NARROW_INTEGERS, as_numpy
from cuvilc.dialect.narrow import numpy_dtype as numpy_dtype

_MLIR_DTYPES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "ui8", "uint16": "ui16", "uint32": "ui32", "uint64": "ui64", "bool": "i1",
    "float8_e4m3fn": "f8E4M3FN", "float8_e4m3fnuz": "f8E4M3FNUZ", "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ", "float8_e8m0fnu": "f8E8M0FNU", "float6_e2m3fn": "f6E2M3FN",
    "float6_e3m2fn": "f6E3M2FN", "float4_e2m1fn": "f4E2M1FN",
    "int4": "i4", "uint4": "ui4", "int2": "i2", "uint2": "ui2",
}  # fmt: skip
_FROM_MLIR = {v: k for k, v in _MLIR_DTYPES.items()}
DTYPES = tuple(_MLIR_DTYPES)
FLOATS = ("float32", "float64", "float16", "bfloat16")
PANEL = 32  # outputs in a block of packed weights, and of an adapter's B: CUVIL_PANEL (adapter.h)
MOST_BYTES = 1 << 47  # of one tensor: what a process can address


def dtype_name(dtype: np.dtype) -> str:
    """Inverse of numpy_dtype. KeyError for a dtype that has no place in the dialect."""
    name = np.dtype(dtype).name
    if name not in _MLIR_DTYPES:
        raise KeyError(name)
    return name


def item_bytes(name: str) -> int:
    return numpy_dtype(name).itemsize


@dataclass(frozen=True)
class TensorType:
    """Shape (ints and symbolic dims), dtype name, memory layout ("" is row-major)."""

    shape: Shape
    dtype: str = "float32"
    layout: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return is_static(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape of a static tensor."""
        return tuple(d for d in self.shape if isinstance(d, int))

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def physical_shape(self) -> Shape:
        """Extents in memory: the logical shape, or with its channel axis split into blocks."""
        if not self.layout:
            return self.shape
        if self.layout.startswith("dot"):
            return dot_shape(self.shape, self.layout)
        if self.layout.startswith("pack"):
            axis, block = pack_parts(self.layout)
            others = tuple(d for i, d in enumerate(self.shape) if i != axis)
            return (ceildiv(self.shape[axis], block), *others, block)
        block = channel_block(self.layout)
        n, c, *spatial = self.shape
        return (n, ceildiv(c, block), *spatial, block)

    @property
    def size_bytes(self) -> Dim:
        return product(self.physical_shape) * item_bytes(self.dtype)

    def with_(self, **changes: object) -> TensorType:
        return replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        dims = ",".join(str(d) for d in self.shape)
        return f"{_MLIR_DTYPES[self.dtype]}[{dims}]" + (f"@{self.layout}" if self.layout else "")


def channel_block(layout: str) -> int:
    """16 for "NCHW16c" and for its 1-D and 3-D kin "NCW16c", "NCDHW16c"."""
    digits = "".join(c for c in layout if c.isdigit())
    if not (layout.startswith("NC") and layout.endswith("c") and digits):
        raise ValueError(f"unknown layout {layout!r}")
    return int(digits)


def join_at_blocks(channels: Sequence[Dim], block: int) -> bool:
    """Whether parts of so many channels, one behind the other, all begin with a block."""
    return all(isinstance(c, int) and c % block == 0 for c in channels[:-1])


def pack_parts(layout: str) -> tuple[int, int]:
    """(axis, block) of a weight layout "pack{axis}_{block}": the axis is split into blocks, the
    block number comes first, then the other axes in order, the place in the block last; the tail is
    zeros.
    """
    axis, block = layout.removeprefix("pack").split("_")
    return int(axis), int(block)


def to_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """A row-major array as it lies in memory in `layout`; the filled-up tail is zeros.

    int4 and int2 come as int8: a byte carries the sign, as kernels write it.
    """
    array = as_numpy(array) if array.dtype.name in NARROW_INTEGERS else array
    if not layout:
        return np.ascontiguousarray(array)
    if layout.startswith("dot"):
        return to_dot(array, layout)
    is_weight = layout.startswith("pack")
    axis, block = pack_parts(layout) if is_weight else (1, channel_block(layout))
    extent = array.shape[axis]
    blocks = -(-extent // block)
    if extent % block:
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, blocks * block - extent)
        array = np.pad(array, widths)
    shape = array.shape
    split = array.reshape(*shape[:axis], blocks, block, *shape[axis + 1 :])
    split = np.moveaxis(split, axis + 1, -1)
    return np.ascontiguousarray(np.moveaxis(split, axis, 0) if is_weight else split)


def from_layout(array: np.ndarray, layout: str, shape: tuple[int, ...]) -> np.ndarray:
    """Inverse of to_layout: the logical array of `shape`."""
    if not layout:
        return array
    if layout.startswith("dot"):
        return from_dot(array, layout, shape)
    is_weight = layout.startswith("pack")
    axis = pack_parts(layout)[0] if is_weight else 1
    array = np.moveaxis(array, 0, axis) if is_weight else array
    array = np.moveaxis(array, -1, axis + 1)
    merged = array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])
    return merged[tuple(slice(0, n) for n in shape)]


def bytes_at_least(t: TensorType) -> int:
    """Bytes of a tensor whose open sizes are 1; 0 where a size is 0."""
    return prod(d for d in t.shape if isinstance(d, int)) * item_bytes(t.dtype)


class TypeTable:
    """Converts between TensorType and MLIR types of one context, remembering both ways.

    `values`: what attributes of the context are in Python. `accepted`: operations that their
    declarations have accepted (op.py).
    """

    def __init__(self) -> None:
        self.values: dict[ir.Attribute, Any] = {}
        self.accepted: set[tuple[Any, ...]] = set()
        self._to: dict[TensorType, ir.Type] = {}
        self._from: dict[ir.Type, TensorType] = {}

    def to_mlir(self, t: TensorType) -> ir.Type:
        found = self._to.get(t)
        if found is None:
            found = self._to[t] = self._spell(t)
            self._from[found] = t
        return found

    def _spell(self, t: TensorType) -> ir.Type:
        factors = (c for d in t.shape if isinstance(d, Expr) for _, c in d.terms)
        if bytes_at_least(t) > MOST_BYTES or any(abs(c) > MOST_BYTES for c in factors):
            raise ValueError(f"{t} has more bytes than a machine can address")
        _ = t.size_bytes  # an expression; TooComplex here rather than where memory is planned
        dims = "[" + ", ".join(f'"{d}"' for d in t.shape) + "]"
        encoding = ""
        if t.layout:
            encoding = f', #ai.layout<"{t.layout}", {"[]" if t.is_static else dims}>'
        elif not t.is_static:
            encoding = f", #ai.dims<{dims}>"
        extents = "".join(f"{d if isinstance(d, int) else '?'}x" for d in t.shape)
        return ir.Type.parse(f"tensor<{extents}{_MLIR_DTYPES[t.dtype]}{encoding}>")

    def from_mlir(self, t: ir.Type) -> TensorType:
        found = self._from.get(t)
        if found is None:
            found = self._from[t] = _read(ir.RankedTensorType(t))
            self._to.setdefault(found, t)
        return found


def _read(t: ir.RankedTensorType) -> TensorType:
    dtype = _FROM_MLIR[str(t.element_type)]
    encoding = t.encoding
    layout, dims = "", None
    if encoding is not None:
        params = list(type(encoding)(encoding).params)
        if len(params) == 2:
            layout = ir.StringAttr(params[0]).value
        spelled = [ir.StringAttr(d).value for d in ir.ArrayAttr(params[-1])]
        dims = tuple(parse(d) for d in spelled) if spelled else None
    if dims is None:
        if not t.has_static_shape:
            raise ValueError(f"{t}: a dynamic dimension needs its name in #ai.dims")
        dims = tuple(t.shape)
    if len(dims) != t.rank or any(
        isinstance(d, int) == t.is_dynamic_dim(i) or (isinstance(d, int) and d != t.get_dim_size(i))
        for i, d in enumerate(dims)
    ):
        raise ValueError(f"{t}: the encoding's dimensions contradict the shape")
    return TensorType(dims, dtype, layout)
