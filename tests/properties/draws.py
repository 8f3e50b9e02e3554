"""What random models are made of: sizes, shapes, attributes, contents. Hypothesis draws, so a case
that fails is made small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

T = TypeVar("T")
FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -0.5, float("nan"), float("inf"), float("-inf"))
MICROSOFT = "com.microsoft"


@dataclass
class Case:
    """A model and its inputs. `quantised`: integers may be a step off; `reference`: whom to ask;
    `twin`: another model that means the same, for the references to run where they lack this one.
    """

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    quantised: bool = False
    reference: str = "both"  # onnxruntime, onnx, both: agree with either
    twin: Case | None = None


class Draw:
    """Hypothesis's `draw` with words for what operators need."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def number(self, low: int, high: int) -> int:
        return int(self._data.draw(st.integers(low, high)))

    def pick(self, *choices: T) -> T:
        return self._data.draw(st.sampled_from(choices))

    def flag(self) -> bool:
        return bool(self._data.draw(st.booleans()))

    def real(self, low: float, high: float) -> float:
        found = self._data.draw(st.floats(low, high, width=32))
        return float(np.float32(found))

    def size(self, high: int = 5, zero: bool = True) -> int:
        """A size, 0 and 1 among them."""
        return self.number(0 if zero else 1, high)

    def shape(self, low: int = 0, high: int = 4, most: int = 5, zero: bool = True) -> list[int]:
        """A shape of `low` to `high` axes; at most one of them is 0."""
        rank = self.number(low, high)
        sizes = [self.number(1, most) for _ in range(rank)]
        if zero and rank and self.number(0, 9) == 0:
            sizes[self.number(0, rank - 1)] = 0
        return sizes

    def broadcast(self, shape: Sequence[int]) -> list[int]:
        """A shape that broadcasts to `shape`: axes dropped in front or of size 1."""
        kept = list(shape[self.number(0, len(shape)) :])
        return [1 if self.number(0, 3) == 0 else n for n in kept]

    def axis(self, rank: int) -> int:
        """An axis, counted from either end."""
        return self.number(-rank, rank - 1)

    def array(
        self, shape: Sequence[int], dtype: str = "float32", low: float = -4, high: float = 4,
        special: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Random contents; integers in the same range, cut to the dtype's own."""
        rng = np.random.default_rng(self.number(0, 1 << 16))
        if dtype == "bool":
            return np.asarray(rng.random(shape) < 0.5)
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            first, last = max(int(low), limits.min), min(int(high), limits.max)
            wide = np.int64 if last < 1 << 62 else np.uint64
            return np.asarray(rng.integers(first, last, shape, wide, endpoint=True), kind)
        found = rng.uniform(low, high, shape)
        if special and self.flag():
            holes = rng.random(shape) < 0.3
            found = np.where(holes, rng.choice(SPECIAL, shape), found)
        return np.asarray(found, kind)

    def extremes(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Integers from the whole range of the dtype, its ends often."""
        limits = np.iinfo(dtype)
        rng = np.random.default_rng(self.number(0, 1 << 16))
        wide = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        ends = np.array([limits.min, limits.max, 0, 1, limits.max // 2], dtype)
        return np.asarray(np.where(rng.random(shape) < 0.5, rng.choice(ends, shape), wide), dtype)


@dataclass
class Model:
    """Builds a one-node model: `m.input(array)` gives a name, constants become initialisers."""

    op: str
    opset: int = 21
    domain: str = ""
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def input(self, array: np.ndarray | None, constant: bool = False) -> str:
        """The name of a new input of the node; "" for one that is left out."""
        if array is None:
            return ""
        name = f"i{len(self.feeds) + len(self.weights)}"
        (self.weights if constant else self.feeds)[name] = array
        return name

    def case(self, inputs: Sequence[str], outputs: Sequence[str | None], **more: Any) -> Case:
        """outputs: a dtype each, None for one that is left out. more: attributes, Case's fields."""
        own = {k: more.pop(k) for k in ("quantised", "reference", "twin") if k in more}
        attributes = {k: v for k, v in more.items() if v is not None}
        inputs = list(inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        names = [f"o{i}" if t else "" for i, t in enumerate(outputs)]
        node = helper.make_node(self.op, inputs, names, domain=self.domain, **attributes)
        graph = helper.make_graph(
            [node], "g",
            [_info(k, v.dtype, list(v.shape)) for k, v in self.feeds.items()],
            [_info(k, np.dtype(getattr(ml_dtypes, t, t)), None)
             for k, t in zip(names, outputs, strict=True) if t],
            [numpy_helper.from_array(v, k) for k, v in self.weights.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, 1))
        return Case(
            helper.make_model(graph, opset_imports=opsets, ir_version=10), self.feeds, **own
        )


def _info(name: str, dtype: np.dtype, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)
