"""Real models: imported with symbolic sizes, run at several, compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import numpy as np
import pytest

from cuvilc.dialect.interpret import interpret
from tests.tolerances import mismatch
from tests.zoo.fetch import FetchError, fetch
from tests.zoo.models import MODELS, Model, Shape

onnxruntime = pytest.importorskip("onnxruntime")
registry = import_module("cuvilc.import.registry")
# On noise this detector's sigmoid is 1e-6 to 1e-4 everywhere; onnxruntime itself errs by 1e-7.
SCALES = {"ppocrv4_det": 0.01}
_DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def feeds(model: Model, shapes: dict[str, Shape], inputs: list) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {}
    for info in inputs:
        shape, dtype = shapes[info.name], _DTYPES[info.type]
        if info.name in model.values:
            found[info.name] = np.broadcast_to(
                np.array(model.values[info.name], dtype), shape or (1,)
            )
            found[info.name] = found[info.name].reshape(shape).copy()
        elif dtype is np.float32:
            found[info.name] = rng.standard_normal(shape).astype(dtype)
        else:
            found[info.name] = rng.integers(0, model.integers_below, shape).astype(dtype)
            found[info.name].reshape(-1)[0] = (
                1  # an attention mask that hides everything means nothing
            )
    return found


def each() -> Iterator[object]:
    for model in MODELS:
        for shapes in model.inputs:
            spelled = ",".join("x".join(map(str, s)) for s in shapes.values())
            yield pytest.param(model, shapes, id=f"{model.name}-{spelled}")


@pytest.mark.parametrize(("model", "shapes"), list(each()))
def test_model_agrees_with_onnxruntime(model: Model, shapes: dict[str, Shape]) -> None:
    try:
        path = fetch(model.name)
    except FetchError as error:
        pytest.skip(str(error))
    session = onnxruntime.InferenceSession(str(path))
    inputs = feeds(model, shapes, session.get_inputs())
    program = registry.load(path)
    program.verify()
    found = interpret(program, inputs)
    for info, want in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        wrong = mismatch(found[info.name], want, scale=SCALES.get(model.name, 1e-6))
        assert not wrong, f"{info.name}: {wrong}"
