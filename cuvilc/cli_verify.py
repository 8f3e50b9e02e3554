"""`cuvilc verify`: whether a package is whole and computes rightly on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuvilc.cli_options import (
    BAD_OPTION,
    AdapterMapOption,
    AdapterOption,
    BaseWeightsOption,
    JsonOption,
    PackageArgument,
    QuietOption,
    SizesOption,
    check_sizes,
    read_adapters,
    read_sizes,
)
from cuvilc.cli_output import Output, table
from cuvilc.diagnostics import CuvilError, fail

if TYPE_CHECKING:
    from cuvilc.artifact import Metadata
    from cuvilc.verify import Check

Against = Annotated[
    Path | None,
    typer.Option("--against", metavar="MODEL.onnx", help="Compare with onnxruntime as well."),
]


def verify(
    package: PackageArgument,
    *,
    dim: SizesOption,
    against: Against = None,
    adapter: AdapterOption,
    adapter_map: AdapterMapOption = None,
    base_weights: BaseWeightsOption = None,
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
      cuvilc verify sql.cuvil --against bert.onnx --adapter ./sql    a folded package
    """
    from cuvilc import verify as checks  # noqa: PLC0415

    out = Output(json, quiet)
    adapted = None
    if adapter:
        adapted = _request(against, adapter, adapter_map, base_weights)
    result = _compared(package, read_sizes(dim), against, adapted)
    problem = checks.out_of_tolerance(result.checks, str(package))
    if not json:
        _show(package, result, out)
        if problem:
            raise problem
        return
    _data(package, result, problem, out)
    if problem:
        raise typer.Exit(problem.exit_code)


def _request(
    against: Path | None, adapter: list[str], adapter_map: Path | None, base_weights: Path | None
) -> Any:
    """The base model and the adapters that the package should be. CUV901."""
    from cuvilc.driver import BuildRequest  # noqa: PLC0415

    if against is None:
        raise fail(BAD_OPTION, "--adapter needs its base model", help="give it by --against")
    return BuildRequest(
        against, adapters=read_adapters(adapter), lora="fold", adapter_map=adapter_map,
        base_weights=base_weights,
    )  # fmt: skip


def _compared(
    package: Path, sizes: dict[str, int], against: Path | None, adapted: Any = None
) -> Any:
    """The package's own checks, and those against onnxruntime where asked for; or, of a package
    with adapters in it, against the interpreter.
    """
    from cuvilc import verify as checks  # noqa: PLC0415
    from cuvilc.artifact import input_symbols, read_package  # noqa: PLC0415

    if sizes and against is None:
        raise fail(BAD_OPTION, "--dim chooses sizes for --against, which is not given")
    metadata = read_package(package).metadata
    check_sizes(sizes, input_symbols(metadata))
    if against is not None:
        _check_adapters(package, metadata, against, adapted)
    result = checks.verify_package(package)
    if against is not None:
        if adapted is None:
            compared = checks.verify_against(package, against, sizes)
        else:
            from cuvilc import driver_lora  # noqa: PLC0415

            compared = checks.verify_adapted(package, driver_lora.adapted(adapted), sizes)
        result.checks += compared.checks
        result.notes += compared.notes
    elif not result.checks:
        result.notes.append(
            "only the files were checked; `--against MODEL.onnx` compares with onnxruntime"
        )
    return result


def _check_adapters(package: Path, metadata: Metadata, against: Path, adapted: Any) -> None:
    """Folded adapters, and they alone, are named for a comparison with their base. CUV901, CUV745
    and what reading an adapter says. adapted: the request that names them, or None.
    """
    folded = [a for a in metadata.get("adapters", ()) if a["mode"] == "fold"]
    names = ", ".join(a["name"] for a in folded)
    if folded and adapted is None:
        message = f"{names} is folded into this package, and not into {against}"
        raise fail(BAD_OPTION, message, help="name the same adapters by --adapter")
    if adapted is not None and not folded:
        raise fail(
            BAD_OPTION, "no adapter is folded into this package: it computes what its base does",
            help="leave --adapter out; in a package for swap or batch, adapters wait for a call",
        )  # fmt: skip
    if adapted is None:
        return
    from cuvilc import driver_lora  # noqa: PLC0415
    from cuvilc.dialect.lora_codes import OTHER_ADAPTER  # noqa: PLC0415

    given = driver_lora.read(adapted.adapters)
    if sorted(a["sha256"] for a in folded) != sorted(a.sha256 for a in given):
        lines = [f"folded  {a['sha256']}  {a['name']}" for a in folded]
        lines += [f"named   {a.sha256}  {a.name} ({a.place})" for a in given]
        raise fail(
            OTHER_ADAPTER, "other adapters are folded into this package than were named",
            place=str(package), evidence="\n".join(lines),
            help="name the folded ones by --adapter, or build the package with these",
        )  # fmt: skip


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
        for row in _rows(result.checks):
            rows.add_row(*row)
        out.draw(rows)
        if all(c.ok for c in result.checks):
            out.text(f"{len(result.checks)} comparisons, all within tolerance")
    skipped = [
        f"this CPU cannot run the level {name}, which was not tried" for name in result.skipped
    ]
    out.notes([*skipped, *result.notes])


def _rows(checks: Sequence[Check]) -> Iterator[tuple[str, ...]]:
    """A row for each output of a case where all levels and threads agree, else one for each."""
    groups: dict[tuple[str, str], list[Check]] = {}
    for c in checks:
        groups.setdefault((c.case, c.output), []).append(c)
    for (case, output), group in groups.items():
        if all(c.ok for c in group):
            levels = list(dict.fromkeys(c.level for c in group))
            level = levels[0] if len(levels) == 1 else f"all {len(levels)}"
            threads = ", ".join(map(str, sorted({c.threads for c in group})))
            worst = max(group, key=lambda c: c.error)
            yield "ok", case, output, level, threads, f"{worst.error:.2g}", f"{worst.limit:.2g}"
            continue
        for c in group:
            verdict, error = "ok" if c.ok else "WRONG", c.problem or f"{c.error:.2g}"
            yield verdict, case, output, c.level, str(c.threads), error, f"{c.limit:.2g}"
