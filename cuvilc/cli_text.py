"""Amounts as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_EXPRESSION = 60  # characters of a size
_NODE = 28  # characters of a node's name


def port_text(port: Any) -> str:
    """float32[batch, 3, 224, 224]"""
    return f"{port['dtype']}[{', '.join(_cut(str(d)) for d in port['dims'])}]"


def _cut(expression: str) -> str:
    return expression if len(expression) <= _EXPRESSION else expression[: _EXPRESSION - 1] + "…"


def size_text(value: int | str, sizes: Mapping[str, int]) -> str:
    """An amount of bytes; where it depends on sizes, its value at `sizes` with the expression."""
    from cuvilc.dialect.dims import symbols  # noqa: PLC0415
    from cuvilc.dialect.dims_text import parse  # noqa: PLC0415
    from cuvilc.inspect import amount  # noqa: PLC0415

    text = bytes_text(amount(value, sizes))
    used = [] if isinstance(value, int) else sorted(symbols(parse(value)) - {"cpu_level"})
    at = ", ".join(f"{n}={sizes[n]}" for n in used)
    return f"{text} at {at} ({_cut(str(value))})" if at else text


def layer_text(layer: str) -> str:
    """A layer at a glance: of a long name its end, of many fused nodes the first and the last."""
    nodes = [n if len(n) <= _NODE else "…" + n[1 - _NODE :] for n in layer.split(" + ")]
    return " + ".join(nodes if len(nodes) <= 3 else [nodes[0], "…", nodes[-1]])


def range_text(lo: int, hi: int | None) -> str:
    """1..64, 4 (fixed), 1.. (open)."""
    if lo == hi:
        return str(lo)
    return f"{lo}..{'' if hi is None else hi}"


def bytes_text(count: float) -> str:
    """1536 → 1.5 KiB"""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.0f} {_UNITS[power]}" if power == 0 else f"{count:.1f} {_UNITS[power]}"


def count_text(count: float, unit: str = "") -> str:
    """3630000000 of unit FLOP → 3.63 GFLOP; 0 → –"""
    if count <= 0:
        return "–"
    power = min(int(math.log10(count)) // 3, 5)
    if power == 0:
        return f"{count:.0f} {unit}".rstrip()
    return f"{count / 1000**power:.3g} {' KMGTP'[power]}{unit}"


def time_text(us: float) -> str:
    """1500.0 → 1.50 ms"""
    if us < 1000:
        return f"{us:.1f} µs"
    return f"{us / 1000:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"
