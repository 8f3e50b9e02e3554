"""A package of target null as something that runs, called like a `cuvil.Model`."""

from __future__ import annotations

import json
import time
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cuvilc import artifact
from cuvilc._mlir import ir as mlir
from cuvilc.codes_runtime import REFUSED_DATA, WRONG_SHAPE
from cuvilc.diagnostics import CuvilError, fail
from cuvilc.dialect import ir
from cuvilc.dialect.interpret import Interpreter
from cuvilc.dialect.ir import Program
from cuvilc.dialect.narrow import from_numpy
from cuvilc.dialect.ops.structure import SizeError
from cuvilc.targets.null_feeds import Port, check_feeds

LEVEL = "interpreter"
WEIGHTS_FILE = "weights.npz"
NAMES = "names.json"


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """What write_weights wrote. ValueError, KeyError or OSError for anything else."""
    with zipfile.ZipFile(path) as archive:
        table = json.loads(archive.read(NAMES))
        weights = {}
        for number, (key, dtype) in enumerate(table):
            with archive.open(f"{number}.npy") as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            weights[key] = from_numpy(array, dtype)
    return weights


class _Timed(Interpreter):
    """An interpreter that notes what each launch of `main` took."""

    def __init__(self, program: Program, event: Any) -> None:
        super().__init__(program)
        self.events: list[Any] = []
        self._event = event

    def step(self, operation: Any) -> None:
        begin = time.monotonic_ns()
        super().step(operation)
        if operation.name.endswith(".launch"):
            name = ir.attrs(operation)["kernel"]
            end, number = time.monotonic_ns(), len(self.events)
            self.events.append(self._event(number, name, "", 1, begin, end, 0))


class InterpretedModel:
    """A package of target null, run by the interpreter."""

    level = LEVEL
    threads = 1

    def __init__(self, program: Program, metadata: Mapping[str, Any], place: str) -> None:
        self.program = program
        self.metadata = metadata
        self.place = place
        self.inputs = tuple(Port.of(p) for p in metadata["inputs"])
        self.outputs = tuple(Port.of(p) for p in metadata["outputs"])

    @staticmethod
    def open(path: Path) -> InterpretedModel:
        """The package at `path`, its files checked by size. CUV520 to CUV523."""
        package = artifact.read_package(path)
        try:
            text = (path / artifact.PROGRAM_FILE).read_text("utf-8")
            program = Program.parse(text, read_weights(path / WEIGHTS_FILE))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, mlir.MLIRError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise fail(
                artifact.CORRUPT_PACKAGE, "the program or its weights cannot be read",
                place=str(path), evidence="\n".join(lines[:4]),
            ) from error  # fmt: skip
        return InterpretedModel(program, package.metadata, str(path))

    def run(
        self, feeds: Mapping[str, Any], out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Outputs by name, or in `out`. CUV604 to CUV606 for shapes, CUV609 for values."""
        results = self._run(feeds, Interpreter(self.program))
        for name, array in (out or {}).items():
            array[...] = results[name]
        return {**results, **(out or {})}

    def trace(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Run once and return what each launch took, as cuvil.Event."""
        from cuvil import Event  # noqa: PLC0415

        timed = _Timed(self.program, Event)
        self._run(feeds, timed)
        known = {k["name"]: k["layers"] for k in self.metadata["kernels"]}
        calls: Counter[str] = Counter()
        events = []
        for e in timed.events:  # the program's text has no layer names: the metadata has, in order
            layers = known.get(e.kernel, [])
            number = calls[e.kernel]
            events.append(e._replace(layer=layers[number] if number < len(layers) else ""))
            calls[e.kernel] += 1
        return events

    def profile(self, feeds: Mapping[str, Any], runs: int = 3) -> Any:
        """Median time of each launch, as cuvil.Profile."""
        from cuvil import Profile  # noqa: PLC0415

        return Profile.of([self.trace(feeds) for _ in range(runs)])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inputs in order, or by name; the output, or a tuple of several."""
        names = [p.name for p in self.inputs]
        results = tuple(self.run(dict(zip(names, args, strict=False)) | kwargs).values())
        return results[0] if len(results) == 1 else results

    def close(self) -> None:
        """Nothing to free; here so that callers need not ask what kind of model this is."""

    def _run(self, feeds: Mapping[str, Any], interpreter: Interpreter) -> dict[str, np.ndarray]:
        arrays = check_feeds(self.inputs, feeds, artifact.input_symbols(self.metadata), self.place)
        with self.program:
            main = self.program.function("main")
            try:
                results = interpreter.call(main, arrays)
            except CuvilError:
                raise
            except SizeError as error:
                raise fail(WRONG_SHAPE, str(error), place=self.place) from error
            except (ValueError, IndexError) as error:
                message = f"the interpreter refuses the data: {error}"
                raise fail(REFUSED_DATA, message, place=self.place) from error
            return dict(zip(ir.attrs(main)["output_names"], results, strict=True))
