"""Inputs and outputs: what a model declares, and what a caller may give for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from ._blocks import Blocks
from ._error import CuvilError
from ._native import DTYPES, INT64_MAX, TensorInfo

_CODES, _SIGNED, _UNSIGNED = ("uint8",), ("int8", "uint8"), ("uint8", "int8")
# NumPy's dtypes for the rest, the one of outputs first: a float's code, an integer's value.
RAW = {
    "bfloat16": ("uint16",),
    **dict.fromkeys((name for name in DTYPES if name.startswith("float") and "_" in name), _CODES),
    "int4": _SIGNED,
    "int2": _SIGNED,
    "uint4": _UNSIGNED,
    "uint2": _UNSIGNED,
}


class Port:
    """An input or output: `name`, `dtype`, `dims` and `ranges`.

    `dims` holds ints, and for dynamic axes the symbol or expression as a string; `ranges` holds
    (lowest, highest) of each axis, highest None when unbounded. Of what NumPy has no dtype for
    (bfloat16, float8_e4m3fn, int4, …) a port has the dtype of ml_dtypes where that is installed,
    else the one that RAW says, which is taken in any case: an element has a whole byte or two.
    """

    __slots__ = (
        "_blocks",
        "_package",
        "_role",
        "dims",
        "dtype",
        "dtype_name",
        "dtype_number",
        "name",
        "ranges",
    )

    def __init__(self, info: TensorInfo, role: str, package: str) -> None:
        rank = range(info.rank)
        self._role, self._package, self._blocks = role, package, Blocks()
        self.name: str = info.name.decode(errors="replace")
        self.dtype_number: int = info.dtype
        self.dtype_name = DTYPES[info.dtype]
        self.dtype: np.dtype[Any] = _dtype(self.dtype_name)
        self.dims: tuple[int | str, ...] = tuple(
            info.dims[i] if info.symbols[i] is None else info.symbols[i].decode(errors="replace")
            for i in rank
        )
        self.ranges: tuple[tuple[int, int | None], ...] = tuple(
            (info.lo[i], None if info.hi[i] == INT64_MAX else info.hi[i]) for i in rank
        )

    def __repr__(self) -> str:
        dims = []
        for dim, (low, high) in zip(self.dims, self.ranges, strict=True):
            bounds = f"={low}..{'' if high is None else high}"
            dims.append(str(dim) + (bounds if isinstance(dim, str) and dim.isidentifier() else ""))
        return f"{self.name}: {self.dtype_name}[{', '.join(dims)}]"

    def fail(
        self, code: str, message: str, help: str = "", cause: Exception | None = None
    ) -> NoReturn:
        raise CuvilError(code, message, f"{self._package}: {self._role} {self!r}", help) from cause

    def array(self, value: Any) -> np.ndarray:
        """The value as a contiguous array of this input's dtype, without a copy where possible."""
        array = value if isinstance(value, np.ndarray) else self._convert(value)
        if array.dtype != self.dtype:
            self._check_dtype(array.dtype, value)
        flags = array.flags
        return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")

    def target(self, array: np.ndarray) -> np.ndarray:
        """The array, when this output can be written to it."""
        if not isinstance(array, np.ndarray):
            self.fail(
                "CUV604",
                f"output `{self.name}`: {type(array).__name__} is no NumPy array",
                "give a NumPy array (with torch: `x.numpy()`, which shares the memory)",
            )
        if array.dtype != self.dtype:
            self._check_dtype(array.dtype)
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned and flags.writeable):
            self.fail("CUV607", f"output `{self.name}` must be C-contiguous, aligned and writable")
        return array

    def reshaping(self, shape: tuple[int, ...]) -> str:
        """What to do about a shape that this input refuses; "" when there is nothing special."""
        if len(shape) != len(self.dims):
            return ""
        for size, dim, (low, high) in zip(shape, self.dims, self.ranges, strict=True):
            if isinstance(dim, int) and size != dim:
                opened = "leave it open in the export (torch: `dynamic_shapes=`) and in the build"
                return f"{dim} is fixed in the package: give that size, or {opened}"
            if isinstance(dim, str) and dim.isidentifier():
                most = "" if high is None else max(high, size)
                if size < low or (high is not None and size > high):
                    wider = f"--dim {dim}={min(low, size)}..{most}"
                    return f"build the package with a wider range: `{wider}`"
        return ""

    def empty(self, dims: tuple[int, ...]) -> np.ndarray:
        """A new array for this output."""
        try:
            return self._blocks.empty(dims, self.dtype)
        except (MemoryError, ValueError) as error:  # more than memory, than sizes
            self.fail(
                "CUV608", f"no memory for output `{self.name}` of shape {list(dims)}", "", error
            )

    def clear(self) -> None:
        """Give the memory of outputs that are no more back to the system."""
        self._blocks.clear()

    def _convert(self, value: Any) -> np.ndarray:  # noqa: RET503  # `fail` never returns
        kind = type(value).__name__
        try:
            if hasattr(value, "__dlpack__"):
                return np.from_dlpack(value)
            if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
                return np.asarray(value)
        except Exception as error:  # a foreign object may raise anything
            self.fail(
                "CUV604",
                f"input `{self.name}`: {kind} does not become an array: {error}",
                self._hint(),
                error,
            )
        help = f"np.asarray(value, {self._numpy_dtype()})"
        self.fail("CUV604", f"input `{self.name}` is of type {kind}, not an array", help)

    def _hint(self) -> str:
        hint = "give a plain tensor in host memory (with torch: `x.detach().cpu()`)"
        if self.dtype_name in RAW:
            hint += f", {self.dtype_name} as its bits (`x.view(torch.{RAW[self.dtype_name][0]})`)"
        return hint

    def _check_dtype(self, dtype: np.dtype[Any], value: Any = None) -> None:
        """`value`: the input that has it, None for an output."""
        if dtype.name in RAW.get(self.dtype_name, ()):
            return
        order = "" if dtype.isnative else "byte-swapped "
        self.fail(
            "CUV605",
            f"{self._role} `{self.name}` is {order}{dtype.name}, "
            f"the model declares {self.dtype_name}",
            self._conversion(value) if self._role == "input" else "",
        )

    def _conversion(self, value: Any) -> str:
        """What makes the value an input of this dtype."""
        name = self.name if self.name.isidentifier() else "x"
        raw = RAW.get(self.dtype_name, _CODES)[0]
        coded = self.dtype_name in RAW and "float" in self.dtype_name
        if type(value).__module__.partition(".")[0] == "torch":
            if not coded:
                kind = raw if self.dtype_name in RAW else self.dtype_name
                return f"`{name}.to(torch.{kind})` converts"
            return f"`{name}.to(torch.{self.dtype_name}).view(torch.{raw})` converts"
        converts = f"`{name}.astype({self._numpy_dtype()})` converts"
        return converts + (f" (pip install ml_dtypes), or give its bits as {raw}" * coded)

    def _numpy_dtype(self) -> str:
        """How a program spells the dtype; of what NumPy lacks, that of ml_dtypes or the value's."""
        if self.dtype_name not in RAW:
            return f"np.{self.dtype_name}{'_' * (self.dtype_name == 'bool')}"
        if "float" in self.dtype_name:
            return f"ml_dtypes.{self.dtype_name}"
        return f"np.{RAW[self.dtype_name][0]}"


def input_arrays(ports: Sequence[Port], feeds: Mapping[str, Any], place: str) -> list[np.ndarray]:
    """The inputs' arrays, in order. CuvilError CUV604, CUV605."""
    arrays = []
    for port in ports:
        try:
            value = feeds[port.name]
        except Exception as error:
            check_names(ports, feeds, "input", place)  # no mapping, or a misspelt name, says more
            if not isinstance(error, KeyError):  # such as a damaged file's
                raise
            port.fail("CUV604", f"input `{port.name}` is missing")
        arrays.append(port.array(value))
    if len(feeds) != len(arrays):
        check_names(ports, feeds, "input", place)
    return arrays


def check_names(ports: Sequence[Port], given: Mapping[str, Any], role: str, place: str) -> None:
    """CuvilError CUV604 unless `given` is a mapping whose names are all those of ports."""
    names = [port.name for port in ports]
    if not isinstance(given, Mapping):
        example = f'{{"{names[0]}": array}}' if names else "{}"
        message = f"{role}s come by name, {example}, not as {type(given).__name__}"
        raise CuvilError("CUV604", message, place) from None
    for name in given:
        if name not in names:
            listed = ", ".join(f"`{name}`" for name in names)
            message = f"the model has no {role} `{name}`; it has {listed or 'none'}"
            raise CuvilError("CUV604", message, place) from None


def _dtype(name: str) -> np.dtype[Any]:
    if name not in RAW:
        return np.dtype(name)
    try:
        import ml_dtypes  # noqa: PLC0415  # optional
    except ImportError:
        return np.dtype(RAW[name][0])
    return np.dtype(getattr(ml_dtypes, name, RAW[name][0]))  # older ones do not have all


class Outputs(tuple[np.ndarray, ...]):
    """Several results in the model's order; `outputs["name"]` and `outputs.name` work too."""

    names: tuple[str, ...]

    def __new__(cls, values: Mapping[str, np.ndarray]) -> Outputs:
        self = super().__new__(cls, values.values())
        self.names = tuple(values)
        return self

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and key not in self.names:
            raise KeyError(f"no output `{key}`; there are {', '.join(self.names)}")
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)

    def __getattr__(self, name: str) -> np.ndarray:
        if name == "names" or name not in self.names:
            raise AttributeError(f"no output `{name}`")
        value: np.ndarray = self[self.names.index(name)]
        return value

    def __repr__(self) -> str:
        return f"Outputs({', '.join(f'{n}={v!r}' for n, v in zip(self.names, self, strict=True))})"
