"""Target `null`: every kernel is the interpreter. The skeleton to copy for a new target.

It needs no chip, no compiler, and shows everything that a target must do:

1. `check` refuses what the user asked for and cannot be had, before any work.
2. `compile` turns the kernel functions of a program at the launch level into something that runs. A
   real target schedules and generates code; here each function stays as it is.
3. `write` makes the package: plan and metadata from `emit_plan` and `describe`, files written aside
   and renamed. A target with machine code calls `package.write.write_package` instead.
4. TARGET at the end, and one line in `target._TARGETS`.

A package of this target holds `program.mlir` (the launch level), `weights.npz` and `vectors.npz`;
null_model.py runs it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cuvilc import artifact
from cuvilc.diagnostics import fail
from cuvilc.dialect import ir
from cuvilc.dialect.ir import Program
from cuvilc.dialect.types import dtype_name
from cuvilc.package.describe import describe
from cuvilc.package.destination import check_destination, staged, sync
from cuvilc.package.plan import Level
from cuvilc.package.vectors import stored_entry, write_array, write_vectors_file
from cuvilc.targets.emit_plan import Emitted, emit_plan
from cuvilc.targets.facts import Facts
from cuvilc.targets.kernels import Kernel
from cuvilc.targets.null_model import LEVEL, NAMES, WEIGHTS_FILE
from cuvilc.targets.target import UNKNOWN_TARGET, BuildOptions


@dataclass
class Compiled:
    """The program, its kernels by name, and the plan that calls them."""

    program: Program
    kernels: dict[str, Kernel]
    emitted: Emitted


class Null:
    """Target `null`."""

    name = "null"
    summary = "no machine: the compiler's interpreter runs every kernel"

    def describe(self) -> list[tuple[str, str]]:
        return [(LEVEL, "exact and slow; needs cuvilc where it runs")]

    def check(self, options: BuildOptions) -> None:
        if options.cpu:
            message = f"target null has no CPU levels, so not `{options.cpu}` either"
            raise fail(UNKNOWN_TARGET, message, help="leave --cpu out")

    def lowering(self, program: Program, options: BuildOptions) -> None:
        pass

    def compile(self, program: Program, options: BuildOptions) -> Compiled:
        kernels: dict[str, Kernel] = {}
        with program:
            functions = program.kernels()
            names = [ir.attrs(f)["sym_name"] for f in functions]
            texts = [str(f) for f in functions]
        for number, (name, text) in enumerate(zip(names, texts, strict=True), 1):
            kernels[name] = Kernel(name, Facts("interpreter", (), 1, 0, 0, 0))
            if options.emit:
                options.texts[name] = text
            if options.progress:
                options.progress(number, len(names), name)
        return Compiled(program, kernels, emit_plan(program, kernels, [Level(LEVEL, ())]))

    def write(
        self, compiled: Compiled, metadata: dict[str, Any], destination: Path, options: BuildOptions
    ) -> Any:
        check_destination(destination)
        emitted = compiled.emitted
        complete: Any = describe(
            emitted.plan, target_kind=self.name, kernels=emitted.facts, **metadata
        )
        with staged(destination) as staging:
            _write_files(staging, compiled, complete, options)
            sync([*staging.iterdir(), staging])
        return complete


def _write_files(
    folder: Path, compiled: Compiled, metadata: dict[str, Any], options: BuildOptions
) -> None:
    """The package's files; completes `metadata` with what only they tell."""
    program = compiled.program
    (folder / artifact.PROGRAM_FILE).write_text(program.text(), "utf-8")
    weights = _used_weights(program)
    write_weights(folder / WEIGHTS_FILE, weights)
    if options.vectors is not None:
        write_vectors_file(folder / artifact.VECTORS_FILE, options.vectors)
        cases, tolerance = len(options.vectors.cases), options.vectors.tolerance
        metadata["vectors"] = {"cases": cases, "tolerance": tolerance}
    size = sum(int(a.nbytes) for a in weights.values())
    metadata["weights"] = {"bytes": size, "count": len(weights)}
    metadata["memory"] = {**metadata["memory"], "weights_bytes": size}
    metadata["target"] = {**metadata["target"], "min_glibc": "", "needed": []}
    metadata["kernels"] = [{**k, "code_bytes": {}} for k in metadata["kernels"]]
    metadata["files"] = {
        p.name: {"sha256": artifact.file_sha256(p), "bytes": p.stat().st_size}
        for p in sorted(folder.iterdir())
    }
    (folder / artifact.METADATA_FILE).write_bytes(artifact.canonical(metadata))


def _used_weights(program: Program) -> dict[str, np.ndarray]:
    """The arrays that a constant of the program names, kernels' own included."""
    with program:
        blocks = [ir.body(f) for f in program.functions()]
        constants = [o for b in blocks for o in ir.walk(b) if o.name == "ai.constant"]
        keys = sorted({ir.attrs(o)["key"] for o in constants})
    return {key: np.asarray(program.weights[key]) for key in keys}


def write_weights(path: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Arrays 0.npy, 1.npy, …, names and dtypes in names.json; equal input, equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        table = [[key, dtype_name(array.dtype)] for key, array in weights.items()]
        archive.writestr(stored_entry(NAMES), json.dumps(table))
        for number, array in enumerate(weights.values()):
            write_array(archive, f"{number}.npy", array)


TARGET = Null()
