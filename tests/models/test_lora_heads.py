"""New heads on models whose biases are all zeros, as before any training: exporters drop those, and
every mode puts the adapters' in their place. The truth is PEFT's own model in float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import pytest

from cuvilc.driver import BuildRequest, build
from cuvilc.driver_cuvla import build_adapters
from tests.tolerances import mismatch

pytest.importorskip("peft")
pytest.importorskip("transformers")

import torch
import transformers

from tests.models import lora_models

SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 80, "max_position_embeddings": 32, "attn_implementation": "eager",
    "pad_token_id": 0, "num_labels": 3,
}  # fmt: skip


def _bert(head: str, **options: Any) -> Any:
    config = transformers.BertConfig(**SMALL | options)
    return getattr(transformers, f"BertFor{head}Classification")(config)


def _roberta() -> Any:
    config = transformers.RobertaConfig(**SMALL)
    return transformers.RobertaForSequenceClassification(config)


def _gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=60, n_positions=32, n_embd=48, n_layer=2, n_head=4, num_labels=3,
        pad_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    return transformers.GPT2ForSequenceClassification(config)


# The task type alone makes PEFT save `classifier` and `score`.
ATTENTION = ["query", "value"]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sequence": (lambda: _bert("Sequence"), {"task_type": "SEQ_CLS", "target_modules": ATTENTION}),
    "one label": (lambda: _bert("Sequence", num_labels=1),
                  {"task_type": "SEQ_CLS", "target_modules": ATTENTION}),
    "token": (lambda: _bert("Token"), {"task_type": "TOKEN_CLS", "target_modules": ATTENTION}),
    "two layers": (_roberta, {"task_type": "SEQ_CLS", "target_modules": ATTENTION}),
    "all biases": (lambda: _bert("Sequence"), {"target_modules": ATTENTION, "bias": "all",
                                               "modules_to_save": ["classifier"]}),
    "biases alone": (lambda: _bert("Sequence"), {"target_modules": ["key"], "bias": "all"}),
    "score": (_gpt2, {"task_type": "SEQ_CLS", "target_modules": ["c_attn"],
                      "fan_in_fan_out": True}),
}  # fmt: skip


class Headed:
    """A base model as it was made, exported, and two adapters of it."""

    def __init__(self, case: str, folder: Path, dynamo: bool) -> None:
        make, self.options = CASES[case]
        torch.manual_seed(0)
        self.base, self.folder = make().eval(), folder
        for name, parameter in self.base.named_parameters():
            assert not name.endswith("bias") or not parameter.any()
        ids = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(1))
        self.x = ids
        plain = lora_models.Plain(self.base, "logits")
        lora_models.export_module(plain, ids, folder / "model.onnx", dynamo)
        self.truth = {
            name: lora_models.adapt_module(self.base, ids, folder / name, seed, 0.2, **self.options)
            for seed, name in enumerate(("one", "two"), 3)
        }

    def build(self, mode: str, *adapters: str) -> Path:
        package = self.folder / f"{mode}-{len(adapters)}.cuvil"
        return lora_models.package_of(self.folder, package, mode, adapters)

    def check(self, found: np.ndarray, wanted: np.ndarray) -> None:
        assert not mismatch(found, wanted.astype(np.float32))


@pytest.fixture(scope="module", params=list(CASES))
def headed(request: pytest.FixtureRequest, exporter: bool, tmp_path_factory: Any) -> Headed:
    return Headed(request.param, tmp_path_factory.mktemp("headed"), exporter)


def test_folded(headed: Headed) -> None:
    model = cuvil.load(headed.build("fold", "one"))
    headed.check(model.run({"x": headed.x.numpy()})["y"], headed.truth["one"])
    model.close()


def test_swapped(headed: Headed, tmp_path: Path) -> None:
    """One adapter of the package, one that comes later; the base is the base again."""
    package, feeds = headed.build("swap", "one"), {"x": headed.x.numpy()}
    plain = cuvil.load(_plain(headed))
    model = cuvil.load(package)
    before = model.run(feeds)["y"]
    headed.check(before, plain.run(feeds)["y"])
    [(_, data)] = build_adapters(headed.folder / "two", "two", package)
    (tmp_path / "two.cuvla").write_bytes(data)
    model.load_adapter(tmp_path / "two.cuvla")
    for name in ("one", "two", "one"):
        model.use(name)
        headed.check(model.run(feeds)["y"], headed.truth[name])
    model.use(None)
    assert np.array_equal(model.run(feeds)["y"], before)
    model.close()
    plain.close()


@pytest.mark.parametrize("known", [True, False])
def test_batched(headed: Headed, tmp_path: Path, known: bool) -> None:
    """Rows of both adapters; `known`: the package was built with the first."""
    if not known and headed.options.get("bias") == "all":
        pytest.skip("biases of norms are the build's adapters' alone")
    package = headed.build("batch", *(["one"] if known else []))
    feeds, model = {"x": headed.x.numpy()}, cuvil.load(package)
    for name in ("two",) if known else ("one", "two"):
        [(_, data)] = build_adapters(headed.folder / name, name, package)
        (tmp_path / f"{name}.cuvla").write_bytes(data)
        model.load_adapter(tmp_path / f"{name}.cuvla")
    plain = cuvil.load(_plain(headed))
    truth = {**headed.truth, None: plain.run(feeds)["y"]}
    for names in (("one", "two"), ("two", None), (None, "one"), (None, None)):
        found = model.run(feeds, adapters=list(names))["y"]
        for row, name in enumerate(names):
            headed.check(found[row], truth[name][row])
    model.close()
    plain.close()


def _plain(headed: Headed) -> Path:
    package = headed.folder / "plain.cuvil"
    if not package.exists():
        build(BuildRequest(headed.folder / "model.onnx", package, vectors=0))
    return package
