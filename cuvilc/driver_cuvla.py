"""Adapters as packages take them, for `--lora swap` and `--lora batch`.

Those that a build names travel inside the package; `build_adapters` makes one for a package that
was shipped before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from cuvilc import driver_batch
from cuvilc.adapter import Adapter, ModuleChange
from cuvilc.diagnostics import CuvilError, fail

_TOLD = 8  # of what a package cannot exchange


def embedded(adapters: Sequence[Adapter], emitted: Any) -> Callable[[bytes], list[bytes]]:
    """The adapters as they go into the package with this plan, given its fingerprint. CUV761."""
    table = emitted.plan.adaptable
    batched = emitted.plan.hidden_inputs > 0
    resolved = [(a, resolve(a, table, batched)) for a in adapters]

    def encode_all(base: bytes) -> list[bytes]:
        from cuvilc.package.cuvla import encode  # noqa: PLC0415

        def read(number: int) -> Any:
            return emitted.bases[number]

        return [encode(a, c, table, read, base, batched) for a, c in resolved]

    return encode_all


def build_adapters(source: Path, name: str, package: Path) -> list[tuple[Adapter, bytes]]:
    """The adapters at `source` for a package that takes adapters: what each .cuvla file holds.

    CUV701 to CUV712 for the adapters, CUV520 to CUV523 and CUV762 for the package, CUV761 where
    they do not fit.
    """
    from cuvilc.package.base import open_base  # noqa: PLC0415
    from cuvilc.package.cuvla import encode  # noqa: PLC0415

    base = open_base(package)
    adapters = import_module("cuvilc.import.lora").read_adapters(source, name or None)
    made = []
    for adapter in (spelled(a, base) for a in adapters):
        changes = changes_for(adapter, base)
        data = encode(adapter, changes, base.table, base.read, base.fingerprint, base.batched)
        made.append((adapter, data))
    return made


def spelled(adapter: Adapter, base: Any) -> Adapter:
    """An adapter of kohya's or diffusers' with paths as the package has them; PEFT's are so."""
    spelling = import_module("cuvilc.import.lora_spelling")
    found: Adapter = spelling.in_model(adapter, base.modules.union(base.others))
    return found


def changes_for(adapter: Adapter, base: Any) -> dict[str, ModuleChange]:
    """The adapter's changes by the modules of a package that is there. CUV722, CUV741 to CUV761."""
    adapter = _with_followers(adapter, base)
    changes = resolve(adapter, base.table, base.batched, base.others)
    if base.batched:
        tables = {p.module for s in base.table for p in s.parts if p.kind == "embedding"}
        driver_batch.check(adapter, changes, tables)
    return changes


def _with_followers(adapter: Adapter, base: Any) -> Adapter:
    """The adapter with rows of an embedding also for what is tied to it in the package. CUV761."""
    from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415

    tying = import_module("cuvilc.import.lora_tied")
    names = base.modules.union(base.others)
    own = {_module(c.path, names) for c in adapter.changes if c.rows is not None}
    more: list[tuple[str, str, str]] = []
    for change in adapter.changes:
        others = base.tied.get(_module(change.path, names), ()) if change.rows is not None else ()
        followers = () if own.intersection(others) else others
        more += [(adapter.name, change.path, other) for other in followers]
        if lost := tying.unmet(change, followers):
            raise fail(
                codes.NOT_IN_PACKAGE,
                f"adapter `{adapter.name}` replaces rows of `{change.path}.weight` and of"
                f" `{lost[0]}`, which is tied to it and in the package is not",
                place=str(adapter.place),
            )
    made: tuple[Adapter, ...] = tying.with_followers([adapter], more)
    return made[0]


def resolve(
    adapter: Adapter, table: Iterable[Any], batched: bool = False, others: Iterable[str] = ()
) -> dict[str, ModuleChange]:
    """The adapter's changes by the modules' names in the package's table. CUV722, CUV741, CUV761.

    batched: a bias of B needs no bias of the base to be added to. others: the model's modules that
    no adapter may change, which a change may nevertheless be meant for.
    """
    from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415
    from cuvilc.package.cuvla import changed  # noqa: PLC0415

    known: dict[str, set[str]] = {}
    for weight in table:
        for part in weight.parts:
            known.setdefault(part.module, set()).add(part.parameter)
    names = {*known, *others}
    found: dict[str, ModuleChange] = {}
    lost: list[str] = []
    for change in adapter.changes:
        module = _module(change.path, names)
        there = known.get(module, set())
        if batched and "weight" in there and "bias" not in change.replaced:
            there = there | {"bias"}
        missing = [p for p in changed(change) if p not in there]
        if missing:
            near = get_close_matches(change.path, known, 1, 0.4) if len(lost) < _TOLD else []
            hint = f" (nearest: `{near[0]}`)" if near and module not in known else ""
            lost += [f"`{change.path}.{p}`{hint}" for p in missing]
        twice = found.setdefault(module, change)
        if twice is not change:
            raise fail(
                codes.NOT_IN_PACKAGE,
                f"adapter `{adapter.name}` changes `{twice.path}` and `{change.path}`, and both may"
                f" be `{module}`, of which the package has one",
                place=str(adapter.place),
            )
    if lost:
        raise _not_in_package(adapter, lost, known)
    _check_fit(adapter, found, table)
    return found


def _not_in_package(adapter: Adapter, lost: Sequence[str], known: Collection[str]) -> CuvilError:
    """CUV761. lost: what finds no place; known: the modules that the package exchanges."""
    from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415

    message = f"adapter `{adapter.name}` changes {lost[0]}, which the package cannot exchange"
    notes = [f"also {t}" for t in lost[1:_TOLD]]
    if strange := nothing_fits(adapter, known):
        listed = import_module("cuvilc.import.lora_failures").listed
        message = strange
        notes = [f"it changes {lost[0]}", *notes, f"the package has {listed(known)}"]
    if len(lost) > _TOLD:
        notes.append(f"and {len(lost) - _TOLD} more")
    return fail(codes.NOT_IN_PACKAGE, message, place=str(adapter.place), notes=notes)


def nothing_fits(adapter: Adapter, known: Collection[str]) -> str:
    """What is said of an adapter none of whose modules is among those that a package exchanges."""
    there = any(_module(c.path, known) in known for c in adapter.changes)
    if there or len(adapter.changes) < 2:
        return ""
    failures = import_module("cuvilc.import.lora_failures")
    return str(failures.nothing_attaches(adapter, "among those that the package exchanges"))


def _check_fit(adapter: Adapter, changes: Mapping[str, ModuleChange], table: Iterable[Any]) -> None:
    """CUV722 for changes of other sizes or kinds, CUV741 for those beyond the weights' dtype."""
    from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415
    from cuvilc.package.cuvla import changed  # noqa: PLC0415
    from cuvilc.package.cuvla_fit import is_finite, misfit  # noqa: PLC0415

    for weight in table:
        for part in weight.parts:
            change = changes.get(part.module)
            if change is None or part.parameter not in changed(change):
                continue
            name = f"`{change.path}.{part.parameter}`"
            if why := misfit(change, part, weight):
                code = import_module("cuvilc.import.lora_codes").SITE_MISFIT
                message = f"adapter `{adapter.name}`: {name} does not fit the package's weight"
                raise fail(code, message, place=str(adapter.place), evidence=why)
            low = change.low_rank if part.parameter == "weight" else None
            if low is not None and not is_finite(low, weight):
                message = f"{name} with adapter `{adapter.name}` does not fit in {weight.dtype}"
                raise fail(codes.NOT_FINITE, message, place=str(adapter.place))


def _module(path: str, known: Collection[str]) -> str:
    """The package's name for an adapter's module; the path itself where there is none, and where
    `proj` may be another module's: the TorchScript exporter counts what ends alike, `proj_1`.
    """
    names = import_module("cuvilc.import.lora_names")
    found = names.closest(path, known)
    if found is None:
        return path
    relation = names.relate(path, found)
    counted = relation.moves and any(names.is_same_call(found, other) for other in known)
    return path if counted or names.is_there(relation.dropped, known) else str(found)
