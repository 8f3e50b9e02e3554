"""`cuvilc verify`: whether a package is whole and computes rightly on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cuvilc.cli_options import (
    BAD_OPTION,
    JsonOption,
    PackageArgument,
    QuietOption,
    SizesOption,
    check_sizes,
    read_sizes,
)
from cuvilc.cli_output import Output, table
from cuvilc.diagnostics import CuvilError, fail

Against = Annotated[
    Path | None,
    typer.Option("--against", metavar="MODEL.onnx", help="Compare with onnxruntime as well."),
]


def verify(
    package: PackageArgument,
    dim: SizesOption,
    against: Against = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check a package's files, and what it computes here.

    Every file is compared with its SHA-256, and the results with the bundled test vectors: on every
    CPU level that this machine can run, on one thread and on two.

    \b
      cuvilc verify resnet18.cuvil
      cuvilc verify bert.cuvil --against bert.onnx    onnxruntime as oracle
      cuvilc verify bert.cuvil --against bert.onnx --dim seq=77
    """
    from cuvilc import verify as checks  # noqa: PLC0415
    from cuvilc.artifact import input_symbols, read_package  # noqa: PLC0415

    out = Output(json, quiet)
    sizes = read_sizes(dim)
    if sizes and against is None:
        raise fail(BAD_OPTION, "--dim chooses sizes for --against, which is not given")
    check_sizes(sizes, input_symbols(read_package(package).metadata))
    result = checks.verify_package(package)
    if against is not None:
        compared = checks.verify_against(package, against, sizes)
        result.checks += compared.checks
        result.notes += compared.notes
    problem = checks.out_of_tolerance(result.checks, str(package))
    if not json:
        _show(package, result, out)
        if problem:
            raise problem
        return
    _data(package, result, problem, out)
    if problem:
        raise typer.Exit(problem.exit_code)


def _data(package: Path, result: Any, problem: CuvilError | None, out: Output) -> None:
    out.data(
        {
            "package": str(package),
            "ok": problem is None,
            "files": result.files,
            "checks": [c.to_json() for c in result.checks],
            "levels_not_run": result.skipped,
            "notes": result.notes,
            "errors": [d.to_json() for d in problem.diagnostics] if problem else [],
        }
    )


def _show(package: Path, result: Any, out: Output) -> None:
    files = ", ".join(result.files)
    out.text(f"{package}: files as they were built ({files}), metadata fits its schema")
    if result.checks:
        rows = table("", "case", "output", "level", "threads", "error", "allowed", right=(4, 5, 6))
        for c in result.checks:
            error = c.problem or f"{c.error:.2g}"
            verdict = "ok" if c.ok else "WRONG"
            rows.add_row(
                verdict, c.case, c.output, c.level, str(c.threads), error, f"{c.limit:.2g}"
            )
        out.draw(rows)
        if all(c.ok for c in result.checks):
            out.text(f"{len(result.checks)} comparisons, all within tolerance")
    skipped = [
        f"this CPU cannot run the level {name}, which was not tried" for name in result.skipped
    ]
    out.notes([*skipped, *result.notes])
