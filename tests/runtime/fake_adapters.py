"""Models whose weights adapters exchange, and adapters for them: the format of adapter.h by hand.

All numbers are small integers, so that float32 arithmetic is exact in any order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fake_package import COPY, INPUT, KERNEL, OUTPUT, Image, seal_adapter

BASE = bytes(range(32))
PANEL, ROWS, COLUMNS, PANELS = 32, 3, 40, 5  # ROWS and COLUMNS as kernels.c has them
WHOLE, FACTORS = 0, 1
MAGIC = 0x5044414C49565543
HEADER, ENTRY = struct.Struct("<QIIQ32s32sIIII24x"), struct.Struct("<IIIIIIQQQQ")
SITES = ("panels", "rows", "vector")


@dataclass(frozen=True)
class Change:
    """One entry: an array, or a [rank, rows], b [panels, rank, 32]; gain and bias [32 panels]."""

    site: int
    a: np.ndarray
    b: np.ndarray | None = None
    gain: np.ndarray | None = None
    first: int = 0
    bias: np.ndarray | None = None


def cuvla(
    name: str, changes: Sequence[Change], base: bytes = BASE, source: bytes = b"s" * 32
) -> bytes:
    """The file of an adapter."""
    strings = name.encode() + b"\0module\0"
    start = HEADER.size + ENTRY.size * len(changes) + len(strings)
    body, entries, ranks = bytearray(), b"", [0]
    for change in changes:
        places = []
        for array in (change.a, change.b, change.gain, change.bias):
            body += bytes(-(start + len(body)) % 64)
            places.append(0 if array is None else start + len(body))
            body += b"" if array is None else array.tobytes()
        factors = change.b is not None
        sizes = (len(change.a), change.first, len(change.b)) if factors else (0, 0, 0)
        ranks.append(sizes[0])
        kind = FACTORS if factors else WHOLE
        entries += ENTRY.pack(change.site, kind, *sizes, len(strings) - 7, *places)
    size = start + len(body)
    head = (MAGIC, 1, len(changes), size, base, source, 0, len(strings), max(ranks), 0)
    return seal_adapter(HEADER.pack(*head) + entries + strings + bytes(body))


def embed(image: Image, adapters: Sequence[bytes]) -> Image:
    """The image with adapters that come with it."""
    for adapter in adapters:
        image.adapters += bytes(-len(image.adapters) % 64) + adapter
    return image


def base_weights() -> list[np.ndarray]:
    """Of every site, as the package has it: panels, row-major, a vector."""
    rng = np.random.default_rng(0)
    shapes = [(PANELS, ROWS, PANEL), (ROWS, COLUMNS), (9,)]
    return [rng.integers(-9, 10, shape).astype(np.float32) for shape in shapes]


def exchanging() -> Image:
    """Outputs `panels`, `rows`, `vector`: the adapted weights as the run sees them before it waits
    at its gate (input int32[2], kernel test_gate), and `after`: `panels` seen again behind it.
    """
    image = Image(lora=BASE + bytes(32))
    image.arena_bytes = image.const(0)
    gate = image.port(INPUT, "gate", "int32", [image.const(2)])
    kernels = [("test_merge_panels", ROWS, 150, 1), ("test_merge_rows", ROWS, COLUMNS, 0), ()]
    bases = base_weights()
    sites = [image.adapted(w, *kernel) for w, kernel in zip(bases, kernels, strict=True)]
    for site, weight, name in zip(sites, bases, SITES, strict=True):
        output = image.port(OUTPUT, name, "float32", [image.const(d) for d in weight.shape])
        image.step(COPY, buffers=[site, output])
    image.step(KERNEL, "test_gate", [gate], [], image.const(1), layer="/gate")
    after = image.port(OUTPUT, "after", "float32", [image.const(d) for d in bases[0].shape])
    image.step(COPY, buffers=[sites[0], after])
    return image


def factors(
    rng: np.random.Generator, site: int, rank: int, first: int = 0, panels: int = 0, gain=False
) -> Change:
    """Random factors for `panels` panels from `first` on; 0 for all of them."""
    panels = panels or (PANELS, -(-COLUMNS // PANEL))[site]
    a = rng.integers(-3, 4, (rank, ROWS)).astype(np.float32)
    b = rng.integers(-3, 4, (panels, rank, PANEL)).astype(np.float32)
    gains = rng.integers(1, 4, panels * PANEL).astype(np.float32) if gain else None
    return Change(site, a, b, gains, first)


def adapted_weights(changes: Sequence[Change]) -> list[np.ndarray]:
    """What the sites are with these changes."""
    made = base_weights()
    for change in changes:
        if change.b is None:
            made[change.site] = change.a
            continue
        delta = np.einsum("rk,prn->pkn", change.a, change.b)
        count = len(change.b)
        gain = np.ones(count * PANEL) if change.gain is None else change.gain
        if change.site == 0:
            span = slice(change.first, change.first + count)
            made[0][span] = made[0][span] * gain.reshape(count, 1, PANEL) + delta
        else:
            delta = delta.transpose(1, 0, 2).reshape(ROWS, -1)
            made[1] = made[1] * gain[:COLUMNS] + delta[:, :COLUMNS]
    return [w.astype(np.float32) for w in made]


def numbered_changes(number: int, ranks: tuple[int, int] = (1, 2)) -> list[Change]:
    """Every site becomes this number everywhere, where it was 0."""
    changes = []
    for site, panels in ((0, PANELS), (1, 2)):
        a = np.zeros((ranks[site], ROWS), np.float32)
        b = np.zeros((panels, ranks[site], PANEL), np.float32)
        a[-1], b[:, -1] = 1, number
        changes.append(Change(site, a, b))
    return [*changes, Change(2, np.full(9, number, np.float32))]


def numbered() -> Image:
    """Outputs `panels`, `rows`, `vector`, `panels again`: the number that all of the weight are, or
    -1. The package's own are 0; its adapters `one` and `two` make them 1 and 2.
    """
    image = Image(lora=BASE + bytes(32))
    image.arena_bytes = image.const(0)
    one = image.const(1)
    kernels = [("test_merge_panels", ROWS, 160, 1), ("test_merge_rows", ROWS, COLUMNS, 0), ()]
    zeros = [np.zeros_like(w) for w in base_weights()]
    sites = [image.adapted(w, *kernel) for w, kernel in zip(zeros, kernels, strict=True)]
    for name, i in [*((n, i) for i, n in enumerate(SITES)), ("panels again", 0)]:
        output = image.port(OUTPUT, name, "float32", [one])
        image.step(KERNEL, "test_number_of", [sites[i], output], [image.const(zeros[i].size)], one)
    names = ("one", "two")
    return embed(image, [cuvla(n, numbered_changes(i + 1)) for i, n in enumerate(names)])


def batch_changes(number: int) -> list[Change]:
    """b is this number everywhere."""
    a = np.full((2, ROWS), number, np.float32)
    return [Change(0, a, np.full((PANELS, 2, PANEL), number, np.float32))]


def batched(hidden: int = 4, slots: int = 16) -> Image:
    """y float32[n] of x float32[n]: the number of each row's adapter. The package's own are `one`
    and `two`.
    """
    image = Image(lora=BASE + struct.pack("<I28x", hidden))
    image.arena_bytes = image.const(0)
    names = ("x", "slots", "rank", "pool")
    n, _, rank, pool = (image.symbol(name, i, 0) if i != 1 else -1 for i, name in enumerate(names))
    dtypes = ("float32", "int64", "uint8", "float32")
    ports = [
        image.port(INPUT, *port, [d])
        for *port, d in zip(names, dtypes, (n, n, rank, pool), strict=True)
    ]
    shape = [image.const(d) for d in (1, slots, 8)]
    table = image.port(INPUT, "table", "int64", shape)
    image.adapted(base_weights()[0], "test_adapted_rows", ROWS, PANELS * PANEL, 1)
    y = image.port(OUTPUT, "y", "float32", [n])
    image.step(KERNEL, "test_adapted_rows", [ports[1], table, ports[3], y], [], n)
    return embed(image, [cuvla(n, batch_changes(i + 1)) for i, n in enumerate(("one", "two"))])


def write_batch(folder: Path, number: int) -> Path:
    """A file of an adapter of `batched` that is this number."""
    file = folder / f"{number}.cuvla"
    file.write_bytes(cuvla(f"number {number}", batch_changes(number)))
    return file


def write_numbered(folder: Path, number: int) -> Path:
    """A file of the adapter that makes every weight of `numbered` this number."""
    file = folder / f"{number}.cuvla"
    file.write_bytes(cuvla(f"number {number}", numbered_changes(number, (3, 1))))
    return file
