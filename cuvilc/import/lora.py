"""Reading adapters: what a folder or file is, and the reader that takes it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from cuvilc.adapter import Adapter
from cuvilc.artifact import METADATA_FILE, is_cuvla
from cuvilc.diagnostics import CuvilError, Diagnostic, fail

from . import lora_codes as codes
from . import lora_kohya, lora_peft
from .lora_modules import natural
from .lora_tensors import read_tensors

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_CHECKPOINT = "checkpoint-"  # of a training run: states of one adapter, no further adapters
_SHOWN = 8


def read_adapters(path: str | Path, name: str | None = None) -> tuple[Adapter, ...]:
    """The adapters at a place, each in one of the forms that CUV701 lists. CUV701 to CUV711.

    `name` chooses among several; where one only is there, it is given that name. A folder may hold
    an adapter and, in folders below, named ones: PEFT writes several so. A file of kohya's may hold
    one for each part of a model: `unet`, `text_encoder`.
    """
    place = Path(path)
    if os.path.isdir(place):  # Path.is_dir raises for a name that is too long
        return _of_folder(place, name)
    if not os.path.exists(place):
        raise fail(codes.NOT_AN_ADAPTER, "there is no such file or folder", place=str(place))
    if place.name in (lora_peft.CONFIG, lora_peft.TENSORS) and lora_peft.is_adapter(place.parent):
        return (lora_peft.read(place.parent, name or _name(place.parent)),)
    if place.suffix in _PICKLES:
        raise fail(codes.PICKLED, "the adapter's tensors are pickled", place=str(place))
    if is_cuvla(place):
        raise fail(
            codes.NOT_AN_ADAPTER, "this is a .cuvla file, which was built for a package already",
            place=str(place),
            help='`model.load_adapter("FILE.cuvla")` loads it; here, name what it was built from',
        )  # fmt: skip
    if place.suffix == ".onnx":
        raise fail(
            codes.NOT_AN_ADAPTER, "this is a model, and no adapter", place=str(place),
            help="name the adapter's folder; of `adapter inspect` the model is --base",
        )  # fmt: skip
    return _of_file(place, name)


def _of_file(path: Path, name: str | None) -> tuple[Adapter, ...]:
    file = read_tensors(path)
    names = list(file.tensors)
    if any(n.startswith(lora_peft.PREFIX) for n in names):
        message = f"these are tensors of PEFT's, but no {lora_peft.CONFIG} stands beside them"
        raise fail(codes.NOT_AN_ADAPTER, message, place=str(path))
    if not lora_kohya.is_adapter(names):
        first = ", ".join(f"`{n}`" for n in names[:3]) or "none"
        message = "the file holds no adapter"
        raise fail(codes.NOT_AN_ADAPTER, message, place=str(path), evidence=f"tensors: {first}")
    adapters = lora_kohya.read(file, path.name.removesuffix(".safetensors"))
    if name is None:
        return adapters
    if len(adapters) == 1:
        return (replace(adapters[0], name=name),)
    chosen = tuple(a for a in adapters if a.name == name)
    return chosen or _no_such(path, name, [a.name for a in adapters])


def _of_folder(folder: Path, name: str | None) -> tuple[Adapter, ...]:
    places = _places(folder)
    if not places:
        inside = _of_file(_only_file(folder), name)
        return (replace(inside[0], name=name or _name(folder)),) if len(inside) == 1 else inside
    if name is not None and len(places) == 1:
        return (lora_peft.read(next(iter(places.values())), name),)
    if name is not None:
        if name not in places:
            _no_such(folder, name, list(places))
        return (lora_peft.read(places[name], name),)
    adapters: list[Adapter] = []
    problems: list[Diagnostic] = []
    for found, place in places.items():
        try:
            adapters.append(lora_peft.read(place, found))
        except CuvilError as error:
            problems += error.diagnostics
    if problems:
        raise CuvilError(*problems)
    return tuple(adapters)


def _no_such(place: Path, name: str, there: list[str]) -> NoReturn:
    message = f"no adapter here is called `{name}`"
    evidence = f"adapters there: {', '.join(there)}"
    raise fail(codes.NOT_AN_ADAPTER, message, place=str(place), evidence=evidence)


def _places(folder: Path) -> dict[str, Path]:
    """Folders of PEFT's by the name of the adapter in each: this one, and those right below."""
    try:
        below = sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: natural(p.name))
    except OSError as error:
        message = f"cannot read the folder: {error.strerror}"
        raise fail(codes.NOT_AN_ADAPTER, message, place=str(folder)) from None
    named = {p.name: p for p in below if lora_peft.is_adapter(p)}
    if not lora_peft.is_adapter(folder):
        return named
    named = {n: p for n, p in named.items() if not n.startswith(_CHECKPOINT)}
    own = _name(folder)
    return {own if own not in named else "default": folder, **named}


def _only_file(folder: Path) -> Path:
    """The one safetensors file of a folder without a configuration (diffusers)."""
    inside = sorted(p.name for p in folder.iterdir())
    files = [n for n in inside if n.endswith(".safetensors")]
    if len(files) == 1 and files[0] != lora_peft.TENSORS:
        return folder / files[0]
    if METADATA_FILE in inside:
        raise fail(
            codes.NOT_AN_ADAPTER, "this is a package, and no adapter", place=str(folder),
            help=f"`cuvilc inspect {folder}` shows the adapters in it",
        )  # fmt: skip
    shown = ", ".join(inside[:_SHOWN]) + (" …" if len(inside) > _SHOWN else "")
    missing = f"no {lora_peft.CONFIG} is there"
    raise fail(
        codes.NOT_AN_ADAPTER, f"the folder holds no adapter: {missing}", place=str(folder),
        evidence=f"in it: {shown}" if inside else "it is empty",
    )  # fmt: skip


def _name(folder: Path) -> str:
    return folder.resolve().name or "adapter"
