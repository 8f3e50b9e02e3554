"""Resampled images in row-major order agree with the interpreter, whichever axis grows."""

from __future__ import annotations

from typing import Any

import pytest

from cuvilc.dialect import ir
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules.resize import schedule
from tests.dialect.ops.one_op import parse_type
from tests.targets.kernel_harness import V4, check, program_of, tensor
from tests.targets.samples import on_chips


def resized(shape: str, height: int, width: int, dtype: str = "float32", **how: Any) -> Any:
    t = tensor(shape, dtype)
    sizes = (*t.shape[:-2], height, width)
    return program_of([t], lambda x: ir.build("ai.resize", x, sizes=sizes, **how))


@on_chips
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("height", "width"), [(5, 33), (13, 66), (26, 99), (3, 7), (1, 1), (40, 33), (13, 20), (7, 70)]
)
def test_sizes(mode: str, height: int, width: int, chip: Any) -> None:
    check(resized("2,3,13,33", height, width, mode=mode), chip, schedule)


@on_chips
@pytest.mark.parametrize("times", [2, 3, 4, 8])
@pytest.mark.parametrize("width", [1, 5, 16, 37])
def test_whole_times(times: int, width: int, chip: Any) -> None:
    how = {"coordinate": "asymmetric", "nearest": "floor"}
    check(resized(f"3,4,{width}", 4 * times, width * times, **how), chip, schedule)
    check(resized(f"3,4,{width}", 4 * times, width * times), chip, schedule)


@on_chips
@pytest.mark.parametrize(("down", "across"), [(2, 3), (3, 2), (8, 2)])
def test_rows_and_columns_that_are_only_repeated(down: int, across: int, chip: Any) -> None:
    """Into tasks of some rows, some planes, and an open number of them; or with what follows."""
    for shape in ("2,95,53", "70,5,20", "b,7,9"):
        *_, height, width = tensor(shape).shape
        sizes = [{"b": b} for b in (0, 1, 40)] if "b" in shape else [{}]
        program = resized(shape, height * down, width * across)
        check(program, chip, schedule, sizes)
    how = {"sizes": (3, 5 * down, 20 * across)}
    body = lambda x: ir.build("ai.relu", ir.build("ai.resize", x, **how))  # noqa: E731
    check(program_of([tensor("3,5,20")], body), chip, schedule)


@pytest.mark.parametrize(
    "coordinate",
    ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"],
)
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_coordinates(coordinate: str, nearest: str) -> None:
    how = {"coordinate": coordinate, "nearest": nearest}
    for height, width in ((9, 34), (3, 8), (6, 19)):
        check(resized("2,6,17", height, width, **how), V4, schedule)
        check(resized("2,6,17", height, width, mode="linear", **how), V4, schedule)


@on_chips
def test_scales_that_are_no_ratio_of_sizes(chip: Any) -> None:
    for mode in ("nearest", "linear"):
        scales = (1.0, 1.0, 1.7, 0.6)
        check(resized("1,2,9,23", 15, 13, mode=mode, scales=scales), chip, schedule)
        check(resized("1,2,9,23", 9, 23, mode=mode, scales=(1.0, 1.0, 1.04, 1.03)), chip, schedule)


@on_chips
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_many_planes_large_ones_and_open_numbers(mode: str, chip: Any) -> None:
    check(resized("70,3,20,21", 40, 42, mode=mode), chip, schedule)
    check(resized("2,90,110", 180, 220, mode=mode), chip, schedule)
    check(resized("b,3,7,9", 14, 5, mode=mode), chip, schedule, [{"b": b} for b in (0, 1, 40)])


@on_chips
def test_followed_by_other_operations(chip: Any) -> None:
    def body(x: Any, y: Any) -> Any:
        value = ir.build("ai.resize", x, sizes=(1, 3, 16, 22), mode="linear")
        added = ir.build("ai.elemwise_add", ir.build("ai.relu", value), y)
        return added, ir.build("ai.sigmoid", added)

    check(program_of([tensor("1,3,8,11"), tensor("1,3,16,22")], body), chip, schedule)


def test_refusals() -> None:
    for program in (
        resized("1,2,8,8", 4, 4, mode="cubic"),
        resized("1,2,8,8", 4, 4, "float64"),
        resized("1,2,h,8", 4, 4),
        program_of([parse_type("float32[1,2,8]")],
                   lambda x: ir.build("ai.resize", x, sizes=(2, 2, 8))),
    ):  # fmt: skip
        with pytest.raises(Miss):
            check(program, V4, schedule, [{"h": 8}])
