"""Run a random model by cuvilc and by the references; say what differs."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from cuvilc.diagnostics import CODES, CuvilError
from cuvilc.dialect.interpret import interpret
from cuvilc.driver import BuildRequest, build
from cuvilc.open_package import open_package
from tests.properties.draws import Case
from tests.tolerances import LEAST_SCALE, mismatch


def by_interpreter(case: Case) -> dict[str, np.ndarray]:
    """The model imported, its program run by the interpreter."""
    registry = import_module("cuvilc.import.registry")
    with TemporaryDirectory(prefix="cuvil-case-") as folder:
        path = Path(folder) / "case.onnx"
        path.write_bytes(case.model.SerializeToString())
        return dict(interpret(registry.load(path), case.feeds))


def by_package(case: Case) -> dict[str, np.ndarray]:
    """The model built for this machine, its package run by the runtime."""
    with TemporaryDirectory(prefix="cuvil-case-") as folder:
        source, package = Path(folder) / "case.onnx", Path(folder) / "case.cuvil"
        source.write_bytes(case.model.SerializeToString())
        build(BuildRequest(source, package, target="x86", cpu="host", jobs=1, vectors=0))
        loaded = open_package(package, threads=1)
        try:
            return dict(loaded.run(case.feeds))
        finally:
            loaded.close()


def by_onnxruntime(case: Case) -> dict[str, Any]:
    """onnxruntime's answer, its optimiser off. Whatever it raises, it has none."""
    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, case.feeds), strict=True))


def by_onnx(case: Case) -> dict[str, Any]:
    """The answer of onnx's reference evaluator."""
    names = [o.name for o in case.model.graph.output]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = ReferenceEvaluator(case.model).run(None, case.feeds)
    return dict(zip(names, (np.asarray(f) for f in found), strict=True))


_REFERENCES = {
    "onnxruntime": (by_onnxruntime,),
    "onnx": (by_onnx,),
    "both": (by_onnxruntime, by_onnx),
}


def answers(case: Case) -> list[dict[str, Any]]:
    """What the references say; those that raise say nothing."""
    found = []
    for run in _REFERENCES[case.reference]:
        try:
            found.append(run(case.twin or case))
        except Exception:  # theirs to refuse, in whatever way
            continue
    return found


def refused(error: CuvilError) -> str:
    """The first diagnostic's text; re-raises what is cuvilc's own fault."""
    first = error.diagnostics[0]
    if CODES[first.code].exit_code == 3:
        raise error
    return f"{first.code} {first.message}"


def different(case: Case, found: dict[str, np.ndarray], wanted: list[dict[str, Any]]) -> str:
    """How `found` differs from every answer; nothing if one agrees."""
    reasons = []
    for answer in wanted:
        wrong = _one(case, found, answer)
        if not wrong:
            return ""
        reasons.append(wrong)
    return "; ".join(reasons)


def _one(case: Case, found: dict[str, np.ndarray], wanted: dict[str, Any]) -> str:
    for name, value in wanted.items():
        got, want = np.asarray(found[name]), np.asarray(value)
        wrong = mismatch(got, want, quantised=case.quantised, scale=LEAST_SCALE)
        if wrong:
            return f"{name}: {wrong}: {got.reshape(-1)[:6]} not {want.reshape(-1)[:6]}"
    return ""
