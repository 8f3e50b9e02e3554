"""Adapters as packages hold them, read back by code that shares only adapter.h with the writer.

The truth is W' = g · (W + scale · B · A) in float64, g = 1 or DoRA's m / ‖W + ΔW‖, on logical
arrays (cuvilc/adapter.py).
"""

from __future__ import annotations

import re
import struct
import subprocess
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuvilc.adapter import Adapter, LowRank, ModuleChange
from cuvilc.diagnostics import CuvilError
from cuvilc.dialect import types
from cuvilc.package import cuvla
from cuvilc.package.plan import Adaptable, Part

HEADER_FILE = Path(__file__).parents[2] / "runtime" / "src" / "adapter.h"
PANEL = 32
BASE = bytes(range(32))
Array = np.ndarray[Any, Any]
EPS = float(np.finfo(np.float32).eps)


def test_records_are_those_of_adapter_h(tmp_path: Path) -> None:
    """Every field's place, the sizes and the numbers, checked by the C compiler."""
    text = HEADER_FILE.read_text()
    checks = [
        f"CUVIL_ADAPTER_MAGIC == {cuvla.MAGIC}", f"CUVIL_ADAPTER_VERSION == {cuvla.VERSION}",
        f"CUVIL_PANEL == {types.PANEL}", f"CUVIL_ADAPTER_WHOLE == {cuvla.WHOLE}",
        f"CUVIL_ADAPTER_FACTORS == {cuvla.FACTORS}",
    ]  # fmt: skip
    fields = {
        "header": (cuvla.HEADER, "magic version entry_count bytes base source name string_bytes "
                                 "rank checksum reserved"),
        "entry": (cuvla.ENTRY, "site kind rank first_panel panels module a b gain bias"),
    }  # fmt: skip
    for record, (form, names) in fields.items():
        checks.append(f"sizeof(cuvil_adapter_{record}) == {form.size}")
        codes = re.findall(r"\d*[a-zA-Z]", form.format)
        for i, name in enumerate(names.split()):
            assert re.search(rf"\b{name}\b", text)
            place = struct.calcsize("<" + "".join(codes[:i]))
            checks.append(f"offsetof(cuvil_adapter_{record}, {name}) == {place}")
        assert len(codes) == len(names.split())
    checks.append(f"offsetof(cuvil_adapter_header, checksum) == {cuvla.CHECKSUM_AT}")
    source = tmp_path / "checks.c"
    asserts = "".join(f'_Static_assert({check}, "{check}");\n' for check in checks)
    source.write_text(f'#include <stddef.h>\n#include "{HEADER_FILE}"\n{asserts}')
    subprocess.run(["cc", "-std=c11", "-fsyntax-only", str(source)], check=True)


@dataclass
class Entry:
    """One entry, its tensors still bytes of the file."""

    site: int
    kind: int
    rank: int
    first: int
    panels: int
    module: str
    data: bytes
    a: int
    b: int
    gain: int
    bias: int

    def floats(self, at: int, *shape: int) -> Array:
        assert at % 64 == 0
        return np.frombuffer(self.data, "<f4", prod(shape), at).reshape(shape)


@dataclass
class File:
    """A .cuvla file, as adapter.h describes it."""

    name: str
    base: bytes
    source: bytes
    rank: int
    entries: list[Entry]


def read(data: bytes) -> File:
    magic, version, count, size, base, source, name, string_bytes, rank, checksum = (
        struct.unpack_from("<QIIQ32s32sIIII", data)
    )
    assert (magic.to_bytes(8, "little"), version, size) == (b"CUVILADP", 1, len(data))
    assert data[104:128] == bytes(24)
    assert checksum == zlib.adler32(data[:100] + bytes(4) + data[104:])
    strings = data[128 + 56 * count :][:string_bytes]
    assert strings.endswith(b"\0")

    def text(at: int) -> str:
        return strings[at : strings.index(b"\0", at)].decode()

    entries = []
    for *head, module, a, b, gain, bias in struct.iter_unpack(
        "<6I4Q", data[128 : 128 + 56 * count]
    ):
        entries.append(Entry(*head, text(module), data, a, b, gain, bias))
    order = [(e.site, e.first) for e in entries]
    assert order == sorted(set(order))
    assert max((e.rank for e in entries), default=0) == rank
    return File(text(name), base, source, rank, entries)


def to_panels(array: Array, axis: int) -> Array:
    """[panels, rows, 32] of a logical array, zeros behind the last output."""
    rows = np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % PANEL)))
    return rows.reshape(len(rows), -1, PANEL).swapaxes(0, 1)


def from_panels(panels: Array, shape: Sequence[int], axis: int) -> Array:
    rows = panels.swapaxes(0, 1).reshape(panels.shape[1], -1)[:, : shape[axis]]
    others = [d for i, d in enumerate(shape) if i != axis]
    return np.moveaxis(rows.reshape(*others, shape[axis]), -1, axis)


def decode(file: File, table: Sequence[Adaptable], bases: Sequence[Array]) -> list[Array]:
    """The logical weights that the runtime makes: in float64 what its kernels do in float32."""
    made = [np.asarray(b).astype(np.float64) for b in bases]
    for entry in file.entries:
        site = table[entry.site]
        shape, axis = site.shape, site.out_axis
        if entry.kind == 0:
            made[entry.site] = whole(entry, site)
            continue
        assert entry.kind == 1
        assert site.kernel is not None
        rows = prod(shape) // shape[axis]
        panels = to_panels(made[entry.site], axis)
        assert 0 < entry.panels <= len(panels) - entry.first
        if site.layout == "":
            assert entry.panels == len(panels)
        a = entry.floats(entry.a, entry.rank, rows).astype(np.float64)
        b = entry.floats(entry.b, entry.panels, entry.rank, PANEL).astype(np.float64)
        gain = np.ones((entry.panels, 1, PANEL))
        if entry.gain:
            gain = entry.floats(entry.gain, entry.panels, 1, PANEL).astype(np.float64)
        span = slice(entry.first, entry.first + entry.panels)
        panels[span] = panels[span] * gain + np.einsum("rk,prn->pkn", a, b)
        made[entry.site] = from_panels(panels, shape, axis)
    return made


def whole(entry: Entry, site: Adaptable) -> Array:
    dtype = np.dtype(getattr(ml_dtypes, site.dtype, site.dtype))
    data: Array = np.frombuffer(entry.data, dtype, site.bytes // dtype.itemsize, entry.a)
    assert entry.a % 64 == 0
    data = data.astype(np.float64)
    if not site.layout:
        return data.reshape(site.shape)
    rows = prod(site.shape) // site.shape[site.out_axis]
    return from_panels(data.reshape(-1, rows, PANEL), site.shape, site.out_axis)


def truth(changes: dict[str, ModuleChange], site: Adaptable, base: Array) -> Array:
    """The logical weight with all changes, in float64."""
    made = np.array(base).astype(np.float64)
    out_first = np.moveaxis(made, site.out_axis, 0) if made.ndim else made.reshape(1)
    for part in site.parts:
        change = changes.get(part.module)
        if change is None:
            continue
        span = slice(part.start, part.start + part.size)
        low, new = change.low_rank, change.replaced.get(part.parameter)
        if new is not None:
            value = np.asarray(new, np.float64)
            stored_in_out = change.fan_in_fan_out or part.kind == "embedding"
            out_first[span] = value.T if stored_in_out and value.ndim == 2 else value
        if low is not None and part.parameter == "bias" and low.bias is not None:
            out_first[span] += low.scale * np.asarray(low.bias, np.float64)
        if low is not None and part.parameter == "weight":
            b, a = np.asarray(low.b, np.float64), np.asarray(low.a, np.float64)
            delta = low.scale * np.tensordot(b.reshape(part.size, -1), a, 1)
            v = out_first[span] + delta.reshape(out_first[span].shape)
            if low.magnitude is not None:
                norm = np.sqrt((v**2).reshape(part.size, -1).sum(1))
                g = np.asarray(low.magnitude, np.float64).reshape(-1) / norm
                v *= g.reshape(-1, *[1] * (v.ndim - 1))
            out_first[span] = v
    return made


RNG = np.random.default_rng(1)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def low_rank(outputs: int, inputs: Sequence[int], rank: int, **more: Any) -> LowRank:
    a, b = normal(rank, *inputs, dtype=more.pop("dtype", np.float32)), normal(outputs, rank)
    return LowRank(a, b, more.pop("scale", 1.7), rank, 1.7 * rank, **more)


def site(
    shape: tuple[int, ...], axis: int, parts: Sequence[tuple[str, str, str, int]], **more: Any
) -> tuple[Adaptable, Array]:
    """A weight and its entry in the table. parts: module, parameter, kind, size."""
    dtype, packed = more.get("dtype", "float32"), more.get("packed", False)
    base = normal(*shape, dtype=getattr(ml_dtypes, dtype, dtype))
    starts = np.cumsum([0, *(size for *_, size in parts)])
    listed = tuple(
        Part(module, parameter, kind, int(start), size)
        for (module, parameter, kind, size), start in zip(parts, starts, strict=False)
    )
    count = to_panels(base, axis).size if packed else base.size
    layout = f"pack{axis}_{PANEL}" if packed else ""
    size_bytes = count * base.dtype.itemsize
    kernel = more.get("kernel", 0)
    return Adaptable("w", size_bytes, shape, dtype, layout, axis, listed, kernel), base


def qkv(packed: bool = True, axis: int = 1, sizes: tuple[int, ...] = (48, 20, 76)) -> Any:
    total = sum(sizes)
    shape = (12, total) if axis else (total, 12)
    parts = [(name, "weight", "linear", size) for name, size in zip("qkv", sizes, strict=True)]
    return site(shape, axis, parts, packed=packed)


def linear(name: str, outputs: int, inputs: int, rank: int, **more: Any) -> ModuleChange:
    return ModuleChange(name, "linear", low_rank(outputs, (inputs,), rank, **more))


def magnitude(outputs: int) -> Array:
    return np.abs(normal(outputs)) + np.float32(0.5)


CASES: dict[str, tuple[tuple[Adaptable, Array], list[ModuleChange]]] = {
    "inputs first": (
        site((12, 100), 1, [("m", "weight", "linear", 100)], packed=True),
        [linear("m", 100, 12, 4)],
    ),
    "outputs first, float16 factors": (
        site((64, 7), 0, [("m", "weight", "linear", 64)], packed=True),
        [linear("m", 64, 7, 1, dtype=np.float16)],
    ),
    "convolution": (
        site((40, 3, 2, 5), 0, [("m", "weight", "convolution", 40)], packed=True),
        [ModuleChange("m", "convolution", low_rank(40, (3, 2, 5), 6))],
    ),
    "convolution with magnitudes": (
        site((40, 3, 2, 5), 0, [("m", "weight", "convolution", 40)], packed=True),
        [ModuleChange("m", "convolution", low_rank(40, (3, 2, 5), 2, magnitude=magnitude(40)))],
    ),
    "embedding": (
        site((50, 70), 1, [("m", "weight", "embedding", 70)]),
        [ModuleChange("m", "embedding", low_rank(70, (50,), 5))],
    ),
    "row-major, not a multiple of a panel": (
        site((9, 33), 1, [("m", "weight", "linear", 33)]), [linear("m", 33, 9, 3)],
    ),
    "row-major parts with magnitudes": (
        qkv(packed=False),
        [linear("q", 48, 12, 2), linear("v", 76, 12, 5, magnitude=magnitude(76))],
    ),
    "magnitudes": (
        site((12, 100), 1, [("m", "weight", "linear", 100)], packed=True),
        [linear("m", 100, 12, 4, magnitude=magnitude(100))],
    ),
    "parts that share panels": (
        qkv(), [linear("q", 48, 12, 4), linear("k", 20, 12, 2), linear("v", 76, 12, 8)],
    ),
    "parts that share panels, outputs first": (
        qkv(axis=0), [linear("q", 48, 12, 4), linear("k", 20, 12, 2), linear("v", 76, 12, 8)],
    ),
    "first and last part": (qkv(), [linear("q", 48, 12, 4), linear("v", 76, 12, 8)]),
    "the middle part": (qkv(), [linear("k", 20, 12, 3)]),
    "parts in panels of their own": (
        qkv(sizes=(64, 32, 64)), [linear("q", 64, 12, 4), linear("v", 64, 12, 8)],
    ),
    "parts that share panels, some with magnitudes": (
        qkv(),
        [linear("q", 48, 12, 4, magnitude=magnitude(48)), linear("k", 20, 12, 2),
         linear("v", 76, 12, 8, magnitude=magnitude(76))],
    ),
    "three parts in one panel": (
        qkv(sizes=(10, 11, 9)),
        [linear("v", 9, 12, 1, magnitude=magnitude(9)), linear("k", 11, 12, 2),
         linear("q", 10, 12, 3, magnitude=magnitude(10))],
    ),
    "a replaced part beside a low-rank one": (
        qkv(), [ModuleChange("q", "linear", replaced={"weight": normal(48, 12)}),
                linear("v", 76, 12, 8)],
    ),
    "a replaced weight stored [K, N]": (
        site((12, 40), 1, [("m", "weight", "linear", 40)], packed=True),
        [ModuleChange("m", "linear", None, {"weight": normal(12, 40)}, fan_in_fan_out=True)],
    ),
    "a replaced embedding": (
        site((50, 70), 1, [("m", "weight", "embedding", 70)]),
        [ModuleChange("m", "embedding", None, {"weight": normal(50, 70)})],
    ),
    "a replaced bias": (
        site((40,), 0, [("m", "bias", "", 40)], kernel=None),
        [ModuleChange("m", "linear", None, {"bias": normal(40)})],
    ),
    "a bias of B": (
        site((40,), 0, [("m", "bias", "", 40)], kernel=None),
        [ModuleChange("m", "linear", low_rank(40, (3,), 2, bias=normal(40)))],
    ),
    "no kernel": (
        site((40, 9), 0, [("m", "weight", "linear", 40)], kernel=None),
        [linear("m", 40, 9, 3, magnitude=magnitude(40))],
    ),
    "bfloat16": (
        site((40, 9), 0, [("m", "weight", "linear", 40)], kernel=None, dtype="bfloat16"),
        [linear("m", 40, 9, 3)],
    ),
    "a part without a kernel of its own kind": (
        site((3, 40), 1, [("m", "gamma", "", 40)], packed=True),
        [ModuleChange("m", replaced={"gamma": normal(40, 3)})],
    ),
}  # fmt: skip


def adapter(name: str, changes: Sequence[ModuleChange]) -> Adapter:
    return Adapter(name, Path("x"), tuple(changes), "5a" * 32)


def encode(
    table: Sequence[Adaptable], bases: Sequence[Array], made: Adapter, batched: bool = False
) -> bytes:
    by_module = {c.path: c for c in made.changes}
    return cuvla.encode(made, by_module, table, lambda i: bases[i], BASE, batched)


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_means_what_its_factors_say(case: str) -> None:
    """Within the rounding of factors, gains and results to the weight's dtype."""
    (entry, base), changes = CASES[case]
    file = read(encode([entry], [base], adapter(case, changes)))
    assert (file.name, file.base, file.source) == (case, BASE, b"Z" * 32)
    [made] = decode(file, [entry], [base])
    by_module = {c.path: c for c in changes}
    expected = truth(by_module, entry, base)
    lows = [c.low_rank for c in changes if c.low_rank is not None]
    size = 1 + np.abs(expected) + sum(low.rank for low in lows) * 20
    eps = EPS if entry.dtype == "float32" else float(ml_dtypes.finfo(entry.dtype).eps)
    assert np.all(np.abs(made - expected) <= eps * size)
    assert np.abs(expected - base.astype(np.float64)).max() > 0.1


def lines(file: File, number: int, outputs: int) -> Array:
    """What the entries of a site add to its outputs."""
    total = np.zeros(outputs + PANEL)
    for entry in file.entries:
        if entry.site == number and entry.bias:
            line = entry.floats(entry.bias, entry.panels * PANEL)
            span = slice(entry.first * PANEL, (entry.first + entry.panels) * PANEL)
            total[span] += line[: len(total[span])]
    assert not total[outputs:].any()
    return total[:outputs]


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_get_factors_and_biases_alone(axis: int) -> None:
    """Also for a weight that is replaced: of rank 12 where K is smaller, else of rank N."""
    owned = [site((n,), 0, [(m, "bias", "", n)], kernel=None) for m, n in (("q", 48), ("v", 76))]
    norm = site((30,), 0, [("norm", "bias", "", 30)])
    (entry, base), sites = qkv(axis=axis), [norm, *owned]
    table, bases = ([x[i] for x in [(entry, base), *sites]] for i in (0, 1))
    k_low = low_rank(20, (12,), 2, magnitude=magnitude(20))
    changes = {
        "q": ModuleChange("q", "linear", low_rank(48, (12,), 3, bias=normal(48)),
                          {"bias": normal(48)}),
        "k": ModuleChange("k", "linear", k_low, {"weight": normal(20, 12)}),
        "v": ModuleChange("v", replaced={"bias": normal(76)}),
        "norm": ModuleChange("norm", replaced={"bias": normal(30)}),
    }  # fmt: skip
    file = read(encode(table, bases, adapter("a", list(changes.values())), batched=True))
    assert all(e.kind == cuvla.FACTORS for e in file.entries)
    made = decode(file, table, bases)[0]
    expected = truth(changes, entry, base)
    assert np.all(np.abs(made - expected) <= EPS * (60 + np.abs(expected)))
    low = changes["q"].low_rank
    assert low is not None and low.bias is not None
    added = [changes[m].replaced["bias"] - b.astype(np.float64) for m, b in
             zip("qv", bases[2:], strict=True)]  # fmt: skip
    scaled = low.scale * low.bias.astype(np.float64)
    line = np.concatenate([added[0] + scaled, np.zeros(20), added[1]])
    assert np.all(np.abs(lines(file, 0, 144) - line) <= EPS * np.abs(line))
    own = changes["norm"].replaced["bias"] - bases[1].astype(np.float64)
    assert np.all(np.abs(lines(file, 1, 30) - own) <= EPS * np.abs(own))
    assert [e.rank for e in file.entries] == [15, 0]
    narrow, weight = site((100, 5), 0, [("m", "weight", "linear", 100)], packed=True)
    wide, other = site((5, 100), 0, [("m", "weight", "linear", 5)], packed=True)
    for one, held in ((narrow, weight), (wide, other)):
        new = {"m": ModuleChange("m", replaced={"weight": normal(*one.shape)})}
        [piece] = (file := read(encode([one], [held], adapter("a", [new["m"]]), True))).entries
        assert piece.rank == 5
        [made] = decode(file, [one], [held])
        wanted = truth(new, one, held)
        assert np.all(np.abs(made - wanted) <= EPS * (np.abs(wanted) + np.abs(held)))


def test_a_whole_weight_is_rounded_once() -> None:
    """Through float32 the sum would fall on a tie of bfloat16 first, and then to even: down."""
    entry, base = site((1, 1), 0, [("m", "weight", "linear", 1)], kernel=None, dtype="bfloat16")
    base[...] = 1
    a, b = np.array([[2.0**-8], [2.0**-40]], np.float32), np.ones((1, 2), np.float32)
    change = ModuleChange("m", "linear", LowRank(a, b, 1.0, 2, 2.0))
    [made] = decode(read(encode([entry], [base], adapter("a", [change]))), [entry], [base])
    assert made.item() == 1 + 2.0**-7


def test_a_square_weight_that_lies_turned_is_refused() -> None:
    """It was trained on from the base's, which tells; see lora_values.is_turned."""
    entry, base = site((40, 40), 0, [("m", "weight", "linear", 40)])
    tuned = (base + 0.1).astype(np.float32)
    encode([entry], [base], adapter("a", [ModuleChange("m", replaced={"weight": tuned})]))
    turned = ModuleChange("m", replaced={"weight": tuned.T})
    with pytest.raises(CuvilError, match="CUV743.*transposed"):
        encode([entry], [base], adapter("a", [turned]))


def test_outputs_of_other_parts_are_left_alone() -> None:
    """To the bit, also where they share a panel with a changed part."""
    (entry, base), changes = CASES["the middle part"]
    file = read(encode([entry], [base], adapter("a", changes)))
    [piece] = file.entries
    assert (piece.first, piece.panels, piece.rank) == (1, 2, 3)
    [made] = decode(file, [entry], [base])
    others = np.r_[0:48, 68:144]
    assert np.array_equal(made[:, others], base[:, others])


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("parts that share panels", [(0, 5, 14, "q + k + v")]),
        ("first and last part", [(0, 2, 4, "q"), (2, 3, 8, "v")]),
        ("parts in panels of their own", [(0, 2, 4, "q"), (3, 2, 8, "v")]),
        ("three parts in one panel", [(0, 1, 6, "q + k + v")]),
        ("row-major parts with magnitudes", [(0, 5, 7, "q + v")]),
    ],
)
def test_pieces_share_no_panel(case: str, expected: list[tuple[int, int, int, str]]) -> None:
    (entry, base), changes = CASES[case]
    found = read(encode([entry], [base], adapter("a", changes))).entries
    assert [(e.first, e.panels, e.rank, e.module) for e in found] == expected


def test_a_whole_table_in_one_file() -> None:
    """All cases as modules of one model, in one adapter; what it leaves alone has no entry."""
    table, bases, changes = [], [], []
    for i, ((entry, base), some) in enumerate(CASES.values()):
        parts = tuple(
            Part(f"{i}.{p.module}", p.parameter, p.kind, p.start, p.size) for p in entry.parts
        )
        table.append(replace(entry, parts=parts))
        bases.append(base)
        if i % 3:
            changes += [replace(c, path=f"{i}.{c.path}") for c in some]
    made = adapter("grüße\0x", changes)
    data = encode(table, bases, made)
    file = read(data)
    assert file.name == "grüße\ufffdx"
    assert {e.site for e in file.entries} == {i for i in range(len(table)) if i % 3}
    for i, got in enumerate(decode(file, table, bases)):
        expected = truth({c.path: c for c in changes}, table[i], bases[i])
        loose = EPS if table[i].dtype == "float32" else float(ml_dtypes.finfo("bfloat16").eps)
        assert np.all(np.abs(got - expected) <= loose * (300 + np.abs(expected)))
    assert data == encode(table, bases, made)


def test_the_fingerprint_is_of_the_table_and_the_weights() -> None:
    """Another weight, shape, layout, part or order is another package."""
    tables = [[CASES[c][0][0]] for c in ("inputs first", "the middle part", "first and last part")]
    tables += [tables[0] + tables[1], tables[1] + tables[0]]
    found = [cuvla.fingerprint(table, digest * 32) for table in tables for digest in ("00", "01")]
    assert all(len(f) == 32 for f in found)
    assert len(set(found)) == len(found) - 2, "two cases have the same table"
