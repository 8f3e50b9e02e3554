"""`--lora swap` of weights of 16 bits: those of a model that has them, and those that `--precision
bf16` makes. What an adapter puts there is W + ΔW, rounded once. The truth is NumPy in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import cuvil
import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from cuvilc.diagnostics import CuvilError
from cuvilc.driver import BuildRequest, build
from cuvilc.driver_cuvla import build_adapters
from tests.tolerances import RELATIVE, mismatch

files = import_module("tests.import.lora_files")  # the folder is named by a keyword
builders = import_module("tests.import.builders")
graphs = import_module("tests.import.lora_graphs")
node, tensor, values = graphs.node, builders.tensor, graphs.values

K, N, C = 40, 70, 6
FORMS = {"float16": (np.float16, TensorProto.FLOAT16),
         "bfloat16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16)}  # fmt: skip


def _tensors(seed: int) -> dict[str, np.ndarray]:
    """Factors of `one` [N, K], `two` [N, K] and the convolution `conv` [N, C, 3, 3]."""
    shapes = {"one": ((2, K), (N, 2)), "two": ((3, K), (N, 3)),
              "conv": ((2, C, 3, 3), (N, 2, 1, 1))}  # fmt: skip
    return {
        f"{files.PREFIX}{module}.lora_{x}.weight": 0.3 * values(*shape, seed=seed)
        for module, pair in shapes.items()
        for x, shape in zip("AB", pair, strict=True)
    }


def _adapter(folder: Path, name: str, seed: int, *modules: str) -> Path:
    own = {n: t for n, t in _tensors(seed).items() if n.split(".")[2] in modules}
    ranks = {"two": 3} if "two" in modules else {}
    return Path(files.write(folder / name, own, target_modules=[*modules], rank_pattern=ranks))


def _delta(module: str, seed: int) -> np.ndarray:
    """scale · B·A, where alpha is 4."""
    mine = {n.split("_")[-1][0]: t for n, t in _tensors(seed).items() if f".{module}." in n}
    a, b = (mine[x].astype(np.float64) for x in "AB")
    product = 4 / len(a) * (b.reshape(len(b), -1) @ a.reshape(len(a), -1))
    return product.reshape(len(b), *a.shape[1:])


def _rounded(x: np.ndarray, dtype: Any) -> np.ndarray:
    return x.astype(dtype).astype(np.float64)


ONE, TWO = values(N, K, seed=1), values(N, K, seed=2)  # both [N, K]; `one` stands as [K, N]
X = values(5, K, seed=3).astype(ml_dtypes.bfloat16).astype(np.float32)


def _products(folder: Path, dtype: Any = np.float32, code: int = 0) -> Path:
    """y = x · one + x · twoᵀ."""
    nodes = [node("MatMul", "c one.weight", "p", "/one/MatMul"),
             node("Gemm", "c two.weight", "q", "/two/Gemm", transB=1),
             node("Add", "p q", "s")]  # fmt: skip
    ends = [node("Identity", "x", "c"), node("Identity", "s", "y")]
    if code:
        ends = [node("Cast", "x", "c", to=code), node("Cast", "s", "y", to=TensorProto.FLOAT)]
    proto = builders.model(
        [ends[0], *nodes, ends[1]], [tensor("x", ["b", K])], ["y"],
        {"one.weight": np.ascontiguousarray(ONE.T), "two.weight": TWO},
    )  # fmt: skip
    for held in proto.graph.initializer if code else ():
        array = numpy_helper.to_array(held).astype(dtype)
        raw = array.view(np.uint16).tobytes()
        held.CopyFrom(type(held)(name=held.name, dims=array.shape, data_type=code, raw_data=raw))
    return Path(builders.saved(folder, proto))


def _package(folder: Path, path: Path, precision: str, *modules: str) -> Path:
    _adapter(folder, "sql", 4, *modules)
    package = folder / "p.cuvil"
    build(BuildRequest(path, package, vectors=0, lora="swap", precision=precision,
                       adapters=[(folder / "sql", "sql")]))  # fmt: skip
    _adapter(folder, "chat", 5, *modules)
    [(_, data)] = build_adapters(folder / "chat", "chat", package)
    (folder / "chat.cuvla").write_bytes(data)
    return package


def _sum_of_products(dtype: Any) -> Callable[[int], np.ndarray]:
    """By seed (0: none) of an adapter, what the two layers with weights of this dtype give."""

    def truth(seed: int) -> np.ndarray:
        total = np.zeros((len(X), N))
        for module, w in (("one", ONE), ("two", TWO)):
            change = _delta(module, seed) if seed else 0
            total += X @ _rounded(_rounded(w, dtype) + change, dtype).T
        return total

    return truth


def _check(package: Path, x: np.ndarray, truth: Any, dtype: str) -> None:
    """The base, both adapters and back; each always the same bits."""
    model = cuvil.load(package)
    model.load_adapter(package.parent / "chat.cuvla")
    first: dict[Any, np.ndarray] = {}
    for name, seed in [(None, 0), ("sql", 4), ("chat", 5), ("sql", 4), (None, 0), ("chat", 5)]:
        model.use(name)
        found = model.run({"x": x})["y"]
        wanted = truth(seed)
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        assert error <= (RELATIVE[dtype] or 0), (name, error)
        assert np.array_equal(found, first.setdefault(name, found)), name
    assert mismatch(first["sql"], first[None]) and mismatch(first["sql"], first["chat"])
    model.close()


@pytest.mark.parametrize("form", FORMS)
def test_a_model_of_16_bits(tmp_path: Path, form: str) -> None:
    dtype, code = FORMS[form]
    package = _package(tmp_path, _products(tmp_path, dtype, code), "", "one", "two")

    _check(package, X, _sum_of_products(dtype), form)


def test_products_that_are_made_bfloat16(tmp_path: Path) -> None:
    """x is in bfloat16 already: sums are exact but for float32's, so one rounding of a weight too
    many would show.
    """
    package = _package(tmp_path, _products(tmp_path), "bf16", "one", "two")
    _check(package, X, _sum_of_products(ml_dtypes.bfloat16), "float32")


def test_a_convolution_that_is_made_bfloat16(tmp_path: Path) -> None:
    bf16 = ml_dtypes.bfloat16
    w = values(N, C, 3, 3, seed=6)
    proto = builders.model(
        [node("Conv", "x conv.weight", "y", "/conv/Conv")], [tensor("x", ["b", C, 3, 3])], ["y"],
        {"conv.weight": w},
    )  # fmt: skip
    path = Path(builders.saved(tmp_path, proto))
    package = _package(tmp_path, path, "bf16", "conv")
    x = values(4, C, 3, 3, seed=7).astype(bf16).astype(np.float32)

    def truth(seed: int) -> np.ndarray:
        change = _delta("conv", seed) if seed else 0
        whole = _rounded(_rounded(w, bf16) + change, bf16)
        return np.einsum("bchw,nchw->bn", x, whole)[:, :, None, None]

    _check(package, x, truth, "float32")


def test_a_layer_that_is_called_twice_is_one_weight(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x one.weight", "h", "/one/MatMul"),
             node("MatMul", "h one.weight", "y", "/one/MatMul_1")]  # fmt: skip
    proto = builders.model(nodes, [tensor("x", ["b", K])], ["y"], {"one.weight": values(K, K)})
    path = Path(builders.saved(tmp_path, proto))
    files.write(tmp_path / "sql", files.pair("one", 2, K, K), target_modules=["one"])
    report = build(BuildRequest(path, tmp_path / "p.cuvil", vectors=0, lora="swap",
                                precision="bf16", adapters=[(tmp_path / "sql", "")]))  # fmt: skip
    [weight] = report.metadata["lora"]["weights"]
    assert weight["dtype"] == "bfloat16" and not weight["merged"]


def test_rows_of_batches_need_float32(tmp_path: Path) -> None:
    _adapter(tmp_path, "sql", 4, "one")
    with pytest.raises(CuvilError, match="no longer float32") as caught:
        build(BuildRequest(_products(tmp_path), tmp_path / "p.cuvil", vectors=0, lora="batch",
                           precision="bf16", adapters=[(tmp_path / "sql", "")]))  # fmt: skip
    assert caught.value.diagnostics[0].code == "CUV744"
