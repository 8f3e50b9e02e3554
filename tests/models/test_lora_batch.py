"""`--lora batch`: every row of a batch with an adapter of PEFT's of its own gives what PEFT gives
for that row.
"""

from __future__ import annotations

import threading
from itertools import product
from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import pytest

from cuvilc.diagnostics import CuvilError
from cuvilc.driver import BuildRequest, build
from cuvilc.driver_cuvla import build_adapters
from tests.tolerances import mismatch

pytest.importorskip("peft")
pytest.importorskip("transformers")

import torch

from tests.models import lora_models
from tests.models.test_lora_fold import CASES

MORE: list[tuple[str, str, dict[str, Any]]] = [
    ("bert", "dora table", {"r": 4, "target_modules": ["word_embeddings"], "use_dora": True}),
    ("bert", "lora only", {"target_modules": ["query", "dense"], "bias": "lora_only"}),
    ("bert", "saved in all", {"r": 2, "target_modules": ["value"], "bias": "all",
                              "modules_to_save": ["classifier", "pooler"]}),
    ("llama", "head", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    ("vit", "biases", {"r": 2, "target_modules": ["q_proj", "query"], "bias": "all"}),
]  # fmt: skip


class Batched:
    """A package with all adapters of a model's cases but one; what each gives for a row."""

    def __init__(self, name: str, folder: Path, dynamo: bool) -> None:
        self.name, self.folder = name, folder
        cases = [(c, o) for n, c, o in [*MORE, *CASES] if n == name]
        cases.sort(key=lambda case: "table" not in case[0])  # no later ones: no layer is there
        self.truth: dict[str | None, np.ndarray] = {}
        self.truth |= lora_models.prepared(name, folder, dynamo, cases)
        self.inside, self.later = [c for c, _ in cases[:-1]], cases[-1][0]
        self.package = folder / "batch.cuvil"
        self.report = build(
            BuildRequest(
                folder / "model.onnx",
                self.package,
                vectors=0,
                lora="batch",
                lora_modules="all-linear",
                adapters=[(folder / case, case) for case in self.inside],
            )
        )
        plain = folder / "plain.cuvil"
        build(BuildRequest(folder / "model.onnx", plain, vectors=0))
        self.feeds = {"x": lora_models.MODELS[name].input().numpy()}
        self.truth[None] = cuvil.load(plain).run(self.feeds)["y"]

    def file(self, case: str, folder: Path) -> Path:
        [(_, data)] = build_adapters(self.folder / case, case, self.package)
        (folder / f"{case}.cuvla").write_bytes(data)
        return folder / f"{case}.cuvla"

    def check(self, found: np.ndarray, names: tuple[str | None, ...]) -> None:
        for i, name in enumerate(names):
            assert not mismatch(found[i], self.truth[name][i].astype(np.float32)), (names, i)


@pytest.fixture(scope="module", params=["bert", "gpt2", "llama", "vit"])
def batched(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Batched:
    folder = tmp_path_factory.mktemp(request.param)
    return Batched(request.param, folder, dynamo=request.param != "bert")


@pytest.mark.parametrize("threads", [1, 2])
def test_every_row_is_that_of_its_adapter(batched: Batched, threads: int) -> None:
    model = cuvil.load(batched.package, threads=threads)
    assert [a.name for a in model.adapters] == batched.inside
    assert [p.name for p in model.inputs] == ["x"]
    first = model.run(batched.feeds)["y"]
    batched.check(first, (None, None))
    rows: dict[tuple[int, str | None], np.ndarray] = {}
    for names in product((None, *batched.inside), repeat=2):
        found = model.run(batched.feeds, adapters=names)["y"]
        batched.check(found, names)
        for i, name in enumerate(names):  # beside whom it is does not change a bit
            assert np.array_equal(found[i], rows.setdefault((i, name), found[i])), (names, i)
    assert np.array_equal(model.run(batched.feeds)["y"], first)
    model.close()


def test_tenants_and_pages(batched: Batched, tmp_path: Path) -> None:
    model = cuvil.load(batched.package)
    before, name = model.pages, batched.later
    assert before.adapters == len(batched.inside)
    file = batched.file(name, tmp_path)
    tenant, other = model.tenant("acme"), model.tenant("evil")
    tenant.load_adapter(file)
    once = model.pages
    assert once.pages > before.pages
    assert once.bytes == once.pages * once.page_bytes
    other.load_adapter(file, "same")
    twice = model.pages
    assert (twice.pages, twice.shared) == (once.pages, once.shared + once.pages - before.pages)
    assert [a.name for a in tenant.adapters] == [name]
    assert [a.name for a in model.tenant("evil").adapters] == ["same"]
    batched.check(tenant.run(batched.feeds, [name, None])["y"], (name, None))
    for run in (other.run, lambda f, names: model.run(f, adapters=names)):
        with pytest.raises(cuvil.CuvilError, match="there is no adapter"):
            run(batched.feeds, [name, name])
    with pytest.raises(cuvil.CuvilError, match="there is no adapter"):
        tenant.run(batched.feeds, [batched.inside[0], None])
    tenant.unload_adapter(name)
    assert model.pages.pages == once.pages
    batched.check(other.run(batched.feeds, ["same", "same"])["y"], (name, name))
    other.unload_adapter("same")
    assert model.pages == before
    model.close()


def test_wrong_batches(batched: Batched) -> None:
    model = cuvil.load(batched.package)
    name = batched.inside[0]
    with pytest.raises(cuvil.CuvilError, match="3 adapters are given for a batch of 2"):
        model.run(batched.feeds, adapters=[name, None, name])
    with pytest.raises(cuvil.CuvilError, match=r"a name or None, not 1 \(int\)"):
        model.run(batched.feeds, adapters=[name, 1])  # type: ignore[list-item]
    with pytest.raises(cuvil.CuvilError, match="--lora batch"):
        model.use(name)
    batched.check(model.run(batched.feeds, adapters=[name, None])["y"], (name, None))
    model.close()


def test_threads_load_and_unload_while_others_run(batched: Batched, tmp_path: Path) -> None:
    model = cuvil.load(batched.package, threads=1)
    file, name, inside = batched.file(batched.later, tmp_path), batched.later, batched.inside[0]
    wanted = model.run(batched.feeds, adapters=[inside, None])["y"]
    before, wrong = model.pages, list[str]()

    def come_and_go() -> None:
        tenant = model.tenant("acme")
        for _ in range(20):
            tenant.load_adapter(file)
            batched.check(tenant.run(batched.feeds, [None, name])["y"], (None, name))
            tenant.unload_adapter(name)

    def run() -> None:
        for _ in range(40):
            found = model.run(batched.feeds, adapters=[inside, None])["y"]
            if not np.array_equal(found, wanted):
                wrong.append("another result")

    def watched(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=watched, args=(w,)) for w in (come_and_go, run, run)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert model.pages == before
    model.close()


def test_files_are_what_the_package_has(batched: Batched, tmp_path: Path) -> None:
    """An adapter that comes later gives the very bits of one that was there."""
    model = cuvil.load(batched.package)
    tenant = model.tenant("acme")
    for name in batched.inside:
        before = model.pages.pages
        tenant.load_adapter(batched.file(name, tmp_path))
        assert model.pages.pages == before
        found = tenant.run(batched.feeds, [name, None])["y"]
        wanted = model.run(batched.feeds, adapters=[name, None])["y"]
        assert np.array_equal(found, wanted), name
    model.close()


def refused(tmp_path: Path, model: str, options: dict[str, Any]) -> str:
    """What `--lora batch` says of an adapter that it cannot take."""
    lora_models.export(model, tmp_path / "model.onnx", True)
    lora_models.adapt(model, tmp_path / "tuned", merges=False, **options)
    request = BuildRequest(
        tmp_path / "model.onnx", tmp_path / "p.cuvil", vectors=0, lora="batch",
        adapters=[(tmp_path / "tuned", "tuned")],
    )  # fmt: skip
    with pytest.raises(CuvilError) as caught:
        build(request)
    (found,) = caught.value.diagnostics
    assert found.code == "CUV744" and not request.output.exists()
    return found.message


REFUSED = [
    ("conv", {"target_modules": ["stem"]}, "the `weight` of `stem` is a convolution's"),
    ("bert", {"target_modules": ["query"], "modules_to_save": ["LayerNorm"]}, "is no bias"),
    ("bert", {"target_modules": ["query"], "modules_to_save": ["word_embeddings"]},
     "the table of an embedding, as a whole"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "options", "why"), REFUSED, ids=["conv", "norm", "table"])
def test_what_a_batch_cannot_take_is_refused(tmp_path, model, options, why) -> None:
    assert why in refused(tmp_path, model, options)


def test_a_layer_too_large_to_replace_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("cuvilc.driver_batch.MOST_RANK", 1)
    options = {"target_modules": ["query"], "modules_to_save": ["classifier"]}
    assert "of rank 2, of at most 1" in refused(tmp_path, "bert", options)


SIZES = [("llama", ("r8", "dora"), {0: "b", 1: "s"}), ("bert", ("table", "biases"), {0: "b"})]


@pytest.mark.parametrize(("name", "names", "axes"), SIZES, ids=["llama", "bert"])
def test_batches_of_any_size(tmp_path: Path, name: str, names: Any, axes: Any) -> None:
    """Batch and length known only when the model runs: each row as the folded package has it."""
    model = lora_models.MODELS[name]
    torch.onnx.export(
        model.callable(model.base()), (model.input(),), str(tmp_path / "model.onnx"),
        dynamo=False, input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: "b", 1: "s"}, "y": axes},
    )  # fmt: skip
    places = []
    for n, case, options in CASES:
        if n == name and case in names:
            lora_models.adapt(name, tmp_path / case, **options)
            places.append((tmp_path / case, case))
    packages: dict[str | None, Any] = {}
    for chosen in ([], *([p] for p in places)):
        package = tmp_path / f"{len(packages)}.cuvil"
        build(BuildRequest(tmp_path / "model.onnx", package, vectors=0, adapters=chosen))
        packages[chosen[0][1] if chosen else None] = cuvil.load(package)
    request = BuildRequest(
        tmp_path / "model.onnx", tmp_path / "batch.cuvil", vectors=0, lora="batch", adapters=places
    )
    build(request)
    batched = cuvil.load(tmp_path / "batch.cuvil")
    rng = np.random.default_rng(0)
    for batch, length in ((1, 1), (3, 7), (5, 1), (2, 20), (64, 1), (1, 30)):
        x = rng.integers(0, 60, (batch, length))
        rows = [[None, *names][i] for i in rng.integers(0, 3, batch)]
        found = batched.run({"x": x}, adapters=rows)["y"]
        for adapter, package in packages.items():
            wanted = package.run({"x": x})["y"]
            mine = [i for i, row in enumerate(rows) if row == adapter]
            assert not mismatch(found[mine], wanted[mine]), (batch, length, adapter)


def test_tables_and_biases_may_come_later(tmp_path: Path) -> None:
    """Where `--lora-modules` names them; each adapter alone, in a package that came without any."""
    lora_models.export("bert", tmp_path / "model.onnx", True)
    package = tmp_path / "p.cuvil"
    build(
        BuildRequest(tmp_path / "model.onnx", package, vectors=0, lora="batch",
                     lora_modules="word_embeddings,query,dense,classifier")
    )  # fmt: skip
    model, x = cuvil.load(package), lora_models.MODELS["bert"].input().numpy()
    later = ("dora table", "lora only", "table", "saved", "lora bias")
    for name, case, options in [*MORE, *CASES]:
        if name == "bert" and case in later:
            wanted = lora_models.adapt("bert", tmp_path / case, **options).astype(np.float32)
            [(_, data)] = build_adapters(tmp_path / case, case, package)
            (tmp_path / "a.cuvla").write_bytes(data)
            model.load_adapter(tmp_path / "a.cuvla")
            found = model.run({"x": x}, adapters=[None, case])["y"]
            assert not mismatch(found[1], wanted[1]), case
    assert len(model.adapters) == len(later)
    model.close()
    for options, code in (
        ({"target_modules": ["query"], "modules_to_save": ["word_embeddings"]}, "CUV744"),
        ({"target_modules": ["query"], "bias": "all"}, "CUV761"),
    ):
        lora_models.adapt("bert", tmp_path / code, merges=False, **options)
        with pytest.raises(CuvilError) as caught:
            build_adapters(tmp_path / code, code, package)
        assert caught.value.diagnostics[0].code == code


class Turned(torch.nn.Module):
    """A layer whose rows are not the batch: its first axis is another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x.transpose(0, 1)))


@pytest.mark.parametrize(
    ("length", "open_axes"), [(3, {0: "b", 1: "s"}), (3, {}), (2, {})],
    ids=["open", "fixed", "as long as the batch"],
)  # fmt: skip
def test_rows_that_are_not_the_batch_are_refused(
    tmp_path: Path, length: int, open_axes: dict[int, str]
) -> None:
    torch.onnx.export(
        Turned().eval(), (torch.zeros(2, length, 8),), str(tmp_path / "model.onnx"), dynamo=False,
        input_names=["x"], output_names=["y"], dynamic_axes={"x": open_axes},
    )  # fmt: skip
    request = BuildRequest(
        tmp_path / "model.onnx", tmp_path / "p.cuvil", vectors=0, lora="batch",
        lora_modules="all-linear",
    )  # fmt: skip
    with pytest.raises(CuvilError) as caught:
        build(request)
    (found,) = caught.value.diagnostics
    assert found.code == "CUV743"
    assert "not those of the batch after `" in found.message
    assert "(ai.transpose)" in found.message
    assert ("open batch axis, which is 2 now" in found.help) == (not open_axes)
    request.lora, request.lora_modules = "", ""
    assert build(request).package
