"""Float operators of com.microsoft against onnxruntime, whose kernels are their definition."""

from __future__ import annotations

from onnx import helper

from tests.properties.draws import MICROSOFT, Case, Draw, Model
from tests.properties.registry import operator


def model(op: str, opset: int = 17) -> Model:
    return Model(op, opset, MICROSOFT)


@operator("ms.FusedMatMul")
def fused_matmul(d: Draw) -> Case:
    m, k, n = d.size(), d.size(), d.size()
    rank = d.number(2, 4)
    batch = [d.size(3, zero=False) for _ in range(rank - 2)]
    turns = {f"trans{kind}{which}": int(d.flag()) for kind in ("", "Batch") for which in "AB"}

    def side(which: str, rows: int, columns: int) -> list[int]:
        last = [columns, rows] if turns[f"trans{which}"] else [rows, columns]
        if turns[f"transBatch{which}"] and rank > 2:
            return [last[0], *batch, last[1]]
        return [*batch, *last]

    if rank == 2:
        turns["transBatchA"] = turns["transBatchB"] = 0
    made = model("FusedMatMul")
    inputs = [made.input(d.array(side("A", m, k))), made.input(d.array(side("B", k, n)))]
    return made.case(inputs, ["float32"], alpha=d.pick(1.0, 0.5, -2.0), **turns,
                     reference="onnxruntime")  # fmt: skip


_ACTIVATIONS = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")
}  # fmt: skip


@operator("ms.FusedGemm")
def fused_gemm(d: Draw) -> Case:
    m, k, n = d.size(), d.size(), d.size()
    turn_a, turn_b = d.flag(), d.flag()
    made = model("FusedGemm")
    kinds = {**_ACTIVATIONS, "Elu": ("alpha",), "Softplus": (), "Softsign": (),
             "ThresholdedRelu": ("alpha",), "Selu": ("alpha", "gamma")}  # fmt: skip
    kind = d.pick(*kinds)
    numbers = {f"activation_{w}": d.pick(0.1, 0.5, 1.0) for w in kinds[kind]}
    c = d.array(d.broadcast([m, n])) if d.flag() else None
    inputs = [
        made.input(d.array([k, m] if turn_a else [m, k])),
        made.input(d.array([n, k] if turn_b else [k, n])),
        made.input(c),
    ]
    return made.case(
        inputs, ["float32"], transA=int(turn_a), transB=int(turn_b), alpha=d.pick(1.0, 0.5),
        beta=d.pick(1.0, 0.25), activation=kind, **numbers, reference="onnxruntime",
    )  # fmt: skip


@operator("ms.FusedConv")
def fused_conv(d: Draw) -> Case:
    kind = d.pick(None, *_ACTIVATIONS, "Clip")
    numbers = {"LeakyRelu": [0.1], "Clip": [-0.5, 0.75], "HardSigmoid": [0.3, 0.4]}.get(kind or "")
    groups, spatial = d.pick(1, 2), d.number(1, 2)
    channels, filters = groups * d.number(1, 2), groups * d.number(1, 3)
    made = model("FusedConv")
    x = d.array([d.size(2, False), channels, *[d.number(4, 7) for _ in range(spatial)]])
    w = d.array([filters, channels // groups, *[d.number(1, 3) for _ in range(spatial)]])
    strides = [d.number(1, 2) for _ in range(spatial)]
    pads = [d.number(0, 1) for _ in range(2 * spatial)]
    y = [
        (n + pads[i] + pads[i + spatial] - w.shape[2 + i]) // strides[i] + 1
        for i, n in enumerate(x.shape[2:])
    ]
    bias = d.array([filters]) if d.flag() else None
    z = d.array([x.shape[0], filters, *y]) if d.flag() else None
    inputs = [made.input(v) for v in (x, w, bias, z)]
    return made.case(
        inputs, ["float32"], activation=kind, activation_params=numbers, group=groups, pads=pads,
        strides=strides, kernel_shape=list(w.shape[2:]), reference="onnxruntime",
    )  # fmt: skip


def _biased(op: str, optional: bool, **attributes: float) -> None:
    @operator(f"ms.{op}")
    def case(d: Draw) -> Case:
        shape = d.shape(1)
        made = model(op)
        bias = None if optional and d.flag() else d.array(shape[-1:])
        inputs = [made.input(d.array(shape)), made.input(bias)]
        return made.case(inputs, ["float32"], **attributes, reference="onnxruntime")


_biased("BiasGelu", optional=False)
_biased("FastGelu", optional=True)


@operator("ms.Gelu")
def gelu(d: Draw) -> Case:
    made = model("Gelu")
    return made.case([made.input(d.array(d.shape()))], ["float32"], reference="onnxruntime")


@operator("ms.QuickGelu")
def quick_gelu(d: Draw) -> Case:
    made = model("QuickGelu")
    alpha = d.pick(None, 1.0, 2.5)
    x = made.input(d.array(d.shape(1)))
    return made.case([x], ["float32"], alpha=alpha, reference="onnxruntime")


@operator("ms.BiasAdd")
def bias_add(d: Draw) -> Case:
    """onnxruntime has it for GPUs alone."""
    n, s, c = d.size(3), d.size(4), d.size(5)
    made, twin = model("BiasAdd"), Model("Sum", 17)
    arrays = [d.array(v) for v in ([n, s, c], [c], [n, s, c])]
    same = twin.case([twin.input(a) for a in arrays], ["float32"])
    return made.case([made.input(a) for a in arrays], ["float32"], twin=same)


@operator("SimplifiedLayerNormalization")
def simplified_layer_norm(d: Draw) -> Case:
    shape = d.shape(1, zero=False)
    at = d.axis(len(shape))
    made = Model("SimplifiedLayerNormalization", 17)
    inputs = [made.input(d.array(shape)), made.input(d.array(shape[at:]))]
    outputs = ["float32", d.pick(None, "float32")]
    return made.case(inputs, outputs, axis=at, epsilon=d.pick(None, 1e-3), stash_type=1,
                     reference="onnxruntime")  # fmt: skip


@operator("ms.SkipLayerNormalization")
def skip_layer_norm(d: Draw) -> Case:
    shape = [d.size(3, False), d.size(4, False), d.size(6, False)][d.number(0, 1) :]
    made = model("SkipLayerNormalization")
    skip = [1, *shape[1:]] if len(shape) == 3 and d.flag() else shape
    parts = [d.array(shape), d.array(skip), d.array(shape[-1:])]
    extra = [d.array(shape[-1:]) if d.flag() else None for _ in range(2)]
    inputs = [made.input(v) for v in (*parts, *extra)]
    outputs = ["float32", None, None, "float32"] if d.flag() else ["float32"]
    return made.case(inputs, outputs, epsilon=d.pick(None, 1e-3), reference="onnxruntime")


@operator("ms.SkipSimplifiedLayerNormalization")
def skip_simplified_layer_norm(d: Draw) -> Case:
    shape = [d.size(3, False), d.size(4, False), d.size(6, False)][d.number(0, 1) :]
    made = model("SkipSimplifiedLayerNormalization")
    bias = d.array(shape[-1:]) if d.flag() else None
    parts = (d.array(shape), d.array(shape), d.array(shape[-1:]), bias)
    outputs = ["float32", None, None, "float32"] if d.flag() else ["float32"]
    return made.case([made.input(v) for v in parts], outputs, epsilon=d.pick(None, 1e-3),
                     reference="onnxruntime")  # fmt: skip


@operator("ms.EmbedLayerNormalization")
def embed_layer_norm(d: Draw) -> Case:
    batch, length, width = d.size(3, False), d.size(4, False), d.number(2, 6)
    made = model("EmbedLayerNormalization")
    segments, masked, placed = d.flag(), d.flag(), d.flag()
    parts = [
        d.array([batch, length], "int32", 0, 6),
        d.array([batch, length], "int32", 0, 1) if segments else None,
        d.array([7, width]), d.array([length + 2, width]),
        d.array([2, width]) if segments else None, d.array([width]), d.array([width]),
        d.array([batch, length], "int32", 0, 1) if masked else None,
        d.array([batch, length], "int32", 0, length + 1) if placed else None,
    ]  # fmt: skip
    outputs = ["float32", "int32", d.pick(None, "float32")]
    return made.case([made.input(v) for v in parts], outputs, epsilon=d.pick(None, 1e-3),
                     reference="onnxruntime")  # fmt: skip


def _nhwc(op: str) -> None:
    @operator(f"ms.{op}")
    def case(d: Draw) -> Case:
        """onnxruntime has it for few machines: Conv, whose channels come second, is the twin."""
        groups = d.pick(1, 2)
        x = d.array([d.size(2, False), 5, 4, 2 * groups])
        w = d.array([2 * groups, 2, d.number(1, 3), d.number(1, 3)])
        bias = d.array([2 * groups]) if d.flag() else None
        facts = {"group": groups, "kernel_shape": list(w.shape[2:]), "pads": [1, 0, 0, 1],
                 "strides": [d.number(1, 2), 1]}  # fmt: skip
        made, twin = model(op), Model("Conv", 17)
        inputs = [twin.input(v) for v in (x.transpose(0, 3, 1, 2), w, bias)]
        same = turned_back(twin.case(inputs, ["float32"], **facts))
        return made.case([made.input(v) for v in (x, w, bias)], ["float32"], **facts, twin=same)


def turned_back(case: Case) -> Case:
    """The case with its output's channels last."""
    case.model.graph.node[0].output[0] = "y"
    last = helper.make_node("Transpose", ["y"], ["o0"], perm=[0, 2, 3, 1])
    case.model.graph.node.append(last)
    return case


_nhwc("NhwcConv")
_nhwc("NhwcFusedConv")
