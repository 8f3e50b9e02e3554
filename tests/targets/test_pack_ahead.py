"""Weights packed ahead of need are those that would be packed when they are asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvilc.dialect.ir import Program
from cuvilc.dialect.types import to_layout
from cuvilc.driver import BuildRequest, build
from cuvilc.targets import pack_ahead
from cuvilc.targets.pack_ahead import packed, packed_ahead


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Two products, whose matrices lie in panels, and a sum, whose vector lies as it is."""
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((96, 96), np.float32) for n in ("a", "b")}
    arrays["c"] = rng.standard_normal(96, np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("MatMul", ["p", "b"], ["q"]),
        helper.make_node("Add", ["q", "c"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 96]) for n in "xy"]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    found: Program = build(BuildRequest(tmp_path / "m.onnx", stop_after="optimise")).program
    return found


def test_what_is_packed_ahead_is_what_packing_gives(program: Program) -> None:
    with packed_ahead(program):
        ahead = list(program.packing)
        assert len(ahead) == 2
        for key, layout in ahead:
            expected = to_layout(program.weights[key], layout)
            assert layout.startswith("pack")
            np.testing.assert_array_equal(packed(program, key, layout), expected)
            np.testing.assert_array_equal(packed(program, key, layout), expected)  # once more


def test_what_is_not_asked_for_goes(program: Program) -> None:
    with packed_ahead(program):
        key, layout = next(iter(program.packing))
    assert not program.packing
    np.testing.assert_array_equal(
        packed(program, key, layout), to_layout(program.weights[key], layout)
    )


def test_what_waits_is_bounded(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_ahead, "_MOST_BYTES", 96 * 96 * 4)
    with packed_ahead(program):
        assert len(program.packing) == 1
