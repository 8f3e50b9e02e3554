"""`cuvilc build --adapter`: folding, what is shown of it, modes, what is refused."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import pytest

from cuvilc.cli_options import read_adapters
from cuvilc.open_package import open_package

from .helpers import Cuvilc, check_golden

files = import_module("tests.import.lora_files")  # the folder is named by a keyword
builders = import_module("tests.import.builders")
graphs = import_module("tests.import.lora_graphs")

PATH, K, N = "l.0.q_proj", 3, 4
NULL = ("--target", "null", "--vectors", "1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Here: model.onnx, y = x · W of one layer, and adapters `sql` and `chat` of that layer."""
    monkeypatch.chdir(tmp_path)
    values = files.pair(PATH, 2, K, N)
    for number, name in enumerate(("sql", "chat")):
        files.write(
            tmp_path / name, {n: v * (1 + number) for n, v in values.items()},
            target_modules=["q_proj"],
        )  # fmt: skip
    node = graphs.node("MatMul", f"x {PATH}.weight", "y", f"/{PATH.replace('.', '/')}/MatMul")
    weights = {f"{PATH}.weight": graphs.values(K, N)}
    builders.saved(
        tmp_path, builders.model([node], [builders.tensor("x", ["b", K])], ["y"], weights)
    )
    return tmp_path


def merged(*gains: float) -> np.ndarray:
    """W with the adapters in it: scale alpha / r = 2."""
    a, b = (v.astype(np.float64) for v in files.pair(PATH, 2, K, N).values())
    delta: np.ndarray = sum(g * g for g in gains) * 2 * (b @ a).T
    return graphs.values(K, N) + delta


def outputs(package: str) -> np.ndarray:
    """The rows of what the package multiplies by."""
    model = open_package(Path(package))
    found: np.ndarray = model.run({"x": np.eye(K, dtype=np.float32)})["y"]
    model.close()
    return found


def test_fold_is_the_default(cuvilc: Cuvilc, folder: Path) -> None:
    shown = cuvilc.ok("build", "model.onnx", "--adapter", "sql", "-o", "one.cuvil", *NULL).out
    assert "adapters sql: fold, 1 modules, rank 2, rounding error up to " in shown
    np.testing.assert_allclose(outputs("one.cuvil"), merged(1), rtol=1e-6)
    cuvilc.ok("verify", "one.cuvil")


def test_verify_against_base_and_adapter(cuvilc: Cuvilc, folder: Path) -> None:
    cuvilc.ok("build", "model.onnx", "--adapter", "sql", "-o", "one.cuvil", *NULL)
    against = ("verify", "one.cuvil", "--against", "model.onnx")
    cuvilc.ok(*against, "--adapter", "sql", "--dim", "b=3")
    for named in (["chat"], ["sql", "chat"]):
        other = cuvilc(*against, *(word for name in named for word in ("--adapter", name)))
        assert (other.code, other.out) == (1, "")
    check_golden("verify-other-adapter", f"{other.err}exit code 1\n", folder)
    config = folder / "sql" / "adapter_config.json"
    text = config.read_text()
    config.write_text(text.replace('"lora_alpha": 4', '"lora_alpha": 40'))
    assert "out of tolerance" in cuvilc(*against, "--adapter", "sql").err  # its tensors, scaled
    config.write_text(text)
    (folder / "sql").rename(folder / "moved")
    cuvilc.ok(*against, "--adapter", "moved:other")  # the same under another name
    (folder / "moved").rename(folder / "sql")
    assert cuvilc("verify", "one.cuvil", "--adapter", "sql").code == 2  # of which base?
    bare = cuvilc(*against)
    assert bare.code == 2 and "sql is folded into this package" in bare.err
    cuvilc.ok("build", "model.onnx", "-o", "base.cuvil", *NULL)
    given = cuvilc("verify", "base.cuvil", "--against", "model.onnx", "--adapter", "sql")
    assert given.code == 2 and "no adapter is folded into this package" in given.err


def test_several_are_summed_up(cuvilc: Cuvilc, folder: Path) -> None:
    both = ("--adapter", "sql", "--adapter", "chat:talk", "--lora", "fold")
    cuvilc.ok("build", "model.onnx", *both, "-o", "two.cuvil", *NULL)
    np.testing.assert_allclose(outputs("two.cuvil"), merged(1, 2), rtol=1e-6)
    adapters = cuvilc.ok("inspect", "two.cuvil", "--json").data["metadata"]["adapters"]
    assert [(a["name"], a["mode"], a["ranks"]) for a in adapters] == [
        ("sql", "fold", [2]), ("talk", "fold", [2])
    ]  # fmt: skip
    (weight,) = adapters[0]["weights"]
    assert weight["modules"] == [PATH] and 0 < weight["max_error"] < 1e-7
    assert f"{PATH}.weight" in cuvilc.ok("inspect", "two.cuvil", "--all").out


def test_dumps_show_the_adapter_until_it_is_merged(cuvilc: Cuvilc, folder: Path) -> None:
    cuvilc.ok(
        "build", "model.onnx", "--adapter", "sql", "--dump-ir", "ir", "--stop-after", "optimise"
    )
    texts = {p.name[3:-5]: p.read_text() for p in (folder / "ir").iterdir()}
    assert '"ai.lora"' in texts["import"] and f'module = "{PATH}"' in texts["import"]
    assert '"ai.lora"' not in texts["merge-lora"] and f"{PATH}.weight+sql" in texts["merge-lora"]


def test_dry_run_compares_the_modes(cuvilc: Cuvilc, folder: Path) -> None:
    shown = cuvilc.ok("build", "model.onnx", "--adapter", "sql", "--dry-run").out
    table = shown[shown.index("  adapters") :]
    check_golden("dry-run-adapters", re.sub(r" {2,}|─+", "  ", table), folder)
    several = ("--adapter", "sql", "--adapter", "chat", "--dry-run", "--json")
    lora = cuvilc.ok("build", "model.onnx", *several).data["program"]["lora"]
    elements = 2 * (K + N)
    assert lora["adapters"] == ["sql", "chat"] and lora["base_row_flops"] == 2 * K * N
    assert lora["changed_bytes"] == 4 * K * N
    batch, swap = lora["modes"]["batch"], lora["modes"]["swap"]
    assert batch["row_flops"] == 2 * elements and batch["package_bytes"] == 2 * 4 * elements
    assert swap["memory_bytes"] == 2 * 4 * elements + 2 * 4 * K * N and swap["row_flops"] == 0
    assert 0.005 <= swap["swap_ms"] < 0.01  # of a few bytes: what every swap takes
    assert lora["recommended"] == "swap"  # 2.3 times the base's work would be much for a batch


def test_dry_run_of_weights_that_travel_whole(cuvilc: Cuvilc, folder: Path) -> None:
    """As bfloat16 they are exchanged, not merged: what it says is what the package then has."""
    options = ("--adapter", "sql", "--adapter", "chat", "--precision", "bf16", "--lora", "swap")
    lora = cuvilc.ok("build", "model.onnx", *options, "--dry-run", "--json").data["program"]["lora"]
    swap = lora["modes"]["swap"]
    assert lora["changed_bytes"] == 2 * K * N
    assert swap["package_bytes"] == swap["memory_bytes"] == 2 * 2 * K * N
    assert swap["swap_ms"] == 0.005  # no work: a flip
    cuvilc.ok("build", "model.onnx", *options, "-o", "p.cuvil")
    model = cuvil.load(folder / "p.cuvil")
    held = sum(a.bytes for a in model.adapters)
    assert swap["package_bytes"] <= held < swap["package_bytes"] + 2048  # names and offsets
    model.close()


def test_dry_run_of_a_batch_tells_the_arena_at_a_typical_rank(cuvilc: Cuvilc, folder: Path) -> None:
    shown = cuvilc.ok("build", "model.onnx", "--adapter", "sql", "--lora", "batch", "--dry-run").out
    arena = re.search(r"^  arena +(.*)$", shown, re.MULTILINE)
    assert arena and re.fullmatch(r"\S+ \S+ at b=1 \([^_]+\)", arena[1])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lora-unknown-mode", ["--adapter", "sql", "--lora", "melt"]),
        ("lora-nothing-to-fold", ["--lora", "fold"]),
        ("lora-no-mode", ["--adapter", "sql", "--adapter", "chat"]),
        ("lora-one-name", ["--adapter", "sql", "--adapter", "chat:sql", "--lora", "fold"]),
        ("lora-map-alone", ["--adapter-map", "map.json"]),
        ("lora-modules-of-fold", ["--adapter", "sql", "--lora-modules", "q_proj"]),
        ("adapter-name", ["--adapter", "sql:two words"]),
    ],
)
def test_refused(cuvilc: Cuvilc, folder: Path, name: str, options: list[str]) -> None:
    result = cuvilc("build", "model.onnx", *options)
    assert result.code == 2
    check_golden(name, result.err + f"exit code {result.code}\n", folder)


def test_a_path_with_a_colon(folder: Path) -> None:
    (folder / "a:b").mkdir()
    assert read_adapters(["a:b", "a:b:c", "x:y"]) == (
        (Path("a:b"), ""), (Path("a:b"), "c"), (Path("x"), "y")
    )  # fmt: skip


BOTH = ("build", "model.onnx", "--adapter", "sql", "--adapter", "chat")


def _dry(cuvilc: Cuvilc, *options: str) -> tuple[dict[str, Any], str]:
    """What a dry run says of the modes, and the table as it is shown."""
    shown = cuvilc.ok(*BOTH, *options, "--dry-run").out
    costs: dict[str, Any] = cuvilc.ok(*BOTH, *options, "--dry-run", "--json").data["program"][
        "lora"
    ]
    return costs, re.sub(r" {2,}", "  ", shown[shown.index("  adapters") :])


def _apart(folder: Path, how: str) -> None:
    """Adapters that cannot be folded together: two that replace the weight, or of DoRA."""
    for seed, name in enumerate(("sql", "chat")):
        if how == "CUV742":
            key, value = f"{files.PREFIX}{PATH}.weight", graphs.values(N, K, seed=seed)
            files.write(folder / name, {key: value}, modules_to_save=["q_proj"])
        else:
            gain = {f"{files.PREFIX}{PATH}.lora_magnitude_vector": np.ones(N, np.float32)}
            tensors = files.pair(PATH, 2, K, N) | gain
            files.write(folder / name, tensors, target_modules=["q_proj"], use_dora=True)


@pytest.mark.parametrize("code", ["CUV740", "CUV742"])
def test_dry_run_where_folding_is_refused(cuvilc: Cuvilc, folder: Path, code: str) -> None:
    _apart(folder, code)
    for options in ((), ("--lora", "swap"), ("--lora", "batch")):
        costs, shown = _dry(cuvilc, *options)
        assert costs["recommended"] == "swap"
        fold = costs["modes"]["fold"]
        assert fold["not_possible"]["code"] == code and fold["package_bytes"] is None
        assert "\n fold  not possible  –  –  –  –\n" in shown
        assert f"  fold  not possible ({code}): `" in shown
        assert "not possible" not in shown.replace(" fold  not possible", "")
    refused = cuvilc(*BOTH, "--lora", "fold", "--dry-run")
    assert refused.code == 1 and code in refused.err
    assert code != "CUV742" or "help: `--lora swap` keeps them apart" in refused.err


def test_dry_run_where_nothing_is_possible(cuvilc: Cuvilc, folder: Path) -> None:
    _apart(folder, "CUV742")
    refused = cuvilc(*BOTH, "--target", "null", "--dry-run")
    assert refused.code == 1 and "CUV742" in refused.err


def test_dry_run_where_rows_are_not_the_batch(
    cuvilc: Cuvilc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuvilc.driver_lora_costs._SHORT_BATCH", 100)
    costs, shown = _dry(cuvilc)
    assert costs["recommended"] == "batch" and "not possible" not in shown
    layer = graphs.node("MatMul", f"t {PATH}.weight", "y", f"/{PATH.replace('.', '/')}/MatMul")
    nodes = [graphs.node("Transpose", "x", "t", "turn", perm=[1, 0, 2]), layer]
    weights = {f"{PATH}.weight": graphs.values(K, N)}
    builders.saved(
        folder, builders.model(nodes, [builders.tensor("x", ["b", "t", K])], ["y"], weights)
    )
    for options in ((), ("--lora", "swap"), ("--lora", "fold")):
        costs, shown = _dry(cuvilc, *options)
        assert costs["recommended"] == "swap" and "`batch` is not possible" in costs["why"]
        assert costs["modes"]["batch"]["not_possible"]["code"] == "CUV743"
        assert "after `turn` (ai.transpose)" in " ".join(shown.split())
    assert "CUV743" in cuvilc(*BOTH, "--lora", "batch", "--dry-run").err
