"""The biases of linear layers whose rows have adapters: constants that are added to products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from . import ir
from .lora_added import is_bare, is_scaled, outputs_axis, products
from .lora_packed import MOVES, known
from .lora_sites import Site
from .lora_values import Array


def base_biases(program: ir.Program, sites: Iterable[Site]) -> tuple[tuple[str, str], ...]:
    """(module, key among the weights) of the bias that each of these linear layers has already,
    which is zeros where it certainly has none; for weights before they become parameters. In
    `with program`.
    """
    found = []
    for site in sites:
        adds = _additions(program, site)
        line = _line(program, adds[0], site) if adds else None
        if line is not None and line.dtype == np.float32:
            part = line[site.start : site.start + site.size]
            key = ir.keep(program, np.ascontiguousarray(part), f"{site.module}.bias of the base")
            found.append((site.module, key))
        elif line is None and _has_none(site):
            key = f"{site.size} zeros"  # one array for all such layers
            program.weights.setdefault(key, np.zeros(site.size, np.float32))
            found.append((site.module, key))
    return tuple(found)


def _has_none(site: Site) -> bool:
    reads = [read for use in site.uses for read in products(use)]
    return bool(reads) and all(
        outputs_axis(read) == -1 and is_bare(read[0]) and not is_scaled(read[0]) for read in reads
    )


def weights_of(
    program: ir.Program, biases: Sequence[Site], layers: Iterable[Site]
) -> dict[Site, Site]:
    """By bias: the weight of its module, for every bias that is added to a linear layer's product.

    layers: sites of the weights of linear layers, under any names. In `with program`.
    """
    adds = {use: layer for layer in layers for use in _additions(program, layer)}
    found = {}
    for bias in biases:
        layer = next((adds[use] for use in bias.uses if use in adds), None)
        if layer is not None:
            found[bias] = replace(
                layer, module=bias.module, start=bias.start, size=bias.size, evidence=bias.evidence
            )
    return found


def _additions(program: ir.Program, site: Site) -> list[ir.Use]:
    """Where a constant line as long as the outputs is added to the products of a weight."""
    found = []
    for use in site.uses:
        operation: ir.Operation | None = use[0]
        while operation is not None and operation.name in MOVES:
            users = list(ir.users(operation.results[0]))
            operation = users[0] if len(users) == 1 else None
        if operation is None or operation.name != "ai.matmul":
            continue
        for reader in operation.results[0].uses:
            add, place = reader.owner.operation, 1 - int(reader.operand_number)
            if add.name == "ai.elemwise_add" and _line(program, (add, place), site) is not None:
                found.append((add, place))
    return found


def _line(program: ir.Program, use: ir.Use, site: Site) -> Array | None:
    """The constant [N] that is added there, of the N outputs that share the weight."""
    array = known(program, use[0].operands[use[1]])
    outputs = site.shape[site.out_axis]
    if array is None or array.shape[-1:] != (outputs,) or array.size != outputs:
        return None
    return array.reshape(outputs)
