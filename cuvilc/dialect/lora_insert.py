"""Put adapters into a program: `ai.lora` on the weights, replaced parameters and biases in place.

What comes out is the adapted model at the graph level, still with every factor apart; merge-lora
folds it. Nothing that an adapter brings is left out: what has no place is CUV743.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cuvilc.adapter import ADDITIVE, Adapter, LowRank

from . import ir
from .lora_packed import Uses, unpack_products
from .lora_parameters import Parameters, no_place
from .lora_sites import Site, Sites
from .lora_values import Array


def insert(program: ir.Program, sites: Sites, adapters: Sequence[Adapter]) -> None:
    """After it the program computes what the base model does with all adapters, summed up.

    sites: of this program, for every parameter that the adapters change. CUV742, CUV743.
    """
    with program:
        uses = unpack_products(program, sites)
        parameters = Parameters(program, sites, uses)
        for adapter in adapters:
            for change in adapter.changes:
                parameters.replace(adapter, change)
        for adapter in adapters:
            for change in adapter.changes:
                low = change.low_rank
                if low is None:
                    continue
                owner = parameters.owners.get((change.path, "weight"), (adapter.name,))[0]
                if owner != adapter.name:
                    raise parameters.clash(owner, adapter, f"{change.path}.weight")
                _adapt(program, sites, uses, adapter, change.path, low)
                if low.bias is not None:
                    parameters.add_bias(adapter, change.path, low)
        parameters.finish()


def _adapt(
    program: ir.Program, sites: Sites, uses: Uses, adapter: Adapter, module: str, low: LowRank
) -> None:
    found = sites.numbered(module, "weight")
    if not found:
        raise no_place(module, "the program has no weight of it")
    for number, site in found:
        by_value: dict[ir.Value, list[ir.Use]] = {}
        for operation, operand in uses.of[number]:
            by_value.setdefault(operation.operands[operand], []).append((operation, operand))
        for value, mine in by_value.items():
            bits = max(uses.bits.get(operation, 0) for operation, _ in mine)
            made = _lora(program, site, value, adapter, low, bits)
            for operation, operand in mine:
                operation.operands[operand] = made


def _lora(
    program: ir.Program, site: Site, value: ir.Value, adapter: Adapter, low: LowRank, bits: int
) -> ir.Value:
    """An `ai.lora` over a value that uses of the site read."""
    source = ir.defining(value)
    if source is None:
        raise no_place(site.module, "its weight is an input of a loop or branch")
    stem = f"{adapter.name}.{site.module}"
    a, b = (m.reshape(len(m), -1) for m in (low.a, low.b))
    arrays: dict[str, Array] = {"lora_A": a, "lora_B": b}
    if low.magnitude is not None:
        arrays["magnitude"] = low.magnitude.reshape(-1)
    with ir.after(source), ir.named(site.module):
        factors = [ir.constant(program, _single(a), f"{stem}.{n}") for n, a in arrays.items()]
        made: ir.Value = ir.build(
            "ai.lora", value, *factors, scale=float(low.scale), out_axis=site.out_axis,
            start=site.start, adapter=adapter.name, module=site.module,
            apart=adapter.semantics.fusion_strategy == ADDITIVE, bits=bits,
        )  # fmt: skip
    return made


def _single(array: Array) -> Array:
    """Factors of 16 bits as float32, which holds each: the weights say how exact a program is."""
    return array if array.dtype == np.float64 else array.astype(np.float32)
