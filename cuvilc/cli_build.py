"""`cuvilc build`: from a model to a package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cuvilc.cli_lora import adapter_lines, room_lines, show_costs
from cuvilc.cli_options import (
    AdapterMapOption,
    AdapterOption,
    BaseWeightsOption,
    Format,
    FormatOption,
    JsonOption,
    QuietOption,
    read_adapters,
    read_dims,
    read_elements,
    read_shapes,
)
from cuvilc.cli_output import Output, table
from cuvilc.cli_progress import watching
from cuvilc.cli_text import bytes_text, layer_text, port_text, range_text, size_text
from cuvilc.driver import EMITS, MATHS, PHASES, PREFERENCES, BuildReport, BuildRequest
from cuvilc.driver import build as build_package
from cuvilc.driver_lora import MODES
from cuvilc.driver_steps import AUTO_VECTORS

_COMMENTS = {"tir": "#", "llvm": ";", "asm": "#"}  # how a form of `--emit` begins one
_Option = typer.Option
Model = Annotated[
    Path, typer.Argument(metavar="MODEL.onnx", help="The model to compile.", show_default=False)
]
OutputPath = Annotated[
    Path | None, _Option("-o", "--output", metavar="NAME.cuvil", help="[default: the model's name]")
]
TargetName = Annotated[str, _Option("--target", help="`cuvilc targets` lists them.")]
Cpu = Annotated[
    str,
    _Option(
        "--cpu",
        metavar="LEVELS",
        help="host, a level, a CPU, or several joined by `+`. [default: x86-64-v3+x86-64-v4]",
    ),
]
Precision = Annotated[
    str,
    _Option(
        "--precision",
        metavar="bf16",
        help="Round float32 weights, and what they multiply, to bfloat16; sums stay float32.",
    ),
]
Prefer = Annotated[
    str,
    _Option(
        "--prefer", metavar="|".join(PREFERENCES),
        help="size: less memory; speed: more of it where that is faster.",
    ),
]  # fmt: skip
Math = Annotated[
    str,
    _Option(
        "--math", metavar="|".join(MATHS),
        help="exact: no rewriting that may change a float's last digits.",
    ),
]  # fmt: skip
NoFusion = Annotated[
    bool,
    _Option("--no-fusion", help="Every operation its own kernel: to see what fusing them brings."),
]
Shapes = Annotated[
    list[str],
    _Option(
        "--shape",
        metavar="INPUT=1,3,224,224",
        default_factory=list,
        show_default=False,
        help="Fix an input's sizes, `?` leaves one open; repeatable.",
    ),
]
Dims = Annotated[
    list[str],
    _Option(
        "--dim",
        metavar="NAME=1..64",
        default_factory=list,
        show_default=False,
        help="Range (or value) of a named size; repeatable.",
    ),
]
Elements = Annotated[
    list[str],
    _Option(
        "--elements",
        metavar="INPUT=N",
        default_factory=list,
        show_default=False,
        help="Tensors of a sequence input; 0: an optional one is absent. Repeatable.",
    ),
]
Lora = Annotated[
    str,
    _Option(
        "--lora",
        metavar="|".join(MODES),
        help="Adapters: in the weights, exchanged later, or each row its own. [default: fold one]",
    ),
]
LoraModules = Annotated[
    str,
    _Option(
        "--lora-modules",
        metavar="PATTERN",
        help="Modules that get room for adapters that come later: q_proj,v_proj or a regex.",
    ),
]
Jobs = Annotated[
    int | None, _Option("--jobs", min=1, metavar="N", help="Kernels at once. [default: all CPUs]")
]
NoCache = Annotated[bool, _Option("--no-cache", help="Compile every kernel anew, and link.")]
Verify = Annotated[
    bool,
    _Option("--verify", help="Run the package before it takes its place; keep only a right one."),
]
Vectors = Annotated[
    int | None,
    _Option(
        "--vectors", min=0, metavar="N",
        help="Test vectors to bundle, for `cuvilc verify`. [default: 1 where that is quick]",
    ),
]  # fmt: skip
DryRun = Annotated[bool, _Option("--dry-run", help="Say what would be built; compile nothing.")]
DumpIr = Annotated[
    Path | None, _Option("--dump-ir", metavar="DIR", help="Write the program after every pass.")
]
DumpAfter = Annotated[
    list[str],
    _Option(
        "--dump-after",
        metavar="PASS",
        default_factory=list,
        show_default=False,
        help="Print the program after a pass; repeatable.",
    ),
]
StopAfter = Annotated[
    str, _Option("--stop-after", metavar="PHASE", help=f"One of: {', '.join(PHASES)}.")
]
Emit = Annotated[
    str, _Option("--emit", metavar="FORM", help=f"Print {'|'.join(EMITS)} instead of packing.")
]
ExplainFusion = Annotated[
    bool, _Option("--explain-fusion", help="Show rules applied, and each refusal with its reason.")
]
Verbose = Annotated[bool, _Option("--verbose", "-v", help="Time per phase, cache hits.")]


def build(
    model: Model,
    *,
    output: OutputPath = None,
    shape: Shapes,
    dim: Dims,
    elements: Elements,
    target: TargetName = "x86",
    cpu: Cpu = "",
    precision: Precision = "",
    prefer: Prefer = PREFERENCES[0],
    math: Math = MATHS[0],
    no_fusion: NoFusion = False,
    adapter: AdapterOption,
    lora: Lora = "",
    adapter_map: AdapterMapOption = None,
    base_weights: BaseWeightsOption = None,
    lora_modules: LoraModules = "",
    jobs: Jobs = None,
    no_cache: NoCache = False,
    verify: Verify = False,
    vectors: Vectors = None,
    dry_run: DryRun = False,
    dump_ir: DumpIr = None,
    dump_after: DumpAfter,
    stop_after: StopAfter = "",
    emit: Emit = "",
    explain_fusion: ExplainFusion = False,
    json: JsonOption = False,
    format: FormatOption = Format.text,
    quiet: QuietOption = False,
    verbose: Verbose = False,
) -> None:
    """Compile a model into a package.

    A package is a folder that holds all that is needed to run the model.

    \b
      cuvilc build resnet18.onnx
      cuvilc build bert.onnx -o small.cuvil --dim batch=1..8 --dim seq=1..128
      cuvilc build net.onnx --shape image=1,3,224,224 --cpu host --verify
      cuvilc build gpt2.onnx --adapter ./sql-lora   a LoRA adapter, folded into the weights
      cuvilc build gpt2.onnx --lora swap --adapter ./sql-lora --adapter ./chat-lora
      cuvilc build net.onnx --dry-run           sizes, kernels, memory; no compiling
      cuvilc build net.onnx --explain-fusion    what was fused, what not and why
      cuvilc build net.onnx --cpu host --emit asm   the kernels' machine code, one after another
    """
    request = BuildRequest(
        model, output, target, cpu, read_shapes(shape), read_dims(dim), read_elements(elements),
        jobs or 0, not no_cache, verify, AUTO_VECTORS if vectors is None else vectors, dry_run,
        dump_ir, dump_after, stop_after, emit, precision=precision,
        prefer=prefer, math=math, fusion=not no_fusion,
        adapters=read_adapters(adapter), lora=lora, adapter_map=adapter_map,
        base_weights=base_weights, lora_modules=lora_modules,
    )  # fmt: skip
    _build(request, Output(json or format is Format.json, quiet), verbose, explain_fusion)


def _build(request: BuildRequest, out: Output, verbose: bool, explain_fusion: bool) -> None:
    with watching(not (out.json or out.quiet)) as request.report:
        report = build_package(request)
    if out.json:
        out.data(as_json(request, report))
        return
    _show(request, report, out, verbose)
    if explain_fusion:
        _show_fusion(report, out)
    out.notes(report.notes)


def as_json(request: BuildRequest, report: BuildReport) -> dict[str, Any]:
    """The keys that scripts may rely on."""
    return {
        "package": str(report.package) if report.package else None,
        "size_bytes": package_bytes(report),
        "target": request.target,
        "levels": [x["name"] for x in report.metadata["target"]["levels"]]
        if report.metadata
        else [],
        "kernels": {"built": report.kernels_built, "cached": report.kernels_cached},
        "seconds": {**report.seconds, "total": sum(report.seconds.values())},
        "program": report.summary,
        "fusion": {
            "applied": report.applied,
            "refused": [{"rule": m.rule, "place": m.place, "why": m.why} for m in report.misses],
        },
        "checks": [c.to_json() for c in report.checks],
        "texts": report.texts,
        "notes": report.notes,
    }


def package_bytes(report: BuildReport) -> int:
    return sum(f["bytes"] for f in report.metadata["files"].values()) if report.metadata else 0


def _show(request: BuildRequest, report: BuildReport, out: Output, verbose: bool) -> None:
    for name, text in report.texts.items():
        mark = "//" if name.startswith("after ") else _COMMENTS.get(request.emit, "//")
        many = len(report.texts) > 1 or request.dump_after
        out.asked(f"{mark} {name}\n{text}" if many else text)
    if request.dry_run:
        _show_plan(report.summary, out)
        if "lora" in report.summary:
            show_costs(report.summary["lora"], out)
    elif report.package is not None:
        levels = ", ".join(x["name"] for x in report.metadata["target"]["levels"])
        kernels = report.kernels_built + report.kernels_cached
        seconds = sum(report.seconds.values())
        out.text(f"{report.package}  {bytes_text(package_bytes(report))}  in {seconds:.2f} s")
        out.text(f"  target   {request.target}: {levels}")
        out.text(
            f"  kernels  {kernels}: {report.kernels_built} built, {report.kernels_cached} cached"
        )
        out.text(f"  vectors  {report.metadata.get('vectors', {}).get('cases', 0)}")
        for line in adapter_lines(report.metadata["adapters"]):
            out.text(line)
        for line in room_lines(report.metadata.get("lora")):
            out.text(line)
        if report.checks:
            worst = max(c.error for c in report.checks)
            out.text(f"  verified {len(report.checks)} comparisons, largest error {worst:.2g}")
    elif not report.texts:
        out.text(f"stopped after `{list(report.seconds)[-1]}`; no package was written")
    if verbose or report.package is not None:
        times = " · ".join(f"{name} {s:.2f}" for name, s in report.seconds.items())
        if not request.emit:
            out.text(f"  seconds  {times}")
    if verbose and report.metadata:
        passes = [p["name"] for p in report.metadata["compiler"]["passes"]]
        out.text(f"  passes   {' · '.join(passes)}")


def _show_plan(summary: dict[str, Any], out: Output) -> None:
    """What a dry run found."""
    operations, kernels = summary["operations"], summary.get("kernels", [])
    out.text(f"{summary['model']}: nothing was compiled")
    for role in ("inputs", "outputs"):
        for port in summary[role]:
            out.text(f"  {role[:-1]:<9}{port['name']}: {port_text(port)}")
    for s in summary["symbols"]:
        out.text(f"  size     {s['name']} = {range_text(s['lo'], s['hi'])}")
    listed = ", ".join(f"{n} {c}" for n, c in operations.items())
    out.text(f"  ops      {sum(operations.values())}: {listed}")
    weights, arena = summary["weights"], summary.get("arena_bytes", 0)
    out.text(f"  weights  {bytes_text(weights['bytes'])} in {weights['count']} arrays")
    least = {s["name"]: max(s["lo"], 1) for s in summary["symbols"]}
    out.text(f"  arena    {size_text(arena, least)}")
    rows = table("kernel", "calls", "layers", right=(1,))
    for kernel in kernels:
        layers = kernel["layers"]
        more = f" … {len(layers) - 3} more" if len(layers) > 3 else ""
        shown = ", ".join(map(layer_text, layers[:3]))
        rows.add_row(kernel["name"], str(kernel["calls"]), shown + more)
    out.text(f"  kernels  {len(kernels)} in {sum(k['calls'] for k in kernels)} launches")
    out.draw(rows)


def _show_fusion(report: BuildReport, out: Output) -> None:
    applied = table("rule applied", "times", right=(1,))
    for rule, times in sorted(report.applied.items(), key=lambda item: (-item[1], item[0])):
        applied.add_row(rule, str(times))
    refused = table("rule refused", "at", "because")
    for miss in report.misses:
        refused.add_row(miss.rule, miss.place, miss.why)
    out.draw(applied)
    if report.misses:
        out.draw(refused)
    else:
        out.text("no rule was refused")
