"""`cuvilc build --lora swap` and `cuvilc adapter build`: adapters that come with a package, and
those that come later; what does not fit is refused before anything is written.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import cuvil
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.tolerances import mismatch

from .helpers import Cuvilc, check_golden

files = import_module("tests.import.lora_files")  # the folder is named by a keyword

RNG = np.random.default_rng(0)
WEIGHTS = {
    f"model.layers.0.{name}": RNG.standard_normal((4, 3)).astype(np.float32)
    for name in ("q_proj", "v_proj")
}
X = RNG.standard_normal((5, 3)).astype(np.float32)


def _node(module: str) -> str:
    """As the TorchScript exporter names the node of a layer."""
    return f"/model/layers.0/{module.rpartition('.')[2]}/Gemm"


def model(path: Path, quantised: bool = False) -> Path:
    """y = x · Wqᵀ + x · Wvᵀ, the weights by torch's names; quantised: Wv from int8."""
    held, nodes = [], []
    for name, w in WEIGHTS.items():
        key = f"{name}.weight"
        if quantised and name.endswith("v_proj"):
            held += [
                numpy_helper.from_array(np.rint(w * 40).astype(np.int8), f"{key}.levels"),
                numpy_helper.from_array(np.float32(1 / 40), f"{key}.scale"),
            ]
            inputs = [f"{key}.levels", f"{key}.scale"]
            nodes.append(helper.make_node("DequantizeLinear", inputs, [key]))
        else:
            held.append(numpy_helper.from_array(w, key))
        nodes.append(helper.make_node("Gemm", ["x", key], [name], _node(name), transB=1))
    nodes.append(helper.make_node("Add", list(WEIGHTS), ["y"]))
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", d])
        for n, d in (("x", 3), ("y", 4))
    ]
    graph = helper.make_graph(nodes, "main", ports[:1], ports[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


def adapter(folder: Path, *names: str, seed: int = 1) -> Path:
    """A random adapter of the named layers."""
    rng = np.random.default_rng(seed)
    values = {}
    for name in names or ("q_proj", "v_proj"):
        pair = files.pair(f"model.layers.0.{name}")
        values |= {n: rng.standard_normal(v.shape).astype(np.float32) for n, v in pair.items()}
    return files.write(folder, values)


def refused(cuvilc: Cuvilc, code: int, *arguments: object) -> str:
    """What a command says that ends with an exit code."""
    result = cuvilc(*arguments)
    assert result.code == code, result.err
    return result.err


def expected(folder: Path) -> np.ndarray:
    """The model with the adapter, in float64."""
    [read] = import_module("cuvilc.import.lora").read_adapters(folder, None)
    sums = {name: w.astype(np.float64) for name, w in WEIGHTS.items()}
    for change in read.changes:
        low = change.low_rank
        sums[change.path] = sums[change.path] + low.scale * low.b.astype(np.float64) @ low.a
    return sum(X @ w.T for w in sums.values())  # type: ignore[return-value]


@pytest.fixture
def mode() -> str:
    """`--lora` of the package."""
    return "swap"


@pytest.fixture
def package(cuvilc: Cuvilc, tmp_path: Path, mode: str) -> Path:
    """A package that takes adapters and has one."""
    model(tmp_path / "m.onnx")
    adapter(tmp_path / "sql")
    cuvilc.ok("build", "m.onnx", "--adapter", "sql", "--lora", mode, "--vectors", "0")
    return tmp_path / "m.cuvil"


def test_an_adapter_of_the_package_and_one_that_comes_later(cuvilc, package, tmp_path) -> None:
    adapter(tmp_path / "chat", "v_proj", seed=2)
    shown = cuvilc.ok("adapter", "build", "chat", "--base", "m.cuvil", "-o", "c.cuvla").out
    assert "c.cuvla" in shown and "`chat`" in shown
    loaded = cuvil.load(package)
    for name in ("sql", loaded.load_adapter(tmp_path / "c.cuvla")):
        loaded.use(name)
        assert not mismatch(loaded(X), expected(tmp_path / name).astype(np.float32))
    with pytest.raises(cuvil.CuvilError, match=r"CUV612.*--lora swap[^`]*model\.use\(NAME\)"):
        loaded(X, adapters=["sql"] * len(X))
    loaded.close()
    assert "sql: swap, 2 modules" in cuvilc.ok("inspect", "m.cuvil").out


@pytest.mark.parametrize("mode", ["swap", "batch"])
def test_run_and_bench_with_an_adapter(cuvilc, package, tmp_path, mode) -> None:
    np.savez(tmp_path / "in.npz", x=X)
    adapter(tmp_path / "chat", seed=2)
    cuvilc.ok("adapter", "build", "chat", "--base", "m.cuvil")
    for use, name in (("sql", "sql"), ("chat.cuvla", "chat")):
        cuvilc.ok("run", "m.cuvil", "--inputs", "in.npz", "--outputs", "out.npz", "--use", use)
        found = np.load(tmp_path / "out.npz")["y"]
        assert not mismatch(found, expected(tmp_path / name).astype(np.float32))
    cuvilc.ok("bench", "m.cuvil", "--seconds", "0.01", "--use", "sql")
    refusal = refused(cuvilc, 2, "run", "m.cuvil", "--inputs", "in.npz", "--use", "slq")
    assert "CUV612" in refusal and "loaded: sql" in refusal
    profiled = cuvilc("bench", "m.cuvil", "--seconds", "0.01", "--use", "sql", "--profile")
    assert profiled.code == 0, profiled.err
    assert ("lora_shrink" in profiled.out) == (mode == "batch")
    cuvilc.ok("bench", "m.cuvil", "--seconds", "0", "--use", "sql", "--trace", "t.json")
    assert ("lora_shrink" in (tmp_path / "t.json").read_text()) == (mode == "batch")


@pytest.mark.parametrize("mode", ["swap", "batch"])
def test_an_adapter_that_was_not_built_is_told_how(cuvilc, package, tmp_path) -> None:
    np.savez(tmp_path / "in.npz", x=X)
    adapter(tmp_path / "chat")
    run = ("run", "m.cuvil", "--inputs", "in.npz", "--use")
    for use in ("./chat", "chat/adapter_model.safetensors"):
        result = cuvilc(*run, use)
        assert result.code == 2
        golden = "use-a-folder" if use == "./chat" else "use-a-tensor-file"
        check_golden(golden, f"{result.err}exit code 2\n", tmp_path)
    assert "CUV612" in refused(cuvilc, 2, "bench", "m.cuvil", "--seconds", "0", "--use", "chat")
    cuvilc.ok(*run, "sql")  # there is a folder of that name as well
    assert "No such file" in refused(cuvilc, 1, *run, "none.cuvla")
    assert "there is no adapter" in refused(cuvilc, 2, *run, "none")


@pytest.mark.parametrize("mode", ["batch"])
def test_a_model_is_called_with_adapters(cuvilc, package, tmp_path) -> None:
    """As it is run; an input of that name comes first."""
    loaded = cuvil.load(package)
    names = ["sql", None, "sql", None, None]
    found = loaded(X, adapters=names)
    assert np.array_equal(found, loaded.run({"x": X}, adapters=names)["y"])
    assert not np.array_equal(found, loaded(X))
    with pytest.raises(cuvil.CuvilError, match=r"CUV612.*--lora batch[^`]*run\(feeds, adapters"):
        loaded.use("sql")
    loaded.use(None)
    loaded.close()
    proto = onnx.load(tmp_path / "m.onnx")
    proto.graph.input[0].name = "adapters"
    for node in proto.graph.node:
        node.input[:] = ["adapters" if name == "x" else name for name in node.input]
    onnx.save(proto, tmp_path / "other.onnx")
    cuvilc.ok("build", "other.onnx", "--vectors", "0")
    loaded = cuvil.load(tmp_path / "other.cuvil")
    assert np.array_equal(loaded(adapters=X), loaded(X))
    loaded.close()


@pytest.mark.parametrize("mode", ["swap", "batch"])
def test_requests_with_adapters_share_runs(cuvilc, package, tmp_path, mode) -> None:
    adapter(tmp_path / "chat", seed=2)
    cuvilc.ok("adapter", "build", "chat", "--base", "m.cuvil")
    loaded = cuvil.load(package, threads=1)
    loaded.load_adapter(tmp_path / "chat.cuvla")
    wanted = {None: loaded(X)} | {n: expected(tmp_path / n) for n in ("sql", "chat")}
    names = [None, "sql", "chat", "sql", None, "chat"]
    with cuvil.Batcher(loaded, most_rows=len(names), wait_s=5 if mode == "batch" else 0) as batcher:
        rows = [(i % len(X), name) for i, name in enumerate(names)]
        futures = [batcher.submit({"x": X[i : i + 1]}, name) for i, name in rows]
        for (i, name), future in zip(rows, futures, strict=True):
            row = wanted[name][i : i + 1].astype(np.float32)
            assert not mismatch(future.result()["y"], row), name
        assert batcher.rows == len(names)
        assert batcher.runs == 1 if mode == "batch" else 3 <= batcher.runs <= len(names)
    loaded.close()


@pytest.mark.parametrize("mode", ["swap", "batch"])
def test_a_file_of_kohyas_comes_later(cuvilc, package, tmp_path) -> None:
    """Its names have underscores for dots; the package's tell where they were."""
    [peft] = import_module("cuvilc.import.lora").read_adapters(adapter(tmp_path / "chat", seed=4))
    values = {}
    for change in peft.changes:
        stem, low = f"lora_te_{change.path.replace('.', '_')}", change.low_rank
        values |= {f"{stem}.lora_down.weight": low.a, f"{stem}.lora_up.weight": low.b}
        values[f"{stem}.alpha"] = np.array(low.alpha, np.float32)
    files.write_file(tmp_path / "k.safetensors", values)
    told = cuvilc.ok("adapter", "inspect", "k.safetensors", "--base", "m.cuvil", "--json").data
    assert len(told["base"]["attached"]) == 2 and not told["base"]["left_over"]
    cuvilc.ok("adapter", "build", "k.safetensors", "--base", "m.cuvil", "-o", "k.cuvla")
    np.savez(tmp_path / "in.npz", x=X)
    run = ("run", "m.cuvil", "--inputs", "in.npz", "--outputs", "out.npz", "--use", "k.cuvla")
    cuvilc.ok(*run)
    found = np.load(tmp_path / "out.npz")["y"]
    assert not mismatch(found, expected(tmp_path / "chat").astype(np.float32))


def test_json_and_the_name(cuvilc, package, tmp_path) -> None:
    adapter(tmp_path / "chat")
    [made] = cuvilc.ok(
        "adapter", "build", "chat", "--base", "m.cuvil", "--name", "talk", "--json"
    ).data["adapters"]
    assert made["name"] == "talk" and made["path"] == "talk.cuvla"
    assert made["bytes"] == (tmp_path / "talk.cuvla").stat().st_size


def test_other_files_are_not_overwritten(cuvilc, package, tmp_path) -> None:
    build = ("adapter", "build", "chat", "--base", "m.cuvil", "-o")
    adapter(tmp_path / "chat")
    cuvilc.ok(*build, "c.cuvla")
    first = (tmp_path / "c.cuvla").read_bytes()
    adapter(tmp_path / "chat", seed=3)
    cuvilc.ok(*build, "c.cuvla")
    assert (tmp_path / "c.cuvla").read_bytes() != first
    before = (tmp_path / "m.onnx").read_bytes()
    result = cuvilc(*build, "m.onnx")
    check_golden("adapter-not-overwritten", f"{result.err}exit code {result.code}\n", tmp_path)
    assert (tmp_path / "m.onnx").read_bytes() == before
    for name in ("one", "two"):
        adapter(tmp_path / "both" / name)
    (tmp_path / "two.cuvla").write_text("mine")
    assert "two.cuvla exists" in refused(cuvilc, 2, "adapter", "build", "both", "--base", "m.cuvil")
    assert not (tmp_path / "one.cuvla").exists()
    assert not list(tmp_path.glob(".*new*"))


def test_a_package_without_room_for_adapters(cuvilc, tmp_path) -> None:
    model(tmp_path / "m.onnx")
    adapter(tmp_path / "sql")
    cuvilc.ok("build", "m.onnx", "--vectors", "0")
    assert "CUV762" in refused(cuvilc, 1, "adapter", "build", "sql", "--base", "m.cuvil")
    assert not list(tmp_path.glob("*.cuvla"))
    with pytest.raises(cuvil.CuvilError, match="CUV612"):
        cuvil.load(tmp_path / "m.cuvil").use("sql")


def test_what_the_package_cannot_exchange(cuvilc, tmp_path) -> None:
    model(tmp_path / "m.onnx")
    adapter(tmp_path / "sql", "q_proj")
    adapter(tmp_path / "more", "q_proj", "v_proj")
    options = ("--lora", "swap", "--lora-modules", "q_proj", "--vectors", "0")
    cuvilc.ok("build", "m.onnx", *options)
    room = r"  lora +swap: adapters may change \d+ parameters? of q_proj; fingerprint [0-9a-f]{8}\n"
    assert re.search(room, cuvilc.ok("inspect", "m.cuvil").out)
    cuvilc.ok("adapter", "build", "sql", "--base", "m.cuvil")
    error = refused(cuvilc, 1, "adapter", "build", "more", "--base", "m.cuvil")
    assert "CUV761" in error and "model.layers.0.v_proj" in error and "nearest" in error
    assert not (tmp_path / "more.cuvla").exists()


def test_a_quantised_weight_is_not_exchanged(cuvilc, tmp_path) -> None:
    model(tmp_path / "m.onnx", quantised=True)
    adapter(tmp_path / "sql")
    error = refused(cuvilc, 1, "build", "m.onnx", "--adapter", "sql", "--lora", "swap")
    assert "CUV760" in error and "model.layers.0.v_proj" in error
    assert not (tmp_path / "m.cuvil").exists()


@pytest.mark.parametrize(
    "options",
    [("--lora", "swap", "--target", "null"), ("--lora", "batch", "--precision", "bf16")],
)
def test_what_modes_do_not_go_with(cuvilc, tmp_path, options) -> None:
    model(tmp_path / "m.onnx")
    adapter(tmp_path / "sql")
    assert "CUV744" in refused(cuvilc, 2, "build", "m.onnx", "--adapter", "sql", *options)


def test_an_adapter_for_another_package_is_refused(cuvilc, package, tmp_path) -> None:
    cuvilc.ok("adapter", "build", "sql", "--base", "m.cuvil", "--name", "again")
    WEIGHTS["model.layers.0.q_proj"][0, 0] += 1
    try:
        model(tmp_path / "other.onnx")
    finally:
        WEIGHTS["model.layers.0.q_proj"][0, 0] -= 1
    cuvilc.ok("build", "other.onnx", "--lora", "swap", "--vectors", "0")
    other = cuvil.load(tmp_path / "other.cuvil")
    with pytest.raises(cuvil.CuvilError, match="CUV611.*built for another package"):
        other.load_adapter(tmp_path / "again.cuvla")
    assert other.adapters == ()
