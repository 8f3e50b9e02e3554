"""Attention with rows of queries that see no key: ONNX makes them 0."""

from __future__ import annotations

import numpy as np
import pytest

from tests.dialect.ops.onnx_nodes import Node

from .one_node import agree, drawn

RNG = np.random.default_rng(5)
# Row 1 is hidden by the mask, row 2 where causality hides its last keys too.
SHOWN = np.array([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]], bool)


def _mask(kind: str) -> np.ndarray:
    return SHOWN if kind == "bool" else np.where(SHOWN, 0, -np.inf).astype(np.float32)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("kind", ["float", "bool"])
def test_are_zero(tmp_path, kind, constant, causal):
    inputs = [drawn(RNG, 2, 2, 4, 8), drawn(RNG, 2, 1, 5, 8), drawn(RNG, 2, 1, 5, 3), _mask(kind)]
    node = Node("Attention", inputs, {"is_causal": causal}, opset=23)
    agree(tmp_path, node, [3] if constant else [])


def test_not_a_number_stays(tmp_path):
    """A row whose scores are NaN is no hidden one."""
    inputs = [drawn(RNG, 1, 4, 16), drawn(RNG, 1, 5, 16), drawn(RNG, 1, 5, 6), _mask("float")]
    inputs[0][0, 2, 1] = np.nan
    node = Node("Attention", inputs, {"q_num_heads": 2, "kv_num_heads": 2}, opset=23)
    agree(tmp_path, node)
