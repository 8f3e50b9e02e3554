"""Biases that adapters bring and the graph lacks: added where that is certain, else refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.adapter import ModuleChange
from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.lora_insert import insert

from .lora_graphs import (
    adapter,
    checkpoint,
    convolution,
    found,
    linear,
    node,
    program,
    refused,
    values,
)

W, HEAD = values(3, 4), values(4, 4, seed=1)
X = values(2, 3, seed=2)
BIAS = values(4, seed=3)
SAVED = ModuleChange("fc", replaced={"bias": BIAS}, tensors=("fc.bias",))


def net(folder: Path, *nodes: Any, **weights: np.ndarray) -> Any:
    named = {name.replace("__", "."): array for name, array in weights.items()}
    return program(folder, list(nodes), {"fc.weight": W, **named}, {"x": ["b", 3]})


def adapted(made: Any, *changes: ModuleChange, **options: Any) -> np.ndarray:
    """What the program gives with the changes in it."""
    sites = found(made, *changes, **options)
    insert(made, sites, [adapter(*changes)])
    made.verify()
    (y,) = interpret(made, {"x": X}, exact=True).values()
    return y


def close(y: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("whole", [False, True])
def test_a_saved_bias_is_added(tmp_path: Path, whole: bool) -> None:
    """Also where the adapter brings the weight too."""
    made = net(tmp_path, node("MatMul", "x fc.weight", "h"), node("Relu", "h", "y"))
    weight = values(4, 3, seed=4) if whole else W.T
    more = {"weight": weight} if whole else {}
    change = ModuleChange("model.fc", replaced={**more, "bias": BIAS}, tensors=("fc.bias",))
    close(adapted(made, change), np.maximum(X @ weight.T + BIAS, 0))


def test_a_bias_of_b_needs_no_bias_of_the_base(tmp_path: Path) -> None:
    """It is added to the output then, whatever else is; where there is one, to that."""
    plain = linear("fc", 4, 3)
    assert plain.low_rank is not None
    change = replace(plain, low_rank=replace(plain.low_rank, bias=BIAS))
    changed = X @ (W + 2)  # of A and B all ones, and rank 2
    close(adapted(net(tmp_path, node("MatMul", "x fc.weight", "y")), change), changed + BIAS)
    gemm = node("Gemm", "x fc.weight fc.bias", "y")
    made = net(tmp_path, gemm, fc__bias=values(4, seed=7))
    close(adapted(made, change), changed + values(4, seed=7) + BIAS)
    with made:
        names = [o.name for o in ir.walk(ir.body(made.function("main")))]
    assert names.count("ai.elemwise_add") == 1


def test_a_bias_of_a_convolution(tmp_path: Path) -> None:
    made = program(tmp_path, [node("Conv", "x conv.weight", "y")],
                   {"conv.weight": values(4, 3, 1, 1)}, {"x": ["b", 3, 5, 5]})  # fmt: skip
    x = values(2, 3, 5, 5)
    (before,) = interpret(made, {"x": x}, exact=True).values()
    change = ModuleChange("conv", replaced={"bias": BIAS}, tensors=("conv.bias",))
    insert(made, found(made, change), [adapter(change)])
    (after,) = interpret(made, {"x": x}, exact=True).values()
    close(after, before + BIAS.reshape(4, 1, 1))


def test_a_weight_that_two_products_read(tmp_path: Path) -> None:
    """One bias, added to both."""
    square = values(3, 3, seed=5)
    made = program(
        tmp_path, [node("MatMul", "x fc.weight", "h"), node("MatMul", "h fc.weight", "y")],
        {"fc.weight": square}, {"x": ["b", 3]},
    )  # fmt: skip
    bias = values(3)
    change = ModuleChange("fc", replaced={"bias": bias}, tensors=("fc.bias",))
    close(adapted(made, change), (X @ square + bias) @ square + bias)


def test_zeros_of_the_base_are_no_evidence(tmp_path: Path) -> None:
    """The head's bias was dropped; another layer's would have been taken for it."""
    nodes = [
        node("MatMul", "x fc.weight", "h", "a"),
        node("Add", "h fc.bias", "g", "b"),
        node("MatMul", "g head.weight", "y", "c"),
    ]
    zeros = np.zeros(4, np.float32)
    made = net(tmp_path, *nodes, fc__bias=zeros, head__weight=HEAD)
    base = checkpoint(tmp_path, {"head.weight": HEAD.T, "head.bias": zeros})
    change = ModuleChange("head", replaced={"bias": BIAS}, tensors=("head.bias",))
    close(adapted(made, change, base_weights=base), X @ W @ HEAD + BIAS)


# Where it is not certain.


def test_a_checkpoint_that_has_a_bias(tmp_path: Path) -> None:
    """Then it is in the graph somewhere, and not as such."""
    made = net(tmp_path, node("MatMul", "x fc.weight", "y"))
    base = checkpoint(tmp_path, {"fc.weight": W.T, "fc.bias": BIAS})
    assert refused(made, SAVED, base_weights=base).code == "CUV723"


@pytest.mark.parametrize(
    "nodes",
    [
        [node("MatMul", "x fc.weight", "h"), node("Add", "h table", "y")],
        [node("MatMul", "x fc.weight", "h"), node("Reshape", "h shape", "g"),
         node("Add", "c g", "y")],
        [node("MatMul", "x fc.weight", "h"), node("MatMul", "x fc.weight", "g2"),
         node("Add", "h g2", "g"), node("Add", "g d", "y")],
        [node("Gemm", "x fc.weight", "y", alpha=2.0)],
    ],
    ids=["wider", "moved", "after a sum", "scaled"],
)  # fmt: skip
def test_what_is_added_may_be_the_bias(tmp_path: Path, nodes: list[Any]) -> None:
    made = net(
        tmp_path, *nodes, table=values(2, 4), shape=np.array([-1, 2, 2]), c=values(2), d=values(4)
    )
    error = refused(made, SAVED)
    assert error.code == "CUV723" and "`fc` has no `bias`" in error.message


def test_a_bias_of_other_sizes(tmp_path: Path) -> None:
    made = net(tmp_path, node("MatMul", "x fc.weight", "y"))
    change = ModuleChange("fc", replaced={"bias": values(5)}, tensors=("fc.bias",))
    assert refused(made, change).code == "CUV723"


def test_one_place_for_two_biases(tmp_path: Path) -> None:
    made = net(tmp_path, node("MatMul", "x fc.weight", "y"))
    other = replace(SAVED, path="model.fc", tensors=("model.fc.bias",))
    error = refused(made, SAVED, other)
    assert error.code == "CUV721" and "would both change" in error.message


def test_no_bias_without_a_product(tmp_path: Path) -> None:
    made = program(tmp_path, [node("Gather", "fc.weight ids", "y")], {"fc.weight": W},
                   {"ids": ["b"]})  # fmt: skip
    assert refused(made, SAVED).code == "CUV723"


def test_a_bias_of_another_name_is_the_modules(tmp_path: Path) -> None:
    """Beside the product nothing is added to it then."""
    nodes = [node("Conv", "x conv.weight other", "y")]
    made = program(tmp_path, nodes, {"conv.weight": values(4, 3, 1, 1), "other": BIAS},
                   {"x": ["b", 3, 5, 5]})  # fmt: skip
    change = replace(convolution("conv", 4, 3, 1, 1), replaced={"bias": BIAS + 1})
    sites = {s.parameter: s for s in found(made, change)}
    with made:
        assert np.array_equal(made.constant_array(sites["bias"].value), BIAS)
