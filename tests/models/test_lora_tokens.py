"""`trainable_token_indices`: rows of an embedding that PEFT trains, and of what is tied to it, in
every mode. The truth is PEFT's own model in float64.
"""

from __future__ import annotations

import warnings
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
import transformers

from tests.models import lora_models

IDS = torch.randint(0, 60, (2, 9), generator=torch.Generator().manual_seed(1))
USED = sorted(set(IDS.flatten().tolist()))[:3]
BOTH = [*USED, 59]


def _llama(tied: bool) -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=60, hidden_size=48, intermediate_size=80, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
            tie_word_embeddings=tied, attn_implementation="eager",
        )
    )  # fmt: skip


CASES: dict[str, tuple[bool, Any]] = {
    "of the input": (False, USED),
    "of both": (False, {"embed_tokens": USED, "lm_head": [4, 59]}),
    "tied": (True, BOTH),
    "tied, said of both": (True, {"embed_tokens": BOTH, "lm_head": BOTH}),
    "tied, but apart": (True, {"embed_tokens": USED, "lm_head": [4, 59]}),
    "tied, of the head alone": (True, {"lm_head": [4, 59]}),
}  # fmt: skip


class Trained:
    """A model and two adapters of it: one with rows and LoRA, one with LoRA alone."""

    def __init__(self, folder: Path, tied: bool, indices: Any, dynamo: bool) -> None:
        torch.manual_seed(0)
        self.base, self.folder, self.indices = _llama(tied).eval(), folder, indices
        plain = lora_models.Plain(self.base, "logits")
        lora_models.export_module(plain, IDS, folder / "model.onnx", dynamo)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.truth = {
                "rows": self._adapt("rows", trainable_token_indices=indices),
                "plain": self._adapt("plain"),
            }

    def _adapt(self, name: str, **options: Any) -> np.ndarray:
        options |= {"r": 2, "target_modules": ["q_proj"]}
        found = lora_models.adapt_module(
            self.base, IDS, self.folder / name, len(name), 0.3, **options
        )
        return found.astype(np.float32)

    def build(self, mode: str, *names: str) -> Path:
        return lora_models.package_of(self.folder, self.folder / f"{mode}.cuvil", mode, names)


@pytest.fixture(scope="module", params=list(CASES))
def trained(request: pytest.FixtureRequest, exporter: bool, tmp_path_factory: Any) -> Trained:
    return Trained(tmp_path_factory.mktemp("tokens"), *CASES[request.param], exporter)


FEEDS = {"x": IDS.numpy()}


def test_folded(trained: Trained) -> None:
    model = cuvil.load(trained.build("fold", "rows"))
    assert not mismatch(model.run(FEEDS)["y"], trained.truth["rows"])
    model.close()


def test_swapped(trained: Trained) -> None:
    model = cuvil.load(trained.build("swap", "rows", "plain"))
    before = model.run(FEEDS)["y"]
    for name in ("rows", "plain", "rows"):
        model.use(name)
        assert not mismatch(model.run(FEEDS)["y"], trained.truth[name]), name
    model.use(None)
    assert np.array_equal(model.run(FEEDS)["y"], before)
    assert mismatch(before, trained.truth["rows"])
    model.close()


def test_batched(trained: Trained) -> None:
    model = cuvil.load(trained.build("batch", "rows", "plain"))
    before = model.run(FEEDS)["y"]
    for names in (["rows", "plain"], ["plain", "rows"], [None, "rows"]):
        found = model.run(FEEDS, adapters=names)["y"]
        for row, name in enumerate(names):
            wanted = before if name is None else trained.truth[name]
            assert not mismatch(found[row], wanted[row]), names
    model.close()


@pytest.mark.parametrize("mode", ["swap", "batch"])
def test_for_a_package_that_was_there_before(trained: Trained, tmp_path: Path, mode: str) -> None:
    """What is tied to the embedding follows; where the package cannot change that, it is told."""
    package = tmp_path / "p.cuvil"
    request = BuildRequest(trained.folder / "model.onnx", package, vectors=0, lora=mode,
                           lora_modules="q_proj,embed_tokens,lm_head")  # fmt: skip
    build(request)
    [(_, data)] = build_adapters(trained.folder / "rows", "rows", package)
    (tmp_path / "rows.cuvla").write_bytes(data)
    model = cuvil.load(package)
    model.load_adapter(tmp_path / "rows.cuvla")
    if mode == "swap":
        model.use("rows")
    found = model.run(FEEDS, **({} if mode == "swap" else {"adapters": ["rows", "rows"]}))["y"]
    assert not mismatch(found, trained.truth["rows"])
    model.close()
    request.lora_modules = "q_proj,embed_tokens"
    build(request)
    if trained.indices == USED:  # nothing of the head
        assert build_adapters(trained.folder / "rows", "rows", package)
        return
    with pytest.raises(CuvilError, match="lm_head") as caught:
        build_adapters(trained.folder / "rows", "rows", package)
    assert caught.value.diagnostics[0].code == "CUV761"
