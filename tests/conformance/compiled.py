"""Build a case's model with the driver, load the package, run it, compare."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cuvilc.diagnostics import CODES, CuvilError
from cuvilc.driver import BuildRequest, build
from cuvilc.open_package import open_package
from tests.conformance.cases import onnx_cases


def run_case(case: Any, target: str = "x86") -> Any:
    """The outcome of a case. A diagnostic that puts the fault on the model is a refusal."""
    try:
        try:
            wrong = _run(case, case.model, target)
        except CuvilError as error:
            if not any(d.code in onnx_cases.FREEZING for d in error.diagnostics):
                raise
            wrong = _run(case, onnx_cases.freeze_small_inputs(case), target)
    except CuvilError as error:
        first = error.diagnostics[0]
        kind = "failed" if CODES[first.code].exit_code == 3 else "refused"
        return case.outcome(kind, f"{first.code} {first.message}")
    except Exception as error:
        return case.outcome("failed", f"{type(error).__name__}: {error}".splitlines()[0])
    return case.outcome("failed", wrong) if wrong else case.outcome("passed")


def _run(case: Any, model: Any, target: str) -> str:
    """What differs, or nothing."""
    with TemporaryDirectory(prefix="cuvil-case-") as folder:
        source, package = Path(folder) / "case.onnx", Path(folder) / "case.cuvil"
        source.write_bytes(model.SerializeToString())
        build(
            BuildRequest(
                source, package, target=target, cpu=_cpu(target), jobs=1, vectors=0,
                shapes=onnx_cases.ranks(case), elements=onnx_cases.elements(case),
            )
        )  # fmt: skip
        loaded = open_package(package, threads=1)
        try:
            names = {port.name for port in loaded.inputs}
            for inputs, wanted in case.data:
                given = onnx_cases.tensors(inputs)
                found = loaded.run({k: v for k, v in given.items() if k in names})
                if wrong := onnx_cases.difference(case, found, wanted):
                    return wrong
        finally:
            loaded.close()
    return ""


def _cpu(target: str) -> str:
    return "host" if target == "x86" else ""
