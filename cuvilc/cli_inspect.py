"""`cuvilc inspect`: what is in a package, for people or as JSON."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cuvilc.cli_lora import adapter_lines, room_lines, weights_table
from cuvilc.cli_options import JsonOption, PackageArgument
from cuvilc.cli_output import Output, printable, table
from cuvilc.cli_text import bytes_text, count_text, layer_text, port_text, range_text, size_text

_ROWS = 12

All = Annotated[bool, typer.Option("--all", help="Every kernel and every layer name.")]


def inspect(package: PackageArgument, all: All = False, json: JsonOption = False) -> None:
    """Show what is in a package.

    Inputs, sizes, CPU levels, memory, which kernel is which layer, files. Reads metadata.json only;
    nothing of the package runs, so any package can be looked at anywhere.

    \b
      cuvilc inspect resnet18.cuvil
      cuvilc inspect resnet18.cuvil --all
      cuvilc inspect resnet18.cuvil --json | jq .metadata.target
    """
    from cuvilc import inspect as facts  # noqa: PLC0415
    from cuvilc.artifact import read_package  # noqa: PLC0415

    out = Output(json)
    report = facts.report(read_package(package))
    if json:
        out.data(report)
        return
    for line in _head(report):
        out.text(printable(line))
    out.draw(_kernels(report, all))
    hidden = len(report["metadata"]["kernels"]) - _ROWS
    if hidden > 0 and not all:
        out.text(f"… {hidden} more kernels, see --all")
    if all and (weights := weights_table(report["metadata"]["adapters"])):
        out.draw(weights)
    out.draw(_files(report))


def _head(report: dict[str, Any]) -> list[str]:
    m, totals = report["metadata"], report["totals"]
    model, target, memory, sizes = m["model"], m["target"], m["memory"], totals["sizes"]
    opset = " ".join(f"{d or 'opset'} {v}" for d, v in model.get("opset", {}).items())
    lines = [
        f"{report['path']}  {bytes_text(report['size_bytes'])}",
        "",
        f"  model    {model['name']} ({model['source_format']}{', ' + opset if opset else ''})",
        f"           sha256 {model['source_sha256']}",
    ]
    for role in ("inputs", "outputs"):
        lines += [f"  {role[:-1]:<9}{p['name']}: {port_text(p)}" for p in m[role]]
    for s in m["symbols"]:
        source = "computed by the run"
        if not s.get("computed"):
            source = f"read from axis {s['axis']} of {m['inputs'][s['input']]['name']}"
        lines.append(f"  size     {s['name']} = {range_text(s['lo'], s['hi'])}, {source}")
    for number, level in enumerate(target["levels"]):
        kind = f"{target['kind']:<4}" if number == 0 else "    "
        lines.append(f"  {'target' if number == 0 else '':<9}{kind} {level['name']}")
    needs = [f"glibc {target['min_glibc']}"] if target.get("min_glibc") else []
    needs += target.get("needed", [])
    lines.append(f"  needs    {', '.join(needs) or 'nothing of the system'}")
    lines.append(f"  arena    {size_text(memory['arena_bytes'], sizes)}")
    if totals["scratch_bytes"]:
        lines.append(f"  scratch  {bytes_text(totals['scratch_bytes'])} a thread")
    if "weights" in m:
        weights = m["weights"]
        lines.append(f"  weights  {bytes_text(weights['bytes'])} in {weights['count']} arrays")
    if "prepared_bytes" in memory:
        prepared = bytes_text(memory["prepared_bytes"])
        lines.append(f"  prepared {prepared} of weights, made when the package is opened")
    at = ", ".join(f"{n}={s}" for n, s in sizes.items())
    if totals["flops"] or totals["bytes"]:
        work = f"{count_text(totals['flops'], 'FLOP')} and {bytes_text(totals['bytes'])} moved"
        lines.append(f"  work     {work} a run{f' at {at}' if at else ''}")
    lines.append(f"  kernels  {totals['kernels']} in {totals['launches']} launches")
    cases = m.get("vectors", {}).get("cases", 0)
    lines.append(f"  vectors  {f'{cases}, for `cuvilc verify`' if cases else 'none'}")
    lines += adapter_lines(m["adapters"])
    lines += room_lines(m.get("lora"))
    lines.append(f"  made by  cuvilc {m['compiler']['version']}, schema {m['schema_version']}")
    return lines


def _kernels(report: dict[str, Any], every: bool) -> Any:
    from cuvilc.inspect import kernel_rows  # noqa: PLC0415

    rows = table("work", "calls", "FLOP", "moved", "schedule", "kernel", "layers", right=range(4))
    found = kernel_rows(report["metadata"], report["totals"]["sizes"])
    for r in found if every else found[:_ROWS]:
        layers = list(r.layers) if every else [layer_text(x) for x in r.layers[:2]]
        more = len(r.layers) - len(layers)
        rows.add_row(
            f"{r.share:.1%}" if r.share else "–", str(r.calls), count_text(r.flops),
            bytes_text(r.bytes) if r.bytes else "–", r.schedule, r.name,
            printable(", ".join(layers)) + (f" … {more} more" if more else ""),
        )  # fmt: skip
    return rows


def _files(report: dict[str, Any]) -> Any:
    rows = table("file", "size", "sha256", right=(1,))
    for name, info in report["metadata"]["files"].items():
        rows.add_row(name, bytes_text(info["bytes"]), info["sha256"])
    return rows
