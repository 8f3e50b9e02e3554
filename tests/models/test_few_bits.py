"""Weights of few bits stay packed in the package, and products by them are onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import cuvil
import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from cuvilc.driver import BuildRequest, build
from tests.models import agree
from tests.models.computed_cases import floats, model, node, port
from tests.tolerances import mismatch

CASES = {
    "panels": (96, 128, 4, 32, True),
    "columns that fill no panel": (45, 64, 4, 16, True),
    "no zero points": (70, 128, 4, 128, False),
    "bytes": (33, 64, 8, 16, True),
    "bytes without zero points": (32, 32, 8, 32, False),
}


@pytest.mark.parametrize("rows", [None, 23, 24, 61])
@pytest.mark.parametrize("case", CASES)
def test_the_product_is_onnxruntimes(case: str, rows: int | None, tmp_path: Path) -> None:
    columns, depth, bits, block, zeros = CASES[case]
    rng = np.random.default_rng(1)
    blocks = depth // block
    weights = {
        "packed": rng.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8),
        "scale": rng.random(columns * blocks, np.float32),
        "bias": floats(rng, columns),
    }
    inputs = "x packed scale"
    if zeros:
        width = -(-blocks * bits // 8)
        weights["zero"] = rng.integers(0, 256, columns * width, np.uint8)
        inputs += " zero"
    sizes: list[str | int] = [1, rows] if rows else ["b", "n"]
    product = node(
        "MatMulNBits", inputs, "p", domain="com.microsoft", N=columns, K=depth, bits=bits,
        block_size=block,
    )  # fmt: skip
    proto = model(
        [product, node("Add", "p bias", "q"), node("Relu", "q", "y")],
        [port("x", [*sizes, depth])], [port("y", [*sizes, columns])], **weights,
    )  # fmt: skip
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    shapes = ((1, rows),) if rows else ((1, 1), (2, 9), (1, 40))
    agree.check(path, tmp_path, [{"x": floats(rng, *s, depth)} for s in shapes])


def test_a_package_is_no_larger_than_its_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    columns, depth, block = 1024, 2048, 32
    product = node(
        "MatMulNBits", "x packed scale", "y", domain="com.microsoft", N=columns, K=depth, bits=4,
        block_size=block,
    )  # fmt: skip
    proto = model(
        [product], [port("x", ["n", depth])], [port("y", ["n", columns])],
        packed=rng.integers(0, 256, (columns, depth // block, block // 2), np.uint8),
        scale=rng.random(columns * depth // block, np.float32),
    )  # fmt: skip
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    report = build(BuildRequest(path, tmp_path / "m.cuvil", cpu="host", vectors=0))
    assert report.metadata["weights"]["bytes"] <= 1.01 * path.stat().st_size


@pytest.mark.parametrize(("dtype", "block"), [("int4", 32), ("uint4", 64), ("int8", 0)])
def test_dequantised_weights_are_kept_too(dtype: str, block: int, tmp_path: Path) -> None:
    """DequantizeLinear → MatMul, as tools write it that quantise weights alone."""
    rng = np.random.default_rng(3)
    columns, depth = 384, 512
    bits = int(dtype[-1])
    low = 0 if dtype[0] == "u" else -(1 << bits - 1)
    levels = rng.integers(low, low + (1 << bits), (depth, columns))
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    scale = floats(rng, *((depth // block, columns) if block else (columns,)))
    weights = {"q": levels.astype(np.int16).astype(kind), "scale": scale}
    inputs = "q scale"
    if dtype == "uint4":
        weights["zero"] = rng.integers(0, 16, scale.shape).astype(np.int16).astype(kind)
        inputs += " zero"
    axis = {"axis": 0, "block_size": block} if block else {"axis": 1}
    proto = model(
        [node("DequantizeLinear", inputs, "w", **axis), node("MatMul", "x w", "y")],
        [port("x", ["n", depth])], [port("y", ["n", columns])], **weights,
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    report = build(BuildRequest(path, tmp_path / "m.cuvil", vectors=0))
    assert report.metadata["weights"]["bytes"] <= 1.1 * path.stat().st_size
    # onnxruntime rounds x to 8 bits there, half a percent off
    spread = np.repeat(scale, block, axis=0) if block else scale
    zero = weights["zero"].astype(np.int16) if "zero" in weights else np.zeros_like(scale)
    zero = np.repeat(zero, block, axis=0) if block else zero
    real = (levels - zero) * spread.astype(np.float64)
    for level in report.metadata["target"]["levels"]:
        loaded = cuvil.load(tmp_path / "m.cuvil", level=level["name"])
        for x in (floats(rng, n, depth) for n in (1, 5, 40)):
            assert not mismatch(loaded(x), (x @ real).astype(np.float32))
