"""Products, convolutions, pooling, normalisation, resizing, recurrences, quantisation."""

from __future__ import annotations

import numpy as np

from tests.properties.draws import Case, Draw, Model
from tests.properties.registry import operator


@operator("MatMul")
def matmul(d: Draw) -> Case:
    dtype, made = d.pick("float32", "float64", "int32"), Model("MatMul", 13)
    inner = d.size()
    batch = d.shape(0, 2, 3, zero=False)
    a = [inner] if d.number(0, 4) == 0 else [*d.broadcast(batch), d.size(), inner]
    b = [inner] if d.number(0, 4) == 0 else [*batch, inner, d.size()]
    return made.case([made.input(d.array(a, dtype)), made.input(d.array(b, dtype))], [dtype])


@operator("Gemm")
def gemm(d: Draw) -> Case:
    dtype, made = d.pick("float32", "float64"), Model("Gemm", 13)
    m, k, n = d.size(), d.size(), d.size()
    turn_a, turn_b = d.flag(), d.flag()
    c = d.array(d.broadcast([m, n]), dtype) if d.flag() else None
    parts = [
        d.array([k, m] if turn_a else [m, k], dtype),
        d.array([n, k] if turn_b else [k, n], dtype),
    ]
    inputs = [made.input(v) for v in (*parts, c)]
    return made.case(inputs, [dtype], transA=int(turn_a), transB=int(turn_b),
                     alpha=d.pick(None, 0.5), beta=d.pick(None, 0.0, 2.0))  # fmt: skip


@operator("Einsum")
def einsum(d: Draw) -> Case:
    made = Model("Einsum", 12)
    equation = d.pick(
        "ij,jk->ik", "bij,bjk->bik", "ii->i", "ij->ji", "i,j->ij", "...ij,...jk->...ik",
        "bhqd,bhkd->bhqk", "ij,ij->", "ij,kj", "ij->", "ijk,ikl,lm->jm",
    )  # fmt: skip
    sizes = {c: d.number(1, 4) for c in sorted(set(equation)) if c.isalpha()}
    lead = d.shape(0, 2, 3, zero=False)
    parts = [
        d.array([*(lead if "..." in t else []), *(sizes[c] for c in t if c.isalpha())])
        for t in equation.split("->")[0].split(",")
    ]
    return made.case([made.input(p) for p in parts], ["float32"], equation=equation)


def _window(d: Draw, kernel: list[int]) -> dict[str, object]:
    """Strides, dilations and pads; or auto_pad."""
    rank = len(kernel)
    found: dict[str, object] = {"strides": [d.number(1, 3) for _ in kernel]}
    if d.flag():
        found["dilations"] = [d.number(1, 2) for _ in kernel]
    auto = d.pick("NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    if auto == "NOTSET":
        found["pads"] = [d.number(0, kernel[i % rank] - 1) for i in range(2 * rank)]
    else:
        found["auto_pad"] = auto
    return found


@operator("Conv")
def conv(d: Draw) -> Case:
    made, rank, groups = Model("Conv", 11), d.number(1, 3), d.pick(1, 1, 2, 3)
    kernel = [d.number(1, 3) for _ in range(rank)]
    channels, filters = groups * d.number(1, 3), groups * d.number(1, 3)
    x = d.array([d.size(2), channels, *(d.number(5, 8) for _ in kernel)])
    w = d.array([filters, channels // groups, *kernel])
    bias = d.array([filters]) if d.flag() else None
    inputs = [made.input(x), made.input(w, d.flag()), made.input(bias)]
    return made.case(inputs, ["float32"], group=groups, **_window(d, kernel))


@operator("ConvTranspose")
def conv_transpose(d: Draw) -> Case:
    """auto_pad is left out: onnx's reference and onnxruntime split its padding apart."""
    made, rank, groups = Model("ConvTranspose", 11), d.number(1, 2), d.pick(1, 1, 2)
    kernel = [d.number(1, 3) for _ in range(rank)]
    channels = groups * d.number(1, 3)
    x = d.array([d.size(2, False), channels, *(d.number(2, 5) for _ in kernel)])
    w = d.array([channels, d.number(1, 3), *kernel])
    more = _window(d, kernel)
    more.pop("auto_pad", None)
    strides = more["strides"]
    assert isinstance(strides, list)
    if d.flag():
        more["output_padding"] = [d.number(0, s - 1) for s in strides]
    bias = d.array([w.shape[1] * groups]) if d.flag() else None
    return made.case([made.input(v) for v in (x, w, bias)], ["float32"], group=groups, **more)


def _pool(op: str, opset: int) -> None:
    @operator(op)
    def case(d: Draw) -> Case:
        made, rank = Model(op, opset), d.number(1, 3)
        kernel = [d.number(1, 3) for _ in range(rank)]
        x = d.array([d.size(2), d.number(1, 3), *(d.number(5, 8) for _ in kernel)])
        more = _window(d, kernel)
        if op != "MaxPool" or "auto_pad" in more:  # with both, neither reference gives ⌈n/stride⌉
            more.pop("dilations", None)
        if op == "MaxPool" and "auto_pad" in more:
            # Larger ones make onnxruntime's padding negative, which it then refuses; onnx's
            # reference shifts windows by it.
            strides = more["strides"]
            assert isinstance(strides, list)
            more["strides"] = [min(s, k) for s, k in zip(strides, kernel, strict=True)]
        if op == "AveragePool":
            more["count_include_pad"] = d.pick(None, 0, 1)
        if "auto_pad" not in more:
            more["ceil_mode"] = d.pick(None, 0, 1)
        if op == "LpPool":
            more.pop("ceil_mode", None)
            more["p"] = d.pick(None, 1, 3)
        return made.case([made.input(x)], ["float32"], kernel_shape=kernel, **more)


_pool("MaxPool", 12)
_pool("AveragePool", 19)
_pool("LpPool", 18)


def _global(op: str) -> None:
    @operator(op)
    def case(d: Draw) -> Case:
        made = Model(op, 20)
        x = d.array([d.size(2, False), d.size(3, False), *d.shape(1, 3, zero=False)])
        return made.case([made.input(x)], ["float32"])


_global("GlobalAveragePool")
_global("GlobalMaxPool")
_global("GlobalLpPool")


@operator("BatchNormalization")
def batch_norm(d: Draw) -> Case:
    made = Model("BatchNormalization", 15)
    shape = [d.size(2), d.number(1, 4), *d.shape(0, 3)]
    line, constant = [shape[1]], d.flag()
    parts = [d.array(line), d.array(line), d.array(line), d.array(line, low=0.1)]
    inputs = [made.input(d.array(shape)), *(made.input(p, constant) for p in parts)]
    return made.case(inputs, ["float32"], epsilon=d.pick(None, 1e-2))


@operator("LayerNormalization")
def layer_norm(d: Draw) -> Case:
    made = Model("LayerNormalization", 17)
    shape = d.shape(1, 4, zero=False)
    at = d.axis(len(shape))
    parts = [d.array(shape), d.array(shape[at:]), d.array(shape[at:]) if d.flag() else None]
    return made.case([made.input(p) for p in parts], ["float32"] * d.pick(1, 3), axis=at,
                     epsilon=d.pick(None, 1e-2))  # fmt: skip


@operator("InstanceNormalization")
def instance_norm(d: Draw) -> Case:
    made = Model("InstanceNormalization", 6)
    shape = [d.size(2, False), d.number(1, 4), *d.shape(1, 3, zero=False)]
    parts = [d.array(shape), d.array([shape[1]]), d.array([shape[1]])]
    return made.case([made.input(p) for p in parts], ["float32"])


@operator("GroupNormalization")
def group_norm(d: Draw) -> Case:
    made, groups = Model("GroupNormalization", 21), d.number(1, 3)
    shape = [d.size(2, False), groups * d.number(1, 3), *d.shape(1, 2, zero=False)]
    parts = [d.array(shape), d.array([shape[1]]), d.array([shape[1]])]
    return made.case([made.input(p) for p in parts], ["float32"], num_groups=groups)


@operator("LRN")
def lrn(d: Draw) -> Case:
    made = Model("LRN", 13)
    x = made.input(d.array([d.size(2, False), d.number(1, 6), *d.shape(2, 2, zero=False)]))
    return made.case([x], ["float32"], size=d.pick(1, 3, 5), alpha=d.pick(None, 0.1),
                     beta=d.pick(None, 0.5), bias=d.pick(None, 2.0))  # fmt: skip


@operator("Resize")
def resize(d: Draw) -> Case:
    """By sizes; scales that are no exact quotients are rounded apart by the references."""
    made = Model("Resize", 19)
    spatial = [d.number(1, 5) for _ in range(d.number(1, 2))]
    shape = [1, d.number(1, 2), *spatial]
    mode = d.pick("nearest", "linear", *(["cubic"] if len(spatial) == 2 else []))
    sizes = np.array([*shape[:2], *(d.number(1, 9) for _ in spatial)], np.int64)
    how = d.pick("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    more = (
        {"nearest_mode": d.pick(None, "floor", "ceil", "round_prefer_ceil")}
        if mode == "nearest"
        else {}
    )
    inputs = [made.input(d.array(shape)), "", "", made.input(sizes, True)]
    return made.case(inputs, ["float32"], mode=mode, coordinate_transformation_mode=how, **more)


@operator("GridSample")
def grid_sample(d: Draw) -> Case:
    made = Model("GridSample", 20)
    batch = d.number(1, 2)
    x = d.array([batch, d.number(1, 2), d.number(2, 5), d.number(2, 5)])
    grid = d.array([batch, d.number(1, 3), d.number(1, 3), 2], low=-1.3, high=1.3)
    return made.case([made.input(x), made.input(grid)], ["float32"],
                     mode=d.pick(None, "linear", "nearest", "cubic"),
                     padding_mode=d.pick(None, "zeros", "border", "reflection"),
                     align_corners=d.pick(None, 0, 1))  # fmt: skip


def _recurrent(op: str, gates: int) -> None:
    @operator(op)
    def case(d: Draw) -> Case:
        made, both = Model(op, 14), d.flag()
        length, batch, width, hidden = (d.number(1, 3) for _ in range(4))
        ways = 2 if both else 1
        parts: list[np.ndarray | None] = [
            d.array([length, batch, width], low=-1, high=1),
            d.array([ways, gates * hidden, width], low=-1, high=1),
            d.array([ways, gates * hidden, hidden], low=-1, high=1),
            d.array([ways, 2 * gates * hidden], low=-1, high=1) if d.flag() else None,
            d.array([batch], "int32", 1, length) if d.flag() else None,
            d.array([ways, batch, hidden], low=-1, high=1) if d.flag() else None,
        ]
        outputs = ["float32", "float32"]
        more: dict[str, object] = {}
        if op == "LSTM":
            parts.append(d.array([ways, batch, hidden], low=-1, high=1) if d.flag() else None)
            parts.append(d.array([ways, 3 * hidden], low=-1, high=1) if d.flag() else None)
            outputs.append("float32")
        if op == "GRU":
            more["linear_before_reset"] = d.pick(None, 0, 1)
        inputs = [made.input(p) for p in parts]
        return made.case(inputs, outputs, hidden_size=hidden,
                         direction="bidirectional" if both else d.pick("forward", "reverse"),
                         reference="onnxruntime", **more)  # fmt: skip


_recurrent("RNN", 1)
_recurrent("GRU", 3)
_recurrent("LSTM", 4)


@operator("QuantizeLinear")
def quantize_linear(d: Draw) -> Case:
    dtype, made = d.pick("uint8", "int8", "uint16", "int16"), Model("QuantizeLinear", 21)
    shape = d.shape(1, 3)
    at = d.axis(len(shape))
    own = d.pick([], [shape[at]])
    parts = [d.array(shape), d.array(own, low=0.01, high=0.1), d.array(own, dtype, 0, 20)]
    return made.case([made.input(p) for p in parts], [dtype], axis=at)


@operator("DequantizeLinear")
def dequantize_linear(d: Draw) -> Case:
    dtype, made = d.pick("uint8", "int8", "uint16", "int16"), Model("DequantizeLinear", 21)
    shape = d.shape(1, 3)
    at = d.axis(len(shape))
    own = d.pick([], [shape[at]])
    zero = d.array(own, dtype, 0, 20) if d.flag() else None
    parts = [d.array(shape, dtype, -128, 255), d.array(own, low=0.01, high=0.1), zero]
    return made.case([made.input(p) for p in parts], ["float32"], axis=at)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(d: Draw) -> Case:
    made = Model("DynamicQuantizeLinear", 11)
    x = made.input(d.array(d.shape(1, 3, zero=False), low=d.pick(-3, 0, 1), high=d.pick(2, 5)))
    return made.case([x], ["uint8", "float32", "uint8"], quantised=True)


@operator("MatMulInteger")
def matmul_integer(d: Draw) -> Case:
    made = Model("MatMulInteger", 10)
    a, b = d.pick("uint8", "int8"), d.pick("uint8", "int8")
    batch, inner = d.shape(0, 1, 3, zero=False), d.number(1, 9)
    parts = [
        d.array([*batch, d.number(1, 4), inner], a, -128, 255),
        d.array([*batch, inner, d.number(1, 5)], b, -128, 255),
        np.array(d.number(0, 9), a) if d.flag() else None,
        np.array(d.number(0, 9), b) if d.flag() else None,
    ]
    return made.case([made.input(p) for p in parts], ["int32"])


@operator("Attention")
def attention(d: Draw) -> Case:
    made, groups = Model("Attention", 23), d.number(1, 2)
    heads, batch, width = groups * d.number(1, 2), d.number(1, 2), d.number(1, 4)
    queries, keys = d.number(1, 4), d.number(1, 4)
    value = d.number(1, 4)
    mask = d.pick(None, d.array([queries, keys]), d.array([batch, 1, queries, keys]))
    if mask is not None and d.flag():
        mask[d.array(mask.shape) > 0] = -np.inf
    shapes = (
        [batch, heads, queries, width],
        [batch, groups, keys, width],
        [batch, groups, keys, value],
    )
    inputs = [made.input(v) for v in (*(d.array(s) for s in shapes), mask)]
    return made.case(inputs, ["float32"], is_causal=d.pick(None, 0, 1), scale=d.pick(None, 0.5),
                     softcap=d.pick(None, 2.0))  # fmt: skip
