"""Build a model with the driver, run it with the runtime, compare with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import cuvil
import numpy as np
import onnxruntime
import pytest

from cuvilc.driver import BuildRequest, build
from tests.tolerances import mismatch


def session(path: Path) -> onnxruntime.InferenceSession:
    """The oracle, on one thread, silent."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(
    path: Path,
    folder: Path,
    cases: Sequence[Mapping[str, np.ndarray]],
    *,
    loosen: float = 1.0,
    quantised: bool = False,
) -> None:
    """The package of a model gives onnxruntime's answers for every case: at the CPU level chosen
    here on one and two threads, at the lowest level on one.
    """
    package = folder / f"{path.stem}.cuvil"
    report = build(BuildRequest(path, package, vectors=0))
    assert report.metadata
    lowest = report.metadata["target"]["levels"][-1]["name"]
    oracle = session(path)
    names = [output.name for output in oracle.get_outputs()]
    wanted = [dict(zip(names, oracle.run(None, dict(case)), strict=True)) for case in cases]
    wrong: list[str] = []
    for threads, level in ((1, None), (2, None), (1, lowest)):
        model = cuvil.load(package, threads=threads, level=level)
        for case, want in zip(cases, wanted, strict=True):
            found = model.run(case)
            shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in case.items())
            for name in names:
                if difference := mismatch(found[name], want[name], quantised, loosen):
                    where = f"{model.level}, {threads} threads"
                    wrong.append(f"{name} of {shapes}, {where}: {difference}")
        model.close()
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
