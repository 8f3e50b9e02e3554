"""Cases of operators.py without weights: reductions, movements, images, element by element.

The table of all, which maps a name to what makes the model's expression, is `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operator_blocks import attentions, quantised, recurrent, trees
from benchmarks.operator_layers import convolutions, normalisations, pools, products
from benchmarks.operator_models import Array, Made, Node, const, drawn, feed, given, op, positive


def reductions() -> Made:
    def reduce(name: str, x: tuple[int, ...], axes: list[int], dtype: str = "float32"):
        how = {"low": -100, "high": 100} if dtype != "float32" else {}
        return lambda: op(name, feed(*x, dtype=dtype, **how), given(axes), keepdims=0)

    for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ReduceLogSumExp"):
        for x, axes in (
            ((512, 2000), [1]), ((512, 2000), [0]), ((64, 100, 129), [1]),
            ((16, 64, 32, 32), [2, 3]), ((1, 256, 56, 56), [1]), ((16, 64, 32, 32), [0, 2, 3]),
            ((10000, 3), [1]), ((500000,), [0]),
        ):  # fmt: skip
            shown = "x".join(map(str, x))
            if name in ("ReduceMean", "ReduceMax") or (len(axes) == 1 and len(x) == 2):
                yield f"{name} {shown} over {axes}", reduce(name, x, axes)
    yield "ReduceSum int64 512x2000 over [1]", reduce("ReduceSum", (512, 2000), [1], "int64")
    yield "ReduceMax int32 512x2000 over [0]", reduce("ReduceMax", (512, 2000), [0], "int32")
    yield (
        "ReduceMin uint8 512x2000 over [1]",
        lambda: op("ReduceMin", feed(512, 2000, dtype="uint8", low=0, high=255), given([1])),
    )
    yield "ReduceProd 512x200 over [1]", reduce("ReduceProd", (512, 200), [1])
    for x, axis in (
        ((64, 32000), 1), ((1, 21, 256, 256), 1), ((1000, 80), 1), ((8400, 80), -1), ((300, 999), 0)
    ):  # fmt: skip
        shown = "x".join(map(str, x))
        yield (
            f"ArgMax {shown} axis {axis}",
            lambda x=x, axis=axis: op("ArgMax", feed(*x), axis=axis, keepdims=0),
        )
    for x, k, axis in (
        ((1, 32000), 50, -1), ((64, 1000), 5, -1), ((1, 8400), 300, -1), ((100, 257), 257, -1),
        ((1, 100000), 1000, -1), ((50, 600), 10, 0),
    ):  # fmt: skip
        shown = "x".join(map(str, x))
        yield (
            f"TopK {shown} k {k} axis {axis}",
            lambda x=x, k=k, axis=axis: op("TopK", feed(*x), given([k]), axis=axis, outputs=2),
        )
    for x, axis in (((64, 5000), 1), ((500, 640), 0), ((8, 300, 33), 1)):
        shown = "x".join(map(str, x))
        yield (
            f"CumSum {shown} axis {axis}",
            lambda x=x, axis=axis: op("CumSum", feed(*x), given(axis)),
        )
    yield "NonZero 1000x300", lambda: op("NonZero", op("Greater", feed(1000, 300),
                                                       given(1, "float32")))  # fmt: skip
    yield "mean and deviation 512x1024", _deviation


def _deviation() -> Node:
    x = feed(512, 1024)
    centred = op("Sub", x, op("ReduceMean", x, given([1])))
    variance = op("ReduceMean", op("Mul", centred, centred), given([1]))
    return op("Div", centred, op("Sqrt", op("Add", variance, given(1e-5, "float32"))))


def movements() -> Made:
    for x, perm in (
        ((1, 128, 12, 64), [0, 2, 1, 3]), ((1, 12, 128, 64), [0, 1, 3, 2]),
        ((1, 3, 512, 512), [0, 2, 3, 1]), ((1, 512, 512, 3), [0, 3, 1, 2]),
        ((1000, 1001), [1, 0]), ((1, 64, 56, 56), [0, 2, 3, 1]), ((33, 65, 129), [2, 1, 0]),
        ((33, 65, 129), [1, 2, 0]), ((8, 4, 4, 8, 32, 3), [0, 1, 3, 2, 4, 5]),
        ((1, 8, 56, 8, 56), [0, 2, 4, 1, 3]), ((2, 64, 64, 64), [3, 2, 1, 0]),
    ):  # fmt: skip
        shown = "x".join(map(str, x))
        yield (
            f"Transpose {shown} to {perm}",
            lambda x=x, perm=perm: op("Transpose", feed(*x), perm=perm),
        )
    yield (
        "Transpose uint8 512x512x3",
        lambda: op("Transpose", feed(512, 512, 3, dtype="uint8", low=0, high=255), perm=[2, 0, 1]),
    )
    yield (
        "Transpose int64 500x700",
        lambda: op("Transpose", feed(500, 700, dtype="int64", high=9), perm=[1, 0]),
    )
    yield (
        "Concat channels 64x56x56",
        lambda: op("Concat", feed(1, 64, 56, 56), feed(1, 96, 56, 56), axis=1),
    )
    yield "Concat last 1000x(64, 33)", lambda: op("Concat", feed(1000, 64), feed(1000, 33), axis=-1)
    yield (
        "Concat last of 4 8400",
        lambda: op("Concat", *(feed(8400, 1, low=-n) for n in (1, 2, 3, 4)), axis=-1),
    )
    yield (
        "Concat cache 12x512x64 and 1",
        lambda: op("Concat", feed(1, 12, 512, 64), feed(1, 12, 1, 64), axis=2),
    )
    yield (
        "Split channels 96x56x56",
        lambda: op("Split", feed(1, 96, 56, 56), axis=1, num_outputs=3, outputs=3),
    )
    yield (
        "Split last 512x2304",
        lambda: op("Split", feed(1, 512, 2304), axis=2, num_outputs=3, outputs=3),
    )
    yield "Slice 1x64x112x112 crop", lambda: op("Slice", feed(1, 64, 112, 112), given([3, 5]),
                                                given([100, 99]), given([2, 3]))  # fmt: skip
    yield (
        "Slice step 2 1x64x112x112",
        lambda: op(
            "Slice",
            feed(1, 64, 112, 112),
            given([0, 0]),
            given([112, 112]),
            given([2, 3]),
            given([2, 2]),
        ),
    )
    yield (
        "Slice reversed 1000x300",
        lambda: op("Slice", feed(1000, 300), given([-1]), given([-1000]), given([1]), given([-1])),
    )
    for mode in ("constant", "reflect", "edge", "wrap"):
        yield (
            f"Pad {mode} 64x56x56",
            lambda mode=mode: op(
                "Pad", feed(1, 64, 56, 56), given([0, 0, 3, 3, 0, 0, 3, 3]), mode=mode
            ),
        )
    yield (
        "Pad reflect 1x16000",
        lambda: op("Pad", feed(1, 16000), given([0, 200, 0, 200]), mode="reflect"),
    )
    yield (
        "Expand 1x64x1x1 to 56x56",
        lambda: op("Expand", feed(1, 64, 1, 1), given([1, 64, 56, 56])),
    )
    yield "Tile 64x50 by 3x20", lambda: op("Tile", feed(64, 50), given([3, 20]))
    for mode in ("DCR", "CRD"):
        yield (
            f"DepthToSpace {mode} 48x64x64",
            lambda mode=mode: op("DepthToSpace", feed(1, 48, 64, 64), blocksize=4, mode=mode),
        )
    yield "SpaceToDepth 12x128x128", lambda: op("SpaceToDepth", feed(1, 12, 128, 128), blocksize=2)
    yield "channel shuffle 116x28x28", lambda: op("Reshape", op("Transpose", op(
        "Reshape", feed(1, 116, 28, 28), given([1, 2, 58, 28, 28])), perm=[0, 2, 1, 3, 4]),
        given([1, 116, 28, 28]))  # fmt: skip
    yield "window partition 56x56x96 of 7", lambda: op("Reshape", op("Transpose", op(
        "Reshape", feed(1, 56, 56, 96), given([1, 8, 7, 8, 7, 96])), perm=[0, 1, 3, 2, 4, 5]),
        given([64, 49, 96]))  # fmt: skip
    yield "Trilu 12x256x256", lambda: op("Trilu", feed(12, 256, 256), upper=0)
    yield (
        "OneHot 1000 of 512",
        lambda: op(
            "OneHot",
            feed(1000, dtype="int64", low=0, high=512),
            given(512),
            given([0, 1], "float32"),
        ),
    )
    yield (
        "Cast int64 to float 500000",
        lambda: op("Cast", feed(500000, dtype="int64", high=9), to=1),
    )
    yield "Cast float to int32 500000", lambda: op("Cast", feed(500000), to=6)
    yield "Cast float to float16 500000", lambda: op("Cast", feed(500000), to=10)
    yield "Cast float16 to float 500000", lambda: op("Cast", feed(500000, dtype="float16"), to=1)
    yield (
        "Cast uint8 to float 3x512x512",
        lambda: op("Cast", feed(3, 512, 512, dtype="uint8", low=0, high=255), to=1),
    )
    yield (
        "Cast float to uint8 3x512x512",
        lambda: op("Cast", feed(3, 512, 512, low=0, high=9), to=2),
    )


def lookups() -> Made:
    def indices(*shape: int, below: int) -> Array:
        return feed(*shape, dtype="int64", low=0, high=below)

    yield (
        "embedding 512 of 30522x768",
        lambda: op("Gather", const(30522, 768), indices(1, 512, below=30522)),
    )
    yield (
        "embedding 4096 of 1000x16",
        lambda: op("Gather", const(1000, 16), indices(4096, below=1000)),
    )
    yield (
        "Gather axis 1 256x1000 100",
        lambda: op("Gather", feed(256, 1000), indices(100, below=1000), axis=1),
    )
    yield (
        "Gather axis 2 16x64x49x49",
        lambda: op("Gather", feed(16, 64, 64, 49), indices(49, below=64), axis=2),
    )
    yield (
        "GatherElements 300x1000",
        lambda: op("GatherElements", feed(300, 1000), indices(300, 1000, below=1000), axis=1),
    )
    yield (
        "GatherElements 8400x4 300",
        lambda: op("GatherElements", feed(1, 8400, 84), indices(1, 300, 84, below=8400), axis=1),
    )
    yield (
        "GatherND 64x64x32 5000",
        lambda: op("GatherND", feed(64, 64, 32), indices(5000, 2, below=64)),
    )
    yield (
        "ScatterND 8400x64 500",
        lambda: op("ScatterND", feed(8400, 64), indices(500, 1, below=8400), feed(500, 64)),
    )
    yield (
        "ScatterND add 8400x64 500",
        lambda: op(
            "ScatterND", feed(8400, 64), indices(500, 1, below=8400), feed(500, 64), reduction="add"
        ),
    )
    yield (
        "ScatterElements 300x1000",
        lambda: op(
            "ScatterElements",
            feed(300, 1000),
            indices(300, 100, below=1000),
            feed(300, 100),
            axis=1,
        ),
    )
    yield (
        "Where 512x2000",
        lambda: op(
            "Where",
            op("Greater", feed(512, 2000), given(0, "float32")),
            feed(512, 2000, low=0),
            given(-1, "float32"),
        ),
    )
    yield (
        "Equal int64 500000",
        lambda: op("Equal", feed(500000, dtype="int64", low=0, high=4), given(2)),
    )
    yield "Unique 5000", lambda: op("Unique", feed(5000, dtype="int64", low=0, high=400))
    yield "NonMaxSuppression 1000 boxes", lambda: _suppression(1000, 1, 50)
    yield "NonMaxSuppression 8400 boxes 20 classes", lambda: _suppression(8400, 20, 20)


def _suppression(boxes: int, classes: int, most: int) -> Node:
    corner, size = drawn(1, boxes, 2, low=0, high=600), drawn(1, 2, boxes, low=5, high=80)
    both = np.concatenate([corner, corner + size.reshape(1, boxes, 2)], 2)
    return op(
        "NonMaxSuppression",
        Array(both, True),
        feed(1, classes, boxes, low=0, high=1),
        given(most),
        given(0.5, "float32"),
        given(0.6, "float32"),
    )


def images() -> Made:
    def resize(x: tuple[int, ...], scale: list[float], **how: Any):
        return lambda: op("Resize", feed(*x), None, given([1, 1, *scale], "float32"), **how)

    for mode in ("nearest", "linear", "cubic"):
        yield f"Resize {mode} 64x40x40 up 2", resize((1, 64, 40, 40), [2, 2], mode=mode)
        yield f"Resize {mode} 3x480x640 down 2", resize((1, 3, 480, 640), [0.5, 0.5], mode=mode)
        yield f"Resize {mode} 3x200x300 up 1.7", resize((1, 3, 200, 300), [1.7, 1.7], mode=mode)
        yield f"Resize {mode} 3x480x640 down 0.3", resize((1, 3, 480, 640), [0.3, 0.3], mode=mode)
    yield (
        "Resize linear corners 21x65x65 up 8",
        resize(
            (1, 21, 65, 65), [8, 8], mode="linear", coordinate_transformation_mode="align_corners"
        ),
    )
    yield (
        "Resize nearest asymmetric 256x20x20 up 2",
        resize(
            (1, 256, 20, 20),
            [2, 2],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
    )
    for mode in ("linear", "nearest", "cubic"):
        yield (
            f"GridSample {mode} 32x64x64",
            lambda mode=mode: op(
                "GridSample", feed(1, 32, 64, 64), feed(1, 64, 64, 2, low=-1, high=1), mode=mode
            ),
        )
    yield "AffineGrid 2x256x256", lambda: op("AffineGrid", feed(2, 2, 3), given([2, 3, 256, 256]))
    yield (
        "RoiAlign 64 rois 64x50x50",
        lambda: op(
            "RoiAlign",
            feed(1, 64, 50, 50),
            Array(_rois(64), True),
            given([0] * 64),
            output_height=7,
            output_width=7,
            sampling_ratio=2,
            spatial_scale=0.0625,
        ),
    )
    yield "image to floats 480x640x3", lambda: op("Div", op("Sub", op("Transpose", op(
        "Cast", feed(1, 480, 640, 3, dtype="uint8", low=0, high=255), to=1), perm=[0, 3, 1, 2]),
        const(1, 3, 1, 1)), positive(1, 3, 1, 1))  # fmt: skip


def _rois(count: int) -> np.ndarray:
    corner = drawn(count, 2, low=0, high=500)
    return np.concatenate([corner, corner + drawn(2, count, low=30, high=290).T], 1)


def signals() -> Made:
    yield "DFT 64x512", lambda: op("DFT", feed(64, 512, 1), None, given(1), onesided=1)
    yield "DFT 1x16x1000", lambda: op("DFT", feed(16, 1000, 1), None, given(1))
    yield (
        "STFT 16000 of 400 by 160",
        lambda: op("STFT", feed(1, 16000), given(160), positive(400), given(400)),
    )


def elementwise() -> Made:
    for name in (
        "Erf", "Tanh", "Sigmoid", "Gelu", "Exp", "Sin", "Cos", "Log", "Sqrt", "Softplus", "Mish",
        "HardSwish", "LeakyRelu", "Elu", "Floor", "Round", "Abs", "Atan", "Reciprocal", "Sign",
    ):  # fmt: skip
        positive = name in ("Log", "Sqrt", "Reciprocal")
        yield (
            f"{name} 500000",
            lambda name=name, positive=positive: op(
                name, feed(500000, low=0.1 if positive else -4, high=4)
            ),
        )
    yield "Tanh 128x3072", lambda: op("Tanh", feed(128, 3072))
    yield "Exp float64 200000", lambda: op("Exp", feed(200000, dtype="float64"))
    yield "Relu int32 500000", lambda: op("Relu", feed(500000, dtype="int32", low=-9, high=9))
    for name, other in (("Pow", 2), ("Pow", 0.5), ("Pow", 1.7), ("Mod", 3), ("Div", 3)):
        more = {"fmod": 1} if name == "Mod" else {}
        yield (
            f"{name} by {other} 500000",
            lambda name=name, other=other, more=more: op(
                name, feed(500000, low=0.1), given(other, "float32"), **more
            ),
        )
    yield "Pow of two 500000", lambda: op("Pow", feed(500000, low=0.1), feed(1, 500000))
    yield (
        "Div int64 500000",
        lambda: op("Div", feed(500000, dtype="int64", low=-900, high=900), given(7)),
    )
    yield (
        "Div int32 two 500000",
        lambda: op(
            "Div",
            feed(500000, dtype="int32", low=-900, high=900),
            feed(1, 500000, dtype="int32", low=1, high=20),
        ),
    )
    yield "Add 1000x500 rows", lambda: op("Add", feed(1000, 500), feed(500))
    yield "Add 1000x500 columns", lambda: op("Add", feed(1000, 500), feed(1000, 1))
    yield "Add outer 700 by 900", lambda: op("Add", feed(700, 1), feed(1, 900))
    yield "Mul 64x56x56 channels", lambda: op("Mul", feed(1, 64, 56, 56), feed(1, 64, 1, 1))
    yield (
        "Add float16 500000",
        lambda: op("Add", feed(500000, dtype="float16"), feed(1, 500000, dtype="float16")),
    )
    yield (
        "Add int8 as int32 500000",
        lambda: op(
            "Add", feed(500000, dtype="int32", low=-9, high=9), feed(1, 500000, dtype="int32")
        ),
    )
    yield "Clip 500000", lambda: op("Clip", feed(500000), given(0, "float32"), given(1, "float32"))
    yield "gelu of pieces 128x3072", lambda: _gelu(feed(128, 3072))
    yield "swish 64x56x56", lambda: _swish(feed(1, 64, 56, 56))
    yield "broadcast distances 200x300x8", lambda: op("ReduceSum", _square(op(
        "Sub", feed(200, 1, 8), feed(1, 300, 8))), given([2]), keepdims=0)  # fmt: skip
    yield "masked scores 12x128x128", lambda: op("Where", op(
        "Less", feed(1, 1, 128, 128), given(0, "float32")), given(-1e4, "float32"), op(
        "Mul", feed(1, 12, 128, 128), given(0.125, "float32")))  # fmt: skip
    yield "rotary embedding 12x128x64", lambda: _rotary(feed(1, 12, 128, 64))
    yield "Xor and Not 500000", lambda: op("Not", op("Xor", op(
        "Greater", feed(500000), given(0, "float32")), op(
        "Less", feed(500000), given(1, "float32"))))  # fmt: skip
    yield "PRelu 64x56x56", lambda: op("PRelu", feed(1, 64, 56, 56), const(64, 1, 1))
    yield (
        "Max of three 1000x500",
        lambda: op("Max", feed(1000, 500), feed(1000, 500, low=-1), feed(500)),
    )


def _square(x: Any) -> Node:
    return op("Mul", x, x)


def _gelu(x: Array) -> Node:
    inner = op("Erf", op("Div", x, given(2**0.5, "float32")))
    return op("Mul", op("Mul", x, op("Add", inner, given(1, "float32"))), given(0.5, "float32"))


def _swish(x: Array) -> Node:
    return op("Mul", x, op("Sigmoid", x))


def _rotary(x: Array) -> Node:
    low = op("Slice", x, given([0]), given([32]), given([3]))
    high = op("Slice", x, given([32]), given([64]), given([3]))
    turned = op("Concat", op("Neg", high), low, axis=-1)
    return op("Add", op("Mul", x, const(1, 1, 128, 64)), op("Mul", turned, const(128, 64)))


CASES: dict[str, Callable[[], Node]] = dict(
    case
    for family in (
        convolutions, pools, normalisations, reductions, movements, lookups, images, signals,
        products, recurrent, elementwise, attentions, quantised, trees,
    )
    for case in family()
)  # fmt: skip
