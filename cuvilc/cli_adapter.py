"""`cuvilc adapter`: commands about LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from cuvilc.artifact import CUVLA_MAGIC, is_cuvla
from cuvilc.cli_options import JsonOption
from cuvilc.cli_output import Output, printable, table
from cuvilc.cli_text import bytes_text, count_text
from cuvilc.diagnostics import Diagnostic

_ROWS = 12

app = typer.Typer(
    help="LoRA adapters: what is in one, and making one for a package.",
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
AnyAdapterArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="As `build` takes it, or a .cuvla file.",
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every module and every layer.")]
Base = Annotated[
    Path | None,
    typer.Option(
        "--base",
        metavar="MODEL",
        show_default=False,
        help="An ONNX model or a package: show what attaches to it, and what is left over.",
    ),
]
MapFile = Annotated[
    Path | None,
    typer.Option(
        "--adapter-map",
        metavar="FILE",
        show_default=False,
        help='With --base: JSON that says where modules are, {"MODULE": "initialiser or node"}.',
    ),
]
BaseWeights = Annotated[
    Path | None,
    typer.Option(
        "--base-weights", metavar="PATH", show_default=False,
        help="With --base: the checkpoint it was exported from, to find weights by their values.",
    ),
]  # fmt: skip


@app.callback()
def adapter() -> None:
    """LoRA adapters: what is in one, and making one for a package."""


@app.command("inspect")
def inspect(
    path: AnyAdapterArgument,
    base: Base = None,
    adapter_map: MapFile = None,
    base_weights: BaseWeights = None,
    all: All = False,
    json: JsonOption = False,
) -> None:
    """Show what is in an adapter.

    Its modules with ranks and shapes, and its graph: which module follows which. Every tensor is
    checked on the way. The graph's order is told by the names of the modules. With a base model,
    or the package that it would be built for, it also shows where they attach; the exit code is 1
    where any of them does not. Of a .cuvla file it tells what it is, and with --base whether it is
    for that package.

    \b
      cuvilc adapter inspect ./sql-lora
      cuvilc adapter inspect ./sql-lora --base model.onnx
      cuvilc adapter inspect ./sql-lora --base model.cuvil
      cuvilc adapter inspect ./sql-lora --json | jq '.adapters[0].graph'
      cuvilc adapter inspect sql.cuvla
    """
    from cuvilc import inspect_adapter as facts  # noqa: PLC0415

    out = Output(json)
    if base is None and (adapter_map or base_weights):
        raise typer.BadParameter("--adapter-map and --base-weights need --base")
    if base is not None and base.is_dir() and (adapter_map or base_weights):
        raise typer.BadParameter("--adapter-map and --base-weights are for a model, not a package")
    if is_cuvla(path):
        reports, places = _of_file(path, base)
    else:
        adapters = facts.read(path)
        reports = [facts.report(a) for a in adapters]
        places = None
        if base is not None and base.is_dir():
            from cuvilc import driver_fit  # noqa: PLC0415

            places = driver_fit.attached(adapters, base)
        elif base is not None:
            places = facts.attached(adapters, base, adapter_map, base_weights)
    if json:
        out.data({"adapters": reports, **({"base": places} if places else {})})
    else:
        _show(out, reports, all)
        if places:
            _show_base(out, places, all)
    if places and places["left_over"]:
        raise typer.Exit(1)


def _of_file(path: Path, base: Path | None) -> tuple[list[Any], dict[str, Any] | None]:
    """The report of a .cuvla file; whether it is for the package. CUV611, CUV762."""
    from cuvilc import driver_fit  # noqa: PLC0415
    from cuvilc import inspect_adapter as facts  # noqa: PLC0415

    if base is not None and not base.is_dir():
        raise typer.BadParameter(f"{path} is for a package: give that one as --base, not {base}")
    shipped = facts.read_cuvla(path)
    return [facts.report_cuvla(shipped)], driver_fit.fit(shipped, base) if base else None


def _show(out: Output, reports: list[dict[str, Any]], every: bool) -> None:
    for number, report in enumerate(reports):
        if number:
            out.text("")
        if report["format"] == "cuvla":
            _show_file(out, report, every)
            continue
        for line in _head(report):
            out.wrapped(printable(line))
        out.draw(_modules(report, every))
        hidden = len(report["modules"]) - _ROWS
        if hidden > 0 and not every:
            out.text(f"… {hidden} more modules, see --all")
        out.text("")
        for line in _graph(report, every):
            out.text(printable(line))


def _show_file(out: Output, report: dict[str, Any], every: bool) -> None:
    """A .cuvla file: its package is not at hand, so sizes are not known."""
    totals, found = report["totals"], report["modules"]
    lines = [
        f"{report['name']}  {report['path']}  {bytes_text(report['bytes'])}", "",
        "  a .cuvla file, for the package of fingerprint `base`, from tensors of `sha256`",
        f"  base     {report['base']}",
        f"  sha256   {report['sha256']}",
        f"  rank     {', '.join(map(str, totals['ranks'])) or 'none'}",
        f"  totals   {totals['modules']} modules, {totals['weights']} weights",
    ]  # fmt: skip
    for line in lines:
        out.text(printable(line))
    rows = table("module", "change", "r", "weights", right=(2, 3))
    for m in found if every else found[:_ROWS]:
        ranks = ", ".join(map(str, m["ranks"])) or "–"
        rows.add_row(
            printable(m["path"]), ", ".join(m["changes"]), ranks, str(len(m["weights"]))
        )  # fmt: skip
    out.draw(rows)
    if len(found) > _ROWS and not every:
        out.text(f"… {len(found) - _ROWS} more modules, see --all")


def _show_base(out: Output, places: dict[str, Any], every: bool) -> None:
    """A line for each site, then what is wrong."""
    found, left = places["attached"], places["left_over"]
    out.text("")
    for line in places["nothing_attaches"]:
        out.text(printable(line))
    what = f"{len(left)} left over" if left else "nothing is left over"
    some = f"{len(found)} parameter{'s attach' if len(found) != 1 else ' attaches'}"
    out.text(printable(f"{some} to {places['model']}, {what}"))
    if found:
        rows = table("module", "parameter", "weight", "shape", "outputs", "evidence")
        for site in found if every else found[:_ROWS]:
            start, size = site["outputs"]
            whole = size == site["shape"][site["out_axis"]]
            rows.add_row(
                printable(site["module"]), printable(site["parameter"]), printable(site["weight"]),
                _shape(site["shape"]), f"axis {site['out_axis']}"
                + ("" if whole else f", {start} to {start + size}"), printable(site["evidence"]),
            )  # fmt: skip
        out.draw(rows)
        if len(found) > _ROWS and not every:
            out.text(f"… {len(found) - _ROWS} more, see --all")
    for problem in left if every else left[:_ROWS]:
        out.text("")
        out.text(printable(Diagnostic(**problem).render()))
    if len(left) > _ROWS and not every:
        out.text(f"… {len(left) - _ROWS} more left over, see --all")


def _head(report: dict[str, Any]) -> Iterator[str]:
    totals = report["totals"]
    name, path = report["name"], report["path"]
    yield f"{name}  {f'{path}  ' if path != name else ''}{bytes_text(totals['bytes'])}"
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


Package = Annotated[
    Path,
    typer.Option(
        "--base",
        metavar="NAME.cuvil",
        show_default=False,
        help="The package it is for, built with `--lora swap` or `--lora batch`.",
    ),
]
AdapterOutput = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE.cuvla", help="[default: its name]")
]
AdapterName = Annotated[
    str, typer.Option("--name", metavar="NAME", help="What it is called. [default: as its folder]")
]


@app.command("build")
def build(
    path: AdapterArgument,
    base: Package,
    output: AdapterOutput = None,
    name: AdapterName = "",
    json: JsonOption = False,
) -> None:
    """Make an adapter for a package that is already shipped.

    Nothing is compiled: the adapter's factors are laid out as the package's kernels read them. The
    file fits this package alone, which refuses any other when it loads one.

    \b
      cuvilc adapter build ./sql-lora --base model.cuvil -o sql.cuvla

    \b
    Then, in a package built with `--lora swap`:
      model.load_adapter("sql.cuvla"); model.use("sql-lora")
    and with `--lora batch`:
      model.load_adapter("sql.cuvla"); model.run(feeds, adapters=["sql-lora", None])
    """
    from cuvilc.cli_files import check_replaceable, write_file  # noqa: PLC0415
    from cuvilc.driver_cuvla import build_adapters  # noqa: PLC0415

    out, form = Output(json), (CUVLA_MAGIC, "a .cuvla file")
    if output is not None:
        check_replaceable(output, *form)
    made = build_adapters(path, name, base)
    if output is not None and len(made) > 1:
        raise typer.BadParameter(f"{path} holds {len(made)} adapters, and -o names one file")
    files = [output or Path(f"{adapter.name}.cuvla") for adapter, _ in made]
    for file in files:
        check_replaceable(file, *form)
    reports = []
    for file, (adapter, data) in zip(files, made, strict=True):
        write_file(file, lambda stream, data=data: stream.write(data), *form)  # type: ignore[misc]
        reports.append({"name": adapter.name, "path": str(file), "bytes": len(data)})
        out.text(printable(f"{file}  {bytes_text(len(data))}, adapter `{adapter.name}`"))
    if json:
        out.data({"adapters": reports})
