"""`cuvilc adapter`: commands about LoRA adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cuvilc.artifact import CUVLA_MAGIC, is_cuvla
from cuvilc.cli_adapter_pages import show_adapters, show_places
from cuvilc.cli_options import JsonOption
from cuvilc.cli_output import Output, printable
from cuvilc.cli_text import bytes_text

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
    out = Output(json)
    if base is None and (adapter_map or base_weights):
        raise typer.BadParameter("--adapter-map and --base-weights need --base")
    if base is not None and base.is_dir() and (adapter_map or base_weights):
        raise typer.BadParameter("--adapter-map and --base-weights are for a model, not a package")
    if is_cuvla(path):
        reports, places = _of_file(path, base)
    else:
        reports, places = _of_source(path, base, adapter_map, base_weights)
    if json:
        out.data({"adapters": reports, **({"base": places} if places else {})})
    else:
        show_adapters(out, reports, all)
        if places:
            show_places(out, places, all)
    if places and places["left_over"]:
        raise typer.Exit(1)


def _of_source(
    path: Path, base: Path | None, adapter_map: Path | None, base_weights: Path | None
) -> tuple[list[Any], dict[str, Any] | None]:
    """Reports of adapters as training left them; where they attach in a model or a package."""
    from cuvilc import driver_fit  # noqa: PLC0415
    from cuvilc import inspect_adapter as facts  # noqa: PLC0415

    adapters = facts.read(path)
    reports = [facts.report(a) for a in adapters]
    if base is None:
        return reports, None
    if base.is_dir():
        return reports, driver_fit.attached(adapters, base)
    return reports, facts.attached(adapters, base, adapter_map, base_weights)


def _of_file(path: Path, base: Path | None) -> tuple[list[Any], dict[str, Any] | None]:
    """The report of a .cuvla file; whether it is for the package. CUV611, CUV762."""
    from cuvilc import driver_fit  # noqa: PLC0415
    from cuvilc import inspect_adapter as facts  # noqa: PLC0415

    if base is not None and not base.is_dir():
        raise typer.BadParameter(f"{path} is for a package: give that one as --base, not {base}")
    shipped = facts.read_cuvla(path)
    return [facts.report_cuvla(shipped)], driver_fit.fit(shipped, base) if base else None


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
