"""grid_sample of channels in blocks: modes, paddings, counts of channels, open sizes, dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.types import numpy_dtype
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import special_grid
from tests.targets.kernel_harness import V2, V3, V4, Kernel, agrees, program_of, tensor
from tests.targets.samples import on_chips


def kernel(x: str, grid: str, chip, dtype="float32", blocks=("NCHW16c", ""), **attrs) -> Kernel:
    """x and the result lie in `blocks`."""

    def body(x, grid):
        x = ir.build("ai.relayout", x, layout="") if blocks[0] else x
        y = ir.build("ai.grid_sample", x, grid, **attrs)
        return ir.build("ai.relayout", y, layout=blocks[1]) if blocks[1] else y

    program = program_of([tensor(x, dtype, blocks[0]), tensor(grid, dtype)], body)
    return Kernel(program, chip, special_grid.schedule)


def feeds(x: tuple[int, ...], places: tuple[int, int], dtype: str = "float32"):
    rng = np.random.default_rng(x[1])
    grid = rng.uniform(-1.7, 1.7, (x[0], *places, 2))
    grid[rng.random(grid.shape) < 0.1] = 1.0
    return {"x0": rng.normal(size=x).astype(numpy_dtype(dtype)), "x1": grid.astype(dtype)}


@pytest.mark.parametrize("chip", [V4, V3, V2], ids=lambda c: c.name)
@pytest.mark.parametrize("result", ["", "NCHW16c"])
@pytest.mark.parametrize("channels", [1, 16, 23, 64, 75, 130])
def test_channels(channels, result, chip):
    made = kernel(f"2,{channels},5,7", "2,9,8,2", chip, blocks=("NCHW16c", result))
    agrees(made, feeds((2, channels, 5, 7), (9, 8)))


@on_chips
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_modes(mode, padding, align_corners, chip):
    attrs = {"mode": mode, "padding": padding, "align_corners": align_corners}
    made = kernel("n,20,h,w", "n,i,j,2", chip, **attrs)
    for x, places in (((1, 20, 1, 1), (3, 2)), ((2, 20, 6, 5), (11, 13)), ((1, 20, 4, 9), (0, 5))):
        agrees(made, feeds(x, places))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dtypes(dtype):
    agrees(kernel("1,20,4,6", "1,7,5,2", V3, dtype), feeds((1, 20, 4, 6), (7, 5), dtype))


def test_others_are_left_to_the_elementwise_schedule():
    with pytest.raises(Miss, match="apart"):
        kernel("1,20,4,6", "1,7,5,2", V4, blocks=("", ""))


def test_an_image_of_one_immediate_is_too():
    def body(grid):
        x = ir.build("ai.full", value=2.5, shape=(1, 1, 1, 1), dtype="float32")
        return ir.build("ai.grid_sample", x, grid)

    with pytest.raises(Miss, match="apart"):
        Kernel(program_of([tensor("1,7,5,2")], body), V4, special_grid.schedule)
