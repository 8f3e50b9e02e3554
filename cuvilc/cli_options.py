"""Options that several commands share, and the readers of their little languages."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cuvilc.diagnostics import CuvilError, define, fail

if TYPE_CHECKING:
    from cuvilc.artifact import Symbol

BAD_OPTION = define(
    "CUV901",
    "the command line is not right",
    """\
An option or argument is unknown, missing, or not of its form.

Forms: `--shape INPUT=1,3,224,224` with `?` for a size that stays open; `--dim NAME=8` fixes a size,
`--dim NAME=1..64` gives its range, `--dim NAME=1..` leaves it open above; `--elements INPUT=3` says
how many tensors a sequence has. All may be repeated.

Next step: `cuvilc COMMAND --help` shows every option with examples.
""",
    exit_code=2,
)


class Format(StrEnum):
    """How results are written."""

    text = "text"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="json is --json.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Write one JSON object to stdout, errors included.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")]
PackageArgument = Annotated[
    Path,
    typer.Argument(metavar="PKG", help="A package: the folder NAME.cuvil.", show_default=False),
]
UseOption = Annotated[
    str,
    typer.Option(
        "--use",
        metavar="NAME",
        show_default=False,
        help="The adapter to run with: one of the package's, or a .cuvla file made for it.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", min=1, metavar="N", help="Threads of one run. [default: all CPUs]"),
]
SizesOption = Annotated[
    list[str],
    typer.Option(
        "--dim",
        metavar="NAME=N",
        default_factory=list,
        show_default=False,
        help="A size to use; repeatable.",
    ),
]

AdapterOption = Annotated[
    list[str],
    typer.Option(
        "--adapter",
        metavar="DIR[:NAME]",
        default_factory=list,
        show_default=False,
        help="A LoRA adapter, of PEFT, kohya or diffusers; repeatable.",
    ),
]
AdapterMapOption = Annotated[
    Path | None,
    typer.Option("--adapter-map", metavar="MAP.json", help="Which module is which weight."),
]
BaseWeightsOption = Annotated[
    Path | None,
    typer.Option(
        "--base-weights", metavar="FILE", help="The base's safetensors: weights found by value."
    ),
]

MOST_ELEMENTS = 4096
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})?")


def read_shapes(texts: Sequence[str]) -> dict[str, tuple[int | None, ...]]:
    """`INPUT=1,3,?,?` → sizes by input name; a scalar is `INPUT=`. CUV901."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    for text in texts:
        name, value = _split("--shape", text, "INPUT=1,3,224,224")
        sizes = []
        for part in value.split(",") if value.strip() else []:
            part = part.strip()
            if part != "?" and not _NUMBER.fullmatch(part):
                raise _wrong("--shape", text, f"`{part}` is not a size", "INPUT=1,3,224,224")
            sizes.append(None if part == "?" else int(part))
        if name in shapes:
            raise _wrong("--shape", text, f"`{name}` is given twice", "one --shape for each input")
        shapes[name] = tuple(sizes)
    return shapes


def read_elements(texts: Sequence[str]) -> dict[str, int]:
    """`INPUT=3` → number of elements by input name. CUV901."""
    elements: dict[str, int] = {}
    for text in texts:
        name, value = _split("--elements", text, "INPUT=3")
        if not _NUMBER.fullmatch(value) or int(value) > MOST_ELEMENTS:
            why = f"`{value}` is not a number of elements (0 to {MOST_ELEMENTS})"
            raise _wrong("--elements", text, why, "INPUT=3")
        if name in elements:
            raise _wrong("--elements", text, f"`{name}` is given twice", "one for each input")
        elements[name] = int(value)
    return elements


def read_dims(texts: Sequence[str]) -> dict[str, tuple[int, int | None]]:
    """`NAME=8`, `NAME=1..64` or `NAME=1..` → (least, greatest) by symbol. CUV901."""
    dims: dict[str, tuple[int, int | None]] = {}
    form = "NAME=8 or NAME=1..64"
    for text in texts:
        name, value = _split("--dim", text, form)
        if _NUMBER.fullmatch(value):
            lo, hi = int(value), int(value)
        elif found := _RANGE.fullmatch(value):
            lo, hi = int(found[1]), int(found[2]) if found[2] else None  # type: ignore[assignment]
        else:
            raise _wrong("--dim", text, f"`{value}` is neither a size nor a range", form)
        if hi is not None and hi < lo:
            raise _wrong("--dim", text, f"the range {value} is empty", form)
        if name in dims:
            raise _wrong("--dim", text, f"`{name}` is given twice", "one --dim for each size")
        dims[name] = (lo, hi)
    return dims


def read_adapters(texts: Sequence[str]) -> tuple[tuple[Path, str], ...]:
    """`DIR` or `DIR:NAME` → (path, name or ""). A path that exists is taken whole. CUV901."""
    found = []
    for text in texts:
        path, colon, name = text.rpartition(":")
        if not colon or os.path.exists(text):  # false for what is too long for a name
            path, name = text, ""
        if not path or (colon and path != text and not _NAME.fullmatch(name)):
            raise _wrong("--adapter", text, f"`{name}` is not a name", "DIR or DIR:NAME")
        found.append((Path(path), name))
    return tuple(found)


def read_sizes(texts: Sequence[str]) -> dict[str, int]:
    """`NAME=8` → size by symbol, for commands that run something. CUV901."""
    sizes = {}
    for (name, (lo, hi)), text in zip(read_dims(texts).items(), texts, strict=True):
        if lo != hi:
            raise _wrong("--dim", text, "one size is needed here, not a range", "NAME=8")
        sizes[name] = lo
    return sizes


def check_sizes(sizes: dict[str, int], symbols: Sequence[Symbol]) -> None:
    """Every given size is a symbol of the package, and within its range. CUV901."""
    known = {s["name"]: s for s in symbols}
    for name, size in sizes.items():
        if name not in known:
            names = f"its open sizes: {', '.join(known)}" if known else "it has no open sizes"
            raise fail(BAD_OPTION, f"the package has no size `{name}`", help=names)
        lo, hi = known[name]["lo"], known[name]["hi"]
        if size < lo or (hi is not None and size > hi):
            allowed = f"{lo}..{'' if hi is None else hi}"
            raise fail(BAD_OPTION, f"`--dim {name}={size}` is outside the range {allowed}")


def _split(option: str, text: str, form: str) -> tuple[str, str]:
    """Name and value. A name may hold `=`, a value never does."""
    name, equals, value = text.rpartition("=")
    if not equals or not name:
        raise _wrong(option, text, "it has no name before `=`", form)
    return name, value.strip()


def _wrong(option: str, text: str, why: str, form: str) -> CuvilError:
    return fail(BAD_OPTION, f"`{option} {text}`: {why}", help=f"write {option} {form}")
