"""Write a package by hand: the image of runtime/src/image.h, C kernels, the ELF segment.

Shares nothing with cuvilc/package, so that a misreading of the format shows on one side only.
"""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime"
sys.path.insert(0, str(RUNTIME))  # the cuvil of this checkout
NONE = 0xFFFFFFFF
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
)
OPS = (
    *("const", "symbol", "add", "sub", "mul", "floordiv", "mod", "min", "max", "eq", "lt"),
    *("select", "ceildiv", "level"),
)
ARENA, WEIGHT, INPUT, OUTPUT, HEAP, ADAPTED, PREPARED = range(7)
KERNEL, COPY, DIMS, BRANCH, JUMP, REQUIRE, BIND, PREPARE = range(8)
SECTIONS = (
    *("strings", "metadata", "levels", "symbols", "exprs", "dims", "inputs", "outputs"),
    *("buffers", "steps", "operands", "weights", "adaptable", "lora", "adapters"),
)
WEIGHTS, ADAPTERS = SECTIONS.index("weights"), SECTIONS.index("adapters")
CHECKSUM = 32 + 16 * len(SECTIONS)
HEADER_BYTES = 320
ADAPTER_CHECKSUM = 100
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wpedantic", "-Werror"]
FLAGS = ["-std=c11", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-pthread"]


@dataclass
class Image:
    """Records under construction. Every method returns the number of what it added."""

    metadata: dict = field(
        default_factory=lambda: {"schema_version": "1.0", "model": {"name": "fake"}}
    )
    levels: list[tuple[str, int]] = field(default_factory=lambda: [("base", 0)])
    kernels: list[str] = field(default_factory=list)
    symbols: list[bytes] = field(default_factory=list)
    exprs: list[bytes] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)
    inputs: list[bytes] = field(default_factory=list)
    outputs: list[bytes] = field(default_factory=list)
    buffers: list[bytes] = field(default_factory=list)
    steps: list[bytes] = field(default_factory=list)
    adaptable: list[bytes] = field(default_factory=list)
    lora: bytes = b""
    adapters: bytes = b""
    operands: list[int] = field(default_factory=list)
    strings: bytes = b"\0"
    weights: bytes = b""
    arena_bytes: int = 0

    def string(self, text: str) -> int:
        self.strings += text.encode() + b"\0"
        return len(self.strings) - len(text.encode()) - 1

    def expr(self, op: str, a: int = 0, b: int = 0, imm: int = 0) -> int:
        record = struct.pack("<IIIIq", OPS.index(op), a, b, 0, imm)
        if record not in self.exprs:
            self.exprs.append(record)
        return self.exprs.index(record)

    def const(self, value: int) -> int:
        return self.expr("const", imm=value)

    def mul(self, first: int, *others: int) -> int:
        for other in others:
            first = self.expr("mul", first, other)
        return first

    def symbol(self, name: str, input: int, axis: int, lo: int = 0, hi: int = 2**63 - 1) -> int:
        """Returns the expression that reads the symbol."""
        self.symbols.append(struct.pack("<IIIIqq", self.string(name), input, axis, 0, lo, hi))
        return self.expr("symbol", len(self.symbols) - 1)

    def computed(self, name: str, lo: int = 0, hi: int = 2**63 - 1) -> int:
        """A symbol that BIND steps give a value; after all that are read from inputs."""
        return self.symbol(name, NONE, 0, lo, hi)

    def buffer(self, kind: int, size: int, place: int = 0) -> int:
        self.buffers.append(struct.pack("<IIQ", kind, size, place))
        return len(self.buffers) - 1

    def port(self, kind: int, name: str, dtype: str, dims: Sequence[int]) -> int:
        """An input or output with its buffer; returns the buffer. dims: expression numbers."""
        ports = self.inputs if kind == INPUT else self.outputs
        narrow = dtype in DTYPES[DTYPES.index("bool") + 1 :]
        item = 1 if narrow else 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
        buffer = self.buffer(kind, self.mul(self.const(item), *dims), len(ports))
        ports.append(
            struct.pack(
                "<IIIIII",
                self.string(name),
                DTYPES.index(dtype),
                len(dims),
                len(self.dims),
                buffer,
                0,
            )
        )
        self.dims += dims
        return buffer

    def weight(self, array: np.ndarray) -> int:
        self.weights += b"\0" * (-len(self.weights) % 64)
        offset = len(self.weights)
        self.weights += array.tobytes()
        return self.buffer(WEIGHT, self.const(array.nbytes), offset)

    def adapted(
        self, array: np.ndarray, kernel: str = "", rows: int = 0, outputs: int = 0, packed: int = 0
    ) -> int:
        """A weight that adapters may exchange; without a kernel that merges, as a whole."""
        self.weights += b"\0" * (-len(self.weights) % 64)
        place = len(self.weights)
        self.weights += array.tobytes()
        number = self.kernel(kernel) if kernel else NONE
        key = self.string(f"weight {len(self.adaptable)}")
        fields = (key, number, place, array.nbytes, rows, outputs, packed, 0)
        self.adaptable.append(struct.pack("<IIQQIIII", *fields))
        return self.buffer(ADAPTED, self.const(array.nbytes), len(self.adaptable) - 1)

    def kernel(self, name: str) -> int:
        if name not in self.kernels:
            self.kernels.append(name)
        return self.kernels.index(name)

    def arena(self, size: int) -> int:
        """A buffer after all earlier ones, 64-byte aligned."""
        place = self.arena_bytes
        whole = self.mul(self.expr("ceildiv", size, self.const(64)), self.const(64))
        self.arena_bytes = self.expr("add", place, whole)
        return self.buffer(ARENA, size, place)

    def heap(self, slot: int, size: int, offset: int) -> int:
        return self.buffer(HEAP, size, slot | offset << 32)

    def step(
        self,
        kind: int,
        target: str | int = 0,
        buffers: Sequence[int] = (),
        scalars: Sequence[int] = (),
        tasks: int = 0,
        scratch: int = NONE,
        cost: int = NONE,
        layer: str = "",
    ) -> int:
        """`target`: a kernel's C name, what to say when a demand fails, or a step number."""
        name = str(target)
        runs = kind in (KERNEL, PREPARE)
        named = runs or kind == REQUIRE
        number = self.kernel(name) if runs else 0 if named else int(target)
        first = len(self.operands)
        self.operands += [*buffers, *scalars]
        fields = (kind, number, first, len(buffers), first + len(buffers), len(scalars))
        fields += (tasks, scratch, cost, self.string(name), self.string(layer), 0)
        self.steps.append(struct.pack("<12I", *fields))
        return len(self.steps) - 1

    def pack(self) -> bytes:
        levels = [struct.pack("<IIQ", self.string(name), 0, bits) for name, bits in self.levels]
        sections = {name: getattr(self, name) for name in SECTIONS} | {"levels": levels}
        sections["metadata"] = json.dumps(self.metadata).encode() + b"\0"
        for name in ("dims", "operands"):
            sections[name] = struct.pack(f"<{len(sections[name])}I", *sections[name])
        body, table = bytearray(HEADER_BYTES), []
        for name, content in sections.items():
            content = content if isinstance(content, bytes) else b"".join(content)
            body += b"\0" * (-len(body) % (65536 if name == "weights" else 64))
            table.append((len(body), len(content)))
            body += content
        head = (0x474D494C49565543, 2, len(SECTIONS), len(body), self.arena_bytes)
        struct.pack_into("<QIIQQ", body, 0, *head)
        for number, place in enumerate(table):
            struct.pack_into("<QQ", body, 32 + 16 * number, *place)
        return seal(bytes(body))


def seal(image: bytes) -> bytes:
    """The image with its checksum made right, and that of an adapter that fills its section."""
    start, size = struct.unpack_from("<QQ", image, 32 + 16 * ADAPTERS)
    adapter = image[start : start + size]
    if len(adapter) > ADAPTER_CHECKSUM and struct.unpack_from("<Q", adapter, 16)[0] == size:
        image = image[:start] + seal_adapter(adapter) + image[start + size :]
    total = zlib.adler32(image[:CHECKSUM])
    for number in range(len(SECTIONS)):
        if number in (WEIGHTS, ADAPTERS):
            continue
        offset, size = struct.unpack_from("<QQ", image, 32 + 16 * number)
        total = zlib.adler32(image[offset : offset + size], total)
    return image[:CHECKSUM] + struct.pack("<I", total) + image[CHECKSUM + 4 :]


def seal_adapter(adapter: bytes) -> bytes:
    """The adapter with its checksum made right."""
    head, tail = adapter[:ADAPTER_CHECKSUM], adapter[ADAPTER_CHECKSUM + 4 :]
    return head + struct.pack("<I", zlib.adler32(head + bytes(4) + tail)) + tail


def attach(file: Path, image: bytes) -> int:
    """Append the image to an ELF file; the last PT_NOTE header loads it. Returns its offset."""
    data = bytearray(file.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [table + i * size for i in range(count)]
    kinds = [struct.unpack_from("<I", data, header)[0] for header in headers]
    note = headers[len(kinds) - 1 - kinds[::-1].index(4)]
    loads = [header for header, kind in zip(headers, kinds, strict=True) if kind == 1]
    assert note > max(loads), "the segments must stay in ascending order"
    ends = [sum(struct.unpack_from("<Q", data, load + at)[0] for at in (16, 40)) for load in loads]
    address = -(-max(ends) // 65536) * 65536
    data += b"\0" * (-len(data) % 65536)
    offset = len(data)
    header = (1, 4, offset, address, address, len(image), len(image), 65536)
    struct.pack_into("<IIQQQQQQ", data, note, *header)
    file.write_bytes(data + image)
    return offset


def kernel_table(image: Image) -> str:
    """C text of the table that the packer makes. Every level has the same kernels here."""
    declarations = "".join(
        f"extern __typeof__(*(cuvil_kernel)0) {name};\n" for name in image.kernels
    )
    entries = ", ".join(image.kernels * len(image.levels)) or "0"
    return (
        f'#include "{RUNTIME}/src/image.h"\n{declarations}'
        f"const cuvil_kernel cuvil_kernel_table[] = {{{entries}}};\n"
        f"const uint32_t cuvil_kernel_count = {len(image.kernels)};\n"
    )


def compile_objects(folder: Path, flags: Sequence[str] = ("-O2",)) -> list[str]:
    """The runtime and the test kernels as objects, with every warning an error."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = [*sorted((RUNTIME / "src").glob("*.[cS]")), Path(__file__).parent / "kernels.c"]
    command = ["cc", "-c", *FLAGS, *WARNINGS, *flags, *map(str, sources)]
    subprocess.run(command, cwd=folder, check=True)
    return [str(folder / f"{source.stem}.o") for source in sources]


def link(
    image: Image, file: Path, objects: Sequence[str], flags: Sequence[str] = ("-shared",)
) -> None:
    """model.so, or with other flags and a driver among the objects, a program."""
    table = file.with_suffix(".table.c")
    table.write_text(kernel_table(image))
    unresolved = ["-Wl,-z,defs"] if "-shared" in flags and "-fsanitize" not in str(flags) else []
    command = ["cc", *FLAGS, *flags, *unresolved, "-o", str(file), str(table), *objects]
    subprocess.run(command, check=True)
    attach(file, image.pack())
    table.unlink()


def package(image: Image, folder: Path, objects: Sequence[str]) -> Path:
    """NAME.cuvil/ with model.so and metadata.json."""
    folder.mkdir(parents=True)
    link(image, folder / "model.so", objects)
    digest = hashlib.sha256((folder / "model.so").read_bytes()).hexdigest()
    weights = {"sha256": hashlib.sha256(image.weights).hexdigest()}
    files = {"files": {"model.so": {"sha256": digest}}, "weights": weights}
    (folder / "metadata.json").write_text(json.dumps(image.metadata | files))
    return folder
