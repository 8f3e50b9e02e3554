"""The table of ONNX operators: one function per operator, registered where it stands.

    @importer("Softmax", since=13)
    def softmax(n: Node) -> ir.Value: ...

The function with the greatest `since` at or below the model's opset imports a node. `refuse` looks
at the attributes before any work and returns why the node cannot be imported, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from threading import RLock
from typing import Any

NodeImporter = Callable[[Any], Any]
Refusal = Callable[[dict[str, Any]], str | None]


@dataclass(frozen=True)
class Entry:
    """One importer: from which opset it holds, what it does, which attributes it refuses."""

    since: int
    run: NodeImporter
    refuse: Refusal | None


TABLE: dict[tuple[str, str], list[Entry]] = {}


def importer(
    *names: str, domain: str = "", since: int = 1, refuse: Refusal | None = None
) -> Callable[[NodeImporter], NodeImporter]:
    """Register a function as the importer of these operators of the domain ("" is ai.onnx)."""

    def register(function: NodeImporter) -> NodeImporter:
        for name in names:
            entries = TABLE.setdefault((domain, name), [])
            entries.append(Entry(since, function, refuse))
            entries.sort(key=lambda e: -e.since)
        return function

    return register


def find(domain: str, op: str, opset: int) -> Entry | None:
    """The entry for an operator of this opset; the oldest entry also serves what is older still."""
    _load()
    entries = TABLE.get((domain, op), [])
    return next((e for e in entries if e.since <= opset), entries[-1] if entries else None)


def only(**allowed: tuple[Any, ...]) -> Refusal:
    """A refusal for attributes with other than these values: `only(mode=("linear", "nearest"))`."""

    def refuse(attributes: dict[str, Any]) -> str | None:
        for name, values in allowed.items():
            if name in attributes and attributes[name] not in values:
                return f"attribute {name} = {attributes[name]!r} is not supported"
        return None

    return refuse


def takes(*names: str, **allowed: tuple[Any, ...]) -> Refusal:
    """A refusal for any attribute but `names`, and for other than the allowed values of the rest.

    For domains without schemas in onnx, where nothing else would notice an attribute that changes
    what the operator means.
    """
    of_value = only(**allowed)

    def refuse(attributes: dict[str, Any]) -> str | None:
        for name in attributes:
            if name not in names and name not in allowed:
                return f"attribute {name} is not supported"
        return of_value(attributes)

    return refuse


_loaded: list[bool] = []
_loading = RLock()  # a second thread waits for the whole table


def _load() -> None:
    """Import every file of operators. The folder is the table: onnx_nodes_*.py."""
    with _loading:
        if _loaded:
            return
        _loaded.append(True)
        package = import_module(__package__ or "")
        for module in iter_modules(package.__path__):
            if module.name.startswith("onnx_nodes_"):
                import_module(f"{__package__}.{module.name}")
