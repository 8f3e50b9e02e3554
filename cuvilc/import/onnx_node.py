"""A node as its importer sees it: operands as SSA values or contents, attributes as Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, Expr, Shape, symbol, symbols
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.types import TensorType

from .onnx_values import Val, bounds, is_computed, symbolic

if TYPE_CHECKING:
    from .onnx_convert import Converter

_A = onnx.AttributeProto


class DataDependent(Exception):
    """An input must be known at compile time and is not."""

    def __init__(self, what: str) -> None:
        super().__init__(what)


class UseDefinition(Exception):
    """An importer passes: ONNX's own definition of the operator by others serves."""


class Constrain(Exception):
    """The model is valid only if `symbol` is `value`, or at most `greatest`: import again so."""

    def __init__(self, symbol: str, value: Dim | None = None, greatest: int | None = None) -> None:
        self.symbol, self.value, self.greatest = symbol, value, greatest
        super().__init__(symbol)


class Node:
    """One node. `n[0]` is the SSA value of input 0, `n.attr("axis", 0)` an attribute."""

    def __init__(
        self, converter: Converter, proto: Any, inputs: list[Val | None], opset: int, label: str,
        scope: Any, opsets: dict[str, int], place: str,
    ) -> None:  # fmt: skip
        self.converter, self.proto, self.inputs = converter, proto, inputs
        self.op, self.domain, self.opset, self.label = proto.op_type, proto.domain, opset, label
        self.scope, self.opsets, self.place = scope, opsets, place  # for graphs inside the node
        self.attributes = converter.attributes(proto)
        self.results = len(proto.output)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> ir.Value:
        value = self.get(i)
        if value is None:
            raise ShapeError(f"input {i} is missing")
        return value

    def get(self, i: int) -> ir.Value | None:
        """The SSA value of input i, or None where the model leaves it out."""
        val = self.val(i)
        return None if val is None else self.converter.value(val)

    def val(self, i: int) -> Val | None:
        return self.inputs[i] if i < len(self.inputs) else None

    def has(self, i: int) -> bool:
        return self.val(i) is not None

    def all(self) -> list[ir.Value]:
        """The SSA values of all inputs."""
        return [self[i] for i in range(len(self.inputs))]

    def wants(self, i: int) -> bool:
        """Whether output i has a name, so someone may use it."""
        return i < self.results and bool(self.proto.output[i])

    def type(self, i: int) -> TensorType:
        val = self.val(i)
        if val is None:
            raise ShapeError(f"input {i} is missing")
        return val.type

    def shape(self, i: int) -> Shape:
        return self.type(i).shape

    def attr(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def ints(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
        found = self.attr(name)
        return default if found is None else tuple(found)

    def array(self, i: int) -> np.ndarray | None:
        """Input i as a typed array when it is a constant (computed ones are folded); else None."""
        val = self.val(i)
        return None if val is None else self.converter.array(val)

    def known(self, i: int) -> np.ndarray | None:
        """Input i as an object array of numbers and sizes when its content is known; else None."""
        val = self.val(i)
        return None if val is None else self.converter.elements(val)

    def dims(self, i: int, what: str, signed: bool = False) -> tuple[Dim, ...]:
        """Input i as sizes; a small tensor of integers that the model computes gives computed ones.

        signed: they may be negative. DataDependent otherwise; `what` names them in the message.
        """
        found, val = self.known(i), self.val(i)
        if found is None and val is not None:
            found = self.converter.bind(val, signed)
        if found is None:
            raise DataDependent(what)
        flat = found.reshape(-1).tolist()
        sizes = tuple(x if isinstance(x, Expr) else _whole(x, what) for x in flat)
        return sizes if signed else tuple(self.converter.unsigned(d, what) for d in sizes)

    def static(self, i: int, what: str) -> tuple[int, ...]:
        """Input i as plain integers. DataDependent otherwise."""
        found = self.known(i)
        if found is None or symbolic(*found.reshape(-1)):
            raise DataDependent(what)
        return tuple(_whole(d, what) for d in found.reshape(-1))

    def number(self, i: int, what: str, default: float | None = None) -> float:
        """Input i as one number known at compile time."""
        if not self.has(i) and default is not None:
            return default
        found = self.array(i)
        if found is None or found.size != 1:
            raise DataDependent(what)
        return float(found.reshape(-1)[0])

    def axes(self, rank: int | None = None) -> list[int] | None:
        """`axes` from the attribute or input 1, None when absent; made positive with rank."""
        if "axes" in self.attributes:
            found = list(self.attributes["axes"])
        elif self.has(1):
            found = list(self.static(1, "axes"))
        else:
            return None
        return found if rank is None else [axis(a, rank) for a in found]

    def axis(self, default: int, i: int = 0) -> int:
        """The attribute `axis`, counted from the front of input i."""
        return axis(self.attr("axis", default), len(self.shape(i)))

    def require_equal(self, a: Dim, b: Dim) -> None:
        """The model is only valid where a = b. Teaches the importer when that fixes a symbol."""
        if a == b:
            return
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Expr) and str(one).isidentifier():
                self.converter.unify(str(one), other)

    def constant(self, array: np.ndarray) -> ir.Value:
        """A constant that the importer makes for this node."""
        return ir.constant(self.converter.program, array, f"{self.label}.constant")


def axis(value: int, rank: int) -> int:
    """`value` counted from the front. ShapeError outside the rank."""
    if not -rank <= value < max(rank, 1):
        raise ShapeError(f"axis {value} is outside rank {rank}")
    return value + rank if value < 0 else value


def _whole(x: Any, what: str) -> int:
    if isinstance(x, (bool, int)):
        return int(x)
    if isinstance(x, float) and x.is_integer():
        return int(x)
    raise DataDependent(what)


def ai(name: str, *operands: ir.Value | None, **attributes: Any) -> Any:
    """Build `ai.NAME`; trailing None operands are left out."""
    given = list(operands)
    while given and given[-1] is None:
        given.pop()
    return ir.build(f"ai.{name}", *given, **attributes)


def shape_of(value: ir.Value) -> Shape:
    return ir.type_of(value).shape


def dtype_of(value: ir.Value) -> str:
    return ir.type_of(value).dtype


def cast(value: ir.Value, dtype: str) -> ir.Value:
    """Cast, or nothing where the dtype is right."""
    return value if dtype_of(value) == dtype else ai("cast", value, dtype=dtype)


def reshape(value: ir.Value, shape: Shape) -> ir.Value:
    """Reshape, or nothing where the shape is right."""
    return value if shape_of(value) == shape else ai("reshape", value, shape=tuple(shape))


def scalar(value: float, like: ir.Value) -> ir.Value:
    """A rank-0 number of another value's dtype."""
    return ir.full(value, (), dtype_of(like))


def attribute_value(a: Any, read_tensor: Any) -> Any:
    """An AttributeProto as number, str, tuple, array or GraphProto. None when unsupported."""
    match a.type:
        case _A.INT:
            return a.i
        case _A.FLOAT:
            return float(a.f)
        case _A.STRING:
            return a.s.decode(errors="replace")
        case _A.INTS:
            return tuple(a.ints)
        case _A.FLOATS:
            return tuple(float(f) for f in a.floats)
        case _A.STRINGS:
            return tuple(s.decode(errors="replace") for s in a.strings)
        case _A.TENSOR:
            return read_tensor(a.t)
        case _A.GRAPH:
            return a.g
    return None


def demand(condition: Dim, message: str) -> None:
    """The model is only valid where the condition, made of sizes, is 1: asked when the model runs.

    ShapeError where it is known to be 0.
    """
    if isinstance(condition, int):
        if not condition:
            raise ShapeError(message)
    elif bounds(condition)[0] < 1:
        ai("require", condition=condition, message=message)


def learn_bounds(a: Shape, b: Shape) -> None:
    """min(512, n) against n broadcasts only where n ≤ 512: a table bounds the length."""
    for x, y in zip(reversed(a), reversed(b), strict=False):
        for limited, size in ((x, y), (y, x)):
            greatest = _limit(limited, size)
            names = list(symbols(size))
            if greatest is not None and len(names) == 1 and not is_computed(size):
                offset = size - symbol(names[0])
                if isinstance(offset, int):
                    raise Constrain(names[0], greatest=greatest - offset)


def _limit(limited: Dim, size: Dim) -> int | None:
    """c when `limited` is min(c, size)."""
    if not isinstance(limited, Expr) or len(limited.terms) != 1:
        return None
    (atoms, factor) = limited.terms[0]
    if factor != 1 or len(atoms) != 1 or atoms[0][0] != "min":
        return None
    _, first, second = atoms[0]
    if first == size and isinstance(second, int):
        return second
    return first if second == size and isinstance(first, int) else None
