"""Valid models that mutations start from: every construct of ONNX that the importer reads."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.conformance.cases import all_cases

_F, _I, _B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_CACHE: list[bytes] = []


def seed_model(random: Random) -> onnx.ModelProto:
    """One of the suite's small models, or one of those below, which the suite has nothing like."""
    if not _CACHE:
        small = (c.model for c in all_cases().values() if c.category != "light")
        _CACHE.extend(m.SerializeToString() for m in small)
    if random.random() < 0.3:
        return random.choice(_OWN)(random)
    return onnx.ModelProto.FromString(random.choice(_CACHE))


def _info(name: str, shape: list[int | str] | None, elem: int = _F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "main", inputs, [_info(o, None) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1),
              helper.make_opsetid("com.microsoft", 1)]  # fmt: skip
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def _network(random: Random) -> onnx.ModelProto:
    """Convolution, normalisation, residual, pooling, matrix product, with a batch of any size."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        **{k: np.ones(4, np.float32) for k in ("s", "b", "m", "v")},
        "f": rng.standard_normal((4, 5)).astype(np.float32),
        "shape": np.array([0, -1], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Add", ["r", "c"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("Reshape", ["g", "shape"], ["h"]),
        helper.make_node("Gemm", ["h", "f"], ["y"]),
    ]
    return _model(nodes, [_info("x", ["batch", 3, 8, 8])], ["y"], weights)


def _sizes(random: Random) -> onnx.ModelProto:
    """Arithmetic on sizes: Shape, Gather, Concat, Reshape, Slice, Expand."""
    weights = {"zero": np.array(0, np.int64), "one": np.array([1], np.int64),
               "minus": np.array([-1], np.int64), "two": np.array([2], np.int64)}  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "one"], ["n1"])
        if random.random() < 0.1
        else helper.make_node("Reshape", ["n", "one"], ["n1"]),
        helper.make_node("Concat", ["n1", "minus", "two"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["r"]),
        helper.make_node("Slice", ["r", "one", "minus", "one"], ["z"]),
        helper.make_node("Range", ["zero", "n", "one0"], ["i"]),
        helper.make_node("ConstantOfShape", ["n1"], ["o"]),
    ]
    weights["one0"] = np.array(1, np.int64)
    return _model(nodes, [_info("x", ["n", "m", 4])], ["z", "i", "o"], weights)


def _branches(random: Random) -> onnx.ModelProto:
    """If in If, with outer values."""

    def graph(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [_info(node.output[0], None)])

    inner = helper.make_node(
        "If", ["d"], ["i"],
        then_branch=graph("a", helper.make_node("Relu", ["x"], ["p"])),
        else_branch=graph("b", helper.make_node("Neg", ["x"], ["q"])),
    )  # fmt: skip
    outer = helper.make_node(
        "If", ["c"], ["y"], then_branch=graph("t", inner),
        else_branch=graph("e", helper.make_node("Abs", ["x"], ["r"])),
    )  # fmt: skip
    return _model([outer], [_info("x", [2, 3]), _info("c", [], _B), _info("d", [], _B)], ["y"])


def _loop(random: Random) -> onnx.ModelProto:
    """A Loop with a carried value and a scan output."""
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "x"], ["w"]), helper.make_node("Identity", ["c"], ["k"])],
        "body", [_info("i", [], _I), _info("c", [], _B), _info("v", [2])],
        [_info("k", [], _B), _info("w", [2]), _info("w", [2])],
    )  # fmt: skip
    body.output[2].name = "scan"
    body.node.append(helper.make_node("Relu", ["w"], ["scan"]))
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "z"], body=body)
    return _model([node], [_info("x", [2])], ["y", "z"], {"n": np.array(3, np.int64)})


def _functions(random: Random) -> onnx.ModelProto:
    """Model-local functions that call each other."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    first = helper.make_function(
        "own", "first", ["a"], ["b"],
        [helper.make_node("Add", ["a", "a"], ["c"]), helper.make_node("Relu", ["c"], ["b"])],
        opsets,
    )  # fmt: skip
    second = helper.make_function(
        "own", "second", ["a"], ["b"],
        [helper.make_node("first", ["a"], ["c"], domain="own"),
         helper.make_node("first", ["c"], ["b"], domain="own")], opsets,
    )  # fmt: skip
    node = helper.make_node("second", ["x"], ["y"], domain="own")
    return _model([node], [_info("x", ["n"])], ["y"], functions=[first, second])


def _quantised(random: Random) -> onnx.ModelProto:
    weights = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8),
               "w": np.ones((4, 4), np.uint8), "b": np.ones((4, 1, 16), np.uint8),
               "scale": np.ones(4, np.float32)}  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "s", "z"], ["m"]),
        helper.make_node("DequantizeLinear", ["m", "s", "z"], ["d"]),
        helper.make_node("Pad", ["d", "pads"], ["p"]),
        helper.make_node("MatMulNBits", ["p", "b", "scale"], ["y"], domain="com.microsoft",
                         K=32, N=4, bits=4, block_size=32),
    ]  # fmt: skip
    weights["pads"] = np.array([0, 0, 0, 28], np.int64)
    return _model(nodes, [_info("x", ["n", 4])], ["y"], weights)


_OWN = (_network, _sizes, _branches, _loop, _functions, _quantised)
