"""Attach adapters: for every parameter that they change, its place in the imported program.

Evidence, the strongest first: the adapter map, names of weights, the modules of the nodes that use
them, what the operators do with them, sizes, and, where the base checkpoint is given, values.
Nothing of an adapter is left out: what has no place, or more than one, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cuvilc.adapter import Adapter
from cuvilc.diagnostics import fail
from cuvilc.dialect import ir
from cuvilc.dialect.lora_codes import NO_SUCH_MODE
from cuvilc.dialect.lora_sites import Site, Sites

from .lora_base import Base
from .lora_claims import Claim, Claims, Place, others, wanted
from .lora_codes import MODULE_NOT_FOUND
from .lora_config import ALL_LINEAR
from .lora_failures import listed, other_model
from .lora_index import index
from .lora_map import AdapterMap
from .lora_problems import Problems
from .lora_search import Search, site_of

_KINDS = ("linear", "convolution", "embedding")


def find_sites(
    program: ir.Program,
    adapters: Sequence[Adapter],
    *,
    adapter_map: Path | None = None,
    base_weights: Path | None = None,
) -> Sites:
    """The site of every parameter that the adapters change, in their order, each once.

    For the program as it was imported, before any pass. CUV720 to CUV726 with everything that does
    not attach, CUV701 and CUV702 for base weights that cannot be read.
    """
    sites, problems = look(
        program, adapters, adapter_map=adapter_map, base_weights=base_weights
    )  # fmt: skip
    problems.settle()
    return sites


def look(
    program: ir.Program,
    adapters: Sequence[Adapter],
    *,
    adapter_map: Path | None = None,
    base_weights: Path | None = None,
) -> tuple[Sites, Problems]:
    """As find_sites: what attaches, and what is wrong with the rest. Raises for the files alone."""
    settings = AdapterMap.read(adapter_map) if adapter_map else AdapterMap(Path())
    base = Base.read(base_weights) if base_weights else None
    wants = list(wanted(adapters))
    with program:
        settings.check_used(wants)
        search = Search(Claims(index(program)), settings, base)
        found = tuple(search.run(wants))
        uses = [use for site in found for use in site.uses]
        sites = Sites(found, others(search.claims, uses), tuple(search.tied))
    _say_first(search, adapters, sites)
    return sites, search.problems


def _say_first(search: Search, adapters: Sequence[Adapter], sites: Sites) -> None:
    """Of an adapter of which no module is in the model, that this is so."""
    if set(search.problems.found) != {MODULE_NOT_FOUND}:
        return
    found = {site.module for site in sites}
    for adapter in adapters:
        if len(adapter.changes) > 1 and found.isdisjoint(c.path for c in adapter.changes):
            search.problems.first.append(other_model(adapter, search.claims.modules))


def all_sites(program: ir.Program, pattern: str = ALL_LINEAR) -> Sites:
    """The weights of all linear layers, or of all modules whose path fits, under the model's paths.

    pattern: "all-linear"; or names of which one ends the path, joined by commas ("q_proj,v_proj");
    or a regular expression for the whole path. Packages built for adapters to come use this.
    CUV744 for a pattern that is none, and for one or a name of one that no module fits.
    """
    names = _names(pattern)
    if not names:
        _check_expression(pattern)
    with program:
        claims = Claims(index(program))
        taken: set[ir.Use] = set()
        found: list[Site] = []
        for path in sorted(claims.by_path.get("weight", {})):
            own = [
                c for c in claims.at("weight", path)
                if c.reader.kind in _KINDS and c.reader.role == "weight" and c.reader.axis >= 0
                and c.reader.use not in taken
            ]  # fmt: skip
            own = claims.one_weight(own)
            module = claims.spelling(path)
            if own and _fits(pattern, names, own[0].reader.kind, module):
                taken |= {c.reader.use for c in own}
                found += _sites(module, own)
        _all_fit(
            pattern, names, [s.module for s in found], [claims.spelling(m) for m in claims.modules]
        )
    return Sites(tuple(found))


def _names(pattern: str) -> list[str]:
    """Of `q_proj,v_proj` the names; none of a regular expression and of "all-linear"."""
    if pattern == ALL_LINEAR or not re.fullmatch(r"[\w.,-]+", pattern):
        return []
    return [name for name in pattern.split(",") if name]


def _check_expression(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise _no_modules(pattern, f"it is no regular expression: {error}", []) from error


def _all_fit(pattern: str, names: list[str], found: list[str], modules: list[str]) -> None:
    """Every name, and the pattern as a whole, has a module."""
    lost = [n for n in names if not any(f".{path}".endswith(f".{n}") for path in found)]
    if pattern != ALL_LINEAR and (lost or not found):
        fits = f"`{'`, `'.join(lost)}`" if lost else "it"
        ends = sorted({path.rpartition(".")[2] for path in modules})
        raise _no_modules(pattern, f"no module of the model fits {fits}", ends)


def _no_modules(pattern: str, why: str, ends: list[str]) -> Exception:
    help = "names that end a module's path (`q_proj,v_proj`), or an expression for whole paths"
    notes = [f"the model's modules end in {listed(ends)}"] if ends else []
    return fail(NO_SUCH_MODE, f"--lora-modules {pattern}: {why}", notes=notes, help=help)


def _fits(pattern: str, names: list[str], kind: str, module: str) -> bool:
    if pattern == ALL_LINEAR:
        return kind == "linear"
    if names:
        return any(f".{module}".endswith(f".{name}") for name in names)
    return re.fullmatch(pattern, module) is not None


def _sites(path: str, own: list[Claim]) -> Iterator[Site]:
    """One module's sites: its weight, and copies of it."""
    for key in dict.fromkeys(c.weight.key for c in own):
        claims = [c for c in own if c.weight.key == key]
        weight, axis = claims[0].weight, claims[0].reader.axis
        yield site_of(path, "weight", claims, Place(axis, 0, weight.shape[axis]))
