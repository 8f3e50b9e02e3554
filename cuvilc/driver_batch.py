"""`--lora batch`: a package in whose runs every row of a batch has an adapter of its own.

Adapters travel in the package and come later as those of `--lora swap` do, in the same files; but
weights stay as they are: all that rows can have is factors, gains and biases of linear layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cuvilc import driver_swap
from cuvilc.adapter import Adapter
from cuvilc.diagnostics import fail

if TYPE_CHECKING:
    from cuvilc.dialect.lora_sites import Site
    from cuvilc.driver import BuildRequest
    from cuvilc.driver_lora import Attached

_LINEAR = "linear"
MOST_RANK = 2048  # of factors that stand for a weight that is replaced


def attach(program: Any, request: BuildRequest, attached: Attached) -> None:
    """Make batched parameters of the weights that the adapters change and later ones may.

    Without `--lora-modules` later adapters may change what those of the build do, and all linear
    layers if there are none. CUV744, CUV760.
    """
    from cuvilc.dialect.lora_exchange import make_parameters  # noqa: PLC0415

    driver_swap.check(request)
    check_ranks(attached.adapters)
    sites = _weights(program, attached.sites)
    pattern = request.lora_modules
    if not pattern and not sites:
        pattern = import_module("cuvilc.import.lora_attach").ALL_LINEAR
    later = driver_swap.later_sites(program, sites, pattern) if pattern else []
    linear = [s for s in later if s.kind == _LINEAR and s.parameter == "weight"]
    make_parameters(program, [*sites, *linear], batched=True)


def _weights(program: Any, sites: Iterable[Site]) -> list[Site]:
    """The weights of the layers that the sites are parameters of. CUV744."""
    from cuvilc.dialect.lora_biases import weights_of  # noqa: PLC0415

    found, biases = [], []
    for site in sites:
        if site.kind == _LINEAR and site.parameter == "weight":
            found.append(site)
        elif not site.kind and site.parameter == "bias":
            biases.append(site)
        else:
            what = f"`{site.parameter}` of `{site.module}`"
            raise _refused(f"{what} is one of {_ARTICLE[site.kind]}")
    if biases:
        attaching = import_module("cuvilc.import.lora_attach")
        layers = attaching.all_sites(program)
        with program:
            homes = weights_of(program, biases, layers)
        for bias in biases:
            if bias not in homes:
                raise _refused(f"the bias of `{bias.module}` is not added to a product")
        named = {s.module for s in found}
        found += [s for s in homes.values() if s.module not in named]
    return found


_ARTICLE = {"convolution": "a convolution", "embedding": "an embedding", "": "no linear layer"}


def check_ranks(adapters: Iterable[Adapter]) -> None:
    """Refuse weights whose replacement is too much work to do for each row. CUV744."""
    for adapter in adapters:
        for change in adapter.changes:
            new = change.replaced.get("weight")
            if new is not None and new.ndim == 2 and min(new.shape) > MOST_RANK:
                rank = min(new.shape)
                raise _refused(
                    f"adapter `{adapter.name}` replaces `{change.path}.weight` {list(new.shape)}, "
                    f"which would be factors of rank {rank} (at most {MOST_RANK})"
                )


def _refused(why: str) -> Exception:
    from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415

    message = f"`--lora batch` changes linear layers: {why}"
    return fail(codes.NO_SUCH_MODE, message, help="`--lora swap` and `--lora fold` take it")
