"""Quantised models run in integers and agree with onnxruntime: sums bit by bit, QDQ by a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuvil
import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented

from cuvilc.dialect import ir
from cuvilc.driver import BuildRequest, build
from cuvilc.targets.x86 import CHIPS, runs_here
from tests.tolerances import REWRITTEN

from .builders import model, saved, tensor

CODES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
LEVELS = ("x86-64-v4-vnni", "x86-64-v4", "x86-64-v3", "x86-64-v2")
SUMS = {"ai.matmul_integer", "ai.conv_integer"}
node = helper.make_node


def reference(proto: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """onnxruntime's results, or of onnx's reference where it has no kernel for the dtypes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except NotImplemented:
        return list(ReferenceEvaluator(proto).run(None, feeds))
    return list(session.run(None, feeds))


def agrees(folder: Path, proto: Any, feeds: dict[str, np.ndarray], steps: int, elem: int) -> None:
    """On every CPU level that this machine has; no float product is left. `elem`: of the output."""
    proto.graph.output[0].type.tensor_type.elem_type = elem
    path, package = saved(folder, proto), folder / "m.cuvil"
    report = build(BuildRequest(model=path, output=package, cpu="+".join(LEVELS), vectors=0))
    with report.program:
        main = [o.name for f in report.program.functions() for o in ir.walk(ir.body(f))]
    assert SUMS & set(main)
    assert not {"ai.matmul", "ai.conv"} & set(main)
    (wanted,) = reference(proto, feeds)
    for level in LEVELS:
        if not runs_here(CHIPS[level]):
            continue
        (found,) = cuvil.load(package, level=level).run(feeds).values()
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        if found.dtype == np.float32:
            assert np.abs(found - wanted).max() <= REWRITTEN * np.abs(wanted).max()
        else:
            assert np.abs(found.astype(np.int64) - wanted).max() <= steps, level


class Case:
    """Random levels, scales and zero points, by seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.weights: dict[str, np.ndarray] = {}

    def code(self) -> str:
        return str(self.rng.choice(list(CODES)))

    def levels(self, shape: Any, code: str) -> np.ndarray:
        return self.rng.integers(0, 256, shape, np.uint8).view(code)

    def number(self, low: float, high: float, shape: Any = ()) -> np.ndarray:
        return np.asarray(self.rng.uniform(low, high, shape), np.float32)

    def conv(self) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        r = self.rng
        groups = int(r.choice([1, 1, 2, 5]))
        channels, outputs = (1, 1) if groups == 5 else (int(r.integers(1, 18)), 8)
        kernel, size = r.integers(1, 4, 2), r.integers(6, 12, 2)
        attrs = {
            "pads": r.integers(0, 3, 4).tolist(), "strides": r.integers(1, 3, 2).tolist(),
            "dilations": r.integers(1, 3, 2).tolist(), "group": groups,
        }  # fmt: skip
        x = self.levels((2, channels * groups, *size), self.code())
        w = self.levels((outputs * groups, channels, *kernel), self.code())
        return x, w, attrs


@pytest.mark.parametrize("seed", range(4))
def test_qlinear_conv(tmp_path: Path, seed: int) -> None:
    c = Case(seed)
    x, w, attrs = c.conv()
    w = w.view(np.int8)  # with uint8 weights onnxruntime has no kernel for int8 inputs
    per_channel = (len(w),) if seed % 2 else ()
    weights = {
        "xs": c.number(0.01, 0.1), "xz": c.levels((), x.dtype.name), "w": w,
        "ws": c.number(0.002, 0.01, per_channel), "wz": np.zeros(per_channel, np.int8),
        "ys": c.number(0.1, 0.9), "yz": c.levels((), x.dtype.name),
        "b": c.rng.integers(-9999, 9999, len(w)).astype(np.int32),
    }  # fmt: skip
    nodes = [node("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"],
                  **attrs)]  # fmt: skip
    inputs = [tensor("x", x.shape, CODES[x.dtype.name])]
    elem = CODES[x.dtype.name]
    agrees(tmp_path, model(nodes, inputs, ["y"], weights), {"x": x}, 0, elem)


@pytest.mark.parametrize("seed", range(3))
def test_conv_integer(tmp_path: Path, seed: int) -> None:
    c = Case(seed)
    x, w, attrs = c.conv()
    weights = {"w": w, "xz": c.levels((), x.dtype.name), "wz": c.levels((), w.dtype.name)}
    if attrs["group"] == 2:  # with a zero point of weights in groups the sums are not plain
        weights["wz"] = np.asarray(128 if w.dtype == np.uint8 else 0, w.dtype)
    nodes = [node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], **attrs)]
    inputs = [tensor("x", x.shape, CODES[x.dtype.name])]
    agrees(tmp_path, model(nodes, inputs, ["y"], weights), {"x": x}, 0, TensorProto.INT32)


def test_conv_integer_padded_to_a_size_known_later(tmp_path: Path) -> None:
    c = Case(9)
    x, w = c.levels((1, 3, 7, 8), "uint8"), c.levels((5, 3, 3, 3), "int8")
    weights = {"w": w, "xz": np.asarray(77, np.uint8)}
    attrs = {"auto_pad": "SAME_UPPER", "strides": [2, 2]}
    nodes = [node("ConvInteger", ["x", "w", "xz"], ["y"], **attrs)]
    inputs = [tensor("x", (1, 3, "h", "w"), TensorProto.UINT8)]
    proto = model(nodes, inputs, ["y"], weights)
    agrees(tmp_path, proto, {"x": x}, 0, TensorProto.INT32)


@pytest.mark.parametrize("seed", range(4))
def test_products(tmp_path: Path, seed: int) -> None:
    """MatMulInteger and QLinearMatMul of constants and of two inputs."""
    c = Case(seed)
    m, k, n = (int(v) for v in c.rng.integers(1, 40, 3))
    a, b = c.levels((2, m, k), c.code()), c.levels((k, n), c.code())
    weights = {"az": c.levels((), a.dtype.name), "bz": c.levels((), b.dtype.name)}
    inputs, feeds = [tensor("a", a.shape, CODES[a.dtype.name])], {"a": a}
    if seed % 2:
        weights["b"] = b
    else:
        inputs.append(tensor("b", b.shape, CODES[b.dtype.name]))
        feeds["b"] = b
    nodes = [node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])]
    agrees(tmp_path, model(nodes, inputs, ["y"], weights), feeds, 0, TensorProto.INT32)
    weights |= {
        "as": c.number(0.01, 0.1), "bs": c.number(0.01, 0.1), "ys": c.number(1, 3),
        "yz": c.levels((), a.dtype.name),
    }  # fmt: skip
    nodes = [node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])]
    agrees(tmp_path, model(nodes, inputs, ["y"], weights), feeds, 0, CODES[a.dtype.name])


def test_conv_of_one_channel(tmp_path: Path) -> None:
    """A group and yet the whole: its weights are packed as others are."""
    c = Case(3)
    x, w = c.levels((2, 1, 6, 9), "uint8"), c.levels((1, 1, 2, 3), "uint8")
    weights = {"w": w, "xz": np.asarray(77, np.uint8), "wz": np.asarray(128, np.uint8)}
    nodes = [node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], pads=[1, 0, 1, 2])]
    inputs = [tensor("x", x.shape, TensorProto.UINT8)]
    agrees(tmp_path, model(nodes, inputs, ["y"], weights), {"x": x}, 0, TensorProto.INT32)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_weights_of_four_bits(tmp_path: Path, dtype: str) -> None:
    """Bytes times levels of four bits are sums of bytes too."""
    c = Case(8)
    kind = np.dtype(getattr(ml_dtypes, dtype))
    weights = {
        "xs": np.float32(0.03), "xz": np.uint8(121), "ys": np.float32(0.31), "yz": np.int8(3),
        "w": c.rng.integers(0, 8, (12, 5, 3, 2)).astype(kind),
        "ws": c.number(0.01, 0.1, 12), "wz": c.rng.integers(0, 8, 12).astype(kind),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["e"], axis=0),
        node("Conv", ["d", "e"], ["m"]),
        node("QuantizeLinear", ["m", "ys", "yz"], ["y"]),
    ]
    proto = model(nodes, [tensor("x", (2, 5, 7, 6))], ["y"], weights, opset=21)
    agrees(tmp_path, proto, {"x": c.number(-3, 3, (2, 5, 7, 6))}, 1, TensorProto.INT8)


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_a_bias_a_column_or_a_row(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Of a square product both are in the unit of its columns, but one lies along its rows."""
    c = Case(4)
    weights = {
        "xs": np.float32(0.03), "xz": np.uint8(121), "w": c.levels((9, 6), "int8"),
        "ws": c.number(0.01, 0.1, 6), "b": c.rng.integers(-9999, 9999, shape).astype(np.int32),
    }  # fmt: skip
    weights["bs"] = weights["xs"] * weights["ws"]
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        node("DequantizeLinear", ["w", "ws"], ["e"], axis=1),
        node("DequantizeLinear", ["b", "bs"], ["f"], axis=0),
        node("MatMul", ["d", "e"], ["m"]),
        node("Add", ["m", "f"], ["y"]),
    ]
    proto = model(nodes, [tensor("x", (6, 9))], ["y"], weights)
    agrees(tmp_path, proto, {"x": c.number(-3, 3, (6, 9))}, 0, TensorProto.FLOAT)


class Layers(Case):
    """Nodes of a QDQ model: each method gives the name of the dequantised tensor."""

    def __init__(self, seed: int, code: str) -> None:
        super().__init__(seed)
        self.kind = code
        self.nodes: list[Any] = []

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(node(op, inputs, [output], **attributes))
        return output

    def quantised(self, name: str, scale: float) -> str:
        self.weights[f"{name}.s"] = np.float32(scale)
        self.weights[f"{name}.z"] = self.levels((), self.kind) // 4
        return self.stored(name)

    def stored(self, name: str) -> str:
        """Quantised and dequantised by the scale and zero point of the name."""
        levels = self.add("QuantizeLinear", [name, f"{name}.s", f"{name}.z"], f"{name}.q")
        return self.add("DequantizeLinear", [levels, f"{name}.s", f"{name}.z"], f"{name}.d")

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        self.weights[name] = self.levels(shape, "int8")
        self.weights[f"{name}.s"] = self.number(0.001, 0.003, shape[:1])
        self.weights[f"{name}.z"] = np.zeros(shape[0], np.int8)
        inputs = [name, f"{name}.s", f"{name}.z"]
        return self.add("DequantizeLinear", inputs, f"{name}.d", axis=0)

    def bias(self, name: str, x: str, w: str) -> str:
        self.weights[name] = self.rng.integers(-999, 999, len(self.weights[w])).astype(np.int32)
        self.weights[f"{name}.s"] = self.weights[f"{x}.s"] * self.weights[f"{w}.s"]
        return self.add("DequantizeLinear", [name, f"{name}.s"], f"{name}.d", axis=0)


@pytest.mark.parametrize("seed", range(3))
def test_residual_block(tmp_path: Path, seed: int) -> None:
    """Quantise → conv → relu → conv → add → pool → Gemm, dequantised: as exporters write it."""
    code, channels = ("uint8", "int8")[seed % 2], 20
    c = Layers(seed, code)
    pads = {"pads": [1, 1, 1, 1]}
    x, w = c.quantised("x", 0.02), c.weight("w1", (channels, 3, 3, 3))
    c.add("Conv", [x, w, c.bias("b1", "x", "w1")], "c1", **pads)
    c.add("Relu", ["c1"], "r1")
    first, w = c.quantised("r1", 0.03), c.weight("w2", (channels, channels, 3, 3))
    c.add("Conv", [first, w, c.bias("b2", "r1", "w2")], "c2", **pads)
    c.add("Add", [c.quantised("c2", 0.05), first], "sum")
    c.add("MaxPool", [c.quantised("sum", 0.06)], "p", kernel_shape=[2, 2], strides=[2, 2])
    c.weights["p.s"], c.weights["p.z"] = c.weights["sum.s"], c.weights["sum.z"]
    flat, w = c.add("Flatten", [c.stored("p")], "flat"), c.weight("w3", (7, channels * 12))
    c.add("Gemm", [flat, w, c.bias("b3", "sum", "w3")], "y", transB=1)
    c.weights["y.s"] = np.float32(0.3)
    c.add("QuantizeLinear", ["y", "y.s", "x.z"], "z")
    feeds = {"x": c.number(-3, 3, (2, 3, 8, 6))}
    proto = model(c.nodes, [tensor("x", (2, 3, 8, 6))], ["z"], c.weights)
    agrees(tmp_path, proto, feeds, 1, CODES[code])


def test_dynamic(tmp_path: Path) -> None:
    """What quantize_dynamic writes, for any number of rows."""
    c = Case(5)
    weights = {
        "w": c.levels((40, 24), "int8"), "wz": np.zeros((), np.int8), "ws": c.number(0.01, 0.02),
        "b": c.number(-1, 1, 24),
    }  # fmt: skip
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z", "wz"], ["n"]),
        node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["s", "ws"], ["unit"]),
        node("Mul", ["f", "unit"], ["m"]),
        node("Add", ["m", "b"], ["y"]),
    ]
    proto = model(nodes, [tensor("x", ("rows", 40))], ["y"], weights)
    agrees(tmp_path, proto, {"x": c.number(-2, 3, (13, 40))}, 0, TensorProto.FLOAT)


def test_levels_only_where_they_differ(tmp_path: Path) -> None:
    """A float model has no level with VNNI; a quantised one shares its float kernels' code."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"])]
    weights = {"w": np.ones((8, 8), np.float32)}
    proto = model(nodes, [tensor("x", (3, 8))], ["y"], weights)
    report = build(BuildRequest(model=saved(tmp_path, proto), output=tmp_path / "f", vectors=0))
    names = [level["name"] for level in report.metadata["target"]["levels"]]
    assert names == ["x86-64-v4", "x86-64-v3"]
    weights = {"w": np.ones((8, 8), np.int8), "s": np.float32(0.1), "z": np.uint8(3)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "s"], ["e"]),
        node("MatMul", ["d", "e"], ["m"]),
        node("Softmax", ["m"], ["y"]),
    ]
    proto = model(nodes, [tensor("x", (3, 8))], ["y"], weights)
    report = build(BuildRequest(model=saved(tmp_path, proto), output=tmp_path / "q", vectors=0))
    names = [level["name"] for level in report.metadata["target"]["levels"]]
    assert names == ["x86-64-v4-vnni", "x86-64-v4", "x86-64-v3"]
    sizes = {k["name"]: k["code_bytes"] for k in report.metadata["kernels"]}
    (softmax,) = (v for k, v in sizes.items() if k.startswith("softmax"))
    (product,) = (v for k, v in sizes.items() if k.startswith("matmul"))
    assert softmax["x86-64-v4-vnni"] == softmax["x86-64-v4"]
    assert product["x86-64-v4-vnni"] != product["x86-64-v4"]
