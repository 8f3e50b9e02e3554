"""`cuvilc adapter`: commands about LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from cuvilc.cli_options import JsonOption
from cuvilc.cli_output import Output, printable, table
from cuvilc.cli_text import bytes_text, count_text

_ROWS = 12

app = typer.Typer(
    help="LoRA adapters: what is in one.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

AdapterArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="A folder of PEFT's, or a .safetensors file of kohya's or diffusers'.",
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every module and every layer.")]


@app.callback()
def adapter() -> None:
    """LoRA adapters: what is in one."""


@app.command("inspect")
def inspect(path: AdapterArgument, all: All = False, json: JsonOption = False) -> None:
    """Show what is in an adapter.

    Its modules with ranks and shapes, and its graph: which module follows which. Every tensor is
    checked on the way. The graph's order is told by the names of the modules.

    \b
      cuvilc adapter inspect ./sql-lora
      cuvilc adapter inspect ./sql-lora --json | jq '.adapters[0].graph'
    """
    from cuvilc import inspect_adapter as facts  # noqa: PLC0415

    out = Output(json)
    reports = [facts.report(a) for a in facts.read(path)]
    if json:
        out.data({"adapters": reports})
        return
    for number, report in enumerate(reports):
        if number:
            out.text("")
        for line in _head(report):
            out.text(printable(line))
        out.draw(_modules(report, all))
        hidden = len(report["modules"]) - _ROWS
        if hidden > 0 and not all:
            out.text(f"… {hidden} more modules, see --all")
        out.text("")
        for line in _graph(report, all):
            out.text(printable(line))


def _head(report: dict[str, Any]) -> Iterator[str]:
    totals = report["totals"]
    yield f"{report['name']}  {report['path']}  {bytes_text(totals['bytes'])}"
    yield ""
    yield f"  sha256   {report['sha256']}"
    ranks = ", ".join(map(str, totals["ranks"])) or "none"
    yield f"  rank     {ranks}"
    yield f"  alpha    {_value(report['lora_alpha'])}"
    yield f"  dropout  {report['lora_dropout']:g}"
    for name, value in report["graph_semantics"].items():
        if value:
            yield f"  {name}: {value}"
    for name, value in report["options"].items():
        yield f"  {name}: {_value(value)}"
    values = count_text(totals["parameters"])
    yield f"  totals   {totals['modules']} modules, {totals['tensors']} tensors, {values} values"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return str(value)


def _modules(report: dict[str, Any], every: bool) -> Any:
    rows = table(
        "module", "kind", "A", "B", "r", "alpha", "scale", "dtype", "size", "options",
        right=(4, 5, 6, 8),
    )  # fmt: skip
    found = report["modules"]
    for m in found if every else found[:_ROWS]:
        whole = [f"{n} {_shape(s)}" for n, s in m["replaced"].items()]
        also = [word for word in ("dora", "lora_bias") if m.get(word)]
        low_rank = "r" in m
        rows.add_row(
            printable(m["path"]), m["kind"], _shape(m["a"]) if low_rank else "–",
            _shape(m["b"]) if low_rank else "–", str(m["r"]) if low_rank else "–",
            f"{m['alpha']:g}" if low_rank else "–", f"{m['scale']:.4g}" if low_rank else "–",
            ", ".join(m["dtypes"]), bytes_text(m["bytes"]), printable(", ".join(also + whole)),
        )  # fmt: skip
    return rows


def _shape(sizes: list[int]) -> str:
    return "×".join(map(str, sizes)) or "1"


def _graph(report: dict[str, Any], every: bool) -> Iterator[str]:
    """Layer by layer; a run of layers that are alike is one."""
    modules = {m["path"]: m for m in report["modules"]}
    layers = [
        (layer, [_step(step, modules, report["lora_dropout"]) for step in steps])
        for layer, steps in groupby(report["graph"]["steps"], key=lambda s: s["layer"])
    ]
    yield "  input"
    for _, same in groupby(layers, key=lambda x: (bool(x[0]), x[1])):
        alike = list(same)
        for run in [[x] for x in alike] if every or not alike[0][0] else [alike]:
            first, last = run[0][0], run[-1][0]
            if first:
                yield f"  ├ {first}" + (f" … {last}  ({len(run)} alike)" if len(run) > 1 else "")
            bar = "  │   " if first else "  ├ "
            yield from (f"{bar}{line}" for line in run[0][1])


def _step(step: dict[str, Any], modules: dict[str, Any], dropout: float) -> str:
    """`attn.q_proj, attn.v_proj  r 8, alpha 16, dropout 0.1`"""
    parts = []
    found = [modules[p] for p in step["modules"]]
    for carried, same in groupby(found, key=lambda m: (m.get("r"), m.get("alpha"))):
        names = ", ".join(m["path"][len(step["layer"]) :].lstrip("._") or "·" for m in same)
        r, alpha = carried
        said = "replaced" if r is None else f"r {r}, alpha {alpha:g}, dropout {dropout:g}"
        parts.append(f"{names}  → {said}")
    return "; ".join(parts)
