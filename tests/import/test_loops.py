"""What the importer refuses of loops, and that nested ones cost little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from .builders import FLOAT, load, model, node, refusal, saved, tensor

INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def body(
    nodes: list[onnx.NodeProto],
    carried: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    level: int = 0,
) -> onnx.GraphProto:
    go, after = f"go{level}", f"next{level}"
    return helper.make_graph(
        [*nodes, node("Identity", go, after)], f"body{level}",
        [tensor(f"i{level}", [], INT64), tensor(go, [], BOOL), *carried],
        [tensor(after, [], BOOL), *outputs],
    )  # fmt: skip


def port(name: str, elem: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, None)


def looped(inner: onnx.GraphProto, outputs: str = "y") -> onnx.ModelProto:
    nodes = [helper.make_node("Loop", ["trips", "", "x"], outputs.split(), "loop", body=inner)]
    return model(nodes, [tensor("x", [2])], outputs.split(), {"trips": np.array(3)})


REFUSED = {
    "carried value 0 begins as f32[2] and goes on as f32[1,2]": looped(
        body([node("Unsqueeze", "s zero", "t")], [port("s")], [port("t")])
    ),
    "carried value 0 begins as f32[2] and goes on as i64[2]": looped(
        body([node("Cast", "s", "t", to=INT64)], [port("s")], [port("t", INT64)])
    ),
    "the body takes 2 values and gives 1, the node has 3 and 3": looped(body([], [], []), "y z"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str, tmp_path: Path) -> None:
    proto = REFUSED[message]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    error = refusal(saved(tmp_path, proto)).diagnostics[0]
    assert error.code == "CUV110"
    assert message in error.message
    assert "`loop`" in error.message


def test_deep_nests_are_imported_once_a_level(tmp_path: Path) -> None:
    """Growing values make each level's body be imported again; what is learned of it is kept."""
    inner = body([node("Concat", "s0 x", "t0", axis=0)], [port("s0")], [port("t0")])
    for level in range(1, 12):
        s, t = f"s{level}", f"t{level}"
        loop = helper.make_node("Loop", ["trips", "", s], [t], f"loop{level}", body=inner)
        inner = body([loop], [port(s)], [port(t)], level)
    program = load(tmp_path, looped(inner))
    program.verify()
    assert program.text().count('"ai.loop"') == 12
