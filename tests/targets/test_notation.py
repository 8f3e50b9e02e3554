"""The notation's functions against NumPy in float64, over the whole range of float32."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.dialect.types import TensorType
from cuvilc.targets import llvm, tir
from cuvilc.targets.notation import Notation
from tests.targets.kernel_harness import V2, V3, V4, link

LANES = 16
_erf = np.vectorize(math.erf, otypes=[np.float64])

# name, reference, least and most normal argument, allowed error in ulp
FUNCTIONS = (
    ("exp", np.exp, -110, 100, 2.0),
    ("exp_below", np.exp, -87, 0, 2.0),
    ("log", np.log, 0, 3.4e38, 2.0),
    ("log1p", np.log1p, -0.999, 3.4e38, 4.0),
    ("tanh", np.tanh, -20, 20, 5.0),
    ("erf", _erf, -6, 6, 6.0),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), -85, 100, 4.0),
    ("sqrt", np.sqrt, 0, 3.4e38, 0.51),
    ("rsqrt", lambda x: 1 / np.sqrt(x), 1e-38, 3.4e38, 1.5),
    ("sinh", np.sinh, -100, 100, 4.0),
    ("cosh", np.cosh, -100, 100, 4.0),
    ("asinh", np.arcsinh, -3e38, 3e38, 4.0),
    ("acosh", np.arccosh, 1, 3e38, 4.0),
    ("atanh", np.arctanh, -1, 1, 4.0),
    ("sin", np.sin, -1e6, 1e6, 2.0),
    ("cos", np.cos, -1e6, 1e6, 2.0),
    ("tan", np.tan, -1e6, 1e6, 4.0),
    ("asin", np.arcsin, -1, 1, 4.0),
    ("acos", np.arccos, -1, 1, 4.0),
    ("atan", np.arctan, -1e9, 1e9, 3.0),
    ("floor", np.floor, -1e9, 1e9, 0.0),
    ("ceil", np.ceil, -1e9, 1e9, 0.0),
    ("trunc", np.trunc, -1e9, 1e9, 0.0),
    ("round_even", np.rint, -1e9, 1e9, 0.0),
    ("abs", np.abs, -3e38, 3e38, 0.0),
)  # fmt: skip
UNFUSED = {"tanh": 7.0, "erf": 7.0}  # allowed where the chip has no fused multiply-add
EDGES = [
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    1e-38,
    1.0,
    -1.0,
    0.5,
    2.5,
    -2.5,
    np.inf,
    -np.inf,
    np.nan,
    88.7,
    -88.7,
]


def compile_function(folder: Path, chip: Any, arity: int, dtype: str, function: Any) -> Any:
    """A NumPy function that runs `function(k, *values)` on vectors of LANES."""
    b = tir.KernelBuilder("kernel")
    k = Notation(b)
    operands = [k.operand(TensorType((1 << 30,), dtype), i) for i in range(arity)]
    out = b.buffer(arity, dtype)
    with b.tasks() as t, b.loop(LANES, "vectorized") as lane:
        at = t * LANES + lane
        k.store(out, at, function(k, *(x[at] for x in operands)), dtype)
    llvm.compile_object(b.finish(), llvm.llvm_target(chip.llvm), str(folder / "kernel.o"))
    kernel = link(folder)["kernel"]
    kernel.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]

    def call(*arrays: np.ndarray) -> np.ndarray:
        padded = [
            np.ascontiguousarray(np.resize(a, (len(a) + LANES - 1) // LANES * LANES))
            for a in arrays
        ]
        y = np.empty_like(padded[0])
        pointers = (ctypes.c_void_p * (arity + 1))(*(a.ctypes.data for a in (*padded, y)))
        assert kernel(pointers, None, 0, len(y) // LANES, None) == 0
        return y[: len(arrays[0])]

    return call


def samples(low: float, high: float) -> np.ndarray:
    """Dense float32 samples: even in value, even in logarithm, and the edges."""
    rng = np.random.default_rng(1)
    even = rng.uniform(max(low, -1e3), min(high, 1e3), 200_000)
    wide = np.exp(rng.uniform(-100, 88, 100_000))
    x = np.concatenate([even, wide, -wide, 1 + even * 1e-6, EDGES]).astype(np.float32)
    inside = (x >= low) & (x <= high)
    return np.concatenate([x[inside], np.array(EDGES, np.float32)])


def ulps(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Distance in units of float32's last place; equal infinities and NaNs count as 0."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(rounded), np.float32(1.2e-38))).astype(np.float64)
        error = np.abs(got.astype(np.float64) - wanted) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same, 0, np.where(np.isnan(error), np.inf, error))


@pytest.mark.parametrize("chip", [V4, V3, V2], ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("name", "reference", "low", "high", "limit"),
    FUNCTIONS,
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_float32(name, reference, low, high, limit, chip, tmp_path):
    x = samples(low, high)
    if name == "exp_below":
        x = x[(x <= 0) & (x >= low) | (x == -np.inf)]
    got = compile_function(tmp_path, chip, 1, "float32", lambda k, v: getattr(k, name)(v))(x)
    with np.errstate(all="ignore"):
        error = ulps(got, reference(x.astype(np.float64)))
    if name == "sigmoid":
        error[x < -87] = 0  # such results are denormal, and 0 here
    limit = UNFUSED.get(name, limit) if chip is V2 else limit
    worst = int(np.argmax(error))
    assert error[worst] <= limit, f"{error[worst]:.2f} ulp at {x[worst]!r}: {got[worst]!r}"


@pytest.mark.parametrize("chip", [V4, V3, V2], ids=lambda c: c.name)
def test_small_numbers_are_rounded_to_even(chip, tmp_path):
    halves = np.arange(-70_000, 70_000) / 2
    x = np.concatenate([halves, halves * 0.9999, [2.0**22, 1 - 2.0**22]]).astype(np.float32)

    def rounded(k, v):
        return k.cast(k.round_small(v), "float32")

    got = compile_function(tmp_path, chip, 1, "float32", rounded)(x)
    np.testing.assert_array_equal(got, np.rint(x))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles_that_have_lost_all_digits_stay_within_bounds(name, tmp_path):
    x = np.array([1e12, -1e20, 3e38, np.inf, -np.inf, np.nan], np.float32)
    got = compile_function(tmp_path, V3, 1, "float32", lambda k, v: getattr(k, name)(v))(x)
    assert (np.abs(got[:3]) <= 1).all()
    assert np.isnan(got[3:]).all()


@pytest.mark.parametrize("name", [f[0] for f in FUNCTIONS if f[0] not in ("exp_below", "log1p")])
def test_float64(name, tmp_path):
    _, reference, low, high, _ = next(f for f in FUNCTIONS if f[0] == name)
    x = np.random.default_rng(2).uniform(max(low, -50), min(high, 50), 1000)
    got = compile_function(tmp_path, V4, 1, "float64", lambda k, v: getattr(k, name)(v))(x)
    np.testing.assert_allclose(got, reference(x), rtol=1e-14)


@pytest.mark.parametrize("chip", [V4, V3, V2], ids=lambda c: c.name)
def test_pow(chip, tmp_path):
    rng = np.random.default_rng(3)
    x = np.concatenate([np.exp(rng.uniform(-80, 80, 50_000)), rng.uniform(-9, 9, 50_000)])
    y = np.concatenate([rng.uniform(-3, 3, 50_000), np.rint(rng.uniform(-30, 30, 50_000))])
    grid = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 2.5, np.inf, -np.inf, np.nan])
    x, y = (
        np.concatenate([x, np.repeat(grid, len(grid))]),
        np.concatenate([y, np.tile(grid, len(grid))]),
    )
    x, y = x.astype(np.float32), y.astype(np.float32)
    got = compile_function(tmp_path, chip, 2, "float32", lambda k, a, b: k.pow(a, b))(x, y)
    with np.errstate(all="ignore"):
        error = ulps(got, np.power(x.astype(np.float64), y.astype(np.float64)))
    worst = int(np.argmax(error))
    assert error[worst] <= 1.0, (
        f"{error[worst]} ulp at {x[worst]!r} ** {y[worst]!r}: {got[worst]!r}"
    )


def test_comparisons_with_nan(tmp_path):
    x = np.array([np.nan, 1.0, np.inf, 0.0, -np.inf], np.float32)
    facts = {
        "isnan": (lambda k, v: k.isnan(v), np.isnan(x)),
        "isinf": (lambda k, v: k.isinf(v), np.isinf(x)),
        "ne": (lambda k, v: k.ne(v, k.const(1.0, "float32")), x != 1),
        "bool": (lambda k, v: k.cast(v, "bool"), x != 0),
        "max": (lambda k, v: k.eq(k.max(v, k.const(2.0, "float32")), v), np.maximum(x, 2) == x),
    }
    for name, (function, wanted) in facts.items():
        folder = tmp_path / name  # the loader knows a library by its path
        folder.mkdir()
        got = compile_function(
            folder, V4, 1, "float32", lambda k, v, f=function: k.cast(f(k, v), "float32")
        )(x)
        np.testing.assert_array_equal(got, wanted, err_msg=name)
