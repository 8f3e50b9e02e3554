"""The elementwise schedule: operations with an `element` facet, odd sizes, symbols, layouts."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.dims import symbol
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.types import TensorType
from cuvilc.targets.schedules import elementwise
from tests.targets.kernel_harness import (
    CHIPS,
    V2,
    V3,
    V4,
    Kernel,
    check,
    compare,
    program_of,
    tensor,
)
from tests.targets.samples import check_sample, on_chips, on_samples


@on_chips
@on_samples(lambda o: o.facet("element"))
def test_samples(name, case, chip):
    check_sample(name, case, chip, elementwise.schedule)


@on_chips
@pytest.mark.parametrize("channels", [3, 13, 16, 40])
@pytest.mark.parametrize("length", [255, 256, 511, 512, 1041, 2100])
def test_long_strips_of_a_transpose_are_several_tasks(length, channels, chip):
    program = program_of(
        [tensor(f"2,{length},{channels}"), tensor(f"{length}")],
        lambda x, y: ir.build("ai.elemwise_add", ir.build("ai.transpose", x, perm=(0, 2, 1)), y),
    )
    kernel = check(program, chip, elementwise.schedule)
    if channels >= chip.lanes and length == 2100:
        assert kernel.scheduled.facts.tasks >= 2 * (2100 * channels // 8192)


@on_chips
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    ("sizes", "before", "after", "layout"),
    [
        ("9001", (200,), (333,), ""),  # chunks of the middle, and the ends
        ("2,5,13,21", (0, 0, 3, 2), (0, 0, 1, 4), ""),
        ("7,9", (6, 0), (2, 8), ""),
        ("3,4,5", (1, 1, 1), (2, 1, 0), ""),  # three axes: an element at a time
        ("5,6", (11, 2), (1, 13), ""),  # more than the whole axis
        ("1,32,6,9", (0, 0, 2, 3), (0, 0, 1, 5), "NCHW16c"),
        ("n,17", (0, 3), (0, 2), ""),
        ("3,m", (1, 2), (0, 1), ""),
    ],
)
def test_padding_in_parts(sizes, before, after, layout, mode, chip):
    program = program_of(
        [tensor(sizes, layout=layout)],
        lambda x: ir.build("ai.pad", x, before=before, after=after, mode=mode, value=1.5),
    )
    check(program, chip, elementwise.schedule, [{"n": n, "m": m} for n, m in ((1, 3), (70, 50))])


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")


def _integers(dtype: str, count: int) -> np.ndarray:
    """Random ones of all magnitudes, and the outermost ones."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(count)
    wide = np.exp2(rng.uniform(0, limits.bits, count)) * rng.choice([-1, 1], count)
    made = np.clip(wide, float(limits.min), float(limits.max) * (1 - 2.0**-53))
    ends = [limits.min, limits.max, limits.max - 1, limits.max // 2, 1, 2, 3]
    return np.where(rng.random(count) < 0.3, rng.choice(ends, count), made.astype(dtype))


@pytest.mark.parametrize("chip", [V4, V3, V2], ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("how", ["div", "mod", "fmod"])
def test_integers_are_divided_exactly(how, dtype, chip):
    """By vectors, of what a float holds; Python's integers tell the quotients."""
    names = {"div": ("ai.elemwise_div", {}), "mod": ("ai.mod", {"fmod": False})}
    name, attrs = names.get(how, ("ai.mod", {"fmod": True}))
    program = program_of(
        [tensor("n", dtype), tensor("n", dtype)], lambda x, y: ir.build(name, x, y, **attrs)
    )
    kernel = Kernel(program, chip, elementwise.schedule)
    x, y = (_integers(dtype, count).astype(dtype) for count in (20011, 20011))
    y = np.where(np.roll(y, 7) == 0, np.array(1, dtype), np.roll(y, 7))
    (got,) = kernel.run({"x0": x, "x1": y})
    close = np.where(x % y == 0, x, x - x % y)  # multiples, where a quotient must not be one less
    (again,) = kernel.run({"x0": close, "x1": y})
    for dividends, found in ((x, got), (close, again)):
        for a, b, made in zip(dividends.tolist(), y.tolist(), found.tolist(), strict=True):
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            wanted = {"div": quotient, "mod": a % b, "fmod": a - b * quotient}[how]
            assert made == int(np.array(wanted & (1 << 64) - 1, np.uint64).astype(dtype)), (a, b)


@on_chips
@pytest.mark.parametrize("dtype", ["int16", "int32", "int64"])
@pytest.mark.parametrize("at", [0, 17, 4095, 4096, 5000])
def test_a_zero_divisor_is_a_fault_wherever_it_stands(at, dtype, chip):
    program = program_of(
        [tensor("5001", dtype), tensor("5001", dtype)],
        lambda x, y: ir.build("ai.elemwise_div", x, y),
    )
    kernel = Kernel(program, chip, elementwise.schedule)
    feeds = {"x0": np.full(5001, 7, dtype), "x1": np.full(5001, 2, dtype)}
    assert (kernel.run(feeds)[0] == 3).all()
    feeds["x1"][at] = 0
    with pytest.raises(RuntimeError, match="kernel fault 2"):
        kernel.run(feeds)


@on_chips
@pytest.mark.parametrize("at", [0, 17, 4095, 4096, 5000])
@pytest.mark.parametrize("index", [-9, 8, 1 << 40, -(1 << 63)])
def test_an_index_out_of_range_is_a_fault_wherever_it_stands(index, at, chip):
    program = program_of(
        [tensor("8,5001"), tensor("1,5001", "int64")],
        lambda x, i: ir.build("ai.gather_elements", x, i, axis=0),
    )
    kernel = Kernel(program, chip, elementwise.schedule)
    x = np.random.default_rng(0).normal(size=(8, 5001)).astype(np.float32)
    feeds = {"x0": x, "x1": np.arange(-8, 4993).reshape(1, -1) % 16 - 8}
    np.testing.assert_array_equal(kernel.run(feeds)[0], np.take_along_axis(x, feeds["x1"], 0))
    feeds["x1"][0, at] = index
    with pytest.raises(RuntimeError, match="kernel fault 1"):
        kernel.run(feeds)


@on_chips
def test_levels_of_0_have_no_sign(chip):
    """They stand for integers, which have no -0; by it 1 / x would be -∞."""

    def body(x):
        zero = ir.full(10, (), "uint8")
        return ir.build("ai.fake_quantize", x, ir.full(1.0), zero, ir.full(0.5))

    x = np.array([-0.3, -0.5, -0.0, 0.3, -2] * 7, np.float32)
    (y,) = Kernel(program_of([tensor("35")], body), chip, elementwise.schedule).run({"x0": x})
    np.testing.assert_array_equal(y, [0, 0, 0, 0, -1] * 7)
    assert not np.signbit(y[y == 0]).any()


SIZES = (0, 1, 15, 16, 17, 31, 33, 64, 127, 129, 1000)


@on_chips
def test_symbolic_extents(chip):
    t = tensor("n,m")

    def body(a, b):
        return ir.build("ai.tanh", ir.build("ai.elemwise_add", a, b)), ir.build("ai.relu", a)

    check(program_of([t, t], body), chip, elementwise.schedule, [{"n": 3, "m": m} for m in SIZES])


@pytest.mark.parametrize("size", SIZES)
def test_static_extents(size):
    program = program_of(
        [tensor(f"3,{size}"), tensor(f"{size}")], lambda a, b: ir.build("ai.elemwise_mul", a, b)
    )
    check(program, V4, elementwise.schedule)


def test_broadcast_of_a_symbol_that_may_be_one():
    program = program_of(
        [tensor("n,4"), tensor("m,4")], lambda a, b: ir.build("ai.elemwise_mul", a, b)
    )
    sizes = [{"n": 5, "m": 1}, {"n": 1, "m": 5}, {"n": 5, "m": 5}]
    check(program, V3, elementwise.schedule, sizes)


@pytest.mark.parametrize("perm", [(0, 2, 1), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("shape", ["2,16,32", "3,17,33", "2,n,m", "1,64,100"])
@on_chips
def test_transposes(shape, perm, chip):
    program = program_of(
        [tensor(shape)], lambda a: ir.build("ai.exp", ir.build("ai.transpose", a, perm=perm))
    )
    sizes = (
        [{"n": n, "m": m} for n, m in ((1, 1), (16, 16), (40, 19), (17, 64))]
        if "n" in shape
        else [{}]
    )
    check(program, chip, elementwise.schedule, sizes)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "float16", "bfloat16", "int64", "float64"]
)
@pytest.mark.parametrize("shape", ["2,32,48", "3,17,33", "2,n,m"])
@on_chips
def test_transposes_of_other_sizes(shape, dtype, chip):
    """Squares of elements of 1, 2 and 8 bytes: moved, and as operands of something."""
    sizes = [{"n": 40, "m": 19}, {"n": 17, "m": 64}] if "n" in shape else [{}]

    def moved(a):
        return ir.build("ai.transpose", a, perm=(0, 2, 1))

    program = program_of([tensor(shape, dtype)], moved)
    check(program, chip, elementwise.schedule, sizes)
    program = program_of(
        [tensor(shape, dtype)], lambda a: ir.build("ai.cast", moved(a), dtype="float32")
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
    check(program_of([tensor("b,s,768")], apart), V4, elementwise.schedule, sizes)
    check(program_of([tensor("b,12,s,64")], together), V4, elementwise.schedule, sizes)


@pytest.mark.parametrize("axis", [0, 1, 2])
@on_chips
def test_concat(axis, chip):
    def types(sizes):
        return [tensor(",".join(s if j == axis else str(3 + j) for j in range(3))) for s in sizes]

    def body(*xs):
        return ir.build("ai.relu", ir.build("ai.concat", *xs, axis=axis))

    check(program_of(types(["2", "17", "32"]), body), chip, elementwise.schedule)
    sizes = [{"n": 1, "m": 5}, {"n": 20, "m": 0}]
    check(program_of(types(["n", "3", "m"]), body), chip, elementwise.schedule, sizes)


def test_pad_of_a_computed_value():
    def body(x):
        y = ir.build("ai.exp", ir.build("ai.sigmoid", x))
        return ir.build("ai.pad", y, before=(0, 1, 2), after=(0, 1, 3), value=0.5)

    check(program_of([tensor("2,5,33")], body), V4, elementwise.schedule)
    check(program_of([tensor("2,n,m")], body), V4, elementwise.schedule, [{"n": 2, "m": 40}])


@pytest.mark.parametrize("channels", [16, 19, 32, 3])
@on_chips
def test_blocked_layout(channels, chip):
    blocked = tensor(f"2,{channels},5,7", layout="NCHW16c")
    plain = blocked.with_(layout="")

    def add(a, b):
        return ir.build("ai.relu", ir.build("ai.elemwise_add", a, b))

    check(program_of([blocked, blocked], add), chip, elementwise.schedule)
    check(program_of([blocked, tensor(f"{channels},1,1")], add), chip, elementwise.schedule)
    for t, layout in ((blocked, ""), (plain, "NCHW16c")):
        body = lambda x, layout=layout: ir.build("ai.relayout", x, layout=layout)  # noqa: E731
        check(program_of([t], body), chip, elementwise.schedule)


def test_embedding():
    def body(table, words):
        return ir.build("ai.elemwise_mul", ir.build("ai.gather", table, words), ir.full(2.0))

    program = program_of([tensor("50,100"), tensor("b,s", "int64")], body)
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
    assert str(kernel.scheduled.facts.tasks) == str((21 * n + 4095) // 4096)


@pytest.mark.parametrize("channels", [128, 120, 20])
@pytest.mark.parametrize("width", ["w", "8"])
def test_transposes_into_blocked_channels(channels, width):
    """Also where the last block is not full: the result then has no one step along channels."""

    def body(x):
        return ir.build(
            "ai.relayout", ir.build("ai.transpose", x, perm=(0, 3, 1, 2)), layout="NCHW16c"
        )

    program = program_of([tensor(f"n,1,{width},{channels}")], body)
    for chip in CHIPS:
        check(program, chip, elementwise.schedule, [{"n": 2, "w": 5}, {"n": 1, "w": 40}])


@pytest.mark.parametrize("shapes", [("n,0", "n,5"), ("n,5", "n,0"), ("n,5", "n,0", "n,3")])
def test_concat_with_an_operand_that_has_no_elements(shapes):
    """Its comparisons fold away at first, and must not come back wrong where loops merge."""

    def body(*xs):
        return ir.build("ai.concat", *xs, axis=1)

    program = program_of([tensor(s) for s in shapes], body)
    check(program, CHIPS[0], elementwise.schedule, [{"n": n} for n in (0, 1, 3)])


def test_a_transposed_result_that_is_used_too():
    """The dry run must see as many loads as the loops make, in spite of the axis of size 1."""

    def body(x):
        turned = ir.build("ai.transpose", x, perm=(2, 3, 0, 1))
        return turned, ir.build("ai.elemwise_add", turned, ir.full(1.0))

    check(program_of([tensor("9,17,1,13")], body), V4, elementwise.schedule)


@on_chips
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize("rows", [8, 16, 20, 33])
def test_a_strided_part_of_a_concatenation(rows, dtype, chip):
    """Squares of one part: what the other parts load is none of theirs, even where a strip ends."""

    def joined(a, x, b):
        part = ir.build("ai.elemwise_add", a, ir.build("ai.cast", x, dtype="float32"))
        return ir.build("ai.concat", b, part, a, axis=1)

    sizes = f"1,{rows},3,12"
    program = program_of(
        [tensor(sizes), tensor(sizes, dtype, layout="NCHW16c"), tensor("1,5,3,12")],
        lambda a, x, b: joined(a, ir.build("ai.relayout", x, layout=""), b),
    )
    check(program, chip, elementwise.schedule)
    program = program_of(
        [tensor(f"1,{rows},37"), tensor(f"1,37,{rows}", dtype), tensor("1,n,37")],
        lambda a, x, b: joined(a, ir.build("ai.transpose", x, perm=(0, 2, 1)), b),
    )
    check(program, chip, elementwise.schedule, [{"n": n} for n in (0, 1, 9)])


@on_chips
@pytest.mark.parametrize("turned", ["guarded", "free"])
def test_strided_values_and_conditions_of_outer_loops(turned, chip):
    """A square is not read where a condition may forbid it; and the dry run, too, loads again what
    was loaded within a condition.
    """

    def body(x, a, v, b):
        turn = {"perm": (0, 2, 1)}
        z = ir.build("ai.transpose", v, **turn)
        y = ir.build("ai.exp", ir.build("ai.transpose", x, **turn) if turned == "guarded" else x)
        terms = [
            ir.build("ai.pad", t, before=(0, 0, 0), after=(1, 0, 0))
            for t in (y, ir.build("ai.elemwise_mul", y, a))
        ]
        total = ir.build("ai.concat", *[b] * 12, axis=0)  # too many parts for a loop of each
        for term in (*terms, z):
            total = ir.build("ai.elemwise_add", total, term)
        return total

    x = "11,19,23" if turned == "guarded" else "11,23,19"
    types = [tensor(x), tensor("11,23,19"), tensor("12,19,23"), tensor("1,23,19")]
    check(program_of(types, body), chip, elementwise.schedule)


def test_rows_inside_a_padding_are_moved_in_vectors() -> None:
    """That a row lies inside is proved once for a piece, not asked of each element."""
    before, after = (0, 0, 3, 3), (0, 0, 2, 3)
    program = program_of(
        [tensor("1,6,20,56")], lambda x: ir.build("ai.pad", x, before=before, after=after)
    )
    assembly = check(program, V4, elementwise.schedule).assembly()
    assert re.search(r"vmovups\s+[-0-9]*\(%r[^)]*\), %zmm", assembly)


@on_chips
@pytest.mark.parametrize(
    "channels",
    [(16, 32), (48, 16, 32), (16, 20, 12), (8, 8, 16), (17, 31), (8, 8, 3, 8, 3), (24, 41, 12)],
)
def test_concat_of_blocked_channels(channels, chip):
    """Some parts begin where a block does, others within one or in what is left beside whole
    blocks; their pixels are gathered.
    """

    def body(*xs):
        turned = [ir.build("ai.transpose", x, perm=(0, 3, 1, 2)) for x in xs]
        sizes = {"sizes": (1, None, 6, 10), "scales": None, "mode": "linear"}
        grown = [
            ir.build("ai.resize", x, **{**sizes, "sizes": (1, c, 6, 10)})
            for x, c in zip(turned, channels, strict=True)
        ]
        return ir.build("ai.relayout", ir.build("ai.concat", *grown, axis=1), layout="NCHW16c")

    program = program_of([tensor(f"1,3,{5 + i},{c}") for i, c in enumerate(channels)], body)
    check(program, chip, elementwise.schedule)


@on_chips
@pytest.mark.parametrize("channels", [(16, 32), (48, 16, 20), (16, 3)])
def test_concat_that_stays_blocked(channels, chip):
    """Of the values before and of those after an epilogue, as in a DenseNet."""

    def body(*xs):
        joined = ir.build("ai.concat", *xs, axis=1)
        return joined, ir.build("ai.relu", joined)

    types = [tensor(f"n,{c},5,7", layout="NCHW16c") for c in channels]
    check(program_of(types, body), chip, elementwise.schedule, [{"n": 1}, {"n": 3}])


@on_chips
def test_channels_of_padding_read_nothing_beyond_an_operand(chip):
    """Where planes become channels, 24 of 8 planes are fewer blocks than two blocks of such."""

    def body(x):
        planes = ir.build("ai.reshape", ir.build("ai.relayout", x, layout=""), shape=(1, 24, 8, 45))
        return ir.build("ai.relayout", planes, layout="NCHW16c")

    program = program_of([tensor("1,192,5,9", layout="NCHW16c")], body)
    check(program, chip, elementwise.schedule)


@pytest.mark.parametrize("channels", [(32, 48, 16), (24, 24), (8, 24, 16), (20, 28)])
def test_joined_channels_are_moved_in_vectors(channels) -> None:
    """Which part a block of channels is of is known for all of its lanes, or for some side by side;
    so is which block of the part they come from.
    """

    def body(*xs):
        joined = ir.build("ai.concat", *[ir.build("ai.relayout", x, layout="") for x in xs], axis=1)
        return ir.build("ai.relayout", joined, layout="NCHW16c")

    types = [tensor(f"1,{c},5,7", layout="NCHW16c") for c in channels]
    assembly = check(program_of(types, body), V4, elementwise.schedule).assembly()
    assert "%ymm" in assembly or "%zmm" in assembly
    assert "movss" not in assembly


@pytest.mark.parametrize("channels", [17, 24, 37, 100])
@on_chips
def test_channels_that_blocks_do_not_divide(channels, chip):
    """The whole blocks, then the rest: into blocks and out of them, beside other operations."""
    plain = tensor(f"2,{channels},5,9")
    blocked = plain.with_(layout="NCHW16c")
    scale = tensor(f"{channels},1,1")

    def scaled(x, s, y, layout):
        value = ir.build("ai.elemwise_mul", ir.build("ai.relayout", x, layout=layout), s)
        return ir.build("ai.relu", ir.build("ai.elemwise_add", value, y))

    for t, other in ((blocked, plain), (plain, blocked)):
        body = lambda x, s, y, to=other.layout: scaled(x, s, y, to)  # noqa: E731
        check(program_of([t, scale, other], body), chip, elementwise.schedule)
    rows = tensor(f"b,{channels},h,w", layout="NCHW16c")
    body = lambda x: ir.build("ai.tanh", ir.build("ai.relayout", x, layout=""))  # noqa: E731
    sizes = [{"b": b, "h": h, "w": w} for b, h, w in ((1, 1, 1), (2, 3, 20), (0, 2, 2))]
    check(program_of([rows], body), chip, elementwise.schedule, sizes)
