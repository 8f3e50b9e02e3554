"""What numbers that are special become, pinned one by one; docs/numerics.md and
docs/differences.md tell the reasons.

`agree` names the references that give the same: a case that one of them leaves is where cuvilc had
to choose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.properties import check
from tests.properties.draws import Case, Model

NAN, INF = math.nan, math.inf
BOTH = frozenset({"onnx", "onnxruntime"})
ONNX = frozenset({"onnx"})
NEITHER: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pinned:
    """An operator's inputs (those in `constants` are in the model) and the output wanted."""

    op: str
    inputs: tuple[Any, ...]
    wanted: Any
    agree: frozenset[str] = BOTH
    constants: tuple[int, ...] = ()
    opset: int = 20
    attributes: dict[str, Any] = field(default_factory=dict)

    def case(self) -> Case:
        made = Model(self.op, self.opset)
        names = [
            made.input(None if a is None else np.asarray(a), i in self.constants)
            for i, a in enumerate(self.inputs)
        ]
        return made.case(names, [np.asarray(self.wanted).dtype.name], **self.attributes)


def f(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def ints(dtype: str, *values: int) -> np.ndarray:
    return np.array(values, dtype)


def empty(dtype: str = "float32") -> np.ndarray:
    return np.zeros((2, 0), dtype)


ONE_AXIS = np.array([1], np.int64)
SPECIAL = f(NAN, INF, -INF, -0.0)
CASES = {
    "NaN through Max": Pinned("Max", (f(NAN, 1, 2), f(1, NAN, 3)), f(NAN, NAN, 3)),
    "NaN through Min": Pinned("Min", (f(NAN, 1, 2), f(1, NAN, 3)), f(NAN, NAN, 2)),
    "NaN through Relu": Pinned("Relu", (f(NAN, -1, INF, -INF),), f(NAN, 0, INF, 0)),
    "NaN through Clip": Pinned(
        "Clip", (f(NAN, INF, -INF), np.float32(-1), np.float32(1)), f(NAN, 1, -1)
    ),
    "NaN through Clip with constants": Pinned(
        "Clip", (f(NAN, INF, -INF), np.float32(-1), np.float32(1)), f(NAN, 1, -1), constants=(1, 2)
    ),
    "NaN in a sum": Pinned("ReduceSum", (f(1, NAN),), f(NAN), attributes={"keepdims": 1}),
    "NaN in a maximum": Pinned("ReduceMax", (f(1, NAN, 3),), f(NAN), agree=ONNX),
    "NaN in a window": Pinned(
        "MaxPool", (f(1, NAN, 2, 3).reshape(1, 1, 4),), f(NAN, NAN, 3).reshape(1, 1, 3),
        agree=NEITHER, attributes={"kernel_shape": [2]},
    ),
    "NaN equals nothing": Pinned("Equal", (f(NAN, 1), f(NAN, 1)), np.array([False, True])),
    "NaN is not less": Pinned("Less", (f(NAN, 1, 1), f(1, NAN, 2)), np.array([False, False, True])),
    "NaN is not greater": Pinned(
        "Greater", (f(NAN, 1, 2), f(1, NAN, 1)), np.array([False, False, True])
    ),
    "sign of NaN": Pinned("Sign", (f(NAN, -2, INF),), f(NAN, -1, 1)),
    "a row of -∞ has no softmax": Pinned(
        "Softmax", (f(-INF, -INF),), f(NAN, NAN), attributes={"axis": 0}
    ),
    "-0 stays in Neg": Pinned("Neg", (f(0.0, -0.0),), f(-0.0, 0.0)),
    "-0 stays in Floor": Pinned("Floor", (f(-0.0, -0.5),), f(-0.0, -1)),
    "-0 from Ceil": Pinned("Ceil", (f(-0.0, -0.5),), f(-0.0, -0.0)),
    "-0 from Round": Pinned("Round", (f(-0.0, -0.5, -0.25),), f(-0.0, -0.0, -0.0)),
    "-0 goes in Abs": Pinned("Abs", (f(-0.0),), f(0.0)),
    "-0 in a product": Pinned("Mul", (f(-1, 1), f(0, -0.0)), f(-0.0, -0.0)),
    "-0 in a sum": Pinned("Add", (f(-0.0, -0.0), f(-0.0, 0.0)), f(-0.0, 0.0)),
    "half to even": Pinned(
        "Round", (f(0.5, 1.5, 2.5, -0.5, -1.5, 3.5),), f(0, 2, 2, -0.0, -2, 4)
    ),
    "half to even when quantised": Pinned(
        "QuantizeLinear", (f(0.5, 1.5, 2.5, 300, -9), np.float32(1), np.uint8(1)),
        ints("uint8", 1, 3, 3, 255, 0),
    ),
    "NaN and infinity when quantised": Pinned(
        "QuantizeLinear", (f(NAN, INF, -INF, 3e38), np.float32(1), np.uint8(7)),
        ints("uint8", 0, 255, 0, 255), agree=frozenset({"onnxruntime"}),
    ),
    "division by 0": Pinned("Div", (f(1, -1, 0, NAN), f(0, 0, 0, 0)), f(INF, -INF, NAN, NAN)),
    "division by a constant 0": Pinned(
        "Div", (f(1, -1, 0, INF), np.float32(0)), f(INF, -INF, NAN, INF), constants=(1,)
    ),
    "division by a constant -0": Pinned(
        "Div", (f(1, -1, 0, INF), np.float32(-0.0)), f(-INF, INF, NAN, -INF), constants=(1,)
    ),
    "roots and logarithms": Pinned("Sqrt", (f(-1, INF, 0),), f(NAN, INF, 0)),
    "logarithms": Pinned("Log", (f(-1, 0, INF),), f(NAN, -INF, INF)),
    "powers": Pinned("Pow", (f(0, -8, INF, NAN), f(0, 1 / 3, -1, 0)), f(1, NAN, 0, 1)),
    "exp of infinities": Pinned("Exp", (f(INF, -INF, NAN),), f(INF, 0, NAN)),
    "integers wrap in Add": Pinned(
        "Add", (ints("int32", 2**31 - 1), ints("int32", 1)), ints("int32", -(2**31))
    ),
    "integers wrap in Mul": Pinned(
        "Mul", (ints("int64", 2**62), ints("int64", 4)), ints("int64", 0)
    ),
    "integers wrap in Sub": Pinned(
        "Sub", (ints("uint8", 0), ints("uint8", 1)), ints("uint8", 255)
    ),
    "the least integer negated": Pinned("Neg", (ints("int8", -128),), ints("int8", -128)),
    "the least integer's Abs": Pinned("Abs", (ints("int8", -128),), ints("int8", -128)),
    "integer division cuts off": Pinned(
        "Div", (ints("int32", 7, -7, 7, -7), ints("int32", 2, 2, -2, -2)),
        ints("int32", 3, -3, -3, 3),
    ),
    "Mod has the divisor's sign": Pinned(
        "Mod", (ints("int32", 7, -7, 7, -7), ints("int32", 3, 3, -3, -3)),
        ints("int32", 1, 2, -2, -1),
    ),
    "fmod has the dividend's sign": Pinned(
        "Mod", (ints("int32", 7, -7, 7, -7), ints("int32", 3, 3, -3, -3)),
        ints("int32", 1, -1, 1, -1), attributes={"fmod": 1},
    ),
    "a sum of nothing": Pinned(
        "ReduceSum", (empty(), ONE_AXIS), f(0, 0).reshape(2, 1), constants=(1,)
    ),
    "a product of nothing": Pinned(
        "ReduceProd", (empty(), ONE_AXIS), f(1, 1).reshape(2, 1), constants=(1,)
    ),
    "a maximum of nothing": Pinned(
        "ReduceMax", (empty(), ONE_AXIS), f(-INF, -INF).reshape(2, 1), constants=(1,)
    ),
    "a minimum of nothing": Pinned(
        "ReduceMin", (empty(), ONE_AXIS), f(INF, INF).reshape(2, 1), constants=(1,)
    ),
    "a mean of nothing": Pinned(
        "ReduceMean", (empty(), ONE_AXIS), f(NAN, NAN).reshape(2, 1), agree=ONNX,
        constants=(1,),
    ),
    "a maximum of no integers": Pinned(
        "ReduceMax", (empty("int32"), ONE_AXIS), np.full((2, 1), -(2**31), np.int32),
        constants=(1,),
    ),
    "the first of equal ones": Pinned(
        "ArgMax", (f(1, 3, 3, 2),), ints("int64", 1), attributes={"axis": 0}
    ),
    "the first of equal least ones": Pinned(
        "ArgMin", (f(3, 1, 1, 2),), ints("int64", 1), attributes={"axis": 0}
    ),
    "different ones in the order of their first places": Pinned(
        "Unique", (f(2, 1, 1, 3, 2),), f(2, 1, 3), agree=frozenset({"onnxruntime"}),
        attributes={"sorted": 0},
    ),
    "as many windows as strides, dilated": Pinned(
        "MaxPool", (f(*range(7)).reshape(1, 1, 7),), f(2, 4, 6, 6).reshape(1, 1, 4), agree=ONNX,
        attributes={
            "kernel_shape": [3], "strides": [2], "dilations": [2], "auto_pad": "SAME_UPPER",
        },
    ),
    "PRelu's slope broadcasts from the right": Pinned(
        "PRelu", (-np.ones((2, 3), np.float32), f(1, 2, 3)), -np.array([[1, 2, 3]] * 2, np.float32)
    ),
    "floats to bool": Pinned(
        "Cast", (SPECIAL,), np.array([True, True, True, False]), attributes={"to": 9}
    ),
    "floats to integers are cut off": Pinned(
        "Cast", (f(1.9, -1.9, 2.5),), ints("int32", 1, -1, 2), attributes={"to": 6}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_is_as_pinned(name: str) -> None:
    pinned = CASES[name]
    case = pinned.case()
    for run in (check.by_interpreter, check.by_package):
        _same(np.asarray(run(case)["o0"]), np.asarray(pinned.wanted))


@pytest.mark.parametrize("name", CASES)
def test_the_references_agree_as_said(name: str) -> None:
    """Two dictionaries of runs; what a reference cannot run it does not contradict."""
    pinned = CASES[name]
    for who, run in (("onnx", check.by_onnx), ("onnxruntime", check.by_onnxruntime)):
        try:
            found = np.asarray(run(pinned.case())["o0"])
        except Exception:  # theirs to refuse, in whatever way
            continue
        agrees = found.dtype == np.asarray(pinned.wanted).dtype and np.array_equal(
            found, np.asarray(pinned.wanted), equal_nan=found.dtype.kind == "f"
        )
        assert agrees == (who in pinned.agree), f"{who}: {found}"


def _same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if wanted.dtype.kind != "f":
        assert found.tolist() == wanted.tolist()
        return
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    assert np.signbit(found)[numbers].tolist() == np.signbit(wanted)[numbers].tolist()
