"""The adapter's graph, told by the names of its modules."""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from cuvilc.adapter import Adapter, LowRank, ModuleChange

graph = import_module("cuvilc.import.lora_graph")


def adapter(*paths: str, dropout: float = 0.1) -> Adapter:
    changes = []
    for number, path in enumerate(paths, 1):
        a, b = np.zeros((number, 3), np.float32), np.zeros((4, number), np.float32)
        kind = "embedding" if "embed" in path else "linear"
        changes.append(ModuleChange(path, kind, LowRank(a, b, 2.0, number, 2.0 * number)))
    return Adapter("x", Path("x"), tuple(changes), "", config={"lora_dropout": dropout})


MODELS = {
    "Llama": [
        ["model.embed_tokens"],
        *(
            group
            for n in (0, 1, 2, 10)
            for group in (
                [f"model.layers.{n}.self_attn.{x}_proj" for x in "kqv"],
                [f"model.layers.{n}.self_attn.o_proj"],
                [f"model.layers.{n}.mlp.gate_proj", f"model.layers.{n}.mlp.up_proj"],
                [f"model.layers.{n}.mlp.down_proj"],
            )
        ),
        ["lm_head"],
    ],
    "GPT-2": [
        ["transformer.wte"],
        ["transformer.h.0.attn.c_attn"], ["transformer.h.0.attn.c_proj"],
        ["transformer.h.0.mlp.c_fc"], ["transformer.h.0.mlp.c_proj"],
        ["transformer.h.1.attn.c_attn"],
    ],
    "BERT": [
        ["bert.embeddings.word_embeddings"],
        [f"bert.encoder.layer.0.attention.self.{x}" for x in ("key", "query", "value")],
        ["bert.encoder.layer.0.attention.output.dense"],
        ["bert.encoder.layer.0.intermediate.dense"], ["bert.encoder.layer.0.output.dense"],
        ["bert.pooler.dense"], ["classifier"],
    ],
    "encoder and decoder": [
        ["model.encoder.layers.0.self_attn.q_proj"], ["model.encoder.layers.1.fc1"],
        ["model.decoder.layers.0.self_attn.q_proj"],
        ["model.decoder.layers.0.self_attn.out_proj"],
        ["model.decoder.layers.0.encoder_attn.q_proj"], ["model.decoder.layers.0.fc2"],
    ],
    "experts": [
        ["layers.0.self_attn.q_proj"],
        [f"layers.0.mlp.experts.{n}.w1" for n in range(12)],
        [f"layers.0.mlp.experts.{n}.w2" for n in range(12)],
        ["layers.1.self_attn.q_proj"],
    ],
    "a UNet": [
        [f"unet.down_blocks.0.attentions.0.blocks.0.attn1.to_{x}" for x in "qv"],
        ["unet.down_blocks.0.attentions.0.blocks.0.attn1.to_out.0"],
        ["unet.down_blocks.0.attentions.0.blocks.0.attn2.to_q"],
        ["unet.mid_block.attentions.0.blocks.0.attn1.to_q"],
        ["unet.up_blocks.0.attentions.0.blocks.0.attn1.to_q"],
    ],
    "no names that are known": [["a"], ["b"], ["c2"], ["c10"]],
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_order_of_modules(name: str) -> None:
    wanted = MODELS[name]
    paths = [path for group in wanted for path in group]
    random.Random(1).shuffle(paths)
    found = [[c.path for c in step.modules] for step in graph.steps(adapter(*paths))]
    assert found == wanted


def test_edges_carry_rank_alpha_and_dropout() -> None:
    made = adapter("l.0.attn.q", "l.0.attn.v", "l.0.attn.o_proj", dropout=0.25)
    q = {"to": "l.0.attn.q", "r": 1, "alpha": 2.0, "dropout": 0.25}
    v = {"to": "l.0.attn.v", "r": 2, "alpha": 4.0, "dropout": 0.25}
    o = {"to": "l.0.attn.o_proj", "r": 3, "alpha": 6.0, "dropout": 0.25}
    assert graph.edges(made) == [
        {"from": "input", **q}, {"from": "input", **v},
        {"from": "l.0.attn.q", **o}, {"from": "l.0.attn.v", **o},
    ]  # fmt: skip


def test_every_edge_leads_forward() -> None:
    for groups in MODELS.values():
        made = adapter(*(path for group in groups for path in group))
        order = ["input", *(c.path for step in graph.steps(made) for c in step.modules)]
        for edge in graph.edges(made):
            assert order.index(edge["from"]) < order.index(edge["to"])
        assert {e["to"] for e in graph.edges(made)} == set(order) - {"input"}


def test_a_module_without_factors_carries_nothing() -> None:
    change = ModuleChange("norm", replaced={"bias": np.zeros(3, np.float32)})
    (edge,) = graph.edges(Adapter("x", Path("x"), (change,), ""))
    assert edge == {"from": "input", "to": "norm", "r": None, "alpha": None, "dropout": None}
