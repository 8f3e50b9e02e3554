"""Adapters of a loaded model: which there are, which one is in use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._native import AdapterInfo


@dataclass(frozen=True)
class Adapter:
    """One adapter of a model. rank: its largest; tensors: the weights that it changes; bytes: of
    its file or its part of the package; sha256: of the tensors it was built from; active: what a
    run would use now.
    """

    name: str
    rank: int
    tensors: int
    bytes: int
    sha256: str
    active: bool


def list_adapters(library: Any, model: Any) -> tuple[Adapter, ...]:
    """The adapters, in the order in which they were loaded. Those that other threads unload
    meanwhile may be missing.
    """
    if not library.takes_adapters:
        return ()
    found, info = [], AdapterInfo()
    for i in range(library.adapter_count(model)):
        if library.get_adapter(model, i, info):
            break  # there are fewer by now
        name = info.name.decode(errors="replace")
        sha256 = bytes(info.source).hex()
        found.append(Adapter(name, info.rank, info.tensors, info.bytes, sha256, info.active))
    return tuple(found)
