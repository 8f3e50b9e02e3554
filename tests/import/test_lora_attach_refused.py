"""What does not attach, and what settles it: the adapter map, the base checkpoint, structure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.adapter import ModuleChange, Rows
from cuvilc.diagnostics import CuvilError

from .lora_graphs import (
    adapter,
    array,
    attach,
    checkpoint,
    convolution,
    found,
    linear,
    node,
    one,
    program,
    refused,
    values,
)


def two(folder: Path, first: str, second: str, nodes: tuple[str, str] = ("a", "b")) -> Any:
    """y = x · W · V, both [4, 4]."""
    made = [
        node("MatMul", f"x {first}", "h", nodes[0]),
        node("MatMul", f"h {second}", "y", nodes[1]),
    ]
    weights = {first: values(4, 4), second: values(4, 4, seed=1)}
    return program(folder, made, weights, {"x": ["b", 4]})


def mapped(folder: Path, entries: Any) -> Path:
    path = folder / "map.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries), "utf-8")
    return path


# What is not there.


def test_a_module_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    made = two(tmp_path, "layers.0.q_proj.weight", "layers.0.k_proj.weight")
    error = refused(made, linear("layers.0.q_porj", 4, 4))
    assert error.code == "CUV720"
    assert error.message == "adapter `x`: `layers.0.q_porj.weight` is not in the model"
    assert error.evidence == "layers.0.q_porj.lora_A.weight"
    assert "`layers.0.q_proj`" in error.notes[0]
    said = 'if it belongs to this model, --adapter-map map.json with {"layers.0.q_porj": "'
    assert error.help.startswith(said)


def test_a_model_exported_with_an_adapter_in_it_says_so(tmp_path: Path) -> None:
    """A map would put a second adapter upon the first."""
    paths = [f"base_model.model.layers.0.{n}_proj.base_layer.weight" for n in "qk"]
    error = refused(two(tmp_path, *paths), linear("layers.0.q_proj", 4, 4))
    assert error.code == "CUV720" and "adapter-map" not in error.help
    assert "exported with PEFT's layers in it" in error.help


def test_everything_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    made = two(tmp_path, "fc.weight", "fd.weight")
    with pytest.raises(CuvilError) as caught:
        found(made, linear("fa", 4, 4), linear("fc", 4, 4), linear("fb", 4, 4))
    assert [d.code for d in caught.value.diagnostics] == ["CUV720"] * 2


def test_an_adapter_of_another_model_is_told_in_few_words(tmp_path: Path) -> None:
    """Once for all its modules; what another adapter lacks is told as ever."""
    made = two(tmp_path, "fc.weight", "fd.weight")
    strange = adapter(*(linear(f"h.{i}.q", 4, 4) for i in range(30)), name="strange")
    mine = adapter(linear("fc", 4, 4), linear("fb", 4, 4), name="mine")
    with pytest.raises(CuvilError) as caught:
        attach.find_sites(made, [strange])
    (told,) = caught.value.diagnostics
    assert told.message.startswith("none of the 30 modules that adapter `strange` changes is in")
    assert told.evidence.splitlines() == [
        "the adapter has `h.0.q`, `h.1.q`, `h.2.q` and 27 more", "the model has `fc`, `fd`"
    ]  # fmt: skip
    assert "adapter-map" not in str(caught.value)
    with pytest.raises(CuvilError) as caught:
        attach.find_sites(made, [strange, mine])
    first, second = caught.value.diagnostics
    assert "strange" in first.message and "adapter `mine`: `fb.weight`" in second.message


def test_a_model_without_names_says_so(tmp_path: Path) -> None:
    made = two(tmp_path, "onnx::MatMul_1", "onnx::MatMul_2")
    error = refused(made, linear("layers.0.q_proj", 4, 4))
    assert error.code == "CUV720" and "no names that are paths" in error.notes[0]


def test_parts_of_a_model_are_not_taken_for_each_other(tmp_path: Path) -> None:
    made = two(tmp_path, "m.layers.0.fc.weight", "m.layers.1.fc.weight")
    assert refused(made, linear("encoder.layers.0.fc", 4, 4)).code == "CUV720"
    assert refused(made, linear("layers.2.fc", 4, 4)).code == "CUV720"


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    made = program(tmp_path, [node("MatMul", "x fc.weight", "y")], {"fc.weight": values(3, 5)},
                   {"x": ["b", 3]})  # fmt: skip
    error = refused(made, linear("fc", 6, 3))
    assert error.code == "CUV722"
    assert "it has 5 outputs of 3 inputs, the adapter's has 6 outputs of 3 inputs" in error.evidence
    assert refused(made, linear("fc", 3, 5)).code == "CUV722"  # the product says what is what
    assert "convolution" in refused(made, convolution("fc", 5, 3)).evidence


def test_a_stack_of_matrices(tmp_path: Path) -> None:
    """The weights of experts, say: no one matrix of them is the module's."""
    nodes = [node("MatMul", "x fc.weight", "y")]
    made = program(tmp_path, nodes, {"fc.weight": values(2, 4, 4)}, {"x": ["b", 2, 3, 4]})
    assert refused(made, linear("fc", 4, 4)).code == "CUV722"
    rows = Rows((0,), np.ones((1, 4), np.float32))
    assert refused(made, ModuleChange("fc", rows=rows, tensors=("fc",))).code == "CUV722"


def test_a_parameter_that_is_not_there(tmp_path: Path) -> None:
    made = two(tmp_path, "fc.weight", "fd.weight")
    replaced = {"scale": values(4)}
    error = refused(made, ModuleChange("fc", replaced=replaced, tensors=("fc.scale",)))
    assert error.code == "CUV723" and "`fc` has no `scale`" in error.message


def test_a_batch_normalization_is_no_parameter_any_more(tmp_path: Path) -> None:
    nodes = [node("BatchNormalization", "x bn.weight bn.bias m v", "y", "/bn/BatchNormalization")]
    weights = {
        "bn.weight": values(3),
        "bn.bias": values(3),
        "m": values(3),
        "v": np.ones(3, np.float32),
    }
    made = program(tmp_path, nodes, weights, {"x": ["b", 3, 4]})
    assert refused(made, ModuleChange("bn", replaced={"weight": values(3)})).code == "CUV720"


def test_a_prefix_is_not_lost_where_others_have_it(tmp_path: Path) -> None:
    """`block.conv` is not `conv` in a model that has a `block`, nor of sizes that it has not."""
    made = two(tmp_path, "conv.weight", "block.fc.weight")
    assert refused(made, linear("block.conv", 4, 4)).code == "CUV720"
    nodes = [node("MatMul", "x conv.weight", "h"), node("MatMul", "h block.conv.weight", "y")]
    weights = {"conv.weight": values(4, 4), "block.conv.weight": values(4, 5)}
    made = program(tmp_path, nodes, weights, {"x": ["b", 4]})
    assert refused(made, linear("block.conv", 4, 4)).code == "CUV722"


def test_a_prefix_is_lost_by_all_or_none(tmp_path: Path) -> None:
    """An adapter of which one module is in the model by its very name has no other prefixes."""
    for there, sought in (("conv", "block.conv"), ("block.conv", "conv")):
        made = two(tmp_path, f"{there}.weight", "fc.weight")
        assert one(made, linear(sought, 4, 4)).size == 4
        error = refused(made, linear("fc", 4, 4), linear(sought, 4, 4))
        assert error.code == "CUV720" and f"`{sought}.weight`" in error.message


# What is not the module's own.


def convolves(folder: Path, name: str, label: str) -> Any:
    return program(folder, [node("Conv", f"x {name}", "y", label)], {name: values(4, 3, 2, 2)},
                   {"x": ["b", 3, 5, 5]})  # fmt: skip


def test_a_convolution_whose_weight_lost_its_name(tmp_path: Path) -> None:
    """The TorchScript exporter does so where it multiplies a BatchNormalization into it."""
    change = convolution("conv", 4, 3, 2, 2)
    for name in ("onnx::Conv_35", "ConvBnFusion_W_conv.weight"):
        made = convolves(tmp_path, name, "/conv/Conv")
        assert refused(made, change).code == "CUV724"
        own = checkpoint(tmp_path, {"conv.weight": values(4, 3, 2, 2)})
        assert one(made, change, base_weights=own).size == 4  # it is unchanged
        other = checkpoint(tmp_path, {"conv.weight": values(4, 3, 2, 2) * 2})
        assert refused(made, change, base_weights=other).code == "CUV725"


def test_a_weight_into_which_an_optimiser_multiplied_a_normalisation(tmp_path: Path) -> None:
    """The dynamo exporter's keeps the name, and says in the metadata what it did."""
    conv = node("Conv", "x conv.weight", "y", "node_Conv_21")
    for key, value in (
        ("pkg.torch.onnx.name_scopes", "['', 'bn', 'batch_norm']"),
        ("pkg.torch.onnx.class_hierarchy", "['A', 'BatchNorm2d', 'aten.batch_norm.default']"),
        ("pkg.onnxscript.rewriter.rule_name", "FuseBatchNormIntoConv"),
    ):
        entry = conv.metadata_props.add()
        entry.key, entry.value = key, value
    made = program(tmp_path, [conv], {"conv.weight": values(4, 3, 2, 2)}, {"x": ["b", 3, 5, 5]})
    error = refused(made, convolution("conv", 4, 3, 2, 2))
    assert error.code == "CUV724" and "`bn (FuseBatchNormIntoConv)`" in error.message


def test_another_base(tmp_path: Path) -> None:
    made = two(tmp_path, "fc.weight", "fd.weight")
    base = checkpoint(tmp_path, {"fc.weight": values(4, 4), "fd.weight": values(4, 4, seed=1).T})
    error = refused(made, linear("fc", 4, 4), base_weights=base)
    assert error.code == "CUV725" and "`fc.weight`" in error.evidence  # that is its transpose
    assert one(made, linear("fd", 4, 4), base_weights=base).size == 4


# What could be several.


def test_two_modules_of_one_ending(tmp_path: Path) -> None:
    made = two(tmp_path, "a.fc.weight", "b.fc.weight")
    error = refused(made, linear("fc", 4, 4))
    assert error.code == "CUV721"
    assert "`a.fc.weight` [4, 4] of `a.fc`: the name `a.fc.weight`" in error.evidence
    assert "`b.fc.weight` [4, 4] of `b.fc`: the name `b.fc.weight`" in error.evidence
    settled = mapped(tmp_path, {"fc": "b.fc.weight"})
    assert np.array_equal(
        array(made, one(made, linear("fc", 4, 4), adapter_map=settled)), values(4, 4, seed=1).T
    )
    base = checkpoint(tmp_path, {"fc.weight": values(4, 4).T})
    assert np.array_equal(
        array(made, one(made, linear("fc", 4, 4), base_weights=base)), values(4, 4).T
    )


def test_two_modules_of_the_adapter_for_one_of_the_model(tmp_path: Path) -> None:
    made = two(tmp_path, "fc.weight", "fd.weight")
    error = refused(made, linear("a.fc", 4, 4), linear("b.fc", 4, 4))
    assert error.code == "CUV721" and "would both change `fc.weight`" in error.message


def test_two_weights_in_one_module(tmp_path: Path) -> None:
    made = two(tmp_path, "val_1", "val_2", ("/fc/MatMul", "/fc/MatMul_1"))
    error = refused(made, linear("fc", 4, 4))
    assert error.code == "CUV721" and "holds several weights" in error.message


def test_a_replaced_weight_that_is_read_in_two_ways(tmp_path: Path) -> None:
    nodes = [
        node("Gather", "e.weight ids", "x", "a"),
        node("Transpose", "e.weight", "t", "b", perm=[1, 0]),
        node("MatMul", "x t", "y", "c"),
    ]
    made = program(tmp_path, nodes, {"e.weight": values(80, 60)}, {"ids": ["b", "s"]})
    error = refused(made, ModuleChange("e", replaced={"weight": values(80, 60)}))
    assert error.code == "CUV721" and "embedding and as linear" in error.message


def test_equal_weights_of_nodes_without_names(tmp_path: Path) -> None:
    """onnxruntime keeps one of two norms that are all ones, and its own nodes have no paths."""
    for second in ("b", "/other/LayerNormalization"):
        nodes = [
            node("LayerNormalization", "x norm.weight z", "h", "a"),
            node("LayerNormalization", "h norm.weight z", "y", second),
        ]
        weights = {"norm.weight": np.ones(4, np.float32), "z": np.zeros(4, np.float32)}
        made = program(tmp_path, nodes, weights, {"x": ["b", 4]})
        change = ModuleChange("norm", replaced={"weight": values(4)})
        error = refused(made, change)
        assert error.code == "CUV721" and "other modules have this weight too" in error.message
        settled = one(made, change, adapter_map=mapped(tmp_path, {"norm": "a"}))
        assert len(settled.uses) == 1


def test_one_turned_copy_for_two_modules(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", "a.weight", "t", "/a/Transpose", perm=[1, 0]),
        node("MatMul", "x t", "h", "/a/MatMul"),
        node("MatMul", "h t", "y", "/b/MatMul"),
    ]
    made = program(tmp_path, nodes, {"a.weight": values(80, 80)}, {"x": ["b", 80]})
    error = refused(made, linear("a", 80, 80))
    assert error.code == "CUV721" and "serves `b` too" in error.message


# Names that are lost altogether.


def test_the_base_checkpoint_finds_what_names_do_not(tmp_path: Path) -> None:
    made = two(tmp_path, "onnx::MatMul_1", "onnx::MatMul_2")
    base = checkpoint(
        tmp_path,
        {"m.q.weight": values(4, 4, seed=1).T, "m.k.weight": values(4, 4).T, "z": values(3)},
    )
    for path, seed in (("q", 1), ("k", 0)):
        site = one(made, linear(path, 4, 4), base_weights=base)
        assert np.array_equal(array(made, site), values(4, 4, seed=seed).T)
        assert f"the values of `m.{path}.weight`" in site.evidence
    folder = tmp_path / "shards"
    folder.mkdir()
    base.rename(folder / "model-00001-of-00001.safetensors")
    assert one(made, linear("q", 4, 4), base_weights=folder).size == 4
    none = refused(made, linear("v", 4, 4), base_weights=folder)
    assert none.code == "CUV720"


def test_values_that_several_weights_have(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x val_1", "h", "a"), node("MatMul", "h val_2", "y", "b")]
    weights = {"val_1": values(4, 4), "val_2": values(4, 4)}
    made = program(tmp_path, nodes, weights, {"x": ["b", 4]})
    base = checkpoint(tmp_path, {"fc.weight": values(4, 4).T})
    assert refused(made, linear("fc", 4, 4), base_weights=base).code == "CUV721"


def test_values_are_compared_as_the_model_rounds_them(tmp_path: Path) -> None:
    weights = {"val_1": values(3, 5).astype(np.float16)}
    nodes = [node("Cast", "val_1", "w", to=1), node("MatMul", "x w", "y")]
    made = program(tmp_path, nodes, weights, {"x": ["b", 3]}, opset=17)
    base = checkpoint(tmp_path, {"fc.weight": values(3, 5).T})
    assert one(made, linear("fc", 5, 3), base_weights=base).size == 5


def test_no_base_weights_in_a_folder(tmp_path: Path) -> None:
    made = two(tmp_path, "fc.weight", "fd.weight")
    folder = tmp_path / "empty"
    folder.mkdir()
    assert refused(made, linear("fc", 4, 4), base_weights=folder).code == "CUV701"
    error = refused(made, linear("fc", 4, 4), base_weights=tmp_path / "nope")
    assert error.code == "CUV701" and error.place == str(tmp_path / "nope")
    assert error.message.startswith("cannot read the base weights (`--base-weights`): No such")


def test_a_convolutions_bias_goes_with_its_weight(tmp_path: Path) -> None:
    nodes = [node("Conv", "x val_1 val_2", "y")]
    weights = {"val_1": values(4, 3, 2, 2), "val_2": values(4)}
    made = program(tmp_path, nodes, weights, {"x": ["b", 3, 5, 5]})
    base = checkpoint(tmp_path, {"conv.weight": values(4, 3, 2, 2)})
    change = replace(convolution("conv", 4, 3, 2, 2), replaced={"bias": values(4, seed=3)})
    _, bias = found(made, change, base_weights=base)
    assert np.array_equal(array(made, bias), values(4))


# Q, K and V in one matrix.

WIDTH, HEADS = 8, 2


def fused(folder: Path, scope: str = "/l.0/attention/output/dense/MatMul") -> Any:
    """com.microsoft.Attention as onnxruntime's optimiser makes it, and the layer behind it."""
    nodes = [
        node("Attention", "x qkv_weight qkv_bias", "a", "Attention_0", domain="com.microsoft",
             num_heads=HEADS),
        node("MatMul", "a onnx::MatMul_9", "y", scope),
    ]  # fmt: skip
    weights = {
        "qkv_weight": values(WIDTH, 3 * WIDTH), "qkv_bias": values(3 * WIDTH),
        "onnx::MatMul_9": values(WIDTH, WIDTH),
    }  # fmt: skip
    return program(folder, nodes, weights, {"x": ["b", "s", WIDTH]})


@pytest.mark.parametrize(
    ("paths", "scope"),
    [
        (("l.0.attention.self.query", "l.0.attention.self.key", "l.0.attention.self.value"),
         "/m/l.0/attention/output/dense/MatMul"),
        (("l.0.self_attn.q_proj", "l.0.self_attn.k_proj", "l.0.self_attn.v_proj"),
         "/l.0/self_attn/o_proj/MatMul"),
    ],
)  # fmt: skip
def test_a_merged_matrix_by_what_attention_makes_of_it(
    tmp_path: Path, paths: tuple[str, ...], scope: str
) -> None:
    made = fused(tmp_path, scope)
    for i, path in enumerate(paths):
        weight, bias = found(made, linear(path, WIDTH, WIDTH, bias=True))
        assert (weight.out_axis, weight.start, weight.size) == (1, i * WIDTH, WIDTH)
        assert (bias.out_axis, bias.start, bias.size) == (0, i * WIDTH, WIDTH)
        part = slice(i * WIDTH, (i + 1) * WIDTH)
        assert np.array_equal(array(made, weight), values(WIDTH, 3 * WIDTH).T[part])
        assert np.array_equal(array(made, bias), values(3 * WIDTH)[part])


def test_a_merged_matrix_of_another_layer(tmp_path: Path) -> None:
    made = fused(tmp_path)
    assert refused(made, linear("l.1.attention.self.query", WIDTH, WIDTH)).code == "CUV720"
    assert refused(made, linear("l.0.crossattention.self.query", WIDTH, WIDTH)).code == "CUV720"


def test_a_merged_matrix_by_values_and_by_the_map(tmp_path: Path) -> None:
    made = fused(tmp_path, "anything")
    key = linear("l.0.self_attn.k_proj", WIDTH, WIDTH, bias=True)
    assert refused(made, linear(key.path, WIDTH, WIDTH)).code == "CUV720"
    own = values(WIDTH, 3 * WIDTH).T[WIDTH : 2 * WIDTH]
    base = checkpoint(tmp_path, {"model.l.0.self_attn.k_proj.weight": own})
    entry = {"name": "qkv_weight", "outputs": [WIDTH, WIDTH]}
    by_node = {"name": "Attention_0", "outputs": [WIDTH, WIDTH]}
    for options in (
        {"base_weights": base},
        {"adapter_map": mapped(tmp_path, {key.path: entry})},
        {"adapter_map": mapped(tmp_path, {f"{key.path}.weight": by_node})},
    ):
        weight, bias = found(made, key, **options)
        assert (weight.start, weight.size, bias.start) == (WIDTH, WIDTH, WIDTH)
        assert np.array_equal(array(made, weight), own)


# The adapter map itself.


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("{", "the adapter map is no JSON"),
        ("[]", "the adapter map is no JSON object"),
        ('{"a": "b", "a": "c"}', "`a` stands there twice"),
        ({"fc": 3}, "`fc` must be a name"),
        ({"fc": {"name": "fc.weight", "axis": 1}}, "`fc` must be a name"),
        ({"fc": {"name": "fc.weight", "outputs": [0]}}, "must be two numbers"),
        ({"fc": {"name": "fc.weight", "outputs": [0, True]}}, "must be two numbers"),
        ({"fe": "fc.weight"}, "no adapter changes `fe`"),
        ({"fc.bias": "fc.weight"}, "no adapter changes `fc.bias`"),
        ({"fc": "fc.wieght"}, "which is no weight or node with one"),
    ],
)
def test_a_map_that_is_not_right(tmp_path: Path, entries: Any, message: str) -> None:
    made = two(tmp_path, "fc.weight", "fd.weight")
    error = refused(made, linear("fc", 4, 4), adapter_map=mapped(tmp_path, entries))
    assert error.code == "CUV726" and message in error.message
    assert error.place == str(tmp_path / "map.json")


def test_no_map(tmp_path: Path) -> None:
    made = two(tmp_path, "fc.weight", "fd.weight")
    error = refused(made, linear("fc", 4, 4), adapter_map=tmp_path / "none.json")
    assert error.code == "CUV726"
    assert error.message.startswith("the adapter map cannot be read: No such file")


@pytest.mark.parametrize("outputs", [[0, 3], [1, 4], [4, 4]])
def test_outputs_that_do_not_fit(tmp_path: Path, outputs: list[int]) -> None:
    made = two(tmp_path, "fc.weight", "fd.weight")
    settings = mapped(tmp_path, {"fc": {"name": "fc.weight", "outputs": outputs}})
    assert refused(made, linear("fc", 4, 4), adapter_map=settings).code == "CUV722"


def test_the_map_goes_before_names(tmp_path: Path) -> None:
    made = two(tmp_path, "fc.weight", "fd.weight")
    settings = mapped(tmp_path, {"fc": "b"})
    site = one(made, linear("fc", 4, 4), adapter_map=settings)
    assert np.array_equal(array(made, site), values(4, 4, seed=1).T)
    assert site.evidence == "the adapter map: `b`"
