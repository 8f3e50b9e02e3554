"""A module's further calls, which the TorchScript exporter counts: `fc_1` is the second one of
`fc`, or a module of that name, or both at once. Every call has the adapter, no other module.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .lora_graphs import (
    array,
    attach,
    checkpoint,
    found,
    linear,
    node,
    one,
    program,
    refused,
    values,
)

BIG = 80  # a matrix of BIG² elements is not computed while the model is imported
FC, FC_1 = (values(BIG, BIG, seed=s) for s in (1, 2))
INPUT: dict[str, list[int | str]] = {"x": ["b", BIG]}


def named(folder: Path) -> Any:
    """`fc(fc(fc_1(x)))` with the transposes that the exporter leaves: every name is there."""
    nodes = [
        node("Transpose", "fc_1.weight", "t1", "/fc_1/Transpose"),
        node("MatMul", "x t1", "a", "/fc_1/MatMul"),
        node("Transpose", "fc.weight", "t2", "/fc/Transpose"),
        node("MatMul", "a t2", "b", "/fc/MatMul"),
        node("Transpose", "fc.weight", "t3", "/fc_1/Transpose_1"),
        node("MatMul", "b t3", "y", "/fc_1/MatMul_1"),
    ]
    return program(folder, nodes, {"fc.weight": FC.T, "fc_1.weight": FC_1.T}, INPUT)


def mangled(folder: Path) -> Any:
    """The same with weights that have lost their names, and biases that keep theirs."""
    nodes = [
        node("MatMul", "x onnx::MatMul_1", "a", "/fc_1/MatMul"),
        node("Add", "fc_1.bias a", "a1", "/fc_1/Add"),
        node("MatMul", "a1 onnx::MatMul_2", "b", "/fc/MatMul"),
        node("Add", "fc.bias b", "b1", "/fc/Add"),
        node("MatMul", "b1 onnx::MatMul_2", "c", "/fc_1/MatMul_1"),
        node("Add", "fc.bias c", "y", "/fc_1/Add_1"),
    ]
    weights = {
        "onnx::MatMul_1": FC_1, "onnx::MatMul_2": FC,
        "fc.bias": values(BIG, seed=3), "fc_1.bias": values(BIG, seed=4),
    }  # fmt: skip
    return program(folder, nodes, weights, INPUT)


def copied(folder: Path) -> Any:
    """The same where the second call has a copy of the weight."""
    nodes = [
        node("MatMul", "x onnx::MatMul_1", "a", "/fc_1/MatMul"),
        node("MatMul", "a onnx::MatMul_2", "b", "/fc/MatMul"),
        node("MatMul", "b onnx::MatMul_3", "y", "/fc_1/MatMul_1"),
    ]
    weights = {"onnx::MatMul_1": FC_1, "onnx::MatMul_2": FC, "onnx::MatMul_3": FC.copy()}
    return program(folder, nodes, weights, INPUT)


@pytest.mark.parametrize("make", [named, mangled, copied])
def test_calls_beside_a_module_of_their_name(make: Callable[[Path], Any], tmp_path: Path) -> None:
    made = make(tmp_path)
    for path, weight, calls in (("fc", FC, 2), ("fc_1", FC_1, 1)):
        sites = found(made, linear(path, BIG, BIG))
        assert sum(len(s.uses) for s in sites) == calls, path
        assert all(np.array_equal(array(made, s), weight.T) for s in sites), path
    labelled = {(s.module, array(made, s).tobytes()) for s in attach.all_sites(made)}
    assert labelled == {("fc", FC.T.tobytes()), ("fc_1", FC_1.T.tobytes())}


def test_biases_of_calls_beside_a_module_of_their_name(tmp_path: Path) -> None:
    made = mangled(tmp_path)
    sites = found(made, linear("fc", BIG, BIG, bias=True), linear("fc_1", BIG, BIG, bias=True))
    uses = {(s.module, s.parameter): len(s.uses) for s in sites}
    assert uses["fc", "bias"] == 2 and uses["fc_1", "bias"] == 1


def test_a_call_in_a_container_that_is_not_called(tmp_path: Path) -> None:
    """The exporter leaves `blocks` out of the node's name, not out of the bias'."""
    nodes = [
        node("MatMul", "x onnx::MatMul_1", "a", "/b0/fc/MatMul"),
        node("Add", "blocks.b0.fc.bias a", "a1", "/b0/fc/Add"),
        node("MatMul", "a1 onnx::MatMul_1", "b", "/b0/fc_1/MatMul"),
        node("Add", "blocks.b0.fc.bias b", "y", "/b0/fc_1/Add"),
    ]
    weights = {"onnx::MatMul_1": FC, "blocks.b0.fc.bias": values(BIG, seed=3)}
    made = program(tmp_path, nodes, weights, INPUT)
    sites = found(made, linear("blocks.b0.fc", BIG, BIG, bias=True))
    assert {s.parameter: len(s.uses) for s in sites} == {"weight": 2, "bias": 2}


def test_a_second_call_is_no_module(tmp_path: Path) -> None:
    """An adapter of a real `fc_1` that the model never calls must not change `fc`."""
    nodes = [
        node("MatMul", "x onnx::MatMul_1", "a", "/fc/MatMul"),
        node("MatMul", "a onnx::MatMul_1", "y", "/fc_1/MatMul"),
    ]
    made = program(tmp_path, nodes, {"onnx::MatMul_1": FC}, INPUT)
    assert refused(made, linear("fc_1", BIG, BIG)).code == "CUV723"
    assert len(one(made, linear("fc", BIG, BIG)).uses) == 2


def test_modules_with_two_weights_get_no_room_for_later_adapters(tmp_path: Path) -> None:
    """Which of them an adapter would mean is not known, and it must not change both."""
    nodes = [
        node("MatMul", "x onnx::MatMul_1", "a", "/fc/MatMul"),
        node("MatMul", "a onnx::MatMul_2", "y", "/fc/MatMul_1"),
    ]
    weights = {"onnx::MatMul_1": FC, "onnx::MatMul_2": FC_1}
    assert not len(attach.all_sites(program(tmp_path, nodes, weights, INPUT)))


def siblings(folder: Path, bias: bool) -> Any:
    """`b.proj(a.proj(x))` of a root that calls both itself: `a` and `b` are in no node's name."""
    nodes = [
        node("MatMul", "x onnx::MatMul_1", "p", "/proj/MatMul"),
        node("Add", "a.proj.bias p", "q", "/proj/Add"),
        node("MatMul", "q onnx::MatMul_2", "r", "/proj_1/MatMul"),
        node("Add", "b.proj.bias r", "y", "/proj_1/Add"),
    ]
    weights = {"onnx::MatMul_1": FC, "onnx::MatMul_2": FC_1}
    if bias:
        weights |= {"a.proj.bias": values(BIG, seed=3), "b.proj.bias": values(BIG, seed=4)}
        return program(folder, nodes, weights, INPUT)
    plain = [
        node("MatMul", "x onnx::MatMul_1", "p", "/proj/MatMul"),
        node("MatMul", "p onnx::MatMul_2", "y", "/proj_1/MatMul"),
    ]
    return program(folder, plain, weights, INPUT)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("path", "weight"), [("a.proj", FC), ("b.proj", FC_1)])
def test_siblings_that_end_alike(path: str, weight: np.ndarray, bias: bool, tmp_path: Path) -> None:
    """Their biases' names tell them apart, and the checkpoint; without either none is guessed."""
    made = siblings(tmp_path, bias)
    if bias:
        assert np.array_equal(array(made, one(made, linear(path, BIG, BIG))), weight.T)
        return
    told = refused(made, linear(path, BIG, BIG))
    assert told.code == "CUV721" and "modules that end in `proj`" in told.message
    base = checkpoint(tmp_path, {"a.proj.weight": FC.T, "b.proj.weight": FC_1.T})
    site = one(made, linear(path, BIG, BIG), base_weights=base)
    assert np.array_equal(array(made, site), weight.T)


def test_later_adapters_have_the_paths_that_names_spell(tmp_path: Path) -> None:
    sites = attach.all_sites(siblings(tmp_path, bias=True))
    assert {s.module for s in sites} == {"a.proj", "b.proj"}


def test_a_node_of_another_module_that_ends_alike(tmp_path: Path) -> None:
    """`model.fc`'s weight has its name, so the node `/fc` does not stand for `base.fc`."""
    nodes = [
        node("MatMul", "x model.fc.weight", "p", "/fc/MatMul"),
        node("MatMul", "p onnx::MatMul_2", "r", "/fc_1/MatMul"),
        node("Add", "base.fc.bias r", "y", "/fc_1/Add"),
    ]
    weights = {
        "model.fc.weight": FC, "onnx::MatMul_2": FC_1, "base.fc.bias": values(BIG, seed=3)
    }  # fmt: skip
    made = program(tmp_path, nodes, weights, INPUT)
    assert np.array_equal(array(made, one(made, linear("base.fc", BIG, BIG))), FC_1.T)
    assert np.array_equal(array(made, one(made, linear("model.fc", BIG, BIG))), FC.T)
