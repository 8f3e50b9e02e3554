"""A damaged adapter is refused, or is one that adapter.h allows: then it loads, merges and runs.

What is allowed is said here a second time, so that the runtime's checks are compared with it, field
by field. The model has its own process, so that a crash shows.
"""

from __future__ import annotations

import os
import random
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import fake_adapters
import numpy as np
import pytest
from fake_adapters import BASE, ENTRY, HEADER, Change, cuvla, factors
from fake_package import ADAPTER_CHECKSUM, seal_adapter

import cuvil  # isort: skip

# Of each site of fake_adapters' models: bytes, rows, panels (0: whole only), all panels at once.
SITES = ((5 * 3 * 32 * 4, 3, 5, False), (3 * 40 * 4, 3, 2, True), (9 * 4, 0, 0, False))
SECOND = HEADER.size + ENTRY.size  # where the second entry begins
Damage = tuple[str, bytes]


def is_good(data: bytes) -> bool:
    """Whether adapter.h allows these bytes for the models of fake_adapters."""
    if len(data) < HEADER.size:
        return False
    fields = HEADER.unpack_from(data)
    magic, version, count, size, base, _, name, string_bytes, _, checksum = fields
    zeroed = data[:ADAPTER_CHECKSUM] + bytes(4) + data[ADAPTER_CHECKSUM + 4 :]
    table = HEADER.size + ENTRY.size * count
    return (
        (magic.to_bytes(8, "little"), version, size) == (b"CUVILADP", 1, len(data))
        and base == BASE
        and checksum == zlib.adler32(zeroed)
        and 0 < string_bytes <= size - table
        and name < string_bytes
        and data[table + string_bytes - 1] == 0
        and good_entries(list(ENTRY.iter_unpack(data[HEADER.size : table])), data)
    )


def good_entries(entries: Sequence[tuple[int, ...]], data: bytes) -> bool:
    size, *_, string_bytes, most, _ = HEADER.unpack_from(data)[3:]
    taken: dict[int, int] = {}  # by site: the first panel that is free; a whole tensor takes all
    for site, kind, rank, first, panels, module, a, b, gain, bias in entries:
        if site >= len(SITES) or module >= string_bytes or any(s > site for s in taken):
            return False
        whole, rows, all_panels, at_once = SITES[site]
        if kind == fake_adapters.WHOLE:
            tensors = [(a, whole)]
            if site in taken:
                return False
            taken[site] = 2**64
        else:
            tensors = [(a, rank * rows * 4), (b, panels * rank * 32 * 4)]
            tensors += [(gain, panels * 32 * 4)] if gain else []
            good = kind == fake_adapters.FACTORS and 0 < rank <= most and panels > 0
            if not good or first < taken.get(site, 0) or first + panels > all_panels:
                return False
            if bias or (at_once and panels != all_panels):
                return False
            taken[site] = first + panels
        if any(place % 64 or place + length > size for place, length in tensors):
            return False
    return True


def whole_adapter() -> bytes:
    """Every kind of entry: pieces of one site, gains, a whole tensor."""
    rng = np.random.default_rng(3)
    pieces = [factors(rng, 0, 2, 0, 2), factors(rng, 0, 1, 3, 1, gain=True)]
    return cuvla("whole", [*pieces, factors(rng, 1, 3, gain=True), Change(2, np.ones(9, "f4"))])


def damages(original: bytes, rng: random.Random) -> Iterator[Damage]:
    """Damaged adapters, most of them with the checksum made right, and some harmless ones."""
    yield "none", original
    (count,) = struct.unpack_from("<I", original, 12)
    table = HEADER.size + count * ENTRY.size
    for place in range(0, table, 4):
        for value in values(original, place, 4):
            yield f"u32 at {place}: {value:#x}", put(original, place, "<I", value)
    for place in wide_fields(count):
        for value in values(original, place, 8):
            yield f"u64 at {place}: {value:#x}", put(original, place, "<Q", value)
    for place in [rng.randrange(len(original)) for _ in range(200)]:
        flipped = bytearray(original)
        flipped[place] ^= 1 << rng.randrange(8)
        yield f"bit of {place}", bytes(flipped)
        yield f"bit of {place}, sealed", seal_adapter(bytes(flipped))
    for size in (0, 1, 127, 128, 129, table, table + 3, len(original) - 1, len(original) + 1000):
        cut = original[:size].ljust(size, b"\0")
        yield f"{size} bytes", cut
        if size >= HEADER.size:
            yield f"{size} bytes, sealed", put(cut, 16, "<Q", size)
    yield from rearranged(original, count)


def wide_fields(count: int) -> list[int]:
    """The size and every offset."""
    return [16] + [
        HEADER.size + i * ENTRY.size + at for i in range(count) for at in (24, 32, 40, 48)
    ]


def values(data: bytes, place: int, width: int) -> list[int]:
    """Telling ones for a field: borders, neighbours, what wraps when it is multiplied or added."""
    old, size = int.from_bytes(data[place : place + width], "little"), len(data)
    top = 1 << 8 * width
    found = [0, 1, 2, 3, 4, 5, 31, 32, 64, 128, size - 64, size, size + 64, old + 1, old - 1]
    found += [size // 64 * 64, old + 64, top // 2, top // 2 - 1, top // 4, top // 8, top // 32]
    found += [top // 512, top - 64, top - 2, top - 1]
    return sorted({value % top for value in found} - {old})


def put(data: bytes, place: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, place, value)
    return seal_adapter(bytes(changed))


def rearranged(original: bytes, count: int) -> Iterator[Damage]:
    """Each entry in each other's place, and over it."""
    places = [slice(HEADER.size + i * ENTRY.size, HEADER.size + (i + 1) * ENTRY.size)
              for i in range(count)]  # fmt: skip
    for i, x in enumerate(places):
        for j, y in enumerate(places):
            data = bytearray(original)
            data[x] = original[y]
            yield f"entry {j} again as {i}", seal_adapter(bytes(data))
            data[y] = original[x]
            yield f"entries {i} and {j} swapped", seal_adapter(bytes(data))


def test_damaged_files_are_refused_or_good(make, tmp_path):
    """In bounded memory: the process has 2 GiB of addresses."""
    library = make(fake_adapters.exchanging()) / "model.so"
    command = [sys.executable, __file__, str(library), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, f"{run.stdout[-500:]}\n{run.stderr[-2000:]}"
    refused, ran = map(int, run.stdout.split()[-2:])
    assert refused > 1000
    assert ran > 100


def load_all(library: str, folder: str) -> None:
    """Prints each damage first, so that a crash names it."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    model = cuvil.load(library, threads=2)
    file, counts = Path(folder, "damaged.cuvla"), [0, 0]
    for what, data in damages(whole_adapter(), random.Random(4)):
        print(what, flush=True)
        file.write_bytes(data)
        good = loads(model, file)
        assert good == is_good(data), what
        counts[good] += 1
    load_huge(model, file)
    assert model.adapters == ()
    print(*counts)


def load_huge(model: cuvil.Model, file: Path) -> None:
    """Files of a terabyte, which no memory holds: a hole behind an adapter."""
    good = whole_adapter()
    for code, data in (("CUV611", good), ("CUV608", put(good, 16, "<Q", 1 << 40))):
        print(f"a terabyte: {code}")
        file.write_bytes(data)
        os.truncate(file, 1 << 40)
        assert refusal(model.load_adapter, file) == code
    file.unlink()


def loads(model: cuvil.Model, file: Path) -> bool:
    """False when it is refused; else it has been used, run and unloaded."""
    if code := refusal(model.load_adapter, file, "x"):
        assert code == "CUV611"
        return False
    code = refusal(model.use, "x")
    assert code in ("", "CUV609"), "the kernels of these tests refuse what is not finite"
    model.run({"gate": np.array([0, 1], np.int32)})
    model.use(None)
    model.unload_adapter("x")
    return True


def refusal(call: Callable[..., None], *arguments: object) -> str:
    """The code of the error that the call raises; empty when it raises none."""
    try:
        call(*arguments)
    except cuvil.CuvilError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("is not an adapter that cuvilc built", lambda d: b"PK" + d[2:]),
        ("format 2, this runtime reads 1", lambda d: put(d, 8, "<I", 2)),
        ("bytes, its header says", lambda d: d + b"\0"),
        ("built for another package: base 01020304, this one is 00010203",
         lambda d: seal_adapter(d[:24] + bytes(range(1, 33)) + d[56:])),
        ("its tables do not fit into its", lambda d: put(d, 12, "<I", 2**32 - 1)),
        ("its checksum is", lambda d: d[:-1] + b"\7"),
        ("entry 1 is malformed or does not fit", lambda d: put(d, SECOND, "<I", 9)),
    ],
)  # fmt: skip
def test_refusals_say_why(load, tmp_path, text, change):
    model, file = load(fake_adapters.exchanging()), tmp_path / "x.cuvla"
    file.write_bytes(change(whole_adapter()))
    with pytest.raises(cuvil.CuvilError, match=text) as caught:
        model.load_adapter(file)
    assert caught.value.code == "CUV611"
    assert model.adapters == ()


def test_biases_are_checked(load, tmp_path):
    """Of a model for batches: inside the file, of a weight that has a table, and only there."""
    image, file = fake_adapters.batched(), tmp_path / "x.cuvla"
    weight = np.zeros((fake_adapters.PANELS, fake_adapters.ROWS, 32), np.float32)
    image.adapted(weight, "test_adapted_rows", fake_adapters.ROWS, fake_adapters.PANELS * 32, 1)
    rng = np.random.default_rng(0)
    bias = np.ones(fake_adapters.PANELS * 32, np.float32)
    change = replace(factors(rng, 0, 0), bias=bias)
    good = cuvla("x", [change])
    place = HEADER.size + ENTRY.size - 8
    bad = [
        put(good, place, "<Q", 0), put(good, place, "<Q", len(good)), put(good, place, "<Q", 2**63),
        put(good, place, "<Q", int.from_bytes(good[place : place + 8], "little") + 1),
        good[:-4] + b"\0", cuvla("x", [replace(change, site=1)]),
        cuvla("x", [replace(change, bias=None)]),
    ]  # fmt: skip
    model = load(image)
    for i, data in enumerate(bad):
        file.write_bytes(data)
        assert refusal(model.load_adapter, file) == "CUV611", i
    file.write_bytes(good)
    model.load_adapter(file)
    assert model.pages.adapters == 3
    model.unload_adapter("x")
    assert refusal(load(fake_adapters.exchanging()).load_adapter, file) == "CUV611"


def padded(adapter: bytes) -> bytes:
    return adapter + bytes(-len(adapter) % 64)


def package_of(adapters: bytes) -> fake_adapters.Image:
    image = fake_adapters.exchanging()
    image.adapters = adapters
    return image


@pytest.mark.parametrize(
    ("text", "adapters"),
    [
        ("adapter 0 has 0 bytes of 1", b"\0"),
        ("adapter 0 has 0 bytes of 127", whole_adapter()[:127]),
        ("adapter 0 has 0 bytes of 4096", bytes(4096)),
        ("adapter 1 has 0 bytes of", whole_adapter().ljust(8192, b"\0")),
        ("`number 1 of the package`: its checksum is",
         padded(whole_adapter()) + whole_adapter()[:-1] + b"\7"),
        ("an adapter `whole` is loaded already", padded(whole_adapter()) + whole_adapter()),
        ("bytes of", put(whole_adapter(), 16, "<Q", 2**64 - 1)),
    ],
)  # fmt: skip
def test_bad_adapters_of_a_package_are_refused(make, text, adapters):
    package = make(package_of(adapters))
    with pytest.raises(cuvil.CuvilError, match=text) as caught:
        cuvil.load(package)
    assert caught.value.code == "CUV611"


def adaptable(row: int, **changes: int) -> fake_adapters.Image:
    """The model with other fields in one record of its table."""
    names = ("name", "kernel", "place", "bytes", "rows", "outputs", "packed", "reserved")
    image = fake_adapters.exchanging()
    fields = dict(zip(names, struct.unpack("<IIQQIIII", image.adaptable[row]), strict=True))
    image.adaptable[row] = struct.pack("<IIQQIIII", *(fields | changes).values())
    return image


BAD_TABLES = [
    (0, {"kernel": 99}), (0, {"place": 2**63}), (0, {"place": 32}), (0, {"bytes": 2**64 - 64}),
    (0, {"rows": 4}), (0, {"outputs": 0}), (0, {"outputs": 129 + 32}), (0, {"packed": 2}),
    (0, {"packed": 0}), (0, {"name": 2**31}), (0, {"bytes": 0, "rows": 0}), (1, {"rows": 0}),
    # 2^31 rows times 2^31 outputs times 4 bytes wrap to nothing
    (0, {"bytes": 0, "rows": 2**31, "outputs": 2**31 - 1}),
    (1, {"packed": 1}), (2, {"bytes": 2**40}),
]  # fmt: skip


@pytest.mark.parametrize(("row", "changes"), BAD_TABLES)
def test_bad_tables_are_refused(make, row, changes):
    with pytest.raises(cuvil.CuvilError, match=f"adaptable weight {row} is malformed") as caught:
        cuvil.load(make(adaptable(row, **changes)))
    assert caught.value.code == "CUV601"


def test_bad_sections_are_refused(make):
    image = fake_adapters.exchanging()
    image.lora = b""
    with pytest.raises(cuvil.CuvilError, match="CUV601.*no fingerprint of them"):
        cuvil.load(make(image))
    image = fake_adapters.Image(adapters=whole_adapter())
    image.arena_bytes = image.const(0)
    with pytest.raises(cuvil.CuvilError, match="CUV601.*no weight that they may exchange"):
        cuvil.load(make(image))


def test_a_whole_weight_needs_no_shape(load):
    """rows and outputs say nothing of a weight that no kernel merges into, however large."""
    model = load(adaptable(2, rows=2**32 - 1, outputs=2**32 - 1))
    outputs = model.run({"gate": np.array([0, 1], np.int32)})
    assert np.array_equal(outputs["vector"], fake_adapters.base_weights()[2])


if __name__ == "__main__":
    load_all(*sys.argv[1:])
