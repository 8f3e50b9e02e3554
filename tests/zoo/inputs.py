"""Inputs for the zoo's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.zoo.models import Model, Shape

# onnxruntime's names for the dtypes of inputs.
DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32
}  # fmt: skip


def feeds(model: Model, shapes: Mapping[str, Shape], session: Any) -> dict[str, np.ndarray]:
    """Random inputs of these shapes, but for those whose value matters.

    session: onnxruntime's of the model, which knows the dtypes.
    """
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for info in session.get_inputs():
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
