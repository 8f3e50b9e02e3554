"""Narrow dtypes from the file to the result, against onnx's reference evaluator, bit by bit."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cuvilc.dialect.narrow import NARROW, NARROW_FLOATS, STORED, bits_of, numpy_dtype
from cuvilc.driver import BuildRequest, build
from cuvilc.open_package import open_package
from cuvilc.verify import verify_package
from tests.dialect.ops.onnx_nodes import tensor_type as element
from tests.tolerances import mismatch

from .builders import code, node, saved

reader = import_module("cuvilc.import.onnx_tensors")
wire = import_module("cuvilc.import.onnx_wire")
RNG = np.random.default_rng(5)
TARGETS = ("x86", "null")


def every(dtype: str, *shape: int) -> np.ndarray:
    """Elements of a narrow dtype, all of its codes where there is room."""
    codes = np.arange(int(np.prod(shape)), dtype=np.uint32) % (1 << bits_of(dtype))
    return codes.astype(np.uint8).view(numpy_dtype(dtype)).reshape(shape)


def value(name: str, array: np.ndarray) -> Any:
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, dtype, array.shape)


def graph(
    nodes: list[Any], inputs: dict[str, np.ndarray], output: str, weights: dict[str, np.ndarray]
) -> onnx.ModelProto:
    """A model of these nodes with the newest opset, whose one output is `y` of dtype `output`."""
    result = helper.make_tensor_value_info("y", element(output), None)
    made = helper.make_graph(
        nodes, "main", [value(k, v) for k, v in inputs.items()], [result],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )  # fmt: skip
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 26)], ir_version=13)


def bits(array: np.ndarray) -> np.ndarray:
    """The array as integers: a NaN is like another only if its bits are."""
    if array.dtype.name in STORED:
        mask = (1 << bits_of(array.dtype.name)) - 1
        return array.view(np.uint8) & mask
    return array.view(f"u{array.dtype.itemsize}")


def check(
    folder: Path, nodes: list[Any], inputs: dict[str, np.ndarray], output: str,
    weights: dict[str, np.ndarray] | None = None, targets: tuple[str, ...] = TARGETS,
) -> None:  # fmt: skip
    """Assert that the compiled model gives the evaluator's bits, on every target."""
    proto = graph(nodes, inputs, output, weights or {})
    (wanted,) = ReferenceEvaluator(proto).run(None, inputs)
    assert wanted.dtype == numpy_dtype(output)
    for target in targets:
        found = run(folder / f"{target}.cuvil", saved(folder, proto), inputs, target)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(bits(found), bits(np.ascontiguousarray(wanted)), target)


def run(package: Path, source: Path, inputs: dict[str, np.ndarray], target: str) -> np.ndarray:
    cpu = "host" if target == "x86" else ""
    build(BuildRequest(source, package, target=target, cpu=cpu, jobs=1, vectors=0))
    model = open_package(package, threads=1)
    try:
        return np.asarray(model.run(inputs)["y"])
    finally:
        model.close()


# Files.


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 7, 8, 9, 300])
@pytest.mark.parametrize("dtype", NARROW)
def test_weights_are_unpacked(dtype, count, tmp_path):
    wanted = every(dtype, count)
    raw = numpy_helper.from_array(wanted, "raw")
    typed = onnx.TensorProto(name="typed", data_type=raw.data_type, dims=[count])
    packed = bits_of(dtype) in (2, 4)
    typed.int32_data.extend(raw.raw_data if packed else wanted.view(np.uint8).tolist())
    aside = onnx.TensorProto()
    aside.CopyFrom(raw)
    (tmp_path / "data").write_bytes(b"12345" + raw.raw_data)
    onnx.external_data_helper.set_external_data(aside, "data", 5, len(raw.raw_data))
    aside.ClearField("raw_data")
    tensors = reader.TensorReader(tmp_path / "model.onnx", None)
    for proto in (raw, typed, aside):
        found = tensors.read(proto)
        assert found.dtype == wanted.dtype
        assert np.array_equal(bits(found), bits(wanted))


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float6_e2m3fn", "float8_e5m2"])
def test_a_weight_of_another_length_is_refused(dtype, tmp_path):
    weight = numpy_helper.from_array(every(dtype, 9), "w")
    proto = graph([node("Identity", "w", "y")], {}, dtype, {})
    proto.graph.initializer.append(weight)
    proto.graph.initializer[0].raw_data = weight.raw_data + b"\0"
    assert code(saved(tmp_path, proto)) == "CUV106"


# What only moves.

MOVES = {
    "Identity": [node("Identity", "x", "y")],
    "Transpose": [node("Transpose", "x", "y", perm=[1, 0])],
    "Reshape": [node("Reshape", "x s", "y")],
    "Flatten": [node("Flatten", "x", "y", axis=0)],
    "Unsqueeze": [node("Unsqueeze", "x a", "y")],
    "Pad": [node("Pad", "x p v", "y")],
    "Concat": [node("Concat", "x x w", "y", axis=1)],
    "Slice": [node("Slice", "x b e a t", "y")],
    "Gather": [node("Gather", "x i", "y", axis=1)],
    "Where": [node("Transpose", "x", "z"), node("Transpose", "z", "u"),
              node("Where", "c u w", "y")],
}  # fmt: skip
INDICES = {
    "s": [16, -1], "a": [0], "p": [1, 0, 0, 2], "b": [1], "e": [7], "t": [2], "i": [3, 0, -1],
}  # fmt: skip


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float8_e5m2", "float4_e2m1fn", "int4"])
def test_moves(dtype, move, tmp_path):
    x = every(dtype, 8, 32)
    used = {name for n in MOVES[move] for name in n.input}
    weights = {k: np.array(v, np.int64) for k, v in INDICES.items() if k in used}
    weights |= {"w": x[:, ::-1].copy(), "v": every(dtype, 4)[3:].reshape(())}
    weights |= {"c": RNG.random((8, 32)) < 0.5}
    check(tmp_path, MOVES[move], {"x": x}, dtype, {k: v for k, v in weights.items() if k in used})


@pytest.mark.parametrize("dtype", NARROW)
def test_constants_reach_the_output(dtype, tmp_path):
    """One element too: it is no `full`, which would lose what a NaN carries."""
    for shape in ((1,), (3, 9)):
        array = every(dtype, 300)[-int(np.prod(shape)) :].reshape(shape)
        constant = helper.make_node("Constant", "", ["w"], value=numpy_helper.from_array(array))
        check(tmp_path, [constant, node("Identity", "w", "y")], {}, dtype)


def test_constant_of_shape(tmp_path):
    tensor = numpy_helper.from_array(np.array([1.5]).astype(ml_dtypes.float8_e4m3fn))
    made = helper.make_node("ConstantOfShape", "s", ["y"], value=tensor)
    check(tmp_path, [made], {}, "float8_e4m3fn", {"s": np.array([2, 3])})


# Conversions.


@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16", "int32", "bool", *NARROW])
@pytest.mark.parametrize("target", ["float8_e4m3fn", "float6_e3m2fn", "uint4", "int2", "float16"])
def test_cast(source, target, tmp_path):
    cast = node("Cast", "x", "y", to=element(target))
    if source not in NARROW:
        x = (RNG.standard_normal(300) * 6).astype(numpy_dtype(source))
        check(tmp_path, [cast], {"x": x}, target)
        return
    x = every(source, 256)
    if "int" in target:  # what an infinity or a great number becomes is open
        x = x[np.abs(x.astype(np.float32)) < 2**31]
    proto = graph([cast], {"x": x}, target, {})
    wide = x.astype(np.float32)  # ml_dtypes does not convert between all of its own
    (wanted,) = ReferenceEvaluator(graph([cast], {"x": wide}, target, {})).run(None, {"x": wide})
    for kind in TARGETS:
        found = run(tmp_path / f"{kind}.cuvil", saved(tmp_path, proto), {"x": x}, kind)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(bits(found), bits(wanted), kind)


@pytest.mark.parametrize("rounding", ["up", "down", "nearest"])
def test_cast_to_a_power_of_two(rounding, tmp_path):
    x = np.exp2(RNG.uniform(-140, 128, 500)).astype(np.float32)
    cast = node("Cast", "x", "y", to=element("float8_e8m0fnu"), round_mode=rounding, saturate=0)
    check(tmp_path, [cast], {"x": x}, "float8_e8m0fnu")


def test_cast_like_takes_the_attributes(tmp_path):
    x = np.array([1.0, 1e6, -np.inf], np.float32)
    like = node("CastLike", "x w", "y", saturate=0)
    check(tmp_path, [like], {"x": x}, "float8_e5m2", {"w": every("float8_e5m2", 1)})


WIDTHS = [
    ("float8_e4m3fn", "uint8"), ("int8", "float8_e8m0fnu"), ("int4", "uint4"), ("uint4", "int4"),
    ("int4", "float4_e2m1fn"), ("float4_e2m1fn", "int4"), ("int2", "uint2"), ("uint2", "int2"),
    ("float16", "bfloat16"), ("bfloat16", "int16"), ("uint16", "float16"), ("int64", "float64"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), WIDTHS)
def test_bitcast_keeps_every_bit(source, target, tmp_path):
    """Between other operations too, where it shares memory with both. (Moving a wide float may
    quiet a NaN, and the interpreter computes in float64.)
    """
    dtype = numpy_dtype(source)
    if dtype.itemsize == 1:
        x = (
            every(source, 16, 16)
            if source in NARROW
            else np.arange(-128, 128).astype(dtype).reshape(16, 16)
        )
        cast = node("BitCast", "u", "v", to=element(target))
        around = [node("Transpose", "x", "u"), cast, node("Transpose", "v", "y")]
        check(tmp_path, around, {"x": x}, target)
        return
    x = RNG.integers(0, 256, (16, 16, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    alone = [node("BitCast", "x", "y", to=element(target))]
    check(tmp_path, alone, {"x": x}, target, targets=("x86",))


def test_bitcast_of_another_width_is_refused(tmp_path):
    x = np.zeros(4, np.float32)
    proto = graph([node("BitCast", "x", "y", to=TensorProto.INT64)], {"x": x}, "int64", {})
    assert code(saved(tmp_path, proto)) == "CUV110"


@pytest.mark.parametrize("op", ["IsNaN", "IsInf"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_questions_about_codes(op, dtype, tmp_path):
    x = every(dtype, 256)
    proto = graph([node(op, "x", "y")], {"x": x}, "bool", {})
    wanted = {"IsNaN": np.isnan, "IsInf": np.isinf}[op](x.astype(np.float32))
    found = run(tmp_path / "a.cuvil", saved(tmp_path, proto), {"x": x}, "x86")
    assert np.array_equal(found, wanted)


# Quantisation.

GRAINS = {"one": ((), {}), "axis": ((6,), {"axis": 0}), "block": ((6, 3), {"block_size": 4})}
QUANTISED = [d for d in NARROW if d != "float8_e8m0fnu"]


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("grain", GRAINS)
def test_quantise(dtype, grain, tmp_path):
    shape, attributes = GRAINS[grain]
    x = (RNG.standard_normal((6, 11)) * 4).astype(np.float32)
    scale = RNG.uniform(0.3, 1.5, shape).astype(np.float32)
    zero = np.zeros(shape, numpy_dtype(dtype))
    quantise = node("QuantizeLinear", "x s z", "y", **attributes)
    check(tmp_path, [quantise], {"x": x}, dtype, {"s": scale, "z": zero})


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("grain", GRAINS)
def test_dequantise_weights(dtype, grain, tmp_path):
    """An initialiser, as quantisers write it; what follows keeps it from being folded alone."""
    shape, attributes = GRAINS[grain]
    w = every(dtype, 6, 11)
    scale = RNG.uniform(0.3, 1.5, shape).astype(np.float32)
    zero = np.zeros(shape) if "float" in dtype else RNG.integers(0, 2, shape)
    nodes = [
        node("DequantizeLinear", "w s z", "d", **attributes),
        node("Mul", "d x", "y"),
    ]
    weights = {"w": w, "s": scale, "z": zero.astype(numpy_dtype(dtype))}
    check(tmp_path, nodes, {"x": np.full(11, 2, np.float32)}, "float32", weights)


def test_quotients_are_of_the_stated_precision(tmp_path):
    x = (RNG.standard_normal(4000) * 3).astype(np.float16)
    scale = {"s": np.array(0.0417, np.float16)}
    eight = element("float8_e4m3fn")
    for more in ({}, {"precision": TensorProto.FLOAT}, {"saturate": 0}):
        quantise = node("QuantizeLinear", "x s", "y", output_dtype=eight, **more)
        check(tmp_path, [quantise], {"x": x}, "float8_e4m3fn", scale)


def test_scales_may_be_powers_of_two(tmp_path):
    """The microscaling formats: blocks of a float4 with a float8_e8m0fnu each."""
    scale = np.array([[0.5, 4.0]], np.float32).astype(ml_dtypes.float8_e8m0fnu)
    words = {"axis": 1, "block_size": 8, "output_dtype": TensorProto.FLOAT}
    back = node("DequantizeLinear", "x s", "y", **words)
    x = every("float4_e2m1fn", 1, 16)
    proto = graph([back], {"x": x}, "float32", {"s": scale})
    found = run(tmp_path / "a.cuvil", saved(tmp_path, proto), {"x": x}, "x86")
    wanted = x.astype(np.float32) * np.repeat(scale.astype(np.float32), 8, 1)
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2"])
def test_a_layer_with_blocked_weights(dtype, tmp_path):
    limits = ml_dtypes.iinfo(numpy_dtype(dtype))
    w = RNG.integers(limits.min, limits.max, (64, 48), endpoint=True)
    scale = RNG.uniform(0.01, 0.1, (4, 48)).astype(np.float32)
    x = RNG.standard_normal((5, 64)).astype(np.float32)
    nodes = [
        node("DequantizeLinear", "w s", "d", axis=0, block_size=16),
        node("MatMul", "x d", "y"),
    ]
    weights = {"w": w.astype(numpy_dtype(dtype)), "s": scale}
    proto = graph(nodes, {"x": x}, "float32", weights)
    found = run(tmp_path / "a.cuvil", saved(tmp_path, proto), {"x": x}, "x86")
    wanted = x.astype(np.float64) @ (w * np.repeat(scale.astype(np.float64), 16, 0))
    assert not mismatch(found, wanted.astype(np.float32))


@pytest.mark.parametrize("dtype", ["int4", "uint2"])
def test_a_quantised_layer(dtype, tmp_path):
    """8-bit levels times narrow ones, as quantisers of activations and weights write it."""
    limits = ml_dtypes.iinfo(numpy_dtype(dtype))
    w = RNG.integers(limits.min, limits.max, (64, 32), endpoint=True).astype(numpy_dtype(dtype))
    x = RNG.standard_normal((8, 64)).astype(np.float32)
    weights = {
        "xs": np.array(0.03, np.float32), "xz": np.array(128, np.uint8), "w": w,
        "ws": RNG.uniform(0.01, 0.1, 32).astype(np.float32), "ys": np.array(0.3, np.float32),
        "yz": np.array(3, np.int8),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x xs xz", "xq"), node("DequantizeLinear", "xq xs xz", "xd"),
        node("DequantizeLinear", "w ws", "wd", axis=1), node("MatMul", "xd wd", "a"),
        node("QuantizeLinear", "a ys yz", "y"),
    ]  # fmt: skip
    proto = graph(nodes, {"x": x}, "int8", weights)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    for target in TARGETS:
        found = run(tmp_path / f"{target}.cuvil", saved(tmp_path, proto), {"x": x}, target)
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1


# Packages.


@pytest.mark.parametrize("dtype", NARROW)
def test_vectors_are_bundled_and_verify(dtype, tmp_path):
    """And a port takes raw bytes as well as ml_dtypes' arrays."""
    x = every(dtype, 3, 5)
    nodes = [node("Transpose", "x", "y")]
    source = saved(tmp_path, graph(nodes, {"x": x}, dtype, {}))
    package = tmp_path / "a.cuvil"
    build(BuildRequest(source, package, cpu="host", jobs=1, vectors=2))
    verified = verify_package(package)
    assert verified.checks
    assert all(c.ok for c in verified.checks)
    model = open_package(package)
    raw = x.astype(np.int8 if dtype == "int4" else x.dtype).view(np.uint8)
    for given in (x, raw if dtype in NARROW_FLOATS else x.astype(STORED[dtype])):
        found = model.run({"x": given})["y"]
        assert np.array_equal(bits(found), bits(x).T)
    model.close()
