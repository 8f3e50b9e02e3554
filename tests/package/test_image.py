"""The image, read back by code that shares nothing with the writer but runtime/src/image.h."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import re
import struct
import subprocess
import tracemalloc
import zlib
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from cuvilc.diagnostics import CuvilError
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.ops.structure import MOST
from cuvilc.package import image_format as form
from cuvilc.package.check import check_plan
from cuvilc.package.describe import KernelFacts, describe
from cuvilc.package.exprs import Op
from cuvilc.package.image import weight_order, write_image
from cuvilc.package.plan import Buffer, BufferKind, Level, Plan, Port, Step, StepKind, Symbol
from cuvilc.package.weights import (
    AHEAD_BYTES,
    LazyWeight,
    Weights,
    WeightsAhead,
    WeightsSummary,
    WeightsWriter,
)

from .helpers import pick_plan, scale_metadata, scale_plan, scale_weights

HEADER_FILE = Path(__file__).parents[2] / "runtime" / "src" / "image.h"
FEATURES = {"sse3": 0, "avx2": 5}


def write(plan: Plan, weights: Weights, prefix: bytes = b"") -> bytes:
    check_plan(plan, weights, FEATURES)
    with TemporaryFile() as file:
        file.write(prefix)
        with WeightsAhead(weights, weight_order(plan)) as ahead:
            summary = write_image(file, plan, ahead, FEATURES, lambda w: repr(w).encode())
        assert file.tell() == file.seek(0, 2) == len(prefix) + summary.size_bytes
        file.seek(len(prefix))
        return file.read()


class Image:
    """The sections of an image, as tuples."""

    RECORDS: ClassVar[dict[int, str]] = {
        2: "<IIQ", 3: "<IIIIqq", 4: "<IIIIq", 5: "<I", 6: "<IIIIII", 7: "<IIIIII", 8: "<IIQ",
        9: "<IIIIIIIIIIII", 10: "<I",
    }  # fmt: skip

    def __init__(self, data: bytes) -> None:
        magic, version, count, size_bytes, arena = struct.unpack_from("<QIIQQ", data)
        assert (magic.to_bytes(8, "little"), version, count) == (b"CUVILIMG", 2, 15)
        assert size_bytes == len(data)
        self.arena_bytes = arena
        self.raw = []
        for i in range(count):
            offset, length = struct.unpack_from("<QQ", data, 32 + 16 * i)
            assert offset % (65536 if i == 11 else 64) == 0
            assert offset + length <= len(data)
            self.raw.append(data[offset : offset + length])
        self.rows = {i: list(struct.iter_unpack(f, self.raw[i])) for i, f in self.RECORDS.items()}
        checked = data[:272] + b"".join(self.raw[i] for i in (*range(11), 12, 13))
        assert struct.unpack_from("<II", data, 272) == (zlib.adler32(checked), 0)

    def text(self, offset: int) -> str:
        end = self.raw[0].index(b"\0", offset)
        return self.raw[0][offset:end].decode()

    def value(self, number: int, *symbols: int) -> int:
        op, a, b, _, imm = map(int, self.rows[4][number])
        if op == 0:
            return imm
        if op == 1:
            return symbols[a]
        assert op == 4, "these tests only multiply"
        return self.value(a, *symbols) * self.value(b, *symbols)


def test_round_trip() -> None:
    image = Image(
        write(scale_plan((Level("v3", ("avx2", "sse3")), Level("v2", ()))), scale_weights())
    )
    assert image.value(image.arena_bytes, 3) == 192
    assert [(image.text(n), f) for n, _, f in image.rows[2]] == [("v3", 0b100001), ("v2", 0)]
    [(name, *symbol_row)] = image.rows[3]
    assert (image.text(name), symbol_row) == ("n", [0, 0, 0, 1, 64])
    [(name, dtype, rank, dims, buffer, _)] = image.rows[6]
    assert (image.text(name), dtype, rank, buffer) == ("x", 0, 2, 0)
    assert [image.value(image.rows[5][dims + i][0], 3) for i in range(rank)] == [3, 4]
    [(name, _, _, _, buffer, _)] = image.rows[7]
    assert (image.text(name), buffer) == ("y", 2)
    assert [(kind, image.value(size, 3), place) for kind, size, place in image.rows[8]] == [
        (2, 48, 0), (1, 16, 0), (3, 48, 0), (1, 16, 0),
    ]  # fmt: skip
    [
        (kind, target, buffers, count, scalars, scalar_count, tasks, scratch, cost, name, layer, _)
    ] = image.rows[9]
    assert (kind, target, count, scalar_count, scratch) == (0, 0, 3, 1, 0xFFFFFFFF)
    assert [x for (x,) in image.rows[10][buffers : buffers + count]] == [0, 1, 2]
    assert image.value(image.rows[10][scalars][0], 7) == image.value(tasks, 7) == 7
    assert image.value(cost, 7) == 112
    assert (image.text(name), image.text(layer)) == ("scale", "/mul")
    assert image.raw[11] == np.array([1, 2, 3, 4], "<f4").tobytes(), (
        "equal weights once, unused never"
    )
    assert image.raw[1] == repr(WeightsSummary("", 16, 1)).encode() + b"\0"


def test_computed_symbols_and_heap_places() -> None:
    image = Image(write(pick_plan(), {}))
    assert [row[1:] for row in image.rows[3]] == [
        (0, 0, 0, 0, 2**63 - 1), (0xFFFFFFFF, 0, 0, 0, 1000),
    ]  # fmt: skip
    kinds, sizes, places = zip(*image.rows[8], strict=True)
    assert kinds == (2, 3, 4, 4, 0)
    assert [image.value(size, 3, 5) for size in sizes] == [24, 40, 40, 24, 8]
    assert [(p & 0xFFFFFFFF, image.value(p >> 32, 3, 5)) for p in places[2:4]] == [(0, 24), (0, 0)]
    bind, branch = image.rows[9][1:3]
    assert (bind[0], bind[1], bind[3], bind[5]) == (6, 1, 1, 1)
    assert (branch[0], branch[1], branch[3], branch[5]) == (3, 5, 0, 1)


def test_the_image_may_start_anywhere_in_the_file() -> None:
    assert write(scale_plan(), scale_weights(), b"x" * 65536) == write(
        scale_plan(), scale_weights()
    )


def weights_plan(sizes: dict[str, int]) -> Plan:
    return Plan(
        buffers=[Buffer(BufferKind.WEIGHT, size, key) for key, size in sizes.items()],
        levels=[Level("base", ())],
    )


def test_weights_of_every_kind_are_little_endian_and_aligned(tmp_path: Path) -> None:
    stored = np.arange(3_000_000, dtype=np.int32)
    stored.tofile(tmp_path / "w")
    expected: dict[str, np.ndarray[Any, Any]] = {
        "memmap": np.memmap(tmp_path / "w", np.int32, "r"),
        "transposed": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "big endian": np.arange(5, dtype=">i4"),
        "scalar": np.array(2.5, np.float64),
        "bfloat16": np.arange(5).astype(ml_dtypes.bfloat16),
        "bool": np.array([True, False, True]),
        "empty": np.zeros((0, 3), np.float32),
    }
    lazy = LazyWeight(40, lambda: np.arange(10, dtype=np.float32))
    sizes = {key: array.nbytes for key, array in expected.items()} | {"lazy": 40}
    image = Image(write(weights_plan(sizes), {**expected, "lazy": lazy}))
    expected["lazy"] = lazy.make()
    for (kind, size, place), array in zip(image.rows[8], expected.values(), strict=True):
        assert kind == 1
        assert place % 64 == 0
        little = array.astype(array.dtype.newbyteorder("<"))
        assert image.raw[11][place : place + image.value(size)] == little.tobytes()


def test_equal_bytes_are_stored_once_and_nearly_equal_ones_are_not() -> None:
    base = np.zeros(9_000_000, np.uint8)
    other = base.copy()
    other[4_000_001] = 1  # between the samples that the fingerprint takes
    weights: Weights = {"a": base, "b": other, "c": base.copy(), "d": other.view(np.int32)}
    image = Image(write(weights_plan(dict.fromkeys(weights, 9000000)), weights))
    places = [place for _, _, place in image.rows[8]]
    assert places == [0, 9_000_000, 0, 9_000_000]


def test_the_hash_that_adapters_ask_for_is_of_the_section(tmp_path: Path) -> None:
    with (tmp_path / "image").open("w+b") as file:
        file.write(b"before")
        writer = WeightsWriter(file, hashed=True)
        for size_bytes in (3, 9_000_000, 64):
            writer.add(np.arange(size_bytes, dtype=np.uint8))
        summary = writer.finish()
    section = (tmp_path / "image").read_bytes()[6:]
    assert summary == WeightsSummary(hashlib.sha256(section).hexdigest(), len(section), 3)


def test_a_lazy_weight_is_made_once() -> None:
    made = []

    def make() -> np.ndarray[Any, Any]:
        made.append(1)
        return np.ones(4, np.float32)

    write(weights_plan({"w": 16}), {"w": LazyWeight(16, make)})
    assert made == [1]


def test_what_is_made_ahead_is_bounded(tmp_path: Path) -> None:
    size_bytes = 8 << 20

    def weight(i: int) -> LazyWeight:
        return LazyWeight(size_bytes, lambda: np.full(size_bytes, i, np.uint8))

    weights = {f"w{i}": weight(i) for i in range(30)}
    plan = weights_plan(dict.fromkeys(weights, size_bytes))
    tracemalloc.start()
    with (tmp_path / "image").open("w+b") as file, WeightsAhead(weights, list(weights)) as ahead:
        write_image(file, plan, ahead, FEATURES, lambda _: b"")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2 * AHEAD_BYTES + 4 * size_bytes


def test_a_weight_that_cannot_be_made_is_an_error_of_writing() -> None:
    def fails() -> np.ndarray[Any, Any]:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        write(weights_plan({"w": 16}), {"w": LazyWeight(16, fails)})


BAD_PLANS: list[tuple[str, dict[str, Any]]] = [
    ("no CPU level", {"levels": []}),
    ("asks for `avx9`", {"levels": [Level("x", ("avx9",))]}),
    ("buffer 7, which does not exist", {"inputs": [Port("x", "float32", (symbol("n"), 4), 7)]}),
    ("buffer 2 is not that of input 0", {"inputs": [Port("x", "float32", (symbol("n"), 4), 2)]}),
    ("does not know: complex64", {"outputs": [Port("y", "complex64", (1,), 2)]}),
    ("has 9 axes", {"outputs": [Port("y", "float32", (1,) * 9, 2)]}),
    ("contains NUL", {"outputs": [Port("y\0", "float32", (1,), 2)]}),
    ("is not axis 1", {"symbols": [Symbol("n", 0, 1)]}),
    ("axis 5 of input 0: there is none", {"symbols": [Symbol("n", 0, 5)]}),
    ("empty range", {"symbols": [Symbol("n", 0, 0, 4, 3)]}),
    ("runs kernel 3", {"steps": [Step(StepKind.KERNEL, 3)]}),
    ("goes to step 3", {"steps": [Step(StepKind.JUMP, 3)]}),
    ("uses buffer 9", {"steps": [Step(StepKind.DIMS, 0, (9,))]}),
    ("has 0 buffers", {"steps": [Step(StepKind.COPY)]}),
    ("not a C identifier", {"kernels": ["a-b"]}),
    ("the symbol `m`", {"arena_bytes": symbol("m")}),
]


@pytest.mark.parametrize(("fault", "change"), BAD_PLANS, ids=[fault for fault, _ in BAD_PLANS])
def test_a_bad_plan_is_refused(fault: str, change: dict[str, Any]) -> None:
    with pytest.raises(CuvilError, match=f"CUV511[^|]*{re.escape(fault)}"):
        write(dataclasses.replace(scale_plan(), **change), scale_weights())


BIND = Step(StepKind.BIND, 1, scalars=(0,))
BAD_COMPUTED: list[tuple[str, dict[str, Any]]] = [
    ("stands before one that is read", {"symbols": [Symbol("count"), Symbol("n", 0, 0)]}),
    ("binds symbol 0, which is not computed", {"steps": [dataclasses.replace(BIND, target=0)]}),
    ("binds symbol 2, which is not computed", {"steps": [dataclasses.replace(BIND, target=2)]}),
    ("not in the order in which", {"steps": [Step(StepKind.JUMP)]}),
    (
        "not in the order in which",
        {
            "symbols": [Symbol("n", 0, 0), Symbol("count"), Symbol("more")],
            "steps": [dataclasses.replace(BIND, target=2), BIND],
        },
    ),
    ("`count` has the axis 1", {"symbols": [Symbol("n", 0, 0), Symbol("count", axis=1)]}),
    ("has 0 scalars, not one", {"steps": [dataclasses.replace(BIND, scalars=())]}),
    ("has 2 buffers", {"steps": [dataclasses.replace(BIND, buffers=(4, 4))]}),
    ("has 0 scalars, not one", {"steps": [BIND, Step(StepKind.BRANCH)]}),
    ("has no place in a heap slot: 0", {"buffers": [Buffer(BufferKind.HEAP, 8, 0)]}),
    ("has no place in a heap slot: (1, 0)", {"buffers": [Buffer(BufferKind.HEAP, 8, (1, 0))]}),
    ("in a heap slot and is of kind arena", {"buffers": [Buffer(BufferKind.ARENA, 8, (0, 0))]}),
    ("the arena has a computed size", {"arena_bytes": symbol("count")}),
    ("buffer 0 has a computed size", {"buffers": [Buffer(BufferKind.INPUT, symbol("count"), 0)]}),
    ("input `x` has a computed size", {"inputs": [Port("x", "int64", (symbol("count"),), 0)]}),
]


@pytest.mark.parametrize(("fault", "change"), BAD_COMPUTED)
def test_a_bad_plan_of_computed_sizes_is_refused(fault: str, change: dict[str, Any]) -> None:
    """All faults are listed, so that one fault may bring others."""
    plan = dataclasses.replace(pick_plan(), **change)
    with pytest.raises(CuvilError) as caught:
        check_plan(plan, {}, FEATURES)
    [diagnostic] = caught.value.diagnostics
    assert any(fault in text for text in (diagnostic.message, *diagnostic.notes))


PREPARE = Step(StepKind.PREPARE, 0, (1, 4), (4,), 1, name="scale")
PREPARED = Buffer(BufferKind.PREPARED, 64, 128)
BAD_PREPARED: list[tuple[str, Buffer, list[Step]]] = [
    ("steps before it are not", PREPARED, [Step(StepKind.COPY, buffers=(0, 2)), PREPARE]),
    ("goes to step 0, which is prepared", PREPARED, [PREPARE, Step(StepKind.JUMP, 0)]),
    (
        "has sizes that only a run can tell",
        PREPARED,
        [dataclasses.replace(PREPARE, tasks=symbol("n"))],
    ),
    ("uses what only a run has", PREPARED, [dataclasses.replace(PREPARE, buffers=(0, 4))]),
    ("runs kernel 7", PREPARED, [dataclasses.replace(PREPARE, target=7)]),
    ("has no place in prepared memory: 4", Buffer(BufferKind.PREPARED, 64, 4), []),
    ("has a symbolic size", Buffer(BufferKind.PREPARED, symbol("n"), 0), []),
]


@pytest.mark.parametrize(("fault", "buffer", "steps"), BAD_PREPARED)
def test_a_bad_plan_of_prepared_memory_is_refused(
    fault: str, buffer: Buffer, steps: list[Step]
) -> None:
    plan = scale_plan()
    plan = dataclasses.replace(plan, buffers=[*plan.buffers, buffer], steps=steps)
    with pytest.raises(CuvilError) as caught:
        check_plan(plan, scale_weights(), FEATURES)
    [diagnostic] = caught.value.diagnostics
    assert any(fault in text for text in (diagnostic.message, *diagnostic.notes))


def test_prepared_memory_is_described() -> None:
    """Its bytes; its kernels have no calls in a run, and their scratch is nobody's in one."""
    plan = scale_plan()
    step = dataclasses.replace(PREPARE, scratch_bytes=1 << 20)
    plan = dataclasses.replace(plan, buffers=[*plan.buffers, PREPARED], steps=[step, *plan.steps])
    check_plan(plan, scale_weights(), FEATURES)
    assert plan.prepared_bytes == 192
    found = describe(
        plan, model=scale_metadata()["model"], compiler=scale_metadata()["compiler"],
        target_kind="x86", kernels={"scale": KernelFacts("elementwise")},
    )  # fmt: skip
    assert found["memory"]["prepared_bytes"] == 192
    assert found["memory"]["scratch_bytes"] == []
    assert found["kernels"][0]["calls"] == 1


@pytest.mark.parametrize(
    ("weights", "fault"),
    [
        ({"w": np.zeros(4, np.float32)}, "`w again`, which is not in the table"),
        ({"w": np.zeros(5, np.float32), "w again": np.zeros(4, np.float32)}, "plan says 16"),
        ({"w": np.zeros(2, object), "w again": np.zeros(4, np.float32)}, "Python objects"),
        ({"w": LazyWeight(16, lambda: np.zeros(1)), "w again": np.zeros(2)}, "announced with 16"),
    ],
)
def test_bad_weights_are_refused(weights: Weights, fault: str) -> None:
    with pytest.raises(CuvilError, match=f"CUV511[^|]*{fault}"):
        write(scale_plan(), weights)


def test_the_numbers_are_those_of_image_h() -> None:
    text = HEADER_FILE.read_text()
    for prefix, members in (
        ("SECTION", form.Section), ("EXPR", Op), ("BUFFER", BufferKind), ("STEP", StepKind),
    ):  # fmt: skip
        found = dict(re.findall(rf"CUVIL_{prefix}_(\w+) = (\d+)", text))
        found.pop("COUNT", None)
        assert {m.name: str(m.value) for m in members} == found
    api = (HEADER_FILE.parents[1] / "include" / "cuvil.h").read_text()
    names = re.search(r"typedef enum \{\s*(CUVIL_FLOAT32.*?)\}", api, re.DOTALL)
    assert names
    order = re.findall(r"CUVIL_(\w+)", names[1])
    assert [name.lower() for name in order] == list(form.DTYPES)
    assert f"CUVIL_MAX_RANK {form.MAX_RANK}" in api


def test_computed_sizes_saturate_alike() -> None:
    text = (HEADER_FILE.parent / "computed.c").read_text()
    limit = re.search(r"#define VALUE_LIMIT \(INT64_C\(1\) << (\d+)\)", text)
    assert limit and 1 << int(limit[1]) == MOST


def test_the_records_are_as_large_as_the_compiler_makes_them(tmp_path: Path) -> None:
    types = ["image_header", "level", "symbol", "expr", "io", "buffer", "step", "adaptable", "lora"]
    values = ", ".join(f"sizeof(cuvil_{t})" for t in types)
    source = f'#include "{HEADER_FILE}"\nconst int size_bytes[] = {{{values}}};\n'
    library = tmp_path / "sizes.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)],
        input=source, text=True, check=True,
    )  # fmt: skip
    sizes = (ctypes.c_int * len(types)).in_dll(ctypes.CDLL(str(library)), "size_bytes")
    ours = [form.HEADER.size + form.CHECKSUM.size] + [
        s.size
        for s in (
            form.LEVEL,
            form.SYMBOL,
            form.EXPR,
            form.IO,
            form.BUFFER,
            form.STEP,
            form.ADAPTABLE,
            form.LORA,
        )
    ]
    assert list(sizes) == ours
