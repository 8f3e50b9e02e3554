"""The base checkpoint as evidence: which weight of the model has a parameter's values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from cuvilc.adapter import Array
from cuvilc.diagnostics import fail

from . import lora_codes as codes
from .lora_claims import Place, Wanted
from .lora_index import Index, Reader, Weight
from .lora_names import relate, split_parameter
from .lora_tensors import read_tensors

_FIRST = 64  # elements that are compared before all are


@dataclass(frozen=True)
class Base:
    """A checkpoint's tensors by name. `path`: the file or folder given."""

    path: Path
    tensors: dict[str, Array]

    @staticmethod
    def read(path: Path) -> Base:
        """Map a safetensors file, or all those of a folder. CUV701, CUV702."""
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files:
            message = "the folder of base weights holds no .safetensors file"
            raise fail(codes.NOT_AN_ADAPTER, message, place=str(path))
        tensors: dict[str, Array] = {}
        for file in files:
            tensors |= read_tensors(file).tensors
        return Base(path, tensors)

    def find(self, want: Wanted) -> tuple[str, Array] | None:
        """The checkpoint's tensor of a parameter, by its name; None if there is none, or two."""
        found = []
        for name, tensor in self.tensors.items():
            split = split_parameter(name)
            if split and split[1] == want.parameter:
                relation = relate(want.module, split[0])
                if relation is not None:
                    found.append((relation.order, name, tensor))
        best = [f for f in found if f[0] == min(found)[0]] if found else []
        return (best[0][1], best[0][2]) if len(best) == 1 else None


def as_outputs(want: Wanted, kind: str, tensor: Array) -> Array:
    """A checkpoint's tensor as [N, ...], outputs first; `kind` is that of its use."""
    turned = want.change.fan_in_fan_out and kind == "linear"
    return tensor.T if turned or kind == "embedding" else tensor


def holds(index: Index, want: Wanted, weight: Weight, reader: Reader, at: Place,
          tensor: Array) -> bool | None:  # fmt: skip
    """Whether that part of a weight has a checkpoint's values; None where it is quantised."""
    array = index.array(weight)
    if array is None:
        return None
    rows = np.moveaxis(array, at.axis, 0)[at.start : at.start + at.size]
    return equals(rows, as_outputs(want, reader.kind, tensor))


def equals(rows: Array, tensor: Array) -> bool:
    """Whether values are a tensor's, which an export may have rounded."""
    if rows.shape != tensor.shape and (rows.ndim > 1 or tensor.ndim > 1 or rows.size != 1):
        return False
    return any(
        np.array_equal(_first(rows), _round(_first(tensor), via, rows.dtype))
        and np.array_equal(rows, _round(tensor, via, rows.dtype))
        for via in _roundings(rows.dtype)
    )


def _roundings(dtype: Any) -> tuple[Any, ...]:
    """The dtypes that may have held a value before this one did."""
    return (dtype,) if np.dtype(dtype).itemsize <= 2 else (dtype, np.float16, ml_dtypes.bfloat16)


def _round(tensor: Array, via: Any, dtype: Any) -> Array:
    with np.errstate(over="ignore"):
        return tensor.astype(via, copy=False).astype(dtype, copy=False)


def _first(rows: Array) -> Array:
    """Some values from the beginning, without copying the rest."""
    return rows[:1].reshape(-1)[:_FIRST]


def search(index: Index, want: Wanted, tensor: Array) -> list[tuple[Weight, Reader, Place]]:
    """The weights that hold the tensor's values, whole or as neighbouring outputs of more."""
    found = []
    for weight in index.weights:
        array = index.array(weight)
        if array is None or array.size < tensor.size:
            continue
        for reader in weight.readers:
            if reader.axis < 0 or (want.kind and reader.kind != want.kind):
                continue
            rows = as_outputs(want, reader.kind, tensor)
            mine = np.moveaxis(array, reader.axis, 0)
            start = _starts(mine, rows)
            if start is not None:
                place = Place(reader.axis, start, len(rows))
                found.append((weight, reader, place))
    return found


def _starts(mine: Array, rows: Array) -> int | None:
    """The first place along axis 0 of `mine` at which all of `rows` stands."""
    if mine.ndim != rows.ndim or mine.shape[1:] != rows.shape[1:] or len(mine) < len(rows):
        return None
    count = len(mine) - len(rows) + 1
    for via in _roundings(mine.dtype):
        first = _round(_first(rows), via, mine.dtype)
        if mine.ndim == 1:
            starts = mine[:count, None] == first[:1]
        else:
            starts = mine.reshape(len(mine), -1)[:count, : len(first)] == first
        for at in np.flatnonzero(starts.all(1)):
            if equals(mine[at : at + len(rows)], rows):
                return int(at)
    return None
