"""Find a package's files, check what can be checked without running code, load it."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from ._elf import check_library, weights_place
from ._error import CuvilError
from ._model import Model
from ._native import Library

SCHEMA_MAJOR = 1


def load(
    path: str | PathLike[str],
    threads: int | None = None,
    check: bool = False,
    level: str | None = None,
) -> Model:
    """A model from a package (a folder NAME.cuvil) or from a bare model.so.

    threads: of one call; None: all CPUs that the process may use.
    check: also compare every file and the weights with their SHA-256 (reads them whole).
    level: a CPU level of the package, such as "x86-64-v3"; None: the best that this CPU runs.
    Raises CuvilError, and nothing else, when the package is at fault.
    """
    package = Path(path)
    place = str(path)
    if threads is not None and threads < 1:
        raise CuvilError("CUV610", f"threads is {threads}, must be at least 1, or None", place)
    if not package.exists():
        raise CuvilError("CUV601", "no such file or folder", place, "is the path spelled right?")
    bare = not package.is_dir()
    file = package if bare else package / "model.so"
    metadata = None if bare else _read_metadata(package)
    if not file.exists():
        _no_library(metadata, place)
    check_library(file)
    if check:
        _check_digests(package, metadata, place)
    library = Library(file, place)
    if metadata is None:
        text = library.metadata()
        if text is None:
            raise CuvilError("CUV601", library.last_error().decode(errors="replace"), place)
        metadata = _parse(text, place)
    return Model(library, metadata, threads=threads, level=level)


def _no_library(metadata: dict[str, Any] | None, place: str) -> NoReturn:
    """Damaged, or of a target that makes no machine code."""
    files = metadata.get("files") if metadata else None
    if isinstance(files, dict) and files and "model.so" not in files:
        raise CuvilError(
            "CUV624",
            "the package holds a program for the compiler's interpreter, no machine code",
            place,
            "run it with `cuvilc run`, or build it for a real target: `cuvilc build --target x86`",
        )
    raise CuvilError("CUV601", "not a package: the folder has no model.so", place)


def _read_metadata(package: Path) -> dict[str, Any]:
    file = package / "metadata.json"
    try:
        return _parse(file.read_bytes(), str(file))
    except FileNotFoundError as error:
        raise CuvilError(
            "CUV601",
            "not a package: the folder has no metadata.json",
            str(package),
            "load model.so itself, which holds a copy",
        ) from error
    except OSError as error:
        raise CuvilError(
            "CUV601", f"cannot read the metadata: {error.strerror}", str(file)
        ) from error


def _parse(text: bytes, place: str) -> dict[str, Any]:
    try:
        metadata = json.loads(text)
    except ValueError as error:
        raise CuvilError("CUV601", f"the metadata is not JSON: {error}", place) from error
    version = metadata.get("schema_version") if isinstance(metadata, dict) else None
    major = version.split(".")[0] if isinstance(version, str) else ""
    if not major.isdigit():
        raise CuvilError("CUV601", "the metadata has no schema_version", place)
    if int(major) != SCHEMA_MAJOR:
        raise CuvilError(
            "CUV602", f"metadata schema {version}, this cuvil reads {SCHEMA_MAJOR}.x", place
        )
    return metadata  # type: ignore[no-any-return]


def _check_digests(package: Path, metadata: dict[str, Any] | None, place: str) -> None:
    if metadata is None:
        raise CuvilError(
            "CUV610",
            "check=True needs metadata.json, which a bare model.so lacks",
            place,
            "give the package's folder",
        )
    files = metadata.get("files")
    if not isinstance(files, dict) or "model.so" not in files:
        raise CuvilError("CUV601", "the metadata lists no SHA-256 of model.so", place)
    for name, entry in files.items():
        if "/" in name or not isinstance(entry, dict):
            raise CuvilError("CUV601", f"the metadata lists a bad file `{name}`", place)
        if not (package / name).exists():
            raise CuvilError("CUV601", f"the package lacks its file `{name}`", place)
        _compare(package / name, 0, None, entry.get("sha256"), name, place)
    weights = metadata.get("weights")
    if isinstance(weights, dict) and "sha256" in weights:
        offset, size = weights_place(package / "model.so")
        _compare(package / "model.so", offset, size, weights["sha256"], "weights", place)


def _compare(
    file: Path, offset: int, size: int | None, expected: Any, what: str, place: str
) -> None:
    import hashlib  # noqa: PLC0415  # loads OpenSSL, and not every load of a model compares

    digest = hashlib.sha256()
    with file.open("rb") as stream:
        stream.seek(offset)
        left = file.stat().st_size - offset if size is None else size
        while left > 0 and (block := stream.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    if digest.hexdigest() != expected:
        raise CuvilError(
            "CUV601",
            f"corrupt {what}: SHA-256 is {digest.hexdigest()[:16]}..., recorded is "
            f"{str(expected)[:16]}...",
            place,
        )
