"""Reductions, softmax and its kin, sorting and cumulation."""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.op import ShapeError

from ._table import importer
from .onnx_node import Node, ai, cast, dtype_of, reshape, scalar, shape_of

_PLAIN = {
    "ReduceSum": "reduce_sum", "ReduceMean": "reduce_mean", "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min", "ReduceProd": "reduce_prod",
}  # fmt: skip


def _axes(n: Node) -> tuple[int, ...] | None:
    """The axes to reduce; None when the node reduces nothing."""
    rank = len(n.shape(0))
    axes = n.axes(rank)
    if not axes:
        return None if n.attr("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(axes))


def _reduce(n: Node, name: str, x: ir.Value, keep: bool | None = None) -> ir.Value:
    axes = _axes(n)
    if not axes:
        return x
    keepdims = bool(n.attr("keepdims", 1)) if keep is None else keep
    return ai(name, x, axes=axes, keepdims=keepdims)


@importer(*_PLAIN)
def plain(n: Node) -> ir.Value:
    x = n[0]
    if dtype_of(x) == "bool":  # of bools: max is "any", min is "all"
        return cast(_reduce(n, _PLAIN[n.op], cast(x, "uint8")), "bool")
    return _reduce(n, _PLAIN[n.op], x)


@importer("ReduceL1")
def l1(n: Node) -> ir.Value:
    return _reduce(n, "reduce_sum", ai("abs", n[0]))


@importer("ReduceSumSquare")
def sum_square(n: Node) -> ir.Value:
    return _reduce(n, "reduce_sum", ai("elemwise_mul", n[0], n[0]))


@importer("ReduceL2")
def l2(n: Node) -> ir.Value:
    squares = sum_square(n)
    if ir.type_of(squares).is_float:
        return ai("sqrt", squares)
    return cast(ai("sqrt", cast(squares, "float64")), dtype_of(squares))


@importer("ReduceLogSum")
def log_sum(n: Node) -> ir.Value:
    return ai("log", _reduce(n, "reduce_sum", n[0]))


@importer("ReduceLogSumExp")
def log_sum_exp(n: Node) -> ir.Value:
    """max + log Σ exp(x - max), so that exp cannot overflow; an infinite max shifts nothing."""
    x = n[0]
    axes = _axes(n)
    if not axes:
        return x
    if not ir.type_of(x).is_float:
        x = cast(x, "float64")
    if any(isinstance(shape_of(x)[a], int) and shape_of(x)[a] == 0 for a in axes):
        return ai("log", _reduce(n, "reduce_sum", ai("exp", x)))
    top = ai("reduce_max", x, axes=axes, keepdims=True)
    top = ai("where", ai("is_inf", top), scalar(0.0, top), top)
    total = ai("reduce_sum", ai("exp", ai("elemwise_sub", x, top)), axes=axes, keepdims=True)
    result = ai("elemwise_add", ai("log", total), top)
    if not n.attr("keepdims", 1):
        result = reshape(result, tuple(d for i, d in enumerate(shape_of(result)) if i not in axes))
    return cast(result, n.type(0).dtype)


@importer("ArgMax", "ArgMin")
def arg(n: Node) -> ir.Value:
    name = "arg_max" if n.op == "ArgMax" else "arg_min"
    return ai(
        name, n[0], axis=n.axis(0), keepdims=bool(n.attr("keepdims", 1)),
        select_last=bool(n.attr("select_last_index", 0)),
    )  # fmt: skip


_SOFT = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


@importer(*_SOFT, since=13)
def softmax(n: Node) -> ir.Value:
    return ai(_SOFT[n.op], n[0], axis=n.axis(-1))


@importer(*_SOFT)
def old_softmax(n: Node) -> ir.Value:
    """Before opset 13 over all axes from `axis` on, taken as one."""
    sizes, at = n.shape(0), n.axis(1)
    if at == len(sizes) - 1:
        return ai(_SOFT[n.op], n[0], axis=at)
    flat = reshape(n[0], (*sizes[:at], D.product(sizes[at:])))
    return reshape(ai(_SOFT[n.op], flat, axis=at), sizes)


@importer("Hardmax", since=13)
def hardmax(n: Node) -> ir.Value:
    return _hardmax(n[0], n.axis(-1))


@importer("Hardmax")
def old_hardmax(n: Node) -> ir.Value:
    sizes, at = n.shape(0), n.axis(1)
    flat = reshape(n[0], (*sizes[:at], D.product(sizes[at:])))
    return reshape(_hardmax(flat, at), sizes)


def _hardmax(x: ir.Value, at: int) -> ir.Value:
    first = ai("arg_max", x, axis=at, keepdims=True, select_last=False)
    place = ai("iota", shape=shape_of(x), axis=at, dtype="int64", start=0, step=1)
    return cast(ai("equal", place, first), dtype_of(x))


@importer("LpNormalization")
def lp_normalization(n: Node) -> ir.Value:
    at = n.axis(-1)
    return divided_by_norm(n[0], lp_norm(n[0], n.attr("p", 2), at))


def lp_norm(x: ir.Value, p: int, at: int) -> ir.Value:
    """‖x‖₁ or ‖x‖₂ along an axis, which stays with extent 1."""
    if p == 1:
        return ai("reduce_sum", ai("abs", x), axes=(at,), keepdims=True)
    return ai("sqrt", ai("reduce_sum", ai("elemwise_mul", x, x), axes=(at,), keepdims=True))


def divided_by_norm(x: ir.Value, norm: ir.Value) -> ir.Value:
    """x / norm, and x where the norm is 0."""
    zero = ai("equal", norm, scalar(0.0, norm))
    return ai("elemwise_div", x, ai("where", zero, scalar(1.0, norm), norm))


@importer("CumSum", "CumProd")
def cumulated(n: Node) -> ir.Value:
    at = int(n.number(1, "the axis is"))
    at += len(n.shape(0)) if at < 0 else 0
    return ai(
        n.op.lower(),
        n[0],
        axis=at,
        exclusive=bool(n.attr("exclusive", 0)),
        reverse=bool(n.attr("reverse", 0)),
    )


@importer("TopK")
def top_k(n: Node) -> Any:
    k: Any = n.attr("k")
    if n.has(1):
        (k,) = n.dims(1, "k is")
    if k is None:
        raise ShapeError("k is missing")
    return ai(
        "top_k",
        n[0],
        k=k,
        axis=n.axis(-1),
        largest=bool(n.attr("largest", 1)),
        sorted=bool(n.attr("sorted", 1)),
    )
