"""Symbolic sizes: names, ranges, what --shape and --dim do, sizes computed by the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.package.plan import CPU_LEVEL
from tests.tolerances import mismatch

from .builders import code, load, model, node, refusal, saved, tensor

onnxruntime = pytest.importorskip("onnxruntime")
INT64 = TensorProto.INT64


def input_types(program: ir.Program) -> list[str]:
    with program:
        block = ir.body(program.function("main"))
        return [str(ir.type_of(a)) for a in block.arguments]


def agree(program: ir.Program, proto: onnx.ModelProto, *shapes: tuple[int, ...]) -> None:
    """The program and onnxruntime give the same for random inputs of each shape."""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    name = session.get_inputs()[0].name
    for shape in shapes:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        found = interpret(program, {name: x})
        for info, want in zip(session.get_outputs(), session.run(None, {name: x}), strict=True):
            assert not mismatch(found[info.name], want)


def test_names_are_kept_as_identifiers(tmp_path: Path) -> None:
    nodes = [node("Add", "x y", "z")]
    shapes = [tensor("x", ["p.0", None, 3]), tensor("y", ["p.0", "2nd", "lambda"])]
    program = load(tmp_path, model(nodes, shapes, ["z"]))
    assert input_types(program) == ["f32[p_0,x_1,3]", "f32[p_0,_2nd,lambda_]"]
    assert program.ranges["p_0"] == (0, None)
    assert program.source["dims"]["p_0"] == "p.0"


@pytest.mark.parametrize("name", [CPU_LEVEL, "cpu level", "select", "lambda"])
def test_reserved_words_are_no_names(tmp_path: Path, name: str) -> None:
    program = load(tmp_path, model([node("Relu", "x", "y")], [tensor("x", [name, 3])], ["y"]))
    assert input_types(program) == [f"f32[{name.replace(' ', '_')}_,3]"]
    assert program.ranges.keys() == {name.replace(" ", "_") + "_"}


def test_shape_and_dim_fix_sizes(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [tensor("x", ["batch", 3, "h"])], ["y"])
    assert input_types(load(tmp_path, proto, shapes={"x": (2, 3, 8)})) == ["f32[2,3,8]"]
    assert input_types(load(tmp_path, proto, shapes={"x": (None, 3, 8)})) == ["f32[batch,3,8]"]
    program = load(tmp_path, proto, dims={"batch": (1, 64), "h": (7, 7)})
    assert input_types(program) == ["f32[batch,3,7]"]
    assert program.ranges == {"batch": (1, 64)}


@pytest.mark.parametrize(
    "options",
    [
        {"shapes": {"nobody": (1,)}},
        {"shapes": {"x": (1, 2)}},
        {"shapes": {"x": (1, 4, 8)}},
        {"dims": {"nobody": (1, 2)}},
        {"dims": {"batch": (3, 2)}},
        {"shapes": {"x": (2, 3, 8)}, "dims": {"batch": (3, 3)}},
    ],
)
def test_wrong_options_and_for_unknown_names_the_inputs(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    proto = model([node("Relu", "x", "y")], [tensor("x", ["batch", 3, "h"])], ["y"])
    found = refusal(saved(tmp_path, proto), **options)
    assert found.diagnostics[0].code == "CUV108"
    listed = any("x: float32[batch, 3, h]" in note for note in found.diagnostics[0].notes)
    assert listed == ("nobody" in str(options))
    assert found.exit_code == 2


def test_sizes_that_the_file_fixes(tmp_path: Path) -> None:
    """No option opens them, and that is said."""
    proto = model([node("Relu", "x", "y")], [tensor("x", [1, 3])], ["y"])
    for options in ({"shapes": {"x": (8, 3)}}, {"dims": {"batch": (1, 8)}}):
        found = refusal(saved(tmp_path, proto), **options).diagnostics[0]
        assert (found.code, "`dynamic_shapes=`" in found.help) == ("CUV108", True)


def test_shape_arithmetic_becomes_attributes(tmp_path: Path) -> None:
    """Shape → Gather → Concat → Reshape, as every exporter flattens and splits heads."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s i0", "b"),
        node("Gather", "s i1", "t"),
        node("Unsqueeze", "b zero", "b1"),
        node("Unsqueeze", "t zero", "t1"),
        node("Concat", "b1 t1 heads", "target", axis=0),
        node("Reshape", "x target", "split"),
        node("Transpose", "split", "y", perm=[0, 2, 1, 3]),
    ]
    weights = {
        "i0": np.array(0), "i1": np.array(1), "zero": np.array([0]), "heads": np.array([4, -1]),
    }  # fmt: skip
    proto = model(nodes, [tensor("x", ["batch", "length", 32])], ["y"], weights)
    program = load(tmp_path, proto)
    assert "dim_values" not in program.text()
    agree(program, proto, (1, 1, 32), (2, 5, 32), (3, 7, 32))


def test_sizes_used_as_data(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Cast", "s", "f", to=TensorProto.FLOAT),
        node("ReduceProd", "f", "n", keepdims=0),
        node("Div", "x n", "y"),
    ]
    proto = model(nodes, [tensor("x", ["a", "b"])], ["y", "f"], opset=13)
    agree(load(tmp_path, proto), proto, (2, 3), (1, 4), (5, 1))


def test_slices_at_run_time_sizes(tmp_path: Path) -> None:
    def cut(name: str, start: int, end: int, step: int) -> tuple[list[Any], dict[str, np.ndarray]]:
        weights = {f"{name}{k}": np.array([v]) for k, v in zip("se", (start, end), strict=True)}
        spelled = f"x {name}s {name}e {name}x {name}t"
        weights[f"{name}t"], weights[f"{name}x"] = np.array([step]), np.array([1])
        return [node("Slice", spelled, name)], weights

    nodes, weights = [], {}
    far = 2**63 - 1
    cases = [  # from and to beyond either end, in steps longer than the axis, of none
        (0, far, 1),
        (1, -1, 1),
        (-3, far, 1),
        (0, 4, 1),
        (2, far, 2),
        (-1, -far, -1),
        (3, 0, -2),
        (far, -far - 1, -1),
        (1, -far - 1, -1),
        (-2, -far, -2),
        (0, far, far),
        (3, -far - 1, -far),
    ]
    for i, (start, end, step) in enumerate(cases):
        made, more = cut(f"y{i}", start, end, step)
        nodes += made
        weights |= more
    outputs = [f"y{i}" for i in range(len(cases))]
    proto = model(nodes, [tensor("x", [2, "n"])], outputs, weights)
    agree(load(tmp_path, proto), proto, (2, 9), (2, 4), (2, 3), (2, 1), (2, 0))


def test_a_table_bounds_the_length(tmp_path: Path) -> None:
    """x + positions[:length]: lengths beyond the table cannot be, and the range says so."""
    nodes = [
        node("Shape", "x", "s", start=1, end=2),
        node("Slice", "table zero s one", "part"),
        node("Add", "x part", "y"),
    ]
    weights = {
        "table": np.random.default_rng(0).standard_normal((1, 16, 4)).astype(np.float32),
        "zero": np.array([0]), "one": np.array([1]),
    }  # fmt: skip
    proto = model(nodes, [tensor("x", ["batch", "length", 4])], ["y"], weights)
    program = load(tmp_path, proto)
    assert program.ranges["length"] == (0, 16)
    agree(program, proto, (2, 16, 4), (1, 3, 4))


def test_an_embedding_of_positions_bounds_the_length(tmp_path: Path) -> None:
    """Gather(table, Range(0, length)) would read outside the table beyond its rows."""
    nodes = [
        node("Shape", "x", "s", start=1, end=2),
        node("Squeeze", "s zero", "length"),
        node("Range", "start length one", "ids"),
        node("Gather", "table ids", "part"),
        node("Add", "x part", "y"),
    ]
    weights = {
        "table": np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32),
        "zero": np.array([0]), "start": np.array(0), "one": np.array(1),
    }  # fmt: skip
    proto = model(nodes, [tensor("x", ["batch", "length_", 4])], ["y"], weights)
    program = load(tmp_path, proto)
    assert program.ranges["length_"] == (0, 16)
    agree(program, proto, (2, 16, 4), (1, 3, 4))


def test_unnamed_sizes_are_unified(tmp_path: Path) -> None:
    """Concat along axis 1 makes the operands' unnamed batch sizes one."""
    nodes = [node("Concat", "x y", "z", axis=1)]
    program = load(tmp_path, model(nodes, [tensor("x", ["n", 2]), tensor("y", [None, 3])], ["z"]))
    assert input_types(program) == ["f32[n,2]", "f32[n,3]"]


def test_a_weight_fixes_an_open_channel(tmp_path: Path) -> None:
    weights = {"w": np.ones((4, 3, 3, 3), np.float32)}
    proto = model([node("Conv", "x w", "y")], [tensor("x", [1, None, None, 8])], ["y"], weights)
    assert input_types(load(tmp_path, proto)) == ["f32[1,3,x_2,8]"]


def test_resize_by_scales_of_open_sizes(tmp_path: Path) -> None:
    weights = {"scales": np.array([1, 1, 2, 1.5], np.float32)}
    nodes = [node("Resize", "x r scales", "y", mode="linear")]
    nodes[0].input[1] = ""
    proto = model(nodes, [tensor("x", [1, 2, "h", "w"])], ["y"], weights)
    agree(load(tmp_path, proto), proto, (1, 2, 4, 6), (1, 2, 3, 10))


def test_if_known_by_shape_is_inlined(tmp_path: Path) -> None:
    def branch(op: str, name: str) -> onnx.GraphProto:
        info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        return helper.make_graph([node(op, "x", name)], name, [], info)

    def with_if(condition: list[Any], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
        nodes = [
            *condition,
            node("If", "c", "y", then_branch=branch("Relu", "a"), else_branch=branch("Neg", "b")),
        ]
        return model(nodes, [tensor("x", ["n", 3])], ["y"], weights)

    shape = [node("Shape", "x", "s", start=1), node("Equal", "s three", "c")]
    proto = with_if(shape, {"three": np.array([3])})
    program = load(tmp_path, proto)
    assert "ai.if" not in program.text()
    agree(program, proto, (2, 3))
    data = [node("ReduceSum", "x", "t", keepdims=0), node("Greater", "t zero", "c")]
    proto = with_if(data, {"zero": np.array(0, np.float32)})
    program = load(tmp_path, proto)
    assert "ai.if" in program.text()
    program.verify()
    agree(program, proto, (2, 3), (5, 3), (1, 3))


def test_branches_of_different_ranks_are_refused(tmp_path: Path) -> None:
    def branch(size: int, name: str) -> onnx.GraphProto:
        info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        made = [node("ConstantOfShape", f"size{size}", name)]
        return helper.make_graph(made, name, [], info)

    nodes = [
        node("ReduceSum", "x", "t", keepdims=0),
        node("Cast", "t", "c", to=TensorProto.BOOL),
        node("If", "c", "y", then_branch=branch(1, "a"), else_branch=branch(2, "b")),
    ]
    weights = {"size1": np.array([2]), "size2": np.array([3, 1])}
    assert code(saved(tmp_path, model(nodes, [tensor("x", ["n"])], ["y"], weights))) == "CUV114"


@pytest.mark.parametrize(
    ("outputs", "message"), [(["y", "x", "y"], "two outputs are called `y`"), ([], "no output")]
)
def test_outputs_have_names_of_their_own(outputs: list[str], message: str, tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [tensor("x", [2])], outputs)
    error = refusal(saved(tmp_path, proto)).diagnostics[0]
    assert error.code == "CUV105"
    assert message in error.message


def test_outputs_may_be_inputs_and_constants(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [tensor("x", [2])], ["x", "w", "y"], {"w": np.ones(3)})
    program = load(tmp_path, proto)
    program.verify()
    assert program.text() == ir.Program.parse(program.text()).text()


def test_program_says_where_it_comes_from(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [tensor("x", [2])], ["y"], producer_name="maker")
    program = load(tmp_path, proto)
    assert program.name == "model"
    assert program.source["format"] == "onnx"
    assert program.source["opset"] == 17
    assert program.source["producer"] == "maker"
    assert len(program.source["sha256"]) == 64
    with program:
        (relu, *_) = ir.operations(ir.body(program.function("main")))
        assert ir.source_name(relu) == "Relu_y"
