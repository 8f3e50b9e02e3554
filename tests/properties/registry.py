"""The table of operators that random models are drawn for; the folder's modules fill it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from tests.properties.draws import Case, Draw

Maker = Callable[[Draw], Case]
TABLE: dict[str, Maker] = {}
_MODULES = (
    "elementwise",
    "reductions",
    "shapes",
    "neural",
    "contrib",
    "contrib_attention",
    "contrib_quant",
)


def operator(name: str) -> Callable[[Maker], Maker]:
    """Register a function that draws a case of the operator."""

    def register(function: Maker) -> Maker:
        assert name not in TABLE, name
        TABLE[name] = function
        return function

    return register


def operators() -> dict[str, Maker]:
    """All of them by name; com.microsoft's with `ms.` in front."""
    for module in _MODULES:
        import_module(f"tests.properties.{module}")
    return TABLE
