"""`--lora batch`: a package in whose runs every row of a batch has an adapter of its own.

Adapters travel in the package and come later as those of `--lora swap` do, in the same files; but
weights stay as they are: all that rows can have is factors, gains and biases of linear layers.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cuvilc import driver_swap
from cuvilc.adapter import Adapter, ModuleChange
from cuvilc.diagnostics import fail

if TYPE_CHECKING:
    from cuvilc.dialect.lora_sites import Site
    from cuvilc.driver import BuildRequest
    from cuvilc.driver_lora import Attached

_EMBEDDING = "embedding"
_KINDS = ("linear", _EMBEDDING)  # of modules whose weights rows may change
MOST_RANK = 2048  # of factors that stand for a weight that is replaced


def attach(program: Any, request: BuildRequest, attached: Attached) -> None:
    """Make batched parameters of the weights that the adapters change and later ones may.

    Without `--lora-modules` later adapters may change what those of the build do, and all linear
    layers if there are none. CUV744, CUV760.
    """
    from cuvilc.dialect.lora_exchange import make_parameters, tied  # noqa: PLC0415

    driver_swap.check(request)
    if request.precision:
        what = f"with `--precision {request.precision}` weights are no longer float32"
        raise _refused(f"{what}, as rows with adapters need them")
    sites = _sites(program, attached)
    pattern = request.lora_modules
    if not pattern and not sites:
        pattern = import_module("cuvilc.import.lora_attach").ALL_LINEAR
    later = driver_swap.later_sites(program, sites, pattern) if pattern else []
    sites += [s for s in later if s.kind in _KINDS]
    attached.tied.update(tied(program, sites))
    make_parameters(program, sites, batched=True)


def _sites(program: Any, attached: Attached) -> list[Site]:
    """Of what the adapters change: weights, those of the layers whose biases they change, and the
    biases that are no linear layer's. CUV744.
    """
    from cuvilc.dialect.lora_biases import weights_of  # noqa: PLC0415

    weights = [s for s in attached.sites if s.kind in _KINDS and s.parameter == "weight"]
    biases = [s for s in attached.sites if not s.kind and s.parameter == "bias"]
    for site in attached.sites:
        if site not in weights and site not in biases:
            what = f"a {site.kind}'s" if site.kind else "no bias"
            raise _refused(f"the `{site.parameter}` of `{site.module}` is {what}")
    tables = {s.module for s in weights if s.kind == _EMBEDDING}
    for adapter in attached.adapters:
        check(adapter, {c.path: c for c in adapter.changes}, tables)
    if not biases:
        return weights
    layers = import_module("cuvilc.import.lora_attach").all_sites(program)
    with program:
        homes = weights_of(program, biases, layers)
    known = {s.module for s in weights}
    return [
        *weights, *(s for s in homes.values() if s.module not in known),
        *(s for s in biases if s not in homes),
    ]  # fmt: skip


def check(adapter: Adapter, changes: Mapping[str, ModuleChange], tables: Container[str]) -> None:
    """Refuse weights whose replacement is too much work to do for each row. CUV744.

    changes: by module; tables: the modules that are embeddings.
    """
    for module, change in changes.items():
        if change.rows is not None and len(change.rows.indices) > MOST_RANK:
            count = len(change.rows.indices)
            what = f"adapter `{adapter.name}` replaces {count} rows of `{change.path}.weight`"
            raise _refused(f"{what}, and a row of a batch may have at most {MOST_RANK}")
        new = change.replaced.get("weight")
        if new is None:
            continue
        what = f"adapter `{adapter.name}` replaces `{change.path}.weight` {list(new.shape)}"
        if module in tables:
            raise _refused(f"{what}, the table of an embedding, as a whole")
        if new.ndim == 2 and min(new.shape) > MOST_RANK:
            rank = min(new.shape)
            raise _refused(f"{what}: as factors, of rank {rank}, of at most {MOST_RANK}")


def _refused(why: str) -> Exception:
    from cuvilc.dialect import lora_codes as codes  # noqa: PLC0415

    message = f"`--lora batch` changes linear layers, embeddings by factors, and biases: {why}"
    return fail(codes.NO_SUCH_MODE, message, help="`--lora swap` and `--lora fold` take it")
