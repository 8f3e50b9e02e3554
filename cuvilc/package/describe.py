"""The metadata that follows from a plan; the rest (source, passes, schedules, FLOPs) its maker
knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cuvilc import artifact
from cuvilc.dialect import dims
from cuvilc.dialect.dims import Dim, plain
from cuvilc.package import image_format as form
from cuvilc.package.plan import BufferKind, Plan, Port, Step, StepKind, Symbol

Ranges = Mapping[str, tuple[int, int | None]]


@dataclass(frozen=True)
class KernelFacts:
    """What the plan does not know of a kernel. FLOPs and bytes are of all its calls in one run."""

    schedule: str
    flops: Dim = 0
    bytes: Dim = 0


def describe(
    plan: Plan,
    *,
    model: artifact.Model,
    compiler: artifact.Compiler,
    target_kind: str,
    kernels: Mapping[str, KernelFacts],
    adapters: Sequence[dict[str, object]] = (),
    lora: Mapping[str, Any] | None = None,
) -> artifact.Metadata:
    """Metadata of schema 1.4, complete but for what writing the package finds out.

    lora: of a model that takes adapters, `others`: modules that one might be meant for besides
    those of the plan; `tied`: by embedding, what else has its table.
    """
    plan, typical = plan.visible()
    if typical:
        kernels = {name: _with_sizes(facts, typical) for name, facts in kernels.items()}
    ranges = {s.name: (s.lo, s.hi) for s in plan.symbols}
    complete: artifact.Metadata = {
        "schema_version": artifact.SCHEMA_VERSION,
        "model": model,
        "compiler": compiler,
        "target": {
            "kind": target_kind,
            "levels": [{"name": x.name, "features": list(x.features)} for x in plan.levels],
            "image_version": form.VERSION,
        },
        "symbols": [_symbol(s) for s in plan.symbols],
        "inputs": [_port(p, ranges) for p in plan.inputs],
        "outputs": [_port(p, ranges) for p in plan.outputs],
        "adapters": list(adapters),
        "kernels": _kernels(plan, kernels),
        "memory": _memory(plan),
    }
    if plan.adaptable:
        complete["lora"] = _lora(plan, lora or {})
    return complete


def _with_sizes(facts: KernelFacts, sizes: Mapping[str, int]) -> KernelFacts:
    """The facts with these sizes of symbols put in."""
    flops, moved = (dims.substitute(d, sizes) for d in (facts.flops, facts.bytes))
    return replace(facts, flops=flops, bytes=moved)


def _lora(plan: Plan, lora: Mapping[str, Any]) -> dict[str, Any]:
    """What adapters need to know besides the table of weights, which writing the package adds."""
    named = {part.module for weight in plan.adaptable for part in weight.parts}
    others = [m for m in lora.get("others", ()) if m not in named]
    return {"others": others, "tied": dict(lora.get("tied", {}))}


def _symbol(s: Symbol) -> artifact.Symbol:
    if s.computed:
        return {"name": s.name, "lo": s.lo, "hi": s.hi, "computed": True}
    return {"name": s.name, "lo": s.lo, "hi": s.hi, "input": s.input, "axis": s.axis}


def _port(port: Port, ranges: Ranges) -> artifact.Port:
    return {
        "name": port.name,
        "dtype": port.dtype,
        "dims": [plain(d) for d in port.dims],
        "ranges": [_range(d, ranges) for d in port.dims],
    }


def _range(dim: Dim, ranges: Ranges) -> list[int | None]:
    """Sizes are never negative, whatever interval arithmetic makes of them."""
    lo, hi = dims.bounds(dim, ranges)
    return [max(int(lo), 0) if math.isfinite(lo) else 0, int(hi) if math.isfinite(hi) else None]


def _kernels(plan: Plan, facts: Mapping[str, KernelFacts]) -> list[artifact.Kernel]:
    calls: dict[int, list[Step]] = {}
    for step in plan.steps:
        if step.kind in (StepKind.KERNEL, StepKind.PREPARE):
            calls.setdefault(step.target, []).append(step)
    return [
        {
            "name": name,
            "schedule": facts[name].schedule,
            "layers": _unique(step.layer for step in calls.get(i, []) if step.layer),
            "calls": sum(step.kind == StepKind.KERNEL for step in calls.get(i, [])),
            "flops": plain(facts[name].flops),
            "bytes": plain(facts[name].bytes),
            "tasks": plain(_total(s.tasks for s in calls.get(i, []) if s.kind == StepKind.KERNEL)),
        }
        for i, name in enumerate(plan.kernels)
    ]


def _total(amounts: Iterable[Dim]) -> Dim:
    total: Dim = 0
    for amount in amounts:
        total = total + amount
    return total


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _memory(plan: Plan) -> artifact.Memory:
    runs = [s for s in plan.steps if s.kind != StepKind.PREPARE]
    scratch = [plain(s.scratch_bytes) for s in runs if s.scratch_bytes != 0]
    heap: list[artifact.HeapBuffer] = [
        {"slot": b.place[0], "offset": plain(b.place[1]), "bytes": plain(b.bytes)}
        for b in plan.buffers
        if isinstance(b.place, tuple)
    ]
    memory: artifact.Memory = {
        "arena_bytes": plain(plan.arena_bytes),
        "scratch_bytes": list(dict.fromkeys(scratch)),
        "buffers": [
            {"offset": plain(b.place), "bytes": plain(b.bytes)}
            for b in plan.buffers
            if b.kind == BufferKind.ARENA and not isinstance(b.place, tuple)
        ],
    }
    if heap:
        memory["heap"] = heap
    prepared = plan.prepared_bytes
    if prepared:
        memory["prepared_bytes"] = prepared
    return memory
