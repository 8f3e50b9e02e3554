"""Optimisers' steps, batch normalisation and dropout while a model is trained, TensorScatter."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.diagnostics import CuvilError
from tests.dialect.ops.onnx_nodes import Node, ints

from .one_node import agree, registry, saved

RNG = np.random.default_rng(7)
TRAINING = "ai.onnx.preview.training"
STATES = {"Adagrad": 1, "Momentum": 1, "Adam": 2}
WORDS = {
    "Adagrad": {"norm_coefficient": 0.1, "decay_factor": 0.2, "epsilon": 1e-3},
    "Momentum": {"norm_coefficient": 0.1, "alpha": 0.9, "beta": 0.5, "mode": "nesterov"},
    "Adam": {"norm_coefficient": 0.1, "norm_coefficient_post": 0.05, "alpha": 0.8, "beta": 0.95},
}


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


@pytest.mark.parametrize("updates", [0, 5])
@pytest.mark.parametrize("kind", STATES)
def test_optimisers_of_two_parameters(tmp_path, kind, updates):
    shapes = [(3, 4), (5,)]
    tensors = [normal(*s) for _ in range(2) for s in shapes]
    states = [np.abs(normal(*s)) for _ in range(STATES[kind]) for s in shapes]
    inputs = [np.array(0.3, np.float32), np.array(updates), *tensors, *states]
    outputs = 2 * (STATES[kind] + 1)
    node = Node(kind, inputs, WORDS[kind], outputs, TRAINING, reference_only=True)
    agree(tmp_path, node)


@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (6, 3), (2, 3, 7)])
def test_batch_norm_training(tmp_path, shape):
    inputs = [normal(*shape), *(normal(3) for _ in range(3)), np.abs(normal(3))]
    attributes = {"training_mode": 1, "momentum": 0.7, "epsilon": 1e-2}
    agree(tmp_path, Node("BatchNormalization", inputs, attributes, 3, reference_only=True))


def test_batch_norm_training_of_old_opsets(tmp_path):
    x, (scale, bias, mean), var = normal(4, 3, 5), normal(3, 3), np.abs(normal(3))
    own, own_var = x.mean((0, 2)), x.var((0, 2))
    column = lambda v: v[:, None]  # noqa: E731
    y = (x - column(own)) / np.sqrt(column(own_var) + 1e-5) * column(scale) + column(bias)
    running = [0.9 * a + 0.1 * b for a, b in ((mean, own), (var, own_var))]
    wanted = [a.astype(np.float32) for a in (y, *running, own, own_var)]
    node = Node("BatchNormalization", [x, scale, bias, mean, var], {}, 5, opset=9)
    agree(tmp_path, node, wanted=wanted)


def test_dropout_of_nothing(tmp_path):
    x = normal(3, 4)
    node = Node("Dropout", [x, np.array(0, np.float32), np.array(True)], outputs=2)
    agree(tmp_path, node, constants=(1, 2), wanted=[x, np.ones((3, 4), bool)])
    node.inputs[1] = np.array(0.25, np.float32)
    with pytest.raises(CuvilError, match="drops at random"):
        registry.load(saved(tmp_path, node, constants=(1, 2)))


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [-2, -1, 1])
def test_tensor_scatter(tmp_path, axis, mode):
    cache = normal(3, 5, 6, 7)
    size = cache.shape[axis]
    shape = list(cache.shape)
    shape[axis] = 4
    start = ints(0, size - 4, 1) if mode == "linear" else ints(size - 1, size + 2, 1)
    attributes = {"axis": axis, "mode": mode}
    inputs = [cache, normal(*shape), start]
    agree(tmp_path, Node("TensorScatter", inputs, attributes, opset=24, reference_only=True))


def test_tensor_scatter_beyond_the_end(tmp_path):
    inputs = [normal(2, 5, 3), normal(2, 2, 3), ints(0, 4)]
    node = Node("TensorScatter", inputs, opset=24)
    with pytest.raises((CuvilError, IndexError)):
        agree(tmp_path, node, wanted=[inputs[0]])
