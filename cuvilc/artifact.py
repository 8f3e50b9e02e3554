"""What metadata.json says: types, canonical text, check against the schema; reading a package.

Nothing here loads a package's code. docs/metadata.md explains each field and which packages still
load.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from cuvilc.diagnostics import define, fail

SCHEMA_VERSION = "1.5"
METADATA_FILE = "metadata.json"
LIBRARY_FILE = "model.so"
PROGRAM_FILE = "program.mlir"  # in place of the library where the target is the interpreter
VECTORS_FILE = "vectors.npz"
CUVLA_MAGIC = b"CUVILADP"  # with which a .cuvla file begins
_METADATA_LIMIT_BYTES = 256 << 20

NOT_A_PACKAGE = define(
    "CUV520",
    "this is not a cuvil package",
    """\
A package is a directory, usually NAME.cuvil, with model.so and metadata.json in it. At this path
there is something else, or one of the two is missing or cannot be read.

Next step: check the path. If a copy or a download was interrupted, repeat it; copy the directory as
a whole. `cuvilc build MODEL.onnx` makes a package.
""",
)

NEWER_PACKAGE = define(
    "CUV521",
    "the package was made by a newer cuvilc",
    """\
The major number of the metadata's schema_version is higher than this cuvilc knows, so its fields
may mean something else. A higher minor number alone is no obstacle: fields that are not known are
ignored.

Next step: upgrade cuvilc and cuvil, or build the package again with this version.
""",
)

BAD_METADATA = define(
    "CUV522",
    "the package's metadata is damaged",
    """\
metadata.json is not JSON, or does not hold what the schema (cuvilc/schema/metadata-1.schema.json)
demands of it; the first differences stand under the error.

Next step: build or fetch the package again. If another tool edited metadata.json, undo that: the
file is written by the build and is not meant to be changed.
""",
)

CORRUPT_PACKAGE = define(
    "CUV523",
    "a file of the package is not the one that was built",
    """\
metadata.json records size and SHA-256 of every file of the package. This file has others: it was
cut short, damaged, or exchanged.

Next step: build or fetch the package again. Keep `strip` and similar tools away from model.so: it
is stripped already, and they cut off plan and weights, which stand behind the sections.
""",
)


class Model(TypedDict):
    """`source_sha256` is of the model file; `opset` by operator domain if the format has them."""

    name: str
    source_format: str
    source_sha256: str
    opset: NotRequired[dict[str, int]]


class Pass(TypedDict):
    name: str
    version: int


class Compiler(TypedDict):
    version: str
    passes: list[Pass]


class Level(TypedDict):
    name: str
    features: list[str]


class Target(TypedDict):
    """`min_glibc` is "" when no glibc is needed; `needed` are the shared libraries of model.so."""

    kind: str
    levels: list[Level]
    min_glibc: NotRequired[str]
    needed: NotRequired[list[str]]
    image_version: int


class Symbol(TypedDict):
    """Inclusive range; `hi` None when unbounded. Read from axis `axis` of input number `input`, or
    `computed` while the model runs.
    """

    name: str
    lo: int
    hi: int | None
    input: NotRequired[int]
    axis: NotRequired[int]
    computed: NotRequired[bool]


class Port(TypedDict):
    """`ranges` has [lo, hi] for each dim, hi None when unbounded."""

    name: str
    dtype: str
    dims: list[int | str]
    ranges: list[list[int | None]]


class Kernel(TypedDict):
    """`flops`, `bytes`, `tasks`: of all its `calls` in one run. `code_bytes`: by level."""

    name: str
    schedule: str
    layers: list[str]
    calls: int
    flops: int | str
    bytes: int | str
    tasks: int | str
    code_bytes: NotRequired[dict[str, int]]


class ArenaBuffer(TypedDict):
    offset: int | str
    bytes: int | str


class HeapBuffer(TypedDict):
    slot: int
    offset: int | str
    bytes: int | str


class Memory(TypedDict):
    arena_bytes: int | str
    weights_bytes: NotRequired[int]
    scratch_bytes: list[int | str]
    buffers: list[ArenaBuffer]
    heap: NotRequired[list[HeapBuffer]]
    prepared_bytes: NotRequired[int]


class WeightsInfo(TypedDict):
    sha256: NotRequired[str]
    bytes: int
    count: int


class FileInfo(TypedDict):
    sha256: str
    bytes: int


class Tolerance(TypedDict):
    rtol: float
    atol: float


class VectorsInfo(TypedDict):
    """`cases` vectors stand in vectors.npz; outputs hold to |y - ref| <= atol + rtol·max|ref|."""

    cases: int
    tolerance: Tolerance


class Metadata(TypedDict):
    """All of metadata.json. The fields that are not required are filled in when the package is
    written; the copy in the image has no `files`, for a file cannot contain its own hash.
    """

    schema_version: str
    model: Model
    compiler: Compiler
    target: Target
    symbols: list[Symbol]
    inputs: list[Port]
    outputs: list[Port]
    adapters: list[dict[str, Any]]  # docs/metadata.md
    kernels: list[Kernel]
    memory: Memory
    weights: NotRequired[WeightsInfo]
    files: NotRequired[dict[str, FileInfo]]
    vectors: NotRequired[VectorsInfo]
    lora: NotRequired[dict[str, Any]]


def input_symbols(metadata: Mapping[str, Any]) -> list[Symbol]:
    """The symbols that the inputs' shapes give, without those that are computed."""
    return [s for s in metadata["symbols"] if not s.get("computed")]


def canonical(metadata: Mapping[str, Any]) -> bytes:
    """The one text of `metadata`: sorted keys, UTF-8, two spaces of indent, a newline at the end.

    Raises ValueError for numbers that JSON does not have.
    """
    text = json.dumps(metadata, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


@lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of metadata.json."""
    text = files("cuvilc").joinpath("schema", "metadata-1.schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def validate(metadata: object, place: str = METADATA_FILE, *, image: bool = False) -> None:
    """`metadata` is of a major version that is known and fits the schema; else CUV521, CUV522.

    `image`: it is the copy in model.so, which has no `files`.
    """
    major = _major(metadata, place)
    known = int(SCHEMA_VERSION.split(".")[0])
    if major > known:
        raise fail(
            NEWER_PACKAGE,
            f"schema version {_version(metadata)} is newer than {known}.x, which this cuvilc reads",
            place=place,
        )
    # Imported here: it takes 0.15 s, which commands that read no package should not pay.
    from jsonschema import Draft202012Validator  # noqa: PLC0415

    required = [n for n in schema()["required"] if n != "files" or not image]
    errors = Draft202012Validator({**schema(), "required": required}).iter_errors(metadata)
    found = sorted(f"{e.json_path}: {_short(e.message)}" for e in errors)
    if found:
        raise fail(
            BAD_METADATA, f"{place} does not fit its schema", place=place, evidence=found[0],
            notes=found[1:6],
        )  # fmt: skip


def _short(message: str) -> str:
    return message if len(message) <= 200 else message[:120] + " … " + message[-60:]


def _version(metadata: object) -> object:
    return metadata.get("schema_version") if isinstance(metadata, dict) else None


def _major(metadata: object, place: str) -> int:
    version = _version(metadata)
    major, _, minor = version.partition(".") if isinstance(version, str) else ("", "", "")
    if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        raise fail(BAD_METADATA, f"{place} has no schema_version", place=place)
    return int(major) if len(major) < 10 else 10**9


@dataclass(frozen=True)
class Package:
    """A package on disk whose metadata has been checked."""

    path: Path
    metadata: Metadata

    @property
    def library(self) -> Path:
        return self.path / LIBRARY_FILE


def read_package(path: Path, *, check: bool = False) -> Package:
    """The package at `path`: layout, schema and sizes hold; with `check`, every SHA-256 too.

    Raises CUV520 (no package), CUV521 (newer), CUV522 (metadata), CUV523 (files).
    """
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise fail(NOT_A_PACKAGE, f"{path} {what}", place=str(path), help=_instead(path))
    metadata = read_metadata(path)
    validate(metadata, str(path / METADATA_FILE))
    recorded: dict[str, FileInfo] = metadata["files"]
    body = PROGRAM_FILE if PROGRAM_FILE in recorded else LIBRARY_FILE
    for name in [body, *recorded]:
        if not is_plain_name(name):
            raise fail(BAD_METADATA, f"{name!r} is not a plain file name", place=str(path))
        _check_file(path / name, recorded.get(name), check)
    return Package(path, metadata)


def _instead(path: Path) -> str:
    """What to give instead of a file; "" where there is none."""
    if path.name == LIBRARY_FILE:
        return f"give its folder, {path.parent}"
    what = f"build a package first: `cuvilc build {path.name}`, which writes {path.stem}.cuvil"
    return f"{what}; `--dry-run` shows what it would be" if path.is_file() else ""


def is_plain_name(name: str) -> bool:
    """Whether `name` names a file in a directory, and cannot lead out of it."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def read_metadata(path: Path) -> Metadata:
    """metadata.json of the package at `path`, as JSON not yet checked against the schema."""
    file = path / METADATA_FILE
    _check_file(file, None, False)
    if file.stat().st_size > _METADATA_LIMIT_BYTES:
        raise fail(BAD_METADATA, f"{file} is larger than any metadata", place=str(file))
    try:
        metadata: Metadata = json.loads(file.read_bytes())
    except OSError as error:
        raise fail(
            NOT_A_PACKAGE, f"cannot read {file}: {error.strerror}", place=str(file)
        ) from error
    except (ValueError, RecursionError) as error:
        raise fail(BAD_METADATA, f"{file} is not JSON: {error}", place=str(file)) from error
    return metadata


def _check_file(file: Path, info: FileInfo | None, check: bool) -> None:
    """`file` is a regular file and is the one that `info` records."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise fail(NOT_A_PACKAGE, f"{file} is not a regular file", place=str(file))
        if info is None:
            return
        if status.st_size != info["bytes"]:
            message = f"{file} has {status.st_size} bytes, built were {info['bytes']}"
            raise fail(CORRUPT_PACKAGE, message, place=str(file))
        if check and (found := file_sha256(file)) != info["sha256"]:
            message = f"{file} has another SHA-256 than the one that was built"
            evidence = f"built {info['sha256']}\nfound {found}"
            raise fail(CORRUPT_PACKAGE, message, place=str(file), evidence=evidence)
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise fail(NOT_A_PACKAGE, message, place=str(file)) from error


def is_cuvla(path: Path) -> bool:
    """Whether a file begins, or is at least called, as one that `cuvilc adapter build` wrote."""
    return path.is_file() and (path.suffix == ".cuvla" or begins_with(path, CUVLA_MAGIC))


def begins_with(path: Path, magic: bytes) -> bool:
    """Whether a file's first bytes are these; not so where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def file_sha256(path: Path) -> str:
    """SHA-256 of the file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
