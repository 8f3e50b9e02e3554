"""The models that operators.py times: one operator each, or a short pattern.

`op` makes a node of what it reads: other nodes, inputs (`feed`), weights (`const`). Sizes are those
of networks, odd ones among them, which no vector divides. The table of them is operator_cases.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Feeds = dict[str, np.ndarray]
DOMAINS = {"": 21, "ai.onnx.ml": 3, "com.microsoft": 1}
# Opset 23 where a node is newer than 21.
NEWER = {"Attention": 23, "RMSNormalization": 23, "RotaryEmbedding": 23}


@dataclass(eq=False)
class Array:
    """A tensor that is given; an input where `fed`, with axes of open size."""

    value: np.ndarray
    fed: bool = False
    open_axes: Sequence[int] = ()


@dataclass(eq=False)
class Node:
    """An operator's node and what it reads; `outputs`: how many results, the first is read."""

    name: str
    inputs: Sequence[Any]
    attributes: dict[str, Any]
    outputs: int = 1
    domain: str = ""


Made = Iterator[tuple[str, Callable[[], Node]]]  # cases: names, and what makes their expressions


def op(name: str, *inputs: Any, outputs: int = 1, domain: str = "", **attributes: Any) -> Node:
    """A node; an input that is None is left out."""
    return Node(name, inputs, attributes, outputs, domain)


def drawn(*shape: int, dtype: str = "float32", low: float = -2, high: float = 2) -> np.ndarray:
    """Evenly drawn; the same for the same shape."""
    rng = np.random.default_rng([len(shape), *shape])
    if np.dtype(dtype).kind in "iu":
        return rng.integers(int(low), int(high), shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def feed(*shape: int, open_axes: Sequence[int] = (), **how: Any) -> Array:
    """An input, drawn."""
    return Array(drawn(*shape, **how), True, open_axes)


def const(*shape: int, **how: Any) -> Array:
    """A weight, drawn, smaller by the root of the terms that its products sum."""
    value = drawn(*shape, **how)
    if value.dtype.kind == "f" and len(shape) > 1:
        value /= np.sqrt(value.size / max(shape[0], 1)).astype(value.dtype)
    return Array(value)


def given(value: Any, dtype: str = "int64") -> Array:
    """A weight of these values."""
    return Array(np.asarray(value, dtype))


def positive(*shape: int) -> Array:
    """A weight between 0.5 and 2."""
    return Array(drawn(*shape, low=0.5, high=2))


def model(root: Node) -> tuple[onnx.ModelProto, Feeds]:
    """The model of an expression, and its inputs' values."""
    names: dict[int, str] = {}
    nodes: list[onnx.NodeProto] = []
    inputs: list[onnx.ValueInfoProto] = []
    weights: list[onnx.TensorProto] = []
    feeds: Feeds = {}

    def visit(part: Any) -> str:
        if part is None:
            return ""
        if id(part) not in names:
            names[id(part)] = f"v{len(names)}"
            (take if isinstance(part, Array) else emit)(part)
        return names[id(part)]

    def take(array: Array) -> None:
        name = names[id(array)]
        if not array.fed:
            weights.append(numpy_helper.from_array(array.value, name))
            return
        feeds[name] = array.value
        shape = [f"s{a}" if a in array.open_axes else n for a, n in enumerate(array.value.shape)]
        kind = helper.np_dtype_to_tensor_dtype(array.value.dtype)
        inputs.append(helper.make_tensor_value_info(name, kind, shape))

    def emit(node: Node) -> None:
        read = [visit(part) for part in node.inputs]
        name = names[id(node)]
        written = [name, *(f"{name}_{n}" for n in range(1, node.outputs))]
        nodes.append(
            helper.make_node(node.name, read, written, domain=node.domain, **node.attributes)
        )

    visit(root)
    results = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    graph = helper.make_graph(nodes, "operator", inputs, results, weights)
    opset = max([DOMAINS[""], *(NEWER.get(node.op_type, 0) for node in nodes)])
    imports = [helper.make_opsetid(d, opset if d == "" else v) for d, v in DOMAINS.items()]
    made = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnx.shape_inference.infer_shapes(made), feeds
