"""Short innermost loops and transposes that vectors do not divide agree with the interpreter."""

from __future__ import annotations

import pytest

from cuvilc.dialect import ir
from cuvilc.targets.region import Region
from cuvilc.targets.schedules import elementwise, elementwise_interleave
from tests.targets.kernel_harness import check, program_of, tensor
from tests.targets.samples import on_chips


@pytest.mark.parametrize("extent", [3, 17, 100, 5000, "n"])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8])
@on_chips
def test_a_few_planes_laid_beside_each_other(count, extent, chip):
    """Whole vectors along a plane, then shuffles: of values that are computed too."""
    sizes = [{"n": n} for n in (0, 1, 15, 300)] if extent == "n" else [{}]
    for activated in (False, True):

        def body(x, activated=activated):
            turned = ir.build("ai.transpose", x, perm=(0, 2, 1))
            return ir.build("ai.relu", turned) if activated else turned

        types = [tensor(f"2,{count},{extent}")]
        check(program_of(types, body), chip, elementwise.schedule, sizes)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "bfloat16", "int64", "float64"])
@pytest.mark.parametrize("count", [2, 3, 6])
@on_chips
def test_a_few_planes_of_other_sizes(count, dtype, chip):
    body = lambda x: ir.build("ai.transpose", x, perm=(1, 2, 0))  # noqa: E731
    check(program_of([tensor(f"{count},5,83", dtype)], body), chip, elementwise.schedule)


@pytest.mark.parametrize("channels", [16, 8, 19, 4])
@pytest.mark.parametrize("count", [2, 3])
@on_chips
def test_channels_that_become_pixels(count, channels, chip):
    """As after a transposed convolution: squares of pixels by channels, then shuffles."""

    def body(x, b):
        moved = ir.build("ai.transpose", x, perm=(3, 1, 2, 0))
        return ir.build("ai.tanh", ir.build("ai.elemwise_add", moved, b))

    for width in (33, 16, 5):
        types = [tensor(f"{count},6,{width},{channels}"), tensor(f"{channels},1,1,1")]
        check(program_of(types, body), chip, elementwise.schedule)
        program = program_of(types[:1], lambda x: ir.build("ai.transpose", x, perm=(3, 1, 2, 0)))
        check(program, chip, elementwise.schedule)


@pytest.mark.parametrize("shape", ["9,100", "15,20", "40,13", "21,37", "9,9"])
@on_chips
def test_squares_that_are_moved_back(shape, chip):
    """Where loops are shorter than a vector, or end within one."""
    for dtype in ("float32", "int64", "uint8"):
        types = [tensor(shape, dtype)]
        program = program_of(types, lambda x: ir.build("ai.transpose", x, perm=(1, 0)))
        check(program, chip, elementwise.schedule)


@pytest.mark.parametrize(
    ("shape", "perm", "interleaved"),
    [
        ("2,3,100", (0, 2, 1), True), ("2,7,n", (0, 2, 1), True), ("2,3,3", (0, 2, 1), False),
        ("2,9,100", (0, 2, 1), False), ("2,3,100", (1, 0, 2), False),
        ("2,6,33,16", (3, 1, 2, 0), True),
    ],
)  # fmt: skip
def test_which_loops_are_laid_beside_each_other(shape, perm, interleaved):
    """A few elements, in vectors along the loop around: neither long rows nor short ones."""
    program = program_of([tensor(shape)], lambda x: ir.build("ai.transpose", x, perm=perm))
    with program:
        region = Region.of(program, program.function("main"))
        pieces = elementwise._pieces(region, None)
    assert [elementwise_interleave.suits(piece) for piece in pieces] == [interleaved]
