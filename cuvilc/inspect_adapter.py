"""What `cuvilc adapter inspect` tells: an adapter as plain data."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from cuvilc.adapter import Adapter, Array, ModuleChange

# Options of a configuration worth a line, where they are not as usual.
_OPTIONS = (
    "target_modules", "exclude_modules", "modules_to_save", "layers_to_transform",
    "layers_pattern", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "lora_bias",
    "fan_in_fan_out", "bias", "init_lora_weights", "base_model_name_or_path", "task_type",
    "peft_version", "format", "naming",
)  # fmt: skip
_USUAL: tuple[Any, ...] = (None, False, True, "none", [], {}, "")


def read(path: Path, name: str | None = None) -> tuple[Adapter, ...]:
    """The adapters at a place. CuvilError."""
    return import_module("cuvilc.import.lora").read_adapters(path, name)


def report(adapter: Adapter) -> dict[str, Any]:
    """Everything that is known of it without a base model, as JSON has it."""
    graph = import_module("cuvilc.import.lora_graph")
    modules = [_module(adapter, c, graph) for c in adapter.changes]
    steps = graph.steps(adapter)
    return {
        "name": adapter.name,
        "format": adapter.config.get("format", "peft"),
        "path": str(adapter.place),
        "sha256": adapter.sha256,
        "r": adapter.config.get("r"),
        "lora_alpha": adapter.config.get("lora_alpha"),
        "lora_dropout": float(adapter.config.get("lora_dropout") or 0.0),
        "options": {k: v for k in _OPTIONS if (v := adapter.config.get(k)) not in _USUAL
                    or (v is True and k.startswith(("use_", "lora_", "fan_")))},
        "graph_semantics": {
            "dependency_level": adapter.semantics.dependency_level,
            "fusion_strategy": adapter.semantics.fusion_strategy,
        },
        "totals": _totals(modules),
        "modules": modules,
        "graph": {
            "nodes": [graph.INPUT, *(c.path for step in steps for c in step.modules)],
            "steps": [
                {"layer": step.layer, "modules": [c.path for c in step.modules]} for step in steps
            ],
            "edges": graph.edges(adapter),
        },
    }  # fmt: skip


def read_cuvla(path: Path) -> Any:
    """What such a file says of itself. CUV611."""
    from cuvilc.package import cuvla_read  # noqa: PLC0415

    return cuvla_read.read_cuvla(path)


def report_cuvla(shipped: Any) -> dict[str, Any]:
    """All of it as JSON has it. `weights` of a module: their numbers in the package's table."""
    modules: dict[str, dict[str, Any]] = {}
    for change in shipped.changes:
        what = ["whole"] * change.whole + ["A, B"] * (change.rank > 0)
        what += ["gain"] * change.gain + ["bias"] * change.bias
        for path in change.modules:
            known = modules.setdefault(
                path, {"path": path, "changes": [], "ranks": [], "weights": []}
            )
            for key, values in (
                ("changes", what), ("ranks", [change.rank] * (change.rank > 0)),
                ("weights", [change.site]),
            ):  # fmt: skip
                known[key] = list(dict.fromkeys([*known[key], *values]))
    return {
        "name": shipped.name, "format": "cuvla", "path": str(shipped.path),
        "bytes": shipped.bytes, "sha256": shipped.source, "base": shipped.base,
        "totals": {
            "modules": len(modules), "weights": len({c.site for c in shipped.changes}),
            "ranks": sorted({c.rank for c in shipped.changes if c.rank}),
        },
        "modules": list(modules.values()),
    }  # fmt: skip


def _module(adapter: Adapter, change: ModuleChange, graph: Any) -> dict[str, Any]:
    low_rank = change.low_rank
    arrays = dict(change.replaced)
    if change.rows is not None:
        arrays["rows of weight"] = change.rows.values
    replaced = {name: list(value.shape) for name, value in arrays.items()}
    facts: dict[str, Any] = {"path": change.path, "kind": change.kind or "replaced"}
    if low_rank is not None:
        arrays |= {"a": low_rank.a, "b": low_rank.b}
        facts |= {
            "a": list(low_rank.a.shape), "b": list(low_rank.b.shape), "scale": low_rank.scale,
            **graph.carried(adapter, change),
        }  # fmt: skip
        for part in ("magnitude", "bias"):
            if (value := getattr(low_rank, part)) is not None:
                arrays[part] = value
        facts["dora"] = low_rank.magnitude is not None
        facts["lora_bias"] = low_rank.bias is not None
    facts["replaced"] = replaced
    facts["dtypes"] = sorted({v.dtype.name for v in arrays.values()})
    facts["parameters"] = sum(v.size for v in arrays.values())
    facts["bytes"] = sum(_bytes(v) for v in arrays.values())
    facts["tensors"] = list(change.tensors)
    return facts


def _bytes(array: Array) -> int:
    return int(array.size * array.dtype.itemsize)


def _totals(modules: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "modules": len(modules),
        "tensors": sum(len(m["tensors"]) for m in modules),
        "parameters": sum(m["parameters"] for m in modules),
        "bytes": sum(m["bytes"] for m in modules),
        "ranks": sorted({m["r"] for m in modules if "r" in m}),
        "dtypes": sorted({d for m in modules for d in m["dtypes"]}),
    }


def attached(
    adapters: tuple[Adapter, ...], model: Path, adapter_map: Path | None, base_weights: Path | None
) -> dict[str, Any]:
    """What the adapters attach to in a model, and the diagnostics of what is left over.

    CuvilError for files that cannot be read and for an adapter map that is not right.
    """
    registry = import_module("cuvilc.import.registry")
    program = registry.load(model, registry.ImportOptions())
    adapters = import_module("cuvilc.import.lora_spelling").spelled(program, adapters)
    sites, problems = import_module("cuvilc.import.lora_attach").look(
        program, adapters, adapter_map=adapter_map, base_weights=base_weights
    )
    with program:
        return {
            "model": str(model),
            "attached": [_site(site) for site in sites],
            "left_over": [d.to_json() for same in problems.found.values() for d in same],
            "nothing_attaches": [d.message for d in problems.first],
        }


def _site(site: Any) -> dict[str, Any]:
    """A Site, as JSON has it. weight, nodes: the model's own names."""
    from cuvilc.dialect import ir  # noqa: PLC0415  (MLIR, which an adapter alone does not need)

    return {
        "module": site.module, "parameter": site.parameter, "kind": site.kind,
        "weight": ir.source_name(site.value.owner), "shape": list(site.shape),
        "out_axis": site.out_axis, "outputs": [site.start, site.size],
        "nodes": list(dict.fromkeys(ir.source_name(operation) for operation, _ in site.uses)),
        "evidence": site.evidence,
    }  # fmt: skip
