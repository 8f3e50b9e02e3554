"""Biases that adapters bring and the model's graph lacks: which products they are to be added to.

An exporter drops a bias that is all zeros, and a bias of B (`lora_bias`) may stand at a layer that
has none. Where a module's weight is known and certainly nothing is added to its product, the bias
is added: zeros in the base, to be changed as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cuvilc.adapter import Array
from cuvilc.dialect import ir
from cuvilc.dialect.lora_added import add_zeros, is_bare, is_scaled, outputs_axis, products
from cuvilc.dialect.lora_sites import Site

from .lora_claims import Claim, Claims, Place, Wanted
from .lora_index import PACKED

Found = list[tuple[Claim, Place]]
_KINDS = ("linear", "convolution")


@dataclass
class Dropped:
    """The biases that are to be added, by what wants them: claims to the module's weight."""

    claims: Claims
    wanted: dict[int, tuple[Wanted, Found]] = field(default_factory=dict)

    def put(self, number: int, want: Wanted, weights: Found, base: Array | None) -> bool:
        """Whether the parameter is such a bias; then it is remembered as that of want `number`.

        weights: what was taken for the weight of its module. base: what the checkpoint has.
        """
        if want.parameter != "bias" or len(want.shape) != 1:
            return False
        found = weights or self._weight_of(want)
        if not found or any(at.size != want.shape[0] for _, at in found):
            return False
        reads = [_product(claim) for claim, _ in found]
        if not all(r is not None and outputs_axis(r) and not is_scaled(r[0]) for r in reads):
            return False
        if not want.optional:
            unlike = base is not None and bool((base != 0).any())
            if unlike or not all(is_bare(claim.reader.consumer) for claim, _ in found):
                return False
        self.wanted[number] = want, found
        return True

    def _weight_of(self, want: Wanted) -> Found:
        """The weight of a module of which the adapter has no weight: by its path alone."""
        related = self.claims.related(replace(want, parameter="weight"))
        best = [path for relation, path in related if relation.order == related[0][0].order]
        if len(best) != 1:
            return []
        own = self.claims.one_weight(
            [
                c for c in self.claims.at("weight", best[0])
                if c.reader.kind in _KINDS and c.reader.axis >= 0
                and c.reader.role in ("weight", PACKED)
            ]
        )  # fmt: skip
        return [(c, Place(c.reader.axis, 0, c.weight.shape[c.reader.axis])) for c in own]

    def insert(self) -> dict[int, list[Site]]:
        """Add all of them to the program; the sites by the number of what wants them."""
        made: dict[ir.Operation, tuple[ir.Value, ir.Use]] = {}
        sites: dict[int, list[Site]] = {}
        for number, (want, found) in self.wanted.items():
            _add([claim for claim, _ in found], made)
            at = found[0][1]
            by_value: dict[ir.Value, list[ir.Use]] = {}
            for claim, _ in found:
                value, use = made[claim.reader.consumer]
                by_value.setdefault(value, []).append(use)
            sites[number] = [
                Site(
                    want.module, "bias", "", value, tuple(dict.fromkeys(uses)), 0, at.start,
                    at.size, f"the graph has none: added to the product of {found[0][0].weight}",
                )
                for value, uses in by_value.items()
            ]  # fmt: skip
        return sites


def _add(claims: Sequence[Claim], made: dict[ir.Operation, tuple[ir.Value, ir.Use]]) -> None:
    """Zeros for the products that have none yet: one line for all products by a weight."""
    groups: dict[tuple[ir.Value, int, str], list[ir.Use]] = {}
    for claim in claims:
        read = _product(claim)
        if read is None or read[0] in made:
            continue
        dtype = ir.type_of(read[0].results[0]).dtype
        group = groups.setdefault((claim.weight.value, outputs_axis(read), dtype), [])
        if read not in group:
            group.append(read)
    for (weight, _, _), reads in groups.items():
        zeros, uses = add_zeros(weight, reads)
        for (product, _), use in zip(reads, uses, strict=True):
            made[product] = zeros, use


def _product(claim: Claim) -> ir.Use | None:
    """The product that a claim's reader is, and which operand of it is the weight."""
    return next((p for p in products(claim.reader.use) if p[0] == claim.reader.consumer), None)
