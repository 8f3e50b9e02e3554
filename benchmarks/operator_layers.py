"""Cases of operators.py that are layers: convolutions, pools, normalisations, products."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from benchmarks.operator_models import Made, Node, const, feed, op, positive


def _conv(x: tuple[int, ...], w: tuple[int, ...], **how: Any) -> Callable[[], Node]:
    pads = how.pop("pad", None)
    if pads is not None:
        how["pads"] = list(pads) * 2
    bias = how.pop("bias", True)
    return lambda: op("Conv", feed(*x), const(*w), const(w[0]) if bias else None, **how)


def convolutions() -> Made:
    yield "Conv 1d 64x1000 k3", _conv((1, 64, 1000), (64, 64, 3), pad=[1])
    yield "Conv 1d 80x3000 k3", _conv((1, 80, 3000), (384, 80, 3), pad=[1])
    yield "Conv 1d 1x16000 k10 s5", _conv((1, 1, 16000), (512, 1, 10), strides=[5])
    yield "Conv 1d 33x501 k5 d4", _conv((1, 33, 501), (47, 33, 5), dilations=[4], pad=[8])
    yield "Conv 1d depthwise 256x500 k31", _conv((1, 256, 500), (256, 1, 31), group=256, pad=[15])
    yield "Conv 2d 64x56x56 3x3", _conv((1, 64, 56, 56), (64, 64, 3, 3), pad=[1, 1])
    yield (
        "Conv 2d 3x224x224 7x7 s2",
        _conv((1, 3, 224, 224), (64, 3, 7, 7), pad=[3, 3], strides=[2, 2]),
    )
    yield "Conv 2d 3x512x512 3x3", _conv((1, 3, 512, 512), (32, 3, 3, 3), pad=[1, 1])
    yield "Conv 2d 1x28x28 5x5", _conv((1, 1, 28, 28), (32, 1, 5, 5), pad=[2, 2])
    yield "Conv 2d 37x41x43 3x3", _conv((1, 37, 41, 43), (53, 37, 3, 3), pad=[1, 1])
    yield (
        "Conv 2d 37x41x43 3x3 s2",
        _conv((1, 37, 41, 43), (53, 37, 3, 3), pad=[1, 1], strides=[2, 2]),
    )
    yield "Conv 2d 48x27x27 5x5", _conv((1, 48, 27, 27), (128, 48, 5, 5), pad=[2, 2])
    yield (
        "Conv 2d 64x32x32 3x3 d2",
        _conv((1, 64, 32, 32), (64, 64, 3, 3), pad=[2, 2], dilations=[2, 2]),
    )
    yield "Conv 2d 128x17x17 1x7", _conv((1, 128, 17, 17), (128, 128, 1, 7), pad=[0, 3])
    yield "Conv 2d 128x17x17 7x1", _conv((1, 128, 17, 17), (128, 128, 7, 1), pad=[3, 0])
    yield "Conv 2d 256x14x14 1x1", _conv((1, 256, 14, 14), (512, 256, 1, 1))
    yield "Conv 2d 256x28x28 1x1 s2", _conv((1, 256, 28, 28), (512, 256, 1, 1), strides=[2, 2])
    yield "Conv 2d 30x25x25 1x1", _conv((1, 30, 25, 25), (75, 30, 1, 1))
    yield "Conv 2d 512x7x7 3x3", _conv((1, 512, 7, 7), (512, 512, 3, 3), pad=[1, 1])
    yield "Conv 2d batch 8 64x28x28 3x3", _conv((8, 64, 28, 28), (64, 64, 3, 3), pad=[1, 1])
    yield "Conv 2d batch 8 3x32x32 3x3", _conv((8, 3, 32, 32), (32, 3, 3, 3), pad=[1, 1])
    yield "Conv 2d groups 4 64x28x28", _conv((1, 64, 28, 28), (64, 16, 3, 3), pad=[1, 1], group=4)
    yield (
        "Conv 2d groups 32 128x28x28",
        _conv((1, 128, 28, 28), (128, 4, 3, 3), pad=[1, 1], group=32),
    )
    yield "Conv 2d groups 3 of 7", _conv((1, 21, 33, 33), (33, 7, 3, 3), pad=[1, 1], group=3)
    yield "Conv 2d 64x256x256 to 3 3x3", _conv((1, 64, 256, 256), (3, 64, 3, 3), pad=[1, 1])
    yield "Conv 2d 32x128x128 9x9 to 1", _conv((1, 32, 128, 128), (1, 32, 9, 9), pad=[4, 4])
    yield "Conv 2d 3x224x224 16x16 s16", _conv((1, 3, 224, 224), (384, 3, 16, 16), strides=[16, 16])
    yield "depthwise 96x56x56 3x3", _conv((1, 96, 56, 56), (96, 1, 3, 3), pad=[1, 1], group=96)
    yield (
        "depthwise 96x56x56 3x3 s2",
        _conv((1, 96, 56, 56), (96, 1, 3, 3), pad=[1, 1], group=96, strides=[2, 2]),
    )
    yield "depthwise 96x56x56 7x7", _conv((1, 96, 56, 56), (96, 1, 7, 7), pad=[3, 3], group=96)
    yield "depthwise 37x29x29 5x5", _conv((1, 37, 29, 29), (37, 1, 5, 5), pad=[2, 2], group=37)
    yield "depthwise x2 32x56x56 3x3", _conv((1, 32, 56, 56), (64, 1, 3, 3), pad=[1, 1], group=32)
    yield "depthwise batch 8 64x28x28", _conv((8, 64, 28, 28), (64, 1, 3, 3), pad=[1, 1], group=64)
    yield "Conv 3d 16x16x32x32", _conv((1, 16, 16, 32, 32), (32, 16, 3, 3, 3), pad=[1, 1, 1])
    yield (
        "Conv 3d 3x8x56x56 s2",
        _conv((1, 3, 8, 56, 56), (32, 3, 3, 7, 7), pad=[1, 3, 3], strides=[1, 2, 2]),
    )
    yield (
        "Conv 3d depthwise 24x8x28x28",
        _conv((1, 24, 8, 28, 28), (24, 1, 3, 3, 3), pad=[1, 1, 1], group=24),
    )
    for name, x, w, more in (
        ("64x32x32 2x2 s2", (1, 64, 32, 32), (64, 32, 2, 2), {"strides": [2, 2]}),
        ("64x32x32 4x4 s2", (1, 64, 32, 32), (64, 32, 4, 4),
         {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("32x33x33 3x3", (1, 32, 33, 33), (32, 19, 3, 3), {"pads": [1, 1, 1, 1]}),
        ("32x33x33 3x3 s2 output pad", (1, 32, 33, 33), (32, 19, 3, 3),
         {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ("100x1x1 4x4", (1, 100, 1, 1), (100, 512, 4, 4), {}),
        ("1d 128x250 k16 s8", (1, 128, 250), (128, 64, 16), {"strides": [8], "pads": [4, 4]}),
        ("groups 16x32x32 4x4 s2", (1, 16, 32, 32), (16, 1, 4, 4),
         {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 16}),
        ("3d 16x8x16x16 2 s2", (1, 16, 8, 16, 16), (16, 8, 2, 2, 2), {"strides": [2, 2, 2]}),
    ):  # fmt: skip
        yield (
            f"ConvTranspose {name}",
            lambda x=x, w=w, more=more: op("ConvTranspose", feed(*x), const(*w), **more),
        )


def pools() -> Made:
    def pool(name: str, x: tuple[int, ...], k: list[int], s: list[int], p: int = 0, **more: Any):
        return lambda: op(name, feed(*x), kernel_shape=k, strides=s, pads=[p] * 2 * len(k), **more)

    for name in ("MaxPool", "AveragePool"):
        yield f"{name} 1d 64x4000 k4", pool(name, (1, 64, 4000), [4], [4])
        yield f"{name} 2d 64x112x112 3x3 s2", pool(name, (1, 64, 112, 112), [3, 3], [2, 2], 1)
        yield f"{name} 2d 64x112x112 2x2", pool(name, (1, 64, 112, 112), [2, 2], [2, 2])
        yield f"{name} 2d 37x35x35 3x3 s1", pool(name, (1, 37, 35, 35), [3, 3], [1, 1], 1)
        yield f"{name} 2d 256x20x20 5x5 s1", pool(name, (1, 256, 20, 20), [5, 5], [1, 1], 2)
        yield f"{name} 2d 3x512x512 8x8", pool(name, (1, 3, 512, 512), [8, 8], [8, 8])
        yield f"{name} 2d batch 8 32x28x28 2x2", pool(name, (8, 32, 28, 28), [2, 2], [2, 2])
        yield f"{name} 3d 16x16x32x32 2", pool(name, (1, 16, 16, 32, 32), [2] * 3, [2] * 3)
        yield f"{name} 3d 16x16x32x32 3 s1", pool(name, (1, 16, 16, 32, 32), [3] * 3, [1] * 3, 1)
    yield (
        "MaxPool indices 32x56x56 2x2",
        pool("MaxPool", (1, 32, 56, 56), [2, 2], [2, 2], outputs=2),
    )
    for name in ("GlobalAveragePool", "GlobalMaxPool"):
        yield f"{name} 1d 256x500", lambda name=name: op(name, feed(1, 256, 500))
        yield f"{name} 2d 512x14x14", lambda name=name: op(name, feed(1, 512, 14, 14))
        yield f"{name} 2d 1280x7x7 batch 8", lambda name=name: op(name, feed(8, 1280, 7, 7))
        yield f"{name} 3d 64x8x28x28", lambda name=name: op(name, feed(1, 64, 8, 28, 28))
    yield (
        "LpPool 32x56x56 2x2",
        lambda: op("LpPool", feed(1, 32, 56, 56), kernel_shape=[2, 2], strides=[2, 2]),
    )


def normalisations() -> Made:
    def batch_norm(*x: int):
        c = x[1]
        return lambda: op("BatchNormalization", feed(*x), positive(c), const(c), const(c),
                          positive(c))  # fmt: skip

    yield "BatchNormalization 64x56x56", batch_norm(1, 64, 56, 56)
    yield "BatchNormalization 37x501", batch_norm(1, 37, 501)
    yield "BatchNormalization batch 256x512", batch_norm(256, 512)
    for x in ((1, 64, 56, 56), (1, 32, 128, 128), (1, 37, 1001)):
        name = "x".join(map(str, x[1:]))
        yield (
            f"InstanceNormalization {name}",
            lambda x=x: op("InstanceNormalization", feed(*x), const(x[1]), const(x[1])),
        )
    for x, groups in (((1, 64, 56, 56), 32), ((1, 320, 32, 32), 32), ((1, 30, 33, 33), 5)):
        name = "x".join(map(str, x[1:]))
        yield (
            f"GroupNormalization {name} of {groups}",
            lambda x=x, groups=groups: op(
                "GroupNormalization", feed(*x), const(x[1]), const(x[1]), num_groups=groups
            ),
        )
    for x, axis in (
        ((1, 128, 768), -1), ((1, 197, 384), -1), ((8, 100, 63), -1), ((1, 64, 32, 32), 1),
        ((1, 16, 100, 17), 2), ((1, 3136, 96), -1),
    ):  # fmt: skip
        name = "x".join(map(str, x))
        wide = x[axis:]
        yield (
            f"LayerNormalization {name} axis {axis}",
            lambda x=x, axis=axis, wide=wide: op(
                "LayerNormalization", feed(*x), const(*wide), const(*wide), axis=axis
            ),
        )
    yield "RMSNormalization 128x2048", lambda: op("RMSNormalization", feed(1, 128, 2048),
                                                  const(2048), axis=-1)  # fmt: skip
    yield (
        "SkipLayerNormalization 128x768",
        lambda: op(
            "SkipLayerNormalization",
            feed(1, 128, 768),
            feed(1, 128, 768),
            const(768),
            const(768),
            domain="com.microsoft",
        ),
    )
    yield "LRN 64x27x27", lambda: op("LRN", feed(1, 64, 27, 27), size=5)
    yield "LpNormalization 512x256", lambda: op("LpNormalization", feed(512, 256), axis=-1, p=2)
    yield (
        "channels-last LayerNorm 96x56x56",
        lambda: op(
            "Transpose",
            op(
                "LayerNormalization",
                op("Transpose", feed(1, 96, 56, 56), perm=[0, 2, 3, 1]),
                const(96),
                const(96),
                axis=-1,
            ),
            perm=[0, 3, 1, 2],
        ),
    )
    for name in ("Softmax", "LogSoftmax"):
        for x, axis in (
            ((12, 128, 128), -1), ((1, 1000), -1), ((1, 19, 128, 128), 1), ((8, 17, 33), 1),
            ((64, 32000), -1), ((4096, 21), -1), ((4096, 5), -1), ((1, 16, 8400, 4), 1),
        ):  # fmt: skip
            if name == "LogSoftmax" and x not in ((64, 32000), (1, 19, 128, 128), (4096, 21)):
                continue
            shown = "x".join(map(str, x))
            yield (
                f"{name} {shown} axis {axis}",
                lambda name=name, x=x, axis=axis: op(name, feed(*x), axis=axis),
            )


def products() -> Made:
    def matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: str = "float32", fed: bool = False):
        kind = {"dtype": dtype}
        return lambda: op("MatMul", feed(*a, **kind), (feed if fed else const)(*b, **kind))

    for a, b in (
        ((1, 512), (512, 512)), ((1, 4096), (4096, 1000)), ((16, 64), (64, 64)),
        ((100, 100), (100, 100)), ((128, 768), (768, 768)), ((37, 333), (333, 77)),
        ((5000, 16), (16, 16)), ((5000, 3), (3, 64)), ((10000, 64), (64, 3)),
        ((4, 2000), (2000, 1000)), ((512, 512), (512, 512)), ((100, 1000), (1000, 1)),
        ((8, 50000), (50000, 8)), ((1024, 1), (1, 1024)),
    ):  # fmt: skip
        shown = f"{'x'.join(map(str, a))} by {'x'.join(map(str, b))}"
        yield f"MatMul {shown}", matmul(a, b)
    for a, b in (
        ((12, 128, 64), (12, 64, 128)), ((12, 1, 64), (12, 64, 512)), ((64, 49, 32), (64, 32, 49)),
        ((512, 512), (512, 512)), ((37, 333), (333, 77)), ((1000, 4, 4), (1000, 4, 4)),
        ((200, 7, 33), (200, 33, 5)), ((1, 512), (512, 512)), ((512, 512), (512,)),
        ((8, 100, 100), (100, 100)), ((16, 1, 256), (16, 256, 1)), ((2000, 3, 3), (2000, 3, 1)),
    ):  # fmt: skip
        shown = f"{'x'.join(map(str, a))} by {'x'.join(map(str, b))}"
        yield f"MatMul fed {shown}", matmul(a, b, fed=True)
    yield "MatMul float64 256", matmul((256, 256), (256, 256), "float64", True)
    yield "MatMul float64 weight 128x768", matmul((128, 768), (768, 768), "float64")
    yield "MatMul float64 1x512", matmul((1, 512), (512, 512), "float64")
    yield "MatMul float64 37x101x53", matmul((37, 101), (101, 53), "float64", True)
    yield "MatMul int32 128", matmul((128, 128), (128, 128), "int32", True)
    yield "MatMul int64 128", matmul((128, 128), (128, 128), "int64", True)
    yield (
        "MatMul transposed b 128x64 by 512x64",
        lambda: op("MatMul", feed(128, 64), op("Transpose", feed(512, 64), perm=[1, 0])),
    )
    yield (
        "MatMul transposed a 300x100 by 300x200",
        lambda: op("MatMul", op("Transpose", feed(300, 100), perm=[1, 0]), feed(300, 200)),
    )
    for m, k, n, more in (
        (1, 2048, 1000, {"transB": 1}), (32, 784, 128, {"transB": 1}), (64, 128, 10, {}),
        (256, 300, 301, {"transA": 1}), (1000, 20, 10, {"alpha": 0.5, "beta": 2.0}),
    ):  # fmt: skip
        a = (k, m) if more.get("transA") else (m, k)
        b = (n, k) if more.get("transB") else (k, n)
        yield (
            f"Gemm {m}x{k} by {k}x{n} {' '.join(more)}",
            lambda a=a, b=b, n=n, more=more: op("Gemm", feed(*a), const(*b), const(n), **more),
        )
    yield (
        "Gemm float64 64x784 by 784x128",
        lambda: op("Gemm", feed(64, 784, dtype="float64"), const(784, 128, dtype="float64")),
    )
    for equation, shapes in (
        ("bhid,bhjd->bhij", [(1, 12, 128, 64)] * 2), ("bhij,bhjd->bhid", [(1, 12, 128, 128),
        (1, 12, 128, 64)]), ("bid,bjd->bij", [(8, 100, 64), (8, 90, 64)]),
        ("bhwc,hkc->bhwk", [(8, 14, 14, 64), (14, 14, 64)]), ("bnd,d->bn", [(8, 400, 64), (64,)]),
        ("i,j->ij", [(700,), (900,)]), ("nctw,cd->ndtw", [(1, 64, 50, 25), (64, 64)]),
        ("nctv,vw->nctw", [(1, 64, 100, 25), (25, 25)]),
        ("bqhd,bkhd->bhqk", [(1, 128, 12, 64)] * 2),
        ("bij,bij->b", [(8, 100, 200)] * 2), ("ijk->kji", [(40, 50, 60)]),
    ):  # fmt: skip
        yield (
            f"Einsum {equation}",
            lambda equation=equation, shapes=shapes: op(
                "Einsum", *(feed(*s, low=-1 - n) for n, s in enumerate(shapes)), equation=equation
            ),
        )
    yield "MLP batch 1024 of 256", lambda: _mlp(1024, [64, 256, 256, 10])
    yield "MLP batch 64 of 512", lambda: _mlp(64, [784, 512, 512, 10])
    yield "MLP batch 4096 of 32", lambda: _mlp(4096, [13, 32, 32, 1])
    yield "MLP open batch 256 of 128", lambda: _mlp(256, [64, 128, 128, 10], (0,))
    yield "MLP open batch 1 of 512", lambda: _mlp(1, [784, 512, 512, 10], (0,))


def _mlp(batch: int, widths: list[int], open_axes: tuple[int, ...] = ()) -> Node:
    x: Any = feed(batch, widths[0], open_axes=open_axes)
    for k, n in pairwise(widths):
        x = op("Relu", op("Gemm", x, const(n, k), const(n), transB=1))
    return x
