"""Adapters that PEFT made are read as PEFT itself means them: its merge in float64 is the truth."""

from __future__ import annotations

import json
import random
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")

import torch
from torch import nn

from cuvilc.adapter import Adapter

from .lora_nets import KINDS, adapted, delta, merged, weights_of

lora = import_module("cuvilc.import.lora")

EVERY: dict[str, dict[str, Any]] = {
    "linear": {"r": 4, "target_modules": ["q_proj"]},
    "every kind of layer": {"r": 4, "lora_alpha": 7, "target_modules": KINDS},
    "rank 1": {"r": 1, "target_modules": KINDS},
    "rank above the sizes": {"r": 64, "target_modules": ["q_proj", "conv2", "embed"]},
    "stabilised": {"r": 8, "lora_alpha": 3, "use_rslora": True, "target_modules": KINDS},
    "dora": {"r": 4, "use_dora": True, "target_modules": KINDS},
    "dora, stabilised": {"r": 5, "use_dora": True, "use_rslora": True, "target_modules": KINDS},
    "fan in, fan out": {"r": 4, "fan_in_fan_out": True, "target_modules": ["c_attn"]},
    "fan in, fan out, dora": {
        "r": 4, "fan_in_fan_out": True, "use_dora": True, "target_modules": ["c_attn"],
    },
    "bias of B": {"r": 4, "lora_bias": True, "target_modules": ["q_proj", "conv1", "c_attn"]},
    "all biases": {"r": 4, "bias": "all", "target_modules": ["q_proj", "conv2"]},
    "LoRA's biases": {"r": 4, "bias": "lora_only", "target_modules": ["q_proj", "v_proj"]},
    "modules to save": {
        "r": 4, "target_modules": ["q_proj"], "modules_to_save": ["classifier", "batch_norm"],
    },
    "modules to save, all biases": {
        "r": 4, "bias": "all", "target_modules": ["q_proj"],
        "modules_to_save": ["classifier", "batch_norm"],
    },
    "an expression": {"r": 4, "target_modules": r"layers\.[02]\.(q|k)_proj"},
    "all linear": {"r": 4, "target_modules": "all-linear"},
    "some layers": {"r": 4, "target_modules": ["q_proj", "v_proj"], "layers_to_transform": [0, 2],
                    "layers_pattern": "layers"},
    "one layer": {"r": 4, "target_modules": ["v_proj"], "layers_to_transform": 1,
                  "layers_pattern": ["blocks", "layers"]},
    "without some": {"r": 4, "target_modules": ["q_proj", "v_proj"],
                     "exclude_modules": ["layers.1.q_proj"]},
    "without some, an expression": {"r": 4, "target_modules": ["q_proj", "v_proj"],
                                    "exclude_modules": r".*\.1\..*"},
    "patterns": {
        "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "conv2"],
        "rank_pattern": {"layers.0.q_proj": 2, r"^layers\.1.*": 6, "conv2": 3, "k_proj": 1},
        "alpha_pattern": {"q_proj": 5, r"layers\.\d\.v_proj": 9},
    },
    "patterns, stabilised": {
        "r": 4, "target_modules": ["q_proj", "v_proj"], "use_rslora": True,
        "rank_pattern": {"q_proj|v_proj": 9}, "alpha_pattern": {"0.v_proj": 2},
    },
    "started otherwise": {"r": 4, "init_lora_weights": "gaussian", "target_modules": ["q_proj"]},
    "orthogonal": {"r": 4, "init_lora_weights": "orthogonal", "target_modules": ["q_proj"]},
    "dropout": {"r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj"]},
}  # fmt: skip


def agrees(adapter: Adapter, model: Any) -> None:
    """Each module of the adapter gives what PEFT merges; all others stay as they are."""
    model = model.double().eval()
    base = weights_of(base_state(model))
    wanted = weights_of(model.merge_and_unload().state_dict())
    left = dict(base)
    for change in adapter.changes:
        head = f"{change.path}."
        own = {n.removeprefix(head): w for n, w in base.items() if n.startswith(head)}
        for name, value in merged(change, own).items():
            np.testing.assert_allclose(
                value, wanted[head + name], rtol=1e-11, atol=1e-12, err_msg=head + name
            )
            left.pop(head + name)
    for name, value in left.items():
        if "num_batches" not in name:
            np.testing.assert_array_equal(value, wanted[name], err_msg=f"{name} was left out")


def base_state(model: Any) -> dict[str, torch.Tensor]:
    from peft import get_base_model_state_dict

    state = get_base_model_state_dict(model)
    return {n.replace(".original_module.", "."): t.clone() for n, t in state.items()}


@pytest.mark.parametrize("case", EVERY)
def test_every_option(case: str, tmp_path: Path) -> None:
    model = adapted(**EVERY[case])
    model.save_pretrained(tmp_path)
    (adapter,) = lora.read_adapters(tmp_path, "mine")
    assert adapter.name == "mine" and adapter.changes
    agrees(adapter, model)


@pytest.mark.parametrize("seed", range(40))
def test_random_configurations(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    kinds = draw.sample(KINDS, draw.randint(1, len(KINDS)))
    options: dict[str, Any] = {
        "r": draw.randint(1, 9),
        "lora_alpha": draw.choice([1, 3, 16, 0.5]),
        "use_rslora": draw.random() < 0.5,
        "bias": draw.choice(["none", "none", "all", "lora_only"]),
        "target_modules": kinds,
        "rank_pattern": {k: draw.randint(1, 7) for k in kinds if draw.random() < 0.4},
        "alpha_pattern": {f"layers.{draw.randint(0, 2)}.{k}": draw.randint(1, 40)
                          for k in kinds if draw.random() < 0.4},
    }  # fmt: skip
    options["fan_in_fan_out"] = kinds == ["c_attn"]
    biased = not {"embed", "v_proj"} & set(kinds)
    options["lora_bias"] = biased and draw.random() < 0.4
    options["use_dora"] = not options["lora_bias"] and draw.random() < 0.4
    if draw.random() < 0.4:
        options["modules_to_save"] = ["classifier"]
    model = adapted(seed, **options)
    model.save_pretrained(tmp_path)
    agrees(lora.read_adapters(tmp_path)[0], model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_tensors_keep_their_values(dtype: torch.dtype, tmp_path: Path) -> None:
    model = adapted(dtype=dtype, r=4, target_modules=KINDS)
    model.save_pretrained(tmp_path)
    (adapter,) = lora.read_adapters(tmp_path)
    assert {str(c.low_rank.a.dtype) for c in adapter.changes} == {str(dtype).split(".")[1]}
    agrees(adapter, model)


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    adapted(r=4, target_modules=KINDS).save_pretrained(tmp_path)
    (adapter,) = lora.read_adapters(tmp_path)
    for change in adapter.changes:
        assert not change.low_rank.a.flags.owndata and not change.low_rank.a.flags.writeable


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def test_a_grouped_convolution_has_a_dense_change(tmp_path: Path) -> None:
    """PEFT cannot merge it; what it computes is the layer plus a dense convolution."""
    model = adapted(net=Grouped, r=4, lora_alpha=6, target_modules=["conv"])
    model.save_pretrained(tmp_path)
    (change,) = lora.read_adapters(tmp_path)[0].changes
    model = model.double().eval()
    x = torch.rand(2, 4, 5, 5, dtype=torch.float64)
    layer = model.base_model.model.conv.base_layer
    added = nn.functional.conv2d(x, torch.from_numpy(delta(change)), padding=1)
    np.testing.assert_allclose((layer(x) + added).detach(), model(x).detach(), rtol=1e-11)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2)


def test_attention_of_torch_is_two_modules(tmp_path: Path) -> None:
    model = adapted(net=Attention, r=4, target_modules=["attn"])
    model.save_pretrained(tmp_path)
    inner, outer = lora.read_adapters(tmp_path)[0].changes
    assert (inner.path, outer.path) == ("attn", "attn.out_proj")
    model = model.double().eval()
    x = torch.rand(3, 2, 8, dtype=torch.float64)
    wanted = model.base_model.model.attn(x, x, x)[0]
    plain = Attention().double().eval()
    state = base_state(model)
    for name, change in (("attn.in_proj_weight", inner), ("attn.out_proj.weight", outer)):
        state[name] = state[name].double() + torch.from_numpy(delta(change))
    plain.load_state_dict(state)
    np.testing.assert_allclose(plain.attn(x, x, x)[0].detach(), wanted.detach(), rtol=1e-10)


def llama(tied: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=32, tie_word_embeddings=tied,
        )
    )  # fmt: skip


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32, n_positions=16,
                        bos_token_id=0, eos_token_id=0)  # fmt: skip
    return GPT2LMHeadModel(config)


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    return BertForSequenceClassification(BertConfig(num_attention_heads=4, vocab_size=32, **sizes))


def velora() -> Any:
    from peft.tuners.lora.config import VeloraConfig

    return VeloraConfig(num_groups=2)


TRANSFORMERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Llama, embedding and head": (
        lambda: llama(False), {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "Llama, tied": (
        lambda: llama(True), {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
    "Llama, tied and saved": (
        lambda: llama(True), {"target_modules": "all-linear", "modules_to_save": ["embed_tokens"],
                              "ensure_weight_tying": True}),
    "Llama, VeLoRA": (
        lambda: llama(False), {"target_modules": ["q_proj"], "velora_config": velora}),
    "Llama, MiCA": (
        lambda: llama(False), {"target_modules": ["q_proj"], "init_lora_weights": "mica"}),
    "GPT-2": (
        gpt2, {"target_modules": ["c_attn", "c_proj", "wte"], "fan_in_fan_out": True,
               "bias": "all"}),
    "BERT with a classifier": (
        bert, {"target_modules": ["query", "value"], "task_type": "SEQ_CLS",
               "bias": "lora_only"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_models_of_transformers_compute_the_same(name: str, tmp_path: Path) -> None:
    """The base model with our merge gives what PEFT computes without merging."""
    from peft import LoraConfig, get_peft_model

    make, options = TRANSFORMERS[name]
    options = {k: v() if v is velora else v for k, v in options.items()}
    torch.manual_seed(0)
    model = get_peft_model(make(), LoraConfig(r=4, **options))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.uniform_(-0.5, 0.5)
    model.save_pretrained(tmp_path)
    (adapter,) = lora.read_adapters(tmp_path)
    model = model.double().eval()
    base = make().double().eval()
    base.load_state_dict(base_state(model))
    if hasattr(base, "lm_head"):  # each of two that were tied has a change of its own
        base.lm_head.weight = nn.Parameter(base.lm_head.weight.detach().clone())
    for change in adapter.changes:
        module = base.get_submodule(change.path)
        own = {n: t.detach().numpy() for n, t in module.state_dict().items()}
        flip = change.fan_in_fan_out and change.kind == "linear"
        if flip:
            own["weight"] = own["weight"].T
        after = merged(change, own)
        if flip:
            after["weight"] = after["weight"].T
        for parameter, value in after.items():
            getattr(module, parameter).data = torch.from_numpy(value.copy())
    ids = torch.tensor([[1, 2, 3, 4]])
    wanted, found = model(input_ids=ids).logits, base(input_ids=ids).logits
    np.testing.assert_allclose(found.detach(), wanted.detach(), rtol=1e-10, atol=1e-12)


def test_several_adapters_of_one_folder(tmp_path: Path) -> None:
    from peft import LoraConfig

    model = adapted(r=4, target_modules=["q_proj"])
    model.add_adapter("sql", LoraConfig(r=2, target_modules=["v_proj"]))
    model.save_pretrained(tmp_path / "mine")
    first, second = lora.read_adapters(tmp_path / "mine")
    assert (first.name, second.name) == ("mine", "sql")
    assert {c.path.rpartition(".")[2] for c in second.changes} == {"v_proj"}
    (chosen,) = lora.read_adapters(tmp_path / "mine", "sql")
    assert chosen.sha256 == second.sha256 != first.sha256


def test_old_spellings_are_read(tmp_path: Path) -> None:
    """The adapter's name within names, the magnitude with `.weight`, an older modules_to_save."""
    from safetensors.numpy import load_file, save_file

    options = {"r": 4, "use_dora": True, "target_modules": ["q_proj", "embed"],
               "modules_to_save": ["classifier"]}  # fmt: skip
    adapted(**options).save_pretrained(tmp_path)
    (new,) = lora.read_adapters(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    renamed = {}
    for name, value in load_file(file).items():
        name = name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")
        for end in ("lora_embedding_A", "lora_embedding_B"):
            name = name.replace(end, f"{end}.default")
        name = name.replace("magnitude_vector", "magnitude_vector.default.weight")
        name = name.replace("classifier.", "classifier.modules_to_save.default.")
        renamed[name] = value
    save_file(renamed, file)
    (old,) = lora.read_adapters(tmp_path)
    assert [c.path for c in old.changes] == [c.path for c in new.changes]
    for a, b in zip(old.changes, new.changes, strict=True):
        assert set(a.replaced) == set(b.replaced)
        if a.low_rank is not None:
            np.testing.assert_array_equal(a.low_rank.magnitude, b.low_rank.magnitude)


def test_resized_embeddings_come_with_the_adapter(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    adapted(r=4, target_modules=["q_proj"]).save_pretrained(tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    table = np.ones((12, 6), np.float32)
    save_file({**load_file(file), "base_model.model.model.embed_tokens.weight": table}, file)
    (adapter,) = lora.read_adapters(tmp_path)
    change = next(c for c in adapter.changes if c.path == "model.embed_tokens")
    assert change.replaced["weight"].shape == (12, 6) and change.low_rank is None


def test_a_square_weight_of_gpt2_saved_whole_is_refused(tmp_path: Path) -> None:
    """PEFT's file does not say whether the layer is a Conv1D, [K, N], or a Linear, [N, K]."""
    from peft import LoraConfig, get_peft_model

    from cuvilc.diagnostics import CuvilError

    for name in ("attn.c_proj", "c_fc"):
        config = LoraConfig(
            r=2, target_modules=["c_attn"], modules_to_save=[name], fan_in_fan_out=True
        )
        get_peft_model(gpt2(), config).save_pretrained(tmp_path / name)
    with pytest.raises(CuvilError, match="CUV707.*`transformer.h.0.attn.c_proj.weight`.*square"):
        lora.read_adapters(tmp_path / "attn.c_proj")
    assert lora.read_adapters(tmp_path / "c_fc")


def test_selection_is_peft_s_own() -> None:
    """The same modules as PEFT picks, over random configurations and paths."""
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    config_of = import_module("cuvilc.import.lora_config").parse_config
    draw = random.Random(5)
    parts = ["model", "layers", "0", "1", "12", "attn", "q_proj", "v_proj", "h", "experts"]
    names = ["q_proj", "attn.q_proj", "v_proj", "1.attn", "layers.0.q_proj"]
    for _ in range(400):
        config: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": draw.sample(names, 2)}
        if draw.random() < 0.5:
            config["layers_to_transform"] = draw.choice([0, [1], [0, 12]])
            config["layers_pattern"] = draw.choice([None, "layers", ["h", "layers"]])
        elif draw.random() < 0.3:
            config["target_modules"] = r".*(layers|h)\.\d+.*\.(q|v)_proj"
        config["exclude_modules"] = draw.choice([None, ["attn.q_proj"], r".*\.12\..*"])
        config["modules_to_save"] = draw.choice([None, ["attn"]])
        theirs = LoraConfig(**config)
        ours = config_of({"peft_type": "LORA", **config}, "here")
        for _ in range(20):
            path = ".".join(draw.choices(parts, k=draw.randint(1, 7)))
            chosen = bool(check_target_module_exists(theirs, path))
            assert ours.selects(path) == chosen, (config, path)


def test_patterns_are_matched_as_python_does() -> None:
    import re

    patterns = import_module("cuvilc.import.lora_patterns")
    draw = random.Random(3)

    def pattern(depth: int = 0) -> str:
        kind = draw.randrange(12)
        if depth > 3 or kind < 4:
            return draw.choice(["a", "b", r"\.", ".", "[ab]", "[^a]", r"\d", r"\w", "1", r"\b"])
        if kind < 7:
            return pattern(depth + 1) + pattern(depth + 1)
        if kind == 7:
            return f"(?:{pattern(depth + 1)}|{pattern(depth + 1)})"
        if kind == 8:
            times = draw.choice(["*", "+", "?", "{2}", "{1,3}", "*?", "+?", "??"])
            return f"({pattern(depth + 1)}){times}"
        if kind < 11:
            return f"(?{draw.choice('=!')}{pattern(depth + 1)}){pattern(depth + 1)}"
        return draw.choice(["^", ""]) + pattern(depth + 1) + draw.choice(["$", ""])

    agreed = 0
    for _ in range(4000):
        made, text = pattern(), "".join(draw.choices("ab.1", k=draw.randrange(7)))
        wanted = bool(re.fullmatch(made, text))
        assert patterns.matches(made, text) == wanted, (made, text)
        ending = bool(re.match(rf"(.*\.)?({made})$", text))
        assert patterns.matches_end(made, text) == ending, (made, text)
        agreed += wanted
    assert agreed > 100


def test_an_adapter_of_a_changed_base_is_refused(tmp_path: Path) -> None:
    """PEFT changed the base weights at its start: on the original ones it means another model."""
    from cuvilc.diagnostics import CuvilError

    model = adapted(r=2, target_modules=["q_proj"], init_lora_weights="pissa")
    model.save_pretrained(tmp_path / "raw")
    with pytest.raises(CuvilError, match="CUV704"):
        lora.read_adapters(tmp_path / "raw")
    config = json.loads((tmp_path / "raw" / "adapter_config.json").read_text())
    (tmp_path / "raw" / "adapter_config.json").write_text(
        json.dumps({**config, "init_lora_weights": True})
    )
    assert lora.read_adapters(tmp_path / "raw")
