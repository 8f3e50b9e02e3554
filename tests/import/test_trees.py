"""Tree ensembles of every opset of ai.onnx.ml, against onnxruntime or onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from cuvilc.diagnostics import CuvilError
from tests.dialect.ops.onnx_nodes import Node, expected

from .one_node import agree, registry, saved

RNG = np.random.default_rng(9)
ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _tensor(values: np.ndarray):
    return numpy_helper.from_array(values)


def _ensemble(trees: int, depth: int, targets: int, dtype: str, sets: bool = False) -> dict:
    """Complete trees of ai.onnx.ml 5 with random splits."""
    inner = 2**depth - 1
    words: dict = {name: [] for name in ("trueleafs", "falseleafs", "truenodeids", "falsenodeids")}
    for tree in range(trees):
        for node in range(inner):
            for way, child in (("true", 2 * node + 1), ("false", 2 * node + 2)):
                leaf = child >= inner
                words[f"{way}leafs"].append(int(leaf))
                place = tree * (inner + 1) + child - inner if leaf else tree * inner + child
                words[f"{way}nodeids"].append(place)
    count, leaves = trees * inner, trees * (inner + 1)
    modes = RNG.integers(0, 7 if sets else 6, count).astype(np.uint8)
    made = {f"nodes_{name}": values for name, values in words.items()}
    made |= {
        "n_targets": targets, "tree_roots": [t * inner for t in range(trees)],
        "nodes_modes": _tensor(modes), "nodes_featureids": RNG.integers(0, 4, count).tolist(),
        "nodes_splits": _tensor(RNG.integers(-2, 3, count).astype(dtype)),
        "nodes_missing_value_tracks_true": RNG.integers(0, 2, count).tolist(),
        "leaf_targetids": RNG.integers(0, targets, leaves).tolist(),
        "leaf_weights": _tensor(RNG.normal(size=leaves).astype(dtype)),
    }  # fmt: skip
    if sets:
        members = [
            [*RNG.choice([-2, -1, 1, 2], 3, replace=False), np.nan] for _ in modes[modes == 6]
        ]
        made["membership_values"] = _tensor(np.array(members, dtype).reshape(-1))
    return made


def _rows(dtype: str, count: int = 21) -> np.ndarray:
    x = RNG.integers(-2, 3, (count, 4)).astype(dtype)
    x[RNG.random(x.shape) < 0.1] = np.nan
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fold", range(4))
@pytest.mark.parametrize("depth", [1, 3])
def test_ensembles(tmp_path, depth, fold, dtype):
    attributes = _ensemble(5, depth, 3, dtype) | {"aggregate_function": fold}
    agree(tmp_path, Node("TreeEnsemble", [_rows(dtype)], attributes, domain=ML, ml=5))


@pytest.mark.parametrize("transform", range(3))
def test_transforms(tmp_path, transform):
    """Onnxruntime takes 1 for the logistic function and 2 for softmax, unlike specified."""
    attributes = _ensemble(4, 2, 3, "float32") | {"post_transform": (0, 2, 1)[transform]}
    node = Node("TreeEnsemble", [_rows("float32")], attributes, domain=ML, ml=5)
    wanted = expected(node)
    node.attributes["post_transform"] = transform
    agree(tmp_path, node, wanted=wanted)


def test_members_of_sets(tmp_path):
    attributes = _ensemble(6, 3, 2, "float32", sets=True)
    agree(tmp_path, Node("TreeEnsemble", [_rows("float32")], attributes, domain=ML, ml=5))


def test_circles_are_refused(tmp_path):
    attributes = _ensemble(1, 2, 1, "float32")
    attributes["nodes_truenodeids"][1], attributes["nodes_trueleafs"][1] = 0, 0
    node = Node("TreeEnsemble", [_rows("float32")], attributes, domain=ML, ml=5)
    with pytest.raises(CuvilError, match="two parents"):
        registry.load(saved(tmp_path, node))


def _older(kind: str, outputs: int) -> dict:
    """Two stumps in the words of ai.onnx.ml 1."""
    leaf = "class" if kind.endswith("Classifier") else "target"
    made = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 0, 1, 2],
        "nodes_featureids": [0, 0, 0, 2, 0, 0], "nodes_values": [0.5, 0, 0, -0.5, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
        f"{leaf}_treeids": [0, 0, 1, 1], f"{leaf}_nodeids": [1, 2, 1, 2],
        f"{leaf}_ids": [0, 1 % outputs, 2 % outputs, 0],
        f"{leaf}_weights": [0.25, 0.5, 0.125, 0.625],
    }  # fmt: skip
    if leaf == "class":
        return made | {"classlabels_int64s": list(range(10, 10 + outputs))}
    return made | {"n_targets": outputs}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("kind", ["TreeEnsembleClassifier", "TreeEnsembleRegressor"])
def test_transforms_of_older_forms(tmp_path, kind, transform):
    attributes = _older(kind, 3) | {"post_transform": transform}
    x = np.nan_to_num(_rows("float32"))
    outputs = 2 if kind.endswith("Classifier") else 1
    agree(tmp_path, Node(kind, [x], attributes, outputs, domain=ML))


def test_tensors_of_doubles(tmp_path):
    attributes = _older("TreeEnsembleRegressor", 2)
    for name in ("nodes_values", "target_weights"):
        exact = np.array(attributes.pop(name)) + 1e-12
        attributes[f"{name}_as_tensor"] = _tensor(exact)
    x = RNG.choice([0.5, 0.5 + 1e-12, 0.5 + 2e-12, -0.5], (9, 4))
    agree(tmp_path, Node("TreeEnsembleRegressor", [x], attributes, domain=ML))


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
@pytest.mark.parametrize("negative", [False, True])
def test_one_score_for_two_classes(tmp_path, transform, negative):
    attributes = _older("TreeEnsembleClassifier", 2) | {"post_transform": transform}
    attributes["class_ids"] = [0] * 4
    if negative:
        attributes["class_weights"] = [-0.25, 0.5, 0.125, -0.625]
    x = np.nan_to_num(_rows("float32"))
    node = Node("TreeEnsembleClassifier", [x], attributes, 2, domain=ML)
    # onnxruntime leaves a softmax out, onnx's reference takes 1 - s for the score of a negative one
    node.reference_only = not (transform == "NONE" and negative)
    agree(tmp_path, node)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nodes_featureids", 4, "5 features, the input has 4"),
        ("nodes_featureids", -1, "feature -1"),
        ("leaf_targetids", 3, "target 3 of 2"),
        ("nodes_falsenodeids", 77, "does not exist"),
    ],
)
def test_numbers_out_of_range(tmp_path, name, value, message):
    attributes = _ensemble(1, 1, 2, "float32")
    attributes[name][0] = value
    node = Node("TreeEnsemble", [_rows("float32")], attributes, domain=ML, ml=5)
    with pytest.raises(CuvilError, match=message):
        registry.load(saved(tmp_path, node))


def test_targets_out_of_range_of_older_forms(tmp_path):
    attributes = _older("TreeEnsembleRegressor", 2) | {"target_ids": [0, 1, 9, 0]}
    node = Node("TreeEnsembleRegressor", [_rows("float32")], attributes, domain=ML)
    with pytest.raises(CuvilError, match="target 9 of 2"):
        registry.load(saved(tmp_path, node))
