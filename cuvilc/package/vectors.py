"""Test vectors inside a package: inputs with the outputs that they must give, as vectors.npz.

Arrays are named `case0.input0`, `case0.output0`, … after the model's order; a dtype that NumPy has
no name for is stored as integers of its size and gets its meaning back from the metadata.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from cuvilc.artifact import BAD_METADATA, VECTORS_FILE, Package, Tolerance
from cuvilc.diagnostics import fail
from cuvilc.dialect.narrow import as_numpy, from_numpy

Array = NDArray[np.generic]
_FIRST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Case:
    """Arrays in the order of the model's inputs and outputs."""

    inputs: Sequence[Array]
    outputs: Sequence[Array]


@dataclass(frozen=True)
class Vectors:
    cases: Sequence[Case]
    tolerance: Tolerance


def write_vectors(file: BinaryIO, vectors: Vectors) -> None:
    """Write the .npz: same arrays, same bytes. Stored: deflate differs between zlib versions."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for i, case in enumerate(vectors.cases):
            for kind, arrays in (("input", case.inputs), ("output", case.outputs)):
                for k, array in enumerate(arrays):
                    write_array(archive, f"case{i}.{kind}{k}.npy", array)


def stored_entry(name: str) -> zipfile.ZipInfo:
    """A member that tells nothing of when, where and by whom it was written."""
    entry = zipfile.ZipInfo(name, _FIRST_ZIP_DATE)
    entry.create_system = 3  # else it tells the system of the build
    entry.external_attr = 0o644 << 16
    return entry


def write_array(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    """Add `array` as a .npy file, of a dtype of NumPy's (cuvilc.dialect.narrow.as_numpy)."""
    plain = as_numpy(np.ascontiguousarray(array).reshape(array.shape))
    large = plain.nbytes >= 1 << 31
    with archive.open(stored_entry(name), "w", force_zip64=large) as member:
        np.lib.format.write_array(member, plain, version=(1, 0), allow_pickle=False)


def read_vectors(package: Package) -> Vectors | None:
    """The package's test vectors, or None. CUV522 when they do not fit the metadata."""
    info = package.metadata.get("vectors")
    if info is None:
        return None
    path = package.path / VECTORS_FILE
    try:
        with np.load(path, allow_pickle=False) as stored:
            cases = [_read_case(package, stored, i) for i in range(info["cases"])]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise fail(
            BAD_METADATA, f"the test vectors cannot be read: {error}", place=str(path)
        ) from error
    return Vectors(cases, info["tolerance"])


def _read_case(package: Package, stored: Mapping[str, Array], i: int) -> Case:
    metadata = package.metadata
    return Case(
        [
            from_numpy(stored[f"case{i}.input{k}"], p["dtype"])
            for k, p in enumerate(metadata["inputs"])
        ],
        [
            from_numpy(stored[f"case{i}.output{k}"], p["dtype"])
            for k, p in enumerate(metadata["outputs"])
        ],
    )


def write_vectors_file(path: Path, vectors: Vectors) -> None:
    with path.open("wb") as file:
        write_vectors(file, vectors)
