"""The directory that a package becomes: what may be replaced, and how, without a half-written
moment.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cuvilc import artifact
from cuvilc.diagnostics import CuvilError, fail
from cuvilc.package.codes import (
    BAD_DESTINATION,
    DISK_FULL,
    NOT_PERMITTED,
    NOT_REPLACED,
    WRITE_FAILED,
)


def check_destination(destination: Path) -> None:
    """A package may be written at `destination`; else CUV506 or CUV507. Cheap: call it first."""
    name = destination.name
    if not artifact.is_plain_name(name) or not name.isprintable() or str(destination)[-1:] == ".":
        raise fail(BAD_DESTINATION, f"{str(destination)!r} is not a name for a package")
    place = str(destination)
    with os_errors(destination):
        if not destination.parent.is_dir():
            raise fail(
                BAD_DESTINATION,
                f"the directory {str(destination.parent)!r} does not exist",
                place=place,
                help=f"create it first: `mkdir -p {destination.parent}`",
            )
        with _locked(destination.parent):
            _check(destination)


def _check(destination: Path) -> None:
    """Nothing stands at `destination`, or what may be replaced."""
    if destination.is_symlink():
        message = f"{destination} is a symbolic link"
        raise fail(BAD_DESTINATION, message, place=str(destination))
    if os.path.lexists(destination):
        _check_replaceable(destination)


def _check_replaceable(destination: Path) -> None:
    """What stands at `destination` is a package and nothing but a package."""
    place = str(destination)
    if not destination.is_dir():
        raise fail(NOT_REPLACED, f"{destination} exists and is not a directory", place=place)
    try:
        metadata: object = artifact.read_metadata(destination)
    except CuvilError as error:
        message = f"{destination} exists and is not a package"
        raise fail(NOT_REPLACED, message, place=place) from error
    fields = metadata if isinstance(metadata, dict) else {}
    recorded = fields.get("files")
    if not isinstance(fields.get("schema_version"), str) or not isinstance(recorded, dict):
        raise fail(NOT_REPLACED, f"{destination} exists and is not a package", place=place)
    ours = {artifact.METADATA_FILE, *recorded}
    others = sorted(p.name for p in destination.iterdir() if p.name not in ours or not p.is_file())
    if others:
        raise fail(
            NOT_REPLACED,
            f"{destination} holds what is not part of a package: {', '.join(others[:5])}",
            place=place,
        )


def sibling(destination: Path, role: str) -> Path:
    """A new hidden name beside `destination`, on the same file system. Never part of the output."""
    return destination.with_name(f".{destination.name[:100]}.{role}-{secrets.token_hex(6)}")


def sync(paths: Iterable[Path]) -> None:
    """Files and directories are on disk, so that a crash after the rename finds them whole."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace(staging: Path, destination: Path) -> None:
    """`staging` now stands at `destination`, and what stood there is gone; else all is as before.

    Linux renames a directory only over an empty one, so an old package is first moved aside.
    """
    aside = sibling(destination, "old")
    with _locked(destination.parent):
        _check(destination)
        replaced = os.path.lexists(destination)
        if replaced:
            destination.rename(aside)
        try:
            staging.rename(destination)
        except OSError:
            if replaced:
                aside.rename(destination)
            raise
    if replaced:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def staged(destination: Path, staging: Path | None = None) -> Iterator[Path]:
    """A new folder that is `destination` after the block; if it fails, all is as it was before.

    `staging`: that folder, where it is there already, beside `destination`.
    """
    with os_errors(destination):
        if staging is None:
            staging = sibling(destination, "new")
            staging.mkdir()
        try:
            yield staging
            replace(staging, destination)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Builds look at and replace what stands in `directory` one after another."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks: two builds at one moment are on their own
        yield
    finally:
        os.close(descriptor)


@contextmanager
def os_errors(destination: Path) -> Iterator[None]:
    """What the operating system refuses becomes a diagnostic."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            code, message = DISK_FULL, f"no space left to write {destination}"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            code, message = NOT_PERMITTED, f"not permitted to write {destination}"
        else:
            code, message = WRITE_FAILED, f"cannot write {destination}"
        raise fail(code, f"{message}: {reason}", place=str(destination)) from error
