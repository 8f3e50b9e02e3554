"""What a package is, from its metadata alone: as data for tools and as lines for people.

Loads no code of the package. Prints nothing: cli_inspect.py draws what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuvilc.artifact import Package, input_symbols
from cuvilc.dialect.dims import evaluate, symbols
from cuvilc.dialect.dims_text import parse


@dataclass(frozen=True)
class KernelRow:
    """A kernel with its amounts at one choice of sizes; `share` is of the whole work."""

    name: str
    schedule: str
    calls: int
    flops: int
    bytes: int
    share: float
    layers: Sequence[str]


def kernel_rows(metadata: Any, sizes: Mapping[str, int]) -> list[KernelRow]:
    """Kernels, the most work first."""
    amounts = [
        (k, amount(k["flops"], sizes), amount(k["bytes"], sizes)) for k in metadata["kernels"]
    ]
    work = [max(flops, 4 * moved) for _, flops, moved in amounts]
    total = sum(work) or 1
    rows = [
        KernelRow(k["name"], k["schedule"], k["calls"], flops, moved, w / total, k["layers"])
        for (k, flops, moved), w in zip(amounts, work, strict=True)
    ]
    return sorted(rows, key=lambda r: (-r.share, r.name))


def amount(text: int | str, sizes: Mapping[str, int]) -> int:
    """An amount of the metadata at these sizes; CPU levels may differ, the best one counts.

    Sizes that only a run can tell count as 1.
    """
    dim = parse(str(text))
    return evaluate(dim, dict.fromkeys(symbols(dim), 1) | {"cpu_level": 0, **sizes})


def smallest_sizes(metadata: Any) -> dict[str, int]:
    return {s["name"]: max(s["lo"], 1) for s in input_symbols(metadata)}


def report(package: Package) -> dict[str, Any]:
    """All of the metadata, and what follows from it: for `--json`."""
    metadata: Any = package.metadata
    sizes = smallest_sizes(metadata)
    rows = kernel_rows(metadata, sizes)
    return {
        "path": str(package.path),
        "size_bytes": sum(f["bytes"] for f in metadata["files"].values()),
        "metadata": metadata,
        "totals": {
            "sizes": sizes,
            "kernels": len(rows),
            "launches": sum(r.calls for r in rows),
            "flops": sum(r.flops for r in rows),
            "bytes": sum(r.bytes for r in rows),
            "arena_bytes": amount(metadata["memory"]["arena_bytes"], sizes),
            "scratch_bytes": max(
                (amount(s, sizes) for s in metadata["memory"]["scratch_bytes"]), default=0
            ),
        },
    }
