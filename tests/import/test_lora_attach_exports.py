"""Adapters by PEFT attach to what torch's exporters write: every site is the parameter."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.adapter import Adapter
from cuvilc.dialect.lora_sites import Sites

from .lora_graphs import array, convolution, linear, one, refused

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

attach = import_module("cuvilc.import.lora_attach")
lora = import_module("cuvilc.import.lora")
registry = import_module("cuvilc.import.registry")

# Of the matrices some are so small that the importer computes with them, and some are not.
WIDE, TALL, WORDS = 72, 40, 60


class Vision(torch.nn.Module):
    """Convolutions, one of them grouped, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = torch.nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.body = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), torch.nn.ReLU())
        self.again = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.body(self.depthwise(self.stem(x))).mean((2, 3))
        return self.head(torch.relu(self.again(torch.relu(self.again(x[None])))))


class Logits(torch.nn.Module):
    """A model of transformers whose first result alone counts."""

    def __init__(self, m: Any, masked: bool) -> None:
        super().__init__()
        self.m, self.masked = m, masked

    def forward(self, x: Any) -> Any:
        more = {"attention_mask": torch.ones_like(x)} if self.masked else {}
        return self.m(x, **more).logits


@dataclass
class Case:
    make: Callable[[], Any]
    options: dict[str, Any]  # of the adapter


def _text(name: str, **config: Any) -> Any:
    made = getattr(transformers, f"{name}Config")(vocab_size=WORDS, **config)
    head = "ForSequenceClassification" if name == "Bert" else "ForCausalLM"
    return getattr(transformers, f"{name}{'LMHeadModel' if name == 'GPT2' else head}")(made)


def _vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=WIDE, num_hidden_layers=2, num_attention_heads=2, intermediate_size=TALL,
        image_size=16, patch_size=8, num_labels=3,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


CASES = {
    "bert": Case(
        lambda: _text("Bert", hidden_size=WIDE, num_hidden_layers=2, num_attention_heads=2,
                      intermediate_size=TALL, max_position_embeddings=32, num_labels=3),
        {"target_modules": ["query", "key", "value", "dense", "word_embeddings"],
         "modules_to_save": ["classifier"], "bias": "lora_only"},
    ),
    "gpt2": Case(
        lambda: _text("GPT2", n_positions=32, n_embd=WIDE, n_layer=2, n_head=2, use_cache=False,
                      bos_token_id=0, eos_token_id=0),
        {"target_modules": ["c_attn", "c_proj", "c_fc", "wte"], "fan_in_fan_out": True,
         "modules_to_save": ["ln_f"]},
    ),
    "llama": Case(
        lambda: _text("Llama", hidden_size=WIDE, intermediate_size=TALL, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                      use_cache=False),
        {"target_modules": "all-linear", "modules_to_save": ["lm_head", "input_layernorm"]},
    ),
    "vit": Case(_vit, {"target_modules": ["q_proj", "v_proj", "fc1", "projection"],
                       "modules_to_save": ["classifier"], "bias": "all"}),
    "vision": Case(Vision, {"target_modules": ["stem", "body.0", "again", "head"],
                            "bias": "lora_only"}),
}  # fmt: skip
EXPORTERS = {
    "torchscript": {"dynamo": False},
    "dynamo": {"optimize": True},
    "raw": {"optimize": False},
}


# Exports take seconds: what the dynamo exporter's optimiser leaves is seen on some models.
EXPORTS = [
    (name, exporter)
    for name in CASES
    for exporter in EXPORTERS
    if exporter != "raw" or name in ("gpt2", "llama", "vision")
]


@cache
def base(name: str) -> Any:
    """The model with all parameters random: no two of them are equal."""
    torch.manual_seed(len(name))
    model = CASES[name].make().eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exports")


@pytest.fixture(scope="module")
def export(folder: Path) -> Callable[[str, str], Any]:
    """The imported program of a model by an exporter."""

    @cache
    def made(name: str, exporter: str) -> Any:
        vision = name in ("vit", "vision")
        example = torch.randn(2, 3, 16, 16) if vision else torch.randint(0, WORDS, (2, 7))
        model = base(name) if name == "vision" else Logits(base(name), not vision).eval()
        path = folder / f"{name}-{exporter}.onnx"
        options = {"dynamo": True, "verbose": False, **EXPORTERS[exporter]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if options["dynamo"] is False:
                options = {"dynamo": False, "opset_version": 17}
            torch.onnx.export(model, (example,), str(path), **options)
        return registry.load(path, registry.ImportOptions())

    return made


@pytest.fixture(scope="module")
def adapter(folder: Path) -> Callable[[str], Adapter]:
    """What PEFT saved, as it is read."""

    @cache
    def made(name: str) -> Adapter:
        place = folder / f"{name}-adapter"
        config = peft.LoraConfig(r=2, lora_alpha=4, **CASES[name].options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peft.get_peft_model(copy.deepcopy(base(name)), config).save_pretrained(place)
        (read,) = lora.read_adapters(place, "x")
        return read

    return made


def check(made: Any, name: str, adapter: Adapter, sites: Sites) -> None:
    """Every site holds the parameter of torch, in the layout that it says."""
    state = {n: t.detach().numpy() for n, t in base(name).state_dict().items()}
    flags = {c.path: c.fan_in_fan_out for c in adapter.changes}
    for site in sites:
        mine = state[f"{site.module}.{site.parameter}"]
        with made:
            value = made.constant_array(site.value)
            assert site.is_whole, site
        if site.kind == "linear":
            mine = mine.T if flags[site.module] else mine
            value = value.T if site.out_axis else value
        assert value.shape == mine.shape and np.array_equal(value, mine), site
        assert site.size == value.shape[1 if site.kind == "embedding" else 0]
        assert site.uses


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_every_site_is_the_parameter(
    name: str, exporter: str, export: Callable[..., Any], adapter: Callable[[str], Adapter]
) -> None:
    made, read = export(name, exporter), adapter(name)
    sites = attach.find_sites(made, [read])
    check(made, name, read, sites)
    parameters = {(s.module, s.parameter) for s in sites}
    for change in read.changes:
        wanted = {*change.replaced, *(["weight"] if change.low_rank else [])}
        assert {p for m, p in parameters if m == change.path} == wanted
    assert len(read.changes) >= 4


@pytest.mark.parametrize(("name", "exporter"), EXPORTS)
def test_values_alone_find_the_same(
    name: str, exporter: str, export: Callable[..., Any], adapter: Callable[[str], Adapter],
    folder: Path,
) -> None:  # fmt: skip
    """Without any name, the checkpoint's values lead to the same constants."""
    made, read = export(name, exporter), adapter(name)
    path = folder / f"{name}.safetensors"
    if not path.exists():
        from safetensors.torch import save_file

        save_file({n: t.clone().contiguous() for n, t in base(name).state_dict().items()}, path)
    with_names = attach.find_sites(made, [read], base_weights=path)
    scopes, reads = made.scopes, made.reads
    try:
        made.scopes, made.reads = {}, {}
        low = [c for c in read.changes if c.low_rank and not c.replaced]
        bare = Adapter("x", read.place, tuple(low), read.sha256)
        without = attach.find_sites(made, [bare], base_weights=path)
    finally:
        made.scopes, made.reads = scopes, reads
    own = {(s.module, s.parameter): s for s in with_names}
    for site in without:
        assert site.value == own[site.module, site.parameter].value


def test_a_layer_that_is_called_twice(
    export: Callable[..., Any], adapter: Callable[..., Any]
) -> None:
    for exporter in EXPORTERS:
        made = export("vision", exporter)
        own = attach.find_sites(made, [adapter("vision")]).numbered("again", "weight")
        assert sum(len(s.uses) for _, s in own) == 2, exporter


def test_equal_parameters_that_the_exporter_shares(folder: Path) -> None:
    """As transformers initialises a model, its biases are all zeros: one is kept for all."""
    torch.manual_seed(0)
    model = _vit().eval()
    path = folder / "shared.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Logits(model, False).eval(), (torch.randn(1, 3, 16, 16),), str(path), dynamo=False
        )
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "fc1"], bias="lora_only")
        peft.get_peft_model(model, config).save_pretrained(folder / "shared")
    made = registry.load(path, registry.ImportOptions())
    sites = attach.find_sites(made, lora.read_adapters(folder / "shared", "x"))
    biases = [s for s in sites if s.parameter == "bias"]
    assert len(biases) == 4
    with made:
        places = [str(operation.location) for s in biases for operation, _ in s.uses]
    assert len(places) == 4
    for site, place in zip(biases, places, strict=True):
        assert f"/m/{site.module.replace('.layers.', '/layers.')}".replace(
            ".", "/"
        ) in place.replace(".", "/")


class Normed(torch.nn.Module):
    """Layers with a BatchNormalization behind them, which exporters multiply into weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
        self.fc, self.bn1 = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)
        for norm in (self.bn, self.bn1):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Any) -> Any:
        return self.bn1(self.fc(self.bn(self.conv(x)).mean((2, 3))))


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"dynamo": False}, {"conv"}),
        ({"dynamo": False, "training": torch.onnx.TrainingMode.PRESERVE}, set()),
        ({"dynamo": True, "optimize": True, "verbose": False}, {"conv", "fc"}),
        ({"dynamo": True, "optimize": False, "verbose": False}, set()),
    ],
    ids=["torchscript", "torchscript-preserve", "dynamo", "dynamo-raw"],
)
def test_a_weight_with_a_normalisation_in_it_is_refused(
    tmp_path: Path, options: dict[str, Any], changed: set[str]
) -> None:
    torch.manual_seed(0)
    model = Normed().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.randn(2, 3, 8, 8),), str(tmp_path / "m.onnx"), **options)
    made = registry.load(tmp_path / "m.onnx", registry.ImportOptions())
    changes = {"conv": convolution("conv", 8, 3, 3, 3), "fc": linear("fc", 8, 8)}
    for name, change in changes.items():
        if name in changed:
            assert refused(made, change).code == "CUV724", name
        else:
            site = one(made, change)
            own = getattr(model, name).weight.detach().numpy()
            assert np.array_equal(array(made, site), own), name


def test_what_onnxruntime_made_of_an_export(
    export: Callable[..., Any], adapter: Callable[[str], Adapter], folder: Path
) -> None:
    """Its optimiser names nodes and weights anew; the paths within stay."""
    runtime = pytest.importorskip("onnxruntime")
    for name in ("bert", "vit"):
        export(name, "torchscript")
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(folder / f"{name}-optimised.onnx")
        runtime.InferenceSession(
            str(folder / f"{name}-torchscript.onnx"), options, providers=["CPUExecutionProvider"]
        )
        made = registry.load(folder / f"{name}-optimised.onnx", registry.ImportOptions())
        read = adapter(name)
        low = tuple(c for c in read.changes if c.kind in ("linear", "convolution"))
        own = Adapter("x", read.place, low, read.sha256)
        sites = attach.find_sites(made, [own])
        check(made, name, own, sites)
        assert len(sites) >= len(low)
