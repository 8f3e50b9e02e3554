"""The base checkpoint as evidence: which weight of the model has a parameter's values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from cuvilc.adapter import Array
from cuvilc.diagnostics import fail
from cuvilc.dialect.lora_values import outputs_first

from . import lora_codes as codes
from .lora_claims import Place, Wanted
from .lora_index import Index, Reader, Weight
from .lora_names import closest, split_parameter
from .lora_tensors import read_tensors

_FIRST = 64  # elements that are compared before all are


@dataclass
class Base:
    """A checkpoint's tensors by name. `path`: the file or folder given."""

    path: Path
    tensors: dict[str, Array]
    # (parameter, last name of the module) -> (module, tensor's name)
    _ends: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.tensors:
            path, parameter = split_parameter(name) or ("", "")
            self._ends.setdefault((parameter, _end(path)), []).append((path, name))

    @staticmethod
    def read(path: Path) -> Base:
        """Map a safetensors file, or all those of a folder. CUV701, CUV702."""
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files:
            message = "the folder of base weights holds no .safetensors file"
            raise fail(codes.NOT_AN_ADAPTER, message, place=str(path))
        tensors: dict[str, Array] = {}
        for file in files:
            tensors |= read_tensors(file, "the base weights (`--base-weights`)").tensors
        return Base(path, tensors)

    def find(self, want: Wanted) -> tuple[str, Array] | None:
        """The checkpoint's tensor of a parameter, by its name; None if there is none, or two."""
        ends = self._ends.get((want.parameter, _end(want.module)), ())
        best = closest(want.module, [path for path, _ in ends])
        return next(((n, self.tensors[n]) for path, n in ends if path == best), None)


def _end(path: str) -> str:
    return path.rpartition(".")[2]


def holds(index: Index, want: Wanted, weight: Weight, reader: Reader, at: Place,
          tensor: Array) -> bool | None:  # fmt: skip
    """Whether that part of a weight has a checkpoint's values; None where it is quantised."""
    array = index.array(weight)
    if array is None:
        return None
    rows = np.moveaxis(array, at.axis, 0)[at.start : at.start + at.size]
    turned = want.change.fan_in_fan_out
    return equals(rows, outputs_first(tensor, reader.kind, at.size, turned))


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


class Values:
    """The weights of a program, to be found by their values."""

    def __init__(self, index: Index) -> None:
        self.every: list[tuple[Weight, Reader, Array]] = []  # the array's outputs first
        self.wholes: dict[tuple[Any, ...], list[tuple[Weight, Reader, Array]]] = {}
        for weight in index.weights:
            array = index.array(weight)
            if array is None:
                continue
            for reader in weight.readers:
                if reader.axis >= 0:
                    rows = np.moveaxis(array, reader.axis, 0)
                    entry = (weight, reader, rows)
                    self.every.append(entry)
                    self.wholes.setdefault(_key(reader.kind, rows, rows.dtype), []).append(entry)
        self.dtypes = {rows.dtype for _, _, rows in self.every}

    def search(self, want: Wanted, tensor: Array) -> list[tuple[Weight, Reader, Place]]:
        """The weights that hold the tensor's values; else those of which some outputs do. One value
        all over, as biases begin with, tells none from another: an exporter drops zeros, and those
        of another layer would take their place.
        """
        if tensor.size > 1 and bool((tensor == tensor.flat[0]).all()):
            return []
        kinds = [want.kind] if want.kind else sorted({r.kind for _, r, _ in self.every})
        found = []
        for kind, rows in [(k, rows) for k in kinds for rows in _laid(want, k, tensor)]:
            keys = {
                _key(kind, rows, dtype, via) for dtype in self.dtypes for via in _roundings(dtype)
            }  # fmt: skip
            for weight, reader, mine in [e for k in keys for e in self.wholes.get(k, ())]:
                if equals(mine, rows):
                    found.append((weight, reader, Place(reader.axis, 0, len(rows))))
        return found or list(self._parts(want, tensor))

    def _parts(self, want: Wanted, tensor: Array) -> Iterator[tuple[Weight, Reader, Place]]:
        for weight, reader, mine in self.every:
            if want.kind and reader.kind != want.kind:
                continue
            for rows in _laid(want, reader.kind, tensor):
                start = _starts(mine, rows)
                if start is not None:
                    yield weight, reader, Place(reader.axis, start, len(rows))


def _laid(want: Wanted, kind: str, tensor: Array) -> Iterator[Array]:
    """The tensor with its outputs first; in both ways where it may be a Linear's or a Conv1D's."""
    for shape in want.matrices if kind == "linear" else (want.shape,):
        outputs = shape[0] if shape else 1
        yield outputs_first(tensor, kind, outputs, want.change.fan_in_fan_out)


def _key(kind: str, rows: Array, dtype: Any, via: Any = None) -> tuple[Any, ...]:
    first = _round(_first(rows), via or dtype, dtype)
    return (kind, rows.shape, np.dtype(dtype).name, first.tobytes())


def _starts(mine: Array, rows: Array) -> int | None:
    """The first place along axis 0 of `mine`, which is longer, at which all of `rows` stands."""
    if mine.ndim != rows.ndim or mine.shape[1:] != rows.shape[1:] or len(mine) <= len(rows):
        return None
    if not rows.size:
        return None
    corner: Any = (slice(None),) + (0,) * (mine.ndim - 1)
    column = mine[corner][: len(mine) - len(rows) + 1]
    for via in _roundings(mine.dtype):
        value = _round(rows[corner][:1], via, mine.dtype)
        for at in np.flatnonzero(column == value):
            if equals(mine[at : at + len(rows)], rows):
                return int(at)
    return None
