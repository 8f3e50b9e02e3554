"""Files that commands read and write: arrays in, results out, whole or not at all."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from cuvilc.artifact import begins_with
from cuvilc.codes_runtime import BAD_ARRAYS, NOT_WRITTEN
from cuvilc.diagnostics import CuvilError, fail

if TYPE_CHECKING:
    import numpy as np

_BEGINNINGS = (b"PK", b"\x93NUMPY")  # of .npz and .npy


def read_arrays(path: Path, only_input: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a .npz by name; a .npy goes to the model's `only_input`. CUV620."""
    import zipfile  # noqa: PLC0415

    import numpy as np  # noqa: PLC0415

    try:
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if not only_input:
                raise _unusable(path, "a .npy holds one array, and the model has several inputs")
            return {only_input: _plain(loaded)}
        with loaded:
            return {name: _plain(loaded[name]) for name in loaded.files}
    except OSError as error:
        reason = error.strerror or "it is no NumPy file"
        raise _unusable(path, reason) from error
    except (ValueError, EOFError) as error:
        if not any(begins_with(path, begin) for begin in _BEGINNINGS):
            raise _no_arrays(path, only_input) from error
        message = str(error)
        if "allow_pickle" in message:
            message = "it holds Python objects (pickle), which could run any code and are not read"
        raise _unusable(path, message) from error
    except (zipfile.BadZipFile, KeyError, MemoryError, NotImplementedError) as error:
        raise _unusable(path, f"it is damaged: {error}") from error


def _no_arrays(path: Path, only_input: str) -> CuvilError:
    name = only_input if only_input.isidentifier() else "NAME"
    array = f'np.fromfile("{path.name}", np.float32).reshape(SHAPE)'
    return fail(
        BAD_ARRAYS, "cannot use the inputs: it is no .npz or .npy file of NumPy", place=str(path),
        help=f'of raw numbers make one in Python: np.savez("in.npz", {name}={array})',
    )  # fmt: skip


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """NumPy reads ml_dtypes' arrays back as bytes without meaning; the runtime takes those."""
    if array.dtype.kind == "V" and array.dtype.itemsize <= 2:
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _unusable(path: Path, why: str) -> CuvilError:
    return fail(BAD_ARRAYS, f"cannot use the inputs: {why}", place=str(path))


def write_arrays(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """A .npz at `path`, written aside and renamed. CUV621."""
    from cuvilc.dialect.narrow import as_numpy  # noqa: PLC0415  (loads ml_dtypes)

    plain = {name: as_numpy(array) for name, array in arrays.items()}
    write_file(path, lambda file: _savez(file, plain), b"PK\x03\x04", "an .npz file")


def _savez(file: BinaryIO, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """np.savez, but an array may be called `file`."""
    import zipfile  # noqa: PLC0415

    import numpy as np  # noqa: PLC0415

    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def check_replaceable(path: Path, begins: bytes, what: str) -> None:
    """Nothing stands at `path`, or a file with this beginning, or an empty one; else CUV507.

    begins: the first bytes of what is to be written; what: a word for it.
    """
    from cuvilc.package.codes import NOT_REPLACED  # noqa: PLC0415

    try:
        taken = path.is_file() and path.stat().st_size > 0
    except OSError:  # a name that is too long, say: writing tells
        return
    if taken and not begins_with(path, begins):
        raise fail(
            NOT_REPLACED, f"{path} exists and is not {what}: it is not overwritten",
            place=str(path), help="give another path, or move the file away",
        )  # fmt: skip


def write_file(path: Path, write: Callable[[BinaryIO], None], begins: bytes, what: str) -> None:
    """`write` fills a file beside `path`, which then takes its name. CUV621 leaves nothing, CUV507
    refuses to replace what is not such a file (see check_replaceable).

    A device or pipe is written to, never replaced.
    """
    import secrets  # noqa: PLC0415

    check_replaceable(path, begins, what)
    try:
        if not path.name or path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            whole = io.BytesIO()  # a device may say that it seeks, and not
            write(whole)
            path.write_bytes(whole.getbuffer())
            return
        aside = path.with_name(f".{path.name[:100]}.new-{secrets.token_hex(6)}")
        try:
            with aside.open("xb") as file:
                write(file)
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise fail(NOT_WRITTEN, f"cannot write the file: {reason}", place=str(path)) from error
