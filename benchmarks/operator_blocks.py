"""Cases of operators.py that are blocks: recurrent layers, attention, 8-bit layers, trees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.operator_models import Array, Made, Node, const, drawn, feed, given, op


def recurrent() -> Made:
    def cell(
        name: str, gates: int, steps: int, batch: int, x: int, h: int, both: bool = False,
        open_axes: tuple[int, ...] = (),
    ):  # fmt: skip
        ways = 1 + both
        more = {"direction": "bidirectional"} if both else {}
        if name == "GRU":
            more["linear_before_reset"] = 1
        return lambda: op(
            name,
            feed(steps, batch, x, low=-1, high=1, open_axes=open_axes),
            const(ways, gates * h, x),
            const(ways, gates * h, h, low=-1, high=1),
            const(ways, 2 * gates * h),
            hidden_size=h,
            outputs=2,
            **more,
        )

    for name, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        yield f"{name} 50 steps batch 1 64 to 128", cell(name, gates, 50, 1, 64, 128)
        yield f"{name} 50 steps batch 16 64 to 128", cell(name, gates, 50, 16, 64, 128)
        yield f"{name} 50 steps batch 4 33 to 45", cell(name, gates, 50, 4, 33, 45)
        yield f"{name} both ways batch 1 128 to 256", cell(name, gates, 50, 1, 128, 256, True)
        yield f"{name} both ways batch 8 96 to 48", cell(name, gates, 50, 8, 96, 48, True)
        yield f"{name} 1 step batch 1 256 to 512", cell(name, gates, 1, 1, 256, 512)
        yield f"{name} 20 steps batch 64 32 to 64", cell(name, gates, 20, 64, 32, 64)
        for batch in (1, 4, 16):
            yield (
                f"{name} open steps and batch {batch} 64 to 128",
                cell(name, gates, 50, batch, 64, 128, open_axes=(0, 1)),
            )


def attentions() -> Made:
    def attention(q: tuple[int, ...], k: tuple[int, ...], mask: Any = None, **how: Any):
        return lambda: op(
            "Attention",
            feed(*q),
            feed(*k, low=-1),
            feed(*k, low=-3),
            feed(*mask) if mask else None,
            **how,
        )

    yield "Attention 12x128x64", attention((1, 12, 128, 64), (1, 12, 128, 64))
    yield "Attention causal 12x256x64", attention((1, 12, 256, 64), (1, 12, 256, 64), is_causal=1)
    yield (
        "Attention mask 12x128x64",
        attention((1, 12, 128, 64), (1, 12, 128, 64), (1, 1, 128, 128)),
    )
    yield "Attention GQA 32 of 8 x64x64", attention((1, 32, 64, 64), (1, 8, 64, 64), is_causal=1)
    yield "Attention one query 32x1x128 of 512", attention((1, 32, 1, 128), (1, 8, 512, 128))
    yield "Attention 3x49x32 batch 64", attention((64, 3, 49, 32), (64, 3, 49, 32))
    yield "Attention 8x77x40", attention((2, 8, 77, 40), (2, 8, 77, 40))
    yield "Attention of pieces 12x128x64", lambda: _pieces(12, 128, 64)
    yield "Attention of pieces 5x33x19", lambda: _pieces(5, 33, 19)
    yield "Attention of pieces open 12x128x64", lambda: _pieces(12, 128, 64, (2,))
    yield "self-attention open 1x64x256", _self_attention
    yield (
        "MultiHeadAttention 128x768 12 heads",
        lambda: op(
            "MultiHeadAttention",
            feed(1, 128, 768),
            feed(1, 128, 768, low=-1),
            feed(1, 128, 768, low=-3),
            num_heads=12,
            domain="com.microsoft",
        ),
    )


def _pieces(heads: int, length: int, depth: int, open_axes: tuple[int, ...] = ()) -> Node:
    q, k, v = (feed(1, heads, length, depth, low=-n, open_axes=open_axes) for n in (1, 2, 3))
    scores = op("MatMul", q, op("Transpose", k, perm=[0, 1, 3, 2]))
    scaled = op("Mul", scores, given(depth**-0.5, "float32"))
    return op("MatMul", op("Softmax", scaled, axis=-1), v)


def _self_attention() -> Node:
    x = feed(1, 64, 256, open_axes=(1,))

    def heads(perm: list[int], seed: int) -> Node:
        made = op("MatMul", x, const(256, 256, low=-seed))
        return op("Transpose", op("Reshape", made, given([1, -1, 4, 64])), perm=perm)

    scores = op("MatMul", heads([0, 2, 1, 3], 1), heads([0, 2, 3, 1], 2))
    shares = op("Softmax", op("Mul", scores, given(0.125, "float32")), axis=-1)
    mixed = op("Transpose", op("MatMul", shares, heads([0, 2, 1, 3], 3)), perm=[0, 2, 1, 3])
    made = op("MatMul", op("Reshape", mixed, given([1, -1, 256])), const(256, 256))
    return op("LayerNormalization", op("Add", made, x), const(256), const(256), axis=-1)


def quantised() -> Made:
    scale, zero = given(0.02, "float32"), given(128, "uint8")

    def eight(*shape: int, kind: str = "uint8", fed: bool = True) -> Array:
        ends = {"low": 0, "high": 255} if kind == "uint8" else {"low": -127, "high": 127}
        return Array(drawn(*shape, dtype=kind, **ends), fed)

    def product(
        name: str, x: tuple[int, ...], w: tuple[int, ...], y_scale: float, **how: Any
    ) -> Callable[[], Node]:
        def made() -> Node:
            weights, to = eight(*w, kind="int8", fed=False), given(y_scale, "float32")
            zeros = given(0, "int8")
            return op(name, eight(*x), scale, zero, weights, scale, zeros, to, zero, **how)

        return made

    conv, pads = partial(product, "QLinearConv"), [1, 1, 1, 1]
    yield "QLinearConv 64x28x28 3x3", conv((1, 64, 28, 28), (64, 64, 3, 3), 0.5, pads=pads)
    yield (
        "QLinearConv 3x112x112 3x3 s2",
        conv((1, 3, 112, 112), (32, 3, 3, 3), 0.1, pads=pads, strides=[2, 2]),
    )
    yield (
        "QLinearConv depthwise 96x28x28 3x3",
        conv((1, 96, 28, 28), (96, 1, 3, 3), 0.1, pads=pads, group=96),
    )
    yield "QLinearConv 128x28x28 1x1", conv((1, 128, 28, 28), (256, 128, 1, 1), 0.1)
    matmul = partial(product, "QLinearMatMul")
    yield "QLinearMatMul 128x768 by 768x768", matmul((128, 768), (768, 768), 0.5)
    yield "QLinearMatMul 33x101 by 101x77", matmul((33, 101), (101, 77), 0.5)
    yield (
        "MatMulInteger 128x512 by 512x512",
        lambda: op(
            "MatMulInteger",
            eight(128, 512),
            eight(512, 512, kind="int8", fed=False),
            zero,
            given(0, "int8"),
        ),
    )
    yield (
        "MatMulInteger fed 128x512 by 512x512",
        lambda: op(
            "MatMulInteger", eight(128, 512), eight(512, 512, kind="int8"), zero, given(0, "int8")
        ),
    )
    yield (
        "ConvInteger 32x28x28 3x3",
        lambda: op(
            "ConvInteger",
            eight(1, 32, 28, 28),
            eight(64, 32, 3, 3, fed=False),
            zero,
            given(128, "uint8"),
            pads=[1, 1, 1, 1],
        ),
    )
    yield "QuantizeLinear 500000", lambda: op("QuantizeLinear", feed(500000), scale, zero)
    yield "DequantizeLinear 500000", lambda: op("DequantizeLinear", eight(500000), scale, zero)
    yield (
        "DynamicQuantizeLinear 500000",
        lambda: op("DynamicQuantizeLinear", feed(500000), outputs=3),
    )
    yield (
        "QLinearAdd 64x56x56",
        lambda: op(
            "QLinearAdd",
            eight(1, 64, 56, 56),
            scale,
            zero,
            eight(64, 56, 56),
            scale,
            zero,
            given(0.05, "float32"),
            zero,
            domain="com.microsoft",
        ),
    )
    yield (
        "QLinearSigmoid 200000",
        lambda: op(
            "QLinearSigmoid",
            eight(200000),
            scale,
            zero,
            given(1 / 256, "float32"),
            given(0, "uint8"),
            domain="com.microsoft",
        ),
    )
    yield (
        "QLinearGlobalAveragePool 512x14x14",
        lambda: op(
            "QLinearGlobalAveragePool",
            eight(1, 512, 14, 14),
            scale,
            zero,
            scale,
            zero,
            domain="com.microsoft",
        ),
    )
    yield "MatMulNBits 1x2048 by 2048x2048", lambda: _nbits(1, 2048, 2048)
    yield "MatMulNBits 64x1024 by 1024x1024", lambda: _nbits(64, 1024, 1024)


def _nbits(m: int, k: int, n: int) -> Node:
    packed = Array(drawn(n, k // 32, 16, dtype="uint8", low=0, high=255))
    scales = given(drawn(n * k // 32, low=0.001, high=0.01), "float32")
    return op("MatMulNBits", feed(m, k), packed, scales, K=k, N=n, bits=4, block_size=32,
              domain="com.microsoft")  # fmt: skip


def trees() -> Made:
    for batch in (1, 100, 10000):
        yield (
            f"TreeEnsembleRegressor 100 trees batch {batch}",
            lambda batch=batch: _trees(batch, 100, 6, 20),
        )
    yield "TreeEnsembleRegressor 500 trees batch 100", lambda: _trees(100, 500, 4, 50)


def _trees(batch: int, count: int, depth: int, features: int) -> Node:
    rng = np.random.default_rng(depth)
    inner, nodes = 2**depth - 1, 2 ** (depth + 1) - 1
    tree, node = (a.ravel() for a in np.mgrid[:count, :nodes])
    leaf = node >= inner
    weights = rng.normal(size=int(leaf.sum()))
    return op(
        "TreeEnsembleRegressor",
        feed(batch, features),
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=tree.tolist(),
        nodes_nodeids=node.tolist(),
        nodes_featureids=np.where(leaf, 0, rng.integers(0, features, node.size)).tolist(),
        nodes_modes=np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(),
        nodes_values=np.where(leaf, 0, rng.uniform(-2, 2, node.size)).tolist(),
        nodes_truenodeids=np.where(leaf, 0, 2 * node + 1).tolist(),
        nodes_falsenodeids=np.where(leaf, 0, 2 * node + 2).tolist(),
        target_treeids=tree[leaf].tolist(),
        target_nodeids=node[leaf].tolist(),
        target_ids=[0] * weights.size,
        target_weights=weights.tolist(),
    )
