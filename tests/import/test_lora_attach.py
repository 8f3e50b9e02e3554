"""Where adapters attach: names, nodes' modules, operators, shared and copied weights."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from cuvilc.adapter import ModuleChange
from cuvilc.diagnostics import CuvilError

from .lora_graphs import (
    adapter,
    array,
    attach,
    checkpoint,
    consumers,
    convolution,
    embedding,
    found,
    linear,
    node,
    one,
    program,
    refused,
    scoped,
    values,
)

BIG = 80  # a matrix of BIG² elements is not computed while the model is imported


def product(folder: Path, name: str, at: str = "", n: int = 5, k: int = 3) -> Any:
    """y = x · W with W [K, N] under a name, by a node of a name."""
    return program(folder, [node("MatMul", f"x {name}", "y", at)], {name: values(k, n)},
                   {"x": ["b", k]})  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["layers.0.fc", "m.layers.0.fc", "base_model.model.layers.0.fc", "anything.layers.0.fc"],
)
def test_by_name_whatever_the_prefix(tmp_path: Path, name: str) -> None:
    made = product(tmp_path, f"{name}.weight")
    site = one(made, linear("layers.0.fc", 5, 3))
    assert (site.module, site.parameter, site.kind) == ("layers.0.fc", "weight", "linear")
    assert (site.out_axis, site.start, site.size) == (1, 0, 5)
    with made:
        assert site.is_whole and site.shape == (3, 5)
    assert consumers(made, site) == [("ai.matmul", 1)]
    assert f"`{name}.weight`" in site.evidence


def test_the_adapter_may_have_the_longer_path(tmp_path: Path) -> None:
    made = product(tmp_path, "layers.0.fc.weight")
    assert one(made, linear("model.layers.0.fc", 5, 3)).size == 5
    made = product(tmp_path, "m.layers.0.fc.weight")  # one wrapper for another
    assert one(made, linear("model.layers.0.fc", 5, 3)).size == 5


def test_a_lost_name_is_made_good_by_the_node(tmp_path: Path) -> None:
    made = product(tmp_path, "onnx::MatMul_12", "/m/layers.0/attn/fc/MatMul")
    assert (
        "node `/m/layers.0/attn/fc/MatMul`" in one(made, linear("layers.0.attn.fc", 5, 3)).evidence
    )
    fused = product(tmp_path, "onnx::MatMul_12", "/layers.0/fc/MatMul/MatMulAddFusion")
    assert one(fused, linear("layers.0.fc", 5, 3)).size == 5
    of_sequential = product(tmp_path, "onnx::MatMul_12", "/net/net.0/net.0.1/MatMul")
    assert one(of_sequential, linear("net.0.1", 5, 3)).size == 5


def test_or_by_the_metadata(tmp_path: Path) -> None:
    nodes = [scoped(node("MatMul", "x val_3", "y", "node_linear"), "m.layers.1.fc")]
    made = program(tmp_path, nodes, {"val_3": values(3, 5)}, {"x": ["b", 3]})
    assert made.scopes == {"node_linear": "m.layers.1.fc"}
    assert one(made, linear("layers.1.fc", 5, 3)).out_axis == 1


def test_metadata_without_classes_or_only_a_namespace(tmp_path: Path) -> None:
    bare = node("MatMul", "x val_3", "y", "a")
    entry = bare.metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", "['', 'm', 'm.fc', 'linear']"
    spaced = node("Relu", "y", "z", "b")
    entry = spaced.metadata_props.add()
    entry.key, entry.value = "namespace", ": Model/m: Inner/m.act: ReLU/relu: aten.relu.default"
    odd = node("Neg", "z", "w", "c")
    entry = odd.metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", "__import__('os')"
    made = program(tmp_path, [bare, spaced, odd], {"val_3": values(3, 5)}, {"x": ["b", 3]}, "w")
    assert made.scopes == {"a": "m.fc", "b": "m.act", "c": ""}


def test_gemm_says_the_orientation_of_a_square_matrix(tmp_path: Path) -> None:
    for turned in (0, 1):
        nodes = [node("Gemm", "x fc.weight fc.bias", "y", transB=turned)]
        weights = {"fc.weight": values(4, 4), "fc.bias": values(4)}
        made = program(tmp_path, nodes, weights, {"x": ["b", 4]})
        weight, bias = found(made, linear("fc", 4, 4, bias=True))
        assert (weight.out_axis, bias.out_axis) == (0 if turned else 1, 0)
        assert (bias.parameter, bias.kind, bias.size) == ("bias", "", 4)


def test_a_transpose_that_the_exporter_left(tmp_path: Path) -> None:
    nodes = [node("Transpose", "fc.weight", "t", perm=[1, 0]), node("MatMul", "x t", "y")]
    made = program(tmp_path, nodes, {"fc.weight": values(BIG, BIG)}, {"x": ["b", BIG]})
    site = one(made, linear("fc", BIG, BIG))
    assert site.out_axis == 0 and consumers(made, site) == [("ai.transpose", 0)]


def test_a_transpose_that_the_importer_computes(tmp_path: Path) -> None:
    """Of a matrix as small as this it does, and the name of the weight stays known."""
    nodes = [
        node("Transpose", "fc.weight", "t", perm=[1, 0]),
        node("Cast", "t", "u", to=TensorProto.FLOAT),
        node("MatMul", "x u", "y"),
    ]
    weights = {"fc.weight": values(5, 3).astype(np.float16)}
    made = program(tmp_path, nodes, weights, {"x": ["b", 3]})
    site = one(made, linear("fc", 5, 3))
    assert site.out_axis == 1 and np.array_equal(array(made, site), weights["fc.weight"])


def test_a_cast_of_a_half(tmp_path: Path) -> None:
    nodes = [node("Cast", "fc.weight", "t", to=TensorProto.FLOAT), node("MatMul", "x t", "y")]
    weight = values(BIG, BIG).astype(np.float16)
    made = program(tmp_path, nodes, {"fc.weight": weight}, {"x": ["b", BIG]})
    site = one(made, linear("fc", BIG, BIG))
    assert site.out_axis == 1 and np.array_equal(array(made, site), weight.T)


def test_the_floats_of_a_quantised_weight(tmp_path: Path) -> None:
    nodes = [
        node("DequantizeLinear", "fc.weight_quantized s z", "w", "fc_DequantizeLinear", axis=1),
        node("MatMul", "x w", "y"),
    ]
    weights = {
        "fc.weight_quantized": np.ones((3, 5), np.int8), "s": np.ones(5, np.float32),
        "z": np.zeros(5, np.int8),
    }  # fmt: skip
    made = program(tmp_path, nodes, weights, {"x": ["b", 3]})
    site = one(made, linear("fc", 5, 3))
    with made:
        assert site.value.owner.name == "ai.dequantize_linear"


def test_the_bytes_of_a_packed_weight(tmp_path: Path) -> None:
    nodes = [node("MatMulNBits", "x fc.weight_Q4 s", "y", "/fc/MatMul_Q4", domain="com.microsoft",
                  K=32, N=6, bits=4, block_size=32)]  # fmt: skip
    weights = {"fc.weight_Q4": np.zeros((6, 1, 16), np.uint8), "s": np.ones(6, np.float32)}
    made = program(tmp_path, nodes, weights, {"x": ["b", 32]})
    site = one(made, linear("fc", 6, 32))
    assert (site.kind, site.out_axis, site.size) == ("linear", 0, 6)
    assert consumers(made, site) == [("ai.matmul_nbits", 1)]
    assert "`fc.weight_Q4`" in site.evidence


def tied(folder: Path, *, names: bool = True) -> Any:
    """A table that is read and, transposed, multiplied by."""
    nodes = [
        node("Gather", "wte.weight ids", "x", "/wte/Gather" if names else "a"),
        node("Transpose", "wte.weight", "t", "/lm_head/Transpose" if names else "b", perm=[1, 0]),
        node("MatMul", "x t", "y", "/lm_head/MatMul" if names else "c"),
    ]
    return program(folder, nodes, {"wte.weight": values(BIG, 60)}, {"ids": ["b", "s"]})


def test_a_tied_weight_is_changed_for_the_adapters_module_alone(tmp_path: Path) -> None:
    made = tied(tmp_path)
    table, head = found(made, embedding("wte", BIG, 60), linear("lm_head", BIG, 60))
    assert table.value == head.value
    assert (table.kind, table.out_axis, table.size) == ("embedding", 1, 60)
    assert (head.kind, head.out_axis, head.size) == ("linear", 0, BIG)
    assert consumers(made, table) == [("ai.gather", 0)]
    assert consumers(made, head) == [("ai.transpose", 0)]


def test_without_names_of_nodes_the_kind_tells_the_use(tmp_path: Path) -> None:
    made = tied(tmp_path, names=False)
    assert consumers(made, one(made, embedding("wte", BIG, 60))) == [("ai.gather", 0)]


def test_both_uses_in_one_module(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x fc.weight", "h", "/fc/MatMul"),
        node("MatMul", "h fc.weight", "y", "/fc_1/MatMul"),
    ]
    made = program(tmp_path, nodes, {"fc.weight": values(4, 4)}, {"x": ["b", 4]})
    assert len(one(made, linear("fc", 4, 4)).uses) == 2


def test_copies_of_one_weight_are_sites_of_one_module(tmp_path: Path) -> None:
    """The TorchScript exporter folds a transpose for each call of a module."""
    nodes = [
        node("MatMul", "x onnx::MatMul_1", "h", "/block/fc/MatMul"),
        node("MatMul", "h onnx::MatMul_2", "y", "/block_1/fc/MatMul"),
    ]
    weights = {"onnx::MatMul_1": values(4, 4), "onnx::MatMul_2": values(4, 4)}
    made = program(tmp_path, nodes, weights, {"x": ["b", 4]})
    sites = found(made, linear("block.fc", 4, 4))
    assert len(sites.numbered("block.fc", "weight")) == len(sites) == 2
    assert [s.module for s in attach.all_sites(made)] == ["block.fc"] * 2
    weights["onnx::MatMul_2"] = values(4, 4, seed=1)
    other = program(tmp_path, nodes, weights, {"x": ["b", 4]})
    assert len(found(other, linear("block.fc", 4, 4))) == 1
    assert [s.module for s in attach.all_sites(other)] == ["block.fc", "block_1.fc"]


def test_modules_that_only_look_like_calls(tmp_path: Path) -> None:
    """Two norms that are still all ones, of which the exporter kept one."""
    nodes = [
        node("LayerNormalization", "x norm.weight b", "h", "/norm/LayerNormalization"),
        node("Identity", "norm.weight", "norm_1.weight"),
        node("LayerNormalization", "h norm_1.weight b", "y", "/norm_1/LayerNormalization"),
    ]
    weights = {"norm.weight": np.ones(BIG, np.float32), "b": np.zeros(BIG, np.float32)}
    made = program(tmp_path, nodes, weights, {"x": ["b", BIG]})
    for path in ("norm", "norm_1"):
        site = one(made, ModuleChange(path, replaced={"weight": values(BIG)}))
        ((operation, _),) = site.uses
        with made:
            assert f"/{path}/" in str(operation.location)


def test_a_bias_that_many_layers_share_is_changed_for_one(tmp_path: Path) -> None:
    nodes = [
        node("Gemm", "x a.weight a.bias", "h", "/a/Gemm"),
        node("Gemm", "h b.weight a.bias", "y", "/b/Gemm"),
    ]
    weights = {
        "a.weight": values(4, 4),
        "b.weight": values(4, 4, seed=1),
        "a.bias": np.zeros(4, np.float32),
    }
    made = program(tmp_path, nodes, weights, {"x": ["b", 4]})
    for path, at in (("a", "/a/Gemm"), ("b", "/b/Gemm")):
        _, bias = found(made, linear(path, 4, 4, bias=True))
        ((operation, _),) = bias.uses
        with made:
            assert f"{at}" in str(operation.location)


def test_a_mangled_bias_is_the_one_that_is_added(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x fc.weight", "h", "p"), node("Add", "val_7 h", "y", "q")]
    weights = {"fc.weight": values(3, 5), "val_7": values(5)}
    made = program(tmp_path, nodes, weights, {"x": ["b", 3]})
    _, bias = found(made, linear("fc", 5, 3, bias=True))
    assert np.array_equal(array(made, bias), weights["val_7"])
    assert "added to the product" in bias.evidence


def test_convolutions_and_replaced_parameters(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x stem.weight stem.bias", "h", "/stem/Conv"),
        node("GlobalAveragePool", "h", "g"), node("Flatten", "g", "f"),
        node("LayerNormalization", "f norm.weight norm.bias", "n"),
        node("Gemm", "n head.weight head.bias", "y", transB=1),
    ]  # fmt: skip
    weights = {
        "stem.weight": values(6, 3, 2, 2), "stem.bias": values(6), "norm.weight": values(6, seed=1),
        "norm.bias": values(6, seed=2), "head.weight": values(2, 6), "head.bias": values(2),
    }  # fmt: skip
    made = program(tmp_path, nodes, weights, {"x": ["b", 3, 5, 5]})
    head = ModuleChange("head", replaced={"weight": values(2, 6, seed=5), "bias": values(2)})
    norm = ModuleChange("norm", replaced={"weight": values(6), "bias": values(6)})
    sites = found(made, convolution("stem", 6, 3, 2, 2), head, norm)
    assert [(s.module, s.parameter, s.kind, s.out_axis, s.size) for s in sites] == [
        ("stem", "weight", "convolution", 0, 6), ("head", "weight", "linear", 0, 2),
        ("head", "bias", "", 0, 2), ("norm", "weight", "", 0, 6), ("norm", "bias", "", 0, 6),
    ]  # fmt: skip
    for site in sites:
        assert np.array_equal(array(made, site), weights[f"{site.module}.{site.parameter}"])


def test_a_replaced_weight_may_stand_transposed(tmp_path: Path) -> None:
    """[N, K] in the adapter, [K, N] in the model, and GPT-2's own [K, N], whatever it says."""
    made = product(tmp_path, "onnx::MatMul_1", "/head/MatMul", n=5, k=3)
    site = one(made, ModuleChange("head", replaced={"weight": values(5, 3)}))
    assert (site.kind, site.out_axis) == ("linear", 1)
    for said in (True, False):
        own = ModuleChange("head", replaced={"weight": values(3, 5)}, fan_in_fan_out=said)
        assert one(made, own).out_axis == 1
        base = checkpoint(tmp_path, {"head.weight": values(3, 5)})  # as `product` has it
        assert one(made, own, base_weights=base).size == 5
    wrong = ModuleChange("head", replaced={"weight": values(3, 4)})
    assert refused(made, wrong).code == "CUV722"


def test_a_turned_weight_is_found_by_its_values(tmp_path: Path) -> None:
    made = product(tmp_path, "onnx::MatMul_1", n=5, k=3)
    base = checkpoint(tmp_path, {"h.c_fc.weight": values(3, 5)})
    own = ModuleChange("h.c_fc", replaced={"weight": values(3, 5, seed=4)})
    site = one(made, own, base_weights=base)
    assert (site.kind, site.out_axis, site.size) == ("linear", 1, 5)


def test_two_adapters_may_change_one_module(tmp_path: Path) -> None:
    made = product(tmp_path, "fc.weight")
    both = [adapter(linear("fc", 5, 3), name="x"), adapter(linear("fc", 5, 3), name="y")]
    assert len(attach.find_sites(made, both)) == 1


def test_the_prefix_of_the_others_settles_a_short_path(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x m.body.fc.weight", "h"),
        node("MatMul", "h m.head.weight", "p"),
        node("MatMul", "h m.body.side.head.weight", "q"),
        node("Add", "p q", "y"),
    ]
    weights = {
        "m.body.fc.weight": values(4, 4), "m.head.weight": values(4, 4, seed=1),
        "m.body.side.head.weight": values(4, 4, seed=2),
    }  # fmt: skip
    made = program(tmp_path, nodes, weights, {"x": ["b", 4]})
    _, head = found(made, linear("body.fc", 4, 4), linear("head", 4, 4))
    assert np.array_equal(array(made, head), weights["m.head.weight"].T)


def test_names_of_onnxruntime_genai(tmp_path: Path) -> None:
    made = product(tmp_path, "model.layers.0.attn.q_proj.MatMul.weight")
    assert one(made, linear("model.layers.0.self_attn.q_proj", 5, 3)).size == 5


def test_all_sites(tmp_path: Path) -> None:
    made = tied(tmp_path)
    assert [(s.module, s.kind) for s in attach.all_sites(made)] == [("lm_head", "linear")]
    both = [("lm_head", "linear"), ("wte", "embedding")]
    assert [(s.module, s.kind) for s in attach.all_sites(made, "wte,lm_head")] == both
    assert [(s.module, s.kind) for s in attach.all_sites(made, ".*(te|head)")] == both
    for pattern, said in (
        ("wte,nothing", "no module of the model fits `nothing`"),
        (".*nothing", "no module of the model fits it"),
        ("wte(", "no regular expression"),
    ):
        with pytest.raises(CuvilError, match=f"CUV744.*{said}"):
            attach.all_sites(made, pattern)


def test_a_use_that_does_not_tell_the_orientation(tmp_path: Path) -> None:
    """Sizes do, unless they are equal."""
    for n in (4, 3):
        nodes = [node("Concat", "fc.weight fc.weight", "w", axis=0), node("MatMul", "x w", "y")]
        made = program(
            tmp_path, nodes, {"fc.weight": values(BIG, n * BIG // 4)}, {"x": ["b", 2 * BIG]}
        )
        if n == 3:
            assert one(made, linear("fc", n * BIG // 4, BIG)).out_axis == 1
        else:
            error = refused(made, linear("fc", BIG, BIG))
            assert error.code == "CUV722" and "does not tell which axis" in error.evidence


def test_names_are_read_in_bounded_time(tmp_path: Path) -> None:
    made = product(tmp_path, "fc" + ".1" * 100_000, "/" + "a." * 100_000 + "/MatMul")
    assert refused(made, linear("fc", 5, 3)).code == "CUV720"


@pytest.mark.parametrize(
    "text",
    [
        "['', 'm', 'm.layers.0', 'linear']", "['']", "[]", "['a','b']", '["it\'s", \'b\']',
        "['a', 3]",
        r"['a\'b']", r"['a\n']", "['a', 'b'", "['a'] ", "'a'", "['a' 'b']", "[', ']",
    ],
)  # fmt: skip
def test_scopes_are_read_as_python_would(text: str) -> None:
    try:
        found = ast.literal_eval(text)
    except SyntaxError:
        found = None
    expected = tuple(map(str, found)) if isinstance(found, list) else ()
    assert import_module("cuvilc.import.onnx_origins")._strings(text) == expected
