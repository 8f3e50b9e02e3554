"""Weights of few bits stay numbers where that means the same, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.ir import Program
from cuvilc.dialect.passes import canonicalize, fold_constants, raise_integers, raise_nbits
from cuvilc.dialect.passes.context import PassContext
from tests.dialect.passes.programs import make
from tests.tolerances import mismatch

K, N = 256, 160
_RNG = np.random.default_rng(5)


def levels(dtype: str, shape: tuple[int, ...] = (K, N)) -> np.ndarray:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    low, high = {"int8": (-128, 128), "uint8": (0, 256), "int4": (-8, 8), "uint4": (0, 16),
                 "int2": (-2, 2), "uint2": (0, 4)}[dtype]  # fmt: skip
    return _RNG.integers(low, high, shape).astype(np.int16).astype(kind)


def scales(*shape: int) -> np.ndarray:
    return _RNG.uniform(0.01, 0.05, shape).astype(np.float32)


class Make:
    """Builds weights out of constants."""

    def __init__(self, m: Any) -> None:
        self.m = m

    def constant(self, array: Any, key: str = "w") -> Any:
        return ir.constant(self.m.program, np.asarray(array), key)

    def dequantised(self, q: np.ndarray, scale: Any, zero: Any = None, **attrs: Any) -> Any:
        operands = [self.constant(q), self.constant(scale, "scale")]
        if zero is not None:
            operands.append(self.constant(zero, "zero"))
        return ir.build("ai.dequantize_linear", *operands, **attrs)

    def scaled(self, q: np.ndarray, scale: Any, zero: Any = None) -> Any:
        value = self.m.cast(self.constant(q), dtype="float32")
        if zero is not None:
            value = self.m.sub(value, self.constant(np.float32(zero), "zero"))
        return self.m.mul(value, self.constant(scale, "scale"))


def built(weight: Callable[[Make], Any], x: str = "[rows,256]", **attrs: Any) -> Program:
    return make({"x": x}, lambda m, x: m.matmul(x, weight(Make(m)), **attrs))


def kept(program: Program, prefer: str = "balanced") -> tuple[list[dict[str, Any]], PassContext]:
    """The attributes of what the pass makes; the result must mean the same."""
    shape = tuple(d if isinstance(d, int) else 3 for d in _input(program).shape)
    feeds = {"x": _RNG.standard_normal(shape).astype(np.float32)}
    (before,) = interpret(program, feeds).values()
    context = PassContext(prefer=prefer)
    for each in (canonicalize, raise_integers, raise_nbits, canonicalize, fold_constants):
        each.run(program, context)
        program.verify()
    (after,) = interpret(program, feeds).values()
    assert not mismatch(after, before)
    with program:
        block = ir.body(program.function("main"))
        return [ir.attrs(o) for o in ir.walk(block) if o.name == "ai.matmul_nbits"], context


def _input(program: Program) -> Any:
    with program:
        return ir.type_of(ir.body(program.function("main")).arguments[0])


CASES: dict[str, tuple[Callable[[Make], Any], int, int]] = {
    "a scale a column": (lambda w: w.dequantised(levels("int8"), scales(N), axis=1), 8, K),
    "one scale": (lambda w: w.dequantised(levels("int8"), np.float32(0.02)), 8, K),
    "zero points": (
        lambda w: w.dequantised(levels("uint8"), scales(N), levels("uint8", (N,)), axis=1), 8, K,
    ),
    "unsigned without zero points": (
        lambda w: w.dequantised(levels("uint8"), scales(N), axis=1), 8, K,
    ),
    "one signed zero point": (
        lambda w: w.dequantised(levels("int8"), scales(N), np.int8(-7).repeat(N), axis=1), 8, K,
    ),
    "four bits": (lambda w: w.dequantised(levels("int4"), scales(N), axis=1), 4, K),
    "four unsigned bits": (
        lambda w: w.dequantised(levels("uint4"), scales(N), levels("uint4", (N,)), axis=1), 4, K,
    ),
    "two bits": (lambda w: w.dequantised(levels("int2"), scales(N), axis=1), 2, K),
    "blocks": (
        lambda w: w.dequantised(levels("int4"), scales(K // 32, N), axis=0, block=32), 4, 32,
    ),
    "blocks with zero points": (
        lambda w: w.dequantised(
            levels("uint8"), scales(K // 16, N), levels("uint8", (K // 16, N)), axis=0, block=16
        ), 8, 16,
    ),
    "cast and product": (lambda w: w.scaled(levels("int8"), scales(1, N)), 8, K),
    "cast and a line": (lambda w: w.scaled(levels("int8"), scales(N)), 8, K),
    "cast, zero and product": (lambda w: w.scaled(levels("uint8"), scales(N), 128), 8, K),
    "turned": (
        lambda w: w.m.transpose(
            w.dequantised(levels("int8", (N, K)), scales(N), axis=0), perm=(1, 0)
        ), 8, K,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_kept(case: str) -> None:
    weight, bits, block = CASES[case]
    found, _ = kept(built(weight))
    assert [(a["bits"], a["block"]) for a in found] == [(bits, block)]


def test_transpose_flag() -> None:
    weight = CASES["turned"]
    rows = built(
        lambda w: w.dequantised(levels("int8", (N, K)), scales(N), axis=0), transpose_b=True
    )
    assert len(kept(rows)[0]) == len(kept(built(weight[0]))[0]) == 1


def test_an_odd_number_of_nibbles_takes_bytes() -> None:
    program = built(
        lambda w: w.dequantised(levels("int4", (255, 200)), scales(200), axis=1), "[2,255]"
    )
    assert [a["bits"] for a in kept(program)[0]] == [8]


@pytest.mark.parametrize(
    "weight",
    [
        lambda w: w.dequantised(levels("int8"), scales(K), axis=0),
        lambda w: w.dequantised(levels("int8", (K, 8)), scales(8), axis=1),
        lambda w: w.scaled(levels("int8"), scales(K, N)),
    ],
    ids=["a scale a row", "a small matrix", "a scale a number"],
)
def test_what_spares_little_is_left_alone(weight: Callable[[Make], Any]) -> None:
    found, context = kept(built(weight))
    assert not found
    assert "it would spare less than 64 KB" in context.why("raise-nbits")


def test_a_zero_point_between_levels() -> None:
    assert not kept(built(lambda w: w.scaled(levels("int8"), scales(N), 0.5)))[0]


def test_floats_that_others_read_too() -> None:
    def body(m: Any, x: Any) -> Any:
        w = Make(m).dequantised(levels("int8"), scales(N), axis=1)
        return m.add(m.matmul(x, w), m.reduce_sum(w, axes=(0,), keepdims=False))

    found, context = kept(make({"x": "[rows,256]"}, body))
    assert not found
    assert "others than products" in context.why("raise-nbits")[0]


@pytest.mark.parametrize(("x", "count"), [("[rows,256]", 0), ("[40,256]", 0), ("[4,256]", 1)])
def test_speed_wants_floats_for_many_rows(x: str, count: int) -> None:
    assert len(kept(built(CASES["a scale a column"][0], x), "speed")[0]) == count
