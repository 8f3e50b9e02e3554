"""For each operation, the ONNX node that means the same: an oracle written by others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cuvilc.dialect.types import numpy_dtype

OPSET = 22


@dataclass
class Node:
    """One ONNX node: its inputs as arrays (None leaves one out) and its attributes."""

    kind: str
    inputs: list[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""
    after: Callable[[list[np.ndarray]], list[np.ndarray]] = lambda results: results
    reference_only: bool = False
    opset: int = OPSET
    ml: int = 3  # opset of ai.onnx.ml


_errors = onnxruntime.capi.onnxruntime_pybind11_state
REFUSALS = (  # a dtype or shape that onnxruntime has no kernel for
    _errors.NotImplemented, _errors.InvalidGraph, _errors.Fail, RuntimeError,
)  # fmt: skip
NODES: dict[str, Callable[[Sequence[np.ndarray], dict[str, Any]], Node]] = {}


def node(*names: str):
    """Register a builder(arrays, attrs) for operations."""

    def register(builder):
        NODES.update({f"ai.{name}": builder for name in names})
        return builder

    return register


def _element_type(array: np.ndarray) -> int:
    if array.dtype == ml_dtypes.bfloat16:
        return TensorProto.BFLOAT16
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def model_of(n: Node) -> onnx.ModelProto:
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(n.inputs)]
    inputs = [
        helper.make_tensor_value_info(name, _element_type(a), a.shape)
        for name, a in zip(names, n.inputs, strict=True)
        if a is not None
    ]
    outputs = [f"y{i}" for i in range(n.outputs)]
    made = helper.make_node(n.kind, names, outputs, domain=n.domain, **n.attributes)
    values = [onnx.ValueInfoProto(name=name) for name in outputs]
    opsets = [helper.make_opsetid("", n.opset), helper.make_opsetid("ai.onnx.ml", n.ml)]
    if n.domain not in ("", "ai.onnx.ml"):
        opsets.append(helper.make_opsetid(n.domain, 1))
    graph = helper.make_graph([made], "oracle", inputs, values)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def expected(n: Node) -> list[np.ndarray]:
    """What onnxruntime makes of the node; where it has no kernel, onnx's reference."""
    model = model_of(n)
    feeds = {f"x{i}": a for i, a in enumerate(n.inputs) if a is not None}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        if n.reference_only:
            raise NotImplementedError
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(None, feeds)
    except REFUSALS:
        results = ReferenceEvaluator(model).run(None, feeds)
    return n.after(list(results))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


_SAME_INPUTS = {
    "elemwise_add": "Add", "elemwise_sub": "Sub", "elemwise_mul": "Mul",
    "pow": "Pow", "maximum": "Max", "minimum": "Min", "where": "Where", "prelu": "PRelu",
    "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "logical_and": "And", "logical_or": "Or",
    "logical_xor": "Xor", "logical_not": "Not", "bit_and": "BitwiseAnd", "bit_or": "BitwiseOr",
    "bit_xor": "BitwiseXor", "bit_not": "BitwiseNot", "abs": "Abs", "neg": "Neg", "sign": "Sign",
    "ceil": "Ceil", "floor": "Floor", "round": "Round", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
    "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf",
    "sigmoid": "Sigmoid", "relu": "Relu", "softplus": "Softplus", "softsign": "Softsign",
    "is_nan": "IsNaN", "hard_swish": "HardSwish", "mish": "Mish",
}  # fmt: skip
for _name, _kind in _SAME_INPUTS.items():
    NODES[f"ai.{_name}"] = lambda arrays, attrs, kind=_kind: Node(kind, list(arrays))

_SAME_ATTRIBUTES = {
    "leaky_relu": "LeakyRelu", "elu": "Elu", "selu": "Selu", "celu": "Celu", "gelu": "Gelu",
    "hard_sigmoid": "HardSigmoid", "thresholded_relu": "ThresholdedRelu", "shrink": "Shrink",
    "concat": "Concat", "gather": "Gather", "softmax": "Softmax",
    "log_softmax": "LogSoftmax", "gather_elements": "GatherElements", "gather_nd": "GatherND",
    "scatter_elements": "ScatterElements", "scatter_nd": "ScatterND",
}  # fmt: skip
for _name, _kind in _SAME_ATTRIBUTES.items():
    NODES[f"ai.{_name}"] = lambda arrays, attrs, kind=_kind: Node(kind, list(arrays), dict(attrs))


@node("elemwise_div")
def _div(arrays, attrs):
    a, b = arrays
    if a.dtype.kind == "i" and np.any(a == np.iinfo(a.dtype).min) and np.any(b == -1):
        return None  # it ends onnxruntime's process
    return Node("Div", [a, b])


@node("mod")
def _mod(arrays, attrs):
    return Node("Mod", list(arrays), {"fmod": int(attrs["fmod"])})


@node("is_inf")
def _is_inf(arrays, attrs):
    signs = {f"detect_{sign}": int(attrs[sign]) for sign in ("positive", "negative")}
    return Node("IsInf", list(arrays), signs)


@node("shift_left", "shift_right")
def _no_oracle_for_signed_shifts(arrays, attrs):
    return None


@node("cast")
def _cast(arrays, attrs):
    return Node("Cast", list(arrays), {"to": tensor_type(attrs["dtype"])})


def tensor_type(dtype: str) -> int:
    """The number that ONNX has for a dtype of the dialect."""
    return helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))


@node("narrow")
def _narrow(arrays, attrs):
    (x,) = arrays
    if x.dtype.kind in "iub":
        return None  # the reference evaluator rounds integers before it saturates them
    words = {"to": tensor_type(attrs["dtype"]), "saturate": int(attrs["saturate"])}
    return Node("Cast", [x], {**words, "round_mode": attrs["rounding"]}, opset=25)


@node("bitcast")
def _bitcast(arrays, attrs):
    return Node("BitCast", list(arrays), {"to": tensor_type(attrs["dtype"])}, opset=26)


@node("clip")
def _clip(arrays, attrs):
    (x,) = arrays
    whole = x.dtype.kind in "iu"
    low, high = (None if attrs[b] is None else attrs[b] for b in ("low", "high"))
    if whole:
        low = None if low is None else np.ceil(max(low, np.iinfo(x.dtype).min))
        high = None if high is None else np.floor(high)
    bounds = [None if b is None else np.array(b, x.dtype) for b in (low, high)]
    return Node("Clip", [x, *bounds])


@node("silu")
def _silu(arrays, attrs):
    return None


@node("transpose")
def _transpose(arrays, attrs):
    return Node("Transpose", list(arrays), {"perm": attrs["perm"]} if attrs["perm"] else {})


@node("reshape")
def _reshape(arrays, attrs):
    return Node("Reshape", [arrays[0], ints(*attrs["shape"])], {"allowzero": 1})


@node("broadcast_to")
def _expand(arrays, attrs):
    return Node("Expand", [arrays[0], ints(*attrs["shape"])])


@node("slice")
def _slice(arrays, attrs):
    (x,) = arrays
    starts, steps, sizes = (attrs[n] for n in ("starts", "steps", "sizes"))
    ends = [b + s * n for b, s, n in zip(starts, steps, sizes, strict=True)]
    ends = [e if e >= 0 else -(2**31) for e in ends]
    return Node("Slice", [x, ints(*starts), ints(*ends), ints(*range(x.ndim)), ints(*steps)])


@node("pad")
def _pad(arrays, attrs):
    (x,) = arrays
    value = np.array(attrs["value"]).astype(x.dtype)
    pads = ints(*attrs["before"], *attrs["after"])
    return Node("Pad", [x, pads, value], {"mode": attrs["mode"]})


@node("tile")
def _tile(arrays, attrs):
    return Node("Tile", [arrays[0], ints(*attrs["repeats"])])


@node("iota")
def _iota(arrays, attrs):
    if len(attrs["shape"]) > 1:
        return None
    start, step, count = attrs["start"], attrs["step"], attrs["shape"][0]
    scalars = [np.array(v, attrs["dtype"]) for v in (start, start + step * count, step)]
    return Node("Range", scalars)


@node("trilu")
def _trilu(arrays, attrs):
    return Node("Trilu", [arrays[0], np.array(attrs["k"])], {"upper": int(attrs["upper"])})


@node("depth_to_space")
def _depth_to_space(arrays, attrs):
    attributes = {"blocksize": attrs["block"], "mode": attrs["mode"]}
    return Node("DepthToSpace", list(arrays), attributes)


@node("space_to_depth")
def _space_to_depth(arrays, attrs):
    return Node("SpaceToDepth", list(arrays), {"blocksize": attrs["block"]})


@node("matmul_integer")
def _matmul_integer(arrays, attrs):
    inputs = list(arrays)
    if len(inputs) > 2 and inputs[2].ndim == 1 and inputs[2].size > 1:
        inputs[2] = inputs[2][:, None]  # one per row: onnx's evaluator wants it to broadcast
    return Node("MatMulInteger", inputs)


@node("one_hot")
def _one_hot(arrays, attrs):
    indices, values = arrays
    if indices.ndim == 0:
        return None
    return Node("OneHot", [indices, np.array(attrs["depth"]), values], {"axis": attrs["axis"]})


@node("resize")
def _resize(arrays, attrs):
    (x,) = arrays
    names = {
        "half_pixel": "half_pixel", "pytorch_half_pixel": "pytorch_half_pixel",
        "align_corners": "align_corners", "asymmetric": "asymmetric",
        "half_pixel_symmetric": "half_pixel_symmetric",
    }  # fmt: skip
    attributes = {
        "mode": attrs["mode"], "nearest_mode": attrs["nearest"],
        "coordinate_transformation_mode": names[attrs["coordinate"]],
        "cubic_coeff_a": attrs["cubic_a"], "exclude_outside": int(attrs["exclude_outside"]),
    }  # fmt: skip
    if attrs["scales"] is not None:
        return Node("Resize", [x, None, np.array(attrs["scales"], np.float32)], attributes)
    return Node("Resize", [x, None, None, ints(*attrs["sizes"])], attributes)


def _reduction(kind):
    def build(arrays, attrs):
        attributes = {"keepdims": int(attrs["keepdims"]), "noop_with_empty_axes": 1}
        empty = 0 in arrays[0].shape  # onnxruntime refuses these
        axes = ints(*attrs["axes"])
        return Node(kind, [arrays[0], axes], attributes, reference_only=empty)

    return build


for _name in ("sum", "mean", "max", "min", "prod"):
    NODES[f"ai.reduce_{_name}"] = _reduction(f"Reduce{_name.capitalize()}")


def _arg(kind):
    def build(arrays, attrs):
        attributes = {
            "axis": attrs["axis"], "keepdims": int(attrs["keepdims"]),
            "select_last_index": int(attrs["select_last"]),
        }  # fmt: skip
        return Node(kind, list(arrays), attributes)

    return build


NODES["ai.arg_max"], NODES["ai.arg_min"] = _arg("ArgMax"), _arg("ArgMin")


def _running(kind, opset):
    def build(arrays, attrs):
        attributes = {n: int(attrs[n]) for n in ("exclusive", "reverse")}
        return Node(kind, [arrays[0], np.array(attrs["axis"])], attributes, opset=opset)

    return build


NODES["ai.cumsum"], NODES["ai.cumprod"] = _running("CumSum", OPSET), _running("CumProd", 26)


@node("top_k")
def _top_k(arrays, attrs):
    attributes = {n: int(attrs[n]) for n in ("axis", "largest", "sorted")}
    return Node("TopK", [arrays[0], ints(attrs["k"])], attributes, outputs=2)


@node("matmul")
def _matmul(arrays, attrs):
    a, b = arrays
    a = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
    return Node("MatMul", [np.ascontiguousarray(a), np.ascontiguousarray(b)])


def window(attrs, *, kernel=None):
    attributes = {
        "strides": attrs["strides"], "pads": (*attrs["pads_begin"], *attrs["pads_end"]),
        "dilations": attrs["dilations"],
    }  # fmt: skip
    if kernel:
        attributes |= {"kernel_shape": kernel, "ceil_mode": int(attrs["ceil_mode"])}
    return attributes


@node("conv")
def _conv(arrays, attrs):
    attributes = window(attrs) | {"group": attrs["groups"]}
    x, *others = arrays
    stack, step = attrs["stack"], attrs["stack_step"]
    if stack > 1:
        starts = range(0, len(x) - stack + 1, step)
        x = np.stack([x[n : n + stack].reshape(-1, *x.shape[2:]) for n in starts])
    return Node("Conv", [x, *others], attributes, reference_only=x.size == 0)


@node("conv_transpose")
def _conv_transpose(arrays, attrs):
    attributes = window(attrs) | {"group": attrs["groups"]}
    if attrs["output_padding"]:
        attributes["output_padding"] = attrs["output_padding"]
    return Node("ConvTranspose", list(arrays), attributes)


@node("max_pool")
def _max_pool(arrays, attrs):
    return Node("MaxPool", list(arrays), window(attrs, kernel=attrs["kernel"]))


@node("avg_pool")
def _avg_pool(arrays, attrs):
    attributes = window(attrs, kernel=attrs["kernel"])
    attributes["count_include_pad"] = int(attrs["count_include_pad"])
    return Node("AveragePool", list(arrays), attributes)


@node("lp_pool")
def _lp_pool(arrays, attrs):
    attributes = window(attrs, kernel=attrs["kernel"]) | {"p": attrs["p"]}
    return Node("LpPool", list(arrays), attributes)


@node("lrn")
def _lrn(arrays, attrs):
    if attrs["size"] % 2 == 0:  # for onnx's evaluator: 4-D, and as many images as channels
        (x,) = arrays
        after = lambda results: [results[0].reshape(x.shape)]  # noqa: E731
        wide = x.reshape(*x.shape[:2], -1, 1)
        return Node("LRN", [wide], dict(attrs), after=after, reference_only=True)
    return Node("LRN", list(arrays), dict(attrs))


@node("layer_norm")
def _layer_norm(arrays, attrs):
    attributes = {"axis": attrs["axis"], "epsilon": attrs["eps"]}
    return Node("LayerNormalization", list(arrays), attributes)


@node("instance_norm")
def _instance_norm(arrays, attrs):
    return Node("InstanceNormalization", list(arrays), {"epsilon": attrs["eps"]})


@node("group_norm")
def _group_norm(arrays, attrs):
    attributes = {"num_groups": attrs["groups"], "epsilon": attrs["eps"]}
    return Node("GroupNormalization", list(arrays), attributes, reference_only=True)


def _layout(arrays, count):
    return [*arrays, *[None] * (count - len(arrays))]


def _recurrent(kind, gates, count):
    def build(arrays, attrs):
        inputs = _layout(arrays, count)
        if inputs[4] is not None:  # ONNX has no negative lengths
            steps = inputs[0].shape[0]
            inputs[4] = np.where(inputs[4] < 0, steps, inputs[4]).astype(np.int32)
        attributes = {
            "hidden_size": attrs["hidden"], "direction": attrs["direction"],
            "activations": list(attrs["activations"]),
        }  # fmt: skip
        if attrs["clip"] is not None:
            attributes["clip"] = attrs["clip"]
        if attrs["alphas"]:
            attributes["activation_alpha"] = attrs["alphas"]
        if attrs.get("input_forget"):
            attributes["input_forget"] = 1
        if attrs.get("linear_before_reset"):
            attributes["linear_before_reset"] = 1
        return Node(kind, inputs, attributes, outputs=3 if kind == "LSTM" else 2)

    return build


NODES["ai.lstm"] = _recurrent("LSTM", 4, 8)
NODES["ai.gru"] = _recurrent("GRU", 3, 6)
NODES["ai.rnn"] = _recurrent("RNN", 1, 6)


@node("quantize_linear")
def _quantize(arrays, attrs):
    words = _quant_attributes(attrs) | {"saturate": int(attrs["saturate"])}
    return Node("QuantizeLinear", list(arrays), words)


@node("dequantize_linear")
def _dequantize(arrays, attrs):
    return Node("DequantizeLinear", list(arrays), _quant_attributes(attrs))


def _quant_attributes(attrs):
    return {"axis": attrs["axis"]} | ({"block_size": attrs["block"]} if attrs["block"] else {})


@node("tree_ensemble")
def _tree_ensemble(arrays, attrs):
    """The older TreeEnsembleRegressor, whose nodes have ids within trees."""
    x, nodes, roots, first, target, weight, base = arrays
    key, column, child, leaf = nodes.T
    numbers = np.arange(len(nodes))
    tree = np.searchsorted(roots // 4, numbers, side="right") - 1
    ids, is_leaf, width = numbers - roots[tree] // 4, leaf >= 0, x.shape[1]
    below, limit = column >= width, np.sign(key) * np.abs(key).view(np.float32)
    limit = np.where(key == np.iinfo(np.int32).max, np.inf, limit)
    to = np.where(is_leaf, 0, child // 4 - roots[tree] // 4)
    pairs = [(n, p) for n in numbers[is_leaf] for p in range(first[leaf[n]], first[leaf[n] + 1])]
    leads_on = np.isinf(limit)  # whatever x is, a missing one too
    attributes = {
        "n_targets": attrs["targets"], "aggregate_function": attrs["aggregate"].upper(),
        "nodes_treeids": tree.tolist(), "nodes_nodeids": ids.tolist(),
        "nodes_featureids": (column % width).tolist(),
        "nodes_modes": np.where(is_leaf, "LEAF", "BRANCH_LEQ").tolist(),
        "nodes_values": limit.tolist(), "nodes_truenodeids": to.tolist(),
        "nodes_falsenodeids": np.where(is_leaf, 0, to + 1).tolist(),
        "nodes_missing_value_tracks_true": (below | leads_on).astype(int).tolist(),
        "target_treeids": [int(tree[n]) for n, _ in pairs],
        "target_nodeids": [int(ids[n]) for n, _ in pairs],
        "target_ids": [int(target[p]) for _, p in pairs],
        "target_weights": [float(weight[p]) for _, p in pairs],
    }  # fmt: skip
    # onnxruntime leaves `base` out where no leaf reaches a target; the specification adds it
    return Node(
        "TreeEnsembleRegressor", [x], attributes, domain="ai.onnx.ml",
        after=lambda results: [results[0] + base],
    )  # fmt: skip


__all__ = ["NODES", "Node", "expected", "numpy_helper"]
