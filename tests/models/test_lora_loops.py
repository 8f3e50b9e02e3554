"""`--lora batch` on layers within loops and branches: their rows are the batch's, or it is refused.

The truth is NumPy in float64.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cuvilc.diagnostics import CuvilError
from cuvilc.driver import BuildRequest, build
from tests.tolerances import mismatch

files = import_module("tests.import.lora_files")  # the folder is named by a keyword
builders = import_module("tests.import.builders")
graphs = import_module("tests.import.lora_graphs")
node, tensor, values = graphs.node, builders.tensor, graphs.values

B, T, K = 3, 4, 8
W, U = 0.3 * values(K, K, seed=1), 0.3 * values(K, K, seed=2)
NAMES = ["one", None, "two"]


def _delta(name: str | None) -> np.ndarray:
    """ΔW [K, K] of `cell` in an adapter; alpha / r is 2."""
    if name is None:
        return np.zeros((K, K))
    a, b = _factors(name).values()
    result: np.ndarray = 2 * (b.astype(np.float64) @ a.astype(np.float64)).T
    return result


def _factors(name: str) -> dict[str, np.ndarray]:
    pair = files.pair("cell", 2, K, K)
    return {key: v * (1 if name == "one" else -0.5) for key, v in pair.items()}


def _adapters(folder: Path) -> list[tuple[Path, str]]:
    for name in ("one", "two"):
        files.write(folder / name, _factors(name), target_modules=["cell"])
    return [(folder / name, name) for name in ("one", "two")]


def _save(folder: Path, nodes: list[Any], shape: list[Any], **weights: Any) -> Path:
    named = {"cell.weight": W, **weights}
    proto = builders.model(nodes, [tensor("x", shape)], ["y"], named)
    return Path(builders.saved(folder, proto))


def _scan(axis: int) -> onnx.NodeProto:
    """h ← tanh(x[t] · W + h), over the axis of x; y: all h, along that axis."""
    body = helper.make_graph(
        [node("MatMul", "row cell.weight", "p", "/cell/MatMul"), node("Add", "p h", "s"),
         node("Tanh", "s", "h1"), node("Identity", "h1", "out")],
        "step", [tensor("h", None), tensor("row", None)], [tensor("h1", None), tensor("out", None)],
    )  # fmt: skip
    return node(
        "Scan", "begin x", "last y", body=body, num_scan_inputs=1, scan_input_axes=[axis],
        scan_output_axes=[axis],
    )  # fmt: skip


def _run(package: Path, x: np.ndarray) -> np.ndarray:
    model = cuvil.load(package)
    found: np.ndarray = model.run({"x": x}, adapters=NAMES)["y"]
    model.close()
    return found


def _packed(folder: Path, path: Path) -> Path:
    request = BuildRequest(
        path, folder / "p.cuvil", vectors=0, lora="batch", adapters=_adapters(folder)
    )  # fmt: skip
    build(request)
    return folder / "p.cuvil"


def _begin(axis: int) -> list[onnx.NodeProto]:
    """Zeros as x [b, t, K] without an axis."""
    return [node("ReduceMean", "x", "m", axes=[axis], keepdims=0), node("Mul", "m none", "begin")]


@pytest.mark.parametrize("shape", [["b", "t", K], [B, T, K]], ids=["open", "fixed"])
def test_steps_of_a_recurrence(tmp_path: Path, shape: list[Any]) -> None:
    path = _save(tmp_path, [*_begin(1), _scan(1)], shape, none=np.float32(0))
    x = values(B, T, K, seed=5)
    wanted = np.zeros((B, T, K))
    for row, name in enumerate(NAMES):
        h = np.zeros(K)
        for t in range(T):
            h = np.tanh(x[row, t].astype(np.float64) @ (W + _delta(name)) + h)
            wanted[row, t] = h
    assert not mismatch(_run(_packed(tmp_path, path), x), wanted.astype(np.float32))


def test_a_layer_of_a_branch(tmp_path: Path) -> None:
    """Which branch runs hangs on the data; the layer is in both, beside another in one."""

    def branch(nodes: list[Any], out: str) -> Any:
        return helper.make_graph(nodes, out, [], [tensor(out, None)])

    first = branch([node("MatMul", "x cell.weight", "p"), node("Tanh", "p", "a")], "a")
    second = branch([node("MatMul", "x u", "q"), node("MatMul", "q cell.weight", "c")], "c")
    nodes = [node("ReduceSum", "x", "sum", keepdims=0), node("Greater", "sum none", "some"),
             node("If", "some", "y", then_branch=first, else_branch=second)]  # fmt: skip
    path = _save(tmp_path, nodes, ["b", K], none=np.float32(0), u=U)
    package = _packed(tmp_path, path)
    swap = tmp_path / "swap.cuvil"
    report = build(BuildRequest(path, swap, vectors=0, lora="swap", adapters=_adapters(tmp_path)))
    assert len(report.metadata["lora"]["weights"]) == 1  # though each branch has it
    exchanged = cuvil.load(swap)
    for sign in (1, -1):
        x = sign * np.abs(values(B, K, seed=5))

        def truth(name: str | None, rows: np.ndarray) -> np.ndarray:
            w, wide = W + _delta(name), rows.astype(np.float64)
            done = np.tanh(wide @ w) if rows.sum() > 0 else wide @ U @ w
            return done.astype(np.float32)

        rows = [truth(name, row) for row, name in zip(x, NAMES, strict=True)]
        assert not mismatch(_run(package, x), np.array(rows))
        for name in NAMES:
            exchanged.use(name)
            assert not mismatch(exchanged.run({"x": x})["y"], truth(name, x)), name
    exchanged.close()


@pytest.mark.parametrize("bias", [False, True])
def test_rows_behind_a_transpose(tmp_path: Path, bias: bool) -> None:
    """Channels first, as convolutions leave them, which a product reads as they lie."""
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]),
             node("MatMul", "t cell.weight", "p", "/cell/MatMul"),
             node("Add", "p shift", "y") if bias else node("Tanh", "p", "y")]  # fmt: skip
    path = _save(tmp_path, nodes, ["b", K, "t"], shift=values(K, seed=3))
    x = values(B, K, T, seed=5)
    wanted = []
    for row, name in zip(x, NAMES, strict=True):
        y = row.T.astype(np.float64) @ (W + _delta(name))
        wanted.append(y + values(K, seed=3) if bias else np.tanh(y))
    assert not mismatch(_run(_packed(tmp_path, path), x), np.array(wanted).astype(np.float32))


def _loop(*nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Three rounds of nodes from `h` to `h1`, from x on; their condition is kept."""
    body = helper.make_graph(
        [*nodes, node("Identity", "go", "on")], "round",
        [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("h", None)],
        [tensor("on", [], TensorProto.BOOL), tensor("h1", None)],
    )  # fmt: skip
    return [node("Loop", "three yes x", "y", body=body)]


def test_rounds_of_a_loop(tmp_path: Path) -> None:
    nodes = _loop(node("MatMul", "h cell.weight", "p"), node("Tanh", "p", "h1"))
    path = _save(tmp_path, nodes, ["b", K], three=np.array(3), yes=np.array(True))
    x = values(B, K, seed=5)
    wanted = x.astype(np.float64)
    for _ in range(3):
        rows = zip(wanted, NAMES, strict=True)
        wanted = np.array([np.tanh(row @ (W + _delta(name))) for row, name in rows])
    assert not mismatch(_run(_packed(tmp_path, path), x), wanted.astype(np.float32))


REFUSED: dict[str, tuple[list[onnx.NodeProto], list[Any]]] = {
    # A step is a row of the batch: [t, K], as long as the batch or not.
    "rows one by one": ([*_begin(0), _scan(0)], [B, T, K]),
    "rows one by one, as long": ([*_begin(0), _scan(0)], [T, T, K]),
    "turned in each round": (
        _loop(node("MatMul", "h cell.weight", "p", "/cell/MatMul"),
              node("Transpose", "p", "h1", perm=[1, 0, 2])), [K, K, K]),
    "turned in a branch": (
        [node("ReduceSum", "x", "sum", keepdims=0), node("Greater", "sum none", "some"),
         node("If", "some", "h",
              then_branch=helper.make_graph([node("Transpose", "x", "a", perm=[1, 0, 2])], "a", [],
                                            [tensor("a", None)]),
              else_branch=helper.make_graph([node("Relu", "x", "c")], "c", [],
                                            [tensor("c", None)])),
         node("MatMul", "h cell.weight", "y", "/cell/MatMul")], [T, T, K]),
    "rows in another order": (
        [node("Gather", "x order", "h", axis=0),
         node("MatMul", "h cell.weight", "y", "/cell/MatMul")], [B, K]),
    "rows back to front": (
        [node("Slice", "x minus least first minus", "h"),
         node("MatMul", "h cell.weight", "y", "/cell/MatMul")], [B, K]),
    "columns made rows by a product": (
        [node("Transpose", "x", "t", perm=[1, 0]), node("MatMul", "t x", "h"),
         node("MatMul", "h cell.weight", "y", "/cell/MatMul")], [K, K]),
    "the batch cut up": (  # [B, 2, K] → [2, B, K]
        [node("Reshape", "x cut", "r"), node("ReduceSum", "r first", "h", keepdims=0),
         node("MatMul", "h cell.weight", "y", "/cell/MatMul")], [B, 2, K]),
    "another axis made as long as the batch": (  # [B, 2, K] → [2, B, K] → [B, 2 · K]
        [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Relu", "t", "r"),
         node("Reshape", "r long", "l"), node("MatMul", "l fold", "h"),
         node("MatMul", "h cell.weight", "y", "/cell/MatMul")], [B, 2, K]),
    "another axis cut as long as the batch": (  # [B, 4, K] → [4, B, K] → [B, B, K]
        [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Gather", "t order", "h", axis=0),
         node("MatMul", "h cell.weight", "y", "/cell/MatMul")], [B, T, K]),
    "rows without the batch": (
        [node("ReduceMean", "x", "h", axes=[0], keepdims=0),
         node("MatMul", "h cell.weight", "y", "/cell/MatMul")], [T, T, K]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_rows_that_are_not_the_batch(tmp_path: Path, case: str) -> None:
    nodes, shape = REFUSED[case]
    path = _save(
        tmp_path, nodes, shape, none=np.float32(0), three=np.array(3), yes=np.array(True),
        order=np.array([2, 0, 1]), minus=np.array([-1]), least=np.array([-100]),
        first=np.array([0]), cut=np.array([2, B, K]), long=np.array([B, 2 * K]),
        fold=values(2 * K, K, seed=4),
    )  # fmt: skip
    with pytest.raises(CuvilError) as caught:
        _packed(tmp_path, path)
    (found,) = caught.value.diagnostics
    assert found.code == "CUV743" and "not those of the batch" in found.message
    build(BuildRequest(path, tmp_path / "s.cuvil", vectors=0, lora="swap",
                       adapters=_adapters(tmp_path)))  # fmt: skip
