"""Which importer reads a file: decided by its content, the suffix only breaks ties.

An importer is a module of this package with `sniff(path, head) -> int` and `load(path, options) ->
Program`.
`sniff` sees the first bytes and answers how sure it is, 0 (not mine) to 100; it imports no heavy
library.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from cuvilc.diagnostics import fail

from . import codes

HEAD_BYTES = 4096
IMPORTERS = ("cuvilc.import.onnx",)  # further formats: one module each


@dataclass(frozen=True)
class ImportOptions:
    """What the user fixes about sizes.

    shapes: input name -> sizes, each an int or None (stays as the model says).
    dims: symbol name (the model's own spelling or ours) -> (least, greatest); (n, n) fixes it,
    greatest None leaves it open. Symbols not named range from 0 up.
    elements: name of an input that is a sequence -> how many tensors it has; of an optional tensor
    -> 0 when it is absent, 1 when it is given.
    later: until it closes, the file's digest may be computed beside other work (Program.digest).
    """

    shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    dims: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    later: ExitStack | None = None


def find_importer(path: Path) -> Any:
    """The module that reads the file. CuvilError for no known format, or none readable."""
    head = _read_head(path)
    modules = [import_module(name) for name in IMPORTERS]
    scores = [module.sniff(path, head) for module in modules]
    best = max(range(len(modules)), key=lambda i: scores[i])
    if scores[best] > 0:
        return modules[best]
    kind = identify(head)
    formats = ", ".join(module.FORMAT for module in modules)
    raise fail(
        codes.NOT_A_MODEL, f"this is not a model that cuvilc reads, but {kind}", place=str(path),
        evidence=f"first bytes: {head[:16].hex(' ')}" if head else "the file is empty",
        notes=[f"formats read: {formats}"],
    )  # fmt: skip


def load(path: str | os.PathLike[str], options: ImportOptions | None = None) -> Any:
    """Read a model file of any known format; returns a Program. CuvilError says what is wrong."""
    file = Path(path)
    return find_importer(file).load(file, options or ImportOptions())


def _read_head(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise fail(codes.UNREADABLE, "this is a folder, not a model file", place=str(path))
        with open(path, "rb") as f:
            return f.read(HEAD_BYTES)
    except OSError as error:
        reason = error.strerror or str(error)
        raise fail(codes.UNREADABLE, f"cannot read the model: {reason}", place=str(path)) from None


_MAGIC = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89HDF", "an HDF5 file (Keras)"),
    (b"\x7fELF", "an ELF binary"),
    (b"\x89PNG", "a PNG image"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"GGUF", "a GGUF model"),
    (b"version https://git-lfs", "a Git LFS pointer: fetch the real file with `git lfs pull`"),
    (b"<", "an HTML or XML page: perhaps a failed download"),
    (b"{", "JSON text"),
)


def identify(head: bytes) -> str:
    """What a file is by its first bytes, in words for a message."""
    if not head:
        return "an empty file"
    if head[:4] == b"PK\x03\x04":
        if b"constants.pkl" in head or b"data.pkl" in head or b"/code/" in head:
            return "a zip archive of PyTorch (TorchScript or torch.save)"
        return "a zip archive"
    if head[4:8] == b"TFL3":
        return "a TensorFlow Lite model"
    if head[0] == 0x80 and len(head) > 1 and head[1] <= 5:
        return "a Python pickle, which could run any code when loaded"
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 27:
        return "a safetensors file: weights without a graph"
    text = head.replace(b"\r", b"").replace(b"\n", b"").replace(b"\t", b"")
    if all(32 <= b < 127 for b in text):
        return "plain text"
    return "data of an unknown format"
