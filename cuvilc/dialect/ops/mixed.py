"""Products of float32 with bfloat16 weights: `--precision bf16`."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from cuvilc.dialect.op import Tensor, op, sample
from cuvilc.dialect.ops._rules import need_dtype, need_rank
from cuvilc.dialect.ops.conv import Conv
from cuvilc.dialect.ops.matmul import MatMul


def _rounded(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


@op("ai.matmul_mixed")
class MatMulMixed:
    """a · b, where float32 a is first rounded to the bfloat16 that b is; sums are float32."""

    a: Tensor
    b: Tensor

    def shape(a, b):
        need_dtype(a, ("float32",), "a")
        need_dtype(b, ("bfloat16",), "b")
        need_rank(b, 2, "b")
        return MatMul.shape(a, b.with_(dtype="float32"), transpose_a=False, transpose_b=False)

    def reference(a, b):
        return np.matmul(_rounded(a), b)

    def domain(k, a, b):
        return (a.shape[-1],)

    def term(k, i, r, a, b):
        return k.cast(a[(*i[: len(a.shape) - 1], r[0])], "bfloat16") * b[(r[0], i[-1])]

    combine = "sum"
    samples = (
        sample("float32[3,5]", "bfloat16[5,7]"),
        sample("float32[2,3,4]", "bfloat16[4,3]"),
    )


@op("ai.conv_mixed")
class ConvMixed:
    """ai.conv, where float32 x is first rounded to the bfloat16 that w is; bias and sums are
    float32.
    """

    x: Tensor
    w: Tensor
    bias: Tensor | None
    strides: tuple
    pads_begin: tuple
    pads_end: tuple
    dilations: tuple
    groups: int = 1
    out_layout: str = ""
    stack: int = 1
    stack_step: int = 1

    def shape(x, w, bias, **attrs):
        need_dtype(x, ("float32",), "x")
        need_dtype(w, ("bfloat16",), "w")
        return Conv.shape(x, w.with_(dtype="float32"), bias, **attrs)

    def reference(x, w, bias, **attrs):
        return Conv.reference(_rounded(x), w, bias, **attrs)

    def domain(k, x, w, bias, **attrs):
        return tuple(w.shape[1:])

    def term(k, i, r, x, w, bias, **attrs):
        return Conv.facets["term"](k, i, r, _Rounded(k, x), w, bias, **attrs)

    def finish(k, i, total, x, w, bias, **attrs):
        return Conv.facets["finish"](k, i, total, x, w, bias, **attrs)

    combine = "sum"
    samples = (
        sample(
            "float32[1,3,7,9]", "bfloat16[5,3,3,3]", "float32[5]", strides=(2, 1),
            pads_begin=(1, 1), pads_end=(1, 0), dilations=(1, 2),
        ),
        sample(
            "float32[2,4,5]", "bfloat16[6,2,3]", strides=(1,), pads_begin=(0,), pads_end=(2,),
            dilations=(1,), groups=2,
        ),
        sample(
            "float32[4,2,4,5]", "bfloat16[3,4,3,3]", strides=(1, 1), pads_begin=(1, 1),
            pads_end=(1, 1), dilations=(1, 1), stack=2,
        ),
    )  # fmt: skip


class _Rounded:
    """An operand whose elements are rounded as they are read."""

    def __init__(self, k, x) -> None:
        self.k, self.x, self.shape, self.dtype = k, x, x.shape, x.dtype

    def __getitem__(self, index):
        return self.k.cast(self.x[index], "bfloat16")
