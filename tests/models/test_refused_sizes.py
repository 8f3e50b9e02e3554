"""Numbers and sizes for which a model has no result: refused when it runs, by the kernels' package
and by the interpreter alike, and nothing is read that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cuvilc.diagnostics import CuvilError
from cuvilc.driver import BuildRequest, build
from cuvilc.open_package import open_package
from tests.models.computed_cases import FLOAT, INT64, model, node, port

Feed = dict[str, Any]
PADS = ("edge", "reflect", "wrap")


def of_x(
    nodes: Sequence[onnx.NodeProto], rank: int, numbers: int | None = None, elem: int = FLOAT,
    **weights: Any,
) -> onnx.ModelProto:  # fmt: skip
    """x, all its sizes open, and s, `numbers` of int64, to y."""
    inputs = [port("x", [f"n{i}" for i in range(rank)])]
    inputs += [] if numbers is None else [port("s", [numbers], INT64)]
    return model(list(nodes), inputs, [port("y", None, elem)], **weights)


def empty(*shape: int) -> Feed:
    return {"x": np.zeros(shape, np.float32)}


def numbers(count: int, *values: int) -> Feed:
    return {"x": np.arange(count, dtype=np.float32), "s": np.array(values)}


IMAGE, SIZES = (1, 1, 0, 3), np.array([1, 1, 4, 5])
GRID = np.zeros((1, 2, 2, 2), np.float32)
# model, what is refused and with which words, what is not
CASES: dict[str, tuple[onnx.ModelProto, list[tuple[Feed, str]], Feed]] = {
    "reshape": (
        of_x([node("Reshape", "x s", "y")], 1, 2),
        [
            (numbers(4, -1, -1), "more than one -1"), (numbers(0, -1, -1), "more than one -1"),
            (numbers(4, 4, 0), "0 at 1 copies a size that 1 axes do not have"),
            (numbers(4, 3, -1), "n0 elements"), (numbers(4, -2, -2), "is -2, must be 0"),
            (numbers(4, 1 << 32, 1 << 32), "n5*n6"), (numbers(4, 1 << 62, 1), "n5*n6"),
        ],
        numbers(4, 2, -1),
    ),
    "split": (
        model(
            [node("Split", "x s", "y z")], [port("x", ["n"]), port("s", [2], INT64)],
            [port("y", [None]), port("z", [None])],
        ),
        [
            (numbers(5, 1, 1), "do not add up to n"), (numbers(5, 0, 0), "do not add up to n"),
            (numbers(5, 6, -1), "n1"),
        ],
        numbers(5, 2, 3),
    ),
    "range": (
        model(
            [node("Range", "a b c", "y")], [port(n, [], INT64) for n in "abc"],
            [port("y", [None], INT64)],
        ),
        [
            (dict(zip("abc", map(np.array, v), strict=True)), "is -1, must be 0")
            for v in ((0, 5, 0), (3, 3, 0), (5, 0, 0))
        ],
        # exact, though float64 has no 2⁵³ + 1
        {"a": np.array(1 << 53), "b": np.array((1 << 53) + 3), "c": np.array(1)},
    ),
    **{
        f"pad, {mode}": (
            of_x([node("Pad", "x p", "y", mode=mode)], 2, p=np.array([1, 0, 0, 2])),
            [(empty(0, 3), "axis 0 is empty"), (empty(3, 0), "axis 1 is empty")],
            empty(2, 3),
        )
        for mode in PADS
    },
    **{
        f"pad by data, {mode}": (
            of_x([node("Pad", "x s", "y", mode=mode)], 1, 2),
            [(numbers(0, 1, 0), "is empty"), (numbers(0, 4, 4), "is empty")],
            numbers(0, 0, 0),
        )
        for mode in PADS
    },
    **{
        f"resize, {mode}": (
            of_x([node("Resize", "x _ _ s", "y", mode=mode)], 4, s=SIZES),
            [(empty(*IMAGE), "an empty axis cannot be resized to 4")],
            empty(1, 1, 2, 3),
        )
        for mode in ("nearest", "linear", "cubic")
    },
    "grid": (
        of_x([node("GridSample", "x g", "y")], 4, g=GRID),
        [(empty(*IMAGE), "is empty: nothing to sample")],
        empty(1, 1, 2, 3),
    ),
    "regions": (
        of_x(
            [node("RoiAlign", "x r b", "y")], 4,
            r=np.zeros((1, 4), np.float32), b=np.array([0]),
        ),
        [(empty(*IMAGE), "is empty: nothing to sample")],
        empty(1, 1, 2, 3),
    ),
    "the greatest": (
        of_x([node("ArgMax", "x", "y")], 2, elem=INT64),
        [(empty(0, 3), "it has no extreme")],
        empty(2, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["x86", "null"])
@pytest.mark.parametrize("name", CASES)
def test_refused_while_it_runs(name: str, target: str, tmp_path: Path) -> None:
    proto, refused, good = CASES[name]
    if name.endswith("wrap"):
        proto.opset_import[0].version = 19
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    build(BuildRequest(path, tmp_path / "model.cuvil", target, vectors=0))
    package = open_package(tmp_path / "model.cuvil")
    before = package.run(good)["y"]
    for feed, message in refused:
        with pytest.raises(CuvilError) as found:
            package.run(feed)
        assert found.value.diagnostics[0].code == "CUV606"
        assert message in found.value.diagnostics[0].message
        np.testing.assert_array_equal(package.run(good)["y"], before)
    if name == "range":
        assert before.tolist() == [(1 << 53) + i for i in range(3)]
