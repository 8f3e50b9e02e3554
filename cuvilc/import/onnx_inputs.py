"""A model's inputs: names, types, symbols for open sizes; what --shape and --dim say of them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from cuvilc.diagnostics import CuvilError, fail
from cuvilc.dialect.dims import FUNCTIONS, Dim, symbol
from cuvilc.dialect.types import MOST_BYTES, TensorType, bytes_at_least

from . import codes
from .onnx_tensors import DTYPES, type_name
from .registry import ImportOptions

# Words of size expressions, and package.plan.CPU_LEVEL, a size that the runtime gives.
RESERVED = {*FUNCTIONS, "cpu_level"}
_TO_OPEN = (
    "a size that the file fixes is opened by exporting the model again, in torch with "
    "`dynamic_shapes=`"
)
DEFAULT_RANGE: tuple[int, int | None] = (0, None)


@dataclass
class Inputs:
    """The inputs in the model's order, and every symbol in them with its range."""

    types: dict[str, TensorType] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    original_names: dict[str, str] = field(default_factory=dict)  # symbol -> the model's spelling
    invented: set[str] = field(default_factory=set)  # symbols for sizes without a name
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # sequence -> its tensors
    optional: dict[str, bool] = field(default_factory=dict)  # optional input -> whether it is given

    def listing(self) -> str:
        shown = ", ".join(f"{n}: {t.dtype}{_spelled(t.shape)}" for n, t in self.types.items())
        names = ", ".join(sorted(self.ranges)) or "none"
        return f"inputs: {shown or 'none'}; sizes by name: {names}"

    def name_size(self, spelled: str, fallback: str) -> Dim:
        """The symbol for the model's dim_param; equal spellings are equal sizes."""
        for name, original in self.original_names.items():
            if spelled and original == spelled:
                return symbol(name)
        name = self._free(identifier(spelled or fallback))
        self.ranges[name] = DEFAULT_RANGE
        if spelled:
            self.original_names[name] = spelled
        else:
            self.invented.add(name)
        return symbol(name)

    def _free(self, name: str) -> str:
        found, n = name, 1
        while found in self.ranges:
            n += 1
            found = f"{name}_{n}"
        return found


def identifier(text: str) -> str:
    """`text` as an identifier: `p2o.DynamicDimension.0` becomes `p2o_DynamicDimension_0`."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII) or "size"
    if name[0].isdigit():
        name = f"_{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in RESERVED else name


def read_inputs(path: Path, model: Any, options: ImportOptions, weights: set[str]) -> Inputs:
    """The model's inputs that are no weights, with the options applied. CuvilError."""
    inputs = Inputs()
    for info in model.graph.input:
        if info.name not in weights:
            _read_input(path, info, options, inputs)
    for name, t in inputs.types.items():
        if bytes_at_least(t) > MOST_BYTES:
            message = f"input `{name}` has impossible sizes: {t}"
            raise fail(codes.BAD_TENSOR, message, place=str(path))
    for name in options.elements:
        if name not in inputs.groups and name not in inputs.optional:
            message = f"--elements names `{name}`, which is no sequence or optional of the model"
            raise _error(path, inputs, message)
    _check_shape_names(path, options, inputs)
    for name, (lo, hi) in options.dims.items():
        _set_range(path, inputs, name, lo, hi)
    return inputs


def _error(path: Path, inputs: Inputs, message: str, help: str = "") -> CuvilError:
    """A name that the model does not have, once all that it has is read."""
    notes = [inputs.listing()]
    return fail(codes.BAD_SHAPE_OPTION, message, place=str(path), notes=notes, help=help)


def _misfit(path: Path, message: str, help: str = "") -> CuvilError:
    return fail(codes.BAD_SHAPE_OPTION, message, place=str(path), help=help)


def _spelled(shape: Iterable[Dim]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _read_input(path: Path, info: Any, options: ImportOptions, inputs: Inputs) -> None:
    """One input of the model: a tensor, or as many tensors as a sequence has elements."""
    name, kind = info.name, info.type
    if kind.WhichOneof("value") == "optional_type":
        kind = kind.optional_type.elem_type
        inputs.optional[name] = True
        if kind.WhichOneof("value") == "tensor_type":
            inputs.optional[name] = options.elements.get(name, 1) != 0
            if not inputs.optional[name]:
                return
    if kind.WhichOneof("value") != "sequence_type":
        inputs.types[name] = _input_type(path, _named(name, kind), options, inputs)
        return
    count = options.elements.get(name)
    if count is None:
        message = f"input `{name}` is a sequence: say how many tensors it has"
        help_ = f"--elements {name}=N makes its elements the inputs {name}.0, {name}.1, …"
        raise fail(codes.BAD_TYPE, message, place=str(path), help=help_)
    inputs.groups[name] = tuple(f"{name}.{i}" for i in range(count))
    for member in inputs.groups[name]:
        element = _named(member, kind.sequence_type.elem_type)
        for d in element.type.tensor_type.shape.dim:
            d.ClearField("dim_param")  # the elements may differ in what one name stands for
        inputs.types[member] = _input_type(path, element, options, inputs)


def _named(name: str, kind: Any) -> Any:
    info = onnx.ValueInfoProto(name=name)
    info.type.CopyFrom(kind)
    return info


def _input_type(path: Path, info: Any, options: ImportOptions, inputs: Inputs) -> TensorType:
    tensor = info.type.tensor_type
    dtype = DTYPES.get(tensor.elem_type)
    if info.type.WhichOneof("value") != "tensor_type" or dtype is None:
        kind = info.type.WhichOneof("value") or "value without type"
        what = type_name(tensor.elem_type) if kind == "tensor_type" else kind.removesuffix("_type")
        raise fail(codes.BAD_TYPE, f"input `{info.name}` is of type {what}", place=str(path))
    given = options.shapes.get(info.name)
    if not tensor.HasField("shape"):
        if given is None:
            raise _misfit(
                path, f"input `{info.name}` has no shape in the model: give --shape",
                f"--shape {info.name}=1,3,224,224 says its sizes, `?` leaves one open",
            )  # fmt: skip
        return TensorType(
            tuple(
                inputs.name_size("", f"{info.name}_{i}") if d is None else d
                for i, d in enumerate(given)
            ),
            dtype.name,
        )
    declared = list(tensor.shape.dim)
    sizes = [_declared_size(d, f"{info.name}_{i}", inputs) for i, d in enumerate(declared)]
    if given is not None and len(given) != len(sizes):
        many = f"{len(given)} size{'s' * (len(given) != 1)}"
        message = f"--shape gives `{info.name}` {many}, the model has {len(sizes)}"
        raise _misfit(path, f"{message}: {_spelled(sizes)}" if sizes else f"{message}: a scalar")
    for i, (fixed, size) in enumerate(zip(given or (), sizes, strict=bool(given))):
        if fixed is not None:
            _fix(path, inputs, info.name, i, size, fixed)
            sizes[i] = size
    return TensorType(tuple(sizes), dtype.name)


def _declared_size(d: Any, fallback: str, inputs: Inputs) -> Dim:
    if d.HasField("dim_value") and d.dim_value >= 0:
        return int(d.dim_value)
    # "?" and "-1" are what some exporters write for a size without a name.
    name = d.dim_param if d.HasField("dim_param") and d.dim_param not in ("?", "-1", "None") else ""
    return inputs.name_size(name, fallback)


def _fix(path: Path, inputs: Inputs, name: str, i: int, size: Dim, fixed: int) -> None:
    """Record that --shape fixes a size: a symbol gets a range of one number."""
    if fixed < 0 or (isinstance(size, int) and size != fixed):
        message = f"--shape gives `{name}` size {fixed} at axis {i}, the model has {size}"
        raise _misfit(path, message, "" if fixed < 0 else _TO_OPEN)
    if not isinstance(size, int):
        _set_range(path, inputs, str(size), fixed, fixed)


def _set_range(path: Path, inputs: Inputs, name: str, lo: int, hi: int | None) -> None:
    spelled = {original: n for n, original in inputs.original_names.items()}
    found = name if name in inputs.ranges else spelled.get(name)
    if found is None:
        message = f"--dim names `{name}`, which the model does not have"
        raise _error(path, inputs, message, "" if inputs.ranges else _TO_OPEN)
    if lo < 0 or (hi is not None and hi < lo):
        raise _misfit(path, f"--dim gives `{name}` the empty range {lo}..{hi}")
    before = inputs.ranges[found]
    if before[0] == before[1] and before != (lo, hi):
        raise _misfit(path, f"`{name}` is given as {before[0]} and as {lo}")
    inputs.ranges[found] = (lo, hi)


def _check_shape_names(path: Path, options: ImportOptions, inputs: Inputs) -> None:
    for name in options.shapes:
        if name not in inputs.types:
            raise _error(path, inputs, f"--shape names `{name}`, which is no input of the model")


def fixed_sizes(inputs: Inputs) -> dict[str, Dim]:
    """Symbols whose range is one number."""
    return {n: lo for n, (lo, hi) in inputs.ranges.items() if lo == hi}
