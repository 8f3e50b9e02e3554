"""Numbers in a model that are far larger than its sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from cuvilc.diagnostics import CuvilError
from cuvilc.driver import BuildRequest, build
from tests.models import agree
from tests.models.computed_cases import INT64, floats, model, node, port


def written(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("step", [1 << 62, 2**63 - 1])
def test_a_step_beyond_every_size(step: int, tmp_path: Path) -> None:
    proto = model(
        [node("Shape", "x", "s"), node("Squeeze", "s", "n"), node("Range", "zero n step", "y")],
        [port("x", ["n"])], [port("y", [None], INT64)], zero=np.array(0), step=np.array(step),
    )  # fmt: skip
    agree.check(written(proto, tmp_path), tmp_path, [{"x": np.zeros(n, "f")} for n in (3, 0, 1)])


@pytest.mark.parametrize("stride", [100, 1 << 40])
def test_a_stride_far_beyond_the_kernel(stride: int, tmp_path: Path) -> None:
    """A phase for each place between two elements would be an array of that size."""
    rng = np.random.default_rng(1)
    proto = model(
        [node("ConvTranspose", "x w", "y", strides=[stride, 2])],
        [port("x", [1, 2, "h", "w"])], [port("y", None)], w=floats(rng, 2, 3, 2, 3),
    )  # fmt: skip
    heights = (1, 3) if stride < 1000 else (1,)
    feeds = [{"x": floats(rng, 1, 2, h, 5)} for h in heights]
    agree.check(written(proto, tmp_path), tmp_path, feeds)


def test_a_window_longer_than_any_axis(tmp_path: Path) -> None:
    proto = model(
        [node("MaxPool", "x", "y", kernel_shape=[1 << 32, 1])],
        [port("x", [1, 1, "h", "w"])], [port("y", None)],
    )  # fmt: skip
    with pytest.raises(CuvilError, match="is longer than any axis"):
        build(BuildRequest(written(proto, tmp_path), tmp_path / "model.cuvil", vectors=0))
