"""Paths of kohya's and diffusers' adapters, spelled as the model at hand spells its modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cuvilc.adapter import Adapter
from cuvilc.dialect import ir

from .lora_claims import Claims
from .lora_index import index
from .lora_kohya import PARTS, UNDERSCORED
from .lora_modules import in_order
from .lora_names import WRAPPERS


def spelled(program: ir.Program, adapters: Sequence[Adapter]) -> tuple[Adapter, ...]:
    """The adapters with paths as the program's modules have them; PEFT's are so already."""
    if all("naming" not in a.config for a in adapters):
        return tuple(adapters)
    with program:
        modules = Claims(index(program)).modules
    return tuple(in_model(a, modules) for a in adapters)


def in_model(adapter: Adapter, modules: Iterable[str]) -> Adapter:
    """The adapter with its paths as the model spells them, wherever one module only fits.

    modules: all paths of the model. An adapter of PEFT's is left as it is: its paths are spelled.
    """
    naming = adapter.config.get("naming")
    if naming is None:
        return adapter
    known: dict[str, set[str]] = {}
    for module in modules:
        for name in _without_wrappers(module):
            known.setdefault(_flat(name, naming), set()).add(module)
    changes = []
    for change in adapter.changes:
        part, _, rest = change.path.partition(".")
        names = [change.path, rest] if part in PARTS and rest else [change.path]
        fits = next((f for n in names if (f := known.get(_flat(n, naming)))), set())
        path = next(iter(fits)) if len(fits) == 1 else change.path
        changes.append(replace(change, path=path))
    return replace(adapter, changes=in_order(changes))


def _flat(path: str, naming: str) -> str:
    return path.replace(".", "_") if naming == UNDERSCORED else path


def _without_wrappers(path: str) -> Iterator[str]:
    """The path, and what is left of it without attributes that hold the whole model."""
    yield path
    while "." in path and path.partition(".")[0] in WRAPPERS:
        path = path.partition(".")[2]
        yield path
