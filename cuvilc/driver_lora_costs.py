"""What each way of building adapters would cost: bytes, FLOPs, swap time, work per row of a batch.

A row is what one product takes one vector of: a token of a text, a place of an image. Estimates for
a dry run; `cuvilc bench` measures.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from cuvilc.adapter import Adapter, ModuleChange
from cuvilc.diagnostics import CuvilError
from cuvilc.driver_lora import BATCH, FOLD, SWAP, Attached

# Bytes of weights that a swap makes a second, on one thread: reading the base, adding B·A, writing.
# Measured by Model.use on an x86-64-v4 server core, taking turns among three adapters of r = 16
# on 8 weights of 1024 × 1024 float32: 33.6 MB in 5.7 ms. The product takes most of it, so higher
# ranks take longer in proportion; a part of it, reading and writing, low ones take too.
SWAP_BYTES_PER_SECOND = 5.9e9
SWAP_RANK = 16
# What a swap takes however little changes: the call, the lookup, waking threads, the flip.
# `benchmarks/lora.py --workloads swap --quick --peers swaps` has 4 weights of 64 × 64, 66 kB, in
# 8.6 µs; one weight of 32 × 32 takes 5.4 µs, 8 of them 6.6 (2026-11-30, the same kind of core).
SWAP_LEAST_SECONDS = 5e-6
SHADOWS = 2  # copies of the changed weights: one is read while the other is made
# What one core of such a server reaches in float32 products, for the time of a row.
FLOPS_PER_SECOND = 5e10
_SHORT_BATCH = 0.02  # of a row's work: below it, different adapters in one batch are cheap


def compare(
    program: Any, attached: Attached, precision: str = "",
    refused: Mapping[str, CuvilError] = MappingProxyType({}),
) -> dict[str, Any]:  # fmt: skip
    """The costs of each mode for these adapters, and the mode that is recommended, with the reason.

    bytes: `package_bytes` more than the base package's; `memory_bytes` more when loaded.
    precision: the build's, as bfloat16 weights are not merged but exchanged. refused: modes that
    are not possible, not all of them; these have `not_possible`, and no costs.
    """
    changes = [c for a in attached.adapters for c in a.changes]
    low = [c.low_rank for c in changes if c.low_rank is not None]
    factors = _factor_bytes(changes)
    weights = _Weights(attached, precision)
    changed = weights.merged_bytes()
    base = _row_flops(program)
    extra = max((sum(map(_work, a.changes)) for a in attached.adapters), default=0)
    rank = max((r.rank for r in low), default=SWAP_RANK)
    work = changed / SWAP_BYTES_PER_SECOND * max(rank / SWAP_RANK, 0.5)
    seconds = SWAP_LEAST_SECONDS + work
    overhead = extra / base if base else 0.0
    row_seconds = extra / FLOPS_PER_SECOND
    own = sum(map(weights.added_bytes, attached.adapters))
    apart = factors + sum(map(_replaced_bytes, changes))
    modes: dict[str, dict[str, Any]] = {
        FOLD: {"package_bytes": 0, "memory_bytes": 0, "row_flops": 0, "row_overhead": 0.0,
               "swap_ms": None},
        SWAP: {"package_bytes": own, "memory_bytes": own + SHADOWS * changed, "row_flops": 0,
               "row_overhead": 0.0, "swap_ms": round(seconds * 1e3, 3)},
        BATCH: {"package_bytes": apart, "memory_bytes": apart, "row_flops": extra,
                "row_overhead": round(overhead, 5), "swap_ms": 0.0},
    }  # fmt: skip
    crossover = round(seconds / row_seconds) if row_seconds else None
    for mode, error in refused.items():
        first = error.diagnostics[0]
        reason = {"code": first.code, "message": first.message}
        modes[mode] = {**dict.fromkeys(modes[mode]), "not_possible": reason}
    recommended, why = _recommend(len(attached.adapters), overhead, crossover, refused)
    return {
        "adapters": [a.name for a in attached.adapters],
        "changed_bytes": weights.changed_bytes(),
        "base_row_flops": base,
        "modes": modes,
        "crossover_rows": crossover,
        "recommended": recommended,
        "why": why,
    }


def _recommend(
    count: int, overhead: float, crossover: int | None, refused: Container[str]
) -> tuple[str, str]:
    """The best of the modes that are possible, and the reason."""
    best, why = _best(count, overhead, crossover)
    if best not in refused:
        return best, why
    others = {SWAP: "an adapter is put in its place when it is used",
              BATCH: f"at {overhead:.1%} of the base's work in every row",
              FOLD: "which adds all adapters up into one model"}  # fmt: skip
    other = next(mode for mode in others if mode not in refused)
    return other, f"{others[other]}; `{best}` is not possible"


def _best(count: int, overhead: float, crossover: int | None) -> tuple[str, str]:
    if count == 0:
        return SWAP, "adapters come later: each is put in its place when it is used"
    if count == 1:
        return FOLD, "one adapter, always the same: folded it costs nothing at run time"
    rows = f"a swap takes as long as an adapter's work on {crossover} rows"
    if overhead <= _SHORT_BATCH:
        return BATCH, f"several adapters at {overhead:.1%} of the base's work; {rows}"
    return SWAP, (
        f"a batch would pay {overhead:.1%} more work in every row; {rows}: batch pays where "
        "adapters change more often than that"
    )


def _work(change: ModuleChange) -> int:
    """FLOPs of a row through A and B; a row of an embedding only looks up in A."""
    if "weight" in change.replaced:
        return 2 * _exact_factors(change)
    low = change.low_rank
    if low is None:
        return 0
    return 2 * int(low.b.size + (0 if change.kind == "embedding" else low.a.size))


def _exact_factors(change: ModuleChange) -> int:
    """Numbers of the factors that stand for a replaced weight."""
    sizes = change.replaced["weight"].shape
    return min(sizes) * sum(sizes) if len(sizes) == 2 else 0


def _replaced_bytes(change: ModuleChange) -> int:
    """What replaces parameters, as rows of a batch have it."""
    others = sum(int(a.nbytes) for name, a in change.replaced.items() if name != "weight")
    return others + (4 * _exact_factors(change) if "weight" in change.replaced else 0)


def _factor_bytes(changes: Iterable[ModuleChange]) -> int:
    return 4 * sum(int(c.low_rank.a.size + c.low_rank.b.size) for c in changes if c.low_rank)


class _Weights:
    """The base's weights that some adapter changes, each once. Those of float32 are merged from
    factors when an adapter is put to use; others travel whole with each adapter that changes them.
    """

    def __init__(self, attached: Attached, precision: str) -> None:
        from cuvilc.dialect import ir  # noqa: PLC0415
        from cuvilc.dialect.types import item_bytes  # noqa: PLC0415

        self._bytes: dict[Any, int] = {}
        self._whole: dict[str, Any] = {}  # by module
        self._merged: set[Any] = set()
        for site in (s for s in attached.sites if s.parameter == "weight"):
            dtype = ir.type_of(site.value).dtype
            if precision == "bf16" and dtype == "float32" and site.kind != "embedding":
                dtype = "bfloat16"
            self._bytes[site.value] = prod(site.shape) * item_bytes(dtype)
            if dtype == "float32":
                self._merged.add(site.value)
            else:
                self._whole[site.module] = site.value

    def changed_bytes(self) -> int:
        return sum(self._bytes.values())

    def merged_bytes(self) -> int:
        """Of those that a swap makes anew."""
        return sum(self._bytes[value] for value in self._merged)

    def added_bytes(self, adapter: Adapter) -> int:
        """What an adapter adds to a package for swapping."""
        whole = {self._whole[c.path] for c in adapter.changes if c.path in self._whole}
        rest = [c for c in adapter.changes if c.path not in self._whole]
        replaced = sum(
            int(a.nbytes)
            for c in adapter.changes
            for name, a in c.replaced.items()
            if not (name == "weight" and c.path in self._whole)
        )
        rows = sum(int(c.rows.values.nbytes) for c in rest if c.rows is not None)
        return _factor_bytes(rest) + replaced + rows + sum(self._bytes[v] for v in whole)


def _row_flops(program: Any) -> int:
    """Multiplications and additions of one row through all products by weights."""
    from cuvilc.dialect import ir  # noqa: PLC0415

    total = 0
    for operation in ir.walk(ir.body(program.function("main"))):
        if operation.name in ("ai.matmul", "ai.conv", "ai.conv_transpose"):
            total += 2 * max(_weights(operation.operands), default=0)
        elif operation.name == "ai.matmul_nbits":
            per_byte = 8 // ir.attrs(operation)["bits"]
            total += 2 * per_byte * max(_weights(operation.operands[1:2]), default=0)
    return total


def _weights(values: Iterable[Any]) -> list[int]:
    """Elements of each value that depends on no input."""
    from cuvilc.dialect import ir  # noqa: PLC0415

    found = []
    for value in values:
        t, source = ir.type_of(value), ir.defining(value)
        while source is not None and len(source.operands):
            source = ir.defining(source.operands[0])
        if source is not None and source.name == "ai.constant" and t.is_static:
            found.append(prod(int(d) for d in t.shape if isinstance(d, int)))
    return found
