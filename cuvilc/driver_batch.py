"""`--lora batch`: a package that serves a batch whose rows have different adapters.

Adapters travel and come later as with `--lora swap` (driver_swap), in the same files; but they
change linear layers by factors alone, whose weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cuvilc import driver_swap
from cuvilc.adapter import Adapter
from cuvilc.diagnostics import fail

if TYPE_CHECKING:
    from cuvilc.driver import BuildRequest
    from cuvilc.driver_lora import Attached

_LINEAR = "linear"


def attach(program: Any, request: BuildRequest, attached: Attached) -> None:
    """Make batched parameters of the weights that the adapters change and later ones may.

    Without `--lora-modules` later adapters may change what those of the build do, and all linear
    layers if there are none. CUV744, CUV760.
    """
    from cuvilc.dialect.lora_exchange import make_parameters  # noqa: PLC0415

    driver_swap.check(request)
    need_factors(attached.adapters)
    for site in attached.sites:
        if site.kind != _LINEAR:
            raise _refused(f"`{site.module}` is no linear layer, but {site.kind or 'another'}")
    pattern = request.lora_modules
    if not pattern and not len(attached.sites):
        pattern = import_module("cuvilc.import.lora_attach").ALL_LINEAR
    later = driver_swap.later_sites(program, attached.sites, pattern) if pattern else []
    linear = [s for s in later if s.kind == _LINEAR and s.parameter == "weight"]
    make_parameters(program, [*attached.sites, *linear], batched=True)


def need_factors(adapters: Iterable[Adapter]) -> None:
    """Refuse adapters that change more than the weights of layers by factors. CUV744."""
    for adapter in adapters:
        for change in adapter.changes:
            what = ""
            if change.replaced:
                what = f"replaces `{change.path}.{min(change.replaced)}` as a whole"
            elif change.low_rank is not None and change.low_rank.bias is not None:
                what = f"has a bias of B for `{change.path}`"
            if what:
                raise _refused(f"adapter `{adapter.name}` {what}")


def _refused(why: str) -> Exception:
    from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415

    message = f"`--lora batch` changes linear layers by factors alone: {why}"
    return fail(codes.NO_SUCH_MODE, message, help="`--lora swap` and `--lora fold` take it")
