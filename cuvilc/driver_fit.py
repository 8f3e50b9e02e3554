"""What an adapter changes in a package that is there already, and what of it finds no place.

For `cuvilc adapter inspect --base PACKAGE`: as `cuvilc adapter build` would have it, told module by
module, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cuvilc import driver_cuvla
from cuvilc.adapter import Adapter, ModuleChange
from cuvilc.codes_runtime import BAD_CUVLA
from cuvilc.diagnostics import CuvilError, Diagnostic


def attached(adapters: Sequence[Adapter], package: Path) -> dict[str, Any]:
    """As inspect_adapter.attached, for a package. CUV520 to CUV523, CUV762 for the package."""
    from cuvilc.package.base import open_base  # noqa: PLC0415

    base = open_base(package)
    found: list[dict[str, Any]] = []
    left: list[Diagnostic] = []
    summaries: list[str] = []
    for adapter in (driver_cuvla.spelled(a, base) for a in adapters):
        changes, problems = _changes(adapter, base)
        if strange := driver_cuvla.nothing_fits(adapter, base.modules):
            summaries.append(strange)
        left += problems
        found += _places(changes, base.table, base.batched)
    return {
        "model": str(package), "attached": list({_key(f): f for f in found}.values()),
        "left_over": [d.to_json() for d in left], "nothing_attaches": summaries,
    }  # fmt: skip


def _key(place: dict[str, Any]) -> tuple[str, ...]:
    return (place["module"], place["parameter"], place["weight"])


def _changes(adapter: Adapter, base: Any) -> tuple[dict[str, ModuleChange], list[Diagnostic]]:
    """The changes that the package can make, by its modules' names; the rest told one by one."""
    found: dict[str, ModuleChange] = {}
    problems: list[Diagnostic] = []
    for changes in [*((c,) for c in adapter.changes), adapter.changes]:
        try:
            found |= driver_cuvla.changes_for(replace(adapter, changes=changes), base)
        except CuvilError as error:  # of all together: two changes of one module
            if len(changes) == 1 or not problems:
                problems += error.diagnostics
    return found, problems


def _places(
    changes: dict[str, ModuleChange], table: Iterable[Any], batched: bool
) -> list[dict[str, Any]]:
    """Each parameter that changes, as inspect_adapter tells a site of a model."""
    from cuvilc.package.cuvla import changed  # noqa: PLC0415

    parts = [(weight, part) for weight in table for part in weight.parts]
    own = {(part.module, part.parameter) for _, part in parts}
    found = []
    for weight, part in parts:
        change = changes.get(part.module)
        if change is None:
            continue
        names = [n for n in changed(change) if n == part.parameter]
        if batched and part.parameter == "weight":  # with it a bias that has no place of its own
            names += [n for n in changed(change) if (part.module, n) not in own]
        found += [_place(change.path, name, part, weight) for name in names]
    return found


def _place(module: str, parameter: str, part: Any, weight: Any) -> dict[str, Any]:
    return {
        "module": module, "parameter": parameter, "kind": part.kind,
        "weight": weight.weight.removesuffix(f"@{weight.layout}"), "shape": list(weight.shape),
        "out_axis": weight.out_axis, "outputs": [part.start, part.size], "nodes": [],
        "evidence": f"the package's `{part.module}`",
    }  # fmt: skip


def fit(shipped: Any, package: Path) -> dict[str, Any]:
    """Whether a .cuvla file is for this package; which weights it changes. CUV762."""
    from cuvilc.package.base import open_base  # noqa: PLC0415

    base = open_base(package)
    places: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []
    if shipped.base == base.fingerprint.hex():
        for change in shipped.changes:
            weight = base.table[change.site]
            parts = [p for p in weight.parts if p.module in change.modules]
            places += [_place(p.module, p.parameter, p, weight) for p in parts]
    else:
        problem = Diagnostic(
            BAD_CUVLA, "the file was built for another package", place=str(shipped.path),
            evidence=f"for fingerprint {shipped.base}\npackage has  {base.fingerprint.hex()}",
            help=f"`cuvilc adapter build ADAPTER --base {package}` makes one for this package",
        )  # fmt: skip
        left.append(problem.to_json())
    return {
        "model": str(package), "attached": places, "left_over": left, "nothing_attaches": [],
    }  # fmt: skip
