"""roi_align: every sample, boxes within and outside, counts of channels, layouts, dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.types import numpy_dtype
from cuvilc.targets.region import Miss
from cuvilc.targets.schedules import special_roi
from tests.targets.kernel_harness import V2, V3, V4, Kernel, agrees, program_of, tensor
from tests.targets.samples import check_sample, on_chips, on_samples

BOXES = np.array(
    [[1, 2, 9, 8], [-5, -4, 3, 3], [6, 5, 30, 40], [3, 3, 3, 3], [9, 9, 2, 1], [50, 50, 60, 60]]
)


@on_chips
@on_samples(lambda o: o.name == "ai.roi_align")
def test_samples(name, case, chip):
    if case.attrs.get("maximum"):
        with pytest.raises(Miss):
            check_sample(name, case, chip, special_roi.schedule)
    else:
        check_sample(name, case, chip, special_roi.schedule)


def kernel(channels: str, chip, dtype="float32", blocks=("", ""), **attrs) -> Kernel:
    """Of [2, channels, 9, 11] and r boxes; x and the result lie in `blocks`."""

    def body(x, boxes, batch):
        x = ir.build("ai.relayout", x, layout="") if blocks[0] else x
        y = ir.build("ai.roi_align", x, boxes, batch, output=(2, 3), **attrs)
        return ir.build("ai.relayout", y, layout=blocks[1]) if blocks[1] else y

    types = [tensor(f"2,{channels},9,11", dtype, blocks[0]), tensor("r,4", dtype)]
    return Kernel(program_of([*types, tensor("r", "int64")], body), chip, special_roi.schedule)


def feeds(channels: int, dtype: str, boxes: np.ndarray = BOXES) -> dict[str, np.ndarray]:
    x = np.random.default_rng(channels).normal(size=(2, channels, 9, 11))
    arrays = x.astype(numpy_dtype(dtype)), boxes.astype(numpy_dtype(dtype))
    return {"x0": arrays[0], "x1": arrays[1], "x2": np.arange(len(boxes)) % 4 - 2}


@pytest.mark.parametrize("chip", [V4, V3, V2], ids=lambda c: c.name)
@pytest.mark.parametrize("blocks", [("", ""), ("NCHW16c", ""), ("NCHW16c", "NCHW16c")])
@pytest.mark.parametrize("channels", [1, 16, 23, 64, 75, 130])
def test_channels(channels, blocks, chip):
    made = kernel(str(channels), chip, blocks=blocks, ratio=2)
    agrees(made, feeds(channels, "float32"))


@on_chips
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("half_pixel", [False, True])
@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_samples_of_a_bin(ratio, half_pixel, scale, chip):
    made = kernel("c", chip, ratio=ratio, half_pixel=half_pixel, scale=scale)
    for channels, boxes in ((5, BOXES), (70, BOXES[:1]), (3, BOXES[:0])):
        agrees(made, feeds(channels, "float32", boxes))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("block", ["", "NCHW16c"])
def test_dtypes(dtype, block):
    agrees(kernel("20", V3, dtype, (block, ""), ratio=2), feeds(20, dtype))


def test_what_lies_outside_is_0_even_beside_infinities():
    values = feeds(4, "float32")
    values["x0"][:] = np.inf
    agrees(kernel("4", V4, ratio=2), values)


def test_an_image_that_is_not_there_is_a_fault():
    values = feeds(4, "float32")
    values["x2"][3] = 2
    with pytest.raises(RuntimeError, match="kernel fault 1"):
        kernel("4", V4).run(values)


def test_an_image_of_one_immediate():
    def body(boxes, batch):
        x = ir.build("ai.full", value=2.5, shape=(1, 1, 1, 1), dtype="float32")
        return ir.build("ai.roi_align", x, boxes, batch, output=(2, 3), ratio=2)

    program = program_of([tensor("r,4"), tensor("r", "int64")], body)
    made = Kernel(program, V4, special_roi.schedule)
    agrees(made, {"x0": BOXES.astype(np.float32), "x1": np.zeros(len(BOXES), np.int64)})
