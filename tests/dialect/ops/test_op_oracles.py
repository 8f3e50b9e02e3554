"""References against onnxruntime (or onnx's evaluator) on every sample that ONNX can express."""

from __future__ import annotations

import numpy as np
import onnx_nodes_sampling  # noqa: F401  (its nodes)
import pytest
from one_op import all_samples, build, comparable, operand_arrays, operand_types, run
from onnx_nodes import NODES, expected

from cuvilc.dialect.op import OPS

SAMPLES = [(name, n, s) for name, n, s in all_samples() if name in NODES]
TOLERANCE = {"float64": 1e-9, "float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the evaluator's own


def compare(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Equal shapes and dtypes; equal integers; floats within their dtype's tolerance."""
    assert ours.shape == theirs.shape
    assert ours.dtype.name == theirs.dtype.name
    if ours.dtype.name not in TOLERANCE:
        np.testing.assert_array_equal(comparable(ours), comparable(theirs))
        return
    tolerance = TOLERANCE[ours.dtype.name]
    np.testing.assert_allclose(
        ours.astype(np.float64), theirs.astype(np.float64), rtol=4 * tolerance, atol=tolerance
    )


@pytest.mark.parametrize(
    ("name", "n", "sample"), SAMPLES, ids=[f"{name}-{n}" for name, n, _ in SAMPLES]
)
def test_reference_agrees_with_onnx(name, n, sample):
    arrays = operand_arrays(name, sample)
    node = NODES[name](arrays, OPS[name].complete(sample.attrs))
    if node is None:
        pytest.skip("ONNX has no operator for this sample")
    ours = run(build(name, operand_types(sample), sample.attrs), arrays)
    for a, b in zip(ours, expected(node), strict=True):
        compare(a, np.asarray(b))
