"""Cast, CastLike and BitCast."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.narrow import NARROW_FLOATS

from ._table import importer
from .onnx_node import Node, ai, cast, dtype_of
from .onnx_tensors import DTYPES, type_name

_UNSIGNED = {"int4": "uint4", "int2": "uint2"}


def _target(attributes: dict[str, Any]) -> str | None:
    to = attributes.get("to")
    if isinstance(to, int) and to not in DTYPES:
        return f"conversion to {type_name(to)} is not supported"
    return None


def _converted(n: Node, dtype: str) -> ir.Value:
    """Input 0 as `dtype`. Attributes say what a float8 does with what it cannot hold."""
    if dtype not in NARROW_FLOATS or n.type(0).dtype == dtype:
        return cast(n[0], dtype)
    rounding = n.attr("round_mode", "up") if dtype == "float8_e8m0fnu" else "nearest"
    return ai("narrow", n[0], dtype=dtype, saturate=bool(n.attr("saturate", 1)), rounding=rounding)


@importer("Cast", refuse=_target)
def cast_(n: Node) -> ir.Value:
    return _converted(n, DTYPES[n.attr("to")].name)


@importer("CastLike")
def cast_like(n: Node) -> ir.Value:
    return _converted(n, n.type(1).dtype)


@importer("BitCast", refuse=_target)
def bit_cast(n: Node) -> ir.Value:
    """A cast between int4 and uint4 keeps the bits, and so do int2's."""
    source, target = n.type(0).dtype, DTYPES[n.attr("to")].name
    if source == target:
        return n[0]
    x = cast(n[0], _UNSIGNED.get(source, source))
    like = _UNSIGNED.get(target, target)
    x = x if dtype_of(x) == like else ai("bitcast", x, dtype=like)
    return cast(x, target)
