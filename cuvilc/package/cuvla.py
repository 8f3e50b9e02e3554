"""An adapter as the runtime reads it: a .cuvla file, or a part of the package it was built with.

The record layout is runtime/src/adapter.h. An adapter is made for one package: its entries name
the package's exchangeable weights by number, and its factors lie as the package's kernels read
them, so that putting it to use is arithmetic alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any
from zlib import adler32

import numpy as np
from numpy.typing import NDArray

from cuvilc.adapter import Adapter, LowRank, ModuleChange
from cuvilc.artifact import CUVLA_MAGIC
from cuvilc.dialect import lora_values
from cuvilc.dialect.types import to_layout
from cuvilc.package.cuvla_pieces import Piece, merged, piece_of, row_factors, separate
from cuvilc.package.cuvla_rows import pieces_of_rows
from cuvilc.package.plan import Adaptable, Part

MAGIC = int.from_bytes(CUVLA_MAGIC, "little")
VERSION = 1
HEADER = Struct("<QIIQ32s32sIIII24x")
ENTRY = Struct("<IIIIIIQQQQ")
WHOLE, FACTORS = 0, 1
_ALIGN = 64
CHECKSUM_AT = 8 + 4 + 4 + 8 + 32 + 32 + 12

Array = NDArray[Any]


def fingerprint(table: Sequence[Adaptable], weights_sha256: str) -> bytes:
    """What ties an adapter to a package: SHA-256 of the exchangeable weights' table and of all
    weights.
    """
    text = json.dumps([a.describe() for a in table], sort_keys=True)
    return hashlib.sha256(text.encode() + bytes.fromhex(weights_sha256)).digest()


def changed(change: ModuleChange) -> list[str]:
    """The parameters of its module that a change is about."""
    low = change.low_rank
    names = set(change.replaced)
    if change.rows is not None:
        names.add("weight")
    if low is not None:
        names |= {"weight"} | ({"bias"} if low.bias is not None else set())
    return sorted(names)


def encode(
    adapter: Adapter,
    changes: Mapping[str, ModuleChange],
    table: Sequence[Adaptable],
    read: Callable[[int], Array],
    base: bytes,
    batched: bool = False,
) -> bytes:
    """The adapter for the package with this table and fingerprint `base`.

    `changes`: by the module's name in the table; every parameter of each must be there.
    `read(i)`: the logical array of exchangeable weight i as the package has it.
    `batched`: the package is one of `--lora batch`, whose weights stay: all is factors and biases.
    """
    writer = _Writer(adapter.name)
    for number, site in enumerate(table):
        if batched:
            entries = _factors(number, pieces_of_rows(number, site, changes, table, read))
        else:
            parts = [p for p in site.parts if p.parameter in _of(changes.get(p.module))]
            entries = _entries(number, site, parts, changes, read) if parts else []
        for entry in entries:
            writer.add(entry)
    return writer.finish(base, bytes.fromhex(adapter.sha256))


def _of(change: ModuleChange | None) -> list[str]:
    return changed(change) if change is not None else []


@dataclass(frozen=True)
class _Entry:
    site: int
    kind: int
    module: str
    a: Array
    b: Array | None = None
    gain: Array | None = None
    bias: Array | None = None
    rank: int = 0
    first: int = 0
    panels: int = 0


def _entries(
    number: int,
    site: Adaptable,
    parts: Sequence[Part],
    changes: Mapping[str, ModuleChange],
    read: Callable[[int], Array],
) -> list[_Entry]:
    lows = [_factors_alone(site, p, changes[p.module], lambda: read(number)) for p in parts]
    if site.kernel is not None and all(low is not None for low in lows):
        pieces = [
            piece_of(site, p, low, None, lambda: read(number))
            for p, low in zip(parts, lows, strict=True)
            if low
        ]
        return _factors(number, pieces)
    names = " + ".join(p.module for p in parts)
    return [_Entry(number, WHOLE, names, _whole(site, parts, changes, read(number)))]


def _factors_alone(
    site: Adaptable, part: Part, change: ModuleChange, read: Callable[[], Array]
) -> LowRank | None:
    """The factors, where the parameter is a weight that nothing else replaces."""
    if part.parameter != "weight" or "weight" in change.replaced or not part.kind:
        return None
    if change.rows is not None and site.kernel is not None:
        return row_factors(site, part, change.rows, read())
    return change.low_rank


def _factors(number: int, pieces: Sequence[Piece]) -> list[_Entry]:
    return [
        _Entry(number, FACTORS, p.module, p.a, p.b, p.gain, p.bias, len(p.a), p.first, len(p.b))
        for p in separate(pieces)
    ]


def _whole(
    site: Adaptable, parts: Sequence[Part], changes: Mapping[str, ModuleChange], base: Array
) -> Array:
    """The weight with all changes, as the package would hold it: in float64, rounded once."""
    made = merged(site, parts, changes, base)
    return to_layout(lora_values.round_once(made, base.dtype), site.layout)


@dataclass
class _Writer:
    """Entries and tensors, then the bytes of all."""

    name: str
    entries: list[tuple[_Entry, list[int]]] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, entry: _Entry) -> None:
        places = [self._put(t) for t in (entry.a, entry.b, entry.gain, entry.bias)]
        self.entries.append((entry, places))

    def _put(self, tensor: Array | None) -> int:
        """Offset among the tensors; -1 for none."""
        if tensor is None:
            return -1
        self._pad()
        at = self.size
        data = np.ascontiguousarray(tensor)
        self.tensors.append(data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes())
        self.size += len(self.tensors[-1])
        return at

    def _pad(self) -> None:
        self.tensors.append(bytes(-self.size % _ALIGN))
        self.size += len(self.tensors[-1])

    def finish(self, base: bytes, source: bytes) -> bytes:
        strings, offsets = bytearray(), {}
        for text in [self.name, *(e.module for e, _ in self.entries)]:
            if text not in offsets:
                offsets[text] = len(strings)
                strings += text.replace("\0", "\ufffd").encode("utf-8", "replace") + b"\0"
        tables = HEADER.size + len(self.entries) * ENTRY.size + len(strings)
        first = -(-tables // _ALIGN) * _ALIGN
        rows = [
            ENTRY.pack(
                e.site, e.kind, e.rank, e.first, e.panels, offsets[e.module],
                *(0 if at < 0 else first + at for at in places),
            )
            for e, places in self.entries
        ]  # fmt: skip
        rank = max((e.rank for e, _ in self.entries), default=0)
        header = HEADER.pack(
            MAGIC, VERSION, len(rows), first + self.size, base, source, offsets[self.name],
            len(strings), rank, 0,
        )  # fmt: skip
        head = bytearray(b"".join([header, *rows, bytes(strings), bytes(first - tables)]))
        checksum = adler32(head)
        for tensor in self.tensors:
            checksum = adler32(tensor, checksum)
        head[CHECKSUM_AT : CHECKSUM_AT + 4] = checksum.to_bytes(4, "little")
        return b"".join([head, *self.tensors])
