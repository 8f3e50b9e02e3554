"""Quantised layers become sums of bytes that mean the same; what must stay is left as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ir import Program
from cuvilc.dialect.passes import canonicalize, fold_constants, raise_integers
from cuvilc.dialect.passes.context import PassContext
from tests.dialect.passes.programs import make

_RNG = np.random.default_rng(3)


def levels(shape: Any, dtype: str) -> np.ndarray:
    return _RNG.integers(0, 256, shape, np.uint8).view(dtype)


def program(types: dict[str, str], body: Any) -> Program:
    """`body(constant, *inputs)`, where `constant` makes an ai.constant of an array."""

    def with_constants(m: Any, *inputs: Any) -> Any:
        return body(lambda a, key="w": ir.constant(m.program, np.asarray(a), key), *inputs)

    return make(types, with_constants)


def names(p: Program) -> list[str]:
    with p:
        return [o.name for o in ir.walk(ir.body(p.function("main")))]


def raised(p: Program) -> PassContext:
    context = PassContext()
    for each in (canonicalize, raise_integers, canonicalize, fold_constants):
        each.run(p, context)
        p.verify()
    return context


def same_after(p: Program, feeds: dict[str, np.ndarray], steps: int) -> None:
    """The result after the pass is within `steps` of what it was before."""
    before = list(interpret(p, feeds).values())
    raised(p)
    for old, new in zip(before, interpret(p, feeds).values(), strict=True):
        assert old.dtype == new.dtype and old.shape == new.shape
        assert np.abs(old.astype(np.int64) - new.astype(np.int64)).max() <= steps


def dequantised(constant: Any, x: Any, scale: Any, zero: Any, axis: int = 0) -> Any:
    scale = constant(np.asarray(scale, np.float32), "scale")
    return ir.build("ai.dequantize_linear", x, scale, constant(zero, "zero"), axis=axis)


def layer(codes: tuple[str, str, str], per_channel: bool, zero: bool) -> Program:
    """Dequantise → convolution with a bias → relu → quantise."""
    x_code, w_code, y_code = codes
    count = 6 if per_channel else ()
    scale = np.float32(0.01) * _RNG.uniform(0.5, 1, count).astype(np.float32)
    shift = levels(count, w_code) if zero else np.zeros(count, w_code)

    def body(constant: Any, x: Any) -> Any:
        left = dequantised(constant, x, 0.02, levels((), x_code))
        right = dequantised(constant, constant(levels((6, 5, 3, 3), w_code)), scale, shift)
        bias = _RNG.integers(-9999, 9999, 6).astype(np.int32)
        unit = np.float32(0.02) * scale * np.ones(6, np.float32)
        offset = ir.build(
            "ai.dequantize_linear", constant(bias, "bias"), constant(unit, "unit"), axis=0
        )
        y = ir.build(
            "ai.conv", left, right, offset, strides=(2, 1), pads_begin=(1, 0), pads_end=(1, 2),
            dilations=(1, 1),
        )  # fmt: skip
        point = constant(np.asarray(3, y_code), "zero")
        by = constant(np.float32(0.7), "scale")
        return ir.build("ai.quantize_linear", ir.build("ai.relu", y), by, point, axis=0)

    return program({"x0": f"{x_code}[2,5,9,8]"}, body)


CODES = [("uint8", "int8", "uint8"), ("int8", "int8", "int8"), ("int8", "uint8", "uint8")]


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("zero", [False, True])
def test_convolution(codes: Any, per_channel: bool, zero: bool) -> None:
    p = layer(codes, per_channel, zero)
    same_after(p, {"x0": levels((2, 5, 9, 8), codes[0])}, 1)
    found = names(p)
    assert "ai.conv_integer" in found
    assert "ai.conv" not in found and "ai.dequantize_linear" not in found


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("constant_right", [False, True])
def test_product(codes: Any, turned: bool, constant_right: bool) -> None:
    a_code, b_code, y_code = codes
    shape = (7, 12) if turned else (12, 7)

    def body(constant: Any, *inputs: Any) -> Any:
        b = constant(levels(shape, b_code)) if constant_right else inputs[1]
        left = dequantised(constant, inputs[0], 0.02, levels((), a_code))
        right = dequantised(constant, b, 0.01, levels((), b_code))
        y = ir.build("ai.matmul", left, right, transpose_b=turned)
        point, by = constant(levels((), y_code), "zero"), constant(np.float32(0.3), "scale")
        return ir.build("ai.quantize_linear", y, by, point, axis=0)

    types = {"x0": f"{a_code}[3,5,12]"}
    feeds = {"x0": levels((3, 5, 12), a_code)}
    if not constant_right:
        types["x1"] = f"{b_code}[{shape[0]},{shape[1]}]"
        feeds["x1"] = levels(shape, b_code)
    p = program(types, body)
    same_after(p, feeds, 1)
    assert "ai.matmul" not in names(p) and "ai.matmul_integer" in names(p)


def test_sums_are_exact() -> None:
    """Zero points a row and a column, both codes, wrapping: equal bit by bit."""
    for a_code, b_code in (("int8", "uint8"), ("uint8", "uint8"), ("int8", "int8")):
        types = {"x0": f"{a_code}[5,70]", "x1": f"{b_code}[70,6]", "x2": f"{a_code}[5]"}

        def body(constant: Any, a: Any, b: Any, rows: Any, code: str = b_code) -> Any:
            return ir.build("ai.matmul_integer", a, b, rows, constant(levels(6, code), "zeros"))

        p = program(types, body)
        feeds = {"x0": levels((5, 70), a_code), "x1": levels((70, 6), b_code)}
        same_after(p, feeds | {"x2": levels(5, a_code)}, 0)


@pytest.mark.parametrize(("zero", "left"), [(0, 3), (4, 4)])
def test_zero_points_of_channels_alone_that_are_0_go(zero: int, left: int) -> None:
    def body(constant: Any, x: Any, w: Any) -> Any:
        zeros = constant(np.uint8(7), "x zero"), constant(np.full(6, zero, np.int8), "zeros")
        return ir.build("ai.conv_integer", x, w, *zeros, groups=6, strides=(1, 1),
                        pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1))  # fmt: skip

    p = program({"x0": "uint8[1,6,5,4]", "x1": "int8[6,1,3,3]"}, body)
    same_after(p, {"x0": levels((1, 6, 5, 4), "uint8"), "x1": levels((6, 1, 3, 3), "int8")}, 0)
    with p:
        found = [o for o in ir.walk(ir.body(p.function("main"))) if o.name == "ai.conv_integer"]
        assert [len(o.operands) for o in found] == [left]


def test_constant_terms_of_integers_become_one() -> None:
    def body(constant: Any, x: Any) -> Any:
        c, d, e = (constant(levels(20, "int32"), key) for key in "cde")
        y = ir.build("ai.elemwise_add", ir.build("ai.elemwise_sub", x, c), d)
        return ir.build("ai.elemwise_add", e, ir.build("ai.elemwise_add", y, c))

    p = program({"x0": "int32[5]"}, body)
    same_after(p, {"x0": levels(20, "int32")}, 0)
    assert [n for n in names(p) if "elemwise" in n] == ["ai.elemwise_add"]


def test_moves_keep_bytes() -> None:
    """Transposes, pools and concatenations between layers work on bytes, not on floats."""

    def body(constant: Any, x: Any) -> Any:
        y = dequantised(constant, x, 0.5, np.int8(-7))
        y = ir.build("ai.transpose", y, perm=(0, 3, 1, 2))
        y = ir.build(
            "ai.max_pool", y, kernel=(2, 2), strides=(2, 2), pads_begin=(0, 0), pads_end=(0, 0),
            dilations=(1, 1),
        )  # fmt: skip
        y = ir.build("ai.concat", y, y, axis=1)
        by, point = constant(np.float32(0.5), "scale"), constant(np.int8(-7), "zero")
        return ir.build("ai.quantize_linear", y, by, point, axis=0)

    p = program({"x0": "int8[1,6,4,3]"}, body)
    same_after(p, {"x0": levels((1, 6, 4, 3), "int8")}, 0)
    assert not [n for n in names(p) if "quantize" in n]


@pytest.mark.parametrize(("low", "kept"), [(0, False), (5, True)])
def test_relu_that_saturation_does(low: int, kept: bool) -> None:
    def body(constant: Any, x: Any) -> Any:
        by, point = constant(np.float32(0.5), "scale"), constant(np.uint8(low), "zero")
        return ir.build("ai.quantize_linear", ir.build("ai.relu", x), by, point, axis=0)

    p = program({"x0": "[9]"}, body)
    same_after(p, {"x0": np.linspace(-9, 300, 9, dtype=np.float32)}, 0)
    assert ("ai.relu" in names(p)) == kept


def test_what_stays() -> None:
    """A scale per channel of the input, and 16-bit levels, are computed in floats."""

    def body(constant: Any, x: Any) -> Any:
        left = dequantised(constant, x, [0.1] * 5, np.zeros(5, np.uint8), axis=1)
        right = dequantised(constant, constant(levels((6, 5, 1, 1), "int8")), 0.1, np.int8(0))
        return ir.build("ai.conv", left, right, strides=(1, 1), pads_begin=(0, 0),
                        pads_end=(0, 0), dilations=(1, 1))  # fmt: skip

    p = program({"x0": "uint8[1,5,3,3]"}, body)
    context = raised(p)
    assert "ai.conv" in names(p)
    assert context.why("integer-conv") == ["a scale per channel of the input"]
