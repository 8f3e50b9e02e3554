"""Real models: imported with symbolic sizes, run at several, compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest

from cuvilc.dialect.interpret import interpret
from tests.tolerances import mismatch
from tests.zoo.fetch import FetchError, fetch
from tests.zoo.inputs import feeds
from tests.zoo.models import MODELS, Model, Shape

onnxruntime = pytest.importorskip("onnxruntime")
registry = import_module("cuvilc.import.registry")
# On noise this detector's sigmoid is 1e-6 to 1e-4 everywhere; onnxruntime itself errs by 1e-7.
SCALES = {"ppocrv4_det": 0.01}


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
    inputs = feeds(model, shapes, session)
    program = registry.load(path)
    program.verify()
    found = interpret(program, inputs)
    for info, want in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        wrong = mismatch(found[info.name], want, scale=SCALES.get(model.name, 1e-6))
        assert not wrong, f"{info.name}: {wrong}"
