"""Small files that ask for much: each is one way to exhaust a compiler that trusts its input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_F = TensorProto.FLOAT
BOMBS: dict[str, Callable[[], bytes]] = {}
MANY = 100_000
SOME = 20_000


def bomb(function: Callable[[], onnx.ModelProto | bytes]) -> Callable[[], bytes]:
    def run() -> bytes:
        found = function()
        return found if isinstance(found, bytes) else found.SerializeToString()

    BOMBS[function.__name__.removeprefix("_")] = run
    return run


def _model(
    nodes: list[onnx.NodeProto],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    shape: tuple[int | str, ...] = (4,),
    functions: list[onnx.FunctionProto] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "main", [helper.make_tensor_value_info("x", _F, shape)],
        [helper.make_tensor_value_info(o, _F, None) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def _chain(op: str, count: int, operands: int = 1, **more: object) -> list[onnx.NodeProto]:
    names = ["x", *(f"v{i}" for i in range(count))]
    return [
        helper.make_node(op, [names[i]] * operands, [names[i + 1]], **more) for i in range(count)
    ]


@bomb
def _long_chain() -> onnx.ModelProto:
    return _model(_chain("Relu", MANY), [f"v{MANY - 1}"])


@bomb
def _long_chain_backwards() -> onnx.ModelProto:
    return _model(_chain("Abs", SOME)[::-1], [f"v{SOME - 1}"])


@bomb
def _many_constants() -> onnx.ModelProto:
    nodes = [helper.make_node("Constant", [], [f"c{i}"], value_float=float(i)) for i in range(SOME)]
    return _model([*nodes, helper.make_node("Relu", ["x"], ["y"])], ["y"])


@bomb
def _many_unknown_operators() -> onnx.ModelProto:
    nodes = [helper.make_node(f"Nothing{i}", ["x"], [f"c{i}"]) for i in range(SOME)]
    return _model(nodes, ["c0"])


@bomb
def _many_outputs() -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], [f"c{i}"]) for i in range(SOME)]
    return _model(nodes, [f"c{i}" for i in range(SOME)])


@bomb
def _wide_sum() -> onnx.ModelProto:
    return _model([helper.make_node("Sum", ["x"] * (SOME // 4), ["y"])], ["y"])


@bomb
def _wide_concat() -> onnx.ModelProto:
    return _model([helper.make_node("Concat", ["x"] * SOME, ["y"], axis=0)], ["y"])


@bomb
def _doubled_sizes() -> onnx.ModelProto:
    """2⁷⁰ elements after seventy nodes."""
    return _model(_chain("Concat", 70, 2, axis=0), ["v69"])


@bomb
def _doubled_symbols() -> onnx.ModelProto:
    """Sizes that grow as expressions: n, n + n², …"""
    nodes, at = [], "x"
    for i in range(40):
        nodes.append(helper.make_node("Shape", [at], [f"s{i}"]))
        nodes.append(helper.make_node("Mul", [f"s{i}", f"s{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [f"m{i}", f"s{i}"], [f"a{i}"]))
        nodes.append(helper.make_node("ConstantOfShape", [f"a{i}"], [f"v{i}"]))
        at = f"v{i}"
    return _model(nodes, [at], shape=("n",))


@bomb
def _functions_that_double() -> onnx.ModelProto:
    """2⁶⁰ nodes when every call is written out."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own", "f0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets
        )
    ]
    for i in range(1, 60):
        calls = [
            helper.make_node(f"f{i - 1}", ["a"], ["c"], domain="own"),
            helper.make_node(f"f{i - 1}", ["c"], ["b"], domain="own"),
        ]
        functions.append(helper.make_function("own", f"f{i}", ["a"], ["b"], calls, opsets))
    return _model([helper.make_node("f59", ["x"], ["y"], domain="own")], ["y"], functions=functions)


def _nested(depth: int) -> onnx.ModelProto:
    node = helper.make_node("Relu", ["x"], ["r"])
    for i in range(depth):
        branch = helper.make_graph(
            [node], f"g{i}", [], [helper.make_tensor_value_info(node.output[0], _F, None)]
        )
        node = helper.make_node(
            "If", ["c"], [f"o{i}"], then_branch=branch,
            else_branch=helper.make_graph(
                [helper.make_node("Abs", ["x"], ["e"])], "e", [],
                [helper.make_tensor_value_info("e", _F, None)],
            ),
        )  # fmt: skip
    return _model([node], [node.output[0]], {"c": np.array(True)})


@bomb
def _nested_branches() -> onnx.ModelProto:
    return _nested(20)


@bomb
def _nested_beyond_protobuf() -> bytes:
    """Ten thousand messages in each other; onnx's own parser stops at a hundred."""
    inner = b""
    for _ in range(10_000):  # graph.node.attribute.g
        for tag in (0x32, 0x2A, 0x0A):
            inner = bytes([tag]) + _varint(len(inner)) + inner
    return b"\x08\x0a" + b"\x3a" + _varint(len(inner)) + inner + b"\x42\x02\x10\x11"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@bomb
def _nested_types() -> onnx.ModelProto:
    model = _model([helper.make_node("Identity", ["x"], ["y"])], ["y"])
    at = model.graph.input[0].type
    for _ in range(40):
        at = at.sequence_type.elem_type
    at.tensor_type.elem_type = _F
    return model


@bomb
def _huge_constant_of_shape() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("Relu", ["c"], ["y"])
    ]  # fmt: skip
    return _model(nodes, ["y"], {"s": np.array([1 << 20, 1 << 20], np.int64)})


@bomb
def _huge_range() -> onnx.ModelProto:
    weights = {k: np.array(v, np.int64) for k, v in (("a", 0), ("b", 1 << 45), ("c", 1))}
    return _model([helper.make_node("Range", ["a", "b", "c"], ["y"])], ["y"], weights)


@bomb
def _huge_tile() -> onnx.ModelProto:
    return _model([helper.make_node("Tile", ["x", "r"], ["y"])], ["y"],
                  {"r": np.array([1 << 50], np.int64)})  # fmt: skip


@bomb
def _huge_pad() -> onnx.ModelProto:
    return _model([helper.make_node("Pad", ["x", "p"], ["y"])], ["y"],
                  {"p": np.array([1 << 40, 1 << 62], np.int64)})  # fmt: skip


@bomb
def _huge_kernel() -> onnx.ModelProto:
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[1 << 40], pads=[1 << 40, 1 << 40]
    )
    return _model([node], ["y"], shape=(1, 1, 8))


@bomb
def _folded_constants_that_grow() -> onnx.ModelProto:
    """Constants alone, each step doubling: what folds them must not."""
    nodes = [helper.make_node("Concat", ["w", "w"], ["v0"], axis=0)]
    nodes += [helper.make_node("Concat", [f"v{i}", f"v{i}"], [f"v{i + 1}"], axis=0)
              for i in range(30)]  # fmt: skip
    nodes.append(helper.make_node("ReduceSum", ["v30"], ["t"]))
    nodes.append(helper.make_node("Add", ["x", "t"], ["y"]))
    return _model(nodes, ["y"], {"w": np.ones(4, np.float32)})


@bomb
def _many_ranks() -> onnx.ModelProto:
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    return _model([node], ["y"], {"s": np.array([4] + [1] * 5000, np.int64)})


@bomb
def _long_equation() -> onnx.ModelProto:
    node = helper.make_node("Einsum", ["x"] * 400, ["y"], equation=",".join(["a"] * 400) + "->a")
    return _model([node], ["y"])


@bomb
def _many_trips() -> onnx.ModelProto:
    body = helper.make_graph(
        [helper.make_node("Relu", ["v"], ["w"]), helper.make_node("Identity", ["c"], ["k"])],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("c", TensorProto.BOOL, []),
         helper.make_tensor_value_info("v", _F, [4])],
        [helper.make_tensor_value_info("k", TensorProto.BOOL, []),
         helper.make_tensor_value_info("w", _F, [4]), helper.make_tensor_value_info("s", _F, [4])],
    )  # fmt: skip
    body.node.append(helper.make_node("Neg", ["w"], ["s"]))
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "z"], body=body)
    return _model([node], ["y", "z"], {"n": np.array(1 << 50, np.int64)})
