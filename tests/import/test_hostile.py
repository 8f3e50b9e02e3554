"""Files that are wrong or malicious: each is refused with its diagnostic, none with a traceback."""

from __future__ import annotations

import contextlib
import os
import pickle
import zipfile
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cuvilc.diagnostics import CuvilError
from cuvilc.driver import BuildRequest, build

from .builders import code, load, model, node, refusal, saved, tensor

digest = import_module("cuvilc.import.onnx_wire").digest
X = tensor("x", [2, 3])
RELU = [node("Relu", "x", "y")]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert code(tmp_path / "absent.onnx") == "CUV112"
    assert code(tmp_path) == "CUV112"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"hello world, this is no model", "text"),
        (pickle.dumps({"a": 1}), "pickle"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "PNG"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (bytes(64), "unknown"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    error = refusal(path)
    assert error.diagnostics[0].code == "CUV101"
    assert says in error.diagnostics[0].message


def test_zip_and_torchscript_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("model/data.pkl", b"x")
    error = refusal(path)
    assert error.diagnostics[0].code == "CUV101"
    assert "TorchScript" in error.diagnostics[0].message


def test_truncated_everywhere(tmp_path: Path) -> None:
    """A file cut at any byte is refused: as truncated, or as no model where nothing tells."""
    weights = {"w": np.ones((64, 64), np.float32)}
    whole = model([node("MatMul", "x w", "y")], [tensor("x", [2, 64])], ["y"], weights)
    data = whole.SerializeToString()
    path = tmp_path / "model.onnx"
    for size in range(2, len(data) - 1, 509):
        path.write_bytes(data[:size])
        assert code(path) in ("CUV101", "CUV102"), size


def test_a_refused_file_is_read_no_further() -> None:
    """Cutting a file that a thread still reads through its mapping would end the process."""
    with contextlib.suppress(RuntimeError), digest(bytes(1 << 26)) as found:
        raise RuntimeError("refused")
    assert found.done()
    assert found.result() != sha256(bytes(1 << 26)).hexdigest(), "it was not read to its end"


def test_the_digest_is_of_the_whole_file() -> None:
    data = bytes(range(256)) * (1 << 15)
    with digest(data) as found:
        assert found.result() == sha256(data).hexdigest()


def test_flipped_bytes_never_crash(tmp_path: Path) -> None:
    data = bytearray(model(RELU, [X], ["y"]).SerializeToString())
    path = tmp_path / "model.onnx"
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 0xFF
        path.write_bytes(broken)
        with contextlib.suppress(pytest.fail.Exception):  # the byte did not matter
            refusal(path)


def test_newer_ir_and_opset(tmp_path: Path) -> None:
    assert code(saved(tmp_path, model(RELU, [X], ["y"], ir_version=99))) == "CUV103"
    assert code(saved(tmp_path, model(RELU, [X], ["y"], opset=999))) == "CUV103"


def test_all_unsupported_operators_at_once(tmp_path: Path) -> None:
    nodes = [
        node("StringNormalizer", "x", "a"),
        node("Relu", "x", "b"),
        node("ImageDecoder", "x", "c"),
        node("StringNormalizer", "x", "d"),
        node("Resize", "x  s", "e", coordinate_transformation_mode="sideways"),
    ]
    weights = {"s": np.ones(2, np.float32)}
    nodes[-1].input[:] = ["x", "", "s"]
    path = saved(tmp_path, model(nodes, [X], ["a", "b", "c", "d", "e"], weights, 20))
    found = refusal(path).diagnostics
    assert [d.code for d in found] == ["CUV104"] * 3
    assert "StringNormalizer" in found[0].message
    assert "2 nodes" in found[0].notes[0]
    assert "the other node imports" in found[0].notes[1]
    assert "sideways" in found[2].message


def test_unsupported_and_data_dependent_together(tmp_path: Path) -> None:
    nodes = [
        node("StringNormalizer", "x", "a"),
        node("Cast", "x", "i", to=TensorProto.INT64),
        node("Reshape", "x i", "b"),
    ]
    found = refusal(saved(tmp_path, model(nodes, [X], ["a", "b"]))).diagnostics
    assert [d.code for d in found] == ["CUV104", "CUV109"]
    assert "Reshape_b" in found[1].message
    assert "f32[2,3]" in found[1].evidence


def test_graph_faults(tmp_path: Path) -> None:
    circle = [node("Add", "x b", "a"), node("Relu", "a", "b")]
    error = refusal(saved(tmp_path, model(circle, [X], ["b"])))
    assert error.diagnostics[0].code == "CUV105"
    assert "Add_a" in error.diagnostics[0].evidence
    for nodes, outputs in (
        ([node("Relu", "nothing", "y")], ["y"]),
        ([node("Relu", "x", "y"), node("Abs", "x", "y")], ["y"]),
        (RELU, ["z"]),
        ([node("Relu", "x", "x")], ["x"]),
    ):
        assert code(saved(tmp_path, model(nodes, [X], outputs))) == "CUV105"


def test_unsorted_nodes_are_accepted(tmp_path: Path) -> None:
    nodes = [node("Abs", "a", "y"), node("Relu", "x", "a")]
    load(tmp_path, model(nodes, [X], ["y"])).verify()


def test_string_and_sequence_types(tmp_path: Path) -> None:
    text = [tensor("x", [2], TensorProto.STRING)]
    assert code(saved(tmp_path, model([node("Identity", "x", "y")], text, ["y"]))) == "CUV111"
    several = helper.make_tensor_sequence_value_info("x", onnx.TensorProto.FLOAT, None)
    nodes = [node("SequenceLength", "x", "y")]
    codes = [d.code for d in refusal(saved(tmp_path, model(nodes, [several], ["y"]))).diagnostics]
    assert "CUV111" in codes


def test_node_that_does_not_fit(tmp_path: Path) -> None:
    weights = {"w": np.ones((4, 5), np.float32)}
    error = refusal(saved(tmp_path, model([node("MatMul", "x w", "y")], [X], ["y"], weights)))
    found = error.diagnostics[0]
    assert found.code == "CUV110"
    assert "node 0 `MatMul_y`" in found.place
    assert found.evidence == "%y = MatMul(%x: f32[2,3], %w: f32[4,5])"


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (node("Einsum", "x x", "y"), "`equation` is missing"),
        (node("If", "c", "y"), "branch` is missing"),
        (node("Cast", "x", "y"), "`to` is missing"),
        (node("Concat", "x x", "y", axis=1.5), "`axis` must be of type INT"),
        (node("Transpose", "x", "y", perm=1), "`perm` must be of type INTS"),
        (node("LeakyRelu", "x", "y", alpha="much"), "`alpha` must be of type FLOAT"),
    ],
)
def test_attributes_that_are_missing_or_of_another_type(
    tmp_path: Path, broken: onnx.NodeProto, fault: str
) -> None:
    inputs = [X, tensor("c", [], TensorProto.BOOL)]
    for opset in (17, 11):
        found = refusal(saved(tmp_path, model([broken], inputs, ["y"], opset=opset)))
        assert found.diagnostics[0].code == "CUV110"
        assert fault in found.diagnostics[0].message


def test_weights_that_lie(tmp_path: Path) -> None:
    for dims in ([5, 5], [-1, 4], [1 << 40, 1 << 40]):
        proto = model([node("Add", "x w", "y")], [X], ["y"], {"w": np.ones((2, 3), np.float32)})
        del proto.graph.initializer[0].dims[:]
        proto.graph.initializer[0].dims.extend(dims)
        assert code(saved(tmp_path, proto)) == "CUV106"


def external(location: str, offset: str = "0", length: str = "24") -> onnx.ModelProto:
    proto = model([node("Add", "x w", "y")], [X], ["y"], {"w": np.ones((2, 3), np.float32)})
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        weight.external_data.add(key=key, value=value)
    return proto


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """(the model's folder with data.bin in it, the same file's data outside)."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "data.bin").write_bytes(np.ones(6, np.float32).tobytes())
    outside = tmp_path / "secret.bin"
    outside.write_bytes(bytes(24))
    return inside, outside


def test_external_data_is_read(folders: tuple[Path, Path]) -> None:
    program = load(folders[0], external("data.bin"))
    assert np.array_equal(program.weights["w"], np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("location", "offset", "length"),
    [
        ("../secret.bin", "0", "24"),
        ("", "0", "24"),
        ("absent.bin", "0", "24"),
        ("data.bin", "8", "24"),
        ("data.bin", "-8", "24"),
        ("data.bin", "x", "24"),
        ("sub/../data.bin", "0", "24"),
        ("c:\\data.bin", "0", "24"),
        (".", "0", "24"),
    ],
)
def test_external_data_faults(
    folders: tuple[Path, Path], location: str, offset: str, length: str
) -> None:
    assert code(saved(folders[0], external(location, offset, length))) == "CUV107"


def test_external_data_absolute_or_linked(folders: tuple[Path, Path]) -> None:
    inside, outside = folders
    assert code(saved(inside, external(str(outside)))) == "CUV107"
    (inside / "link.bin").symlink_to(outside)
    assert code(saved(inside, external("link.bin"))) == "CUV107"
    os.link(outside, inside / "hard.bin")
    assert code(saved(inside, external("hard.bin"))) == "CUV107"


def test_external_data_of_wrong_size(folders: tuple[Path, Path]) -> None:
    assert code(saved(folders[0], external("data.bin", length="20"))) == "CUV106"


def test_recursive_functions(tmp_path: Path) -> None:
    body = [helper.make_node("loop", ["x"], ["y"], domain="own")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "loop", ["x"], ["y"], body, opsets)
    proto = model([helper.make_node("loop", ["x"], ["y"], domain="own")], [X], ["y"])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.functions.append(function)
    assert code(saved(tmp_path, proto)) in ("CUV104", "CUV105")


def test_every_code_has_a_page() -> None:
    from cuvilc.diagnostics import CODES

    mine = {name: page for name, page in CODES.items() if name.startswith("CUV1")}
    assert set(mine) >= {f"CUV{n}" for n in range(101, 115)}
    assert all("\n" in page.help for page in mine.values())


def test_functions_that_double_or_call_each_other(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def calling(name: str, called: str) -> onnx.FunctionProto:
        calls = [helper.make_node(called, [a], [b], domain="own") for a, b in ("ac", "cb")]
        return helper.make_function("own", name, ["a"], ["b"], calls, opsets)

    leaf = helper.make_function("own", "f0", ["a"], ["b"], [node("Relu", "a", "b")], opsets)
    proto = model([helper.make_node("f30", ["x"], ["y"], domain="own")], [X], ["y"])
    proto.opset_import.append(opsets[1])
    proto.functions.extend([leaf, *(calling(f"f{i + 1}", f"f{i}") for i in range(30))])
    found = refusal(saved(tmp_path, proto)).diagnostics[0]
    assert (found.code, f"{2**30} nodes" in found.message) == ("CUV105", True)
    proto.functions[1].node[0].op_type = "f2"
    found = refusal(saved(tmp_path, proto)).diagnostics[0]
    assert (found.code, "calls itself" in found.message) == ("CUV105", True)


def test_sizes_beyond_any_machine(tmp_path: Path) -> None:
    wide = tensor("x", [1 << 62, 4])
    assert code(saved(tmp_path, model(RELU, [wide], ["y"]))) == "CUV106"
    nodes = [node("Concat", "x x", "v0", axis=0)]
    nodes += [node("Concat", f"v{i} v{i}", f"v{i + 1}", axis=0) for i in range(60)]
    found = refusal(saved(tmp_path, model(nodes, [X], ["v60"]))).diagnostics[0]
    assert (found.code, "more bytes than" in found.message) == ("CUV110", True)


def test_values_that_do_not_fit_together(tmp_path: Path) -> None:
    """Each is 64 TiB, which could be addressed; three at one time could not."""
    x = tensor("x", [1 << 44])
    nodes = [
        *(node(op, "x", op) for op in ("Exp", "Sin", "Cos")),
        *(node("Softmax", op, f"s{op}", axis=0) for op in ("Exp", "Sin", "Cos")),
        node("Sum", "sExp sSin sCos", "t"),
        node("Softmax", "t", "y", axis=0),
    ]
    path = saved(tmp_path, model(nodes, [x], ["y"]))
    with pytest.raises(CuvilError) as caught:
        build(BuildRequest(path, tmp_path / "y.cuvil", target="null", vectors=0))
    assert caught.value.diagnostics[0].code == "CUV303"


def test_sizes_that_grow_as_expressions(tmp_path: Path) -> None:
    nodes, at = [], "x"
    for i in range(12):
        nodes += [
            node("Shape", at, f"s{i}"),
            node("Mul", f"s{i} s{i}", f"m{i}"),
            node("Add", f"m{i} s{i}", f"a{i}"),
            node("ConstantOfShape", f"a{i}", f"v{i}"),
        ]
        at = f"v{i}"
    found = refusal(saved(tmp_path, model(nodes, [tensor("x", ["n"])], [at]))).diagnostics[0]
    assert (found.code, "expression" in found.message or "terms" in found.message) == (
        "CUV110",
        True,
    )


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """In a function and in a graph inside a node, too."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    own = helper.make_function("own", "f", ["a"], ["b"], [node("Relu", "a", "b")], opsets)
    proto = model([helper.make_node("f", ["x"], ["y"], domain="own")], [X], ["y"])
    proto.opset_import.append(opsets[1])
    proto.functions.append(own)
    data = proto.SerializeToString()
    assert data.count(b"Relu") >= 1
    path = tmp_path / "model.onnx"
    path.write_bytes(data.replace(b"Relu", b"R\xff\xfeu"))
    assert code(path) == "CUV102"


def test_a_sequence_where_a_tensor_is_needed(tmp_path: Path) -> None:
    proto = model([node("SequenceConstruct", "x x", "s"), node("Relu", "s", "y")], [X], ["y"])
    found = refusal(saved(tmp_path, proto)).diagnostics[0]
    assert found.code == "CUV110"


def test_zero_points_that_vary_along_the_sum(tmp_path: Path) -> None:
    bytes_ = TensorProto.UINT8
    inputs = [tensor(n, s, bytes_) for n, s in (("a", [4, 3]), ("b", [3, 2]), ("z", [3, 2]))]
    nodes = [node("MatMulInteger", "a b one z", "y")]
    proto = model(nodes, inputs, ["y"], {"one": np.zeros(1, np.uint8)})
    assert code(saved(tmp_path, proto)) == "CUV110"


def test_pads_beyond_any_size(tmp_path: Path) -> None:
    """Of an open size, where only the sum of both would tell."""
    pads = {"p": np.array([2**63 - 1, 0], np.int64)}
    proto = model([node("Pad", "x p", "y")], [tensor("x", ["n"])], ["y"], pads)
    found = refusal(saved(tmp_path, proto)).diagnostics[0]
    assert (found.code, "more bytes than" in found.message) == ("CUV110", True)


def test_constant_indices_outside_are_left_to_the_run(tmp_path: Path) -> None:
    weights = {"w": np.ones((2, 3), np.float32), "i": np.full((2, 3), 9, np.int64)}
    nodes = [node("GatherElements", "w i", "g"), node("Add", "x g", "y")]
    path = saved(tmp_path, model(nodes, [X], ["y"], weights))
    build(BuildRequest(path, tmp_path / "y.cuvil", target="null", vectors=0))
