"""What is wrong with an adapter is told, all of it, and never costs much time or memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvilc.diagnostics import CuvilError

from .lora_files import CONFIG, PREFIX, file_bytes, pair, safetensors, tensors, write, write_file

lora = import_module("cuvilc.import.lora")

Q_A, Q_B = (f"{PREFIX}l.0.q_proj.lora_{x}.weight" for x in "AB")


def refused(path: Path, name: str | None = None) -> CuvilError:
    begin = time.perf_counter()
    with pytest.raises(CuvilError) as caught:
        lora.read_adapters(path, name)
    assert time.perf_counter() - begin < 5
    return caught.value


def codes(error: CuvilError) -> list[str]:
    return [d.code for d in error.diagnostics]


def only(path: Path, code: str, *words: str) -> str:
    """The one diagnostic, which has the words."""
    error = refused(path)
    assert codes(error) == [code], str(error)
    for word in words:
        assert word in str(error), str(error)
    return str(error)


def test_the_adapter_that_all_others_are_made_of_is_fine(tmp_path: Path) -> None:
    (adapter,) = lora.read_adapters(write(tmp_path / "fine"))
    assert [c.path for c in adapter.changes] == ["l.0.q_proj", "l.0.v_proj"]
    assert adapter.name == "fine" and adapter.changes[0].low_rank.scale == 2


# ---- the place
def test_no_such_place(tmp_path: Path) -> None:
    only(tmp_path / "nowhere", "CUV701", "no such file")


def test_a_folder_without_an_adapter(tmp_path: Path) -> None:
    only(tmp_path, "CUV701", "it is empty")
    (tmp_path / "model.onnx").write_bytes(b"x")
    only(tmp_path, "CUV701", "model.onnx", "adapter_config.json")


def test_a_configuration_without_tensors(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    only(tmp_path, "CUV701", "no adapter_model.safetensors")


def test_tensors_without_a_configuration(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    only(tmp_path, "CUV701", "no adapter_config.json")
    only(tmp_path / "adapter_model.safetensors", "CUV701", "no adapter_config.json")


def test_the_tensor_file_of_a_folder_is_its_adapter(tmp_path: Path) -> None:
    write(tmp_path / "mine")
    (adapter,) = lora.read_adapters(tmp_path / "mine" / "adapter_model.safetensors")
    assert adapter.name == "mine"


def test_several_and_none_of_that_name(tmp_path: Path) -> None:
    write(tmp_path / "chat10")
    write(tmp_path / "chat9")
    found = lora.read_adapters(tmp_path)
    assert [a.name for a in found] == ["chat9", "chat10"]
    error = refused(tmp_path, "sql")
    assert codes(error) == ["CUV701"] and "chat9, chat10" in str(error)


def test_checkpoints_beside_an_adapter_are_not_adapters(tmp_path: Path) -> None:
    write(tmp_path / "run")
    write(tmp_path / "run" / "checkpoint-500")
    assert [a.name for a in lora.read_adapters(tmp_path / "run")] == ["run"]


def test_all_that_is_wrong_with_several_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a", r=0)
    write(tmp_path / "b", peft_type="IA3")
    assert codes(refused(tmp_path)) == ["CUV703", "CUV704"]


def test_a_pickle(tmp_path: Path) -> None:
    folder = write(tmp_path / "one")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    only(folder, "CUV710", "adapter_model.bin")
    only(folder / "adapter_model.bin", "CUV710")
    disguised = write(tmp_path / "two") / "adapter_model.safetensors"
    disguised.write_bytes(b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s.")
    only(tmp_path / "two", "CUV710", "could run any code")


def test_a_pipe_does_not_hang_us(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "adapter_model.safetensors").unlink()
    os.mkfifo(folder / "adapter_model.safetensors")
    only(folder, "CUV701", "no file")


# ---- the tensor file
def spoilt(change: Callable[[dict[str, Any], bytes], bytes]) -> bytes:
    return change(*safetensors(tensors()))


def entry(**fields: Any) -> Callable[[dict[str, Any], bytes], bytes]:
    """The file with fields of Q_A's entry replaced."""
    return lambda h, d: file_bytes({**h, Q_A: {**h[Q_A], **fields}}, d)


DAMAGED: dict[str, tuple[Callable[[dict[str, Any], bytes], bytes], str]] = {
    "empty": (lambda h, d: b"", "an empty file"),
    "of a few bytes": (lambda h, d: b"\x05\0\0\0\0\0\0\0{", "ends within its header"),
    "truncated": (lambda h, d: file_bytes(h, d[:-3]), "but 109 are there"),
    "longer": (lambda h, d: file_bytes(h, d + b"abc"), "but 115 are there"),
    "a truncated header": (lambda h, d: file_bytes(h, d)[:100], "ends within its header"),
    "a huge header": (lambda h, d: (1 << 62).to_bytes(8, "little") + b"{}" + d, "header"),
    "no JSON": (lambda h, d: file_bytes(b"{nonsense}", d), "its header is not right"),
    "no UTF-8": (lambda h, d: file_bytes(b'{"\xff": 1}', d), "its header is not right"),
    "no object": (lambda h, d: file_bytes(b"[1, 2]", d), "no JSON object"),
    "deep": (lambda h, d: file_bytes(b'{"a":' + b"[" * 90_000, d), "its header is not right"),
    "a bomb": (lambda h, d: file_bytes(b"{" + b"[]," * 1_100_000, d), "more entries than"),
    "long digits": (
        lambda h, d: file_bytes(b'{"a":' + b"9" * 9000 + b"}", d), "its header is not right"),
    "a name twice": (
        lambda h, d: file_bytes(json.dumps(h).encode()[:-1] + b"," + json.dumps(h).encode()[1:], d),
        "stands there twice"),
    "metadata of numbers": (lambda h, d: file_bytes({**h, "__metadata__": {"a": 1}}, d), "texts"),
    "no fields": (lambda h, d: file_bytes({**h, Q_A: 5}, d), "is not dtype, shape"),
    "a shape of text": (entry(shape=["2", 3]), "is not dtype, shape"),
    "a negative size": (entry(shape=[-2, -3]), "is not dtype, shape"),
    "a boolean size": (entry(shape=[True, 6]), "is not dtype, shape"),
    "many axes": (entry(shape=[1] * 7 + [2, 3]), "is not dtype, shape"),
    "another shape": (entry(shape=[2, 4]), "does not take the bytes"),
    "a huge shape": (entry(shape=[1 << 40, 1 << 40]), "does not take the bytes"),
    "empty, yet huge": (entry(shape=[0, 1 << 62, 1 << 62], data_offsets=[0, 0]), "leaves a gap"),
    "outside": (entry(data_offsets=[1 << 40, (1 << 40) + 24]), "gap"),
    "reversed": (entry(data_offsets=[24, 0]), "does not take the bytes"),
    "a gap": (entry(data_offsets=[8, 32]), "leaves a gap after the header"),
    "an overlap": (
        lambda h, d: file_bytes({**h, Q_B: {**h[Q_B], "data_offsets": [16, 48]}}, d), "overlaps"),
    "a Git LFS pointer": (
        lambda h, d: b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git lfs pull"),
    "a web page": (lambda h, d: b"<!doctype html><html>not found</html>", "failed download"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file(case: str, tmp_path: Path) -> None:
    change, words = DAMAGED[case]
    (write(tmp_path) / "adapter_model.safetensors").write_bytes(spoilt(change))
    only(tmp_path, "CUV702", words)


def test_random_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    """Whatever byte of the header is changed: a diagnostic, or tensors that are all there."""
    file = write(tmp_path) / "adapter_model.safetensors"
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(1)
    outcomes = set()
    for _ in range(400):
        wrong = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            wrong[rng.integers(0, 8 + length)] = rng.integers(0, 256)
        file.write_bytes(bytes(wrong))
        try:
            outcomes.add(len(lora.read_adapters(tmp_path)[0].changes))
        except CuvilError as error:
            outcomes |= set(codes(error))
    assert {"CUV702", "CUV705"} <= outcomes


def test_unknown_and_unfit_dtypes(tmp_path: Path) -> None:
    file = write(tmp_path) / "adapter_model.safetensors"
    file.write_bytes(spoilt(entry(dtype="F4")))
    only(tmp_path, "CUV709", "is F4")
    write(tmp_path, {n: t.astype(np.float64) for n, t in tensors().items()})
    error = refused(tmp_path)
    assert codes(error) == ["CUV709"] * 4 and "float64" in str(error)


# ---- what the tensors say
def test_a_missing_half(tmp_path: Path) -> None:
    values = tensors()
    del values[Q_B]
    only(write(tmp_path, values), "CUV706", "`l.0.q_proj` lacks B", Q_A)
    values = tensors()
    del values[Q_A]
    only(write(tmp_path, values), "CUV706", "`l.0.q_proj` lacks A")
    only(write(tmp_path, {}), "CUV706", "no tensors")


def test_dora_without_magnitudes_and_the_reverse(tmp_path: Path) -> None:
    error = refused(write(tmp_path, use_dora=True))
    assert codes(error) == ["CUV706"] * 2 and "use_dora" in str(error)
    magnitude = {f"{PREFIX}l.0.q_proj.lora_magnitude_vector": np.ones(4, np.float32)}
    only(write(tmp_path, tensors() | magnitude), "CUV705", "`use_dora` is not set")


def test_bias_of_b_that_nobody_asked_for_and_the_reverse(tmp_path: Path) -> None:
    assert codes(refused(write(tmp_path, lora_bias=True))) == ["CUV706"] * 2
    bias = {f"{PREFIX}l.0.q_proj.lora_B.bias": np.ones(4, np.float32)}
    only(write(tmp_path, tensors() | bias), "CUV705", "`lora_bias` is not set")


ONE = np.ones(4, np.float32)
UNEXPLAINED = {
    "no factor": f"{PREFIX}l.0.q_proj.lora_C.weight",
    "no ending": f"{PREFIX}l.0.q_proj.lora_A",
    "no module": f"{PREFIX}lora_A.weight",
    "a bias": f"{PREFIX}l.0.q_proj.base_layer.bias",
    "a weight": f"{PREFIX}classifier.weight",
    "another module": f"{PREFIX}l.0.k_proj.lora_A.weight",
    "a part of a name": f"{PREFIX}l.0.my_q_proj.lora_A.weight",
    "AdaLoRA's": f"{PREFIX}l.0.q_proj.lora_E",
    "of a training state": "optimizer.state",
    "empty": "",
}


@pytest.mark.parametrize("case", UNEXPLAINED)
def test_a_tensor_that_nothing_explains(case: str, tmp_path: Path) -> None:
    name = UNEXPLAINED[case]
    only(write(tmp_path, tensors() | {name: ONE}), "CUV705", f"`{name}`")


def test_a_tensor_twice_under_two_names(tmp_path: Path) -> None:
    again = {Q_A.replace(".lora_A.", ".lora_A.default."): tensors()[Q_A]}
    only(write(tmp_path, tensors() | again), "CUV705", "both A of `l.0.q_proj`")


def test_two_adapters_in_one_file(tmp_path: Path) -> None:
    values = {n.replace(".weight", ".one.weight"): t for n, t in pair("l.0.q_proj").items()}
    values |= {n.replace(".weight", ".two.weight"): t for n, t in pair("l.0.v_proj").items()}
    only(write(tmp_path, values), "CUV705", "one, two")


def test_copies_of_modules_to_save_must_be_equal(tmp_path: Path) -> None:
    head = f"{PREFIX}classifier"
    values = tensors() | {f"{head}.bias": ONE, f"{head}.modules_to_save.default.bias": 2 * ONE}
    only(write(tmp_path, values, modules_to_save=["classifier"]), "CUV705", "another value")


SHAPES: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any], str]] = {
    "rank of the configuration": ({}, {"r": 3}, "the configuration says 3"),
    "rank of the pattern": ({}, {"rank_pattern": {"q_proj": 7}}, "the configuration says 7"),
    "rank of B": ({Q_B: (4, 3)}, {}, "B of rank 3"),
    "a vector": ({Q_A: (2,)}, {}, "no factors of a linear"),
    "a scalar": ({Q_B: ()}, {}, "no factors of a linear"),
    "empty": ({Q_A: (2, 0)}, {}, "no factors of a linear"),
    "one of a convolution": ({Q_A: (2, 3, 1, 1)}, {}, "no factors of a convolution"),
    "a kernel in B": ({Q_A: (2, 3, 3, 3), Q_B: (4, 2, 3, 3)}, {}, "a kernel of one point"),
    "groups that do not divide": ({Q_A: (2, 3, 3, 3), Q_B: (5, 1, 1, 1)}, {}, "B of rank 1"),
    "six axes": ({Q_A: (2, 3, 1, 1, 1, 1), Q_B: (4, 2, 1, 1, 1, 1)}, {}, "no factors"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_that_disagree(case: str, tmp_path: Path) -> None:
    shapes, config, words = SHAPES[case]
    values = tensors() | {n: np.ones(s, np.float32) for n, s in shapes.items()}
    error = refused(write(tmp_path, values, **config))
    assert set(codes(error)) == {"CUV707"}
    assert words in str(error) and "l.0.q_proj" in str(error)


@pytest.mark.parametrize("shape", [(3,), (2, 2), (4, 4)])
def test_a_magnitude_of_another_size(shape: tuple[int, ...], tmp_path: Path) -> None:
    names = [f"{PREFIX}l.0.{m}.lora_magnitude_vector" for m in ("q_proj", "v_proj")]
    values = tensors() | {names[0]: np.ones(shape, np.float32), names[1]: ONE}
    only(write(tmp_path, values, use_dora=True), "CUV707", "for 4 outputs")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value: float, tmp_path: Path) -> None:
    values = tensors()
    values[Q_B][3, 1] = value
    only(write(tmp_path, values), "CUV708", Q_B, "[3, 1]")


def rows(*paths: str, count: int = 2) -> dict[str, np.ndarray]:
    name = "token_adapter.trainable_tokens_delta"
    return {f"{PREFIX}{path}.{name}": np.ones((count, 3), np.float32) for path in paths}


ROWS: dict[str, tuple[dict[str, np.ndarray], Any, str, str]] = {
    "not named": (rows("e"), None, "CUV705", "names no rows of `e`"),
    "of another module": (rows("e"), {"f": [1, 2]}, "CUV705", "names no rows of `e`"),
    "of two modules": (rows("e", "f"), [1, 2], "CUV705", "names no rows of `f`"),
    "of another number": (rows("e", count=3), [1, 2], "CUV707", "for 2 tokens"),
    "none": ({}, [1, 2], "CUV706", "no rows of the input embedding"),
    "left out": (rows("e"), {"e": [1, 2], "f": [3]}, "CUV706", "no rows of `f`"),
    "beside the whole": (rows("l.0.e") | {f"{PREFIX}l.0.e.weight": ONE}, [1, 2], "CUV705",
                         "beside rows"),
    "beside factors": (rows("l.0.q_proj"), [1, 2], "CUV705", "beside rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", ROWS)
def test_rows_of_a_table(tmp_path: Path, case: str) -> None:
    values, said, code, words = ROWS[case]
    folder = write(tmp_path, tensors() | values, trainable_token_indices=said,
                   modules_to_save=["l.0.e"] if case == "beside the whole" else None)  # fmt: skip
    error = refused(folder)
    assert code in codes(error) and words in str(error)


def test_rows_that_another_module_has_too(tmp_path: Path) -> None:
    """PEFT writes those of tied modules once; of two adapters each has its own name."""
    said = {"e": [4, 1], "head": [4, 1]}
    values = tensors() | rows("m.e")
    folder = write(tmp_path, values, trainable_token_indices=said)
    [adapter] = lora.read_adapters(folder, None)
    [change] = [c for c in adapter.changes if c.rows is not None]
    assert change.path == "m.e" and change.rows.indices == (4, 1) and change.rows.tied == ("head",)


def test_everything_at_once(tmp_path: Path) -> None:
    values = tensors() | pair("l.0.k_proj") | pair("l.1.q_proj")
    values[Q_B][0, 0] = np.nan
    del values[f"{PREFIX}l.0.v_proj.lora_B.weight"]
    values[f"{PREFIX}l.1.q_proj.lora_B.weight"] = np.ones((4, 5), np.float32)
    found = codes(refused(write(tmp_path, values)))
    assert found == ["CUV705", "CUV705", "CUV706", "CUV707", "CUV708"]


def test_many_of_a_kind_are_counted(tmp_path: Path) -> None:
    values = {f"{PREFIX}l.{n}.up.lora_A.weight": ONE for n in range(1000)}
    error = refused(write(tmp_path, values))
    assert len(error.diagnostics) == 12 and "and 988 more" in str(error)


# ---- the configuration
CONFIGURATIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no type": ({"peft_type": None}, "CUV703", "`peft_type` is missing"),
    "an unknown type": ({"peft_type": "MAGIC"}, "CUV704", '"MAGIC" is not known'),
    "a number as type": ({"peft_type": 3}, "CUV704", "is not known"),
    "a list as type": ({"peft_type": ["LORA"]}, "CUV704", "is not known"),
    "IA3": ({"peft_type": "IA3"}, "CUV704", "IA³"),
    "AdaLoRA": ({"peft_type": "ADALORA"}, "CUV704", "AdaLoRA"),
    "LoHa": ({"peft_type": "LOHA"}, "CUV704", "LoHa"),
    "LoKr": ({"peft_type": "LOKR"}, "CUV704", "LoKr"),
    "OFT": ({"peft_type": "OFT"}, "CUV704", "OFT"),
    "VeRA": ({"peft_type": "VERA"}, "CUV704", "VeRA"),
    "prompts": ({"peft_type": "PROMPT_TUNING"}, "CUV704", "prompt tuning"),
    "tokens of text": ({"trainable_token_indices": ["a"]}, "CUV703", "numbers of tokens"),
    "a token below 0": ({"trainable_token_indices": {"e": [-1]}}, "CUV703", "numbers of tokens"),
    "a token twice": ({"trainable_token_indices": [2, 2]}, "CUV703", "different numbers"),
    "a token of a module": ({"trainable_token_indices": {"e": 3}}, "CUV703", "numbers of tokens"),
    "bare parameters": ({"target_parameters": ["w"]}, "CUV704", "bare parameters"),
    "aLoRA": ({"alora_invocation_tokens": [1]}, "CUV704", "Activated LoRA"),
    "repeated layers": ({"layer_replication": [[0, 2]]}, "CUV704", "repeated"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "CUV704", "belongs to base weights"),
    "OLoRA": ({"init_lora_weights": "olora"}, "CUV704", "belongs to base weights"),
    "no rank": ({"r": None}, "CUV703", "`r` is missing"),
    "rank 0": ({"r": 0}, "CUV703", "`r` is 0"),
    "a negative rank": ({"r": -4}, "CUV703", "`r` is -4"),
    "a rank of text": ({"r": "8"}, "CUV703", '`r` is "8"'),
    "true as rank": ({"r": True}, "CUV703", "`r` is true"),
    "rank 0 by pattern": ({"rank_pattern": {"q_proj": 0}}, "CUV703", "q_proj"),
    "no alpha": ({"lora_alpha": None}, "CUV703", "`lora_alpha` is missing"),
    "alpha of text": ({"lora_alpha": "x"}, "CUV703", "`lora_alpha`"),
    "alpha by pattern": ({"alpha_pattern": {"q_proj": "x"}}, "CUV703", "alpha_pattern"),
    "patterns of a list": ({"alpha_pattern": ["x"]}, "CUV703", "alpha_pattern"),
    "ranks of a list": ({"rank_pattern": ["x"]}, "CUV703", "rank_pattern"),
    "dropout": ({"lora_dropout": 1.5}, "CUV703", "lora_dropout"),
    "a flag of text": ({"use_dora": "yes"}, "CUV703", "use_dora"),
    "another bias": ({"bias": "some"}, "CUV703", "none, all or lora_only"),
    "a bias of lists": ({"bias": []}, "CUV703", "none, all or lora_only"),
    "no targets": ({"target_modules": None}, "CUV703", "`target_modules` is missing"),
    "empty targets": ({"target_modules": []}, "CUV703", "it is empty"),
    "targets of numbers": ({"target_modules": [1]}, "CUV703", "target_modules"),
    "layers of text": ({"layers_to_transform": ["x"]}, "CUV703", "layers_to_transform"),
    "layers and an expression": (
        {"target_modules": ".*q_proj", "layers_to_transform": [1]}, "CUV703", "with a list"),
    "a start of numbers": ({"init_lora_weights": 3}, "CUV703", "init_lora_weights"),
    "dora and bias": ({"use_dora": True, "lora_bias": True}, "CUV703", "exclude one another"),
    "no expression": ({"target_modules": "(q_proj"}, "CUV703", "no regular expression"),
    "an expression of references": ({"target_modules": r"(q)\1"}, "CUV703", "groupref"),
    "an expression of flags": ({"target_modules": "(?i:q_proj)"}, "CUV703", "flags"),
    "an expression that looks behind": ({"target_modules": "(?<=a)b"}, "CUV703", "looks behind"),
    "a long expression": ({"target_modules": "a" * 5000}, "CUV703", "longer than"),
    "an unknown option": ({"use_magic": True}, "CUV703", "`use_magic` is not known"),
    "semantics of text": ({"graph_semantics": "x"}, "CUV703", "no JSON object"),
    "an unknown level": (
        {"graph_semantics": {"dependency_level": "all"}}, "CUV703", "cross-attention"),
    "an unknown strategy": (
        {"graph_semantics": {"fusion_strategy": ["x"]}}, "CUV703", "additive"),
    "an unknown field": ({"graph_semantics": {"speed": "high"}}, "CUV703", "`speed`"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_a_configuration_that_is_not_right(case: str, tmp_path: Path) -> None:
    config, code, words = CONFIGURATIONS[case]
    only(write(tmp_path, **config), code, words, "adapter_config.json")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 90_000, b'{"r": ' + b"9" * 9000 + b"}"]
)
def test_a_configuration_that_is_no_json_object(text: bytes, tmp_path: Path) -> None:
    (write(tmp_path) / "adapter_config.json").write_bytes(text)
    only(tmp_path, "CUV703", "JSON")


def test_a_huge_configuration(tmp_path: Path) -> None:
    (write(tmp_path) / "adapter_config.json").write_bytes(b" " * (9 << 20))
    only(tmp_path, "CUV703", "longer than")


def test_an_expression_that_would_backtrack_for_ever(tmp_path: Path) -> None:
    path = "l." + "a" * 200
    values = {n.replace("l.0.q_proj", path): t for n, t in pair("l.0.q_proj").items()}
    folder = write(tmp_path, values, target_modules=r"l\.(a+)+b|(a|aa)+$")
    assert set(codes(refused(folder))) == {"CUV705"}


def test_an_option_that_is_off_need_not_be_known(tmp_path: Path) -> None:
    off = {"use_magic": False, "magic_config": {}, "magic_names": []}
    assert lora.read_adapters(write(tmp_path, **off))


# ---- what the adapter declares
def semantics(tmp_path: Path, *modules: str, **fields: str) -> Path:
    values = {n: t for m in modules for n, t in pair(m).items()}
    targets = [m.rpartition(".")[2] for m in modules]
    return write(tmp_path, values, target_modules=targets, graph_semantics=fields)


@pytest.mark.parametrize(
    "modules",
    [
        ("l.0.q_proj", "l.0.v_proj"),
        ("l.0.k_proj", "l.0.v_proj", "l.0.o_proj"),
        ("l.0.query", "l.0.value", "l.1.key", "l.1.value"),
        ("h.0.c_attn", "h.0.c_fc"),
        ("l.0.cross.to_q", "l.0.cross.to_kv"),
    ],
)
def test_a_dependency_that_is_kept(modules: tuple[str, ...], tmp_path: Path) -> None:
    folder = semantics(tmp_path, *modules, dependency_level="cross-attention")
    (adapter,) = lora.read_adapters(folder)
    assert adapter.semantics.dependency_level == "cross-attention"


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        (("l.0.q_proj",), "`l.0` has q only"),
        (("l.0.q_proj", "l.0.k_proj"), "`l.0` has k, q only"),
        (("l.0.v_proj",), "`l.0` has v only"),
        (("l.0.q_proj", "l.1.v_proj"), "`l.1` has v only"),
        (("l.0.q_proj", "l.0.v_proj", "l.1.q_proj"), "`l.1` has q only"),
        (("l.0.up", "l.0.down"), "no projection of attention"),
    ],
)
def test_a_dependency_that_is_broken(modules: tuple[str, ...], words: str, tmp_path: Path) -> None:
    error = refused(semantics(tmp_path, *modules, dependency_level="cross-attention"))
    assert set(codes(error)) == {"CUV711"} and words in str(error)


def test_an_additive_adapter_forbids_fusing_its_scale(tmp_path: Path) -> None:
    forbid = import_module("cuvilc.import.lora_semantics").forbid_scale_fusion
    (plain,) = lora.read_adapters(write(tmp_path / "plain"))
    forbid(plain, "--lora fold")
    folder = semantics(tmp_path / "additive", "l.0.q_proj", fusion_strategy="additive")
    (additive,) = lora.read_adapters(folder)
    assert additive.semantics.fusion_strategy == "additive"
    with pytest.raises(CuvilError, match="CUV712"):
        forbid(additive, "--lora fold")


def test_the_configuration_is_kept_for_reports(tmp_path: Path) -> None:
    (adapter,) = lora.read_adapters(write(tmp_path))
    assert adapter.config == CONFIG


def test_a_file_that_is_no_adapter(tmp_path: Path) -> None:
    only(write_file(tmp_path / "model.safetensors", {"w": ONE}), "CUV701", "`w`")
