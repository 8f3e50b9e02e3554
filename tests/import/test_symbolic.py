"""Tensor operators with sizes known only at run time: one package, several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from cuvilc.driver import BuildRequest, build
from cuvilc.open_package import open_package
from tests.dialect.ops.onnx_nodes import Node, expected, model_of
from tests.tolerances import mismatch

RNG = np.random.default_rng(19)
ML = "ai.onnx.ml"
Shape = tuple[int | str, ...]


def fill(shape: Shape, sizes: dict[str, int], dtype: str = "float32") -> np.ndarray:
    numbers = [d if isinstance(d, int) else sizes[d] for d in shape]
    if dtype == "int64":
        return RNG.integers(0, 2, numbers)
    return RNG.uniform(-1, 1, numbers).astype(dtype)


F, INT = "float32", "int64"
# kind, shapes and dtypes of the inputs (arrays: constants), attributes, more of Node, sizes
CASES: dict[str, tuple[str, list[Any], dict[str, Any], dict[str, Any]]] = {
    "grid": (
        "GridSample", [(("n", 2, "h", "w"), F), (("n", "a", "b", 2), F)],
        {"mode": "cubic", "padding_mode": "reflection"}, {},
    ),
    "regions": (
        "RoiAlign", [(("n", 3, "h", "w"), F), (("r", 4), F), (("r",), INT)],
        {"output_height": 2, "output_width": 3}, {},
    ),
    "deformed": (
        "DeformConv", [(("n", 4, "h", "w"), F), (("o", 2, 3, 3), F), (("n", 18, "h", "w"), F)],
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "group": 2}, {"reference_only": True},
    ),
    "positions": (
        "MaxPool", [(("n", 2, "h", "w"), F)],
        {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 1, 0, 1]}, {"outputs": 2},
    ),
    "means that count no pads": (
        "AveragePool", [(("n", 2, "h", "w"), F)],
        {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_LOWER"}, {},
    ),
    "means that count pads": (
        "AveragePool", [(("n", 2, "h", "w"), F)],
        {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_UPPER",
         "count_include_pad": 1}, {},
    ),
    "products": ("CumProd", [(("n", "h", "w"), F), np.array(1)], {}, {"opset": 26}),
    "spectrum": (
        "DFT", [(("n", "h", 600, 1), F), None, np.array(2)], {"onesided": 1}, {"opset": 20},
    ),
    "frames": (
        "STFT", [(("n", "t", 1), F), np.array(5), (("16",), F)], {}, {"reference_only": True},
    ),
    "cache": (
        "TensorScatter", [(("n", 3, "t", "h"), F), (("n", 3, 4, "h"), F), (("n",), INT)],
        {"mode": "circular"}, {"opset": 24, "reference_only": True},
    ),
    "smooth": (
        "Resize", [(("n", "c", 9, 8), F), None, np.array([1, 1, 0.4, 0.7], F)],
        {"antialias": 1, "mode": "linear"}, {"opset": 19, "reference_only": True},
    ),
    "words": (
        "TfIdfVectorizer", [(("n", "t"), INT)],
        {"mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1,
         "ngram_counts": [0, 2], "ngram_indexes": [1, 0, 2], "pool_int64s": [0, 1, 1, 0]},
        {"opset": 9},
    ),
    "pairs": (
        "SVMClassifier", [(("n", 3), F)],
        {"classlabels_ints": [0, 1, 2], "vectors_per_class": [1, 2, 1], "kernel_type": "RBF",
         "support_vectors": RNG.normal(size=12).tolist(), "rho": [0.1, 0.2, 0.3],
         "coefficients": RNG.normal(size=8).tolist(), "kernel_params": [0.5, 0.0, 0.0],
         "prob_a": [-1.0, -0.5, 1.0], "prob_b": [0.1, 0.0, 0.2]},
        {"domain": ML, "outputs": 2},
    ),
}  # fmt: skip
SIZES = (
    {"n": 2, "h": 6, "w": 5, "a": 3, "b": 4, "r": 3, "o": 6, "t": 33, "c": 3, "16": 16},
    {"n": 3, "h": 9, "w": 7, "a": 1, "b": 9, "r": 1, "o": 4, "t": 16, "c": 1, "16": 16},
)


@pytest.mark.parametrize("name", CASES)
def test_sizes_at_run_time(tmp_path, name):
    kind, inputs, attributes, more = CASES[name]

    def node(sizes: dict[str, int]) -> Node:
        arrays = [fill(i[0], sizes, i[1]) if isinstance(i, tuple) else i for i in inputs]
        return Node(kind, arrays, attributes, **more)

    proto = model_of(node(SIZES[0]))
    for i in reversed(range(len(proto.graph.input))):
        number = int(proto.graph.input[i].name[1:])
        if isinstance(inputs[number], np.ndarray):
            proto.graph.initializer.append(numpy_helper.from_array(inputs[number], f"x{number}"))
            del proto.graph.input[i]
            continue
        dims = proto.graph.input[i].type.tensor_type.shape.dim
        for d, size in zip(dims, inputs[number][0], strict=True):
            if isinstance(size, str) and not size.isdigit():
                d.dim_param = size
    path, package = tmp_path / "node.onnx", tmp_path / "node.cuvil"
    path.write_bytes(proto.SerializeToString())
    build(BuildRequest(path, package, target="x86", cpu="host", jobs=1, vectors=0))
    loaded = open_package(package, threads=1)
    try:
        for sizes in SIZES:
            given = node(sizes)
            feeds = {f"x{i}": a for i, a in enumerate(given.inputs) if isinstance(inputs[i], tuple)}
            found = loaded.run(feeds)
            for i, wanted in enumerate(expected(given)):
                wrong = mismatch(np.asarray(found[f"y{i}"]), np.asarray(wanted))
                assert not wrong, (sizes, wrong)
    finally:
        loaded.close()
