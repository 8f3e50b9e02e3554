"""Symbolic evaluation: what the operators that compute with shapes do to known contents.

Each rule takes the node and its inputs' object arrays and returns one object array (or a tuple of
them), or raises Unknown. A rule exists only where exports use the operator on sizes; everything
else runs as usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from . import onnx_values as V
from .onnx_tensors import DTYPES

if TYPE_CHECKING:
    from .onnx_node import Node

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def objects(shape: tuple[int, ...], values: Any) -> np.ndarray:
    """An object array of this shape; np.array would look inside the elements."""
    out = np.empty(math.prod(shape), dtype=object)
    for i, value in enumerate(values):
        out[i] = value
    return out.reshape(shape)


def _each(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    shapes = np.broadcast_shapes(*(a.shape for a in arrays))
    if math.prod(shapes) > V.MAX_KNOWN:
        raise V.Unknown
    flat = [np.broadcast_to(a, shapes).reshape(-1) for a in arrays]
    return objects(shapes, (function(*xs) for xs in zip(*flat, strict=True)))


def _numeric(function: Callable[[float], float]) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        if V.symbolic(x) or not math.isfinite(x):
            raise V.Unknown
        return function(x)

    return apply


def _power(a: Any, b: Any) -> Any:
    if V.symbolic(b) or (V.symbolic(a) and not (float(b).is_integer() and 0 < b < 5)):
        raise V.Unknown
    if not V.symbolic(a):
        return a**b
    return reduce(V.mul, [a] * int(b))


def _square_root(x: float) -> float:
    if x < 0:
        raise V.Unknown
    return math.sqrt(x)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": V.add, "Sub": V.sub, "Mul": V.mul, "Mod": V.modulo, "Equal": V.equal, "Less": V.less,
    "Greater": lambda a, b: V.less(b, a), "LessOrEqual": lambda a, b: V.negation(V.less(b, a)),
    "GreaterOrEqual": lambda a, b: V.negation(V.less(a, b)), "And": V.both, "Or": V.either,
    "Not": V.negation, "Neg": V.negate, "Floor": V.floor, "Ceil": V.ceil, "Where": V.choose,
    "Abs": _numeric(abs), "Round": _numeric(lambda x: float(round(x))),
    "Sqrt": _numeric(_square_root),
    "Pow": _power,
}  # fmt: skip


def _elementwise(node: Node, *arrays: np.ndarray) -> np.ndarray:
    return _each(_ELEMENTWISE[node.op], *arrays)


RULES |= dict.fromkeys(_ELEMENTWISE, _elementwise)


@rule("Div")
def _div(node: Node, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _each(V.div_float if node.type(0).is_float else V.div_int, a, b)


@rule("Min")
def _min(node: Node, *arrays: np.ndarray) -> np.ndarray:
    return reduce(lambda a, b: _each(V.low, a, b), arrays)


@rule("Max")
def _max(node: Node, *arrays: np.ndarray) -> np.ndarray:
    return reduce(lambda a, b: _each(V.high, a, b), arrays)


@rule("Cast")
def _cast(node: Node, x: np.ndarray) -> np.ndarray:
    target = DTYPES.get(node.attr("to"))
    if target is None or not V.is_known_dtype(target.name):
        raise V.Unknown
    return _each(lambda e: V.cast(e, target.name), x)


@rule("Identity")
def _identity(node: Node, x: np.ndarray) -> np.ndarray:
    return x


@rule("Gather")
def _gather(node: Node, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.take(x, plain_ints(indices), axis=node.attr("axis", 0))


@rule("Slice")
def _slice(node: Node, x: np.ndarray, *_: Any) -> np.ndarray:
    from .onnx_nodes_slice import slice_bounds  # noqa: PLC0415  # it imports this module

    index = [slice(None)] * x.ndim
    for axis, start, size, step in slice_bounds(node, x.shape):
        if not isinstance(start, int) or not isinstance(size, int):
            raise V.Unknown
        picked = [start + k * step for k in range(size)]
        index[axis] = np.array(picked, dtype=np.int64)  # type: ignore[call-overload]
        x = x[tuple(index)]
        index[axis] = slice(None)
    return x


@rule("Concat")
def _concat(node: Node, *arrays: np.ndarray) -> np.ndarray:
    return np.concatenate(arrays, axis=node.attr("axis", 0))


@rule("Unsqueeze")
def _unsqueeze(node: Node, x: np.ndarray, *_: Any) -> np.ndarray:
    axes = node.axes()
    if axes is None:
        raise V.Unknown
    return np.expand_dims(x, tuple(axes))


@rule("Squeeze")
def _squeeze(node: Node, x: np.ndarray, *_: Any) -> np.ndarray:
    axes = node.axes()
    return np.squeeze(x, None if axes is None else tuple(axes))


@rule("Reshape")
def _reshape(node: Node, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    target = [x.shape[i] if d == 0 else d for i, d in enumerate(plain_ints(shape).reshape(-1))]
    return x.reshape([int(d) for d in target])


@rule("Transpose")
def _transpose(node: Node, x: np.ndarray) -> np.ndarray:
    return np.transpose(x, node.attr("perm"))


@rule("Expand")
def _expand(node: Node, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    full = np.broadcast_shapes(x.shape, tuple(int(d) for d in plain_ints(shape)))
    if math.prod(full) > V.MAX_KNOWN:
        raise V.Unknown
    return np.broadcast_to(x, full)


@rule("Tile")
def _tile(node: Node, x: np.ndarray, repeats: np.ndarray) -> np.ndarray:
    counts = plain_ints(repeats)
    if math.prod(counts) * x.size > V.MAX_KNOWN:
        raise V.Unknown
    return np.tile(x, counts)


@rule("ConstantOfShape")
def _constant_of_shape(node: Node, shape: np.ndarray) -> np.ndarray:
    sizes = tuple(int(d) for d in plain_ints(shape))
    if math.prod(sizes) > V.MAX_KNOWN:
        raise V.Unknown
    value = node.attr("value")
    if value is not None and not V.is_known_dtype(value.dtype.name):
        raise V.Unknown
    fill = 0.0 if value is None else value.reshape(-1)[0].item()
    return objects(sizes, [fill] * math.prod(sizes))


@rule("Range")
def _range(node: Node, start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    a, b, step = (x.reshape(-1)[0] for x in (start, limit, delta))
    if V.symbolic(a, b, step) or isinstance(a, float) or step == 0:
        raise V.Unknown
    values = range(a, b, step)
    if len(values) > V.MAX_KNOWN:
        raise V.Unknown
    return objects((len(values),), values)


@rule("Split")
def _split(node: Node, x: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
    from .onnx_nodes_slice import split_sizes  # noqa: PLC0415  # it imports this module

    axis = node.attr("axis", 0)
    sizes = [s for s in split_sizes(node, x.shape[axis]) if isinstance(s, int)]
    if len(sizes) < node.results:
        raise V.Unknown
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


_FOLDS: dict[str, Callable[..., Any]] = {
    "ReduceProd": V.mul,
    "ReduceSum": V.add,
    "ReduceMin": V.low,
    "ReduceMax": V.high,
}


@rule(*_FOLDS)
def _reduce(node: Node, x: np.ndarray, *_: Any) -> np.ndarray:
    axes = node.axes()
    if x.size == 0 or x.ndim > 1 or (axes == [] and node.attr("noop_with_empty_axes", 0)):
        raise V.Unknown
    total = reduce(_FOLDS[node.op], x.reshape(-1))
    return objects((1,) if node.attr("keepdims", 1) and x.ndim else (), [total])


@rule("NonZero")
def _non_zero(node: Node, x: np.ndarray) -> np.ndarray:
    if V.symbolic(*x.reshape(-1)):
        raise V.Unknown
    found = np.array(np.nonzero(x.astype(bool)))
    return objects(found.shape, found.reshape(-1).tolist())


def plain_ints(array: np.ndarray) -> np.ndarray:
    """As int64; Unknown when an element is symbolic or no integer."""
    if any(V.symbolic(x) or isinstance(x, float) for x in array.reshape(-1)):
        raise V.Unknown
    return array.astype(np.int64)
