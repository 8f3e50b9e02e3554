"""`--adapter-map`: a JSON file that says where modules of adapters are in the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cuvilc.diagnostics import CuvilError, fail

from . import lora_codes as codes
from .lora_claims import Wanted
from .lora_index import Index, Reader, Weight

_LARGEST = 16 << 20  # bytes


@dataclass(frozen=True)
class Entry:
    """name: of an initialiser or a node. outputs: (first, number) of the module's, or None."""

    name: str
    outputs: tuple[int, int] | None = None


@dataclass
class AdapterMap:
    """The file's entries."""

    path: Path
    entries: dict[str, Entry] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> AdapterMap:
        """CUV726 for what is not such a file."""
        try:
            if path.stat().st_size > _LARGEST:
                raise _bad(path, "the file is too large to be an adapter map")
            found = json.loads(path.read_text("utf-8"), object_pairs_hook=_unique)
        except OSError as error:
            reason = error.strerror or error
            raise _bad(path, f"the adapter map cannot be read: {reason}") from None
        except (ValueError, RecursionError) as error:
            raise _bad(path, f"the adapter map is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise _bad(path, "the adapter map is no JSON object")
        return AdapterMap(path, {key: _entry(path, key, value) for key, value in found.items()})

    def get(self, want: Wanted) -> Entry | None:
        """The entry for a parameter."""
        return next((self.entries[key] for key in _keys(want) if key in self.entries), None)

    def readers(self, index: Index, want: Wanted, entry: Entry) -> list[tuple[Weight, Reader]]:
        """The uses of weights that an entry means. CUV726 where the model has no such name.

        A weight's name means all its uses; a node's the one weight that it reads in that role.
        """
        every = [(w, r) for w in index.weights for r in w.readers]
        found = [(w, r) for w, r in every if entry.name == w.key or entry.name in r.names]
        if not found:
            role = want.parameter if want.parameter in ("weight", "bias") else ""
            found = [(w, r) for w, r in every if r.label == entry.name and r.role in (role, "")]
        if not found:
            known = {w.key for w, _ in every} | {r.label for _, r in every}
            known |= {name for _, r in every for name in r.names}
            near = get_close_matches(entry.name, sorted(known), 3, 0.5)
            notes = [f"nearest: {', '.join(f'`{n}`' for n in near)}"] if near else []
            message = f"`{want.name}` is to be `{entry.name}`, which is no weight or node with one"
            raise _bad(self.path, message, notes=notes)
        return found

    def check_used(self, wants: Sequence[Wanted]) -> None:
        """CUV726 for entries that no adapter asks for."""
        asked = {key for want in wants for key in _keys(want)}
        left = [key for key in self.entries if key not in asked]
        if left:
            near = get_close_matches(left[0], sorted(asked), 3, 0.5)
            notes = [f"nearest: {', '.join(f'`{n}`' for n in near)}"] if near else []
            spelled = ", ".join(f"`{key}`" for key in left[:6]) + (", …" if len(left) > 6 else "")
            raise _bad(self.path, f"no adapter changes {spelled}", notes=notes)


def _keys(want: Wanted) -> tuple[str, ...]:
    """The keys that mean a parameter; a bare path means the module's weight."""
    return (want.name, want.module) if want.parameter == "weight" else (want.name,)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"`{next(n for n in names if names.count(n) > 1)}` stands there twice")
    return made


def _entry(path: Path, key: str, value: Any) -> Entry:
    if isinstance(value, str):
        return Entry(value)
    fields = value if isinstance(value, dict) else {}
    name, outputs = fields.get("name"), fields.get("outputs")
    if not isinstance(name, str) or set(fields) - {"name", "outputs"}:
        raise _bad(path, f'`{key}` must be a name, or {{"name": …, "outputs": [START, SIZE]}}')
    if outputs is None:
        return Entry(name)
    whole = isinstance(outputs, list) and len(outputs) == 2
    if not whole or not all(type(n) is int and n >= 0 for n in outputs):
        raise _bad(path, f"`outputs` of `{key}` must be two numbers, the first and how many")
    return Entry(name, (outputs[0], outputs[1]))


def _bad(path: Path, message: str, **more: Any) -> CuvilError:
    return fail(codes.BAD_ADAPTER_MAP, message, place=str(path), **more)
