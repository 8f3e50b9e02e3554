"""Single operations: every sample, sizes from 0, duplicates, special values, faults."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.types import numpy_dtype
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import (
    special_coupling,
    special_cumsum,
    special_scatter,
    special_top_k,
)
from tests.dialect.ops.one_op import build
from tests.targets.kernel_harness import V3, V4, Kernel, check, compare, program_of, tensor
from tests.targets.samples import check_sample, on_chips, on_samples

SCHEDULES = {
    "ai.scatter_elements": special_scatter.schedule,
    "ai.scatter_nd": special_scatter.schedule,
    "ai.cumsum": special_cumsum.schedule,
    "ai.cumprod": special_cumsum.schedule,
    "ai.couple_probabilities": special_coupling.schedule,
    "ai.top_k": special_top_k.schedule,
}
FOLDS = ("none", "add", "mul", "max", "min")


@on_chips
@on_samples(lambda o: o.name in SCHEDULES)
def test_samples(name, case, chip):
    check_sample(name, case, chip, SCHEDULES[name])


def _integers(rng, low, high, shape, dtype="int64"):
    return rng.integers(low, high, shape).astype(dtype)


# ---- scatter


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("reduction", FOLDS)
def test_scatter_elements(axis, reduction):
    rng = np.random.default_rng(axis)
    types = [tensor("a,b,37"), tensor("c,d,9", "int64"), tensor("c,d,9")]
    program = build("ai.scatter_elements", types, {"axis": axis, "reduction": reduction})
    for x, y in (((5, 6), (4, 3)), ((1, 2), (1, 1)), ((3, 3), (0, 2)), ((0, 0), (0, 0))):
        extent = (*x, 37)[axis]
        at = _integers(rng, -extent, extent, (*y, 9)) if extent else np.zeros((*y, 9), np.int64)
        values = (rng.normal(size=s).astype(np.float32) for s in ((*x, 37), (*y, 9)))
        feeds = dict(zip(("x0", "x2"), values, strict=True)) | {"x1": at}
        compare(program, feeds, V4 if axis else V3, special_scatter.schedule)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "bool", "float64"])
@on_chips
def test_scatter_nd(dtype, chip):
    types = [tensor("n,4,m", dtype), tensor("r,2", "int32"), tensor("r,m", dtype)]
    program = build("ai.scatter_nd", types, {})
    kernel = Kernel(program, chip, special_scatter.schedule)
    rng = np.random.default_rng(0)
    for n, m, r in ((7, 33, 9), (3, 16, 2), (2, 0, 1), (5, 130, 0)):
        at = np.stack([_integers(rng, -n, n, r, "int32"), _integers(rng, -4, 4, r, "int32")], 1)
        feeds = {"x0": rng.integers(0, 2, (n, 4, m)), "x1": at, "x2": rng.integers(0, 2, (r, m))}
        wanted = feeds["x0"].copy()
        for row, (i, j) in enumerate(at):
            wanted[i, j] = feeds["x2"][row]
        (got,) = kernel.run(feeds)
        np.testing.assert_array_equal(got.astype(np.int64), wanted)


@pytest.mark.parametrize("reduction", FOLDS)
@on_chips
def test_scatter_nd_folds(reduction, chip):
    rng = np.random.default_rng(0)
    types = [tensor("5,n"), tensor("r,1", "int64"), tensor("r,n")]
    program = build("ai.scatter_nd", types, {"reduction": reduction})
    feeds = {
        "x0": rng.normal(size=(5, 19)).astype(np.float32),
        "x1": _integers(rng, -5, 5, (12, 1)),
        "x2": rng.normal(size=(12, 19)).astype(np.float32),
    }
    feeds["x2"][2, 3] = np.nan
    compare(program, feeds, chip, special_scatter.schedule)


@pytest.mark.parametrize("index", [3, -4])
def test_scatter_out_of_range_is_a_fault(index):
    nd = build("ai.scatter_nd", [tensor("3,4"), tensor("1,1", "int64"), tensor("1,4")], {})
    elements = build(
        "ai.scatter_elements", [tensor("3,4"), tensor("1,4", "int64"), tensor("1,4")], {"axis": 0}
    )
    for program, shape in ((nd, (1, 1)), (elements, (1, 4))):
        kernel = Kernel(program, V4, special_scatter.schedule)
        feeds = {"x0": np.zeros((3, 4)), "x1": np.full(shape, index), "x2": np.ones((1, 4))}
        with pytest.raises(RuntimeError, match="kernel fault 1"):
            kernel.run(feeds)


# ---- running sums


@pytest.mark.parametrize("name", ["ai.cumsum", "ai.cumprod"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
@on_chips
def test_running(name, axis, exclusive, reverse, chip):
    attrs = {"axis": axis, "exclusive": bool(exclusive), "reverse": bool(reverse)}
    program = program_of([tensor("3,n,m")], lambda x: ir.build(name, x, **attrs))
    sizes = [{"n": n, "m": m} for n, m in ((1, 1), (5, 37), (9, 16), (0, 3), (3, 0), (2, 1100))]
    check(program, chip, special_cumsum.schedule, sizes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumsum_dtypes(dtype, axis):
    rng = np.random.default_rng(0)
    program = program_of([tensor("23,700", dtype)], lambda x: ir.build("ai.cumsum", x, axis=axis))
    x = rng.integers(-3, 4, (23, 700)).astype(numpy_dtype(dtype))
    compare(program, {"x0": x}, V3, special_cumsum.schedule)


# ---- top k


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
@on_chips
def test_top_k(axis, largest, chip):
    rng = np.random.default_rng(0)
    for k in (1, 2, 7, 20):
        attrs = {"k": k, "axis": axis, "largest": largest}
        program = build("ai.top_k", [tensor("n,m")], attrs)
        shape = (53, 3) if axis == 0 else (3, 53)
        x = rng.integers(-9, 9, shape).astype(np.float32)
        x[0, 0], x[-1, -1], x[1, 1], x[1, 0], x[0, 2] = np.nan, np.nan, -0.0, np.inf, -np.inf
        compare(program, {"x0": x}, chip, special_top_k.schedule)
        x = np.where(rng.random(shape) < 0.5, 0, -0.0).astype(np.float32)  # all alike: in order
        compare(program, {"x0": x}, chip, special_top_k.schedule)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int64"])
def test_whole_lines_sorted(dtype):
    rng = np.random.default_rng(0)
    for largest in (True, False):
        program = build(
            "ai.top_k", [tensor("4,67", dtype)], {"k": 67, "axis": 1, "largest": largest}
        )
        x = rng.integers(0, 50, (4, 67)).astype(numpy_dtype(dtype))
        compare(program, {"x0": x}, V3, special_top_k.schedule)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "int32", "uint32", "int64"],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_long_lines_sorted(axis, dtype):
    rng = np.random.default_rng(0)
    shape = (300, 3) if axis == 0 else (3, 300)
    for largest in (True, False):
        for k, most in ((300, 3), (200, 60000)):
            attrs = {"k": k, "axis": axis, "largest": largest}
            program = build("ai.top_k", [tensor(f"{shape[0]},{shape[1]}", dtype)], attrs)
            numbers = rng.integers(0 if dtype[0] == "u" else -most, most, shape)
            x = numbers.astype(numpy_dtype(dtype))
            if "float" in dtype:
                x[0, 0], x[-1, -1], x[1, 1], x[1, 0], x[0, 2] = (
                    np.nan,
                    np.nan,
                    -0.0,
                    np.inf,
                    -np.inf,
                )
            compare(program, {"x0": x}, V3, special_top_k.schedule)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8", "int64"])
@pytest.mark.parametrize("order", ["drawn", "rising", "falling"])
def test_few_of_long_lines(order, dtype):
    rng = np.random.default_rng(0)
    for largest in (True, False):
        for k, n in ((1, 300), (7, 64), (50, 777)):
            attrs = {"k": k, "axis": 1, "largest": largest}
            program = build("ai.top_k", [tensor(f"3,{n}", dtype)], attrs)
            x = rng.integers(0, 200, (3, n)).astype(numpy_dtype(dtype))
            if order != "drawn":
                x = np.sort(x, 1)[:, :: 1 if order == "rising" else -1]
            if "float" in dtype:
                x[0, n // 2], x[1, -1], x[2, 5] = np.nan, np.inf, -np.inf
            for chip in (V3, V4):
                compare(program, {"x0": x}, chip, special_top_k.schedule)


def test_lines_of_open_length_sorted():
    program = build("ai.top_k", [tensor("2,n")], {"k": parse("n"), "axis": 1})
    check(program, V4, special_top_k.schedule, [{"n": n} for n in (0, 1, 2, 3, 50, 500)])


def test_symbolic_k():
    program = build("ai.top_k", [tensor("2,n")], {"k": parse("n // 2"), "axis": 1})
    check(program, V4, special_top_k.schedule, [{"n": n} for n in (1, 2, 3, 50)])


def test_other_regions_are_refused():
    def body(x):
        return ir.build("ai.relu", ir.build("ai.cumsum", x, axis=0))

    with pytest.raises(Miss, match="alone"):
        Kernel(program_of([tensor("4")], body), V4, special_cumsum.schedule)
