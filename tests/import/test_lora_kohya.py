"""Files of kohya's and diffusers': the same factors under other names."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.adapter import Adapter
from cuvilc.diagnostics import CuvilError

from . import lora_graphs
from .lora_files import write, write_file

lora = import_module("cuvilc.import.lora")
spelling = import_module("cuvilc.import.lora_spelling")

RNG = np.random.default_rng(7)
Q = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
CONV = "down_blocks.0.resnets.0.conv1"
TEXT = "text_model.encoder.layers.0.self_attn.q_proj"


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


DOWN, UP = random(2, 5), random(6, 2)
CONV_DOWN, CONV_UP = random(3, 4, 3, 3), random(6, 3, 1, 1)


def read(tmp_path: Path, values: dict[str, np.ndarray], **metadata: str) -> Adapter:
    (adapter,) = lora.read_adapters(write_file(tmp_path / "x.safetensors", values, metadata))
    return adapter


def refused(tmp_path: Path, values: dict[str, np.ndarray], **metadata: str) -> CuvilError:
    with pytest.raises(CuvilError) as caught:
        read(tmp_path, values, **metadata)
    return caught.value


def number(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def flat(path: str) -> str:
    return path.replace(".", "_")


def test_kohya(tmp_path: Path) -> None:
    values = {}
    for stem, down, up, alpha in (
        (f"lora_unet_{flat(Q)}", DOWN, UP, 1.0),
        (f"lora_unet_{flat(CONV)}", CONV_DOWN, CONV_UP, 6.0),
        (f"lora_te_{flat(TEXT)}", DOWN, UP, 4.0),
        (f"lora_te2_{flat(TEXT)}", DOWN, UP, 2.0),
    ):
        values |= {f"{stem}.lora_down.weight": down, f"{stem}.lora_up.weight": up}
        values[f"{stem}.alpha"] = number(alpha)
    metadata = {"ss_network_dim": "2", "ss_network_alpha": "1", "other": "x"}
    file = write_file(tmp_path / "pixel.safetensors", values, metadata)
    adapters = lora.read_adapters(file)
    assert [a.name for a in adapters] == ["text_encoder", "text_encoder_2", "unet"]
    for adapter in adapters:
        assert adapter.config["naming"] == "underscored"
        assert adapter.config["metadata"] == {"ss_network_dim": "2", "ss_network_alpha": "1"}
        assert lora.read_adapters(file, adapter.name)[0].changes[0].path == adapter.changes[0].path
    with pytest.raises(CuvilError, match="text_encoder, text_encoder_2, unet"):
        lora.read_adapters(file, "sql")
    found = {c.path: c for a in adapters for c in a.changes}
    assert list(found) == [
        f"text_encoder.{flat(TEXT)}", f"text_encoder_2.{flat(TEXT)}", f"unet.{flat(Q)}",
        f"unet.{flat(CONV)}",
    ]  # fmt: skip
    q, conv = found[f"unet.{flat(Q)}"], found[f"unet.{flat(CONV)}"]
    assert (q.kind, q.low_rank.rank, q.low_rank.scale) == ("linear", 2, 0.5)
    assert (conv.kind, conv.low_rank.rank, conv.low_rank.scale) == ("convolution", 3, 2.0)
    np.testing.assert_array_equal(q.low_rank.a, DOWN)
    np.testing.assert_array_equal(conv.low_rank.a, CONV_DOWN)
    np.testing.assert_array_equal(conv.low_rank.b, CONV_UP[:, :, 0, 0])


@pytest.mark.parametrize(
    ("down", "up", "path"),
    [
        (f"unet.{Q}.lora_A.weight", f"unet.{Q}.lora_B.weight", f"unet.{Q}"),
        (f"unet.{Q}.lora.down.weight", f"unet.{Q}.lora.up.weight", f"unet.{Q}"),
        (f"{Q}.lora_A.default.weight", f"{Q}.lora_B.default.weight", Q),
        (
            "unet.mid.attn1.processor.to_out_lora.down.weight",
            "unet.mid.attn1.processor.to_out_lora.up.weight",
            "unet.mid.attn1.to_out.0",
        ),
        (
            "unet.mid.attn1.processor.to_q_lora.down.weight",
            "unet.mid.attn1.processor.to_q_lora.up.weight",
            "unet.mid.attn1.to_q",
        ),
        (
            "text_encoder.layers.0.self_attn.to_q_lora.down.weight",
            "text_encoder.layers.0.self_attn.to_q_lora.up.weight",
            "text_encoder.layers.0.self_attn.q_proj",
        ),
        (
            "text_encoder.layers.0.self_attn.to_out_lora.down.weight",
            "text_encoder.layers.0.self_attn.to_out_lora.up.weight",
            "text_encoder.layers.0.self_attn.out_proj",
        ),
        (
            f"text_encoder.{TEXT}.lora_linear_layer.down.weight",
            f"text_encoder.{TEXT}.lora_linear_layer.up.weight",
            f"text_encoder.{TEXT}",
        ),
        (
            "diffusion_model.blocks.0.q.lora_down.weight",
            "diffusion_model.blocks.0.q.lora_up.weight",
            "diffusion_model.blocks.0.q",
        ),
    ],
)
def test_spellings_of_diffusers(down: str, up: str, path: str, tmp_path: Path) -> None:
    adapter = read(tmp_path, {down: DOWN, up: UP})
    (change,) = adapter.changes
    assert change.path == path and adapter.config["naming"] == "dotted"
    assert (change.low_rank.scale, change.low_rank.alpha) == (1.0, 2.0)
    assert set(change.tensors) == {down, up}


def test_alpha_of_diffusers(tmp_path: Path) -> None:
    values = {f"unet.{Q}.lora_A.weight": DOWN, f"unet.{Q}.lora_B.weight": UP,
              f"unet.{Q}.alpha": number(8, np.int64)}  # fmt: skip
    assert read(tmp_path, values).changes[0].low_rank.scale == 4


def test_configurations_in_the_metadata(tmp_path: Path) -> None:
    said = {
        "unet.r": 2, "unet.lora_alpha": 6, "unet.use_rslora": True, "unet.lora_dropout": 0.2,
        "unet.target_modules": ["to_q", "conv1"], "unet.rank_pattern": {"conv1": 3},
        "unet.alpha_pattern": {"conv1": 12},
    }  # fmt: skip
    values = {
        f"unet.{Q}.lora_A.weight": DOWN, f"unet.{Q}.lora_B.weight": UP,
        f"unet.{CONV}.lora_A.weight": CONV_DOWN, f"unet.{CONV}.lora_B.weight": CONV_UP,
    }  # fmt: skip
    adapter = read(tmp_path, values, lora_adapter_metadata=json.dumps(said))
    q, conv = adapter.changes
    assert q.low_rank.scale == pytest.approx(6 / 2**0.5)
    assert conv.low_rank.scale == pytest.approx(12 / 3**0.5)
    assert adapter.config["lora_dropout"] == 0.2
    wrong = json.dumps({**said, "unet.r": 4})
    error = refused(tmp_path, values, lora_adapter_metadata=wrong)
    assert error.diagnostics[0].code == "CUV707"
    other = json.dumps({**said, "unet.peft_type": "LOHA"})
    assert refused(tmp_path, values, lora_adapter_metadata=other).diagnostics[0].code == "CUV704"
    error = refused(tmp_path, values, lora_adapter_metadata="{")
    assert error.diagnostics[0].code == "CUV703"


def test_magnitudes(tmp_path: Path) -> None:
    stem = f"lora_unet_{flat(Q)}"
    values = {f"{stem}.lora_down.weight": DOWN, f"{stem}.lora_up.weight": UP}
    adapter = read(tmp_path, values | {f"{stem}.dora_scale": random(6, 1)})
    assert adapter.changes[0].low_rank.magnitude.shape == (6,)
    error = refused(tmp_path, values | {f"{stem}.dora_scale": random(1, 5)})
    assert error.diagnostics[0].code == "CUV707"


def test_semantics_in_the_metadata(tmp_path: Path) -> None:
    stem = f"lora_unet_{flat(Q)}"
    values = {f"{stem}.lora_down.weight": DOWN, f"{stem}.lora_up.weight": UP}
    said = json.dumps({"dependency_level": "cross-attention"})
    error = refused(tmp_path, values, graph_semantics=said)
    assert error.diagnostics[0].code == "CUV711" and "has q only" in str(error)
    value = stem.replace("to_q", "to_v")
    values |= {f"{value}.lora_down.weight": DOWN, f"{value}.lora_up.weight": UP}
    assert read(tmp_path, values, graph_semantics=said).semantics.dependency_level


STEM = "lora_unet_mid_block"
BAD: dict[str, tuple[dict[str, np.ndarray], str, str]] = {
    "LoHa": ({f"{STEM}.hada_w1_a": DOWN}, "CUV704", "LoHa"),
    "LoKr": ({f"{STEM}.lokr_w1": DOWN}, "CUV704", "LoKr"),
    "OFT": ({f"{STEM}.oft_blocks": DOWN}, "CUV704", "OFT"),
    "IA3": ({f"{STEM}.on_input": DOWN, f"{STEM}.weight": DOWN}, "CUV704", "IA³"),
    "a middle factor": ({f"{STEM}.lora_mid.weight": DOWN}, "CUV704", "middle factor"),
    "a full difference": ({f"{STEM}.diff": DOWN}, "CUV704", "full difference"),
    "no up": ({f"{STEM}.lora_down.weight": DOWN}, "CUV706", "lacks B"),
    "no down": ({f"{STEM}.lora_up.weight": UP}, "CUV706", "lacks A"),
    "alpha alone": ({f"{STEM}.alpha": number(1)}, "CUV705", "no factors belong to it"),
    "an alpha of two": ({f"{STEM}.alpha": random(2)}, "CUV707", "no finite number"),
    "an alpha of NaN": ({f"{STEM}.alpha": number(np.nan)}, "CUV707", "no finite number"),
    "ranks": (
        {f"{STEM}.lora_down.weight": DOWN, f"{STEM}.lora_up.weight": random(6, 3)},
        "CUV707", "B of rank 3"),
    "rank 0": (
        {f"{STEM}.lora_down.weight": random(0, 5), f"{STEM}.lora_up.weight": random(6, 0)},
        "CUV707", "no factors of a linear"),
    "NaN": (
        {f"{STEM}.lora_down.weight": DOWN, f"{STEM}.lora_up.weight": UP * np.nan},
        "CUV708", "nan"),
    "an extra tensor": (
        {f"{STEM}.lora_down.weight": DOWN, f"{STEM}.lora_up.weight": UP, "bert.x": UP},
        "CUV705", "`bert.x`"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    values, code, words = BAD[case]
    error = refused(tmp_path, values)
    assert code in [d.code for d in error.diagnostics] and words in str(error)


def test_the_one_file_of_a_folder(tmp_path: Path) -> None:
    values = {f"{STEM}.lora_down.weight": DOWN, f"{STEM}.lora_up.weight": UP}
    (tmp_path / "pixel").mkdir()
    write_file(tmp_path / "pixel" / "pytorch_lora_weights.safetensors", values)
    (adapter,) = lora.read_adapters(tmp_path / "pixel")
    assert adapter.name == "pixel"
    assert lora.read_adapters(tmp_path / "pixel", "sql")[0].name == "sql"
    write_file(tmp_path / "pixel" / "other.safetensors", values)
    with pytest.raises(CuvilError, match="CUV701"):
        lora.read_adapters(tmp_path / "pixel")


def spelled(tmp_path: Path, stem: str, end: str, *modules: str) -> str:
    down, up = (f"{stem}.lora_{x}.weight" for x in (("down", "up") if end == "kohya" else "AB"))
    (change,) = spelling.in_model(read(tmp_path, {down: DOWN, up: UP}), modules).changes
    return change.path


@pytest.mark.parametrize("head", ["", "unet.", "m.", "wrapped.model."])
def test_paths_as_the_model_spells_them(head: str, tmp_path: Path) -> None:
    others = [f"{head}{Q}".replace("to_q", x) for x in ("to_k", "to_v", "to.q.x")]
    found = spelled(tmp_path, f"lora_unet_{flat(Q)}", "kohya", *others, head + Q)
    assert found == head + Q
    assert spelled(tmp_path, f"unet.{Q}", "diffusers", *others, head + Q) == head + Q


def test_paths_that_fit_nothing_or_two_stay(tmp_path: Path) -> None:
    stem = f"lora_unet_{flat(Q)}"
    assert spelled(tmp_path, stem, "kohya", "encoder.x") == f"unet.{flat(Q)}"
    assert spelled(tmp_path, stem, "kohya", Q, Q.replace(".", "_", 1)) == f"unet.{flat(Q)}"
    assert spelled(tmp_path, f"unet.{Q}", "diffusers", f"text_encoder.{Q}") == f"unet.{Q}"


def test_an_adapter_of_peft_keeps_its_paths(tmp_path: Path) -> None:
    (adapter,) = lora.read_adapters(write(tmp_path))
    assert spelling.in_model(adapter, ["l_0_q_proj", "q_proj"]) is adapter


@pytest.mark.parametrize("end", ["kohya", "diffusers"])
def test_they_attach_to_an_exported_part(end: str, tmp_path: Path) -> None:
    """A UNet exported by itself: no `unet.` before its names, dots where kohya has none."""
    block = "down_blocks.0.attn1"
    weights = {f"{block}.to_q.weight": random(5, 6), f"{block}.to_k.weight": random(6, 6)}
    nodes = [
        lora_graphs.node("MatMul", f"x {block}.to_q.weight", "a", name="first"),
        lora_graphs.node("MatMul", f"a {block}.to_k.weight", "y", name="second"),
    ]
    program = lora_graphs.program(tmp_path, nodes, weights, {"x": [2, 5]})
    stem = {"kohya": "lora_unet_down_blocks_0_attn1_to_q",
            "diffusers": "unet.down_blocks.0.attn1.to_q"}[end]  # fmt: skip
    down, up = (f"{stem}.lora_{x}.weight" for x in (("down", "up") if end == "kohya" else "AB"))
    adapters = spelling.spelled(program, [read(tmp_path, {down: DOWN, up: UP})])
    (site,) = lora_graphs.attach.find_sites(program, adapters)
    assert site.module == "down_blocks.0.attn1.to_q" and site.out_axis == 1
