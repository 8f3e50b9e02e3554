"""Writes the image of runtime/src/image.h: plan, weights and metadata as one read-only segment.

Weights are streamed, so their hash, their number and their offsets are known only afterwards. Hence
the order in the file: header and tables (of known size, written last), weights, metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import BinaryIO
from zlib import adler32

from cuvilc.diagnostics import fail
from cuvilc.dialect.dims import Dim, Expr
from cuvilc.package import image_format as form
from cuvilc.package.codes import BAD_PLAN
from cuvilc.package.cuvla import fingerprint
from cuvilc.package.exprs import ExprTable
from cuvilc.package.image_format import Section
from cuvilc.package.plan import Adaptable, Buffer, BufferKind, Level, Plan, Port, Step
from cuvilc.package.weights import WeightsAhead, WeightsSummary, WeightsWriter

INT64_MAX = 2**63 - 1
Stored = tuple[dict[str, int], WeightsSummary]  # offsets by key


@dataclass(frozen=True)
class ImageSummary:
    size_bytes: int
    weights: WeightsSummary


def write_image(
    file: BinaryIO,
    plan: Plan,
    weights: WeightsAhead,
    features: Mapping[str, int],
    metadata: Callable[[WeightsSummary], bytes],
    adapters: Callable[[bytes], Sequence[bytes]] = lambda base: (),
) -> ImageSummary:
    """Write the image to `file`, on disk, open for reading and writing, from its position on.

    `features` holds the bit of each CPU feature the runtime knows (runtime_source.feature_bits);
    `metadata` gives the JSON for the weights as they were stored, `adapters` the adapters for the
    fingerprint of these weights. Afterwards the file ends with the
    image. The plan must have passed check_plan; `weights` are ahead of its buffers (weight_order).
    Raises CUV511 when a weight is not what the plan says, OSError when the file cannot be written.
    """
    writer = ImageWriter(file, plan, features)
    writer.store(weights)
    return writer.finish(metadata, adapters)


class ImageWriter:
    """Writes an image in two steps, since weights are there before the metadata is: `store`, then
    `finish`. See `write_image`.
    """

    def __init__(self, file: BinaryIO, plan: Plan, features: Mapping[str, int]) -> None:
        self._file, self._plan, self._base = file, plan, file.tell()
        self._tables = _Tables(plan, features)
        self._offsets = _offsets(self._tables.sizes())
        self.weights_at = self._base + self._offsets[Section.WEIGHTS]
        self.stored: Stored | None = None

    def store(self, weights: WeightsAhead, told: Callable[[int], None] = lambda end: None) -> None:
        """Write the weights. Nothing else of the file is touched. `told`: see BlockWriter."""
        self._file.seek(self.weights_at)
        self.stored = _store_weights(self._file, self._plan, weights, told)

    def finish(
        self,
        metadata: Callable[[WeightsSummary], bytes],
        adapters: Callable[[bytes], Sequence[bytes]] = lambda base: (),
    ) -> ImageSummary:
        """Write everything else."""
        assert self.stored is not None, "weights are stored first"
        return self.write_rest(self._file, self.stored, metadata, adapters)

    def write_rest(
        self,
        file: BinaryIO,
        weights: Stored,
        metadata: Callable[[WeightsSummary], bytes],
        adapters: Callable[[bytes], Sequence[bytes]] = lambda base: (),
    ) -> ImageSummary:
        """Write everything but the weights, which lie, or will lie, as `weights` says."""
        plan, base, tables, offsets = self._plan, self._base, self._tables, {**self._offsets}
        stored, summary = weights
        data = tables.encode(stored)
        identity = fingerprint(plan.adaptable, summary.sha256) if plan.adaptable else b""
        data[Section.LORA] = form.LORA.pack(identity, plan.hidden_inputs) if plan.adaptable else b""
        data[Section.METADATA] = metadata(summary) + b"\0"
        end = offsets[Section.WEIGHTS] + summary.size_bytes
        offsets[Section.METADATA] = _align(end, form.SECTION_ALIGN)
        for section, content in data.items():
            file.seek(base + offsets[section])
            file.write(content)

        sizes = {s: len(content) for s, content in data.items()}
        sizes[Section.WEIGHTS] = summary.size_bytes
        image_bytes = offsets[Section.METADATA] + sizes[Section.METADATA]
        offsets[Section.ADAPTERS], sizes[Section.ADAPTERS] = 0, 0
        if made := adapters(identity):
            start = offsets[Section.ADAPTERS] = _align(image_bytes, form.SECTION_ALIGN)
            image_bytes = _write_adapters(file, base, start, made)
            sizes[Section.ADAPTERS] = image_bytes - start
        extents = [number for s in Section for number in (offsets[s], sizes[s])]
        head = (form.MAGIC, form.VERSION, len(Section), image_bytes, tables.arena_bytes, *extents)
        file.seek(base)
        file.write(_with_checksum(form.HEADER.pack(*head), data))
        file.seek(base + image_bytes)
        return ImageSummary(image_bytes, summary)


def _write_adapters(file: BinaryIO, base: int, start: int, adapters: Sequence[bytes]) -> int:
    """Where the last of them ends; each begins on a boundary."""
    end = start
    for adapter in adapters:
        start = _align(end, form.SECTION_ALIGN)
        file.seek(base + start)
        file.write(adapter)
        end = start + len(adapter)
    return end


def _offsets(sizes: Mapping[Section, int]) -> dict[Section, int]:
    """Where the tables begin, one after the other, and the weights behind them."""
    offset = _align(form.HEADER.size + form.CHECKSUM.size, form.SECTION_ALIGN)
    offsets: dict[Section, int] = {}
    for section, size_bytes in sizes.items():
        offsets[section] = offset
        offset = _align(offset + size_bytes, form.SECTION_ALIGN)
    return offsets | {Section.WEIGHTS: _align(offset, form.SEGMENT_ALIGN)}


def _with_checksum(header: bytes, data: Mapping[Section, bytes]) -> bytes:
    """The header and the Adler-32 of it and of every section but weights and adapters."""
    checksum = adler32(header)
    for section in sorted(data):
        checksum = adler32(data[section], checksum)
    return header + form.CHECKSUM.pack(checksum, 0)


def _align(offset: int, to: int) -> int:
    return -(-offset // to) * to


def weight_order(plan: Plan) -> list[str]:
    """The keys of the weights in the order in which they are stored: that of their first use."""
    used = [b.place for b in plan.buffers if b.kind == BufferKind.WEIGHT]
    used += [a.weight for a in plan.adaptable]
    return list(dict.fromkeys(key for key in used if isinstance(key, str)))


def _store_weights(
    file: BinaryIO, plan: Plan, weights: WeightsAhead, told: Callable[[int], None]
) -> Stored:
    """Write the weights that the plan uses; their offsets by key."""
    for buffer in plan.buffers:
        key = buffer.place
        if buffer.kind != BufferKind.WEIGHT or not isinstance(key, str):
            continue
        if buffer.bytes != (size_bytes := weights.weights[key].nbytes):
            message = f"weight `{key}`: {size_bytes} bytes, the plan says {buffer.bytes}"
            raise fail(BAD_PLAN, message)
    # Only adapters ask for the weights' own hash; the file has one that covers them.
    writer = WeightsWriter(file, hashed=bool(plan.adaptable), told=told)
    stored = {key: writer.add(weights.take(key)) for key in weight_order(plan)}
    return stored, writer.finish()


class _Strings:
    """NUL-terminated strings, each once; offset 0 is the empty string."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")
        self._offsets = {"": 0}

    def offset(self, text: str) -> int:
        if text not in self._offsets:
            self._offsets[text] = len(self.data)
            self.data += text.replace("\0", "\ufffd").encode("utf-8", "replace") + b"\0"
        return self._offsets[text]


class _Tables:
    """The sections other than weights and metadata, complete but for the offsets of the weights."""

    def __init__(self, plan: Plan, features: Mapping[str, int]) -> None:
        self._strings = _Strings()
        self._exprs = ExprTable(s.name for s in plan.symbols)
        self._dims: list[int] = []
        self._operands: list[int] = []
        self._buffers = plan.buffers
        self._adaptable = plan.adaptable
        for site in plan.adaptable:
            self._strings.offset(site.weight)
        self._rows: dict[Section, list[bytes]] = {
            Section.LEVELS: [
                form.LEVEL.pack(self._strings.offset(x.name), 0, _mask(x, features))
                for x in plan.levels
            ],
            Section.SYMBOLS: [
                form.SYMBOL.pack(
                    self._strings.offset(s.name), form.NONE if s.computed else s.input, s.axis, 0,
                    s.lo,
                    INT64_MAX if s.hi is None else s.hi,
                )
                for s in plan.symbols
            ],
            Section.INPUTS: [self._port(p) for p in plan.inputs],
            Section.OUTPUTS: [self._port(p) for p in plan.outputs],
            Section.STEPS: [self._step(s) for s in plan.steps],
        }  # fmt: skip
        for buffer in plan.buffers:
            self._exprs.number(buffer.bytes)
            if buffer.kind == BufferKind.HEAP and isinstance(buffer.place, tuple):
                self._exprs.number(buffer.place[1])
            elif buffer.kind == BufferKind.ARENA and isinstance(buffer.place, int | Expr):
                self._exprs.number(buffer.place)
        self.arena_bytes = self._exprs.number(plan.arena_bytes)
        self._rows[Section.DIMS] = _indices(self._dims)
        self._rows[Section.OPERANDS] = _indices(self._operands)
        self._rows[Section.EXPRS] = [
            form.EXPR.pack(r.op, r.a, r.b, 0, r.imm) for r in self._exprs.rows
        ]

    def sizes(self) -> dict[Section, int]:
        """Bytes of each section that `encode` will give."""
        sizes = {section: sum(map(len, rows)) for section, rows in self._rows.items()}
        sizes[Section.STRINGS] = len(self._strings.data)
        sizes[Section.BUFFERS] = len(self._buffers) * form.BUFFER.size
        sizes[Section.ADAPTABLE] = len(self._adaptable) * form.ADAPTABLE.size
        sizes[Section.LORA] = form.LORA.size if self._adaptable else 0
        return dict(sorted(sizes.items()))

    def encode(self, stored: dict[str, int]) -> dict[Section, bytes]:
        """The sections' bytes, given the offset of each weight."""
        encoded = {section: b"".join(rows) for section, rows in self._rows.items()}
        encoded[Section.STRINGS] = bytes(self._strings.data)
        encoded[Section.BUFFERS] = b"".join(
            form.BUFFER.pack(b.kind, self._exprs.number(b.bytes), self._place(b, stored))
            for b in self._buffers
        )
        encoded[Section.ADAPTABLE] = b"".join(
            self._site(a, stored[a.weight]) for a in self._adaptable
        )
        return encoded

    def _site(self, site: Adaptable, place: int) -> bytes:
        outputs = site.shape[site.out_axis] if site.shape else 1
        return form.ADAPTABLE.pack(
            self._strings.offset(site.weight), form.NONE if site.kernel is None else site.kernel,
            place, site.bytes, prod(site.shape) // max(outputs, 1), outputs, bool(site.layout), 0,
        )  # fmt: skip

    def _place(self, buffer: Buffer, stored: dict[str, int]) -> int:
        if isinstance(buffer.place, str):
            return stored[buffer.place]
        if isinstance(buffer.place, tuple):
            slot, offset = buffer.place
            return slot | self._exprs.number(offset) << 32
        if buffer.kind == BufferKind.ARENA:
            return self._exprs.number(buffer.place)
        assert isinstance(buffer.place, int), "check_plan has seen to it"
        return buffer.place

    def _port(self, port: Port) -> bytes:
        first = len(self._dims)
        self._dims += [self._exprs.number(d) for d in port.dims]
        name = self._strings.offset(port.name)
        dtype = form.DTYPES.index(port.dtype)
        return form.IO.pack(name, dtype, len(port.dims), first, port.buffer, 0)

    def _step(self, step: Step) -> bytes:
        buffers = len(self._operands)
        self._operands += step.buffers
        scalars = len(self._operands)
        self._operands += [self._exprs.number(d) for d in step.scalars]
        return form.STEP.pack(
            step.kind, step.target, buffers, len(step.buffers), scalars, len(step.scalars),
            self._exprs.number(step.tasks), self._optional(step.scratch_bytes),
            self._exprs.number(step.cost), self._strings.offset(step.name),
            self._strings.offset(step.layer), 0,
        )  # fmt: skip

    def _optional(self, dim: Dim) -> int:
        return form.NONE if dim == 0 else self._exprs.number(dim)


def _mask(level: Level, features: Mapping[str, int]) -> int:
    return sum(1 << features[name] for name in set(level.features))


def _indices(numbers: list[int]) -> list[bytes]:
    return [form.INDEX.pack(n) for n in numbers]
