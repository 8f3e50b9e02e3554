"""Lowering facets against references, on every sample, by the strict notation in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from one_op import (
    all_samples,
    build,
    comparable,
    operand_arrays,
    operand_types,
    result_types,
    run,
)
from slow_notation import Fault, lower

from cuvilc.dialect.op import OPS
from cuvilc.dialect.types import TensorType, dtype_name

SAMPLES = [
    (name, n, s) for name, n, s in all_samples() if {"element", "term"} & set(OPS[name].facets)
]
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize(
    ("name", "n", "sample"), SAMPLES, ids=[f"{name}-{n}" for name, n, _ in SAMPLES]
)
def test_facets_mean_the_reference(name, n, sample):
    declared = OPS[name]
    attrs = declared.complete(sample.attrs)
    arrays = operand_arrays(name, sample)
    (expected,) = run(build(name, operand_types(sample), sample.attrs), arrays)
    (result,) = result_types(name, operand_types(sample), **sample.attrs)
    found = lower(declared, arrays, attrs, result)
    if not result.is_float:
        np.testing.assert_array_equal(comparable(found), comparable(expected))
        return
    tolerance = TOLERANCE[result.dtype]
    np.testing.assert_allclose(
        found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
    )


def _lower(name, *arrays, **attrs):
    declared = OPS[name]
    types = [build_type(a) for a in arrays]
    (result,) = result_types(name, types, **attrs)
    return lower(declared, arrays, declared.complete(attrs), result)


def build_type(array):
    return TensorType(array.shape, dtype_name(array.dtype))


@pytest.mark.parametrize("index", [3, -4])
def test_index_out_of_range_is_a_fault(index):
    x = np.zeros((3, 2), np.float32)
    with pytest.raises(Fault, match="index"):
        _lower("ai.gather", x, np.array([index]))
    with pytest.raises(Fault, match="index"):
        _lower("ai.gather_nd", x, np.array([[index]]))
    with pytest.raises(Fault, match="index"):
        _lower("ai.gather_elements", x, np.array([[index, 0]]))


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_integer_division_by_zero_is_a_fault(dtype):
    x, zero = np.ones(2, dtype), np.zeros(2, dtype)
    with pytest.raises(Fault, match="divide"):
        _lower("ai.elemwise_div", x, zero)
