"""Types, their text, and layouts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuvilc.dialect import op
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.ir import Program
from cuvilc.dialect.types import DTYPES, TensorType, from_layout, to_layout

N = symbol("n")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (N, 4), (2 * N + 1, 20, 3, 5)])
@pytest.mark.parametrize("layout", ["", "NCHW16c"])
def test_types_survive_mlir(dtype, shape, layout):
    if layout and len(shape) != 4:
        shape = (N, 20, 3, 5)
    t = TensorType(shape, dtype, layout)
    with Program.create("p"):
        table = op.current_types()
        spelled = table.to_mlir(t)
        fresh = type(table)()
        assert fresh.from_mlir(spelled) == t


def test_a_dynamic_dimension_needs_its_name():
    with pytest.raises(Exception, match="needs its name"):
        Program.parse(
            "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {"
            '%0 = "ai.relu"(%x) : (tensor<?xf32>) -> tensor<?xf32>\n return %0 : tensor<?xf32> }'
        )


@given(
    st.integers(1, 70),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from(["pack0_32", "pack0_16"]),
)
def test_packed_weights_round_trip(outs, ins, size, layout):
    w = np.random.default_rng(0).standard_normal((outs, ins, size, size))
    packed = to_layout(w, layout)
    assert packed.shape == TensorType(w.shape, "float64", layout).physical_shape
    assert np.array_equal(from_layout(packed, layout, w.shape), w)
    assert packed.sum() == pytest.approx(w.sum())  # the filled-up tail is zeros


@given(
    st.integers(0, 70),
    st.integers(0, 5),
    st.integers(1, 4),
    st.sampled_from(["dot0_32x2", "dot0_32x4"]),
)
def test_weights_in_groups_round_trip(outs, ins, size, layout):
    w = np.random.default_rng(0).standard_normal((outs, ins, size, size))
    for held in (w, w[:, :, 0, 0]):
        packed = to_layout(held, layout)
        assert packed.shape == TensorType(held.shape, "float64", layout).physical_shape
        assert np.array_equal(from_layout(packed, layout, held.shape), held)


@given(st.integers(1, 40), st.integers(1, 70))
def test_packed_matrix_columns(rows, columns):
    b = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    packed = to_layout(b, "pack1_32")
    j = columns - 1
    assert np.array_equal(packed[j // 32, :, j % 32], b[:, j])


def test_blocked_channels():
    x = np.arange(2 * 20 * 3 * 4).reshape(2, 20, 3, 4)
    blocked = to_layout(x, "NCHW16c")
    assert blocked.shape == (2, 2, 3, 4, 16)
    assert np.array_equal(blocked[:, 1, :, :, 3], x[:, 19])
    assert np.array_equal(from_layout(blocked, "NCHW16c", x.shape), x)
