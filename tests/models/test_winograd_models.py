"""Networks of 3×3 convolutions, whose weights are prepared when the package is opened."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvilc.driver import BuildRequest, build
from tests.models import agree
from tests.tolerances import mismatch

RNG = np.random.default_rng(7)


class Network:
    """Layers one after the other, as an ONNX graph."""

    def __init__(self, shape: list[Any]) -> None:
        self.shape = shape
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.last = "x"

    def node(self, kind: str, *operands: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(operands), [name], name=name, **attrs))
        self.last = name
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        scale = np.sqrt(np.prod(shape[1:]) or 1)
        array = (RNG.standard_normal(shape) / scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(
        self, channels: int, outputs: int, pads: tuple[int, ...] = (1, 1, 1, 1), stride: int = 1,
        window: tuple[int, ...] = (3, 3),
    ) -> str:  # fmt: skip
        operands = (self.last, self.weight(outputs, channels, *window), self.weight(outputs))
        return self.node("Conv", *operands, pads=list(pads), strides=[stride] * len(window))

    def save(self, path: Path) -> Path:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        y = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "net", [x], [y], self.weights)
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
        return path


def residual(shape: list[Any]) -> Network:
    """Odd channels; a residual addition and activations in the epilogues; odd padding."""
    net = Network(shape)
    first = net.conv(19, 45)
    first = net.node("Relu", first)
    net.conv(45, 45)
    net.node("Relu", net.last)
    net.conv(45, 45)
    net.node("Add", net.last, first)
    net.node("Relu", net.last)
    net.node("Relu", net.conv(45, 45, stride=2))
    net.conv(45, 80, (0, 2, 1, 1))
    net.node("Softplus", net.last)
    return net


def factorised(shape: list[Any]) -> Network:
    """Windows 1×3 and 3×1 by turns, as Inception networks have them."""
    net = Network(shape)
    first = net.node("Relu", net.conv(19, 45, (0, 1, 0, 1), window=(1, 3)))
    net.node("LeakyRelu", net.conv(45, 40, (2, 0, 0, 0), window=(3, 1)), alpha=0.2)
    net.node("Add", net.conv(40, 45, (0, 2, 0, 0), window=(1, 3)), first)
    net.conv(45, 24, (1, 1, 1, 1), stride=2, window=(3, 1))
    net.node("Relu", net.last)
    return net


def speech(shape: list[Any]) -> Network:
    """Windows along the one axis that there is, as encoders of sound have them."""
    net = Network(shape)
    net.node("Relu", net.conv(20, 392, (1, 1), window=(3,)))
    net.node("Relu", net.conv(392, 264, (0, 0), stride=2, window=(3,)))
    net.conv(264, 65, (2, 0), window=(3,))
    return net


def applied(report: Any) -> int:
    return int(report.applied.get("winograd", 0))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_network_of_known_sizes(tmp_path: Path, batch: int) -> None:
    path = residual([batch, 19, 23, 30]).save(tmp_path / "net.onnx")
    assert applied(build(BuildRequest(path, stop_after="optimise", vectors=0))) == 5
    x = RNG.standard_normal((batch, 19, 23, 30)).astype(np.float32)
    agree.check(path, tmp_path, [{"x": x}, {"x": np.abs(x) * 1000}])


def test_a_network_of_symbolic_sizes(tmp_path: Path) -> None:
    path = residual(["n", 19, "h", "w"]).save(tmp_path / "net.onnx")
    sizes = [(1, 23, 30), (3, 8, 9), (2, 4, 50)]
    cases = [{"x": RNG.standard_normal((n, 19, h, w)).astype(np.float32)} for n, h, w in sizes]
    agree.check(path, tmp_path, cases)


@pytest.mark.parametrize(
    ("network", "shape", "layers"),
    [
        (factorised, [1, 19, 24, 30], 3), (factorised, [3, 19, 24, 31], 3),
        (factorised, ["n", 19, "h", "w"], 3), (speech, [1, 20, 301], 3),
        (speech, ["n", 20, "t"], 2),
    ],
)  # fmt: skip
def test_windows_of_one_axis(tmp_path: Path, network: Any, shape: list[Any], layers: int) -> None:
    path = network(shape).save(tmp_path / "net.onnx")
    assert applied(build(BuildRequest(path, stop_after="optimise", vectors=0))) == layers
    exact = build(BuildRequest(path, stop_after="optimise", vectors=0, math="exact"))
    assert applied(exact) == 0
    known = {"n": (1, 3), "h": (24, 9), "w": (30, 6), "t": (64, 7)}
    sizes = [[known[d][i] if isinstance(d, str) else d for d in shape] for i in range(2)]
    agree.check(path, tmp_path, [{"x": RNG.standard_normal(s).astype(np.float32)} for s in sizes])


def test_the_package_does_not_grow(tmp_path: Path) -> None:
    """What is prepared is told by the metadata and by the model, and is nobody's in the file."""
    net = Network([1, 128, 14, 14])
    for _ in range(3):
        net.node("Relu", net.conv(128, 128))
    path = net.save(tmp_path / "net.onnx")
    x = RNG.standard_normal((1, 128, 14, 14)).astype(np.float32)
    held, results = {}, {}
    for prefer in ("size", "speed"):
        package = tmp_path / f"{prefer}.cuvil"
        report = build(BuildRequest(path, package, vectors=0, prefer=prefer))
        size = sum(f.stat().st_size for f in package.iterdir())
        assert size <= 1.1 * path.stat().st_size + (200 << 10)  # code aside
        model = cuvil.load(package, threads=2)
        held[prefer] = model._library.model_bytes(model._handle)
        assert report.metadata["memory"].get("prepared_bytes", 0) == held[prefer]
        results[prefer] = model(x)
        assert applied(report) == (3 if prefer == "speed" else 0)
        model.close()
    assert held == {"size": 0, "speed": 3 * 36 * 128 * 128 * 4}
    assert not mismatch(results["speed"], results["size"])
    assert not np.array_equal(results["speed"], results["size"])  # another order of sums


def test_exact_mathematics_leave_it_out(tmp_path: Path) -> None:
    path = residual([1, 19, 23, 30]).save(tmp_path / "net.onnx")
    report = build(BuildRequest(path, stop_after="optimise", vectors=0, math="exact"))
    assert applied(report) == 0
    assert any("--math exact" in m.why for m in report.misses)


def test_prepared_weights_serve_every_context(tmp_path: Path) -> None:
    path = residual([1, 19, 23, 30]).save(tmp_path / "net.onnx")
    build(BuildRequest(path, tmp_path / "net.cuvil", vectors=0))
    model = cuvil.load(tmp_path / "net.cuvil", threads=1)
    inputs = [RNG.standard_normal((1, 19, 23, 30)).astype(np.float32) for _ in range(4)]
    wanted = [model(x) for x in inputs]
    wrong: list[int] = []

    def many(i: int) -> None:
        wrong.extend(i for _ in range(20) if not np.array_equal(model(inputs[i]), wanted[i]))

    threads = [threading.Thread(target=many, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_convolution_in_a_branch(tmp_path: Path) -> None:
    """Its weights are prepared too, whichever branch a run takes."""
    net, other = Network([1, 32, 16, 16]), Network([1, 32, 16, 16])
    net.conv(32, 32)
    other.node("Neg", "x")
    value = helper.make_tensor_value_info
    branches = [
        helper.make_graph(n.nodes, name, [], [value(n.last, TensorProto.FLOAT, None)], n.weights)
        for n, name in ((net, "then"), (other, "else"))
    ]
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [value("x", TensorProto.FLOAT, net.shape), value("flag", TensorProto.BOOL, [])]
    outputs = [value("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "net", inputs, outputs)
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "branch.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    x = RNG.standard_normal((1, 32, 16, 16)).astype(np.float32)
    agree.check(path, tmp_path, [{"x": x, "flag": np.array(f)} for f in (True, False)])
