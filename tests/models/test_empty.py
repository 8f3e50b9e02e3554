"""A named size may be 0, and an axis that broadcasts by name may be 1: as NumPy has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.models import agree
from tests.models.computed_cases import FLOAT, floats, model, node, port


def convolutions(rng: np.random.Generator) -> onnx.ModelProto:
    return model(
        [
            node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
            node("Relu", "a", "b"),
            node("MaxPool", "b", "c", kernel_shape=[2, 2], strides=[2, 2]),
            node("GlobalAveragePool", "c", "d"),
            node("Flatten", "d", "e"),
            node("MatMul", "e v", "f"),
            node("Softmax", "f", "y"),
        ],
        [port("x", ["n", 3, 8, 8])],
        [port("y", ["n", 5])],
        w=floats(rng, 8, 3, 3, 3),
        v=floats(rng, 8, 5),
    )


def products(rng: np.random.Generator) -> onnx.ModelProto:
    return model(
        [node("MatMul", "x y", "z"), node("LayerNormalization", "z g", "o")],
        [port("x", ["n", "k"]), port("y", ["k", 4])], [port("o", ["n", 4])], g=floats(rng, 4),
    )  # fmt: skip


def reductions(rng: np.random.Generator) -> onnx.ModelProto:
    return model(
        [
            node("ReduceSum", "x axes", "a"),
            node("ReduceProd", "x", "b"),
            node("Concat", "x x", "c", axis=0),
            node("Transpose", "x", "d", perm=[1, 0]),
            node("Softmax", "x", "e", axis=1),
            node("CumSum", "x zero", "f"),
        ],
        [port("x", ["n", "k"])],
        [port(name, None) for name in "abcdef"],
        axes=np.array([1]),
        zero=np.array(0),
    )


def attention(rng: np.random.Generator) -> onnx.ModelProto:
    return model(
        [node("MatMul", "q k", "a"), node("Softmax", "a", "b"), node("MatMul", "b v", "o")],
        [
            port("q", ["b", 2, "s", 4]),
            port("k", ["b", 2, 4, "t"], FLOAT),
            port("v", ["b", 2, "t", 4]),
        ],
        [port("o", None)],
    )


def broadcast(rng: np.random.Generator) -> onnx.ModelProto:
    return model(
        [node("Add", "x y", "z"), node("Mul", "z z", "o")],
        [port("x", ["n", "k"]), port("y", ["m", "k"])], [port("o", None)],
    )  # fmt: skip


CASES = {
    convolutions: ({"x": "n388"}, ({"n": 2}, {"n": 0}, {"n": 1})),
    products: ({"x": "nk", "y": "k4"}, ({"n": 2, "k": 3}, {"n": 0, "k": 3}, {"n": 2, "k": 0})),
    reductions: ({"x": "nk"}, ({"n": 2, "k": 3}, {"n": 0, "k": 3}, {"n": 2, "k": 0})),
    attention: (
        {"q": "b2s4", "k": "b24t", "v": "b2t4"},
        ({"b": 1, "s": 3, "t": 5}, {"b": 0, "s": 3, "t": 5}, {"b": 1, "s": 0, "t": 5},
         {"b": 1, "s": 3, "t": 0}),
    ),
    broadcast: (
        {"x": "nk", "y": "mk"},
        tuple({"n": n, "m": m, "k": 3} for n, m in ((2, 2), (1, 2), (2, 1), (0, 1), (1, 0))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", CASES, ids=lambda f: f.__name__)
def test_sizes_of_0_and_1(make: object, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    proto = make(rng)  # type: ignore[operator]
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    shapes, sizes = CASES[make]  # type: ignore[index]
    feeds = [
        {
            name: floats(rng, *(each[d] if d in each else int(d) for d in spelled))
            for name, spelled in shapes.items()
        }
        for each in sizes
    ]
    agree.check(path, tmp_path, feeds)
