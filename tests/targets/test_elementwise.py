"""The elementwise schedule: operations with an `element` facet, odd sizes, symbols, layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import parse, symbol
from cuvilc.dialect.interpret import interpret
from cuvilc.dialect.op import OPS
from cuvilc.dialect.types import TensorType
from cuvilc.targets.schedules import elementwise
from tests.dialect.ops.one_op import all_samples, build, operand_arrays, operand_types
from tests.targets.kernel_harness import CHIPS, V3, V4, Kernel, check, program_of

ELEMENT = [s for s in all_samples() if OPS[s[0]].facet("element")]
EACH = [(V4, *s) for s in ELEMENT] + [(V3, *s) for s in ELEMENT if s[1] == 0]


def compare(
    program: Any, feeds: dict[str, np.ndarray], chip: Any, schedule: Any, tolerance: float = 1e-4
) -> None:
    """The kernel's results and the interpreter's: floats to the tolerance, others equal."""
    kernel = Kernel(program, chip, schedule)
    with np.errstate(all="ignore"):
        wanted = list(interpret(program, feeds).values())
    for splits in ((), (1, 2, 5)):
        for got, want in zip(kernel.run(feeds, splits), wanted, strict=True):
            assert_same(got, want, tolerance)


def assert_same(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, want)
        return
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2}.get(want.dtype.name, tolerance)
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    scale = np.abs(want[finite]).max(initial=0)
    assert np.abs(got - want)[finite].max(initial=0) <= tolerance * scale + 1e-30


def _name(value: Any) -> str:
    return (
        value.name
        if hasattr(value, "llvm")
        else str(value)
        if isinstance(value, (str, int))
        else ""
    )


@pytest.mark.parametrize(("chip", "name", "number", "case"), EACH, ids=_name)
def test_samples(chip, name, number, case):
    program = build(name, operand_types(case), case.attrs)
    feeds = {f"x{n}": a for n, a in enumerate(operand_arrays(name, case))}
    compare(program, feeds, chip, elementwise.schedule)


SIZES = (0, 1, 15, 16, 17, 31, 33, 64, 127, 129, 1000)


def _t(spelled: str, dtype: str = "float32", layout: str = "") -> TensorType:
    return TensorType(tuple(parse(d) for d in spelled.split(",")), dtype, layout)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)
def test_symbolic_extents(chip):
    t = _t("n,m")

    def body(a, b):
        return ir.build("ai.tanh", ir.build("ai.elemwise_add", a, b)), ir.build("ai.relu", a)

    check(program_of([t, t], body), chip, elementwise.schedule, [{"n": 3, "m": m} for m in SIZES])


@pytest.mark.parametrize("size", SIZES)
def test_static_extents(size):
    program = program_of(
        [_t(f"3,{size}"), _t(f"{size}")], lambda a, b: ir.build("ai.elemwise_mul", a, b)
    )
    check(program, V4, elementwise.schedule)


def test_broadcast_of_a_symbol_that_may_be_one():
    program = program_of([_t("n,4"), _t("m,4")], lambda a, b: ir.build("ai.elemwise_mul", a, b))
    sizes = [{"n": 5, "m": 1}, {"n": 1, "m": 5}, {"n": 5, "m": 5}]
    check(program, V3, elementwise.schedule, sizes)


@pytest.mark.parametrize("perm", [(0, 2, 1), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("shape", ["2,16,32", "3,17,33", "2,n,m", "1,64,100"])
@pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)
def test_transposes(shape, perm, chip):
    program = program_of(
        [_t(shape)], lambda a: ir.build("ai.exp", ir.build("ai.transpose", a, perm=perm))
    )
    sizes = (
        [{"n": n, "m": m} for n, m in ((1, 1), (16, 16), (40, 19), (17, 64))]
        if "n" in shape
        else [{}]
    )
    check(program, chip, elementwise.schedule, sizes)


def test_heads_split_and_merged():
    """[B, S, H·D] → [B, H, S, D] and back: a reshape and a transpose in one pass."""

    def apart(x):
        split = ir.build("ai.reshape", x, shape=(parse("b"), parse("s"), 12, 64))
        return ir.build("ai.transpose", split, perm=(0, 2, 1, 3))

    def together(x):
        turned = ir.build("ai.transpose", x, perm=(0, 2, 1, 3))
        return ir.build("ai.reshape", turned, shape=(parse("b"), parse("s"), 768))

    sizes = [{"b": 1, "s": 1}, {"b": 2, "s": 7}]
    check(program_of([_t("b,s,768")], apart), V4, elementwise.schedule, sizes)
    check(program_of([_t("b,12,s,64")], together), V4, elementwise.schedule, sizes)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)
def test_concat(axis, chip):
    def types(sizes):
        return [_t(",".join(s if j == axis else str(3 + j) for j in range(3))) for s in sizes]

    def body(*xs):
        return ir.build("ai.relu", ir.build("ai.concat", *xs, axis=axis))

    check(program_of(types(["2", "17", "32"]), body), chip, elementwise.schedule)
    sizes = [{"n": 1, "m": 5}, {"n": 20, "m": 0}]
    check(program_of(types(["n", "3", "m"]), body), chip, elementwise.schedule, sizes)


def test_pad_of_a_computed_value():
    def body(x):
        y = ir.build("ai.exp", ir.build("ai.sigmoid", x))
        return ir.build("ai.pad", y, before=(0, 1, 2), after=(0, 1, 3), value=0.5)

    check(program_of([_t("2,5,33")], body), V4, elementwise.schedule)
    check(program_of([_t("2,n,m")], body), V4, elementwise.schedule, [{"n": 2, "m": 40}])


@pytest.mark.parametrize("channels", [16, 19, 32, 3])
@pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)
def test_blocked_layout(channels, chip):
    blocked = _t(f"2,{channels},5,7", layout="NCHW16c")
    plain = blocked.with_(layout="")

    def add(a, b):
        return ir.build("ai.relu", ir.build("ai.elemwise_add", a, b))

    check(program_of([blocked, blocked], add), chip, elementwise.schedule)
    check(program_of([blocked, _t(f"{channels},1,1")], add), chip, elementwise.schedule)
    for t, layout in ((blocked, ""), (plain, "NCHW16c")):
        body = lambda x, layout=layout: ir.build("ai.relayout", x, layout=layout)  # noqa: E731
        check(program_of([t], body), chip, elementwise.schedule)


def test_embedding():
    def body(table, words):
        return ir.build("ai.elemwise_mul", ir.build("ai.gather", table, words), ir.full(2.0))

    program = program_of([_t("50,100"), _t("b,s", "int64")], body)
    rng = np.random.default_rng(0)
    feeds = {"x0": rng.random((50, 100), np.float32), "x1": rng.integers(-50, 50, (2, 7))}
    compare(program, feeds, V4, elementwise.schedule)
    feeds["x1"][1, 3] = 50
    with pytest.raises(RuntimeError):
        Kernel(program, V4, elementwise.schedule).run(feeds)


def test_one_flat_loop_of_many_tasks():
    n = symbol("n")
    t = TensorType((n, 7, 3))
    program = program_of([t, t], lambda a, b: ir.build("ai.elemwise_add", a, b))
    kernel = check(program, V4, elementwise.schedule, [{"n": 1}, {"n": 5000}])
    assert str(kernel.scheduled.tasks) == str((21 * n + 4095) // 4096)


@pytest.mark.parametrize("channels", [128, 120, 20])
@pytest.mark.parametrize("width", ["w", "8"])
def test_transposes_into_blocked_channels(channels, width):
    """Also where the last block is not full: the result then has no one step along channels."""

    def body(x):
        return ir.build(
            "ai.relayout", ir.build("ai.transpose", x, perm=(0, 3, 1, 2)), layout="NCHW16c"
        )

    program = program_of([_t(f"n,1,{width},{channels}")], body)
    for chip in CHIPS:
        check(program, chip, elementwise.schedule, [{"n": 2, "w": 5}, {"n": 1, "w": 40}])


@pytest.mark.parametrize("shapes", [("n,0", "n,5"), ("n,5", "n,0"), ("n,5", "n,0", "n,3")])
def test_concat_with_an_operand_that_has_no_elements(shapes):
    """Its comparisons fold away at first, and must not come back wrong where loops merge."""

    def body(*xs):
        return ir.build("ai.concat", *xs, axis=1)

    program = program_of([_t(s) for s in shapes], body)
    check(program, CHIPS[0], elementwise.schedule, [{"n": n} for n in (0, 1, 3)])


def test_a_transposed_result_that_is_used_too():
    """The dry run must see as many loads as the loops make, in spite of the axis of size 1."""

    def body(x):
        turned = ir.build("ai.transpose", x, perm=(2, 3, 0, 1))
        return turned, ir.build("ai.elemwise_add", turned, ir.full(1.0))

    check(program_of([_t("9,17,1,13")], body), V4, elementwise.schedule)
