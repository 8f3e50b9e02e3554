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
from math import prod
from struct import Struct
from typing import Any
from zlib import adler32

import numpy as np
from numpy.typing import NDArray

from cuvilc.adapter import Adapter, LowRank, ModuleChange
from cuvilc.diagnostics import fail
from cuvilc.dialect import lora_values
from cuvilc.dialect.lora_codes import NO_PLACE
from cuvilc.dialect.types import PANEL, to_layout
from cuvilc.package.plan import Adaptable, Part

MAGIC = 0x5044414C49565543  # "CUVILADP"
VERSION = 1
HEADER = Struct("<QIIQ32s32sIIII24x")
ENTRY = Struct("<IIIIIIQQQQ")
WHOLE, FACTORS = 0, 1
_ALIGN = 64
_CHECKSUM_AT = 8 + 4 + 4 + 8 + 32 + 32 + 12

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
            entries = _of_rows(number, site, changes, table, read)
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
    lows = [_factors_alone(changes[p.module], p) for p in parts]
    if site.kernel is not None and all(low is not None for low in lows):
        pieces = [
            _piece(site, p, low, None, lambda: read(number))
            for p, low in zip(parts, lows, strict=True)
            if low
        ]
        return _separate(number, sorted(pieces, key=lambda p: p.first))
    names = " + ".join(p.module for p in parts)
    return [_Entry(number, WHOLE, names, _whole(site, parts, changes, read(number)))]


def _factors_alone(change: ModuleChange, part: Part) -> LowRank | None:
    """The factors, where the parameter is a weight that nothing else replaces."""
    if part.parameter != "weight" or "weight" in change.replaced or not part.kind:
        return None
    return change.low_rank


def _of_rows(
    number: int,
    site: Adaptable,
    changes: Mapping[str, ModuleChange],
    table: Sequence[Adaptable],
    read: Callable[[int], Array],
) -> list[_Entry]:
    """What adapters of rows change in the outputs of one layer."""
    pieces = []
    for part in site.parts if site.kernel is not None else ():
        change = changes.get(part.module)
        if change is None:
            continue
        low = change.low_rank if part.parameter == "weight" else None
        if part.parameter == "weight" and "weight" in change.replaced:
            low = _exact_factors(site, part, changes, read(number))
        bias = None
        if part.parameter == "bias" or not _has_own_table(part.module, table):
            bias = _bias_change(part, change, table, read)
        if low is not None or bias is not None:
            pieces.append(_piece(site, part, low, bias, lambda: read(number)))
    return _separate(number, sorted(pieces, key=lambda p: p.first))


def _exact_factors(
    site: Adaptable, part: Part, changes: Mapping[str, ModuleChange], base: Array
) -> LowRank:
    """The change ΔW [N, K] to a replaced weight as factors, one of which is the identity."""
    made = _merged(site, [part], changes, base)
    own = slice(part.start, part.start + part.size)
    delta = np.moveaxis(made, site.out_axis, 0)[own] - np.moveaxis(base, site.out_axis, 0)[own]
    n, k = delta.shape
    a, b = (delta, np.eye(n)) if n < k else (np.eye(k), delta)
    return LowRank(a, b, 1.0, len(a), len(a))


def _has_own_table(module: str, table: Sequence[Adaptable]) -> bool:
    """Whether the module's bias is not its weight's line of outputs, but changed for itself."""
    own = (module, "bias")
    return any(
        site.kernel is not None and own in [(p.module, p.parameter) for p in site.parts]
        for site in table
    )


def _base_bias(
    module: str, table: Sequence[Adaptable], read: Callable[[int], Array]
) -> NDArray[np.float64]:
    number, part = next(
        (i, p)
        for i, site in enumerate(table)
        for p in site.parts
        if (p.module, p.parameter) == (module, "bias")
    )
    line = np.asarray(read(number), np.float64).reshape(-1)
    return line[part.start : part.start + part.size]


def _bias_change(
    part: Part, change: ModuleChange, table: Sequence[Adaptable], read: Callable[[int], Array]
) -> NDArray[np.float64] | None:
    """What is added to the outputs besides the base's own bias; None if nothing is."""
    low, new = change.low_rank, change.replaced.get("bias")
    total = np.zeros(part.size)
    if new is not None:
        total += np.asarray(new, np.float64).reshape(-1) - _base_bias(part.module, table, read)
    if low is not None and low.bias is not None:
        total += np.asarray(low.bias, np.float64).reshape(-1) * low.scale
    return total if new is not None or (low is not None and low.bias is not None) else None


@dataclass(frozen=True)
class _Piece:
    """Factors of one part in the package's panels: a [r, rows], b [panels, r, 32]; gain and bias
    [32 · panels].
    """

    module: str
    a: NDArray[np.float32]
    b: NDArray[np.float32]
    gain: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None
    first: int

    @property
    def end(self) -> int:
        return self.first + len(self.b)


def _piece(
    site: Adaptable,
    part: Part,
    low: LowRank | None,
    bias: Array | None,
    read: Callable[[], Array],
) -> _Piece:
    """low: None where only a bias changes. read: the weight as the package has it."""
    a, b = np.zeros((0, prod(site.shape) // site.shape[site.out_axis])), np.zeros((part.size, 0))
    gain = None
    if low is not None:
        a = np.asarray(low.a, np.float64).reshape(len(low.a), -1)
        b = np.asarray(low.b, np.float64).reshape(part.size, -1) * low.scale
    if low is not None and low.magnitude is not None:
        gain = np.asarray(low.magnitude, np.float64).reshape(-1)
        gain = gain / _norms(read(), site, part, low)
        b = b * gain[:, None]
    whole = site.layout == ""  # a row-major weight is merged as a whole
    begin = 0 if whole else part.start // PANEL
    end = -(-(site.shape[site.out_axis] if whole else part.start + part.size) // PANEL)

    def columns(values: Array, others: float) -> NDArray[np.float32]:
        made = np.full(((end - begin) * PANEL, *values.shape[1:]), others, np.float32)
        at = part.start - begin * PANEL
        made[at : at + part.size] = values
        return made

    panels = columns(b, 0).reshape(end - begin, PANEL, b.shape[1]).transpose(0, 2, 1)
    return _Piece(
        part.module, a.astype(np.float32), np.ascontiguousarray(panels),
        None if gain is None else columns(gain, 1), None if bias is None else columns(bias, 0),
        begin,
    )  # fmt: skip


def _values(part: Part, low: LowRank) -> lora_values.Part:
    """The factors as `lora_values` adds them to a weight."""
    a, b = (np.asarray(m).reshape(len(m), -1) for m in (low.a, low.b))
    magnitude = None if low.magnitude is None else np.asarray(low.magnitude).reshape(-1)
    return lora_values.Part(a, b, magnitude, low.scale, part.start, module=part.module)


def _norms(weight: Array, site: Adaptable, part: Part, low: LowRank) -> NDArray[np.float64]:
    """‖W + ΔW‖ of each output of the part."""
    target = lora_values.Target(site.shape, site.out_axis, [_values(part, low)])
    target.measure(weight.reshape(target.view))
    return target.norms[0]


def _separate(number: int, pieces: list[_Piece]) -> list[_Entry]:
    """Entries that share no panel: pieces that meet in one become one piece of all their ranks."""
    joined: list[_Piece] = []
    for piece in pieces:
        if joined and piece.first < joined[-1].end:
            joined[-1] = _both(joined[-1], piece)
        else:
            joined.append(piece)
    return [
        _Entry(number, FACTORS, p.module, p.a, p.b, p.gain, p.bias, len(p.a), p.first, len(p.b))
        for p in joined
    ]


def _both(x: _Piece, y: _Piece) -> _Piece:
    first, end = min(x.first, y.first), max(x.end, y.end)
    b = np.zeros((end - first, len(x.a) + len(y.a), PANEL), np.float32)
    b[x.first - first : x.end - first, : len(x.a)] = x.b
    b[y.first - first : y.end - first, len(x.a) :] = y.b

    def line(mine: Array | None, theirs: Array | None, none: float) -> Array | None:
        if mine is None and theirs is None:
            return None
        made = np.full((end - first) * PANEL, none, np.float32)
        for p, part in ((x, mine), (y, theirs)):
            span = slice((p.first - first) * PANEL, (p.end - first) * PANEL)
            if part is not None:  # outputs of neither part are `none` in both
                made[span] = made[span] * part if none else made[span] + part
        return made

    gain, bias = line(x.gain, y.gain, 1), line(x.bias, y.bias, 0)
    return _Piece(f"{x.module} + {y.module}", np.concatenate([x.a, y.a]), b, gain, bias, first)


def _whole(
    site: Adaptable, parts: Sequence[Part], changes: Mapping[str, ModuleChange], base: Array
) -> Array:
    """The weight with all changes, as the package would hold it: in float64, rounded once."""
    made = _merged(site, parts, changes, base)
    return to_layout(lora_values.round_once(made, base.dtype), site.layout)


def _merged(
    site: Adaptable, parts: Sequence[Part], changes: Mapping[str, ModuleChange], base: Array
) -> NDArray[np.float64]:
    """The weight with all changes in float64."""
    made = np.array(base, np.float64)
    line = np.moveaxis(made, site.out_axis, 0) if made.ndim else made.reshape(1)
    adapted = []
    for part in parts:
        change, span = changes[part.module], slice(part.start, part.start + part.size)
        low = change.low_rank
        if part.parameter in change.replaced:
            value = _outputs_first(part, change).reshape(line[span].shape)
            if part.kind == "linear" and lora_values.is_turned(value, line[span]):
                raise fail(NO_PLACE, f"`{part.module}`: {lora_values.TURNED}")
            line[span] = value
        if low is not None and part.parameter == "bias" and low.bias is not None:
            line[span] += np.asarray(low.bias, np.float64).reshape(line[span].shape) * low.scale
        if low is not None and part.parameter == "weight":
            adapted.append(_values(part, low))
    if adapted:
        made, _ = lora_values.merge(made, site.out_axis, adapted)
    return made


def _outputs_first(part: Part, change: ModuleChange) -> Array:
    """A replaced parameter with its outputs along the first axis."""
    value = np.asarray(change.replaced[part.parameter])
    turned = part.kind == "embedding" or change.fan_in_fan_out
    if part.parameter == "weight" and part.kind and turned:
        value = np.moveaxis(value, -1, 0)
    return value


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
        head[_CHECKSUM_AT : _CHECKSUM_AT + 4] = checksum.to_bytes(4, "little")
        return b"".join([head, *self.tensors])
