"""Inputs of an interpreted package, checked by the rules and in the words of the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuvilc.codes_runtime import WRONG_DTYPE, WRONG_NAMES, WRONG_SHAPE
from cuvilc.diagnostics import CuvilError, fail
from cuvilc.dialect.dims import evaluate
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.types import numpy_dtype


@dataclass(frozen=True)
class Port:
    """An input or output as the metadata declares it."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int | str, ...]
    ranges: tuple[tuple[int, int | None], ...]

    @staticmethod
    def of(port: Any) -> Port:
        ranges = tuple((lo, hi) for lo, hi in port["ranges"])
        return Port(port["name"], numpy_dtype(port["dtype"]), tuple(port["dims"]), ranges)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype.name}[{', '.join(map(str, self.dims))}]"


def check_feeds(
    ports: Sequence[Port], feeds: Mapping[str, Any], symbols: Sequence[Any], place: str
) -> list[np.ndarray]:
    """The arrays in the model's order. CUV604, CUV605, CUV606."""
    names = [p.name for p in ports]
    if not isinstance(feeds, Mapping):
        message = f"inputs come by name, not as {type(feeds).__name__}"
        raise fail(WRONG_NAMES, message, place=place)
    for name in feeds:
        if name not in names:
            listed = ", ".join(f"`{n}`" for n in names)
            message = f"the model has no input `{name}`; it has {listed}"
            raise fail(WRONG_NAMES, message, place=place)
    arrays = []
    for port in ports:
        if port.name not in feeds:
            raise fail(WRONG_NAMES, f"input `{port.name}` is missing", place=f"{place}: {port!r}")
        array = np.asarray(feeds[port.name])
        if array.dtype != port.dtype:
            wrong = f"input `{port.name}` is {array.dtype.name}"
            message = f"{wrong}, the model declares {port.dtype.name}"
            raise fail(WRONG_DTYPE, message, place=f"{place}: {port!r}")
        arrays.append(array)
    _check_shapes(ports, arrays, symbols, place)
    return arrays


def _check_shapes(
    ports: Sequence[Port], arrays: Sequence[np.ndarray], symbols: Sequence[Any], place: str
) -> None:
    """Ranks, then every symbol from the axis it is read from, then every size."""
    for port, array in zip(ports, arrays, strict=True):
        if array.ndim != len(port.dims):
            message = (
                f"input `{port.name}` has rank {array.ndim}, the model declares {len(port.dims)}"
            )
            raise fail(WRONG_SHAPE, message, place=f"{place}: {port!r}")
    sizes = {s["name"]: arrays[s["input"]].shape[s["axis"]] for s in symbols}
    for s in symbols:
        size, lo, hi = sizes[s["name"]], s["lo"], s["hi"]
        if size < lo or (hi is not None and size > hi):
            allowed = f"{lo}..{'' if hi is None else hi}"
            raise _outside(ports[s["input"]], s["axis"], size, f"{s['name']} = {allowed}", place)
    for port, array in zip(ports, arrays, strict=True):
        for axis, (d, size) in enumerate(zip(port.dims, array.shape, strict=True)):
            if evaluate(parse(str(d)), sizes) != size:
                raise _outside(port, axis, size, str(d), place)


def _outside(port: Port, axis: int, size: int, allowed: str, place: str) -> CuvilError:
    message = f"axis {axis} of input `{port.name}` is {size}, the model takes {allowed}"
    return fail(WRONG_SHAPE, message, place=f"{place}: {port!r}")
