"""Reductions, softmax and its like, scans, order: any axes, empty ones, NaN, -0, infinities."""

from __future__ import annotations

import numpy as np

from tests.properties.draws import FLOATS, Case, Draw, Model
from tests.properties.elementwise import contents
from tests.properties.registry import operator

_REDUCED = ("float32", "float64", "int32", "int64")


def _reduction(op: str, dtypes: tuple[str, ...], opset: int, special: bool) -> None:
    @operator(op)
    def case(d: Draw) -> Case:
        dtype, made = d.pick(*dtypes), Model(op, opset)
        shape = d.shape(0, 4, 4)
        x = contents(d, shape, dtype) if special else d.array(shape, dtype, 1, 4)
        axes = None
        if shape and d.number(0, 3):
            count = d.number(0, len(shape))
            chosen = d.array([len(shape)], "float64")  # a permutation
            axes = [int(a) for a in np.argsort(chosen)[:count]]
            axes = [a - len(shape) if d.flag() else a for a in axes]
        keep = d.pick(None, 0, 1)
        noop = d.pick(None, 0, 1)
        inputs = [made.input(x)]
        if axes is not None:
            inputs.append(made.input(np.array(axes, np.int64), constant=True))
        return made.case(inputs, [dtype], keepdims=keep, noop_with_empty_axes=noop)


for _op in ("ReduceSum", "ReduceMean", "ReduceProd"):
    _reduction(_op, _REDUCED, 18, special=False)
for _op in ("ReduceMax", "ReduceMin"):
    _reduction(_op, (*_REDUCED, "int8", "uint8", "float16"), 20, special=True)
for _op in ("ReduceL1", "ReduceL2", "ReduceSumSquare"):
    _reduction(_op, _REDUCED, 18, special=False)
for _op in ("ReduceLogSum", "ReduceLogSumExp"):
    _reduction(_op, ("float32", "float64"), 18, special=False)


def _index(op: str) -> None:
    @operator(op)
    def case(d: Draw) -> Case:
        """NaN is left out: onnxruntime and NumPy place it apart, ONNX says nothing."""
        dtype, made = d.pick("float32", "float64", "int32", "int8", "uint8"), Model(op, 13)
        shape = d.shape(1, 4, zero=False)
        x = made.input(d.array(shape, dtype, -2, 2) if d.flag() else d.array(shape, dtype))
        more = {"axis": d.axis(len(shape)), "keepdims": d.pick(None, 0, 1)}
        return made.case([x], ["int64"], select_last_index=d.pick(None, 0, 1), **more)


_index("ArgMax")
_index("ArgMin")


def _along(op: str, opset: int, dtypes: tuple[str, ...] = ("float32", "float64")) -> None:
    @operator(f"{op}-{opset}")
    def case(d: Draw) -> Case:
        dtype, made = d.pick(*dtypes), Model(op, opset)
        shape = d.shape(1, 4)
        at = d.axis(len(shape)) if d.flag() or len(shape) == 1 else None
        x = d.array(shape, dtype, -40, 40) if d.flag() else contents(d, shape, dtype)
        return made.case([made.input(x)], [dtype], axis=at)


for _op in ("Softmax", "LogSoftmax"):
    _along(_op, 13, FLOATS)
    _along(_op, 11)


@operator("Hardmax")
def hardmax(d: Draw) -> Case:
    made = Model("Hardmax", 13)
    shape = d.shape(1, 3, zero=False)
    return made.case([made.input(d.array(shape))], ["float32"], axis=d.axis(len(shape)))


@operator("LpNormalization")
def lp_normalization(d: Draw) -> Case:
    made = Model("LpNormalization", 22)
    shape = d.shape(1, 3, zero=False)
    x = made.input(d.array(shape, low=0.5))
    return made.case([x], ["float32"], axis=d.axis(len(shape)), p=d.pick(1, 2))


@operator("CumSum")
def cum_sum(d: Draw) -> Case:
    dtype, made = d.pick("float32", "float64", "int32", "int64"), Model("CumSum", 14)
    shape = d.shape(1, 4)
    at = np.array(d.axis(len(shape)), d.pick("int32", "int64"))
    inputs = [made.input(d.array(shape, dtype)), made.input(at, constant=True)]
    return made.case(inputs, [dtype], exclusive=d.pick(None, 0, 1), reverse=d.pick(None, 0, 1))


@operator("TopK")
def top_k(d: Draw) -> Case:
    """Values are distinct, so places are too; ties are pinned in test_numerics."""
    dtype, made = d.pick("float32", "float64", "int32", "int64"), Model("TopK", 11)
    shape = d.shape(1, 3, zero=False)
    at = d.axis(len(shape))
    count = int(np.prod(shape))
    x = np.argsort(d.array([count], "float64")).reshape(shape).astype(dtype)
    k = np.array([d.number(0, shape[at])], np.int64)
    inputs = [made.input(x), made.input(k, constant=True)]
    return made.case(inputs, [dtype, "int64"], axis=at, largest=d.pick(None, 0, 1), sorted=1)


@operator("NonZero")
def non_zero(d: Draw) -> Case:
    dtype, made = d.pick("float32", "int64", "bool", "uint8"), Model("NonZero", 13)
    return made.case([made.input(d.array(d.shape(1), dtype, -1, 1))], ["int64"])


@operator("Compress")
def compress(d: Draw) -> Case:
    made = Model("Compress", 11)
    shape = d.shape(1, 3, zero=False)
    at = d.axis(len(shape)) if d.flag() else None
    length = int(np.prod(shape)) if at is None else shape[at]
    keep = d.array([d.number(0, length)], "bool")
    return made.case([made.input(d.array(shape)), made.input(keep)], ["float32"], axis=at)


@operator("Unique")
def unique(d: Draw) -> Case:
    """In the order of their first places onnx's reference gives another where there is no axis."""
    dtype, made = d.pick("float32", "int64"), Model("Unique", 11)
    shape = d.shape(1, 3, 4, zero=False)
    at = d.axis(len(shape)) if d.flag() else None
    x = made.input(d.array(shape, "int64", -1, 1).astype(dtype))
    kinds = [dtype, "int64", "int64", "int64"][: d.number(1, 4)]
    return made.case([x], kinds, axis=at, sorted=d.pick(None, 0, 1), reference="onnxruntime")
