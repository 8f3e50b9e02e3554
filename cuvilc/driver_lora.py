"""Adapters in a build: read, find their places, put them into the program, tell what came of it.

`attach` is where the ways of building adapters part (MODES); each gets the program as imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuvilc import driver_batch, driver_cuvla, driver_swap
from cuvilc.adapter import Adapter
from cuvilc.diagnostics import fail

if TYPE_CHECKING:
    from cuvilc.dialect.lora_sites import Sites
    from cuvilc.dialect.passes.context import MergedWeight
    from cuvilc.driver import BuildRequest

FOLD, SWAP, BATCH = MODES = ("fold", "swap", "batch")
# Modes that multiply an adapter's scale into a factor ahead of time; fold adds scale · (B·A).
FUSES_SCALE = (SWAP, BATCH)


@dataclass(frozen=True)
class Attached:
    """What a build's adapters are and where they went. tied: by embedding that adapters may change,
    what else has its table; filled when they are put into the program.
    """

    mode: str
    adapters: tuple[Adapter, ...]
    sites: Sites
    tied: dict[str, list[str]] = field(default_factory=dict)


def mode_of(request: BuildRequest) -> str:
    """The mode asked for, "fold" for one adapter alone; "" without adapters. CUV744."""
    from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415

    count, known = len(request.adapters), f"modes: {', '.join(MODES)}"
    if request.lora and request.lora not in MODES:
        raise fail(codes.NO_SUCH_MODE, f"`{request.lora}` is not a mode of adapters", help=known)
    if request.lora == FOLD and not count:
        message = "`--lora fold` needs an adapter to fold"
        raise fail(codes.NO_SUCH_MODE, message, help="name one with `--adapter DIR`")
    if not count and not request.lora:
        for option in ("adapter_map", "base_weights", "lora_modules"):
            if getattr(request, option):
                spelled = "--" + option.replace("_", "-")
                raise fail(codes.NO_SUCH_MODE, f"`{spelled}` says nothing without `--adapter`")
        return ""
    if request.lora_modules and request.lora not in (SWAP, BATCH):
        message = "`--lora-modules` makes room for adapters that come later"
        raise fail(codes.NO_SUCH_MODE, message, help="say `--lora swap` or `--lora batch`")
    if count > 1 and not request.lora and not request.dry_run:
        raise fail(
            codes.NO_SUCH_MODE, f"{count} adapters are given, and not what becomes of them",
            help="`--lora fold` adds all up into one model; `swap` and `batch` keep them apart",
        )  # fmt: skip
    return request.lora or FOLD


def find(program: Any, request: BuildRequest) -> Attached | None:
    """Read the adapters that are asked for and find their places; None where none is.

    CUV701 to CUV744: nothing of an adapter is left out silently.
    """
    mode = mode_of(request)
    if not mode:
        return None
    spelling = import_module("cuvilc.import.lora_spelling")
    adapters = spelling.spelled(program, read(request.adapters))
    sites = import_module("cuvilc.import.lora_attach").find_sites(
        program, adapters, adapter_map=request.adapter_map, base_weights=request.base_weights
    )
    adapters = import_module("cuvilc.import.lora_tied").with_followers(adapters, sites.tied)
    return Attached(mode, adapters, sites)


def attach(program: Any, request: BuildRequest, attached: Attached) -> None:
    """Put the adapters into the program, as their mode does it. CUV712, CUV740 to CUV744."""
    if attached.mode in FUSES_SCALE:
        semantics = import_module("cuvilc.import.lora_semantics")
        for adapter in attached.adapters:
            semantics.forbid_scale_fusion(adapter, f"`--lora {attached.mode}`")
    _ATTACH[attached.mode](program, request, attached)


def adapted(request: BuildRequest) -> Any:
    """The base model with the request's adapters in it, for the interpreter: what a folded package
    must compute. Quantised weights have theirs merged, on whose levels the package falls too.
    """
    from cuvilc import driver, driver_steps  # noqa: PLC0415

    program = driver.load_model(request.model, request.shapes, request.dims, request.elements)
    attached = find(program, request)
    if attached is not None:
        attach(program, request, attached)
    return driver_steps.integer_form(program)


def read(places: Sequence[tuple[Path, str]]) -> tuple[Adapter, ...]:
    """The adapters at the places, each with a name of its own. CUV744 for one name twice."""
    reading = import_module("cuvilc.import.lora")
    found: list[Adapter] = []
    for path, name in places:
        found += reading.read_adapters(path, name or None)
    twice = [n for n, times in Counter(a.name for a in found).items() if times > 1]
    if twice:
        from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415

        both = [str(a.place) for a in found if a.name == twice[0]]
        raise fail(
            codes.NO_SUCH_MODE, f"two adapters are called `{twice[0]}`",
            evidence="\n".join(both), help="name one with `--adapter DIR:NAME`",
        )  # fmt: skip
    return tuple(found)


def _fold(program: Any, request: BuildRequest, attached: Attached) -> None:
    from cuvilc.dialect.lora_insert import insert  # noqa: PLC0415

    insert(program, attached.sites, attached.adapters)


def embedded(attached: Attached | None) -> Any:
    """What gives the adapters that travel in the package, for BuildOptions; None where none do."""
    if attached is None or attached.mode == FOLD:
        return None
    return lambda emitted: driver_cuvla.embedded(attached.adapters, emitted)


def room(attached: Attached | None) -> dict[str, Any]:
    """What those who make adapters for a package need to know of its model: modules that none may
    change, so that none is taken for another whose name it is the end of, and what is tied.
    """
    if attached is None or attached.mode == FOLD:
        return {}
    return {"others": attached.sites.others, "tied": attached.tied}


_ATTACH: dict[str, Callable[[Any, BuildRequest, Attached], None]] = {
    FOLD: _fold, SWAP: driver_swap.attach, BATCH: driver_batch.attach,
}  # fmt: skip


def metadata(attached: Attached | None, merged: Sequence[MergedWeight]) -> list[dict[str, Any]]:
    """The metadata's section `adapters`: who is in the package, and what storing it lost."""
    if attached is None:
        return []
    found = []
    for adapter in attached.adapters:
        ranks = sorted({c.low_rank.rank for c in adapter.changes if c.low_rank is not None})
        found.append(
            {
                "name": adapter.name,
                "sha256": adapter.sha256,
                "mode": attached.mode,
                "ranks": ranks,
                "modules": [c.path for c in adapter.changes],
                "weights": [
                    {
                        "name": w.key,
                        "modules": [m for a, m in w.changes if a == adapter.name],
                        "dtype": w.dtype,
                        **w.loss.to_json(),
                    }
                    for w in merged
                    if any(a == adapter.name for a, _ in w.changes)
                ],
            }
        )
    return found
