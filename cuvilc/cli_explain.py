"""`cuvilc explain` and `cuvilc targets`: what errors mean, and what can be compiled for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuvilc.cli_options import BAD_OPTION, JsonOption
from cuvilc.cli_output import Output, table
from cuvilc.diagnostics import Code, fail

_GROUPS = {
    "1": "importing a model", "2": "the program", "3": "passes", "4": "schedules and targets",
    "5": "building and reading packages", "6": "running packages", "7": "adapters",
    "9": "cuvilc itself",
}  # fmt: skip

CodeArgument = Annotated[
    str, typer.Argument(metavar="CODE", help="Such as CUV104.", show_default=False)
]


def explain(code: CodeArgument = "", json: JsonOption = False) -> None:
    """Say what a diagnostic means, or list all.

    \b
      cuvilc explain CUV104
      cuvilc explain
    """
    out = Output(json)
    if not code:
        _list(all_codes(), out)
        return
    name = f"CUV{code.upper().removeprefix('CUV')}"
    codes = all_codes(name)
    if name not in codes:
        codes = all_codes()
        near = [c for c in codes if c[:4] == name[:4]]
        hint = f"codes like it: {', '.join(near)}" if near else "`cuvilc explain` lists all codes"
        raise fail(BAD_OPTION, f"there is no diagnostic `{code}`", help=hint)
    found = codes[name]
    if json:
        page = {"title": found.title, "help": found.help, "exit_code": found.exit_code}
        out.data({"code": name, **page})
        return
    out.text(f"{name}: {found.title}\n\n{found.help.rstrip()}\n\nExit code: {found.exit_code}")


def _list(codes: dict[str, Code], out: Output) -> None:
    if out.json:
        out.data(
            {"codes": {c: {"title": d.title, "exit_code": d.exit_code} for c, d in codes.items()}}
        )
        return
    group = ""
    for name, found in codes.items():
        if name[3] != group:
            group = name[3]
            out.text(f"{'' if group == '1' else chr(10)}{_GROUPS.get(group, '')}")
        out.text(f"  {name}  {found.title}")


def all_codes(wanted: str = "CUV") -> dict[str, Code]:
    """Every diagnostic of the modules that mention `wanted`, by reading the sources.

    Importing them instead would load TVM, MLIR and onnx.
    """
    codes: dict[str, Code] = {}
    for path in Path(__file__).resolve().parent.rglob("*.py"):
        text = path.read_text("utf-8")
        if "define(" in text and f'"{wanted}' in text:
            codes |= _codes_of(text)
    return dict(sorted(codes.items()))


def _codes_of(source: str) -> dict[str, Code]:
    """The calls `define("CUVnnn", title, help, exit_code)` of one module."""
    import ast  # noqa: PLC0415

    codes = {}
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "define"):
            continue
        try:
            values = [ast.literal_eval(a) for a in node.args]
            named = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
        except ValueError:
            continue  # another function of that name
        if values and isinstance(values[0], str) and values[0].startswith("CUV"):
            codes[values[0]] = Code(*values[1:], **named)  # type: ignore[arg-type]
    return codes


def targets(json: JsonOption = False) -> None:
    """List the targets to build for, with their CPU levels.

    \b
      cuvilc targets
      cuvilc build net.onnx --target x86 --cpu x86-64-v3+znver4
    """
    from cuvilc.targets.target import find_target, target_names  # noqa: PLC0415

    out = Output(json)
    found = [find_target(name) for name in target_names()]
    if json:
        rows = [
            {
                "name": t.name,
                "summary": t.summary,
                "levels": [{"name": n, "needs": needs} for n, needs in t.describe()],
            }
            for t in found
        ]
        out.data({"targets": rows})
        return
    for target in found:
        out.text(f"{target.name}: {target.summary}")
        rows = table("--cpu", "needs")
        for name, needs in target.describe():
            rows.add_row(name, needs)
        out.draw(rows)
