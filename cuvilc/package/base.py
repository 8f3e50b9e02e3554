"""The exchangeable weights of a package that was built before, for adapters that come later."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cuvilc import artifact
from cuvilc.diagnostics import fail
from cuvilc.dialect.lora_codes import TAKES_NO_ADAPTERS
from cuvilc.dialect.types import TensorType, from_layout, numpy_dtype
from cuvilc.package import image_format as form
from cuvilc.package.cuvla import fingerprint
from cuvilc.package.elf import PT_LOAD, ElfError, segments
from cuvilc.package.image_format import Section
from cuvilc.package.plan import Adaptable, Part

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class Base:
    """What adapters of a package are built for: `read(i)` is weight i as the model has it."""

    path: Path
    table: tuple[Adaptable, ...]
    fingerprint: bytes
    places: tuple[int, ...]
    batched: bool = False  # built with `--lora batch`
    others: tuple[str, ...] = ()  # modules of the model that no adapter may change
    # By embedding, what else has its table; see dialect/lora_exchange.py.
    tied: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def modules(self) -> set[str]:
        """Those that adapters may change."""
        return {part.module for weight in self.table for part in weight.parts}

    def read(self, number: int) -> NDArray[Any]:
        """The logical array of exchangeable weight `number`, read from model.so."""
        site = self.table[number]
        stored = TensorType(site.shape, site.dtype, site.layout)
        shape = tuple(d for d in stored.physical_shape if isinstance(d, int))
        library = self.path / artifact.LIBRARY_FILE
        flat = np.memmap(library, numpy_dtype(site.dtype), "r", self.places[number], shape)
        return from_layout(flat, site.layout, site.shape)


def open_base(path: Path) -> Base:
    """The package's table. CUV520 to CUV523, CUV762."""
    if path.is_file() and path.suffix == ".onnx":
        raise fail(
            artifact.NOT_A_PACKAGE, f"{path} is a model, and no package", place=str(path),
            help=f"`cuvilc build {path} --lora swap` (or `batch`) builds one that takes adapters",
        )  # fmt: skip
    metadata = artifact.read_package(path).metadata
    lora = metadata.get("lora")
    if lora is None or lora["mode"] not in ("swap", "batch"):
        raise fail(
            TAKES_NO_ADAPTERS,
            f"`{path.name}` was built without `--lora swap` or `batch`",
            place=str(path),
            help="`cuvilc build MODEL.onnx --lora swap` (or `batch`) builds one that takes them",
        )
    table = tuple(_site(w) for w in lora["weights"])
    identity = bytes.fromhex(lora["fingerprint"])
    if fingerprint(table, metadata["weights"].get("sha256", "")) != identity:
        message = "the fingerprint is not that of the weights it lists"
        raise fail(artifact.BAD_METADATA, message, place=str(path / artifact.METADATA_FILE))
    places = _places(path / artifact.LIBRARY_FILE, len(table))
    others = tuple(lora.get("others", ()))
    batched = lora["mode"] == "batch"
    return Base(path, table, identity, places, batched, others, lora.get("tied", {}))


def _site(weight: Mapping[str, Any]) -> Adaptable:
    """A row of the table, from the metadata's."""
    parts = tuple(Part(**p) for p in weight["parts"])
    shape = tuple(weight["shape"])
    size = TensorType(shape, weight["dtype"], weight["layout"]).size_bytes
    assert isinstance(size, int)
    return Adaptable(
        weight["weight"], size, shape, weight["dtype"], weight["layout"], weight["out_axis"],
        parts, 0 if weight["merged"] else None,
    )  # fmt: skip


def _places(library: Path, count: int) -> tuple[int, ...]:
    """Where each exchangeable weight begins in the file."""
    try:
        with library.open("rb") as file:
            start = max(s.offset for s in segments(file.read(_HEAD_BYTES)) if s.type == PT_LOAD)
            file.seek(start)
            header = form.HEADER.unpack(file.read(form.HEADER.size))
            if header[:3] != (form.MAGIC, form.VERSION, len(Section)):
                raise ElfError("the image is of another version")
            extents = header[5:]
            file.seek(start + extents[2 * Section.ADAPTABLE])
            rows = file.read(extents[2 * Section.ADAPTABLE + 1])
            weights = start + extents[2 * Section.WEIGHTS]
            places = tuple(weights + row[2] for row in form.ADAPTABLE.iter_unpack(rows))
    except (OSError, ElfError, struct.error) as error:
        raise fail(
            artifact.CORRUPT_PACKAGE, f"model.so cannot be read: {error}", place=str(library)
        ) from error
    if len(places) != count:
        raise fail(
            artifact.CORRUPT_PACKAGE,
            f"model.so has {len(places)} exchangeable weights, the metadata {count}",
            place=str(library),
        )
    return places
