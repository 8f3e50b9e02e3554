"""`cuvilc run`: a package on given inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cuvilc.cli_files import read_arrays, write_arrays
from cuvilc.cli_options import JsonOption, PackageArgument, QuietOption, ThreadsOption, UseOption
from cuvilc.cli_output import Output, table

if TYPE_CHECKING:
    import numpy as np

_SHOWN = 6

Inputs = Annotated[
    Path,
    typer.Option(
        "--inputs", metavar="IN.npz", show_default=False, help="Arrays under the inputs' names."
    ),
]
Outputs = Annotated[
    Path | None, typer.Option("--outputs", metavar="OUT.npz", help="Where to write the results.")
]


def run(
    package: PackageArgument,
    inputs: Inputs,
    outputs: Outputs = None,
    threads: ThreadsOption = None,
    use: UseOption = "",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a package on inputs from a .npz file.

    The names in the file are the names of the model's inputs.

    \b
      python -c "import numpy as np; np.savez('in.npz', x=np.zeros((1, 8), np.float32))"
      cuvilc run net.cuvil --inputs in.npz                    shows the outputs
      cuvilc run net.cuvil --inputs in.npz --outputs out.npz  writes them
      cuvilc run net.cuvil --inputs in.npz --use sql          with an adapter of the package
    """
    from cuvilc.open_package import open_package, with_adapter  # noqa: PLC0415

    out = Output(json, quiet)
    model = open_package(package, threads=threads)
    if use:
        model = with_adapter(model, use)
    only = model.inputs[0].name if len(model.inputs) == 1 else ""
    results = model.run(read_arrays(inputs, only))
    if outputs is not None:
        write_arrays(outputs, results)
    rows = [describe(name, array) for name, array in results.items()]
    if json:
        written = str(outputs) if outputs else None
        out.data({"package": str(package), "outputs": rows, "written": written})
    elif outputs is not None:
        out.text(f"{outputs}: {', '.join(results)}")
    else:
        _show(rows, out)


def describe(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What one sees of an array at a glance; statistics over its finite elements."""
    import numpy as np  # noqa: PLC0415

    wide = array.astype(np.float64).reshape(-1)
    finite = wide[np.isfinite(wide)]
    some = finite.size > 0
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "min": float(finite.min()) if some else None,
        "mean": float(finite.mean()) if some else None,
        "max": float(finite.max()) if some else None,
        "not_finite": int(wide.size - finite.size),
        "first": [float(v) for v in wide[:_SHOWN]],
    }


def _show(rows: list[dict[str, Any]], out: Output) -> None:
    made = table("output", "type", "min", "mean", "max", "first values", right=(2, 3, 4))
    for row in rows:
        shape = ", ".join(str(n) for n in row["shape"])
        numbers = ["–" if row[k] is None else f"{row[k]:.5g}" for k in ("min", "mean", "max")]
        first = " ".join(f"{v:.5g}" for v in row["first"])
        made.add_row(row["name"], f"{row['dtype']}[{shape}]", *numbers, first)
    out.draw(made)
    odd = [r for r in rows if r["not_finite"]]
    out.notes([f"output `{r['name']}`: {r['not_finite']} values are NaN or infinite" for r in odd])
