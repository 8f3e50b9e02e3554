"""Copies of a weight that no name tells of, and checkpoints of layers that are stored [K, N]."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.adapter import ModuleChange

from .lora_graphs import checkpoint, embedding, linear, node, one, program, refused, values

V, D = 90, 80  # more than the importer computes with


def tied(folder: Path, table: np.ndarray) -> Any:
    """An optimised export of two tied modules: `head`'s name is left to the table, and what the
    head multiplies by is a transposed copy with none.
    """
    nodes = [
        node("Gather", "head.weight ids", "h", "node_embedding"),
        node("MatMul", "h val_59", "y", "node_linear"),
    ]
    weights = {"head.weight": table, "val_59": np.ascontiguousarray(table.T)}
    return program(folder, nodes, weights, {"ids": ["b"]})


def test_a_nameless_copy_is_not_passed_over(tmp_path: Path) -> None:
    """The head's new weight must not become the table's, nor only one of both."""
    made = tied(tmp_path, values(V, D))
    saved = ModuleChange("head", replaced={"weight": values(V, D, seed=1)})
    problem = refused(made, saved)
    assert problem.code == "CUV721" and "of no module" in problem.message
    assert "val_59" in problem.evidence and problem.help
    settled = tmp_path / "map.json"
    settled.write_text('{"head": "val_59"}')
    site = one(made, saved, adapter_map=settled)
    with made:
        assert [operation.name for operation, _ in site.uses] == ["ai.matmul"]


def test_factors_tell_which_copy_is_meant(tmp_path: Path) -> None:
    made = tied(tmp_path, values(V, D))
    site = one(made, embedding("head", V, D))
    with made:
        assert [operation.name for operation, _ in site.uses] == ["ai.gather"]


def test_equal_numbers_everywhere_are_no_copy(tmp_path: Path) -> None:
    made = tied(tmp_path, np.ones((V, D), np.float32))
    assert one(made, embedding("head", V, D)).uses


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("n", [D, V])
def test_a_checkpoint_of_a_layer_that_is_stored_by_inputs(
    flag: bool, n: int, tmp_path: Path
) -> None:
    """GPT-2's Conv1D beside Linear layers: one configuration is wrong about one of them."""
    w = values(D, n)
    made = program(tmp_path, [node("MatMul", "x fc.weight", "y", "/fc/MatMul")],
                   {"fc.weight": w}, {"x": ["b", D]})  # fmt: skip
    change = replace(linear("fc", n, D), fan_in_fan_out=flag)
    for stored, turned in ((w, True), (w.T, False)):
        base = checkpoint(tmp_path, {"fc.weight": stored})
        if n == D and turned != flag:  # the sizes do not tell, and the model may be another
            assert refused(made, change, base_weights=base).code == "CUV725"
        else:
            assert one(made, change, base_weights=base)
    other = checkpoint(tmp_path, {"fc.weight": w + 1})
    assert refused(made, change, base_weights=other).code == "CUV725"


def test_a_checkpoint_of_another_model_is_not_passed_over(tmp_path: Path) -> None:
    made = program(tmp_path, [node("MatMul", "x fc.weight", "y", "/fc/MatMul")],
                   {"fc.weight": values(D, V)}, {"x": ["b", D]})  # fmt: skip
    other = checkpoint(tmp_path, {"encoder.0.weight": values(V, D)})
    problem = refused(made, linear("fc", V, D), base_weights=other)
    assert problem.code == "CUV725" and "encoder.0.weight" in problem.evidence
