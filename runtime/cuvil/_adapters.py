"""Adapters of a loaded model: which there are, which one is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import byref, c_void_p
from dataclasses import dataclass
from os import PathLike, fsencode
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Any

from ._native import AdapterInfo, Library, PagesInfo

_HEADER = Struct("<QIIQ32s32sIIII24x")  # cuvil_adapter_header of runtime/src/adapter.h
_ENTRY_BYTES = 56
_MAGIC = 0x5044414C49565543


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


@dataclass(frozen=True)
class Pages:
    """What adapters of a package built with `--lora batch` hold in memory.

    pages: of `page_bytes` each, `bytes` in all; shared: pages that would be there besides if equal
    tensors were not one; adapters: that have pages, of all tenants.
    """

    page_bytes: int
    pages: int
    shared: int
    adapters: int
    bytes: int


def get_pages(library: Any, model: Any) -> Pages:
    """CuvilError CUV612 for a package that has no batches."""
    info = PagesInfo()
    library.check(library.get_pages(model, info))
    return Pages(info.page_bytes, info.pages, info.shared, info.adapters, info.bytes)


class Tenant:
    """Adapters that nobody else can name; `Model.tenant` gives it. Equal tensors of several tenants
    are in memory once.
    """

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        self._model = model
        self._handle = c_void_p()
        library: Library = model._library
        with model._held() as handle:
            library.check(library.get_tenant(handle, name.encode(), byref(self._handle)))

    def __repr__(self) -> str:
        return f"<cuvil.Tenant {self.name} of {self._model.place}>"

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The tenant's adapters."""
        with self._model._held():
            return list_adapters(self._model._library, self._handle, "tenant_")

    def load_adapter(self, path: str | PathLike[str], name: str | None = None) -> str:
        """As Model.load_adapter, for this tenant alone: returns the name."""
        called = name_for(path) if name is None else name
        self._call("tenant_load_adapter", fsencode(path), called)
        return text(called)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Runs that have begun finish with it; then its pages go."""
        self._call("tenant_unload_adapter", name)

    def run(
        self, feeds: Mapping[str, Any], adapters: Sequence[str | None],
        out: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """As Model.run, with adapters of this tenant."""
        found: dict[str, Any] = self._model._run_batch(feeds, out, self._handle, adapters)
        return found

    def _call(self, function: str, *arguments: str | bytes | None) -> None:
        self._model._adapt(function, *arguments, of=self._handle)


def name_for(path: str | PathLike[str]) -> str | bytes:
    """The name that a .cuvla file gives its adapter, as it stands there. Nothing is checked: b""
    where the file has none, or is no such file, which the library then says.
    """
    file = Path(path)
    try:
        if not file.is_file():  # a pipe would be waited for
            return b""
        with file.open("rb") as stream:
            magic, _, entries, _, _, _, name, size, _, _ = _HEADER.unpack(stream.read(_HEADER.size))
            if magic != _MAGIC:
                return b""
            stream.seek(_HEADER.size + entries * _ENTRY_BYTES + name)
            return stream.read(max(size - name, 0)).partition(b"\0")[0]
    except (OSError, ValueError, StructError):
        return b""


def text(name: str | bytes) -> str:
    """A name as Model.adapters tells it."""
    return name if isinstance(name, str) else name.decode(errors="replace")


def list_adapters(library: Any, owner: Any, prefix: str = "") -> tuple[Adapter, ...]:
    """The adapters of a model or tenant, in the order in which they were loaded. Those that other
    threads unload meanwhile may be missing.
    """
    if not library.takes_adapters:
        return ()
    count = getattr(library, f"{prefix}adapter_count")
    describe = getattr(library, "tenant_get_adapter" if prefix else "get_adapter")
    found, info = [], AdapterInfo()
    for i in range(count(owner)):
        if describe(owner, i, info):
            break  # there are fewer by now
        name = info.name.decode(errors="replace")
        sha256 = bytes(info.source).hex()
        found.append(Adapter(name, info.rank, info.tensors, info.bytes, sha256, info.active))
    return tuple(found)
