"""`--lora swap`: a package whose weights adapters exchange while it is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cuvilc.diagnostics import fail

if TYPE_CHECKING:
    from cuvilc.driver import BuildRequest
    from cuvilc.driver_lora import Attached


def attach(program: Any, request: BuildRequest, attached: Attached) -> None:
    """Make parameters of the weights that the adapters change, and of those that later ones may.

    CUV744, CUV760.
    """
    from cuvilc.dialect.lora_exchange import make_parameters, tied  # noqa: PLC0415

    check(request)
    attaching = import_module("cuvilc.import.lora_attach")
    later = later_sites(program, attached.sites, request.lora_modules or attaching.ALL_LINEAR)
    sites = [*attached.sites, *later]
    attached.tied.update(tied(program, sites))
    make_parameters(program, sites)


def check(request: BuildRequest) -> None:
    """Whether a package of these options can have adapters of its own. CUV744."""
    from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415

    if request.target == "null":
        message = "packages of the target `null` take no adapters"
        raise fail(codes.NO_SUCH_MODE, message, help="`--lora fold` works for every target")


def later_sites(program: Any, sites: Iterable[Any], pattern: str) -> list[Any]:
    """Places of modules that match the pattern, for adapters that come later. None has the name of
    one of `sites`, which a map may have given to another module: a name means one weight.
    """
    from cuvilc.dialect.lora_exchange import is_exchangeable  # noqa: PLC0415

    attaching = import_module("cuvilc.import.lora_attach")
    sites = list(sites)
    taken = {use for site in sites for use in site.uses}
    names = {(site.module, site.parameter) for site in sites}
    with program:
        return [
            site
            for site in attaching.all_sites(program, pattern)
            if is_exchangeable(site)
            and not taken.intersection(site.uses)
            and (site.module, site.parameter) not in names
        ]
