"""The runtime's C sources: where they are, what they are, and the CPU features they can detect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from cuvilc.diagnostics import fail
from cuvilc.package.codes import NO_RUNTIME

_FEATURE = re.compile(r'FEATURE\((\d+), "([^"]+)"\)')


@dataclass(frozen=True)
class RuntimeSource:
    """`units` are compiled, in this order; `headers` go into the cache key of each of them."""

    include_dirs: tuple[Path, ...]
    units: tuple[Path, ...]
    headers: tuple[Path, ...]


@lru_cache(maxsize=1)
def find_runtime() -> RuntimeSource:
    """The sources beside the installed package `cuvil`, or of this checkout; else CUV503."""
    for root in _candidates():
        if (root / "src" / "image.h").is_file():
            return runtime_at(root)
    raise fail(NO_RUNTIME, "the C sources of the runtime were not found")


def _candidates() -> list[Path]:
    """A wheel carries them as cuvil/csrc/; in a checkout cuvil/ stands beside src/ and include/."""
    spec = find_spec("cuvil")
    installed = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    checkout = Path(__file__).resolve().parents[2] / "runtime"
    return [*(p / "csrc" for p in installed), *(p.parent for p in installed), checkout]


def runtime_at(root: Path) -> RuntimeSource:
    """The sources under `root`: src/*.c, src/*.S and the headers in src/ and include/."""
    source, include = root / "src", root / "include"
    units = sorted([*source.glob("*.c"), *source.glob("*.S")])
    headers = sorted([*source.glob("*.h"), *include.glob("*.h")])
    return RuntimeSource((include, source), tuple(units), tuple(headers))


def feature_bits(source: RuntimeSource) -> dict[str, int]:
    """The bit of every CPU feature the runtime can detect, as cpu.h numbers them (one a line)."""
    header = next((h for h in source.headers if h.name == "cpu.h"), None)
    text = header.read_text("utf-8") if header else ""
    return {name: int(bit) for bit, name in _FEATURE.findall(text)}
